"""What a run tells a person while it happens, on stderr: a line per step, and a spinner on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from weakincentives.cli.output import may_colour, progress
from weakincentives.runtime import (
    ModelCalled,
    PromptRendered,
    RunRestarted,
    ToolInvoked,
    ToolsInjected,
    ToolsWithdrawn,
)
from weakincentives.session import Session

Say = Callable[[str], None]
WIDTH = 100


@contextmanager
def narrated(session: Session, *, quiet: bool = False) -> Iterator[None]:
    """Tell every event of the session as it comes."""
    if quiet:
        yield
        return
    with _voice() as say:

        def hear(event: Any) -> None:
            if line := told(event):
                say(line)

        unsubscribe = session.observe(hear)
        try:
            yield
        finally:
            unsubscribe()


def told(event: Any) -> str | None:
    """The line for an event, or None where there is nothing to tell."""
    tell = TELLERS.get(type(event))
    return None if tell is None else _one_line(tell(event))


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
    if event.disclosure is not None:
        because = f": {event.disclosure.reason}" if event.disclosure.reason else ""
        return f"open    {', '.join(event.disclosure.requested_sections)}{because}"
    outcome = "" if event.success else "failed, undone: " if event.rolled_back else "failed: "
    return f"tool    {event.name}({event.arguments}) -> {outcome}{event.result.render()}"


def _injected(event: ToolsInjected) -> str:
    return f"tools   {', '.join(event.tool_names)} appeared with {event.section_key}"


def _withdrawn(event: ToolsWithdrawn) -> str:
    return f"tools   {', '.join(event.tool_names)} went with {event.section_key}"


def _restarted(event: RunRestarted) -> str:
    return f"again   with {', '.join(event.section_keys)} open"


TELLERS: Mapping[type, Callable[[Any], str]] = {
    PromptRendered: _rendered,
    ModelCalled: _called,
    ToolInvoked: _invoked,
    ToolsInjected: _injected,
    ToolsWithdrawn: _withdrawn,
    RunRestarted: _restarted,
}


@contextmanager
def _voice() -> Iterator[Say]:
    """How to print a line: above a spinner where a person watches and rich is installed, else plainly."""
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
        yield lambda line: console.print(line, style="dim", markup=False)


def _one_line(text: str) -> str:
    """Without control characters, which a model or a tool may have put there, and not too long."""
    clean = "".join(character if character.isprintable() else " " for character in text)
    return clean if len(clean) <= WIDTH else clean[: WIDTH - 1] + "…"
