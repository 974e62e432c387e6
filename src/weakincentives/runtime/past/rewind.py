"""Going back in a conversation to one of its points, undoing that, and forking."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

from weakincentives.errors import OutsideEffectsError, SessionError
from weakincentives.filesystem import (
    MAX_RESTORABLE,
    FileChange,
    Filesystem,
    InMemoryFilesystem,
    Retreat,
    retreat,
)
from weakincentives.prompt import Prompt, Tool
from weakincentives.prompt.template import digest_of
from weakincentives.resources import ScopedResourceContext
from weakincentives.runtime.adapter import ProviderAdapter
from weakincentives.runtime.calls.call import NO_RESULT, CheckedCall
from weakincentives.runtime.calls.executor import ToolExecutor
from weakincentives.runtime.events import (
    ContextWindow,
    Exposure,
    ModelWindows,
    Rewound,
    RunEvent,
    SectionsExposed,
    ToolInvoked,
    Undone,
)
from weakincentives.runtime.live import LiveRun
from weakincentives.runtime.loop.bridge import call_sync
from weakincentives.runtime.messages import ToolCall
from weakincentives.runtime.past.points import UNSTORED, OutsideCall, Point, RewindUndo, Written, state_of
from weakincentives.runtime.state import ConversationId, RunState, conversation_of
from weakincentives.session import Session, Snapshot

UNBOUND = "the resource that it belongs to is not bound"
_INTERNAL = (
    *(Point, Written, OutsideCall, RewindUndo, Undone),
    *(RunState, ConversationId, Exposure, ContextWindow, ModelWindows),
)


@dataclass(frozen=True, slots=True)
class RewindReport:
    """The difference that a rewind makes, or would make.

    `files` are the files that go back, and `slices` the types whose items change. `left_alone` are the files, and other
    things, that should go back but stay as they are, each with the reason. `outside` are calls with effects outside.
    """

    files: tuple[FileChange, ...] = ()
    slices: tuple[type, ...] = ()
    left_alone: Mapping[str, str] = field(default_factory=dict)
    outside: tuple[OutsideCall, ...] = ()


@dataclass(slots=True)
class WayBack:
    """The way back over what tools wrote, resource by resource."""

    resources: ScopedResourceContext | None
    retreats: dict[type, Retreat] = field(default_factory=dict)
    states: dict[type, tuple[Any, Any]] = field(default_factory=dict)
    left_alone: dict[str, str] = field(default_factory=dict)

    @classmethod
    def over(cls, journal: Sequence[Written], resources: ScopedResourceContext | None) -> WayBack:
        """The way back over these changes, oldest first."""
        way = cls(resources)
        for protocol in dict.fromkeys(each.protocol for each in journal):
            own = [each for each in journal if each.protocol is protocol]
            value: Any = None if resources is None else resources.get_optional(protocol)
            if value is None:
                way.left_alone.update((each.name, UNBOUND) for each in own)
                continue
            lost = {each.name: each.lost for each in own if each.lost}
            way.left_alone.update(lost)
            if edits := [each.file for each in own if each.file is not None]:
                way.retreats[protocol] = retreat(edits, partial(value.node, limit=MAX_RESTORABLE))
            elif not lost and value.snapshot() == own[-1].after:
                way.states[protocol] = own[0].before, own[-1].after
            elif not lost:
                way.left_alone[protocol.__qualname__] = "something else has changed it since"
        return way

    def go(self) -> tuple[Written, ...]:
        """Go back; returns the changes by which this is undone. If one fails, none is made."""
        undo: list[Written] = []
        try:
            for protocol, way in self.retreats.items():
                edits = way.make(self._get(protocol))
                undo += [Written("", "", protocol, edit) for edit in edits]
            for protocol, (before, after) in self.states.items():
                self._get(protocol).restore(before)
                undo.append(Written("", "", protocol, None, after, before))
        except BaseException:
            if undo:
                WayBack.over(undo, self.resources).go()
            raise
        return tuple(undo)

    def report(
        self, slices: tuple[type, ...], outside: tuple[OutsideCall, ...], left_alone: Mapping[str, str]
    ) -> RewindReport:
        """The report on this way, and on what else changes or is left alone."""
        files = tuple(change for each in self.retreats.values() for change in each.files)
        left = {path: why for each in self.retreats.values() for path, why in each.left_alone.items()}
        return RewindReport(files, (*slices, *self.states), {**self.left_alone, **left, **left_alone}, outside)

    def _get(self, protocol: type) -> Any:
        assert self.resources is not None
        return self.resources.get(protocol)


class Rewindable:
    """The part of a conversation that goes back to its points, undoes that, and forks."""

    prompt: Prompt[Any]
    session: Session
    adapter: ProviderAdapter
    outside: tuple[OutsideCall, ...] = ()
    """Of a fork, the calls after its point that have acted outside: they have happened, and it does not know."""

    @property
    def conversation_id(self) -> str:
        raise NotImplementedError

    def twin(self, prompt: Prompt[Any], session: Session) -> Self:
        """A conversation with the same settings on another session."""
        raise NotImplementedError

    def checkpoints(self) -> tuple[Point, ...]:
        """The points to which the conversation can go back, oldest first: one for each user message and each turn."""
        return self.session[Point].all()

    def preview(self, point: Point | str) -> RewindReport:
        """The changes that a rewind would make."""
        found = self._find(point)
        with self._waiting("preview"), self._way_to(found.state) as way:
            return way.report(self._changed(found.state), self.outside_calls(found), self._unbindable(found))

    def rewind(
        self,
        point: Point | str,
        *,
        compensate: bool = False,
        over_effects: bool = False,
    ) -> RewindReport:
        """Go back to a point: messages, state, files, visibility, tools, params and pending calls together.

        After a message's point, send it again, or another; after a turn's point, `send()` repeats its
        request. If later calls have acted outside, such as a payment, this is an
        `OutsideEffectsError`, since they would happen twice. With `compensate`, these are undone by
        their tools' `compensate`, newest first; with `over_effects`, what is not undone stays.
        """
        for name, flag in (("compensate", compensate), ("over_effects", over_effects)):
            if not isinstance(flag, bool):
                raise TypeError(f"{name} must be True or False, got {flag!r}")
        found, session, prompt = self._find(point), self.session, self.prompt
        with self._waiting("rewind"), self._way_to(found.state) as way:
            slices, outside = self._changed(found.state), self.outside_calls(found)
            if not over_effects:
                self._check_outside(outside, compensate=compensate)
            if compensate:
                # The newest first.
                outside = tuple(reversed([self._compensated(call) for call in reversed(outside)]))
            points = session[Point].view()
            later = points[[each.id for each in points].index(found.id) :]
            undone = {each.run_id: each.turn for each in reversed(later)}
            undo = RewindUndo(
                state=state_of(session),
                written=way.go(),
                undone=tuple(reversed(undone.items())),
                point=found.id,
                params=prompt.params,
                params_digest=prompt.params_digest,
            )
            left = self._go_to(found, undo.undone)
            session[Undone].append(Undone(found.timestamp, session.timestamp()))
            session[RewindUndo].seed(undo)
            return way.report(slices, outside, left)

    def undo_rewind(self) -> RewindReport:
        """Undo the last rewind, if no message was sent since."""
        undo = self.session[RewindUndo].latest()
        if undo is None:
            raise SessionError("There is no rewind to undo; one can be undone until the next message is sent")
        with self._waiting("undo_rewind"), self._way_over(undo.written) as way:
            slices = self._changed(undo.state)
            way.go()
            self.session[RewindUndo].clear()
            return way.report(slices, (), self._go_to(undo, undo.undone, back=False))

    def fork(self, point: Point | str | None = None) -> Self:
        """A second conversation from a point on, or from here, with an id, points and in-memory files of its own.

        Files on disk are shared, and stay as they are.
        """
        found = None if point is None else self._find(point)
        with self._waiting("fork"):
            session, prompt = self.session.clone(), copy(self.prompt)
            if found is not None:
                _truncate(session, found)
                self._rebind(prompt, found)
            session[RewindUndo].clear()
            _name_conversation(session, session.session_id)
            since = () if found is None else self._journal(found.state)
            own = [each.file for each in since if each.protocol is Filesystem and each.file is not None]
            with self._opened():
                files = self.prompt.resources.of_session(self.session).get_optional(Filesystem)
            if isinstance(files, InMemoryFilesystem):
                other = session.workspace
                if files is not self.session.workspace:
                    other = InMemoryFilesystem()
                    other.restore(files.snapshot())
                    prompt.bind(resources={Filesystem: other})
                retreat(own, other.node).make(other)
            twin = self.twin(prompt, session)
            twin.outside = () if found is None else self.outside_calls(found)
            return twin

    def _find(self, point: Point | str) -> Point:
        name = point.id if isinstance(point, Point) else point
        points = self.session[Point].view()
        found = next((each for each in points if each.id == name), None)
        if found is None:
            last = f"; the last of {len(points)} is {points[-1].id!r}" if points else ""
            raise SessionError(f"The conversation has no point {name!r}{last}; checkpoints() lists them")
        return found

    @contextmanager
    def _waiting(self, what: str) -> Iterator[None]:
        """Claim the session, which is refused while a run is under way."""
        with self.session.claim(f"{what} of {self.prompt.name}"):
            yield

    @contextmanager
    def _opened(self) -> Iterator[None]:
        self.prompt.resources.enter(self.session)
        try:
            yield
        finally:
            self.prompt.resources.__exit__(None, None, None)

    def _journal(self, state: Snapshot) -> tuple[Written, ...]:
        return self.session[Written].view()[len(state[Written]) :]

    def _way_to(self, state: Snapshot) -> AbstractContextManager[WayBack]:
        return self._way_over(self._journal(state))

    @contextmanager
    def _way_over(self, journal: Sequence[Written]) -> Iterator[WayBack]:
        if not journal:
            yield WayBack(None)
            return
        with self._opened():
            yield WayBack.over(journal, self.prompt.resources.of_session(self.session))

    def outside_calls(self, point: Point) -> tuple[OutsideCall, ...]:
        """The calls since a point that had effects outside."""
        return tuple(self.session[OutsideCall].view()[len(point.state[OutsideCall]) :])

    def _check_outside(self, outside: Sequence[OutsideCall], *, compensate: bool) -> None:
        """Raise if calls have acted outside, unless all of that is to be undone."""
        undoable: dict[str, bool] = {}
        for call in outside:
            undoable[f"'{call.tool}' ({call.call_id})"] = self._compensation_of(call) is not None
        staying = [name for name, is_undoable in undoable.items() if not (compensate and is_undoable)]
        if not staying:
            return
        way_out = "pass over_effects=True to go back all the same"
        if all(undoable.values()):
            way_out += ", or compensate=True to have them undone"
        raise OutsideEffectsError(
            f"Going back would pass over calls that have acted outside, which stays: {', '.join(staying)}; {way_out}",
            outside=tuple(outside),
        )

    def _changed(self, state: Snapshot) -> tuple[type, ...]:
        """The types whose items differ from those of an earlier state."""
        now, found = self.session.state(logs=False).marks, []
        for kind in {**now, **state.marks}:
            items, length = now.get(kind, ([], 0))
            old, old_length = state.marks.get(kind) or self.session.initial(kind)
            same = length == old_length and (items is old or items[:length] == old[:length])
            if not same and kind not in _INTERNAL:
                found.append(kind)
        return tuple(found)

    def _unbindable(self, target: Point | RewindUndo) -> dict[str, str]:
        """The params, if those of a point were bound in another process and could not be stored."""
        known = (self.prompt.params_digest, digest_of(target.params))
        return {} if target.params_digest in known else {"params": UNSTORED}

    def _rebind(self, prompt: Prompt[Any], target: Point | RewindUndo) -> None:
        if not self._unbindable(target) and target.params_digest != prompt.params_digest:
            prompt.rebind(target.params)

    def _go_to(
        self, target: Point | RewindUndo, undone: Iterable[tuple[str, int]], *, back: bool = True
    ) -> dict[str, str]:
        """Bring session and params to a state, and record it; returns what could not be."""
        session, mine, left = self.session, self.conversation_id, self._unbindable(target)
        state: Snapshot = target.state
        now, then = session[Exposure].latest() or Exposure(), (state[Exposure] or (Exposure(),))[-1]
        changes = {path: then[path] for path in {**now, **then} if now[path] != then[path]}
        run = session[RunState].latest()

        def stamp() -> dict[str, Any]:
            return {"timestamp": session.timestamp(), "conversation_id": mine}

        if changes:
            # Exposed first: reduced from events, or restored, the slice is the same.
            whose = "" if run is None else run.run_id
            session.dispatch(SectionsExposed(changes, "rewound" if back else "undone", run_id=whose, **stamp()))
        session.restore(state, keep=(RewindUndo, ModelWindows))
        _name_conversation(session, mine)
        self._rebind(self.prompt, target)
        for run_id, turn in undone:
            point, since = (target.id, target.timestamp) if isinstance(target, Point) else (target.point, 0.0)
            session.dispatch(Rewound(turn, point, since, back, run_id=run_id, **stamp()))
        return left

    def _compensation_of(self, call: OutsideCall) -> tuple[LiveRun, CheckedCall] | None:
        """The call as its tool can compensate it, and the run that makes it so; None if it cannot."""
        live = LiveRun(replace(self.adapter.run_spec(self.prompt, {}), run_id=call.run_id), self.session)
        state = self.session[RunState].latest()
        if state is not None:
            live.presentation.keep_names(state.used_names)
        tool = live.find_tool(call.section_key, call.tool)
        if not isinstance(tool, Tool) or tool.compensate is None:
            return None
        for event in reversed(self.session[ToolInvoked].view()):
            if (event.run_id, event.call_id) == (call.run_id, call.call_id):
                made = ToolCall(call.call_id, call.tool, event.arguments)
                return live, CheckedCall(made, tool, event.params, 0.0, event.arguments)
        return None

    def _compensated(self, call: OutsideCall) -> OutsideCall:
        """Undo the effects outside of a call, as if it had failed."""
        compensation = self._compensation_of(call)
        if compensation is None:
            return replace(call, compensation="not undone: its tool cannot compensate, or is no tool of this prompt")
        live, checked = compensation
        with self.prompt.resources.for_run(self.session, live.prompt) as live.resources_opened:
            steps = ToolExecutor(live).calls.compensate(checked, checked.ran(NO_RESULT))
            ran = call_sync(steps, live.loop_thread)
        return replace(call, compensation=ran.compensation)


def _name_conversation(session: Session, conversation_id: str) -> None:
    """Give the conversation of a session this id."""
    state = session[RunState].latest()
    if conversation_of(session) == conversation_id:
        return
    if state is None:
        session[ConversationId].seed(ConversationId(conversation_id))
    else:
        session[RunState].seed(state.updated({"conversation_id": conversation_id}))


def _truncate(session: Session, point: Point) -> None:
    """Bring a copy of a session to a point, as if nothing had happened since."""
    session.restore(point.state)
    for kind in session.state().slices:
        if issubclass(kind, RunEvent):
            session[kind].clear(lambda event: event.timestamp > point.timestamp)
