"""The tool calls that may change one resource at the same time, in all runs of this process.

A resource whose `snapshot()` is its whole state cannot say who has changed it. So a call that is
shown to a person before it counts has such a resource for itself, and a failed call restores it
only if that takes back nothing of other calls.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal

from weakincentives._base.fence import current_calls
from weakincentives.errors import SerdeError
from weakincentives.resources.binding import ResourceError, type_name
from weakincentives.serde import dump_tagged

MAX_WAIT = 60.0
"""The seconds for which a call waits until it may use a resource."""

Restoring = Literal["restore", "nothing to restore", "keep"]


@dataclass(slots=True, eq=False)
class Use:
    """The use of a resource by one call, the last of `calls`, which is inside of those before it.

    `state` is that of the resource at its beginning. If other calls have used the resource since,
    it has `company`, and `finished` has the states before and after those that have ended well.
    """

    usage: Usage  #: all uses of the resource
    protocol: type  #: the class that the resource is bound as
    calls: tuple[object, ...]
    alone: bool  #: True if no other call may use it meanwhile
    state: Any = None
    company: bool = False
    finished: list[tuple[Any, Any]] = field(default_factory=list)

    def is_inside(self, other: Use) -> bool:
        """True if the other is by a call around this one."""
        return other.calls[-1] in self.calls

    def restoring(self) -> Restoring:
        """How to take back the changes of the call, without those of others."""
        if not self.company:
            return "restore"
        now = self.usage.value.snapshot()
        expected = self.state
        for before, after in self.finished:
            if not same_state(before, expected):
                return "keep"
            expected = after
        return "nothing to restore" if same_state(now, expected) else "keep"

    def end(self, *, well: bool) -> None:
        """End the use; if the call ended `well`, what it has changed stays."""
        usage = self.usage
        is_seen = well and self.company
        after = usage.value.snapshot() if is_seen else None
        with _lock:
            usage.uses.remove(self)
            for other in usage.uses:
                if is_seen and not self.is_inside(other):
                    other.finished.append((self.state, after))
            usage.admit()


@dataclass(slots=True, eq=False)
class _Waiting:
    """A call that waits for its use; `turn` ends the wait."""

    use: Use
    turn: Future[None] = field(default_factory=Future)


@dataclass(slots=True, eq=False)
class Usage:
    """The calls that use one resource, and those that wait for it."""

    value: Any
    uses: list[Use] = field(default_factory=list)
    waiting: list[_Waiting] = field(default_factory=list)

    def is_free_for(self, use: Use) -> bool:
        """True if a call may begin; it may do so beside others, unless one of them is to be alone."""
        others = [other for other in self.uses if not use.is_inside(other)]
        return not others or not (use.alone or any(other.alone for other in others))

    def begin(self, use: Use) -> None:
        for other in self.uses:
            if not use.is_inside(other):
                other.company = use.company = True
        self.uses.append(use)

    def admit(self) -> None:
        """Let those begin that wait, in the order of their coming, as far as they may."""
        while self.waiting and self.is_free_for(self.waiting[0].use):
            first = self.waiting.pop(0)
            if first.turn.set_running_or_notify_cancel():
                self.begin(first.use)
                first.turn.set_result(None)
        if not (self.uses or self.waiting):
            _usages.pop(id(self.value), None)


_lock = threading.Lock()
# Of the resources in use; each keeps its own alive, so that no other can get its id.
_usages: dict[int, Usage] = {}


def _reset() -> None:
    """A forked child has none of its parent's calls."""
    global _lock
    _lock = threading.Lock()
    _usages.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset)


def take_use(protocol: type, value: Any, *, alone: bool) -> Generator[Callable[[], Any], Any, Use]:
    """Begin to use a resource.

    If calls of other runs are in the way, this yields a coroutine function to be awaited.
    """
    with _lock:
        usage = _usages.setdefault(id(value), Usage(value))
        use = Use(usage, protocol, current_calls(), alone)
        is_inside = any(use.is_inside(other) for other in usage.uses)
        # A call inside another does not wait for those that wait for that one.
        if usage.is_free_for(use) and (is_inside or not usage.waiting):
            usage.begin(use)
            return use
        waiting = _Waiting(use)
        usage.waiting.append(waiting)

    async def wait() -> None:
        from asyncio import wait_for, wrap_future

        try:
            await wait_for(wrap_future(waiting.turn), MAX_WAIT)
        except TimeoutError:
            raise ResourceError(
                f"{type_name(protocol)} was in use by calls of other runs for {MAX_WAIT:g} s: a call whose "
                "effects are shown to a person has a resource for itself. Give it branch(), or each run "
                "a resource of its own"
            ) from None

    try:
        yield wait
    except BaseException:
        _give_up(waiting)
        raise
    return use


def _give_up(waiting: _Waiting) -> None:
    """End a wait early; if it was over already, the use ends."""
    usage = waiting.use.usage
    with _lock:
        if waiting in usage.waiting:
            usage.waiting.remove(waiting)
        if waiting.use in usage.uses:
            usage.uses.remove(waiting.use)
        waiting.turn.cancel()
        usage.admit()


def same_state(before: Any, after: Any) -> bool:
    """True if two snapshots are of the same state."""
    if before is after:
        return True
    try:
        if before == after:
            return True
        return bool(dump_tagged(before) == dump_tagged(after))
    except (SerdeError, TypeError, ValueError):
        return False
