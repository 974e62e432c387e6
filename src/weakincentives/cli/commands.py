"""The `wink` commands: what each is for, how it is run, and the defaults of its flags.

A command's module has `configure(parser)`, which adds its arguments, and `run(arguments)`, which returns the exit code;
its docstring is the command's description. In a module with several commands, they are `configure_NAME` and `run_NAME`,
and the description is the constant `NAME`.

Exit codes: 0 success; 1 the command ran, and failed or found problems; 2 it was misused, or something that it names
does not exist; 3 calls wait for a person's decision; 130 interrupted. Data goes to stdout, progress and errors to
stderr. An error of the library that is a `LookupError` is one about a name.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

from weakincentives import __version__
from weakincentives._base.imports import UnloadableExtraError, library_cure
from weakincentives.cli.output import UsageError, did_you_mean, overwrite_echo, print_error, print_line, printable
from weakincentives.errors import UnboundParamsError, WinkError, callers_traceback

GROUPS = {
    "Try": {
        "run": "run a prompt on a model and print its answer",
        "chat": "talk to a prompt in the terminal",
        "play": "play with a prompt in the browser: sections, text, cost, runs",
        "init": "make a starter project",
    },
    "Build": {
        "render": "print a prompt exactly as a model would first see it",
        "explain": "show what a run would show, hide and cost before you run it",
        "overrides": "list, show, edit and compare overrides of prompt texts",
        "skills": "check skill folders, and install the skill for this library",
        "mcp": "serve a prompt to MCP hosts, and lock listings of MCP servers",
        "model": "fetch, list and remove a language model for the local adapter",
    },
    "Look": {
        "runs": "list, show, export and prune recorded runs",
        "view": "open recorded runs in the browser",
        "fork": "continue a recorded run in the chat, from one of its turns",
        "report": "advise which sections to show in full, from recorded runs",
        "export": "write recorded runs in another tool's format",
    },
    "Evaluate": {
        "eval": "run a prompt on cases, and compare evaluations case by case",
        "tune": "propose better summaries, tested on cases they were not chosen on",
    },
    "Operate": {
        "worker": "work on durable runs until it is stopped",
        "work": "list, show, retry, cancel, approve and prune durable runs",
        "completion": "print a completion script for your shell",
    },
}
PURPOSES = {name: purpose for group in GROUPS.values() for name, purpose in group.items()}
MODULES = {
    **dict.fromkeys(("run", "render", "explain"), "prompts"),
    **dict.fromkeys(("init", "skills", "model"), "setup"),
    **dict.fromkeys(("play", "view"), "browser"),
    **dict.fromkeys(("worker", "work"), "work"),
}
# The metavar of a prompt, in every command that takes one.
TARGET = "module:variable"
EPILOG = "Run wink COMMAND --help for its options.\nAgents and prompts are given as module:variable."
# Those with agent:template work as they stand in a project that `wink init` has made.
EXAMPLES = {
    "run": (
        'run agent:template "Where is order 7?"',
        'run agent:template "Please refund order 7." --open refunds --json',
    ),
    "chat": ("chat agent:template", "chat agent:template --resume talk.json -a openai:gpt-5.6"),
    "play": ("play agent:template", "play agent:template -a openai:gpt-5.6"),
    "init": ("init my-desk", "init ."),
    "render": ("render agent:template", "render agent:template --open refunds --tools"),
    "explain": ("explain agent:template", "explain agent:template --open refunds --json"),
    "overrides": ("overrides", "overrides edit agent:template refunds --summary"),
    "overrides list": ("overrides list", "overrides list --json"),
    "overrides show": ("overrides show agent:template", "overrides show agent:template --tag better"),
    "overrides diff": ("overrides diff agent:template", "overrides diff agent:template --tag better"),
    "overrides edit": (
        "overrides edit agent:template refunds --summary",
        "overrides edit agent:template orders --visibility full --tag better",
    ),
    "skills": ("skills install", "skills check .claude/skills"),
    "skills install": ("skills install", "skills install ~/.claude/skills"),
    "skills check": ("skills check .claude/skills", "skills check .claude/skills --json"),
    "mcp": ("mcp serve agent:template", "mcp lock .mcp.json --check"),
    "mcp serve": ("mcp serve agent:template", "mcp serve agent:template --http 8080"),
    "mcp lock": ("mcp lock", "mcp lock .mcp.json --check"),
    "model": ("model", "model get"),
    "model get": ("model get",),
    "model list": ("model list", "model list --json"),
    "model remove": ("model remove",),
    "runs": ("runs", "runs show --turn 2"),
    "runs list": ("runs list --search refund", "runs list --status failed --limit 10"),
    "runs show": ("runs show", "runs show 3f2a --turn 2"),
    "runs export": ("runs export -o runs.jsonl", "runs export 3f2a"),
    "runs prune": ("runs prune --older-than 30d", "runs prune --keep 100"),
    "view": ("view", "view --export run.html"),
    "fork": ("fork 3f2a agent:template", "fork 3f2a agent:template --turn 2"),
    "report": ("report", "report --missed"),
    "export": ("export --atif", "export --atif -o run.json 3f2a"),
    "eval": ("eval run cases.jsonl agent:template --name before", "eval compare before after"),
    "eval run": (
        "eval run cases.jsonl agent:template --name before",
        "eval run cases.jsonl agent:template --scorer contains --repeats 3",
    ),
    "eval compare": ("eval compare before after", "eval compare before after --judge polite -a openai:gpt-5.6"),
    "eval show": ("eval show", "eval show before"),
    "eval cases": ("eval cases -o mine.jsonl", "eval cases --where release=7 -o mine.jsonl"),
    "eval judge": (
        "eval judge mine.jsonl --labels labels.csv --criterion polite",
        "eval judge mine.jsonl --labels labels.csv --criterion polite --json",
    ),
    "tune": ("tune agent:template cases.jsonl", "tune agent:template cases.jsonl --propose"),
    "worker": ("worker my_app:loop", "worker my_app:loop --concurrency 16 --health 8080"),
    "work": ("work", "work approve desk/42 call_1 --by Ada"),
    "work list": ("work list", "work list --status waiting"),
    "work show": ("work show desk/42", "work show desk/42 --json"),
    "work retry": ("work retry desk/42",),
    "work cancel": ("work cancel desk/42",),
    "work questions": ("work questions", "work questions desk/42"),
    "work approve": (
        "work approve desk/42 call_1 --by Ada",
        'work approve desk/42 call_1 --deny --note "over the limit"',
    ),
    "work prune": ("work prune --older-than 30d", "work prune --older-than 7d --status done"),
    "completion": ("completion bash >> ~/.bashrc", "completion fish | source"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command of `wink` and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    # A stream that the caller has closed is None.
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        return fail("stdout is closed; redirect it to a file or to /dev/null", 2)
    try:
        code = dispatch(words, until_exit=argv is None)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader closed the pipe (`wink render ... | head`); keep the interpreter from failing as it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        overwrite_echo()
        return fail("interrupted", 130)


def dispatch(words: Sequence[str], *, until_exit: bool = False) -> int:
    """Run a command; what it logs and warns of is printable, `until_exit` or while it runs."""
    if not words or words[0] in {"-h", "--help"}:
        print_line(overview())
        return 0 if words else 2
    if words[0] == "--version":
        print_line(f"wink {__version__}")
        return 0
    if words[0] not in PURPOSES:
        hint = did_you_mean(words[0], PURPOSES)
        return fail(f"no command {words[0]!r}; there are {', '.join(PURPOSES)}{hint}", 2)
    from weakincentives.cli.diagnostics import printable_diagnostics  # Not for `wink --help`, which must be fast.

    with printable_diagnostics(until_exit=until_exit):
        return run(words[0], words[1:])


def run(name: str, words: Sequence[str]) -> int:
    try:
        command = parser(name)
        arguments = parsed(command, words)
        arguments.words = [name, *words]
        check_order(command, arguments)
        return load(name).run(arguments)
    except SystemExit as stopped:
        return stopped.code if isinstance(stopped.code, int) else 2
    except UsageError as error:
        return fail(str(error), 2)
    except UnboundParamsError as error:
        return fail(lacking_params(error), 2)
    except BrokenPipeError:
        raise
    except Exception as error:
        if os.environ.get("WINK_DEBUG"):
            raise
        if isinstance(error, OSError) and error.filename and error.strerror:
            return fail(f"{error.filename}: {error.strerror}", 1)
        # What fails in the user's own program needs a traceback; for what is not installed, the message is enough.
        is_import = isinstance(error, ImportError | OSError)
        if is_import and not isinstance(error, UnloadableExtraError) and (cure := library_cure(error)):
            return fail(f"this command needs {cure}", 1)
        needs_extra = isinstance(error, ImportError) and "pip install" in str(error)
        if needs_extra or isinstance(error, (WinkError, OSError, UnloadableExtraError)):
            return fail(str(error), 2 if isinstance(error, LookupError) else 1)

        import traceback  # Not for `wink --help`, which must be fast.

        trace = None if isinstance(error, SyntaxError) else callers_traceback(error)
        print_error("".join(traceback.format_exception(type(error), error, trace)).rstrip())
        return 1


def lacking_params(error: UnboundParamsError) -> str:
    """The option that gives a prompt the params it lacks."""
    fields = " ".join(f"{error.params_type}.{field}=..." for field in error.missing)
    return f"the prompt needs a {error.params_type}; pass --params {fields}".rstrip()


def overview() -> str:
    from shutil import get_terminal_size

    width = max(map(len, PURPOSES))
    lines = ["usage: wink COMMAND ...", "", "Typed prompts that open section by section."]
    for title, group in GROUPS.items():
        lines += ["", title]
        for name, purpose in group.items():
            lines.append(f"  {name.ljust(width)}  {purpose}")
    lines += ["", *EPILOG.split("\n")]
    columns = get_terminal_size().columns
    if max(map(len, lines)) <= columns:
        return "\n".join(lines)
    from weakincentives._base.display import wrapped  # Not on a usual terminal, where this must be fast.

    return wrapped("\n".join(lines), columns, " " * (width + 4))


def fail(message: str, code: int) -> int:
    print_error(f"wink: {message}")
    return code


def parsed(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """The arguments, in any order; a command with subcommands has its own after their names.

    One with a default subcommand takes the options of that one without its name.
    """
    if any(isinstance(action, argparse._SubParsersAction) for action in parser._actions):
        verb = parser.get_default("verb")
        bare = not words or (words[0].startswith("-") and words[0] not in {"-h", "--help"})
        return parser.parse_args([verb, *words] if verb and bare else words)
    return parser.parse_intermixed_args(words)


_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def check_order(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Refuse a prompt in the place of another argument, and that in the place of the prompt."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) and arguments.verb in action.choices:
            check_order(action.choices[arguments.verb], arguments)
    positionals = [action for action in parser._actions if not action.option_strings]
    names = [str(action.metavar or action.dest) for action in positionals]
    values = {name: getattr(arguments, action.dest, None) for name, action in zip(names, positionals, strict=True)}
    target = values.pop(TARGET, None)
    if not isinstance(target, str) or _TARGET.fullmatch(target):
        return
    for name, value in values.items():
        if isinstance(value, str) and _TARGET.fullmatch(value):
            order = " ".join([parser.prog, *names])
            raise UsageError(f"{value!r} stands where {name} is expected, and {target!r} where {TARGET}: {order}")


def number(least: float, most: float = math.inf, *, kind: Callable[[str], float] = int) -> Callable[[str], float]:
    """A number within bounds, for `type=` of an argument."""

    def read(text: str) -> float:
        if least <= kind(text) <= most:
            return kind(text)
        bounds = f"at least {least}" if most == math.inf else f"between {least} and {most}"
        raise argparse.ArgumentTypeError(f"must be {bounds}, got {text}")

    read.__name__ = "number"  # argparse names it in "invalid number value".
    return read


PORT = number(0, 65535)
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def tag(text: str) -> tuple[str, str]:
    """A tag such as release=7 as its name and text, for `type=` of an argument."""
    name, is_tag, value = text.partition("=")
    if not name or not is_tag:
        raise argparse.ArgumentTypeError(f"must be KEY=VALUE, got {text!r}")
    return name, value


def duration(text: str) -> float:
    """A time such as 30d in seconds, for `type=` of an argument."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)([smhd])", text)
    if not found:
        raise argparse.ArgumentTypeError(f"time must be like 30d, 12h, 90m or 45s, got {text!r}")
    return float(found[1]) * SECONDS[found[2]]


