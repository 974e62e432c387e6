"""Limits of a run: how long it may take and how much it may spend.

`Deadline` and `Budget` are values. `Meter` is the mutable counter that tracks what a run has spent and refuses the next
step once a limit is reached. All restarts of a run share one meter.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime, timedelta

from weakincentives._base.frozen import quick_init
from weakincentives.clock import SYSTEM_CLOCK, Clock
from weakincentives.errors import BudgetExceededError, DeadlineExceededError, WinkError

__all__ = ["Budget", "Deadline", "Meter", "Prices", "Spent", "TokenUsage"]


class _Clocked:
    """Holds a clock, and the moment on it, in slots that are not fields: comparison and serialisation ignore them."""

    __slots__ = ("_clock", "_monotonic")
    _clock: Clock
    _monotonic: float


@dataclass(frozen=True, slots=True)
class Deadline(_Clocked):
    """The moment by which a run must finish.

    Only the moment is part of the value. A deadline made with a clock (`Deadline.after(5, clock=FakeClock())`) reads
    that clock; a copy restored from JSON or pickle reads the system's. From then on it is measured monotonically, so
    that setting the machine's clock neither shortens nor extends a run.
    """

    expires_at: datetime  #: with a time zone

    def __post_init__(self) -> None:
        if not isinstance(self.expires_at, datetime):
            raise ValueError(
                f"Deadline expires_at must be a datetime, got {self.expires_at!r}; use Deadline.after(seconds=...)"
            )
        if self.expires_at.utcoffset() is None:
            raise ValueError(
                f"Deadline expires_at must have a time zone, got {self.expires_at.isoformat()}; use "
                "Deadline.after(seconds=...) or datetime.now(timezone.utc)"
            )

    @classmethod
    def after(cls, seconds: float, clock: Clock = SYSTEM_CLOCK) -> Deadline:
        """A deadline `seconds` from now, measured by `clock`."""
        if not isinstance(seconds, int | float):
            raise TypeError(f"seconds must be a number, got {seconds!r}")
        return cls(clock.now() + timedelta(seconds=seconds)).on(clock)

    def on(self, clock: Clock) -> Deadline:
        """The same moment, measured by another clock."""
        deadline = Deadline(self.expires_at)
        deadline._start(clock)
        return deadline

    def remaining(self) -> timedelta:
        """The time left; negative once the deadline has passed."""
        return timedelta(seconds=self._seconds())

    @property
    def expired(self) -> bool:
        return self._seconds() <= 0

    def _seconds(self) -> float:
        try:
            clock = self._clock
        except AttributeError:
            clock = SYSTEM_CLOCK
            self._start(clock)
        return self._monotonic - clock.monotonic()

    def _start(self, clock: Clock) -> None:
        left = (self.expires_at - clock.now()).total_seconds()
        object.__setattr__(self, "_monotonic", clock.monotonic() + left)
        object.__setattr__(self, "_clock", clock)


@quick_init
@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens spent. Cached tokens are included in the input, reasoning tokens in the output."""

    input_tokens: int = 0  #: tokens sent
    output_tokens: int = 0  #: tokens received
    cached_tokens: int = 0  #: of those sent, read from the provider's cache
    reasoning_tokens: int = 0  #: of those received, spent on reasoning
    hosted_requests: int = 0  #: requests that hosted tools made

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


