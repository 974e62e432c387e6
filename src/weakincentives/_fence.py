"""A fence around work that may outlive its run: once the fence is closed, further writes are refused.

A blocking handler cannot be interrupted. When its run is cancelled or its deadline passes, its fence is closed: the
handler continues in its thread, but sessions and filesystems refuse its writes.

The module also tracks which tool calls the running code works for, so that a filesystem knows whose change it makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token

from weakincentives.errors import AbandonedCallError

_current: ContextVar[Fence | None] = ContextVar("weakincentives_fence", default=None)
_calls: ContextVar[tuple[object, ...]] = ContextVar("weakincentives_calls", default=())
# Checking is skipped until there is something to check, so that ordinary writes pay nothing for it.
_armed = False


class Fence:
    """Encloses the code that runs within `with fence:`, and threads and tasks that inherit its context.

    Fences nest, and a fence may be entered repeatedly. The fence also closes as soon as `expired` returns True.
    """

    __slots__ = ("_closed", "_expired", "_parent", "_tokens")

    def __init__(self, expired: Callable[[], bool] | None = None) -> None:
        self._closed = False
        self._expired = expired
        self._parent: Fence | None = None
        self._tokens: list[Token[Fence | None]] = []

    @property
    def closed(self) -> bool:
        return (
            self._closed
            or (self._expired is not None and self._expired())
            or (self._parent is not None and self._parent.closed)
        )

    def close(self) -> None:
        global _armed
        self._closed = _armed = True

    def __enter__(self) -> Fence:
        global _armed
        _armed = _armed or self._expired is not None
        around = _current.get()
        if around is not self:
            self._parent = around
        self._tokens.append(_current.set(self))
        return self

    def __exit__(self, *_: object) -> None:
        _current.reset(self._tokens.pop())


def check_fence() -> None:
    """Raise if the calling code is behind a closed fence."""
    if not _armed:
        return
    fence = _current.get()
    if fence is not None and fence.closed:
        raise AbandonedCallError(
            "This tool call was abandoned: its run was stopped or its deadline has passed, so nothing that it still "
            "writes is kept."
        )


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