class Parser(argparse.ArgumentParser):
    """Makes its messages printable, as they may quote untrusted text, and suggests the nearest name.

    A subcommand, which `is_verb`, reports unknown options itself, with its own usage.
    """

    is_verb = False

    def error(self, message: str) -> NoReturn:
        unknown = re.search(r"unrecognized arguments: --([^\s=]+)|invalid choice: '([^']*)'", message)
        if unknown and unknown[1]:
            options = [name.removeprefix("--") for name in self._names() if name.startswith("--")]
            message += did_you_mean(unknown[1], options).replace("mean '", "mean '--")
        elif unknown:
            message += did_you_mean(unknown[2], self._names())
        self.print_usage(sys.stderr)
        print_error(f"{self.prog}: error: {message}")
        self.exit(2)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown and self.is_verb:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def _names(self) -> Iterator[str]:
        """The options and choices of this parser and its subcommands."""
        for action in self._actions:
            yield from action.option_strings
            yield from map(str, action.choices or ())
            if isinstance(action, argparse._SubParsersAction):
                for child in action.choices.values():
                    yield from child._names()

    def _print_message(self, message: str, file: Any = None) -> None:
        if message:
            (file or sys.stderr).write(printable(message, stream=file or sys.stderr))


class Command(NamedTuple):
    description: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def load(name: str) -> Command:
    """Import one command."""
    module = import_module(f"weakincentives.cli.{MODULES.get(name, name)}")
    if name not in MODULES:
        return Command(module.__doc__ or "", module.configure, module.run)
    return Command(getattr(module, name.upper()), getattr(module, f"configure_{name}"), getattr(module, f"run_{name}"))


