"""Where two recorded runs part: the first message that is not the same in both."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from weakincentives._base.display import shortened
from weakincentives.runtime import Message, PromptRendered
from weakincentives.telemetry import RecordedEvent, RunStore

LENGTH = 200
_ROLES = {"user": "what was asked", "tool": "a tool's result", "tools_added": "the tools"}


def parting(store: RunStore, before: str, after: str) -> dict[str, Any]:
    """The first turn in which two runs part, what differs, and whether they began with the same prompt.

    `turn` is None if they are the same to the end.
    """
    prompts = [_first_prompt(store, run_id) for run_id in (before, after)]
    found: dict[str, Any] = {
        "same_prompt": prompts[0] == prompts[1],
        "turn": None,
        "what": "",
        "before": "",
        "after": "",
    }
    for one, other in zip_longest(_messages(store, before), _messages(store, after)):
        if one is not None and other is not None and _identity(one.event) == _identity(other.event):
            continue
        known = one or other
        said = known.event.role == "assistant"
        # A result, and what a user says, is part of the next request.
        turn = max(1, known.turn if said else known.turn + 1)
        what = "the reply" if said else _ROLES.get(known.event.role, "the messages")
        sides = {"before": _words(one), "after": _words(other)}
        return {**found, "turn": turn, "what": what, **sides}
    return found


def _first_prompt(store: RunStore, run_id: str) -> str:
    rendered = store.of_kinds(run_id, ["PromptRendered"], limit=1)
    event = rendered[0].event if rendered else None
    return event.text if isinstance(event, PromptRendered) else ""


def _messages(store: RunStore, run_id: str) -> Iterator[RecordedEvent]:
    """The messages of a run after its prompt; a restart repeats messages, which are left out."""
    for recorded in store.all_events(run_id, kinds=["Message"]):
        event = recorded.event
        if isinstance(event, Message) and not event.rebased and event.role not in ("system", "tools_removed"):
            yield recorded


def _identity(message: Message) -> tuple[Any, ...]:
    """The content of a message; the ids of calls differ between runs that say the same."""
    calls = tuple((call.name, call.arguments) for call in message.tool_calls)
    return message.role, message.text, message.name, message.tools, calls


def _words(recorded: RecordedEvent | None) -> str:
    if recorded is None:
        return ""
    message: Message = recorded.event
    calls = [f"{call.name}({call.arguments})" for call in message.tool_calls]
    return shortened(" ".join(filter(None, [message.text, *calls, ", ".join(message.tools)])), LENGTH)
