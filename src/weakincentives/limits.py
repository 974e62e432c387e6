"""How long a run may take and how much it may spend.

`Deadline` and `Budget` are values that a caller writes down; `Meter` is the one mutable thing that counts what a run
has spent and refuses the next step. One meter is shared by every restart of a run.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from weakincentives.clock import SYSTEM_CLOCK, Clock
from weakincentives.errors import BudgetExceededError, DeadlineExceededError

__all__ = ["Budget", "Deadline", "Meter", "Prices", "Spent", "TokenUsage"]


class _Clocked:
    """Holds a clock in a slot that is no field: it counts for nothing when deadlines are compared or written."""

    __slots__ = ("_clock",)
    _clock: Clock


@dataclass(frozen=True, slots=True)
class Deadline(_Clocked):
    """The moment at which a run must be over.

    The value is the moment alone. A deadline made with a clock of its own (`Deadline.after(5, clock=FakeClock())`)
    reads that clock; a copy that went through JSON or pickle reads the system's.
    """

    expires_at: datetime

    def __post_init__(self) -> None:
        if not isinstance(self.expires_at, datetime):
            raise ValueError(f"Deadline expires_at={self.expires_at!r} is no datetime; use Deadline.after(seconds=...)")
        if self.expires_at.utcoffset() is None:
            raise ValueError(
                f"Deadline expires_at={self.expires_at.isoformat()} has no time zone; use Deadline.after(seconds=...) "
                "or datetime.now(timezone.utc)"
            )

    @classmethod
    def after(cls, seconds: float, clock: Clock = SYSTEM_CLOCK) -> Deadline:
        """A deadline this many seconds from now, by this clock."""
        return cls(clock.now() + timedelta(seconds=seconds)).on(clock)

    def on(self, clock: Clock) -> Deadline:
        """The same moment, read against another clock."""
        deadline = Deadline(self.expires_at)
        object.__setattr__(deadline, "_clock", clock)
        return deadline

    @property
    def clock(self) -> Clock:
        try:
            return self._clock
        except AttributeError:
            return SYSTEM_CLOCK

    def remaining(self) -> timedelta:
        """The time that is left; negative once the deadline has passed."""
        return self.expires_at - self.clock.now()

    @property
    def expired(self) -> bool:
        return self.clock.now() >= self.expires_at


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens that were spent. Cached tokens are part of the input, reasoning tokens part of the output."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    hosted_requests: int = 0

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.hosted_requests + other.hosted_requests,
        )


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run has used so far; `turns` are model replies."""

    usage: TokenUsage = TokenUsage()
    turns: int = 0
    tool_calls: int = 0


