"""`python -m weakincentives.cli`, the same as `wink`."""

import sys

from weakincentives.cli.app import main

sys.exit(main())
