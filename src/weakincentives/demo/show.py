"""Shows a run of the desk while it happens, and what it took, as labelled lines on stdout."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from weakincentives.cli import printable
from weakincentives.demo.desk import Question, ask, pages, template
from weakincentives.prompt import Prompt, SectionVisibility
from weakincentives.runtime import (
    Message,
    ModelCalled,
    PromptRendered,
    PromptResponse,
    ProviderAdapter,
    ToolInvoked,
    ToolsInjected,
)
from weakincentives.session import Session

WIDTH = 100
LABEL = 9
_STYLES = {"opens": "cyan", "tools": "magenta", "calls": "yellow", "result": "green", "answer": "bold", "cost": "dim"}


class Show:
    """Asks questions on one adapter and prints what happens."""

    def __init__(self, adapter: ProviderAdapter, screen: Screen) -> None:
        self._adapter = adapter
        self._screen = screen

    def ask(self, question: str) -> PromptResponse[None]:
        """Evaluate the desk's prompt and print every event."""
        self._screen.say("question", question, style="bold")
        session, started = Session(), time.perf_counter()
        unsubscribe = session.observe(self._print_event)
        try:
            with self._screen.working("reading"):
                response = self._adapter.evaluate(ask(question), session=session)
        finally:
            unsubscribe()
        self._screen.blank()
        self._screen.say("answer", response.text)
        self._screen.blank()
        self._cost(question, session, response, time.perf_counter() - started)
        return response

    def _print_event(self, event: Any) -> None:
        formatter = _FORMATTERS.get(type(event))
        if formatter is not None:
            for label, text in formatter(event):
                self._screen.say(label, text)

    def _cost(self, question: str, session: Session, response: PromptResponse[None], seconds: float) -> None:
        calls = session[ModelCalled].all()
        opened = sum(call.disclosure is not None and call.success for call in session[ToolInvoked].all())
        sent, turns = response.usage.input_tokens, len(calls)
        everything = Prompt(template(SectionVisibility.FULL)).bind(Question(question)).render().text
        full = self._adapter.tokenizer.count(everything)
        needed = max(1, turns - opened)
        largest = max(call.usage.input_tokens for call in calls)
        self._screen.say(
            "tokens",
            f"{sent:,} sent in {_plural(turns, 'turn')}, the largest request {largest:,}. With all {len(pages())} "
            f"sections open: {full:,} a request, {full * needed:,} in {_plural(needed, 'turn')}.",
            style="bold",
        )
        self._screen.say("time", f"{seconds:.1f} seconds; everything ran on this machine.")


def _rendered(event: PromptRendered) -> list[tuple[str, str]]:
    closed = sum(section.visibility is SectionVisibility.SUMMARY for section in event.sections)
    shown = sum(section.shown_tokens for section in event.sections)
    return [("shows", f"{closed} of {len(event.sections)} sections as summaries, {shown:,} tokens ({event.model})")]


def _ranked(event: Message) -> list[tuple[str, str]]:
    rankings = [item for item in map(json.loads, event.items) if item["type"] == "ranking"]
    return [
        (
            "ranks",
            ", ".join(f"{best['key']} {best['score']:.2f}" for best in item["best"][:3])
            + f" ... of {item['of']} (by {item['by']})",
        )
        for item in rankings
    ]


def _invoked(event: ToolInvoked) -> list[tuple[str, str]]:
    if event.disclosure is not None:
        keys = ", ".join(event.disclosure.requested_sections)
        return [("opens", keys if event.success else f"{keys}: {event.result.message}")]
    arguments = ", ".join(f"{name}={value!r}" for name, value in json.loads(event.arguments).items())
    return [("calls", f"{event.name}({arguments})"), ("result", event.result.render())]


def _injected(event: ToolsInjected) -> list[tuple[str, str]]:
    return [("tools", f"{', '.join(event.tool_names)} of {event.section_key}")]


_FORMATTERS: Mapping[type, Callable[[Any], list[tuple[str, str]]]] = {
    PromptRendered: _rendered,
    Message: _ranked,
    ToolInvoked: _invoked,
    ToolsInjected: _injected,
}


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


class Screen:
    """Prints labelled lines: coloured and wrapped on a terminal that `rich` knows, else plain."""

    def __init__(self) -> None:
        self._rich = _console()
        self._status: Any = None

    def say(self, label: str, text: str, *, style: str = "") -> None:
        """Print a label with text wrapped beside it."""
        style, text = style or _STYLES.get(label, ""), printable(text)
        width = min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns) - LABEL - 3
        lines = [
            line
            for part in text.split("\n")
            for line in textwrap.wrap(part, max(width, 30), break_on_hyphens=False) or [""]
        ]
        for index, line in enumerate(lines):
            self._print(label if index == 0 else "", line, style)

    def blank(self) -> None:
        self._print("", "", "")

    def working(self, text: str) -> AbstractContextManager[Any]:
        """A spinner on a terminal; lines printed meanwhile appear above it."""
        if self._rich is None:
            return nullcontext()
        self._status = self._rich.status(text, spinner_style="bold blue")
        status: AbstractContextManager[Any] = self._status
        return status

    def reading(self, done: int, size: int) -> None:
        """Say beside the spinner how much of a prompt the model has read."""
        if self._status is not None:
            self._status.update(f"reading, {done:,} of {size:,} tokens" if done < size else "writing")

    def _print(self, label: str, line: str, style: str) -> None:
        if self._rich is None:
            try:
                print(f"{label:<{LABEL}}  {line}".rstrip(), flush=True)
            except BrokenPipeError:
                # The reader is gone (`./run | head`).
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return
        from rich.text import Text

        self._rich.print(Text.assemble((f"{label:<{LABEL}}  ", "bold blue"), (line, style)), soft_wrap=True)


def _console() -> Any:
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(highlight=False)
