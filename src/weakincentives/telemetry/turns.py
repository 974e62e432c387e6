"""Reconstructs recorded runs: the history of a run, and each turn as the model saw it.

Only the events needed are read, however long the run: most are messages and ordinary tool calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_origin, get_type_hints

import msgspec

from weakincentives.limits import TokenUsage
from weakincentives.prompt import Span
from weakincentives.runtime import (
    HostedToolInvoked,
    Message,
    ModelCalled,
    PromptRendered,
    RunEnded,
    RunHistory,
    ToolInvoked,
)
from weakincentives.runtime.spi import HistoryBuilder, PromptState, ToolUse, TurnSection, usage_of_children
from weakincentives.telemetry.payload import check_for
from weakincentives.telemetry.reader import BELOW, COLUMNS, EventReader, RecordedEvent, RunFileError, marks
from weakincentives.telemetry.values import EVENTS, Unreadable

T = TypeVar("T")

# Events that open or close sections and add or withdraw tools, besides the tool calls that request it.
_CHANGES = (
    "SectionsExposed",
    "ToolsInjected",
    "ToolsWithdrawn",
    "SetVisibilityOverride",
    "ClearVisibilityOverride",
    "ClearAllVisibilityOverrides",
    "CollapseSection",
    "Compacted",
)
# Events read for a history.
_KINDS = tuple(cls.__name__ for cls in EVENTS if cls not in (Message, HostedToolInvoked))
# Tool calls that request sections, and a few others; in a long run, only the index finds them quickly.
_DISCLOSING = (
    "SELECT seq FROM events INDEXED BY events_disclosing WHERE run_id = ? AND seq > ? AND seq < ? "
    "AND kind = 'ToolInvoked' AND instr(payload, '\"disclosure\":{')"
)


@dataclass(frozen=True, slots=True)
class Turn:
    """The n-th model call: the request, the reply, and the calls that followed from it.

    `messages` is the conversation as it was sent; the first is the rendered prompt, to which `spans` refer. `tools` are
    all tools offered so far, of which `withdrawn` may no longer be called; `definitions` maps each tool's name to its
    JSON. `complete` is False if the beginning of the conversation was not recorded. `events` are all events from this
    call up to the next, as recorded. `called` is None if no reply was recorded.
    """

    run_id: str  #: the run
    n: int  #: its number in the run, from 1
    attempt: int  #: the number of its attempt, from 1
    time: float  #: seconds since 1970
    called: ModelCalled | None
    rendered: PromptRendered | None  #: the render that its attempt began with
    sections: tuple[TurnSection, ...]  #: every section, as the model had it
    messages: tuple[Message, ...]
    spans: tuple[Span, ...]
    complete: bool
    tools: tuple[str, ...]
    withdrawn: tuple[str, ...]
    definitions: Mapping[str, str]
    reply: Message | None  #: the model's reply
    tool_calls: tuple[ToolInvoked, ...]  #: the calls that followed
    events: tuple[RecordedEvent, ...]


def read_history(reader: EventReader, run_id: str) -> RunHistory:
    """The history of a run."""
    light, events = _read_events(reader, run_id)
    builder = HistoryBuilder(run_id)
    for item in sorted([*light, *(_Item(r.seq, r.time, r.event) for r in events)], key=attrgetter("seq")):
        if isinstance(item.what, ToolUse):
            builder.add_use(item.what, time=item.time)
        elif isinstance(item.what, Unreadable) and item.what.kind == "ModelCalled":
            builder.skip_turn()
        else:
            builder.add(item.what, seq=item.seq, time=item.time)
    spent = reader.salvage(
        f"WITH RECURSIVE {BELOW} SELECT run_id, parent_run_id, input_tokens, output_tokens, cached_tokens, "
        "reasoning_tokens FROM below JOIN runs ON run_id = id WHERE root = ? ORDER BY started",
        (run_id,),
    )
    return builder.build(usage_of_children(run_id, ((run, parent, TokenUsage(*used)) for run, parent, *used in spent)))


class _Item(NamedTuple):
    """Input to a history: an event or, for an ordinary tool call, only what the history needs."""

    seq: int
    time: float
    what: Any


class _Tagged(msgspec.Struct, Generic[T]):
    v: T


class _Result(msgspec.Struct):
    success: bool
    disclosure: msgspec.Raw


class _Invoked(msgspec.Struct):
    """The fields of a `ToolInvoked` that a history needs for a call that opens nothing; other fields are skipped."""

    name: str
    result: _Tagged[_Result]
    call_id: str
    section_key: str
    rolled_back: bool


_INVOKED: msgspec.json.Decoder[_Tagged[_Invoked]] = msgspec.json.Decoder(_Tagged[_Invoked])


def _recorded_as(hint: Any) -> Any:
    """The form in which an event's field is recorded; fields that repeat across events are decoded separately."""
    if hint in (str, int, float, bool):
        return hint
    if get_origin(hint) is Literal:
        return str
    return _Tagged[hint] if is_dataclass(hint) else msgspec.Raw


