"""Who hears of events: observers of one session and of the whole process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

logger = logging.getLogger(__name__)

watchers: list[Callable[[Any, object], None]] = []


@contextmanager
def observing(callback: Callable[[Any, object], None]) -> Iterator[None]:
    """Hear every event of every session in this process, as `callback(session, event)`, while the block runs."""
    entry = _Watcher(callback)
    watchers.append(entry)
    try:
        yield
    finally:
        watchers.remove(entry)


def notify(callbacks: Iterable[Callable[..., None]], *arguments: object) -> None:
    """Call each; one that raises is logged and does not keep the others from hearing."""
    for callback in callbacks:
        try:
            callback(*arguments)
        except Exception:
            logger.exception("Observer %r failed on %s", callback, type(arguments[-1]).__qualname__)


class _Watcher:
    """A callback with an identity of its own, so that the same one may watch twice."""

    def __init__(self, callback: Callable[[Any, object], None]) -> None:
        self._callback = callback

    def __call__(self, session: Any, event: object) -> None:
        self._callback(session, event)

    def __repr__(self) -> str:
        return repr(self._callback)
