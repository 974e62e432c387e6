"""Runs a command and turns what it raises into a message and an exit code.

0: done. 1: the run failed, or something was found. 2: wrong usage. 130: interrupted. Data goes to stdout, progress and
errors to stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from weakincentives import __version__
from weakincentives.cli.commands import PURPOSES, load, parser
from weakincentives.cli.output import UsageError, did_you_mean, print_error, print_line
from weakincentives.errors import UnboundParamsError, WinkError

EPILOG = "Run wink COMMAND --help for its options. Agents and prompts are given as module:variable."


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command of `wink` and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = dispatch(words)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader is gone (`wink render ... | head`); keep the interpreter from failing when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return fail("interrupted", 130)


def dispatch(words: Sequence[str]) -> int:
    if not words or words[0] in {"-h", "--help"}:
        print_line(overview())
        return 0 if words else 2
    if words[0] == "--version":
        print_line(f"wink {__version__}")
        return 0
    if words[0] not in PURPOSES:
        hint = did_you_mean(words[0], PURPOSES)
        return fail(f"no command {words[0]!r}; there are {', '.join(PURPOSES)}{hint}", 2)
    return run(words[0], words[1:])


def run(name: str, words: Sequence[str]) -> int:
    try:
        arguments = parser(name).parse_args(words)
        return load(name).run(arguments)
    except SystemExit as stopped:
        return stopped.code if isinstance(stopped.code, int) else 2
    except UsageError as error:
        return fail(str(error), 2)
    except UnboundParamsError as error:
        fields = " ".join(f"{error.params_type}.{field}=..." for field in error.missing)
        return fail(f"the prompt needs a {error.params_type}; pass --params {fields}".rstrip(), 2)
    except BrokenPipeError:
        raise
    except (WinkError, OSError, ImportError) as error:
        # An import that fails in the user's own program needs its traceback; a missing extra only its message.
        if os.environ.get("WINK_DEBUG") or (isinstance(error, ImportError) and "pip install" not in str(error)):
            raise
        return fail(f"{type(error).__name__}: {error}", 1)


def overview() -> str:
    width = max(map(len, PURPOSES))
    commands = "\n".join(f"  {name.ljust(width)}  {purpose}" for name, purpose in PURPOSES.items())
    return f"usage: wink COMMAND ...\n\nTyped prompts that open section by section.\n\n{commands}\n\n{EPILOG}"


def fail(message: str, code: int) -> int:
    print_error(f"wink: {message}")
    return code