_HINTS = {field.name: get_type_hints(ModelCalled)[field.name] for field in fields(ModelCalled)}
_FORMS = {name: _recorded_as(hint) for name, hint in _HINTS.items()}
_TAGGED = [name for name, hint in _HINTS.items() if is_dataclass(hint)]
_REPEATED = {name: check_for(_HINTS[name]) for name, form in _FORMS.items() if form is msgspec.Raw}
_Called = msgspec.defstruct("_Called", list(_FORMS.items()))
_CALLED: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_Tagged[_Called])  # type: ignore[valid-type]


def _read_events(reader: EventReader, run_id: str) -> tuple[list[_Item], list[RecordedEvent]]:
    """The events a history needs, except messages: those that can be decoded fast, and the others."""
    rows = reader.salvage(
        f"SELECT {COLUMNS} FROM events INDEXED BY events_by_kind WHERE run_id = ? AND kind IN ({marks(_KINDS)})",
        (run_id, *_KINDS),
    )
    light: list[_Item] = []
    others: list[Any] = []

    @cache
    def shared(name: str, recorded: bytes) -> Any:
        """A part that many model calls share, decoded once."""
        (value,) = reader.decode([recorded.decode()])
        if not _REPEATED[name](value):
            raise TypeError(name)
        return value

    for row in reader.sound_rows(rows):
        try:
            what = _decode_fast(row, shared)
        except (msgspec.MsgspecError, TypeError, RecursionError):
            # A text stored elsewhere, or something else that only the general decoder can read.
            what = None
        if what is None:
            others.append(row)
        else:
            light.append(_Item(row[1], row[3], what))
    return light, reader.decode_rows(others)


def _decode_fast(row: Sequence[Any], shared: Callable[[str, bytes], Any]) -> ModelCalled | ToolUse | None:
    """A model call or an ordinary tool call, decoded in a tenth of the usual time; None for other events."""
    _, seq, kind, _, _, payload = row
    if kind == "ModelCalled":
        values = msgspec.structs.asdict(_CALLED.decode(payload).v)
        values.update({name: values[name].v for name in _TAGGED})
        values.update({name: shared(name, bytes(values[name])) for name in _REPEATED})
        return ModelCalled(**values)
    if kind == "ToolInvoked":
        invoked = _INVOKED.decode(payload).v
        result = invoked.result.v
        if bytes(result.disclosure) == b"null":
            return ToolUse(invoked.name, invoked.section_key, result.success, invoked.rolled_back, invoked.call_id, seq)
    return None


