"""The messages of every request of a run, as ranges over all messages of its conversation up to its end."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from weakincentives.telemetry import RunStore

Ranges = list[tuple[int, int]]
FIRST_EVENTS = 2_000


class Conversations:
    """Reads them from a store and keeps what can no longer change."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._message_ids: dict[str, list[int]] = {}
        self._ranges: dict[str, dict[int, Ranges]] = {}

    def request(self, run_id: str, called: int) -> Ranges:
        """The messages of the model call with this event number."""
        known = self._ranges.setdefault(run_id, {})
        if called not in known:
            ranges: Ranges = []
            # The first turns of a long run are looked at most, and need not wait for the others.
            stop = called if called < FIRST_EVENTS else float("inf")
            for seq, kept, added in self._store.requests(run_id, stop):
                ranges = known[seq] = _extended(ranges, kept, self._ordinals(run_id, added))
        return known.get(called, [])

    def ranges(self, run_id: str, ids: Sequence[int]) -> Ranges:
        """The ranges of messages with these ids."""
        return _extended([], 0, self._ordinals(run_id, ids))

    def _ordinals(self, run_id: str, ids: Sequence[int]) -> list[int]:
        known = self.ids(run_id, 1)
        if ids and ids[-1] > known[-1]:
            known = self.ids(run_id, len(known) + 1)
        return [bisect_left(known, number) for number in ids]

    def ids(self, run_id: str, needed: int) -> list[int]:
        """The ids of all messages, at least the first so many."""
        known = self._message_ids.setdefault(run_id, [])
        if len(known) < needed:
            known = self._message_ids[run_id] = self._store.message_ids(run_id)
        return known


def _extended(ranges: Ranges, kept: int, added: Sequence[int]) -> Ranges:
    """The first `kept` numbers of the ranges, then those added."""
    found: Ranges = []
    for start, stop in ranges:
        stop = min(stop, start + kept)
        if start < stop:
            found.append((start, stop))
        kept -= stop - start
    for number in added:
        if found and found[-1][1] == number:
            found[-1] = (found[-1][0], number + 1)
        else:
            found.append((number, number + 1))
    return found
