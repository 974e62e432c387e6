"""The `wink` command line; a command's module is imported when the command runs."""

from typing import TYPE_CHECKING

from weakincentives._base.imports import lazy_front
from weakincentives.cli.commands import main

if TYPE_CHECKING:
    from weakincentives.cli.output import printable

__all__ = ["main", "printable"]

__getattr__ = lazy_front(__name__, {"output": ["printable"]})
