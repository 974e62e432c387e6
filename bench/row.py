"""One line of the table: a figure, what it is held to, and whether it holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Better = Literal["less", "more"]


@dataclass(frozen=True, slots=True)
class Row:
    """A measured figure with its goal, and its ratio to a baseline of the same run with the ratio's goal.

    >>> Row("render 1,000 sections", 0.8, "ms", goal=1.0, ratio=2.1, ratio_goal=3.0, baseline="f-strings").ok
    True
    """

    name: str
    figure: float
    unit: str
    goal: float | None = None
    ratio: float | None = None
    ratio_goal: float | None = None
    baseline: str = ""
    better: Better = "less"
    note: str = ""

    @property
    def ok(self) -> bool | None:
        """Whether both goals hold; None where there is none."""
        verdicts = [
            self._holds(measured, goal)
            for measured, goal in ((self.figure, self.goal), (self.ratio, self.ratio_goal))
            if measured is not None and goal is not None
        ]
        return all(verdicts) if verdicts else None

    def _holds(self, measured: float, goal: float) -> bool:
        return measured <= goal if self.better == "less" else measured >= goal
