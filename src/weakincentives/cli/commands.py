"""The commands of `wink`: what each is for, and the module that holds it.

A command's module has `configure(parser)`, which adds its arguments, and `run(arguments)`, which returns the exit code.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any, NoReturn, Protocol, cast

from weakincentives.cli.output import did_you_mean, printable

PURPOSES = {
    "run": "run a prompt on a model and print its answer",
    "render": "print a prompt exactly as a model would first see it",
    "explain": "show what a run would show, hide and cost before you run it",
    "chat": "talk to a prompt in the terminal",
    "init": "make a starter project",
    "play": "play with a prompt in the browser: sections, text, cost, overrides, runs",
    "skills": "check skill folders, and install the skill for building with this library",
    "overrides": "list, show, edit and compare overrides of prompt texts",
    "runs": "list, show, export and prune recorded runs",
    "view": "open recorded runs in the browser",
    "report": "advise which sections to show in full, from recorded runs",
    "model": "fetch, list and remove the language model of the embedded adapter",
    "worker": "work on durable runs until told to stop",
    "work": "list, show, retry, cancel, approve and prune durable runs",
    "mcp": "serve a prompt to MCP hosts, and lock the listings of MCP servers",
    "completion": "print a completion script for your shell",
}


class Command(Protocol):
    """A command's module."""

    __doc__: str | None

    def configure(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, arguments: argparse.Namespace) -> int: ...


class Parser(argparse.ArgumentParser):
    """Prints what was typed, or comes from a module, like everything else, and suggests the nearest name."""

    def error(self, message: str) -> NoReturn:
        unknown = re.search(r"unrecognized arguments: (-[^\s=]+)|invalid choice: '([^']*)'", message)
        if unknown:
            message += did_you_mean(unknown[1] or unknown[2], self._names())
        super().error(message)

    def _names(self) -> Iterator[str]:
        """Its options and choices, and those of its subcommands."""
        for action in self._actions:
            yield from action.option_strings
            yield from map(str, action.choices or ())
            if isinstance(action, argparse._SubParsersAction):
                for child in action.choices.values():
                    yield from child._names()

    def _print_message(self, message: str, file: Any = None) -> None:
        if message:
            (file or sys.stderr).write(printable(message, stream=file or sys.stderr))


def load(name: str) -> Command:
    """Import the module of one command."""
    return cast(Command, import_module(f"weakincentives.cli.{name}"))


def parser(name: str) -> argparse.ArgumentParser:
    """The complete parser of one command."""
    command = load(name)
    made = Parser(
        prog=f"wink {name}", description=command.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.configure(made)
    for action in made._actions:
        if isinstance(action, argparse._SubParsersAction):
            action.metavar = "{" + "|".join(action.choices) + "}"
    return made


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command with its parser, which imports all their modules."""
    for name in PURPOSES:
        yield name, parser(name)
