"""Points of a conversation, to which it can go back, and the record of what its tools change outside the session.

A point refers to the state of the session before a user message, or when a request was sent; nothing is copied. Files
that a call changes are noted with their content before and a digest of it after, so that going back leaves alone what
something else has changed since.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from weakincentives.filesystem import MAX_RESTORABLE, FileEdit, edits_of
from weakincentives.prompt import BoundPrompt
from weakincentives.resources import ScopedResourceContext
from weakincentives.runtime.events import ContextWindow
from weakincentives.runtime.messages import Message
from weakincentives.session import Moment, Reducible, Session, Snapshot

MAX_TEXT = 200
UNSTORED = "it could not be stored, and the process that had it has ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point(Moment):
    """A point of a conversation, to which it can go back: before a user "message", or when a "turn" was requested.

    `turn` counts those of its run. `text` is the beginning of the message, and `key` its key. `params` are those
    that were bound then, with a digest of them.
    """

    id: str  #: pass it to `rewind` or `fork`
    kind: Literal["message", "turn"]  #: before a message, or at a turn
    run_id: str  #: the run
    turn: int = 0
    text: str = ""
    key: str = ""
    timestamp: float = 0.0  #: seconds since 1970
    params: tuple[Any, ...] = field(default=(), repr=False, compare=False)
    params_digest: str = field(default="", repr=False)  #: the digest of `params`

    def reduced(self) -> Self:
        return replace(self, params=()) if self.params else self


@dataclass(frozen=True, slots=True)
class Written(Reducible):
    """A change that a tool call made to a resource: to a file, or from one state to another.

    `lost` says why it cannot be taken back, if it cannot.
    """

    tool: str
    call_id: str
    protocol: type
    file: FileEdit | None = None
    before: Any = None
    after: Any = None
    lost: str = ""

    @property
    def name(self) -> str:
        """The path of the file, or the name of another resource."""
        return self.protocol.__qualname__ if self.file is None else self.file.path

    @property
    def problem(self) -> str:
        """The reason why it cannot be taken back; empty if it can."""
        return self.lost or ("" if self.file is None else self.file.lost)

    def reduced(self) -> Written:
        return self if self.file is not None else replace(self, before=None, after=None, lost=UNSTORED)


@dataclass(frozen=True, slots=True)
class OutsideCall:
    """A call that had effects outside; `compensation` is "done", or says why they were not undone."""

    tool: str  #: the tool's name
    call_id: str  #: the id of the call
    run_id: str  #: the run that made it
    section_key: str = ""  #: the section that offers the tool
    compensation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindUndo(Moment):
    """The state before the last rewind, and what undoes its changes; it is gone once a message is sent."""

    written: tuple[Written, ...] = ()
    undone: tuple[tuple[str, int], ...] = ()
    point: str = ""
    params: tuple[Any, ...] = field(default=(), repr=False, compare=False)
    params_digest: str = ""

    def reduced(self) -> Self:
        kept = tuple(each.reduced() for each in self.written)
        return replace(self, params=(), written=kept) if self.params or kept != self.written else self


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Adds the points of one run to its session: `state` is that in which it began, at that time."""

    session: Session
    params: tuple[Any, ...]
    params_digest: str
    state: Snapshot
    timestamp: float

    @classmethod
    def before(cls, prompt: BoundPrompt[Any], session: Session) -> Points:
        """Those of a run that begins now."""
        points = cls(session, prompt.params, prompt.params_digest, state_of(session), session.timestamp())
        if RewindUndo in session:
            session[RewindUndo].clear()
        return points

    def message(self, run_id: str, message: Message) -> None:
        """Add the point before the user's message: the state in which the run began."""
        facts = {"text": message.text[:MAX_TEXT], "key": message.key}
        self._add("message", run_id, self.state, self.timestamp, **facts)

    def turn(self, run_id: str, turn: int) -> None:
        """Add the point of a turn: the state in which its request is sent, the last time if it is sent again."""
        points = self.session[Point]
        last = points.latest()
        if last is not None and (last.kind, last.run_id, last.turn) == ("turn", run_id, turn):
            points.update(lambda earlier: earlier[:-1])
        window = self.session[ContextWindow].latest()
        if window is not None:
            self.session[ContextWindow].seed(replace(window, prepared=len(self.session[Message])))
        self._add("turn", run_id, state_of(self.session), self.session.timestamp(), turn=turn)

    def _add(
        self, kind: Literal["message", "turn"], run_id: str, state: Snapshot, timestamp: float, **facts: Any
    ) -> None:
        points = self.session[Point]
        points.append(
            Point(
                id=f"{run_id}:{len(points)}",
                kind=kind,
                run_id=run_id,
                timestamp=timestamp,
                state=state,
                params=self.params,
                params_digest=self.params_digest,
                **facts,
            )
        )


def state_of(session: Session) -> Snapshot:
    """The state that a rewind restores."""
    state = session.state(logs=False)
    state.marks.pop(RewindUndo, None)
    return state


def changes_of(tool: str, call_id: str, resources: ScopedResourceContext, before: Any) -> Iterator[Written]:
    """The changes that a call has made; `before` is what `resources.begin_call()` returned for it."""
    for protocol, value, state in resources.since(before):
        try:
            yield from [Written(tool, call_id, protocol, **change) for change in _changes(value, state)]
        except Exception as error:
            yield Written(tool, call_id, protocol, lost=f"{type(error).__name__}: {error}")


def _changes(value: Any, before: Any) -> Iterator[dict[str, Any]]:
    if callable(nodes_since := getattr(value, "nodes_since", None)):
        yield from ({"file": edit} for edit in edits_of(nodes_since(before, MAX_RESTORABLE)))
    elif callable(changes_since := getattr(value, "changes_since", None)):
        if changes_since(before):
            yield {"lost": "it has changes_since(state), but not nodes_since(state, limit)"}
    else:
        after = value.snapshot()
        if after is not before and after != before:
            yield {"before": before, "after": after}
