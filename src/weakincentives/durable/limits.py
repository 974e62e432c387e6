"""How much of a queue runs at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Loops at a time per worker, loops at a time per tenant over all workers, and starts per second over all.

    SQLite counts time in whole seconds, so there the rate holds on average only.
    """

    concurrency: int = 8
    tenant_concurrency: int | None = None
    rate: float | None = None
