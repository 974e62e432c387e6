"""CPU time of a piece of work: the best of several rounds, since noise only ever adds."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from itertools import repeat

Work = Callable[[], object]
Clock = Callable[[], float]

ROUND_SECONDS = 0.02


def cpu(work: Work, *, rounds: int = 7, clock: Clock = time.process_time) -> float:
    """CPU seconds of one call, of all threads; `clock=time.thread_time` for the calling thread alone."""
    return compare(work, rounds=rounds, clock=clock)[0]


def compare(*works: Work, rounds: int = 7, clock: Clock = time.process_time) -> tuple[float, ...]:
    """CPU seconds of one call of each work, measured in turns so that their ratios are fair."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        calls = [_calls_per_round(work, clock) for work in works]
        best = [float("inf")] * len(works)
        for _ in range(rounds):
            for index, work in enumerate(works):
                best[index] = min(best[index], _round(work, calls[index], clock))
        return tuple(best)
    finally:
        if enabled:
            gc.enable()


def _calls_per_round(work: Work, clock: Clock) -> int:
    once = _round(work, 1, clock)
    return max(1, int(ROUND_SECONDS / max(once, 1e-7)))


def _round(work: Work, calls: int, clock: Clock) -> float:
    start = clock()
    for _ in repeat(None, calls):
        work()
    return (clock() - start) / calls
