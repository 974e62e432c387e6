"""Print a completion script for your shell, as in: eval "$(wink completion bash)"."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator

from weakincentives.cli.commands import PURPOSES, parsers
from weakincentives.cli.grammar import Grammar, grammar


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=sorted(WRITERS), help="the shell to complete in")


def run(arguments: argparse.Namespace) -> int:
    commands = [grammar(parser, PURPOSES[name]) for name, parser in parsers()]
    print("\n".join(WRITERS[arguments.shell](commands)))
    return 0


def bash(commands: list[Grammar]) -> Iterator[str]:
    yield "_wink() {"
    yield '  local line="${COMP_WORDS[*]:1:COMP_CWORD-1} " words="' + _names(commands) + ' --help --version"'
    yield '  case "$line" in'
    for command in reversed(list(_all(commands))):
        yield f'    "{command.name.removeprefix("wink ")} "*) words="{_words(command)}" ;;'
    yield "  esac"
    yield '  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))'
    yield "}"
    yield "complete -o default -F _wink wink"


def zsh(commands: list[Grammar]) -> Iterator[str]:
    yield "autoload -U +X bashcompinit && bashcompinit"
    yield from bash(commands)


def fish(commands: list[Grammar]) -> Iterator[str]:
    for command in commands:
        yield f"complete -c wink -n __fish_use_subcommand -f -a {_last(command)} -d {_quoted(command.purpose)}"
    for command in _all(commands):
        parents = command.name.split()[1:]
        seen = "; and ".join(f"__fish_seen_subcommand_from {parent}" for parent in parents)
        for child in command.commands:
            yield f"complete -c wink -n {_quoted(seen)} -f -a {_last(child)} -d {_quoted(child.purpose)}"
        for argument in command.arguments:
            choices = f" -xa {_quoted(' '.join(argument.choices))}" if argument.choices else ""
            flags = "".join(
                f" -l {flag[2:]}" if flag.startswith("--") else f" -s {flag[1:]}" for flag in argument.flags
            )
            if flags or choices:
                needs_value = " -r" if flags and argument.value and not choices else ""
                yield f"complete -c wink -n {_quoted(seen)}{flags}{needs_value}{choices} -d {_quoted(argument.help)}"


WRITERS = {"bash": bash, "fish": fish, "zsh": zsh}


def _all(commands: Iterable[Grammar]) -> Iterator[Grammar]:
    for command in commands:
        yield command
        yield from _all(command.commands)


def _words(command: Grammar) -> str:
    flags = [flag for option in command.options for flag in option.flags if flag.startswith("--")]
    choices = [choice for argument in command.arguments for choice in argument.choices]
    return " ".join([*map(_last, command.commands), *choices, *flags, "--help"])


def _names(commands: Iterable[Grammar]) -> str:
    return " ".join(map(_last, commands))


def _last(command: Grammar) -> str:
    return command.name.rpartition(" ")[2]


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
