"""How the prompt opened over a run: what was asked for, by which route it came, and each section turn by turn."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from weakincentives.prompt import OpenSectionsResult
from weakincentives.prompt.visibility import (
    ClearAllVisibilityOverrides,
    ClearVisibilityOverride,
    CollapseSection,
    SetVisibilityOverride,
)
from weakincentives.runtime.events import (
    ModelCalled,
    PromptExecuted,
    PromptRendered,
    RunRestarted,
    ToolInvoked,
    ToolsInjected,
    ToolsWithdrawn,
)
from weakincentives.telemetry import RecordedEvent, RunStore
from weakincentives.telemetry.turns import sections_at

# Besides the tool calls that ask for sections.
KINDS = (
    "PromptRendered",
    "ToolsInjected",
    "ToolsWithdrawn",
    "RunRestarted",
    "PromptExecuted",
    "SetVisibilityOverride",
    "ClearVisibilityOverride",
    "ClearAllVisibilityOverrides",
    "CollapseSection",
)


def changes(store: RunStore, run_id: str, after: int = 0) -> tuple[RecordedEvent, ...]:
    """Everything in a run that opened or closed something, or asked for it."""
    marks = ", ".join("?" * len(KINDS))
    return store.events_where(
        f"run_id = ? AND seq > ? AND (kind IN ({marks}) "
        "OR kind = 'ToolInvoked' AND instr(payload, '\"disclosure\":{') "
        "AND payload -> '$.v.result.v.disclosure' <> 'null')",
        (run_id, after, *KINDS),
    )


def steps(events: Iterable[RecordedEvent]) -> list[dict[str, Any]]:
    """Every step of disclosure in its order; tools and restarts are told with the request that brought them."""
    found: list[dict[str, Any]] = []
    for recorded in events:
        event = recorded.event
        match event:
            case ToolInvoked() if event.disclosure is not None:
                asked = event.disclosure
                found.append(
                    _step(recorded, event.name, asked.requested_sections, asked.reason, _route(event), event.success)
                )
            case ToolsInjected():
                step = _request_for(found, event.section_key, recorded.turn) or _step(
                    recorded, "injected", filter(None, (event.section_key,))
                )
                step["route"], step["tools"] = event.route, [*step["tools"], *event.tool_names]
                if step not in found:
                    found.append(step)
            case ToolsWithdrawn():
                step = _step(recorded, "withdrawn", (event.section_key,), route=event.route)
                step["tools"] = list(event.tool_names)
                found.append(step)
            case RunRestarted():
                known = [_request_for(found, key, recorded.turn) for key in event.section_keys]
                asked_for = [step for step in known if step is not None]
                for step in asked_for:
                    step["route"] = "restart"
                if not asked_for:
                    found.append(_step(recorded, "restart", event.section_keys, event.reason, "restart"))
            case PromptExecuted() if event.halted and found and found[-1]["turn"] == recorded.turn:
                found[-1]["route"] = "halt"
            case CollapseSection() if event.reason:
                found.append(_step(recorded, "collapsed", (".".join(event.path),), event.reason))
    return found


def lanes(events: Iterable[RecordedEvent]) -> list[dict[str, Any]]:
    """Each section with the turns at which its state changes: full, summary, hidden, or read (its text came back)."""
    found: dict[str, dict[str, Any]] = {}
    rendered: PromptRendered | None = None
    since: list[Any] = []
    stale = True
    for recorded in events:
        event = recorded.event
        match event:
            case PromptRendered():
                rendered, since, stale = event, [], True
            case ModelCalled() if stale:
                stale = False
                for section in sections_at(rendered, since, event.tools):
                    lane = found.setdefault(section.key, {"key": section.key, "title": section.title, "states": []})
                    state = section.visibility.value
                    if section.read and state != "full":
                        state = "read"
                    if not lane["states"] or lane["states"][-1][1:] != [state, section.decided_by]:
                        lane["states"].append([recorded.turn, state, section.decided_by])
            case (
                SetVisibilityOverride() | ClearVisibilityOverride() | ClearAllVisibilityOverrides() | CollapseSection()
            ):
                since.append(event)
                stale = True
            case ToolInvoked() if event.disclosure is not None:
                since.append(event)
                stale = True
    return list(found.values())


def _step(
    recorded: RecordedEvent,
    action: str,
    sections: Iterable[str],
    reason: str = "",
    route: str = "",
    success: bool = True,
) -> dict[str, Any]:
    return {
        "seq": recorded.seq,
        "turn": recorded.turn,
        "time": recorded.time,
        "action": action,
        "sections": list(sections),
        "reason": reason,
        "route": route if success else "",
        "success": success,
        "tools": [],
    }


def _route(event: ToolInvoked) -> str:
    """How what was asked for came to the model, as far as the call itself can tell."""
    if event.disclosure is not None and event.disclosure.action == "close":
        return ""
    written = isinstance(event.result.value, OpenSectionsResult) and event.result.value.written_files
    return "file" if written else "tool result"


def _request_for(found: list[dict[str, Any]], key: str, turn: int) -> dict[str, Any] | None:
    """The request of this turn that asked for a section, or for one inside or around it."""
    step: dict[str, Any]
    for step in reversed(found):
        if step["turn"] != turn:
            return None
        if step["action"] != "withdrawn" and any(_related(asked, key) for asked in step["sections"]):
            return step
    return None


def _related(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")
