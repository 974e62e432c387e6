"""Recorded runs put together again: the history of one, and each turn as the model had it.

Only what is needed is read, however long a run is: most of its events are messages and ordinary tool calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec

from weakincentives.limits import TokenUsage
from weakincentives.prompt import Span
from weakincentives.runtime import (
    HistoryBuilder,
    Message,
    ModelCalled,
    PromptRendered,
    RunHistory,
    RunState,
    ToolInvoked,
    ToolUse,
    TurnSection,
)
from weakincentives.telemetry.reader import EventReader, RecordedEvent

T = TypeVar("T")

# What opens, closes, adds and withdraws, besides the tool calls that ask for it.
_CHANGES = (
    "ToolsInjected",
    "ToolsWithdrawn",
    "SetVisibilityOverride",
    "ClearVisibilityOverride",
    "ClearAllVisibilityOverrides",
    "CollapseSection",
)
_RARE = (*_CHANGES, "PromptRendered", "RunRestarted", "PromptExecuted", "EvaluationFailed")
# Tool calls that ask for sections, and a few more: of a long run only the index finds them fast.
_DISCLOSING = (
    "SELECT seq FROM events INDEXED BY events_disclosing WHERE run_id = ? AND seq > ? AND seq < ? "
    "AND kind = 'ToolInvoked' AND instr(payload, '\"disclosure\":{')"
)


@dataclass(frozen=True, slots=True)
class Turn:
    """What the model had when it was called for the n-th time, what it said, and what came of it.

    `messages` is the conversation as it was sent; the first is the rendered prompt, to which `spans` belong. `tools`
    are all that were offered so far, of which `withdrawn` may no longer be called; `definitions` is each tool's JSON
    text by its name. `complete` is False where the beginning of the conversation was not recorded. `events` are all
    events from this call up to the next, in their recorded form. `called` is None where no reply was recorded.
    """

    run_id: str
    n: int
    attempt: int
    time: float
    called: ModelCalled | None
    rendered: PromptRendered | None
    sections: tuple[TurnSection, ...]
    messages: tuple[Message, ...]
    spans: tuple[Span, ...]
    complete: bool
    tools: tuple[str, ...]
    withdrawn: tuple[str, ...]
    definitions: Mapping[str, str]
    reply: Message | None
    tool_calls: tuple[ToolInvoked, ...]
    events: tuple[RecordedEvent, ...]


def read_history(reader: EventReader, run_id: str) -> RunHistory:
    """The history of a run."""
    calls = _model_calls(reader, run_id)
    uses, disclosing = _tool_uses(reader, run_id)
    rare = reader.of_kinds(run_id, _RARE)
    read = _results(reader, run_id, disclosing, [recorded.seq for recorded in calls])
    ordered: list[RecordedEvent | _RecordedUse] = [*rare, *calls, *uses, *disclosing, *read]
    ordered.sort(key=attrgetter("seq"))
    builder = HistoryBuilder(run_id)
    for item in ordered:
        if isinstance(item, _RecordedUse):
            builder.add_use(item.use, seq=item.seq, time=item.time)
        else:
            builder.add(item.event, seq=item.seq, time=item.time)
    return builder.build()


class _Tagged(msgspec.Struct, Generic[T]):
    v: T


class _Called(msgspec.Struct):
    """A `ModelCalled` as it is recorded; its tools and overrides are mostly those of the call before."""

    usage: _Tagged[TokenUsage]
    tools: msgspec.Raw
    overrides: msgspec.Raw
    run_id: str
    prompt_name: str
    adapter: str
    model: str
    turn: int
    stop_reason: str
    latency: float
    retries: int
    response_id: str
    messages: int
    timestamp: float


class _Result(msgspec.Struct):
    success: bool
    disclosure: msgspec.Raw


class _Invoked(msgspec.Struct):
    """The fields of a `ToolInvoked` that a history needs of a call that opens nothing; the others are skipped."""

    name: str
    result: _Tagged[_Result]
    call_id: str
    section_key: str
    rolled_back: bool


_CALLED: msgspec.json.Decoder[_Tagged[_Called]] = msgspec.json.Decoder(_Tagged[_Called])
_INVOKED: msgspec.json.Decoder[_Tagged[_Invoked]] = msgspec.json.Decoder(_Tagged[_Invoked])
_OWN = tuple(name for name in _Called.__struct_fields__ if name not in ("usage", "tools", "overrides"))


def _model_calls(reader: EventReader, run_id: str) -> list[RecordedEvent]:
    """Every call of the model, decoded in a tenth of the time that the general way takes."""
    found: list[RecordedEvent] = []
    whole: list[int] = []
    known: dict[bytes, Any] = {}

    def shared(raw: msgspec.Raw) -> Any:
        data = bytes(raw)
        if data not in known:
            (known[data],) = reader.decode([data.decode()])
        return known[data]

    for seq, turn, time, payload in _rows(reader, run_id, "ModelCalled"):
        try:
            row = _CALLED.decode(payload).v
            own = {name: getattr(row, name) for name in _OWN}
            event = ModelCalled(usage=row.usage.v, tools=shared(row.tools), overrides=shared(row.overrides), **own)
        except msgspec.ValidationError:
            # A text that is kept elsewhere, or something else that only the general way can read.
            whole.append(seq)
            continue
        found.append(RecordedEvent(run_id, seq, "ModelCalled", time, turn, event))
    return sorted([*found, *reader.numbered(run_id, whole)], key=attrgetter("seq"))


@dataclass(frozen=True, slots=True)
class _RecordedUse:
    seq: int
    time: float
    use: ToolUse


def _tool_uses(reader: EventReader, run_id: str) -> tuple[list[_RecordedUse], list[RecordedEvent]]:
    """The tool calls of a run: ordinary ones as far as a history needs them, and those that ask for sections."""
    uses: list[_RecordedUse] = []
    whole: list[int] = []
    for seq, _, time, payload in _rows(reader, run_id, "ToolInvoked"):
        try:
            row = _INVOKED.decode(payload).v
        except msgspec.ValidationError:
            whole.append(seq)
            continue
        result = row.result.v
        if bytes(result.disclosure) == b"null":
            use = ToolUse(row.name, row.section_key, result.success, row.rolled_back, row.call_id)
            uses.append(_RecordedUse(seq, time, use))
        else:
            whole.append(seq)
    return uses, reader.numbered(run_id, whole)


def _rows(reader: EventReader, run_id: str, kind: str) -> list[tuple[Any, ...]]:
    sql = "SELECT seq, turn, time, payload FROM events WHERE run_id = ? AND kind = ? ORDER BY seq"
    return reader.query(sql, (run_id, kind))


def _results(
    reader: EventReader, run_id: str, disclosing: Sequence[RecordedEvent], calls: Sequence[int]
) -> list[RecordedEvent]:
    """The messages by which the model read what was opened: they come before its next call."""
    found: list[RecordedEvent] = []
    first = {recorded.turn: recorded.seq for recorded in reversed(disclosing)}
    for turn, seq in first.items():
        end = calls[turn] if turn < len(calls) else float("inf")
        found += reader.of_kinds(run_id, ["Message"], seq, end)
    return found


def build_turn(reader: EventReader, run_id: str, n: int, *, with_messages: bool = True) -> Turn:
    """Put the n-th turn of a run together.

    Most of what it takes is for the messages; `with_messages=False` leaves them out.
    """
    ((called_seq,),) = reader.query(
        "SELECT seq FROM events WHERE run_id = ? AND kind = 'ModelCalled' ORDER BY seq LIMIT 1 OFFSET ?",
        (run_id, n - 1),
    )
    following = reader.query(
        "SELECT min(seq) FROM events WHERE run_id = ? AND kind IN ('ModelCalled', 'PromptRendered') AND seq > ?",
        (run_id, called_seq),
    )
    end = following[0][0] or float("inf")
    here = reader.events_where("run_id = ? AND seq >= ? AND seq < ?", (run_id, called_seq, end))
    called: ModelCalled = here[0].event
    rendered, before = _evaluation(reader, run_id, called_seq)
    start = rendered.seq if rendered else 0
    seqs: Sequence[int] = _conversation(reader, run_id, start, called_seq) if with_messages else ()
    return _turn(
        run_id,
        n,
        rendered,
        _folded([*before, here[0]]).turns[-1].state,
        time=here[0].time,
        called=called,
        messages=tuple(recorded.event for recorded in reader.numbered(run_id, seqs)),
        complete=not with_messages or len(seqs) == called.messages,
        reply=next((r.event for r in here if isinstance(r.event, Message) and r.event.role == "assistant"), None),
        tool_calls=tuple(recorded.event for recorded in here if isinstance(recorded.event, ToolInvoked)),
        events=tuple(here),
    )


def pending_turn(reader: EventReader, run_id: str, n: int) -> tuple[Turn, list[int]] | None:
    """The turn after the last one, if the run came as far as to ask the model again, and the events of its messages.

    The model is still at it, or the run ended there; its events are those of the failure, if it failed.
    """
    ((called, start),) = reader.query(
        "SELECT coalesce(max(CASE kind WHEN 'ModelCalled' THEN seq END), 0), "
        "max(CASE kind WHEN 'PromptRendered' THEN seq END) "
        "FROM events WHERE run_id = ? AND kind IN ('ModelCalled', 'PromptRendered')",
        (run_id,),
    )
    if start is None:
        return None
    fresh = reader.of_kinds(run_id, ["Message", "EvaluationFailed"], max(called, start))
    messages = [recorded for recorded in fresh if isinstance(recorded.event, Message)]
    if not messages or messages[-1].event.role == "assistant" or _unanswered(messages):
        return None
    rendered, before = _evaluation(reader, run_id, float("inf"))
    seqs = [*_conversation(reader, run_id, start, called), *(recorded.seq for recorded in messages)]
    turn = _turn(
        run_id,
        n,
        rendered,
        _folded(before).now,
        time=messages[-1].time,
        called=None,
        messages=(),
        complete=True,
        reply=None,
        tool_calls=(),
        events=tuple(recorded for recorded in fresh if recorded.kind == "EvaluationFailed"),
    )
    return turn, seqs


def _turn(run_id: str, n: int, rendered: RecordedEvent | None, state: RunState, **facts: Any) -> Turn:
    render: PromptRendered | None = rendered.event if rendered else None
    return Turn(
        run_id=run_id,
        n=n,
        attempt=render.attempt if render else 1,
        rendered=render,
        sections=state.sections,
        spans=render.spans if render else (),
        tools=tuple(dict.fromkeys((*state.definitions, *state.tools))),
        withdrawn=state.withdrawn,
        definitions=state.definitions,
        **facts,
    )


def _evaluation(reader: EventReader, run_id: str, until: float) -> tuple[RecordedEvent | None, list[RecordedEvent]]:
    """The last render before an event, and what decides the state of its evaluation: restarts, then what changed."""
    rendered = reader.events_where(
        "run_id = ? AND seq = (SELECT max(seq) FROM events WHERE run_id = ? AND kind = 'PromptRendered' AND seq < ?)",
        (run_id, run_id, until),
    )
    start = rendered[0].seq if rendered else 0
    restarts = reader.of_kinds(run_id, ["RunRestarted"], 0, start)
    changes = reader.of_kinds(run_id, _CHANGES, start, until)
    asked = reader.numbered(run_id, [seq for (seq,) in reader.query(_DISCLOSING, (run_id, start, until))])
    since = sorted([*changes, *asked], key=attrgetter("seq"))
    return (rendered[0] if rendered else None), [*restarts, *rendered, *since]


def _folded(events: Sequence[RecordedEvent]) -> RunHistory:
    builder = HistoryBuilder()
    for recorded in events:
        builder.add(recorded.event, seq=recorded.seq, time=recorded.time)
    return builder.build()


def requests(
    reader: EventReader, run_id: str, start: int = 0, stop: float = float("inf")
) -> Iterator[tuple[int, int, list[int]]]:
    """Each call of the model after `start` up to `stop`: its number, and its messages by the numbers of their events.

    Of those there are two parts: how many of the request before it keeps, and which it adds. A run that was resumed
    from a snapshot says some of its messages again: what came before a failure or in another session may have been
    undone, and how long the conversation was at the next call of the model tells how far.
    """
    kept: list[int] = []
    fresh: list[int] = []
    session, known = "", 0
    for seq, kind, session_id, count in reader.query(
        "SELECT seq, kind, session_id, CASE kind WHEN 'ModelCalled' THEN payload ->> '$.v.messages' END FROM events "
        "WHERE run_id = ? AND kind IN ('Message', 'ModelCalled', 'EvaluationFailed', 'PromptRendered') "
        "AND seq > ? AND seq <= ? ORDER BY seq",
        (run_id, start, stop),
    ):
        if session_id != session or kind == "EvaluationFailed":
            session = session_id
            kept += fresh
            fresh = []
        if kind == "Message":
            fresh.append(seq)
        elif kind == "PromptRendered":
            kept, fresh, known = [], [], 0
        elif kind == "ModelCalled":
            if len(kept) + len(fresh) > count:
                del kept[max(0, count - len(fresh)) :]
            known = min(known, len(kept))
            kept += fresh
            fresh = []
            yield seq, known, kept[known:]
            known = len(kept)


def _conversation(reader: EventReader, run_id: str, start: int, called_seq: int) -> list[int]:
    """The numbers of the events that are the messages of a request."""
    seqs: list[int] = []
    for _, known, added in requests(reader, run_id, start, called_seq):
        seqs[known:] = added
    return seqs


def _unanswered(messages: Sequence[RecordedEvent]) -> bool:
    """Whether tools of the last reply are still at work."""
    asked = {call.id for recorded in messages for call in recorded.event.tool_calls}
    return bool(asked - {recorded.event.call_id for recorded in messages})
