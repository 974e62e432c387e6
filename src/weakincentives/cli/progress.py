"""The steps of a run, one line each: on stderr while it runs, and as the story of a recorded run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from weakincentives._base.display import shortened, wrapped
from weakincentives.cli.output import dollars, overwrite_echo, plural, print_line, printable, progress, terminal_width
from weakincentives.cli.questions import styled_lines
from weakincentives.limits import TokenUsage
from weakincentives.runtime import (
    CallDecided,
    CheckpointFailed,
    Compacted,
    GuardDecided,
    HostedToolInvoked,
    Message,
    ModelCalled,
    PendingCall,
    PromptChanged,
    PromptRendered,
    PromptResponse,
    Rewound,
    RunEnded,
    SectionsRanked,
    ToolInvoked,
    ToolsInjected,
    ToolsWithdrawn,
)
from weakincentives.runtime.spi import prices_for
from weakincentives.session import Session
from weakincentives.telemetry import asked_question, question_in

WIDTH = 100
LABEL = 8
# The most of a step that is shown while it happens, and in the story of a run.
MAX_STEP, MAX_RESULT = 240, 400
# Printed where people first meet answers without a language model.
QUOTATION = (
    "No language model is at work: the sections are ranked by an embedding, and the answer is quoted from them or from "
    "a tool's result. With a provider's model (wink chat ... -a openai:gpt-5.6), the model decides what to open, call "
    "and write."
)


@contextmanager
def reporting(session: Session, *, quiet: bool = False) -> Iterator[None]:
    """Print a line for each session event that a waiting person wants to see."""
    if quiet:
        yield
        return

    def observe(event: Any) -> None:
        if line := describe(event, MAX_STEP if sys.stderr.isatty() else WIDTH):
            if isinstance(event, ToolInvoked) and not event.success:
                overwrite_echo()  # Ctrl-C may have stopped it.
            progress(line, " " * LABEL)

    with showing(session, observe):
        yield


@contextmanager
def showing(session: Session, show: Callable[[Any], None]) -> Iterator[None]:
    """Show each session event; if the reader has closed the pipe, nothing more is shown."""

    def observe(event: Any) -> None:
        try:
            show(event)
        except BrokenPipeError:
            unsubscribe()

    unsubscribe = session.observe(observe)
    try:
        yield
    finally:
        unsubscribe()


def describe(event: Any, width: int = WIDTH) -> str | None:
    """The line for an event, cut to this many columns, or None if there is nothing to report."""
    formatter = FORMATTERS.get(type(event))
    text = "" if formatter is None else formatter(event)
    # The steps of a run inside a call.
    indent = "  " * event.run_id.count("/") if getattr(event, "parent_run_id", "") else ""
    return shortened(indent + " ".join(text.split("\n")), width) if text else None


def print_story(event: Any, *, asked: str = "", indent: str = "") -> None:
    """Print an event's part of the story, if any: a label with text beside it. The question is not repeated."""
    if isinstance(event, PendingCall):
        print_asked(event, indent)
        return
    formatter = STORY.get(type(event))
    text = "" if formatter is None else formatter(event)
    if text and not (asked and question_in(event) == asked):
        failed = text.startswith("failed") or (isinstance(event, ToolInvoked) and not event.success)
        style = "31" if failed else STYLES.get(text[:LABEL].rstrip(), "")
        words = text[LABEL:] if isinstance(event, Message) else shortened(text[LABEL:], MAX_RESULT)
        print_labelled(text[:LABEL], words, style, indent)


def print_asked(call: PendingCall, indent: str = "") -> None:
    """Print the question about a call, beside its label."""
    question = asked_question(call)
    print_labelled(f"{'asks':{LABEL}}", question.words or question.tool, STYLES["asks"], indent)
    for part in question.parts:
        for style, text in styled_lines(part):
            print_line(f"{indent}{'':{LABEL}}{text}".rstrip(), style=style)


def print_labelled(label: str, text: str, style: str = "", indent: str = "") -> None:
    """Print text beside its label, wrapped on a terminal."""
    width = terminal_width()
    text = printable(text)
    if width is not None:
        room = max(min(width, 120) - LABEL - len(indent), 20)
        text = wrapped(text, room)
    for index, line in enumerate(text.split("\n")):
        print_line(f"{indent}{label if index == 0 else '':{LABEL}}{line}".rstrip(), style=style)


