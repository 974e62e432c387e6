"""The command line `wink`: one module per command, imported when that command is called."""

from weakincentives.cli.app import main

__all__ = ["main"]
