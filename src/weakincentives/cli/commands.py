"""The commands of `wink`: what each is for, and the module that holds it.

A command's module has `configure(parser)`, which adds its arguments, and `run(arguments)`, which returns the exit code.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Protocol, cast

from weakincentives.cli.output import printable

PURPOSES = {
    "run": "run a prompt on a model and print its answer",
    "render": "print a prompt exactly as a model would first see it",
    "explain": "show what a run would show, hide and cost before you run it",
    "overrides": "list, show, edit and compare overrides of prompt texts",
    "runs": "list, show, export and prune recorded runs",
    "view": "open recorded runs in the browser",
    "report": "advise which sections to show in full, from recorded runs",
    "model": "fetch, list and remove the language model of the embedded adapter",
    "worker": "work on durable runs until told to stop",
    "work": "list, show, retry, cancel, approve and prune durable runs",
    "completion": "print a completion script for your shell",
}


class Command(Protocol):
    """A command's module."""

    __doc__: str | None

    def configure(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, arguments: argparse.Namespace) -> int: ...


class Parser(argparse.ArgumentParser):
    """Prints what was typed, or comes from a module, like everything else."""

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
