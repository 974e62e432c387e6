"""An account that tools of tests pay from."""

from __future__ import annotations

from dataclasses import dataclass, replace

from weakincentives import reducer


@dataclass(frozen=True)
class Paid:
    amount: int


@dataclass(frozen=True)
class Balance:
    total: int = 100

    @reducer(on=Paid)
    def pay(self, event: Paid) -> Balance:
        return replace(self, total=self.total - event.amount)
