"""When and how a conversation is kept below the size of its model's context window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from weakincentives.runtime.model import Model


@dataclass(frozen=True, slots=True)
class Compaction:
    """How a conversation is kept below the size of its model's context window.

    Requests above `at` times the `window` (in tokens) are shortened to half of that; without a
    window, it is the one that the adapter knows. What an overflow reveals counts if it is less. The
    last `keep` exchanges stay as they are, or fewer if these do not fit; in a run of its own, a turn
    counts as an exchange. `by` makes summaries: "provider" uses the provider's own compaction, or
    the conversation's model where there is none; or pass an adapter, or a function that gets the
    messages and returns text, sync or async. With `when="pays"`, a conversation is also shortened
    when that is cheaper at the model's prices.
    """

    window: int | None = None
    at: float = 0.8
    keep: int = 4
    by: Any = "provider"
    when: Literal["full", "pays"] = "full"

    def __post_init__(self) -> None:
        if self.window is not None and (type(self.window) is not int or self.window < 1):
            raise ValueError(f"Compaction window must be a number of tokens or None, got {self.window!r}")
        if type(self.at) not in (int, float) or not 0 < self.at <= 1:
            raise ValueError(f"Compaction at must be a share of the window, above 0 and up to 1, got {self.at!r}")
        if type(self.keep) is not int or self.keep < 1:
            raise ValueError(f"Compaction keep must be at least 1 exchange, got {self.keep!r}")
        if self.when not in ("full", "pays"):
            raise ValueError(f"Compaction when must be 'full' or 'pays', got {self.when!r}")
        if self.by != "provider" and not callable(self.by) and not isinstance(self.by, Model):
            raise TypeError(f"Compaction by must be 'provider', an adapter or a function, got {self.by!r}")
