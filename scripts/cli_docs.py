"""Write docs/cli.md and a page for each group of commands from the parsers of `wink`; `--check` only compares."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from weakincentives.cli.commands import GROUPS, PURPOSES, load, parser
from weakincentives.cli.completion import Argument, Grammar, grammar

DOCS = Path(__file__).resolve().parents[1] / "docs"

INTRODUCTION = """\
# Command line

`wink COMMAND --help` prints these pages in the terminal. Prompts and agents are given as `module:variable`; the working
directory is searched first. Data goes to stdout, progress to stderr. Colour is used on terminals only, never with
`NO_COLOR`.

| exit code | |
|---|---|
| 0 | done |
| 1 | the command ran, and the answer is no: a run or case failed, a check found problems, a file is damaged |
| 2 | the command was misused, or something you named is not there: a file, run, prompt, section, tag, option |
| 3 | calls wait for a person's decision |
| 130 | interrupted with Ctrl-C |

Where an option names a variable such as `[WINK_STORE]`, its default comes from that environment variable, then from
`[tool.wink]` in `pyproject.toml`, then from `~/.config/wink/config.toml`. To complete commands, options, sections, tags
and runs in your shell, run `eval "$(wink completion bash)"`; completing sections imports your module.

If a tool call needs approval, `wink run` and `wink chat` ask you on the terminal, with the arguments and the diff of
what the call would change: `y` approves, `n` denies (the model reads the reason that follows), `e` edits the
arguments as JSON in your `$EDITOR` or on the line, `a` answers in place of the call, Ctrl-C decides later. While
calls wait, the session is kept beside the run file, in `runs.db.waiting/`, readable only by you; `--resume FILE`
continues it later, and it is deleted once the calls are decided. Secrets are replaced in what is shown, but neither in
that file nor in your editor.

On a terminal, tables leave out columns that do not fit; in a pipe they are complete. If a name does not exist, the
error suggests the nearest one.
"""


def main(argv: list[str]) -> int:
    written = pages()
    if argv == ["--check"]:
        stale = [name for name, text in written.items() if not is_current(DOCS / name, text)]
        for name in stale:
            print(f"docs/{name} is out of date; run python scripts/cli_docs.py", file=sys.stderr)
        return 1 if stale else 0
    for name, text in written.items():
        (DOCS / name).write_text(text, encoding="utf-8")
    return 0


def is_current(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


def pages() -> dict[str, str]:
    """The text of every page by its name: the overview, then a page for each group of `wink --help`."""
    written = {"cli.md": overview()}
    for title, names in GROUPS.items():
        written[page_of(title)] = "\n".join([f"# Commands: {title.lower()}\n", *map(command, names)])
    return written


def page_of(title: str) -> str:
    return f"cli-{title.lower()}.md"


def overview() -> str:
    tables = []
    for title, names in GROUPS.items():
        rows = [f"| [`wink {name}`]({page_of(title)}#wink-{name}) | {purpose} |" for name, purpose in names.items()]
        tables.append("\n".join([f"## {title}", "", "| command | |", "|---|---|", *rows, ""]))
    return "\n".join([INTRODUCTION, *tables])


def command(name: str) -> str:
    return "\n".join(section(grammar(parser(name), PURPOSES[name]), load(name).description))


def section(command: Grammar, description: str, level: int = 2) -> Iterator[str]:
    yield f"{'#' * level} {command.name}"
    yield ""
    yield description.strip() or f"{command.purpose[:1].upper()}{command.purpose[1:]}."
    yield ""
    yield f"    {command.usage}"
    yield ""
    if command.arguments:
        yield "| argument | meaning |"
        yield "|---|---|"
        for argument in command.arguments:
            yield f"| {written(argument)} | {argument.help.replace('|', chr(92) + '|')} |"
        yield ""
    for child in command.commands:
        yield from section(child, "", level + 1)


def written(argument: Argument) -> str:
    value = argument.value.replace("|", "\\|")
    if not argument.flags:
        return f"`{value}`"
    return ", ".join(f"`{flag} {value}`" if value else f"`{flag}`" for flag in argument.flags)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
