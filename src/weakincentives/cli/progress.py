"""Progress of a run on stderr: one line per step, and a spinner on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from weakincentives.cli.output import may_colour, printable, progress
from weakincentives.runtime import (
    ModelCalled,
    PromptRendered,
    RunRestarted,
    ToolInvoked,
    ToolsInjected,
    ToolsWithdrawn,
)
from weakincentives.session import Session

PrintLine = Callable[[str], None]
WIDTH = 100


@contextmanager
def reporting(session: Session, *, quiet: bool = False) -> Iterator[None]:
    """Print a line for each event of the session that a person waits for."""
    if quiet:
        yield
        return
    with _printer() as print_line:

        def observe(event: Any) -> None:
            if line := describe(event):
                print_line(line)

        unsubscribe = session.observe(observe)
        try:
            yield
        finally:
            unsubscribe()


def describe(event: Any) -> str | None:
    """The line for an event, or None where there is nothing to report."""
    formatter = FORMATTERS.get(type(event))
    return None if formatter is None else _one_line(formatter(event))


def _rendered(event: PromptRendered) -> str:
    shown = sum(section.shown_tokens for section in event.sections)
    full = sum(section.full_tokens for section in event.sections)
    return f"prompt  {event.prompt_name} on {event.model}: {shown:,} tokens shown, {full:,} with everything open"


def _called(event: ModelCalled) -> str:
    usage = event.usage
    cached = f" ({usage.cached_tokens:,} cached)" if usage.cached_tokens else ""
    spent = f"{usage.input_tokens:,} tokens in{cached}, {usage.output_tokens:,} out"
    return f"model   turn {event.turn}: {spent}, {event.latency:.1f} s"


def _invoked(event: ToolInvoked) -> str:
    asked = event.disclosure
    if asked is not None:
        because = f": {asked.reason}" if asked.reason else ""
        failed = "" if event.success else f" (failed: {event.result.message})"
        return f"{asked.action:7} {', '.join(asked.requested_sections)}{because}{failed}"
    outcome = "" if event.success else "failed, undone: " if event.rolled_back else "failed: "
    return f"tool    {event.name}({event.arguments}) -> {outcome}{event.result.render()}"


def _injected(event: ToolsInjected) -> str:
    return f"tools   added {', '.join(event.tool_names)}{_of_section(event.section_key)}"


def _withdrawn(event: ToolsWithdrawn) -> str:
    return f"tools   withdrew {', '.join(event.tool_names)}{_of_section(event.section_key)}"


def _of_section(key: str) -> str:
    return f" of {key}" if key else ""


def _restarted(event: RunRestarted) -> str:
    return f"restart with {', '.join(event.section_keys)} open"


FORMATTERS: Mapping[type, Callable[[Any], str]] = {
    PromptRendered: _rendered,
    ModelCalled: _called,
    ToolInvoked: _invoked,
    ToolsInjected: _injected,
    ToolsWithdrawn: _withdrawn,
    RunRestarted: _restarted,
}


@contextmanager
def _printer() -> Iterator[PrintLine]:
    """How to print a line: above a spinner on a terminal where rich is installed, else plainly."""
    if not may_colour(sys.stderr):
        yield progress
        return
    try:
        from rich.console import Console
    except ImportError:
        yield progress
        return
    console = Console(stderr=True, highlight=False)
    with console.status("waiting for the model"):
        yield lambda line: console.print(printable(line, stream=sys.stderr), style="dim", markup=False)


def _one_line(text: str) -> str:
    """The text on one line, cut to its width."""
    line = " ".join(text.split("\n"))
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"
