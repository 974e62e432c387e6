"""How much of a queue runs at once."""

from __future__ import annotations

from dataclasses import dataclass

from weakincentives.durable.errors import DurableError


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Loops at a time per worker, loops at a time per tenant over all workers, and starts per second over all.

    SQLite counts time in whole seconds, so there the rate holds on average only.
    """

    concurrency: int = 8
    tenant_concurrency: int | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        for name in ("concurrency", "tenant_concurrency"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise DurableError(f"QueueLimits.{name} is {value}; give at least 1.")
        if self.rate is not None and self.rate <= 0:
            raise DurableError(f"QueueLimits.rate is {self.rate}; give more than 0 starts per second, or None.")
