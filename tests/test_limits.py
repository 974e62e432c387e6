"""Deadlines, budgets and the meter that enforces them."""

import copy
import pickle
from datetime import UTC, datetime, timedelta
from threading import Thread

import pytest

from weakincentives.clock import FakeClock
from weakincentives.errors import BudgetExceededError, DeadlineExceededError
from weakincentives.limits import Budget, Deadline, Meter, Prices, Spent, TokenUsage
from weakincentives.serde import dump_tagged, load_tagged


def test_a_deadline_counts_down_by_its_clock():
    clock = FakeClock()
    deadline = Deadline.after(10, clock=clock)
    clock.advance(4)
    assert (deadline.remaining(), deadline.expired) == (timedelta(seconds=6), False)
    clock.advance(6)
    assert (deadline.remaining(), deadline.expired) == (timedelta(0), True)


def test_a_deadline_equals_any_deadline_of_the_same_moment():
    moment = datetime(2026, 1, 1, 0, 0, 10, tzinfo=UTC)
    assert Deadline.after(10, clock=FakeClock()) == Deadline(moment)
    assert hash(Deadline.after(10, clock=FakeClock())) == hash(Deadline(moment))
    assert "clock" not in repr(Deadline.after(10, clock=FakeClock()))


def test_a_deadline_survives_copy_and_pickle():
    deadline = Deadline.after(3600)
    assert pickle.loads(pickle.dumps(deadline)) == deadline
    assert copy.deepcopy(deadline).remaining() > timedelta(minutes=59)


def test_limits_survive_text_with_their_types():
    given = Budget(max_turns=3, max_cost=1.5, prices=Prices(1, 2.5))
    limits = (Deadline.after(10, clock=FakeClock()), given, Budget(), Budget(max_turns=None))
    assert load_tagged(dump_tagged(limits)) == limits


def test_a_deadline_without_a_time_zone_is_refused():
    with pytest.raises(ValueError, match="must have a time zone"):
        Deadline(datetime(2026, 1, 1))


def test_usage_adds_up_and_cached_tokens_are_part_of_the_input():
    total = TokenUsage(100, 20, cached_tokens=60) + TokenUsage(10, 5, reasoning_tokens=3, hosted_requests=1)
    assert total == TokenUsage(110, 25, 60, 3, 1)
    assert total.total_tokens == 135


def test_prices_charge_cached_input_apart():
    usage = TokenUsage(input_tokens=1_000_000, output_tokens=100_000, cached_tokens=400_000)
    assert Prices(input=2, output=10, cached_input=0.5).cost(usage) == pytest.approx(1.2 + 0.2 + 1.0)
    assert Prices(input=2, output=10).cost(usage) == pytest.approx(3.0)


@pytest.mark.parametrize("field", ["max_input_tokens", "max_turns", "max_tool_calls", "max_cost"])
@pytest.mark.parametrize("value", [-1, True, "7", float("nan")])
def test_a_budget_names_the_field_that_is_wrong(field, value):
    with pytest.raises(ValueError, match=field):
        Budget(**{field: value}, prices=Prices(1, 1))


def test_a_cost_limit_without_prices_counts_the_prices_of_each_reply():
    meter = Meter(Budget(max_cost=1.0))
    assert meter.needs_prices and not Meter(Budget(max_cost=1.0, prices=Prices(1, 1))).needs_prices
    meter.add_usage(TokenUsage(100_000), Prices(2, 0))
    meter.add_usage(TokenUsage(100_000), Prices(4, 0))
    meter.check_model_call("demo")
    meter.add_usage(TokenUsage(100_000), Prices(4, 0))
    with pytest.raises(BudgetExceededError, match=r"max_cost=1\.0, spent 1\.0; pass budget=Budget\(max_cost=\.\.\.\)"):
        meter.check_model_call("demo")


def test_negative_prices_are_refused():
    with pytest.raises(ValueError, match="Prices output must be zero or more, got -1"):
        Prices(input=1, output=-1)


