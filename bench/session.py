"""Sessions: dispatching events, and going back over a history of any length."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from bench.measure import compare
from bench.row import Row
from weakincentives.session import Session, reducer

EVENTS, BLOCK = 100_000, 1_000


@dataclass(frozen=True, slots=True)
class Logged:
    """An event that nothing reduces."""

    number: int = 0


@dataclass(frozen=True, slots=True)
class Counted:
    """An event that a reducer turns into state."""

    by: int = 1


@dataclass(frozen=True, slots=True)
class Total:
    """The state that `Counted` changes."""

    value: int = 0

    @reducer(on=Counted)
    def add(self, event: Counted) -> Total:
        return replace(self, value=self.value + event.by)


def rows() -> Iterator[Row]:
    for name, event in (("an event", Logged()), ("an event with a reducer", Counted())):
        whole, first, last = dispatching(event)
        yield Row(f"dispatch of {name}", whole * 1e6, "µs", goal=3.0)
        yield Row(
            f"the last thousand of {EVENTS:,}",
            last * 1e6,
            "µs",
            ratio=last / first,
            ratio_goal=1.2,
            baseline="the first",
        )
    lengths = (100, 10_000, 1_000_000)
    times = compare(*map(going_back, lengths))
    for length, seconds in zip(lengths, times, strict=True):
        yield Row(f"snapshot, one event, restore; history of {length:,}", seconds * 1e6, "µs", goal=20.0)
    session = filled(10_000)
    (view,) = compare(lambda: session[Logged].view()[-1])
    yield Row("view of 10,000 and its last item", view * 1e6, "µs")
    (text,) = compare(lambda: session.snapshot().to_json(), rounds=3)
    yield Row("snapshot of 10,000 to JSON, per item", text * 1e6 / 10_000, "µs")


def dispatching(event: object) -> tuple[float, float, float]:
    """CPU seconds per event: over all of them, over the first thousand, over the last."""
    best = (float("inf"),) * 3
    for _ in range(5):
        session = Session()
        session.dispatch(event)
        blocks = [_block(session, event) for _ in range(EVENTS // BLOCK)]
        ends = (min(blocks[:5]), min(blocks[-5:]))
        now = (sum(blocks) / EVENTS, ends[0] / BLOCK, ends[1] / BLOCK)
        best = (min(best[0], now[0]), min(best[1], now[1]), min(best[2], now[2]))
    return best


def _block(session: Session, event: object) -> float:
    start = time.process_time()
    for _ in range(BLOCK):
        session.dispatch(event)
    return time.process_time() - start


def filled(length: int) -> Session:
    session = Session()
    session[Logged].seed([Logged(number) for number in range(length)])
    session.dispatch(Counted())
    return session


def going_back(length: int) -> Callable[[], None]:
    session = filled(length)
    event = Logged()

    def work() -> None:
        snapshot = session.snapshot()
        session.dispatch(event)
        session.restore(snapshot)

    return work
