"""Finds the command, runs it, and turns what it raises into a message and an exit code.

0: done. 1: the run failed, or something was found. 2: wrong usage. 130: interrupted. What a command answers goes to
stdout, progress and errors to stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from weakincentives import __version__
from weakincentives.cli.commands import PURPOSES, load, parser
from weakincentives.cli.usage import UsageError
from weakincentives.errors import UnboundParamsError, WinkError

EPILOG = "wink COMMAND --help says more; agents and prompts are named as module:variable."


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command of `wink` and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = dispatch(words)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader has gone (`wink render ... | head`); keep the interpreter from complaining when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return complain("interrupted", 130)


def dispatch(words: Sequence[str]) -> int:
    if not words or words[0] in {"-h", "--help"}:
        print(overview())
        return 0 if words else 2
    if words[0] == "--version":
        print(f"wink {__version__}")
        return 0
    if words[0] not in PURPOSES:
        return complain(f"no command {words[0]!r}; there are {', '.join(PURPOSES)}", 2)
    return run(words[0], words[1:])


def run(name: str, words: Sequence[str]) -> int:
    try:
        arguments = parser(name).parse_args(words)
        return load(name).run(arguments)
    except SystemExit as stopped:
        return stopped.code if isinstance(stopped.code, int) else 2
    except UsageError as error:
        return complain(str(error), 2)
    except UnboundParamsError as error:
        fields = " ".join(f"{error.params_type}.{field}=..." for field in error.missing)
        return complain(f"the prompt needs a {error.params_type}; pass --params {fields}".rstrip(), 2)
    except BrokenPipeError:
        raise
    except (WinkError, OSError, ImportError) as error:
        # An import that failed in the user's own program needs its traceback; a missing extra only its message.
        if os.environ.get("WINK_DEBUG") or (isinstance(error, ImportError) and "pip install" not in str(error)):
            raise
        return complain(f"{type(error).__name__}: {error}", 1)


def overview() -> str:
    width = max(map(len, PURPOSES))
    commands = "\n".join(f"  {name.ljust(width)}  {purpose}" for name, purpose in PURPOSES.items())
    return f"usage: wink COMMAND ...\n\nTyped prompts that open section by section.\n\n{commands}\n\n{EPILOG}"


def complain(message: str, code: int) -> int:
    print(f"wink: {message}", file=sys.stderr)
    return code
