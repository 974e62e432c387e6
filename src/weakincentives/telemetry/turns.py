"""One turn of a recorded run put together again: the tree, the request, the reply and what the tools did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from weakincentives.prompt.view import Span
from weakincentives.prompt.visibility import (
    ClearAllVisibilityOverrides,
    ClearVisibilityOverride,
    CollapseSection,
    SectionPath,
    SectionVisibility,
    SetVisibilityOverride,
)
from weakincentives.runtime.events import ModelCalled, PromptRendered, SectionState, ToolInvoked, ToolsInjected
from weakincentives.runtime.messages import Message


class Events(Protocol):
    """Where a turn's events are read from."""

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]: ...

    def events_where(self, where: str, values: Sequence[Any]) -> Sequence[Any]: ...


@dataclass(frozen=True, slots=True)
class TurnSection:
    """A section at one turn.

    `visibility` is None inside a summarized section. `read` says that its content came back as a tool result though it
    stays summarized. `shown_tokens` and `hidden_tokens` include its tools; `reason` is why the session decided so.
    """

    key: str
    path: SectionPath
    title: str
    visibility: SectionVisibility
    decided_by: str
    reason: str
    read: bool
    shown_tokens: int
    hidden_tokens: int
    full_tokens: int
    tools: tuple[str, ...]
    tools_offered: tuple[str, ...]
    tool_tokens: int


@dataclass(frozen=True, slots=True)
class Turn:
    """What the model had when it was called for the n-th time, what it said, and what came of it.

    `messages` is the conversation as it was sent; the first is the rendered prompt, to which `spans` belong.
    `definitions` is each tool's JSON text by its name. `complete` is False where the beginning of the conversation was
    not recorded. `events` are all events from this call up to the next, in their recorded form.
    """

    run_id: str
    n: int
    attempt: int
    time: float
    called: ModelCalled
    rendered: PromptRendered | None
    sections: tuple[TurnSection, ...]
    messages: tuple[Message, ...]
    spans: tuple[Span, ...]
    complete: bool
    tools: tuple[str, ...]
    revoked: tuple[str, ...]
    definitions: Mapping[str, str]
    reply: Message | None
    tool_calls: tuple[ToolInvoked, ...]
    events: tuple[Any, ...]


def build_turn(store: Events, run_id: str, n: int, *, with_messages: bool = True) -> Turn:
    """Put the n-th turn of a run together from what it needs only, however long the run is.

    Most of what it takes is for the messages; `with_messages=False` leaves them out.
    """
    ((called_seq,),) = store.query(
        "SELECT seq FROM events WHERE run_id = ? AND kind = 'ModelCalled' ORDER BY seq LIMIT 1 OFFSET ?",
        (run_id, n - 1),
    )
    following = store.query(
        "SELECT min(seq) FROM events WHERE run_id = ? AND kind IN ('ModelCalled', 'PromptRendered') AND seq > ?",
        (run_id, called_seq),
    )
    end = following[0][0] or float("inf")
    here = store.events_where("run_id = ? AND seq >= ? AND seq < ?", (run_id, called_seq, end))
    called: ModelCalled = here[0].event
    rendered_rows = store.events_where(
        "run_id = ? AND seq = (SELECT max(seq) FROM events WHERE run_id = ? AND kind = 'PromptRendered' AND seq < ?)",
        (run_id, run_id, called_seq),
    )
    rendered: PromptRendered | None = rendered_rows[0].event if rendered_rows else None
    start = rendered_rows[0].seq if rendered_rows else 0
    before = store.events_where(
        "run_id = ? AND seq > ? AND seq < ? AND kind IN ('SetVisibilityOverride', 'ClearVisibilityOverride', "
        "'ClearAllVisibilityOverrides', 'CollapseSection', 'ToolsInjected', 'ToolInvoked') "
        "AND (kind <> 'ToolInvoked' OR instr(payload, '\"disclosure\":{') "
        "AND payload -> '$.v.result.v.disclosure' <> 'null')",
        (run_id, start, called_seq),
    )
    definitions = definitions_at(rendered, [recorded.event for recorded in before])
    seqs = _conversation(store, run_id, start, called_seq) if with_messages else ()
    return Turn(
        run_id=run_id,
        n=n,
        attempt=rendered.attempt if rendered else 1,
        time=here[0].time,
        called=called,
        rendered=rendered,
        sections=sections_at(rendered, [recorded.event for recorded in before], called.tools),
        messages=_messages(store, run_id, seqs),
        spans=rendered.spans if rendered else (),
        complete=not with_messages or len(seqs) == called.messages,
        tools=tuple(dict.fromkeys((*definitions, *called.tools))),
        revoked=tuple(name for name in definitions if name not in called.tools),
        definitions=definitions,
        reply=next((r.event for r in here if isinstance(r.event, Message) and r.event.role == "assistant"), None),
        tool_calls=tuple(recorded.event for recorded in here if isinstance(recorded.event, ToolInvoked)),
        events=tuple(here),
    )