def parser(name: str) -> argparse.ArgumentParser:
    """The complete parser of one command."""
    command = load(name)
    made = Parser(prog=f"wink {name}")
    command.configure(made)
    _describe(made, command.description)
    for action in made._actions:
        if isinstance(action, argparse._SubParsersAction):
            action.metavar = "{" + "|".join(action.choices) + "}"
            for choice in action._choices_actions:
                verb, purpose = action.choices[choice.dest], choice.help or ""
                verb.is_verb = True
                _describe(verb, f"{purpose[:1].upper()}{purpose[1:]}.")
    return made


def _describe(made: argparse.ArgumentParser, description: str) -> None:
    examples = EXAMPLES[made.prog.removeprefix("wink ")]
    made.description = _wrapped(description)
    made.epilog = "\n".join([f"example{'s' if len(examples) > 1 else ''}:", *(f"  wink {words}" for words in examples)])
    made.formatter_class = argparse.RawDescriptionHelpFormatter


def _wrapped(text: str) -> str:
    """Paragraphs that fit the terminal; lines with an indent stay as they are."""
    from shutil import get_terminal_size

    from weakincentives._base.display import wrapped

    width = min(get_terminal_size().columns, 100)
    parts = text.strip().split("\n\n")
    return "\n\n".join(part if "\n " in part else wrapped(part.replace("\n", " "), width) for part in parts)


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command with its parser; imports all their modules."""
    for name in PURPOSES:
        yield name, parser(name)


def default(key: str) -> str | None:
    """The value for a flag that was not given: from a `WINK_*` variable, else `[tool.wink]` in pyproject.toml, else the
    user's `$XDG_CONFIG_HOME/wink/config.toml`. Keys are the names of the flags, with dashes.
    """
    from pathlib import Path  # Not for `wink --help`, which must be fast.

    variable = os.environ.get("WINK_" + key.upper().replace("-", "_"))
    if variable is not None:
        return variable
    here = Path.cwd()
    project = next((file for folder in (here, *here.parents) if (file := folder / "pyproject.toml").is_file()), None)
    if project and b"[tool.wink" in project.read_bytes() and key in (values := _table(project, "tool", "wink")):
        return str(values[key])
    user = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "wink" / "config.toml"
    values = _table(user) if user.is_file() else {}
    return str(values[key]) if key in values else None


def _table(file: os.PathLike[str], *path: str) -> dict[str, object]:
    import tomllib

    try:
        with open(file, "rb") as source:
            table: object = tomllib.load(source)
    except ValueError as error:
        raise UsageError(f"{file} must be TOML in UTF-8: {error}") from None
    for name in path:
        table = table.get(name, {}) if isinstance(table, dict) else {}
    return table if isinstance(table, dict) else {}
