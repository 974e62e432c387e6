"""The request that has no reply: the model is still at it, or the run ended there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weakincentives.limits import TokenUsage
from weakincentives.runtime.events import ModelCalled, PromptRendered, ToolsInjected, ToolsWithdrawn
from weakincentives.runtime.messages import Message
from weakincentives.telemetry import RecordedEvent, RunStore, RunSummary, Turn
from weakincentives.telemetry.turns import definitions_at, requests, sections_at
from weakincentives.viewer import timeline

ENDED = frozenset({"ok", "halted"})


def pending_turn(store: RunStore, run: RunSummary) -> tuple[Turn, list[int]] | None:
    """The turn after the last one, if the run came as far as to ask the model again, and the events of its messages.

    Nobody has counted its tokens, so its usage is zero; its events are those of the failure, if it failed.
    """
    if run.status in ENDED:
        return None
    ((called, start),) = store.query(
        "SELECT coalesce(max(CASE kind WHEN 'ModelCalled' THEN seq END), 0), "
        "max(CASE kind WHEN 'PromptRendered' THEN seq END) "
        "FROM events WHERE run_id = ? AND kind IN ('ModelCalled', 'PromptRendered')",
        (run.run_id,),
    )
    if start is None:
        return None
    fresh = store.events_where(
        "run_id = ? AND seq > ? AND kind IN ('Message', 'EvaluationFailed')", (run.run_id, max(called, start))
    )
    messages = [recorded for recorded in fresh if isinstance(recorded.event, Message)]
    if not messages or messages[-1].event.role == "assistant" or _unanswered(messages):
        return None
    seqs: list[int] = []
    for _, known, added in requests(store, run.run_id, start, called):
        seqs[known:] = added
    seqs += [recorded.seq for recorded in messages]
    (recorded,) = store.events_where("run_id = ? AND seq = ?", (run.run_id, start))
    return _turn(run, recorded.event, messages[-1].time, timeline.changes(store, run.run_id, start), seqs, fresh), seqs


def _turn(
    run: RunSummary,
    rendered: PromptRendered,
    time: float,
    changes: Sequence[RecordedEvent],
    seqs: Sequence[int],
    fresh: Sequence[RecordedEvent],
) -> Turn:
    since = [recorded.event for recorded in changes]
    tools, revoked = _tools(rendered, since)
    return Turn(
        run_id=run.run_id,
        n=run.turns + 1,
        attempt=rendered.attempt,
        time=time,
        called=ModelCalled(
            run_id=run.run_id,
            prompt_name=rendered.prompt_name,
            adapter=rendered.adapter,
            model=rendered.model,
            turn=run.turns + 1,
            usage=TokenUsage(),
            stop_reason="end",
            latency=0.0,
            messages=len(seqs),
            tools=tuple(name for name in tools if name not in revoked),
            timestamp=time,
        ),
        rendered=rendered,
        sections=sections_at(rendered, since, tuple(name for name in tools if name not in revoked)),
        messages=(),
        spans=rendered.spans,
        complete=True,
        tools=tools,
        revoked=revoked,
        definitions=definitions_at(rendered, since),
        reply=None,
        tool_calls=(),
        events=tuple(recorded for recorded in fresh if recorded.kind == "EvaluationFailed"),
    )


def _unanswered(messages: list[RecordedEvent]) -> bool:
    """Whether tools of the last reply are still at work."""
    asked = {call.id for recorded in messages for call in recorded.event.tool_calls}
    return bool(asked - {recorded.event.call_id for recorded in messages})


def _tools(rendered: PromptRendered, events: list[Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    names = dict.fromkeys((*rendered.tools, *rendered.hosted_tools))
    revoked: set[str] = set()
    for event in events:
        if isinstance(event, ToolsInjected):
            names |= dict.fromkeys(event.tool_names)
            revoked -= set(event.tool_names)
        elif isinstance(event, ToolsWithdrawn):
            revoked |= set(event.tool_names)
    return tuple(names), tuple(sorted(revoked))
