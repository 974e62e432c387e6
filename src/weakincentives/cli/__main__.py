"""`python -m weakincentives.cli`, the same as `wink`."""

import sys

from weakincentives.cli.commands import main

sys.exit(main())