def requests(
    store: Events, run_id: str, start: int = 0, stop: float = float("inf")
) -> Iterator[tuple[int, int, list[int]]]:
    """Each call of the model after `start` up to `stop`: its number, and its messages by the numbers of their events.

    Of those there are two parts: how many of the request before it keeps, and which it adds. A run that was taken up
    from a snapshot says some of its messages again: what came before a failure or in another session may have been
    undone, and how long the conversation was at the next call of the model tells how far.
    """
    kept: list[int] = []
    fresh: list[int] = []
    session, known = "", 0
    for seq, kind, session_id, count in store.query(
        "SELECT seq, kind, session_id, payload ->> '$.v.messages' FROM events WHERE run_id = ? "
        "AND kind IN ('Message', 'ModelCalled', 'EvaluationFailed', 'PromptRendered') AND seq > ? AND seq <= ? "
        "ORDER BY seq",
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


def _conversation(store: Events, run_id: str, start: int, called_seq: int) -> list[int]:
    """The numbers of the events that are the messages of a request."""
    seqs: list[int] = []
    for _, known, added in requests(store, run_id, start, called_seq):
        seqs[known:] = added
    return seqs


def definitions_at(rendered: PromptRendered | None, events: Sequence[Any]) -> dict[str, str]:
    """Every tool offered so far as JSON text, by name."""
    known: dict[str, str] = {}
    if rendered is not None:
        known.update(zip((*rendered.tools, *rendered.hosted_tools), rendered.definitions, strict=False))
    for event in events:
        if isinstance(event, ToolsInjected):
            known.update(zip(event.tool_names, event.definitions, strict=False))
    return known


def _messages(store: Events, run_id: str, seqs: Sequence[int]) -> tuple[Message, ...]:
    messages: list[Message] = []
    for at in range(0, len(seqs), 500):
        some = seqs[at : at + 500]
        rows = store.events_where(f"run_id = ? AND seq IN ({', '.join('?' * len(some))})", (run_id, *some))
        messages += [recorded.event for recorded in rows]
    return tuple(messages)


def sections_at(
    rendered: PromptRendered | None, events: Sequence[Any], offered: tuple[str, ...]
) -> tuple[TurnSection, ...]:
    """The tree as it was rendered, changed by what happened since."""
    if rendered is None:
        return ()
    chosen: dict[SectionPath, tuple[SectionVisibility, str]] = {}
    read: dict[str, str] = {}
    for event in events:
        match event:
            case SetVisibilityOverride():
                chosen[event.path] = (event.visibility, "")
            case CollapseSection():
                chosen[event.path] = (SectionVisibility.SUMMARY, event.reason)
                read.pop(".".join(event.path), None)
            case ClearVisibilityOverride():
                chosen.pop(event.path, None)
            case ClearAllVisibilityOverrides():
                chosen.clear()
            case ToolInvoked() if event.disclosure is not None and event.success and event.disclosure.action == "open":
                read.update(dict.fromkeys(event.disclosure.requested_sections, event.disclosure.reason))
    opened = {
        path[:length]
        for path, (visibility, _) in chosen.items()
        if visibility is SectionVisibility.FULL
        for length in range(1, len(path))
    }
    states = [_state(section, chosen, opened) for section in rendered.sections]
    closed = {section.path for section in states if section.visibility is not SectionVisibility.FULL}
    return tuple(
        _at_turn(first, now, closed, chosen, read, offered)
        for first, now in zip(rendered.sections, states, strict=True)
    )


def _state(
    section: SectionState,
    chosen: dict[SectionPath, tuple[SectionVisibility, str]],
    opened: set[SectionPath],
) -> SectionState:
    if section.path in chosen:
        return replace(section, visibility=chosen[section.path][0], decided_by="session")
    if section.path in opened:
        return replace(section, visibility=SectionVisibility.FULL, decided_by="session")
    return section


def _at_turn(
    first: SectionState,
    section: SectionState,
    closed: set[SectionPath],
    chosen: dict[SectionPath, tuple[SectionVisibility, str]],
    read: dict[str, str],
    offered: tuple[str, ...],
) -> TurnSection:
    key = ".".join(section.path)
    inside = any(section.path[:length] in closed for length in range(1, len(section.path)))
    visibility = SectionVisibility.HIDDEN if inside else section.visibility
    available = tuple(name for name in section.tools if name in offered)
    tool_tokens = section.tool_tokens if available else 0
    shown = section.shown_tokens
    in_full = visibility is SectionVisibility.FULL or key in read
    if in_full:
        # What was opened in the conversation is there besides the summary that the prompt still shows.
        shown += 0 if first.visibility is SectionVisibility.FULL else section.full_tokens
    hidden = (0 if in_full else section.full_tokens) + section.tool_tokens - tool_tokens
    return TurnSection(
        key=key,
        path=section.path,
        title=section.title,
        visibility=visibility,
        decided_by=section.decided_by,
        reason=chosen.get(section.path, ("", ""))[1] or read.get(key, ""),
        read=key in read,
        shown_tokens=shown + tool_tokens,
        hidden_tokens=hidden,
        full_tokens=section.full_tokens + section.tool_tokens,
        tools=section.tools,
        tools_offered=available,
        tool_tokens=section.tool_tokens,
    )
