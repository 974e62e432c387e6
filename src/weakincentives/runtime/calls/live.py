"""A tool call under way: what of it can be stopped and taken back."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from weakincentives._base.threads import Turns
from weakincentives.resources import ResourceSnapshot, ScopedResourceContext
from weakincentives.runtime.calls.call import CheckedCall, RanCall
from weakincentives.runtime.loop.bridge import HandlerCall, Latch
from weakincentives.runtime.messages import Message
from weakincentives.session import Session, Snapshot


class Branch(NamedTuple):
    """The stand-ins that a call changes in place of the session and the resources."""

    session: Session
    resources: ScopedResourceContext


class Before(NamedTuple):
    """The state before a call, to which a failed one is taken back."""

    session: Snapshot
    resources: ResourceSnapshot


@dataclass(slots=True, eq=False)
class LiveCall:
    """A call that has started: what it runs, what it may change, and the state to which it is taken back.

    Whoever is the first to `claim_end` ends it; others wait until it has `ended`. A read-only call has no state
    `before`. Unless it has a branch of the session, it has its `turn` among the session's transactions.
    """

    checked: CheckedCall
    owner: object
    session: Session
    resources: ScopedResourceContext
    handler: HandlerCall
    before: Before | None
    branched: bool = False
    turn: Turns | None = None
    ended: Latch = field(default_factory=Latch)
    _unclaimed: threading.Lock = field(default_factory=threading.Lock)

    def claim_end(self) -> bool:
        return self._unclaimed.acquire(blocking=False)

    def end_turn(self) -> None:
        """Let the next transaction begin; not again if another thread has ended this one."""
        turn, self.turn = self.turn, None
        if turn is not None:
            turn.end()

    def restore(self) -> bool:
        """Restore session and resources to their state before the call; a read-only call has nothing to restore.

        The conversation stays: the user may have spoken in the meantime.
        """
        if self.before is None:
            return False
        self.session.restore(self.before.session, keep=(Message,))
        self.resources.restore(self.before.resources)
        return True

    def stopped(self, why: str, **facts: Any) -> RanCall:
        """The call as one that did not end by itself."""
        text = f"Not run: {why}." if self.handler.dropped else f"Not finished: {why}.{self._unknown}"
        return self.checked.failed(text, **facts)

    def late(self) -> RanCall:
        """The call as one whose tool's timeout is over."""
        seconds = f"{self.handler.timeout:g} s"
        if self.handler.dropped:
            return self.stopped(f"no thread was free within {seconds}")
        return self.checked.failed(f"Tool '{self.checked.tool.name}' did not end within {seconds}.{self._unknown}")

    @property
    def _unknown(self) -> str:
        tool = self.checked.tool
        undone = tool.read_only or (tool.compensate is not None and not self.handler.outlives)
        return "" if undone else " Whether this call had an effect is not known."