def print_spent(
    sent: int,
    turns: int,
    seconds: float,
    *,
    full: int | None,
    cost: float | None = None,
    answered: bool = True,
    cut_off: bool = False,
    unloaded: bool = False,
) -> None:
    """Print what a run used and, if it answered, what it would have used with everything open, if that is known.

    `unloaded` says that the size of a section is not known.
    """
    more = ", not counting the unfinished request" if cut_off else ""
    text = f"{sent:,} tokens over {plural(turns, 'turn')}{more}, {seconds:.1f} s"
    if cost is not None:
        text += f", {dollars(cost)}"
    if answered and full:
        text += f"; with everything open in every request {'at least ' if unloaded else ''}{full:,}"
        if not unloaded and (share := round(100 * (full - sent) / full)):
            text += f", so {abs(share)}% {'less' if share > 0 else 'more'}"
    print_line()
    print_labelled("sent", text)


def _rendered(event: PromptRendered) -> str:
    changed = f" with override {event.overrides_tag!r}" if event.overrides_tag else ""
    name = f"{event.prompt_name}{changed} on {event.model or event.adapter}"
    least = "at least " if any(section.unloaded for section in event.sections) else ""
    return f"prompt  {name}: {event.size.sent:,} tokens per request, {least}{event.size.full:,} with everything open"


def used(response: PromptResponse[Any], session: Session, seconds: float) -> str:
    """The turns, tokens, time and cost of a run that has ended, in the words of its turns."""
    calls = session[ModelCalled].where(lambda event: event.run_id == response.run_id)
    prices = [prices_for(call.model) for call in calls]
    text = f"{plural(response.turns, 'turn')}, {_tokens(response.usage)}, {seconds:.1f} s"
    if not prices or None in prices:
        return text
    cost = sum(each.cost(call.usage) for each, call in zip(prices, calls, strict=True) if each is not None)
    return f"{text}, {dollars(cost)}"


def _called(event: ModelCalled) -> str:
    return f"model   turn {event.turn}: {_tokens(event.usage)}, {event.latency:.1f} s"


def _tokens(usage: TokenUsage) -> str:
    cached = f" ({usage.cached_tokens:,} cached)" if usage.cached_tokens else ""
    return f"{usage.input_tokens:,} tokens in{cached}, {usage.output_tokens:,} out"


def _invoked(event: ToolInvoked) -> str:
    asked = event.disclosure
    if asked is not None:
        because = f": {asked.reason}" if asked.reason else ""
        failed = "" if event.success else f" (failed: {event.result.message})"
        return f"{asked.action:7} {', '.join(asked.keys)}{because}{failed}"
    outcome = "" if event.success else "failed, undone: " if event.rolled_back else "failed: "
    return f"tool    {event.name}({event.arguments}) -> {outcome}{event.text}"


def _changed(did: str, event: ToolsInjected | ToolsWithdrawn) -> str:
    section = f" from {event.section_key}" if event.section_key else ""
    return f"tools   {did} {', '.join(event.tool_names)}{section}"


def _decided(event: CallDecided) -> str:
    by = f" by {event.by}" if event.by else ""
    return f"decided {_DECISIONS.get(event.decision, event.decision)}{by}{f': {event.reason}' if event.reason else ''}"


def _compacted(event: Compacted) -> str:
    prices = prices_for(event.model)
    cost = f" ({dollars(prices.cost(event.usage))})" if prices is not None and event.usage.total_tokens else ""
    return f"compact {event}{cost}"


def _ranked(event: SectionsRanked) -> str:
    spent = f"{event.usage.input_tokens:,} tokens, {dollars(event.cost)}, {event.latency:.1f} s"
    return f"rank    sections by {event.model}: {spent}"


def _ended(event: RunEnded) -> str:
    """How an attempt ended; an answer and a halt are shown by their own messages."""
    match event.status:
        case "restarted":
            return f"restart with {', '.join(event.section_keys)} open"
        case "failed" | "recovered":
            return f"failed  {event.error}: {event.reason}"
        case "stopped":
            return "stopped by the caller"
        case "waiting":
            return f"waits   for a decision about {event.reason}"
        case "suspended":
            return f"left    {event.reason}"
        case _:
            return ""


