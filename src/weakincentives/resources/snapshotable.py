"""The protocol of resources that take part in a tool's transaction."""

from __future__ import annotations

from typing import Any, Protocol, TypeGuard, runtime_checkable


@runtime_checkable
class Snapshotable(Protocol):
    """Anything that can say what it holds now and go back to it later.

    `snapshot()` runs before every tool call that is not read-only, so it should be cheap.
    """

    def snapshot(self) -> Any: ...

    def restore(self, snapshot: Any, /) -> object: ...


def is_snapshotable(value: object) -> TypeGuard[Snapshotable]:
    """The same answer as `isinstance(value, Snapshotable)`, without the cost of a protocol check; classes are not."""
    kind = type(value)
    return callable(getattr(kind, "snapshot", None)) and callable(getattr(kind, "restore", None))