def build_turn(reader: EventReader, run_id: str, n: int, *, with_messages: bool = True) -> Turn:
    """The n-th turn of a run. Reading messages takes most of the time; `with_messages=False` omits them."""
    found = reader.query(
        "SELECT seq FROM events WHERE run_id = ? AND kind = 'ModelCalled' ORDER BY seq LIMIT 1 OFFSET ?",
        (run_id, n - 1),
    )
    if not found:
        raise RunFileError(f"'{reader.path}' is damaged: it has no turn {n} of run '{run_id}'.")
    called_seq = found[0][0]
    following = reader.query(
        "SELECT min(seq) FROM events WHERE run_id = ? AND kind IN ('ModelCalled', 'PromptRendered') AND seq > ?",
        (run_id, called_seq),
    )
    end = following[0][0] or float("inf")
    here = reader.events_where("run_id = ? AND seq >= ? AND seq < ?", (run_id, called_seq, end))
    called = here[0].event if here else None
    if not isinstance(called, ModelCalled):
        raise RunFileError(
            f"Turn {n} of run '{run_id}' in '{reader.path}' cannot be read; {'; '.join(reader.problems)}."
        )
    rendered, before = _evaluation(reader, run_id, called_seq)
    ids: Sequence[int] = _conversation(reader, run_id, called_seq) if with_messages else ()
    return _turn(
        run_id,
        n,
        rendered,
        _folded([*before, here[0]]).turns[-1].state,
        time=here[0].time,
        called=called,
        messages=tuple(recorded.event for recorded in reader.identified(ids)),
        complete=not with_messages or len(ids) == called.messages,
        reply=next((r.event for r in here if isinstance(r.event, Message) and r.event.role == "assistant"), None),
        tool_calls=tuple(recorded.event for recorded in here if isinstance(recorded.event, ToolInvoked)),
        events=tuple(here),
    )


def pending_turn(reader: EventReader, run_id: str, n: int) -> tuple[Turn, list[int]] | None:
    """The turn after the last one, if the run got as far as calling the model again, and the ids of its messages.

    Its reply is still pending, or the run ended there; `events` say how, and `reply` is what a stopped stream had said.
    """
    ((called, start),) = reader.query(
        "SELECT coalesce(max(CASE kind WHEN 'ModelCalled' THEN seq END), 0), "
        "max(CASE kind WHEN 'PromptRendered' THEN seq END) "
        "FROM events WHERE run_id = ? AND kind IN ('ModelCalled', 'PromptRendered')",
        (run_id,),
    )
    if start is None:
        return None
    fresh = reader.of_kinds(run_id, ["Message", "ToolInvoked", "RunEnded"], max(called, start))
    messages = [recorded for recorded in fresh if isinstance(recorded.event, Message)]
    ends = [recorded for recorded in fresh if isinstance(recorded.event, RunEnded)]
    replies = sum(recorded.event.role == "assistant" and not recorded.event.rebased for recorded in messages)
    cut_off = messages[-1:] if messages and messages[-1].event.role == "assistant" else []
    # The first reply is the one to the last call.
    if not messages or _unanswered(messages) or (cut_off and replies <= (called > start)):
        return None
    if called > start and messages[-1].event.role == "tool" and ends and ends[-1].event.status == "stopped":
        invoked = {recorded.event.call_id for recorded in fresh if isinstance(recorded.event, ToolInvoked)}
        if messages[-1].event.call_id not in invoked:
            return None  # It was stopped before the call was made, so there was no further request.
    rendered, before = _evaluation(reader, run_id, float("inf"))
    turn = _turn(
        run_id,
        n,
        rendered,
        _folded(before).now,
        time=messages[-1].time,
        called=None,
        messages=(),
        complete=True,
        reply=cut_off[0].event if cut_off else None,
        tool_calls=(),
        events=(*cut_off, *ends),
    )
    ids = _conversation(reader, run_id, float("inf"), pending=True)
    return turn, ids[:-1] if cut_off else ids


def _turn(run_id: str, n: int, rendered: RecordedEvent | None, state: PromptState, **facts: Any) -> Turn:
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
    """The last render before an event, and the events that determine the state of its evaluation."""
    rendered = reader.events_where(
        "run_id = ? AND seq = (SELECT max(seq) FROM events WHERE run_id = ? AND kind = 'PromptRendered' AND seq < ?)",
        (run_id, run_id, until),
    )
    start = rendered[0].seq if rendered else 0
    restarts = reader.of_kinds(run_id, ["RunEnded"], 0, start)
    changes = reader.of_kinds(run_id, _CHANGES, start, until)
    asked = reader.numbered(run_id, [seq for (seq,) in reader.query(_DISCLOSING, (run_id, start, until))])
    since = sorted([*changes, *asked], key=attrgetter("seq"))
    readable = bool(rendered) and isinstance(rendered[0].event, PromptRendered)
    return (rendered[0] if readable else None), [*restarts, *rendered, *since]


def _folded(events: Sequence[RecordedEvent]) -> RunHistory:
    builder = HistoryBuilder()
    for recorded in events:
        builder.add(recorded.event, seq=recorded.seq, time=recorded.time)
    return builder.build()


