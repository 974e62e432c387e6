"""The questions about calls that wait, as a page sees them: arguments and paths, and the effects if `show` says so."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from weakincentives._base.display import shortened
from weakincentives.runtime import ApprovalNeeded, CallDecided, Conversation, Effects, PendingCall, ToolEnded
from weakincentives.serde import dump
from weakincentives.telemetry import Redactor, plain

logger = logging.getLogger("weakincentives.ui")

PAGE = "page."
"""Begins the names of tools that a page declares, in the session and for the model, so that they hide no others."""
MAX_ITEMS = 100
MAX_ITEM = 2_000
MAX_TEXT = 100_000

Show = Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A tool call waits for the user: for an approval, or for an `answer` in place of a result.

    `question` is the id by which an approval refers to exactly what was shown: `text` for people, `details` for code.
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


def question_id(chat: Conversation[Any], call: PendingCall) -> str:
    """The id of a question: a different one if thread, call, arguments or effects differ, or it is asked again."""
    effects = "" if call.effects is None else call.effects.digest
    times = sum(event.call_id == call.call_id for event in chat.session[CallDecided].view())
    asked = [chat.conversation_id, call.call_id, times, call.tool, call.arguments, effects]
    return blake2b(json.dumps(asked).encode(), digest_size=16).hexdigest()


def waiting_calls(chat: Conversation[Any]) -> frozenset[str]:
    """The ids, as a page knows them, of the calls that wait for a decision."""
    made = {call.id for message in chat.messages for call in message.tool_calls} if chat.pending else set()
    return frozenset(known_id(call, made) for call in chat.pending)


def known_id(call: PendingCall, made: Collection[str]) -> str:
    """The id of the call that a page knows, of those `made`: one of a delegated run waits inside another."""
    inside = (call_id for call_id in made if call.call_id.startswith(f"{call_id}/"))
    return call.call_id if call.call_id in made else next(inside, call.call_id)


def waiting(chat: Conversation[Any], call: PendingCall, show: Show | None, made: Collection[str]) -> Waiting:
    """The question about a call: its arguments and the paths it would change, and its effects if `show` says so."""
    found = False if call.effects is None else from_show(show, ApprovalNeeded(call))
    clean = Redactor()
    details: dict[str, Any] = {"arguments": arguments(call.arguments)}
    lines = [f"{page_name(call.tool)}({shortened(call.arguments, MAX_ITEM)})"]
    if call.effects is not None:
        effects = _effects(call.effects, clean) if found is True else _paths(call.effects)
        details["effects"] = clean.data(effects) if isinstance(found, bool) else found
        lines += [call.effects.text] if found is True else [file.path for file in call.effects.files[:MAX_ITEMS]]
    text = shortened(clean.text("\n".join(lines)), MAX_TEXT)
    shown_as, question = known_id(call, made), question_id(chat, call)
    return Waiting(shown_as, call.tool, question, text, details, call.needs == "answer")


def _paths(effects: Effects) -> dict[str, Any]:
    """The part of effects that needs no `show`."""
    files = [{"path": file.path} for file in effects.files[:MAX_ITEMS]]
    return {"files": files, "complete": False}


def _effects(effects: Effects, clean: Redactor) -> dict[str, Any]:
    """Effects as plain data; long values are cut once they are redacted."""

    def brief(value: Any) -> Any:
        data = clean.data(plain(value))
        text = json.dumps(data, ensure_ascii=False)
        return data if len(text) <= MAX_ITEM else shortened(text, MAX_ITEM)

    def change(kind: type, before: Sequence[Any], after: Sequence[Any]) -> dict[str, Any]:
        old, new = ([brief(item) for item in items[:MAX_ITEMS]] for items in (before, after))
        return {"type": kind.__qualname__, "before": old, "after": new}

    others = [each for each in effects.resources if not each.changes]
    sides = [side for each in effects.slices for side in (each.before, each.after)]
    lists = (effects.files, effects.events, effects.slices, others, *sides)
    return {
        "files": [{"path": file.path, "diff": file.diff} for file in effects.files[:MAX_ITEMS]],
        "events": [{"type": type(each).__qualname__, "value": brief(each)} for each in effects.events[:MAX_ITEMS]],
        "slices": [change(each.slice_type, each.before, each.after) for each in effects.slices[:MAX_ITEMS]],
        "resources": [change(each.protocol, (each.before,), (each.after,)) for each in others[:MAX_ITEMS]],
        "complete": all(len(each) <= MAX_ITEMS for each in lists),
    }


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
        found = show(event)
        return bool(found) if found is None or isinstance(found, bool) else dump(found)
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
