"""Tells a run of the desk while it happens, and what it took at the end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from weakincentives.demo.desk import Question, ask, template
from weakincentives.demo.handbook import pages
from weakincentives.demo.screen import Screen
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


class Show:
    """One question after another, on one adapter."""

    def __init__(self, adapter: ProviderAdapter, screen: Screen) -> None:
        self._adapter = adapter
        self._screen = screen

    def ask(self, question: str) -> PromptResponse[None]:
        """Evaluate the desk's prompt and tell everything that happens."""
        self._screen.say("question", question, style="bold")
        session, started = Session(), time.perf_counter()
        unsubscribe = session.observe(self._hear)
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

    def _hear(self, event: Any) -> None:
        tell = _TELLERS.get(type(event))
        if tell is not None:
            for label, text in tell(event):
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
            f"{sent:,} sent in {_counted(turns, 'turn')}, the largest request {largest:,}. With all {len(pages())} "
            f"sections open: {full:,} a request, {full * needed:,} in {_counted(needed, 'turn')}.",
            style="bold",
        )
        self._screen.say("time", f"{seconds:.1f} seconds on this machine, nothing left it.")


def _rendered(event: PromptRendered) -> list[tuple[str, str]]:
    closed = sum(section.visibility is SectionVisibility.SUMMARY for section in event.sections)
    shown = sum(section.shown_tokens for section in event.sections)
    return [("shows", f"{closed} of {len(event.sections)} sections as summaries, {shown:,} tokens ({event.model})")]


def _said(event: Message) -> list[tuple[str, str]]:
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
    return [("tools", f"{', '.join(event.tool_names)} appeared with {event.section_key}")]


_TELLERS: Mapping[type, Callable[[Any], list[tuple[str, str]]]] = {
    PromptRendered: _rendered,
    Message: _said,
    ToolInvoked: _invoked,
    ToolsInjected: _injected,
}


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
