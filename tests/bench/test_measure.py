from bench.measure import compare, cpu


def test_more_work_takes_more_cpu() -> None:
    little, much = compare(lambda: sum(range(1_000)), lambda: sum(range(20_000)), rounds=3)
    assert 0 < little < much


def test_one_call_is_enough_for_slow_work() -> None:
    calls: list[int] = []
    cpu(lambda: calls.append(sum(range(1_000_000))), rounds=2)
    assert len(calls) <= 10
