"""An in-process bus: handlers by event type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from weakincentives.session.observers import notify

E = TypeVar("E")


class Bus:
    """Delivers events to the handlers of their type, at once and in order of subscription.

    A bus is anything with `dispatch(event)`; this is the plain one.
    """

    def __init__(self) -> None:
        self._handlers: tuple[tuple[type, Callable[[Any], None]], ...] = ()

    def subscribe(self, event_type: type[E], handler: Callable[[E], None]) -> Callable[[], None]:
        """Call the handler for events of this type and its subclasses; the result of this call ends that."""
        entry = (event_type, handler)
        self._handlers = (*self._handlers, entry)

        def unsubscribe() -> None:
            self._handlers = tuple(other for other in self._handlers if other is not entry)

        return unsubscribe

    def dispatch(self, event: object) -> None:
        """Deliver an event; a handler that raises is logged and does not keep the others from hearing."""
        notify([handler for event_type, handler in self._handlers if isinstance(event, event_type)], event)