@pytest.mark.parametrize(
    ("budget", "limit"),
    [
        (Budget(max_input_tokens=100), "max_input_tokens"),
        (Budget(max_output_tokens=20), "max_output_tokens"),
        (Budget(max_total_tokens=120), "max_total_tokens"),
        (Budget(max_turns=1), "max_turns"),
        (Budget(max_cost=0.00012, prices=Prices(1, 1)), "max_cost"),
    ],
)
def test_a_used_up_limit_refuses_the_next_model_call(budget, limit):
    meter = Meter(budget)
    meter.check_model_call("demo")
    meter.add_usage(TokenUsage(100, 20))
    with pytest.raises(BudgetExceededError, match=f"'demo'.*{limit}=.*spent") as caught:
        meter.check_model_call("demo")
    assert (caught.value.limit, caught.value.prompt_name, caught.value.phase) == (limit, "demo", "budget")


def test_a_tool_call_is_refused_only_when_tokens_are_overdrawn():
    meter = Meter(Budget(max_total_tokens=120, max_turns=1))
    meter.add_usage(TokenUsage(100, 20))
    meter.check_tool_call("demo")
    meter.add_usage(TokenUsage(1, 0))
    with pytest.raises(BudgetExceededError, match="max_total_tokens=120, spent 121"):
        meter.check_tool_call("demo")


def test_tool_calls_are_limited():
    meter = Meter(Budget(max_tool_calls=1))
    meter.begin_tool_call("demo")
    with pytest.raises(BudgetExceededError, match="max_tool_calls=1, spent 1"):
        meter.check_tool_call("demo")
    meter.check_model_call("demo")


def test_a_passed_deadline_refuses_models_and_tools():
    clock = FakeClock()
    meter = Meter(deadline=Deadline.after(5, clock=clock))
    meter.check_model_call("demo")
    clock.advance(6)
    for check in (meter.check_model_call, meter.check_tool_call):
        with pytest.raises(DeadlineExceededError, match=r"'demo' passed 1\.000 s ago"):
            check("demo")


def test_a_meter_without_a_budget_limits_turns_alone():
    meter = Meter()
    assert meter.budget == Budget() == Budget(max_turns=50)
    meter.add_usage(TokenUsage(10**9, 10**9))
    meter.check_model_call("demo")
    meter.check_tool_call("demo")
    assert meter.turns == 1


def test_the_meter_loses_no_count_between_threads():
    meter = Meter(Budget(prices=Prices(1_000_000, 0)))

    def spend() -> None:
        for _ in range(500):
            meter.add_usage(TokenUsage(1))
            meter.begin_tool_call("demo")

    threads = [Thread(target=spend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (meter.usage, meter.turns, meter.tool_calls) == (TokenUsage(2000), 2000, 2000)


def test_setting_the_wall_clock_does_not_move_a_deadline():
    class AdjustedClock(FakeClock):
        def now(self):
            return super().now() + self.adjusted

        adjusted = timedelta(0)

    clock = AdjustedClock()
    deadline = Deadline.after(10, clock=clock)
    clock.adjusted = timedelta(hours=1)
    assert deadline.remaining() == timedelta(seconds=10)
    clock.adjusted = -timedelta(hours=1)
    clock.advance(10)
    assert deadline.expired


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda budget: load_tagged(dump_tagged(budget))])
def test_the_default_of_fifty_turns_is_for_each_run_and_a_number_also_for_a_total(copied):
    before = Spent(turns=49)
    for total, refused in ((Budget(), False), (Budget(max_turns=50), True), (Budget(max_turns=None), False)):
        meter = Meter(total=copied(total), before=before)
        meter.add_usage(TokenUsage())
        if refused:
            with pytest.raises(BudgetExceededError, match=r"Total budget .* max_turns=50, spent 50; pass total=Budget"):
                meter.check_model_call("demo")
        else:
            meter.check_model_call("demo")
