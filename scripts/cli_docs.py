"""Write docs/reference/cli.md, the reference of the commands, from the parsers of `wink`; `--check` only compares."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from weakincentives.cli.commands import GROUPS, PURPOSES, load, parser
from weakincentives.cli.completion import Argument, Grammar, grammar

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "cli.md"

INTRODUCTION = """\
# Command line

`wink COMMAND --help` prints what is below in the terminal. Prompts and agents are given as `module:variable`; the
working directory is searched first. Data goes to stdout, progress to stderr. Colour is used on terminals only, never
with `NO_COLOR`.

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
    text = page()
    if argv == ["--check"]:
        is_current = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text
        if not is_current:
            print("docs/reference/cli.md is out of date; run python scripts/cli_docs.py", file=sys.stderr)
        return 0 if is_current else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


def page() -> str:
    """The reference: the commands in a table for each group of `wink --help`, then each with its options."""
    parts = [INTRODUCTION]
    for title, names in GROUPS.items():
        rows = [f"| [`wink {name}`](#wink-{name}) | {purpose} |" for name, purpose in names.items()]
        parts.append("\n".join([f"**{title}**", "", "| command | |", "|---|---|", *rows, ""]))
    for names in GROUPS.values():
        parts += [command(name) for name in names]
    return "\n".join(parts)


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
