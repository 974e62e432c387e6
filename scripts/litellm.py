"""Print what the installed litellm needs, as arguments for pip, without its floor on certifi.

Releases that allow openai 3 ask for a certifi that is not published, so pip cannot resolve them: litellm itself is
installed with `--no-deps`, then what this prints.
"""

import shlex
from importlib.metadata import requires

needed = [requirement for requirement in requires("litellm") or () if "extra ==" not in requirement]
print(shlex.join("certifi" if requirement.startswith("certifi") else requirement for requirement in needed))