def _rewound(event: Rewound) -> str:
    if not event.back:
        return "back    was undone: its turns count again"
    return f"back    its turns from {event.turn} on were undone" if event.turn else "back    it was undone"


_DECISIONS = {
    "approve": "approved",
    "deny": "denied",
    "edit": "edited the arguments",
    "answer": "answered in place of the call",
    "undecided": "not at all: the user went on",
}
FORMATTERS: Mapping[type, Callable[[Any], str]] = {
    PromptRendered: _rendered,
    ModelCalled: _called,
    ToolInvoked: _invoked,
    ToolsInjected: lambda event: _changed("added", event),
    ToolsWithdrawn: lambda event: _changed("withdrew", event),
    CallDecided: _decided,
    Compacted: lambda event: _compacted(event),
    SectionsRanked: _ranked,
    CheckpointFailed: lambda event: f"unsaved {event.reason}",
    RunEnded: lambda event: _ended(event) if event.status == "restarted" else "",
    Message: lambda event: _quoted(event),
}


def _said(event: Message) -> str:
    if words := question_in(event):
        return f"asked   {words}"
    if event.role != "assistant":
        return ""
    if event.text:
        source = f"(quoted from {', '.join(sources)})\n" if (sources := quoted_sources(event)) else ""
        return f"{'says' if event.tool_calls else 'answer':7} {source}{event.text}"
    return _picked(event)


def rank_of(event: Message, key: str) -> str:
    """The rank that the local adapter gave to a section when it opened it; empty for every other message."""
    ranking = _item(event, "ranking")
    try:
        scores = {section["key"]: section["score"] for section in ranking["best"]}
        return f"rank {scores[key]:.2f} of {ranking['of']}"
    except (ValueError, LookupError, TypeError):
        return ""


def _picked(event: Message) -> str:
    """How the local adapter's ranking picked the section to open; empty for every other message."""
    ranking = _item(event, "ranking")
    try:
        best = ", ".join(f"{section['key']} {section['score']:.2f}" for section in ranking["best"][:3])
        return f"picks   {best} ... of {ranking['of']} (ranked by {ranking['by']})"
    except (ValueError, LookupError, TypeError):
        return ""


def quoted_sources(event: Message) -> list[str]:
    """The sections or tools that the local adapter's answer quotes; empty for every other message."""
    sources = _item(event, "quotation").get("from")
    return [str(source) for source in sources] if isinstance(sources, list) else []


def _quoted(event: Message) -> str:
    sources = quoted_sources(event)
    return f"quoted  word for word from {', '.join(sources)}" if sources else ""


def _item(event: Message, kind: str) -> Mapping[str, Any]:
    """The first item of this type that an adapter recorded with a message; empty if there is none."""
    for text in event.items:
        with suppress(ValueError, RecursionError):
            item = json.loads(text)
            if isinstance(item, dict) and item.get("type") == kind:
                return item
    return {}


STORY: Mapping[type, Callable[[Any], str]] = {
    **FORMATTERS,
    Message: _said,
    HostedToolInvoked: lambda event: f"tool    {event.name} was run by the provider",
    GuardDecided: lambda event: f"guard   {event.guard}: {event.outcome}{event.message and f', {event.message}'}",
    PromptChanged: lambda event: (
        f"prompt  changed: {', '.join(event.changed_sections + event.removed_sections + event.removed_tools)}"
    ),
    RunEnded: lambda event: _ended(event),
    Rewound: _rewound,
}
_BOLD, _DIM, _YELLOW, _MAGENTA, _CYAN = "1", "2", "33", "35", "36"
STYLES = {"asked": _BOLD, "answer": _BOLD, "open": _CYAN, "close": _CYAN, "tools": _MAGENTA, "tool": _YELLOW}
STYLES |= dict.fromkeys(("stopped", "decided", "waits", "asks", "back", "unsaved"), _YELLOW)
STYLES |= {"compact": _CYAN, "prompt": _DIM, "picks": _DIM, "model": _DIM, "quoted": _DIM, "guard": _YELLOW}
