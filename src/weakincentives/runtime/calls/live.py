"""A tool call under way: what of it can be stopped and taken back."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from weakincentives._base.threads import Turns
from weakincentives.resources import PreviewScope, ResourceSnapshot, ScopedResourceContext, Use
from weakincentives.runtime.calls.call import CheckedCall, RanCall
from weakincentives.runtime.loop.bridge import HandlerCall, Latch
from weakincentives.runtime.messages import Message
from weakincentives.session import Session, SessionBranch, Snapshot


class Branch(NamedTuple):
    """The stand-ins that a call changes in place of the session and the resources."""

    session: Session
    resources: ScopedResourceContext


class Before(NamedTuple):
    """The state before a call, to which a failed one is taken back."""

    session: Snapshot
    resources: ResourceSnapshot


class Preview(NamedTuple):
    """The stand-ins of a call that is shown, and the state from which its changes count."""

    session: SessionBranch
    resources: PreviewScope
    base: Snapshot


@dataclass(slots=True, eq=False)
class LiveCall:
    """A call that has started: what it runs, what it may change, and the state to which it is taken back.

    Whoever is the first to `claim_end` ends it; others wait until it has `ended`. A read-only call
    has no state `before`, nor has one that is a `preview`. Unless it runs `beside` others on a
    branch, it has its `turn` among the session's transactions. `uses` are those of resources with a
    whole state; where other calls have changed it too, `left` names them after a rollback.
    """

    checked: CheckedCall
    owner: object
    session: Session
    resources: ScopedResourceContext
    handler: HandlerCall
    before: Before | None = None
    preview: Preview | None = None
    beside: bool = False
    turn: Turns | None = None
    uses: tuple[Use, ...] = ()
    left: tuple[str, ...] = ()
    ended: Latch = field(default_factory=Latch)
    _unclaimed: threading.Lock = field(default_factory=threading.Lock)

    def claim_end(self) -> bool:
        return self._unclaimed.acquire(blocking=False)

    def end_uses(self, *, well: bool) -> None:
        """Let others use what the call has used; if it ended `well`, its changes stay."""
        uses, self.uses = self.uses, ()
        for use in uses:
            use.end(well=well)

    def release(self) -> None:
        """Let others go on, and the next transaction begin, unless another thread has done so."""
        if self.preview is not None:
            self.preview.resources.take_back()
        self.end_uses(well=False)
        turn, self.turn = self.turn, None
        if turn is not None:
            turn.end()

    def restore(self) -> bool:
        """Restore session and resources to their state before the call; a read-only call has nothing to restore.

        The conversation stays: the user may have spoken in the meantime. So does a whole state that
        calls of other runs have changed too.
        """
        if self.preview is not None:
            self.preview.resources.take_back()
            return True
        if self.before is None:
            return False
        others: list[Any] = []
        for use in self.uses:
            restoring = use.restoring()
            if restoring != "restore":
                others.append(use.usage.value)
            if restoring == "keep":
                self.left = (*self.left, use.protocol.__qualname__)
        self.session.restore(self.before.session, keep=(Message,))
        self.resources.restore(self.before.resources, keep=others)
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
