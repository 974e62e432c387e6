"""Logs, warnings and tracebacks of a command, made printable: they quote models, tools, servers and files.

What the user's program prints itself stays as it is. Its log handlers are covered like ours: the records are printable
before any handler formats them.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from weakincentives.cli.output import print_error, printable

_plain_warning = warnings.formatwarning


class PrintableRecord(logging.LogRecord):
    """A log record whose message and traceback are printable."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        if self.exc_info:
            self.exc_text = printable(logging.Formatter().formatException(self.exc_info), stream=sys.stderr)

    def getMessage(self) -> str:
        return printable(super().getMessage(), stream=sys.stderr)


@contextmanager
def printable_diagnostics(*, until_exit: bool) -> Iterator[None]:
    """Make everything printable that is reported within the block, or until the process ends."""
    hooks: list[tuple[object, str, Callable[..., Any]]] = [
        (sys, "excepthook", _print_exception),
        (sys, "unraisablehook", _print_unraisable),
        (threading, "excepthook", _print_thread_exception),
        (warnings, "formatwarning", _printable_warning),
    ]
    replaced = [(module, name, getattr(module, name)) for module, name, _ in hooks]
    factory = logging.getLogRecordFactory()
    logging.setLogRecordFactory(PrintableRecord)
    for module, name, hook in hooks:
        setattr(module, name, hook)
    try:
        yield
    finally:
        if not until_exit:
            logging.setLogRecordFactory(factory)
            for module, name, hook in replaced:
                setattr(module, name, hook)


def _print_exception(
    kind: type[BaseException], error: BaseException | None, trace: TracebackType | None, heading: str = ""
) -> None:
    lines = traceback.format_exception(kind, error, trace)
    print_error("".join([heading, *lines]).rstrip())


def _print_thread_exception(failure: threading.ExceptHookArgs) -> None:
    if failure.exc_type is not SystemExit:
        name = "an ended thread" if failure.thread is None else failure.thread.name
        _print_exception(failure.exc_type, failure.exc_value, failure.exc_traceback, f"Exception in thread {name}:\n")


def _print_unraisable(failure: Any) -> None:
    heading = f"{failure.err_msg or 'Exception ignored in'}: {failure.object!r}\n"
    _print_exception(failure.exc_type, failure.exc_value, failure.exc_traceback, heading)


def _printable_warning(*arguments: Any, **named: Any) -> str:
    return printable(_plain_warning(*arguments, **named), stream=sys.stderr)