@quick_init
@dataclass(frozen=True, slots=True)
class Spent:
    """The expenses of a run so far; `turns` counts model replies, and `cost` is counted if the budget limits it.

    They include those of runs inside it, which had `inner_turns`.
    """

    usage: TokenUsage = TokenUsage()  #: tokens so far
    turns: int = 0
    tool_calls: int = 0  #: calls of tools so far
    cost: float = 0.0
    inner_turns: int = 0

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            self.usage + other.usage,
            self.turns + other.turns,
            self.tool_calls + other.tool_calls,
            self.cost + other.cost,
            self.inner_turns + other.inner_turns,
        )


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices per million tokens, in the currency of `Budget.max_cost`. `cached_input` defaults to the input price."""

    input: float  #: tokens sent
    output: float  #: tokens received
    cached_input: float | None = None

    def __post_init__(self) -> None:
        for name in ("input", "output", "cached_input"):
            _check_amount(f"Prices {name}", getattr(self, name), integer=False)

    def cost(self, usage: TokenUsage) -> float:
        """The price of this usage: `Prices(input=1.25, output=10).cost(response.usage)`."""
        cached = min(usage.cached_tokens, usage.input_tokens)
        cached_price = self.input if self.cached_input is None else self.cached_input
        fresh = usage.input_tokens - cached
        return (fresh * self.input + cached * cached_price + usage.output_tokens * self.output) / 1_000_000


class _DefaultTurns(int):
    """The default of `max_turns`, which limits each run, but not a conversation as a whole."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The most a run may spend; None means no limit. A run without a budget has this one: 50 turns.

    `max_cost` is in US dollars, by the library's table of prices, unless you pass `prices`.
    """

    max_input_tokens: int | None = None  #: tokens sent, cached ones included
    max_output_tokens: int | None = None  #: tokens received, reasoning included
    max_total_tokens: int | None = None  #: both together
    max_turns: int | None = _DefaultTurns(50)  #: calls of the model
    max_tool_calls: int | None = None  #: calls of tools
    max_cost: float | None = None
    prices: Prices | None = None  #: for `max_cost`; by default the library's table

    def __post_init__(self) -> None:
        for limit in fields(self):
            if limit.name != "prices":
                _check_amount(f"Budget {limit.name}", getattr(self, limit.name), integer=limit.name != "max_cost")


class Meter:
    """Counts what one run spends across its restarts, and refuses a step that would exceed a limit.

    Set `spent` to continue from what the run had spent in another process. `total` is the budget of the conversation,
    which had spent `before` when the run began. What a run inside another spends counts for its `parent` too.
    """

    def __init__(
        self,
        budget: Budget | None = None,
        deadline: Deadline | None = None,
        *,
        total: Budget | None = None,
        before: Spent | None = None,
        parent: Meter | None = None,
    ) -> None:
        for name, given in (("budget", budget), ("total", total)):
            if not isinstance(given, Budget | None):
                raise TypeError(f"{name} must be a Budget, got {given!r}; pass for example Budget(max_turns=10)")
        if not isinstance(deadline, Deadline | None):
            raise TypeError(f"deadline must be a Deadline, got {deadline!r}; pass Deadline.after(seconds=...)")
        self.budget = Budget() if budget is None else budget
        self.total = total
        self.deadline = deadline
        self.spent = Spent()
        self._before = Spent() if before is None else before
        self._parent = parent
        self._lock = threading.Lock()

    @property
    def usage(self) -> TokenUsage:
        return self.spent.usage

    @property
    def turns(self) -> int:
        return self.spent.turns

    @property
    def tool_calls(self) -> int:
        return self.spent.tool_calls

    @property
    def needs_prices(self) -> bool:
        """True if cost is limited and the budget does not say what tokens cost."""
        limits = (self.budget, self.total)
        unpriced = any(each.max_cost is not None and each.prices is None for each in limits if each)
        return unpriced or (self._parent is not None and self._parent.needs_prices)

    @property
    def own_turns(self) -> int:
        """The model replies without those of runs inside this one."""
        return self.spent.turns - self.spent.inner_turns

    def add_usage(
        self, usage: TokenUsage, prices: Prices | None = None, *, inner: bool = False, turns: int = 1
    ) -> None:
        """Count one model reply and its tokens, at these prices if the budget has none; others are no turns."""
        cost = 0.0 if prices is None else prices.cost(usage)
        with self._lock:
            spent = self.spent
            self.spent = spent + Spent(usage, turns=turns, cost=cost, inner_turns=turns * inner)
        if self._parent is not None:
            self._parent.add_usage(usage, prices, inner=True, turns=turns)

    @contextmanager
    def on_errors(self) -> Iterator[None]:
        """Give errors that leave the block the usage so far."""
        try:
            yield
        except WinkError as error:
            error.usage = self.usage
            raise

    def check_model_call(self, prompt_name: str) -> None:
        """Raise if a limit is reached: a model call always spends something."""
        self.check_deadline(prompt_name)
        _check(self.budget, self.spent, prompt_name)
        if self.total is not None:
            _check(self.total, self._before + self.spent, prompt_name, is_total=True)
        if self._parent is not None:
            self._parent.check_model_call(prompt_name)

    def check_tool_call(self, prompt_name: str) -> None:
        """Raise if a limit is exceeded. A tool call spends no tokens, so an exactly used budget still allows it."""
        self.check_deadline(prompt_name)
        _check(self.budget, self.spent, prompt_name, for_tool=True)
        if self.total is not None:
            _check(self.total, self._before + self.spent, prompt_name, for_tool=True, is_total=True)

    def begin_tool_call(self, prompt_name: str) -> None:
        """Check and count in one step, so that concurrent calls cannot pass a limit together."""
        with self._lock:
            self.check_tool_call(prompt_name)
            self.spent += Spent(tool_calls=1)
        if self._parent is not None:
            self._parent.begin_tool_call(prompt_name)

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


def _check(budget: Budget, spent: Spent, prompt_name: str, *, for_tool: bool = False, is_total: bool = False) -> None:
    usage = spent.usage
    amounts: list[tuple[str, float | None, float]] = [
        ("max_input_tokens", budget.max_input_tokens, usage.input_tokens),
        ("max_output_tokens", budget.max_output_tokens, usage.output_tokens),
        ("max_total_tokens", budget.max_total_tokens, usage.total_tokens),
    ]
    if budget.max_cost is not None:
        cost = spent.cost if budget.prices is None else budget.prices.cost(usage)
        amounts.append(("max_cost", budget.max_cost, cost))
    if not for_tool and not (is_total and isinstance(budget.max_turns, _DefaultTurns)):
        amounts.insert(0, ("max_turns", budget.max_turns, spent.turns))
    if for_tool and budget.max_tool_calls is not None and spent.tool_calls >= budget.max_tool_calls:
        raise _exhausted("max_tool_calls", budget.max_tool_calls, spent.tool_calls, prompt_name, is_total)
    for name, limit, amount in amounts:
        if limit is not None and (amount > limit if for_tool else amount >= limit):
            raise _exhausted(name, limit, amount, prompt_name, is_total)


def _exhausted(name: str, limit: float, spent: float, prompt_name: str, is_total: bool) -> BudgetExceededError:
    whose, option = ("Total budget of the conversation with", "total") if is_total else ("Budget of", "budget")
    return BudgetExceededError(
        f"{whose} prompt '{prompt_name}' is exhausted: {name}={limit}, spent {round(spent, 9)}; "
        f"pass {option}=Budget({name}=...) to allow more, None for no limit",
        prompt_name=prompt_name,
        limit=name,
    )


def _check_amount(name: str, value: float | None, *, integer: bool) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int if integer else (int, float)):
        raise ValueError(f"{name} must be {'an integer' if integer else 'a number'}, got {value!r}")
    if value < 0 or not math.isfinite(value):
        raise ValueError(f"{name} must be zero or more, got {value!r}")
