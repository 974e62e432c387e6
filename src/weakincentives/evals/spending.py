"""Spending: the tokens and dollars of model calls, counted for runs and for the judges that score them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from weakincentives.limits import Deadline, Prices, TokenUsage
from weakincentives.runtime import ModelCalled, SectionsRanked
from weakincentives.runtime.spi import prices_for
from weakincentives.session import Session


@dataclass(slots=True)
class Spending:
    """The tokens of model calls and their cost in US dollars; the cost is None once the price of one is unknown.

    `prices` come before the listed ones. `deadline` is that of the judges that are counted here.
    """

    prices: Mapping[str, Prices] | None = None
    deadline: Deadline | None = None
    usage: TokenUsage = field(default_factory=TokenUsage)  #: tokens so far
    cost: float | None = 0.0  #: in US dollars so far
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, session: Session) -> None:
        """Count all model calls and rankings on a session, runs inside others included."""
        with self._lock:
            for call in session[ModelCalled].all():
                known = prices_for(call.model, self.prices)
                self._count(call.usage, None if known is None else known.cost(call.usage))
            for ranking in session[SectionsRanked].all():
                self._count(ranking.usage, ranking.cost)

    def _count(self, usage: TokenUsage, cost: float | None) -> None:
        self.usage += usage
        self.cost = None if self.cost is None or cost is None else self.cost + cost


_JUDGES: ContextVar[Spending | None] = ContextVar("judges", default=None)


def spent_on(session: Session, prices: Mapping[str, Prices] | None) -> Spending:
    """The spending of the runs on a session."""
    found = Spending(prices)
    found.add(session)
    return found


def judges_spending() -> Spending | None:
    """Where judges count their calls now; None if nobody does."""
    return _JUDGES.get()


@contextmanager
def counting_judges(prices: Mapping[str, Prices] | None = None, deadline: Deadline | None = None) -> Iterator[Spending]:
    """Count the calls of all judges that are asked in this block, those of scorers that call a judge included."""
    found = Spending(prices, deadline)
    token = _JUDGES.set(found)
    try:
        yield found
    finally:
        _JUDGES.reset(token)
