"""A fence around work that may outlive its run: once the fence is closed, further writes are refused.

A blocking handler cannot be interrupted. When its run is cancelled or its deadline passes, its fence is closed: the
handler continues in its thread, but sessions and filesystems refuse its writes. A fence also keeps
the handler of a call that is shown to a person before it counts from changing the real session and
the real files: it has branches of them.

The module also tracks which tool calls the running code works for, so that a filesystem knows whose change it makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from math import inf

from weakincentives.errors import AbandonedCallError, UnshownChangeError

_current: ContextVar[Fence | None] = ContextVar("weakincentives_fence", default=None)
_calls: ContextVar[tuple[object, ...]] = ContextVar("weakincentives_calls", default=())
# Checking is skipped until there is something to check, so that ordinary writes pay nothing for it.
_armed = False


class Fence:
    """Encloses the code that runs within `with fence:`, and threads and tasks that inherit its context.

    Fences nest, and a fence may be entered repeatedly. The fence also closes once no `seconds` are
    left. What it protects cannot be changed from inside, whether it is closed or not.
    """

    __slots__ = ("_closed", "_parent", "_protected", "_seconds", "_tokens")

    def __init__(self, seconds: Callable[[], float] | None = None) -> None:
        self._closed = False
        self._protected: list[object] = []
        self._seconds = seconds
        self._parent: Fence | None = None
        self._tokens: list[Token[Fence | None]] = []

    @property
    def closed(self) -> bool:
        return (
            self._closed
            or (self._seconds is not None and self._seconds() <= 0)
            or (self._parent is not None and self._parent.closed)
        )

    def close(self) -> None:
        global _armed
        self._closed = _armed = True

    def protect(self, *things: object) -> None:
        """Refuse changes of these, which are compared by identity."""
        global _armed
        self._protected.extend(things)
        _armed = True

    def protects(self, thing: object) -> bool:
        fence: Fence | None = self
        while fence is not None:
            if any(protected is thing for protected in fence._protected):
                return True
            fence = fence._parent
        return False

    def lift_limit(self) -> None:
        """Stay open, unless it is closed, however much time has passed."""
        # Not None: others may be reading it.
        self._seconds = lambda: inf

    def __enter__(self) -> Fence:
        global _armed
        _armed = _armed or self._seconds is not None
        around = _current.get()
        if around is not self:
            self._parent = around
        self._tokens.append(_current.set(self))
        return self

    def __exit__(self, *_: object) -> None:
        _current.reset(self._tokens.pop())

    def leave(self) -> Token[Fence | None]:
        """Stop applying to the calling code, unlike the fences around it, until `enter_again`."""
        current = _current.get()
        return _current.set(self._parent if current is self else current)

    def enter_again(self, left: Token[Fence | None]) -> None:
        _current.reset(left)


def current_fence() -> Fence | None:
    """The innermost fence around the calling code."""
    return _current.get()


def check_fence(changed: object = None) -> None:
    """Raise if the calling code is behind a closed fence, or one that protects what is changed."""
    if not _armed:
        return
    fence = _current.get()
    if fence is None:
        return
    if fence.closed:
        raise AbandonedCallError(
            "This tool call was abandoned: its run was stopped or its time is over, so nothing that it still "
            "writes is kept."
        )
    if changed is not None and fence.protects(changed):
        raise UnshownChangeError(
            "This call is shown to a person before it counts, so it may change only what it gets from "
            "its context: context.session, context.filesystem and context.resources. It has changed "
            "the session or files past that; take them from the context, or declare the tool with "
            "approval='call'."
        )


def seconds_left() -> float:
    """The time until a fence around the calling code closes; infinite if none has a deadline."""
    left, fence = inf, _current.get()
    while fence is not None:
        if fence._seconds is not None:
            left = min(left, fence._seconds())
        fence = fence._parent
    return left


@contextmanager
def working_for(call: object) -> Iterator[None]:
    """Within the block, and in threads and tasks that inherit its context, changes belong to this tool call."""
    token = _calls.set((*_calls.get(), call))
    try:
        yield
    finally:
        _calls.reset(token)


def current_calls() -> tuple[object, ...]:
    """The tool calls that the running code works for, outermost first."""
    return _calls.get()
