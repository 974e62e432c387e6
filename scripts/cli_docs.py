"""Write docs/cli.md from the parsers of `wink`; `--check` only compares."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from weakincentives.cli.commands import PURPOSES, load, parsers
from weakincentives.cli.completion import Argument, Grammar, grammar

PAGE = Path(__file__).resolve().parents[1] / "docs" / "cli.md"

INTRODUCTION = """\
# Command line

`wink COMMAND --help` prints the same in the terminal. Prompts and agents are given as `module:variable`; the working
directory is searched first. Data goes to stdout, progress to stderr. Exit codes: 0 done, 1 the run failed or something
was found, 2 wrong usage, 3 calls wait for a person's decision, 130 interrupted. Colour is used on terminals only, never
with `NO_COLOR`.

Where an option names a variable such as `[WINK_STORE]`, its default comes from that environment variable, then from
`[tool.wink]` in `pyproject.toml`, then from `~/.config/wink/config.toml`. For completion of commands, options,
sections, tags and runs, run `eval "$(wink completion bash)"`; for sections your module is imported.

On a terminal, tables leave out columns that do not fit; in a pipe they are whole. A name that does not exist is
answered with the nearest one that does.
"""


def main(argv: list[str]) -> int:
    text = page()
    if argv == ["--check"]:
        if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text:
            return 0
        print("docs/cli.md is out of date; run python scripts/cli_docs.py", file=sys.stderr)
        return 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


def page() -> str:
    parts = [INTRODUCTION]
    for name, parser in parsers():
        parts.append("\n".join(section(grammar(parser, PURPOSES[name]), load(name).description)))
    return "\n".join(parts)


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
