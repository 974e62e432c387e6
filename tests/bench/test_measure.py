from itertools import count

from bench.measure import compare, cpu


def test_more_work_takes_more_cpu() -> None:
    little, much = compare(lambda: sum(range(1_000)), lambda: sum(range(20_000)), rounds=3)
    assert 0 < little < much


def test_one_call_is_enough_for_slow_work() -> None:
    calls: list[None] = []
    cpu(lambda: calls.append(None), rounds=2, clock=count(0.0, 1.0).__next__)
    assert len(calls) == 3
