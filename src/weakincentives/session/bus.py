"""Delivering events: an in-process bus, and observers of every session in the process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

E = TypeVar("E")

process_observers: list[Callable[[Any, object], None]] = []


class Bus:
    """Delivers each event immediately to the handlers of its type, in order of subscription.

    Anything with `dispatch(event)` can serve as a bus; this is the plain in-process one.
    """

    def __init__(self) -> None:
        self._handlers: tuple[tuple[type, Callable[[Any], None]], ...] = ()

    def subscribe(self, event_type: type[E], handler: Callable[[E], None]) -> Callable[[], None]:
        """Call the handler for events of this type and its subclasses. Returns a function that unsubscribes it."""
        entry = (event_type, handler)
        self._handlers = (*self._handlers, entry)

        def unsubscribe() -> None:
            self._handlers = tuple(other for other in self._handlers if other is not entry)

        return unsubscribe

    def dispatch(self, event: object) -> None:
        """Deliver an event. A handler that raises is logged; the others still run."""
        notify([handler for event_type, handler in self._handlers if isinstance(event, event_type)], event)


@contextmanager
def observing(callback: Callable[[Any, object], None]) -> Iterator[None]:
    """Call `callback(session, event)` for every event of every session in this process while the block runs."""
    entry = _Observer(callback)
    process_observers.append(entry)
    try:
        yield
    finally:
        process_observers.remove(entry)


def notify(callbacks: Iterable[Callable[..., None]], *arguments: object) -> None:
    """Call each callback. One that raises is logged; the others still run."""
    for callback in callbacks:
        try:
            callback(*arguments)
        except Exception:
            logger.exception("Observer %r failed on %s", callback, type(arguments[-1]).__qualname__)


class _Observer:
    """Gives a callback its own identity, so the same one can observe twice."""

    def __init__(self, callback: Callable[[Any, object], None]) -> None:
        self._callback = callback

    def __call__(self, session: Any, event: object) -> None:
        self._callback(session, event)

    def __repr__(self) -> str:
        return repr(self._callback)
