"""Print a completion script for your shell.

To try it in bash or zsh:

    eval "$(wink completion bash)"
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from weakincentives.cli.commands import PURPOSES, parsers
from weakincentives.cli.output import print_line

# Options whose values, and commands whose arguments, are names known only at run time.
NAMING = ("--open", "--tag", "--run")
NAMED = ("runs show", "runs export", "runs prune", "overrides edit")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=sorted(WRITERS), help="the shell to complete in")
    parser.add_argument("--values", metavar="LINE", help="print the names that may follow in this line, for the script")


def run(arguments: argparse.Namespace) -> int:
    if arguments.values is not None:
        for name in values(arguments.values):
            print_line(name)
        return 0
    commands = [grammar(parser, PURPOSES[name]) for name, parser in parsers()]
    print_line("\n".join(WRITERS[arguments.shell](commands)))
    return 0


def values(line: str) -> list[str]:
    """The sections, tags or runs that can complete the line."""
    try:
        words = shlex.split(line)[1:]
        if not line.endswith(" "):
            words.pop()
        return _values(words)
    except Exception:  # A half-written line or program: there is nothing to offer, and nowhere to report it.
        return []


def _values(words: list[str]) -> list[str]:
    from weakincentives.cli.recordings import file_and_runs
    from weakincentives.cli.selection import named_prompt, open_store
    from weakincentives.telemetry import RunStore

    before, command = words[-1], " ".join(words[:2])
    if before == "--run" or command.startswith("runs "):
        file, _ = file_and_runs([word for word in words[1 if before == "--run" else 2 :] if not word.startswith("-")])
        with RunStore(file) as store:
            return [run.run_id for run in store.list_runs()]
    target = next(word for word in words if ":" in word)
    if before == "--tag":
        found = named_prompt(target)
        folder = words[words.index("--store") + 1] if "--store" in words else None
        overrides = open_store(argparse.Namespace(store=folder))
        return [stored.tag for stored in overrides.list(ns=found.ns, key=found.key)]
    return list(named_prompt(target).template.outline.by_key)


def bash(commands: list[Grammar]) -> Iterator[str]:
    names = " ".join(map(_last, commands))
    yield "_wink() {"
    yield f'  local line="${{COMP_WORDS[*]:1:COMP_CWORD-1}} " words="{names} --help --version"'
    yield '  case "$line" in'
    for command in reversed(list(_all(commands))):
        yield f'    "{command.name.removeprefix("wink ")} "*) words="{_words(command)}" ;;'
    yield "  esac"
    yield '  case "${COMP_WORDS[COMP_CWORD]}|$line" in'
    asked = '$(wink completion bash --values "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)'
    yield "    " + "|".join(f"*' {option} '" for option in NAMING) + f') words="{asked}" ;;'
    yield "    -*) ;;"
    yield "    " + "|".join(f"*'|{name} '*" for name in NAMED) + f') words="$words {asked}" ;;'
    yield "  esac"
    yield '  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))'
    yield "}"
    yield "complete -o default -F _wink wink"


def zsh(commands: list[Grammar]) -> Iterator[str]:
    yield "autoload -U +X bashcompinit && bashcompinit"
    yield from bash(commands)


def fish(commands: list[Grammar]) -> Iterator[str]:
    asked = "(wink completion fish --values (commandline -cp) 2>/dev/null)"
    for command in commands:
        yield f"complete -c wink -n __fish_use_subcommand -f -a {_last(command)} -d {_quoted(command.purpose)}"
    for command in _all(commands):
        parents = command.name.split()[1:]
        seen = "; and ".join(f"__fish_seen_subcommand_from {parent}" for parent in parents)
        if " ".join(parents) in NAMED:
            yield f"complete -c wink -n {_quoted(seen)} -f -a {_quoted(asked)}"
        for child in command.commands:
            yield f"complete -c wink -n {_quoted(seen)} -f -a {_last(child)} -d {_quoted(child.purpose)}"
        for argument in command.arguments:
            choices = f" -xa {_quoted(' '.join(argument.choices))}" if argument.choices else ""
            if not {*NAMING}.isdisjoint(argument.flags):
                choices = f" -xa {_quoted(asked)}"
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


def _last(command: Grammar) -> str:
    return command.name.rpartition(" ")[2]


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


@dataclass(frozen=True, slots=True)
class Argument:
    """An option, or a positional argument when it has no flags."""

    flags: tuple[str, ...]
    value: str
    help: str
    choices: tuple[str, ...] = ()
    required: bool = False


@dataclass(frozen=True, slots=True)
class Grammar:
    """A command with its arguments and subcommands."""

    name: str
    purpose: str
    arguments: tuple[Argument, ...]
    commands: tuple[Grammar, ...] = ()

    @property
    def options(self) -> tuple[Argument, ...]:
        return tuple(argument for argument in self.arguments if argument.flags)

    @property
    def usage(self) -> str:
        words = [self.name]
        for argument in self.arguments:
            if not argument.flags:
                words.append(argument.value if argument.required else f"[{argument.value}]")
        if self.commands:
            words.append("{" + "|".join(map(_last, self.commands)) + "}")
        if self.options:
            words.append("[options]")
        return " ".join(words)


def grammar(parser: argparse.ArgumentParser, purpose: str) -> Grammar:
    """Read a parser; its actions are a semi-public part of argparse that has always been stable."""
    arguments: list[Argument] = []
    commands: list[Grammar] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            purposes = {choice.dest: choice.help or "" for choice in action._choices_actions}
            commands += [grammar(child, purposes.get(name, "")) for name, child in action.choices.items()]
        elif action.help != argparse.SUPPRESS and not isinstance(action, argparse._HelpAction):
            arguments.append(_argument(action))
    return Grammar(parser.prog, purpose, tuple(arguments), tuple(commands))


def _argument(action: argparse.Action) -> Argument:
    takes_value = action.nargs != 0
    choices = tuple(map(str, action.choices or ()))
    metavar = action.metavar if isinstance(action.metavar, str) else "|".join(choices) or action.dest.upper()
    return Argument(
        flags=tuple(sorted(action.option_strings, key=len, reverse=True)),
        value=metavar if takes_value else "",
        help=(action.help or "").replace("%%", "%"),
        choices=choices,
        required=action.required if action.option_strings else action.nargs not in {"?", "*"},
    )
