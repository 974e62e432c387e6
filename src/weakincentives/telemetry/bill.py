"""The cost of a run in US dollars, and what the same run would have cost with everything open.

The open run is that of the ledger: it has no turns that only opened sections. Its requests repeat each other in full,
so what they read from the cache follows from the shares that this run measured: of its first request, and of what
later requests repeated where nothing changed their beginning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from weakincentives.limits import Prices, TokenUsage
from weakincentives.runtime import Ledger, RunHistory
from weakincentives.runtime.spi import prices_for


@dataclass(frozen=True, slots=True)
class Bill:
    """The cost of a run, and that with everything open, its cache included; `saved` may be negative."""

    cost: float  #: in US dollars
    open_cost: float  #: with everything open, in US dollars

    @property
    def saved(self) -> float:
        return self.open_cost - self.cost


def bill_of(history: RunHistory, ledger: Ledger, prices: Mapping[str, Prices] | None = None) -> Bill | None:
    """The bill of a run; None if the price of one of its models is not known."""
    models = {turn.called.model for turn in history.turns}
    known = {model: price for model in models if (price := prices_for(model, prices)) is not None}
    if not models or len(known) < len(models):
        return None
    cost, open_cost, before = 0.0, 0.0, 0
    first, again = _cached_shares(history)
    for turn, row in zip(history.turns, ledger.rows, strict=True):
        price, usage = known[turn.called.model], turn.called.usage
        cost += price.cost(usage)
        if (full := row.full_prompt_tokens) is not None:
            cached = round(min(before, full) * again if before else full * first)
            open_cost += price.cost(TokenUsage(full, usage.output_tokens, cached))
            before = full
    return Bill(cost, open_cost)


def _cached_shares(history: RunHistory) -> tuple[float, float]:
    """The shares that came from the cache: of the first request, and of what a later one repeated."""
    usages = [turn.called.usage for turn in history.turns]
    first = usages[0].cached_tokens / max(1, usages[0].input_tokens) if usages else 0.0
    repeated = [
        (min(sent.cached_tokens, before.input_tokens), min(before.input_tokens, sent.input_tokens))
        for (before, sent), turn in zip(pairwise(usages), history.turns[1:], strict=True)
        if not turn.route
    ]
    whole = sum(tokens for _, tokens in repeated)
    return min(1.0, first), min(1.0, sum(cached for cached, _ in repeated) / whole) if whole else min(1.0, first)
