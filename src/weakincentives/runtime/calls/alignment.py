"""The items that two sequences have in common, in order; in nearly linear time, however they differ."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Sequence

MAX_TABLE = 250_000
"""The items before times the items after up to which the longest common subsequence is looked for."""


def aligned(before: Sequence[Hashable], after: Sequence[Hashable]) -> list[tuple[int, int]]:
    """The places of equal items, before and after, which all move in one direction."""
    pairs: list[tuple[int, int]] = []
    blocks = [(0, len(before), 0, len(after))]
    while blocks:
        start, end, new_start, new_end = blocks.pop()
        while start < end and new_start < new_end and before[start] == after[new_start]:
            pairs.append((start, new_start))
            start += 1
            new_start += 1
        while start < end and new_start < new_end and before[end - 1] == after[new_end - 1]:
            end -= 1
            new_end -= 1
            pairs.append((end, new_end))
        if start == end or new_start == new_end:
            continue
        if (end - start) * (new_end - new_start) <= MAX_TABLE:
            for at, new_at in _longest(before[start:end], after[new_start:new_end]):
                pairs.append((start + at, new_start + new_at))
            continue
        anchors = _anchors(before[start:end], after[new_start:new_end])
        for at, new_at in anchors:
            pairs.append((start + at, new_start + new_at))
        if anchors:
            blocks += _between(anchors, start, end, new_start, new_end)
    return sorted(pairs)


def _longest(before: Sequence[Hashable], after: Sequence[Hashable]) -> list[tuple[int, int]]:
    """The longest common subsequence of two short sequences."""
    rows = [[0] * (len(after) + 1)]
    for item in reversed(before):
        below = rows[-1]
        row = [0] * (len(after) + 1)
        for at in range(len(after) - 1, -1, -1):
            row[at] = below[at + 1] + 1 if item == after[at] else max(below[at], row[at + 1])
        rows.append(row)
    rows.reverse()
    pairs: list[tuple[int, int]] = []
    at = new_at = 0
    while at < len(before) and new_at < len(after):
        if before[at] == after[new_at]:
            pairs.append((at, new_at))
            at += 1
            new_at += 1
        elif rows[at + 1][new_at] >= rows[at][new_at + 1]:
            at += 1
        else:
            new_at += 1
    return pairs


def _anchors(before: Sequence[Hashable], after: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Items that occur once on each side, as many as are in the same order."""
    once_before = _single(before)
    once_after = _single(after)
    common: list[tuple[int, int]] = []
    for item, at in once_before.items():
        if item in once_after:
            common.append((at, once_after[item]))
    common.sort()
    return in_order(common)


def _single(items: Sequence[Hashable]) -> dict[Hashable, int]:
    counted = Counter(items)
    places: dict[Hashable, int] = {}
    for at, item in enumerate(items):
        if counted[item] == 1:
            places[item] = at
    return places


def _between(
    anchors: Sequence[tuple[int, int]], start: int, end: int, new_start: int, new_end: int
) -> list[tuple[int, int, int, int]]:
    """The stretches between anchors."""
    blocks: list[tuple[int, int, int, int]] = []
    last, new_last = start, new_start
    for at, new_at in anchors:
        blocks.append((last, start + at, new_last, new_start + new_at))
        last, new_last = start + at + 1, new_start + new_at + 1
    blocks.append((last, end, new_last, new_end))
    return blocks


def in_order(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest part of pairs, sorted by their first places, in which the second places grow too."""
    ends: list[int] = []
    indices: list[int] = []
    before: list[int | None] = []
    for index, (_, new_at) in enumerate(pairs):
        length = bisect_left(ends, new_at)
        before.append(indices[length - 1] if length else None)
        if length == len(ends):
            ends.append(new_at)
            indices.append(index)
        else:
            ends[length] = new_at
            indices[length] = index
    chosen: list[tuple[int, int]] = []
    index_of_last = indices[-1] if indices else None
    while index_of_last is not None:
        chosen.append(pairs[index_of_last])
        index_of_last = before[index_of_last]
    chosen.reverse()
    return chosen
