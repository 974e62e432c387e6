"""The questions about calls that wait, as a page sees them: without what `show` keeps from it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from weakincentives.runtime import (
    ApprovalNeeded,
    Conversation,
    PendingCall,
    Question,
    QuestionPart,
    ToolEnded,
)
from weakincentives.serde import dump

logger = logging.getLogger("weakincentives.ui")

PAGE = "page."
"""Begins the names of tools that a page declares, in the session and for the model, so that they hide no others."""
KEPT_BACK = "What it would change is not shown on this page."
OWN_WORDS = "What it would change is shown on this page in its own words."
_EFFECTS = frozenset({"file", "slice", "resource", "events"})

Show = Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A tool call waits for the user: for an approval, or for an `answer` in place of a result.

    `question` is the id by which a decision refers to exactly what was asked: `text` for people, `details` for code.
    """

    call_id: str
    name: str
    question: str
    text: str
    details: Mapping[str, Any]
    answer: bool = False

    @property
    def of_page(self) -> bool:
        """True if the page has declared the tool."""
        return self.name.startswith(PAGE)


def waiting_calls(chat: Conversation[Any]) -> frozenset[str]:
    """The ids, as a page knows them, of the calls that wait for a decision."""
    made = {call.id for message in chat.messages for call in message.tool_calls} if chat.pending else set()
    return frozenset(known_id(call, made) for call in chat.pending)


def known_id(call: PendingCall, made: Collection[str]) -> str:
    """The id of the call that a page knows, of those `made`: one of a delegated run waits inside another."""
    inside = (call_id for call_id in made if call.call_id.startswith(f"{call_id}/"))
    return call.call_id if call.call_id in made else next(inside, call.call_id)


def waiting(call: PendingCall, show: Show | None, made: Collection[str]) -> Waiting:
    """The question about a call: its arguments and the paths it would change, and the rest if `show` says so."""
    question = call.question
    shown: Any = True if call.effects is None else from_show(show, ApprovalNeeded(call))
    if shown is not True:
        question = _kept_back(question, KEPT_BACK if shown is False else OWN_WORDS)
    details = question.data
    details["tool"] = page_name(question.tool)
    if not isinstance(shown, bool):
        details["effects"] = shown
    text = details.pop("text")
    return Waiting(known_id(call, made), call.tool, question.id, text, details, question.needs == "answer")


def _kept_back(question: Question, why: str) -> Question:
    """The question with no more of its effects than the paths of files."""
    parts: list[QuestionPart] = []
    for part in question.parts:
        if part.kind == "file":
            parts.append(replace(part, lines=part.lines[:1]))
        elif part.kind not in _EFFECTS and part.kind != "missing":
            parts.append(part)
    return question.with_parts(parts, why)


def check_show(show: Show | None) -> Show | None:
    if show is None or callable(show):
        return show
    raise TypeError(
        f"show must be a function of a ToolEnded, got {show!r}; write show=lambda ended: True to show every result"
    )


def from_show(show: Show | None, event: ToolEnded | ApprovalNeeded) -> Any:
    """The answer of `show`: True, False, or data."""
    if show is None:
        return False
    try:
        shown = show(event)
        return bool(shown) if shown is None or isinstance(shown, bool) else dump(shown)
    except (Exception, SystemExit) as error:
        what = "a result" if isinstance(event, ToolEnded) else "the effects"
        logger.error("show failed for %s of tool %r, so the page does not get it", what, event.name, exc_info=error)
        return False


def page_name(name: str) -> str:
    """The name by which a page knows a tool."""
    return name.removeprefix(PAGE)


def arguments(text: str) -> Any:
    """A call's arguments as data, or as text if they are not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