def continued_runs(reader: EventReader, run_id: str) -> list[str]:
    """The runs whose conversation this run continues, oldest first, followed by the run itself."""
    chain = [run_id]
    while True:
        found = reader.query(
            "SELECT payload ->> '$.v.continues' FROM events WHERE run_id = ? AND kind = 'PromptRendered' "
            "AND json_valid(payload) ORDER BY seq LIMIT 1",
            (chain[0],),
        )
        earlier = found[0][0] if found else ""
        if not isinstance(earlier, str) or not earlier or earlier in chain:
            return chain
        chain.insert(0, earlier)


def requests(
    reader: EventReader, run_id: str, stop: float = float("inf"), *, pending: bool = False
) -> Iterator[tuple[int, int, list[int]]]:
    """Each model call up to `stop`: its event number, how many messages it keeps from the previous request, and the ids
    of those it adds. With `pending`, the request after the last call is included, numbered 0.

    A run that continues a conversation sends the messages of the runs before it. A run resumed from a snapshot repeats
    some of its messages: those before a failure, or of another session, may have been undone, and the length of the
    conversation at the next model call says how many. A run inside another may continue that one's conversation, up to
    its last complete turn.
    """
    kept: list[int] = []
    fresh: list[int] = []
    session, known = "", 0
    runs = continued_runs(reader, run_id)
    for number, run, seq, kind, session_id, fact in reader.salvage(
        "SELECT id, run_id, seq, kind, session_id, CASE WHEN kind = 'Message' OR NOT json_valid(payload) THEN NULL "
        "WHEN kind = 'ModelCalled' THEN payload ->> '$.v.messages' "
        "WHEN kind = 'PromptRendered' THEN payload ->> '$.v.continues' "
        "WHEN kind = 'RunEnded' THEN payload ->> '$.v.error' END FROM events "
        f"WHERE {_conversation_of(runs)} AND (run_id <> ? OR seq <= ?) "
        "AND kind IN ('Message', 'ModelCalled', 'RunEnded', 'PromptRendered') ORDER BY id",
        (*runs, run_id, run_id, run_id, stop),
    ):
        if session_id != session or (kind == "RunEnded" and fact):
            session = session_id
            kept += fresh
            fresh = []
        if kind == "Message":
            fresh.append(number)
        elif kind == "PromptRendered":
            if not fact:
                kept, fresh, known = [], [], 0
            elif run.startswith(f"{fact}/"):
                fresh = []
        elif kind == "ModelCalled" and isinstance(fact, int):
            if len(kept) + len(fresh) > fact:
                del kept[max(0, fact - len(fresh)) :]
            known = min(known, len(kept))
            kept += fresh
            fresh = []
            if run == run_id:
                yield seq, known, kept[known:]
                known = len(kept)
    if pending:
        yield 0, min(known, len(kept)), [*kept[known:], *fresh]


def _conversation_of(runs: Sequence[str]) -> str:
    """The condition on events of these runs, the last of which takes over what was there when it began; its id follows
    twice."""
    begun = "(SELECT min(id) FROM events WHERE run_id = ?)"
    return f"run_id IN ({marks(runs)}) AND (run_id = ? OR id < {begun})"


def message_ids(reader: EventReader, run_id: str, *, own: bool = True) -> list[int]:
    """The messages of the runs that a run continues, followed by its own unless `own` is False."""
    runs = continued_runs(reader, run_id)
    rows = reader.query(
        f"SELECT id FROM events WHERE {_conversation_of(runs)} AND run_id <> ? AND kind = 'Message' ORDER BY id",
        (*runs, run_id, run_id, "" if own else run_id),
    )
    return [number for (number,) in rows]


def _conversation(reader: EventReader, run_id: str, called_seq: float, *, pending: bool = False) -> list[int]:
    """The ids of the messages of a request."""
    ids: list[int] = []
    for _, known, added in requests(reader, run_id, called_seq, pending=pending):
        ids[known:] = added
    return ids


def _unanswered(messages: Sequence[RecordedEvent]) -> bool:
    """True while tools of the last reply are running."""
    asked = {call.id for recorded in messages for call in recorded.event.tool_calls}
    return bool(asked - {recorded.event.call_id for recorded in messages})