@dataclass(frozen=True, slots=True)
class Prices:
    """What a million tokens cost, in the currency of `Budget.max_cost`; cached input costs as input unless told."""

    input: float
    output: float
    cached_input: float | None = None

    def __post_init__(self) -> None:
        for name in ("input", "output", "cached_input"):
            _check_amount(f"Prices {name}", getattr(self, name), whole=False)

    def cost(self, usage: TokenUsage) -> float:
        cached = min(usage.cached_tokens, usage.input_tokens)
        cached_price = self.input if self.cached_input is None else self.cached_input
        fresh = usage.input_tokens - cached
        return (fresh * self.input + cached * cached_price + usage.output_tokens * self.output) / 1_000_000


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that a run may spend; None means no limit.

    `max_context_tokens` stops nothing: it is the size of context above which open sections are closed again.
    """

    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    max_total_tokens: int | None = None
    max_turns: int | None = None
    max_tool_calls: int | None = None
    max_cost: float | None = None
    prices: Prices | None = None
    max_context_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in (
            "max_input_tokens",
            "max_output_tokens",
            "max_total_tokens",
            "max_turns",
            "max_tool_calls",
            "max_context_tokens",
        ):
            _check_amount(f"Budget {name}", getattr(self, name), whole=True)
        _check_amount("Budget max_cost", self.max_cost, whole=False)
        if self.max_cost is not None and self.prices is None:
            raise ValueError(
                "Budget max_cost needs prices; pass prices=Prices(input=..., output=...) per million tokens"
            )


class Meter:
    """Counts what one run spends, across its restarts, and refuses the step that would go past a limit."""

    def __init__(self, budget: Budget | None = None, deadline: Deadline | None = None) -> None:
        if not isinstance(budget, Budget | None):
            raise TypeError(f"budget={budget!r} is no Budget; write Budget(max_turns=...) or the like")
        if not isinstance(deadline, Deadline | None):
            raise TypeError(f"deadline={deadline!r} is no Deadline; write Deadline.after(seconds=...)")
        self.budget = budget
        self.deadline = deadline
        self._lock = threading.Lock()
        self._spent = Spent()

    @property
    def spent(self) -> Spent:
        """All that was counted so far; `restore` takes it back in another process."""
        return self._spent

    @property
    def usage(self) -> TokenUsage:
        return self._spent.usage

    @property
    def turns(self) -> int:
        return self._spent.turns

    @property
    def tool_calls(self) -> int:
        return self._spent.tool_calls

    @property
    def cost(self) -> float | None:
        """What the usage costs so far; None if the budget has no prices."""
        prices = self.budget.prices if self.budget else None
        return None if prices is None else prices.cost(self.usage)

    def add_usage(self, usage: TokenUsage) -> None:
        """Count one model reply and the tokens it took."""
        with self._lock:
            spent = self._spent
            self._spent = Spent(spent.usage + usage, spent.turns + 1, spent.tool_calls)

    def set_tool_calls(self, count: int) -> None:
        """Take a count from a record, or take back a call that was put off."""
        with self._lock:
            self._spent = replace(self._spent, tool_calls=count)

    def restore(self, spent: Spent) -> None:
        """Continue from what a run had spent before it was resumed here."""
        with self._lock:
            self._spent = spent

    def check_model_call(self, prompt_name: str) -> None:
        """Raise unless another model call fits: a limit that is used up leaves no room for one."""
        self.check_deadline(prompt_name)
        if self.budget is not None:
            _refuse(prompt_name, "max_turns", self.budget.max_turns, self.turns, room=1)
            self._check_spending(self.budget, prompt_name, room=1)

    def check_tool_call(self, prompt_name: str) -> None:
        """Raise unless another tool call fits: a tool spends no tokens, so only an overdrawn budget stops it."""
        self.check_deadline(prompt_name)
        if self.budget is not None:
            _refuse(prompt_name, "max_tool_calls", self.budget.max_tool_calls, self.tool_calls, room=1)
            self._check_spending(self.budget, prompt_name, room=0)

    def begin_tool_call(self, prompt_name: str) -> None:
        """Check and count at once, so that calls side by side cannot slip past a limit together."""
        with self._lock:
            self.check_tool_call(prompt_name)
            spent = self._spent
            self._spent = Spent(spent.usage, spent.turns, spent.tool_calls + 1)

    def check_deadline(self, prompt_name: str) -> None:
        """Raise if the deadline has passed."""
        deadline = self.deadline
        if deadline is not None and deadline.expired:
            late = -deadline.remaining().total_seconds()
            raise DeadlineExceededError(
                f"Deadline of prompt '{prompt_name}' passed {late:.3f} s ago (at {deadline.expires_at.isoformat()})",
                prompt_name=prompt_name,
                phase="budget",
            )

    def _check_spending(self, budget: Budget, prompt_name: str, *, room: int) -> None:
        usage = self.usage
        _refuse(prompt_name, "max_input_tokens", budget.max_input_tokens, usage.input_tokens, room=room)
        _refuse(prompt_name, "max_output_tokens", budget.max_output_tokens, usage.output_tokens, room=room)
        _refuse(prompt_name, "max_total_tokens", budget.max_total_tokens, usage.total_tokens, room=room)
        if budget.max_cost is not None and budget.prices is not None:
            _refuse(prompt_name, "max_cost", budget.max_cost, budget.prices.cost(usage), room=room)


def _refuse(prompt_name: str, name: str, limit: float | None, spent: float, *, room: int) -> None:
    if limit is not None and (spent >= limit if room else spent > limit):
        raise BudgetExceededError(
            f"Budget of prompt '{prompt_name}' is used up: {name}={limit}, spent {round(spent, 9)}",
            prompt_name=prompt_name,
            limit=name,
        )


def _check_amount(name: str, value: float | None, *, whole: bool) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise ValueError(f"{name}={value!r} is not {'a whole' if whole else 'a'} number")
    if value < 0 or not math.isfinite(value):
        raise ValueError(f"{name}={value!r} must be zero or more")
