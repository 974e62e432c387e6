"""The changes of each tool call, so that a call that fails undoes its own changes and nobody else's."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from weakincentives._base.fence import current_calls
from weakincentives.filesystem.protocol import Parts, StaleFilesError, join

S = TypeVar("S")


@dataclass(eq=False)
class CallMark(Generic[S]):
    """Stands for a tool call in progress, for as long as the mark is referenced.

    `others` are the paths that others have changed meanwhile, if that is watched.
    """

    journal: Changes[S]
    call: object
    others: set[Parts] = field(default_factory=set)


class Changes(Generic[S]):
    """The changes of the calls in progress.

    For each path, `_found` lists what the calls found there before they changed it, oldest first, with all calls that a
    change belongs to: a run inside a tool also works for that tool. What nobody can put back any more is forgotten. The
    filesystem holds `lock` when it calls a method.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._open: dict[object, tuple[weakref.ref[CallMark[S]], set[Parts]]] = {}
        self._watching: dict[object, set[Parts]] = {}
        self._ended: deque[tuple[object, weakref.ref[CallMark[S]]]] = deque()
        self._found: dict[Parts, list[tuple[tuple[object, ...], S]]] = {}

    @property
    def in_progress(self) -> bool:
        """True if a call is in progress."""
        return bool(self._open)

    def begin(self, *, watch: bool = False) -> CallMark[S]:
        """The mark of the current call."""
        if self._ended:
            self._drop_ended()
        call = current_calls()[-1]
        mark = self._open[call][0]() if call in self._open else None
        if mark is None:
            mark, ended = CallMark(self, call), self._ended
            # The callback may come at any time, even while this thread holds the lock and changes the dictionaries.
            self._open[call] = weakref.ref(mark, lambda ref: ended.append((call, ref))), set()
        if watch:
            self._watching[call] = mark.others
        return mark

    def record(self, parts: Parts, save: Callable[[], S]) -> None:
        """Note that a path is about to change; `save` returns what is there."""
        if self._ended:
            self._drop_ended()
        if not self._open:
            return
        calls = self._still_open(current_calls())
        for call, others in self._watching.items():
            if call not in calls:
                others.add(parts)
        found = self._found.get(parts)
        if not calls:
            self._found.pop(parts, None)
        elif found is None or found[-1][0] != calls:
            self._found[parts] = [*self._settled(parts), (calls, save())]
            for call in calls:
                self._open[call][1].add(parts)

    def restore(self, mark: CallMark[S]) -> dict[Parts, S]:
        """Forget what the call changed; returns what to put back where nobody else has made the last change."""
        states: dict[Parts, S] = {}
        paths = self._open[mark.call][1]
        for parts in paths:
            found = self._settled(parts)
            for index in reversed(range(len(found))):
                calls, state = found[index]
                if mark.call not in calls:
                    continue
                del found[index]
                if index == len(found):
                    states[parts] = state
                else:
                    # If the later change is undone too, what it found must not come back.
                    found[index] = found[index][0], state
            self._settled(parts)
        for call, others in self._watching.items():
            if call is not mark.call:
                others.update(paths)
        paths.clear()
        return states

    def made_by(self, mark: CallMark[S], now: Callable[[Parts], S]) -> dict[Parts, tuple[S, S]]:
        """The states before and after the call of the paths that it changed; `now` returns the current state.

        Where others have made changes in between, the last ones of the call count, those that `restore` would undo.
        """
        made: dict[Parts, tuple[S, S]] = {}
        stale: list[str] = []
        for parts in self._open[mark.call][1]:
            found = self._settled(parts)
            own = [index for index, (calls, _) in enumerate(found) if mark.call in calls]
            if not own:
                # Whoever changed it later has ended, so what this call had found is forgotten.
                stale.append(join(parts))
                continue
            first = last = own.pop()
            while own and own[-1] == first - 1:
                first = own.pop()
            made[parts] = found[first][1], found[last + 1][1] if last + 1 < len(found) else now(parts)
        if stale:
            raise StaleFilesError(sorted(stale))
        return made

    def _drop_ended(self) -> None:
        while self._ended:
            call, mark = self._ended.popleft()
            if self._open[call][0] is mark:
                self._watching.pop(call, None)
                for parts in self._open.pop(call)[1]:
                    self._settled(parts)

    def _settled(self, parts: Parts) -> list[tuple[tuple[object, ...], S]]:
        """The saved states at a path that an open call may still restore."""
        kept: list[tuple[tuple[object, ...], S]] = []
        for calls, state in self._found.pop(parts, ()):
            still_open = self._still_open(calls)
            if not still_open:
                kept = []
            elif not kept or kept[-1][0] != still_open:
                kept.append((still_open, state))
        if kept:
            self._found[parts] = kept
        return kept

    def _still_open(self, calls: tuple[object, ...]) -> tuple[object, ...]:
        for call in calls:
            if call not in self._open:
                return tuple(call for call in calls if call in self._open)
        return calls
