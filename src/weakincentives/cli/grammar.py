"""What a parser accepts, as plain data: the source of the completion scripts and of docs/cli.md."""

from __future__ import annotations

import argparse
from dataclasses import dataclass


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
    """A command with its arguments and its own commands."""

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
            words.append("{" + "|".join(command.name.rpartition(" ")[2] for command in self.commands) + "}")
        if self.options:
            words.append("[options]")
        return " ".join(words)


def grammar(parser: argparse.ArgumentParser, purpose: str) -> Grammar:
    """Read a parser; its actions are a semi-public part of argparse that has been stable since it exists."""
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
