"""Statistics for paired differences: an interval by group, the smallest difference that could be seen, Holm's rule."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from operator import mul

LEVEL = 0.95
POWER = 0.8
FEW_GROUPS = 30
"""With fewer cases than this, a t interval replaces the bootstrap, which would be too narrow; for cases in groups, with
fewer than twice as many groups of equal size."""
RESAMPLES = 2000
SEED = 20_111
MAX_SIMULATED = 100
"""With more groups than this, a formula replaces the simulation of the smallest difference."""
TRIALS = 2000
PRECISION = 0.001
NEGLIGIBLE = 1e-7


@dataclass(frozen=True, slots=True)
class Interval:
    """The mean of some differences, what it may be at 95%, and how likely such a mean is if there is no difference.

    `low`, `high` and `p` are None if fewer than two of the differences are not zero: nothing can be said then.
    """

    mean: float
    low: float | None
    high: float | None
    p: float | None


def interval(groups: Sequence[Sequence[float]]) -> Interval:
    """The interval of the mean of differences that come in groups; those of one group are not independent."""
    groups = [group for group in groups if group]
    values = [value for group in groups for value in group]
    if not values:
        return Interval(0.0, None, None, None)
    mean = math.fsum(values) / len(values)
    if sum(value != 0 for value in values) < 2 or len(groups) < 2:
        return Interval(mean, None, None, None)
    few = FEW_GROUPS if len(groups) == len(values) else 2 * FEW_GROUPS
    found = _by_t(groups, mean) if freedom(groups) + 1 < few else _by_bootstrap(groups, mean)
    return _cautious(groups, found)


def freedom(groups: Sequence[Sequence[float]]) -> int:
    """The degrees of freedom: groups less one, and fewer if some groups are much larger than others."""
    return _freedom([len(group) for group in groups])


def _freedom(sizes: Sequence[int]) -> int:
    return max(round(sum(sizes) ** 2 / sum(size * size for size in sizes)) - 1, 1)


def standard_error(groups: Sequence[Sequence[float]], mean: float) -> float:
    """The standard error of a mean over groups whose members move together."""
    count, size = len(groups), sum(map(len, groups))
    if count < 2:
        return 0.0
    squares = math.fsum((math.fsum(group) - mean * len(group)) ** 2 for group in groups)
    return math.sqrt(count / (count - 1) * squares) / size


def correlation(groups: Sequence[Sequence[float]], mean: float) -> float:
    """The correlation of two differences of one group, from 0 to 1, by how much groups widen the standard error."""
    values = [value for group in groups for value in group]
    pairs = math.fsum(len(group) ** 2 for group in groups) / len(values) - 1
    alone = standard_error([[value] for value in values], mean)
    if not pairs or not alone:
        return 0.0
    return min(max(((standard_error(groups, mean) / alone) ** 2 - 1) / pairs, 0.0), 1.0)


def smallest_difference(sizes: Sequence[int], disagreeing: float, *, together: float = 0.0) -> float | None:
    """The smallest difference of pass rates that groups of these sizes show in four of five evaluations, at 95%.

    `disagreeing` is the share of cases on which the two disagree, and `together` the correlation of cases of one group.
    None if it would not be enough if all of them disagreed in one direction.
    """
    disagreeing = min(disagreeing, 1.0)
    if len(sizes) < 2 or disagreeing <= 0:
        return None
    if len(sizes) <= MAX_SIMULATED:
        return _simulated(tuple(sorted(sizes)), disagreeing, together)
    count, squares = sum(sizes), sum(size * size for size in sizes)
    spread, free = 1 + (squares / count - 1) * together, _freedom(sizes)
    reach = t_quantile(1 - (1 - LEVEL) / 2, free) + t_quantile(POWER, free)
    # Solves d = reach * sqrt(variance / count) for d, where the variance is that of differences with the mean d.
    weight = reach**2 * spread / count
    found = math.sqrt(weight * disagreeing / (1 + weight))
    return found if found <= disagreeing else None


@lru_cache(maxsize=256)
def _simulated(sizes: tuple[int, ...], disagreeing: float, together: float) -> float | None:
    """The same for up to a hundred groups, where the formula promises too much or too little: by simulation."""
    if _power(sizes, disagreeing, disagreeing, together) < POWER:
        return None
    low, high = 0.0, disagreeing
    while high - low > PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if _power(sizes, disagreeing, middle, together) < POWER else (low, middle)
    return (low + high) / 2


def _power(sizes: Sequence[int], disagreeing: float, difference: float, together: float) -> float:
    """The share of simulated evaluations in which `interval`, by Student's t, excludes zero."""
    draws, drawn = random.Random(SEED), list[list[int]]()
    weights = {size: _sums(size, disagreeing, difference, together) for size in set(sizes)}
    for size in sizes:
        drawn.append(draws.choices(list(weights[size]), weights=list(weights[size].values()), k=TRIALS))
    count, cases, squares = len(sizes), sum(sizes), sum(map(mul, sizes, sizes))
    reach = t_quantile(1 - (1 - LEVEL) / 2, _freedom(sizes)) ** 2 * count / (count - 1)
    seen = 0
    for sums in zip(*drawn, strict=True):
        total = sum(sums)
        mean = total / cases
        spread = sum(map(mul, sums, sums)) - 2 * mean * sum(map(mul, sums, sizes)) + mean**2 * squares
        if total**2 > reach * spread:
            seen += min(sums) < 0 < max(sums) or not _may_be_chance(count - sums.count(0))
    return seen / TRIALS


def _sums(size: int, disagreeing: float, difference: float, together: float) -> dict[int, float]:
    """How likely each number of wins less losses is in a group.

    A group has a value, which each of its cases takes with the root of the correlation as its chance; the others have
    values of their own.
    """
    each = {1: (disagreeing + difference) / 2, 0: 1 - disagreeing, -1: (disagreeing - difference) / 2}
    taken, found = math.sqrt(together), dict[int, float]()
    for common, chance in each.items():
        one = {value: (1 - taken) * own + taken * (value == common) for value, own in each.items()}
        for total, likely in _sum_of(one, size).items():
            found[total] = found.get(total, 0.0) + chance * likely
    return found


def _sum_of(one: dict[int, float], count: int) -> dict[int, float]:
    """How likely each sum of so many independent values is, given how likely each value is."""
    if count == 1:
        return one
    half = _sum_of(one, count // 2)
    found = _added(half, half)
    return _added(found, one) if count % 2 else found


def _added(first: dict[int, float], second: dict[int, float]) -> dict[int, float]:
    found = dict[int, float]()
    for a, likely in first.items():
        for b, other in second.items():
            found[a + b] = found.get(a + b, 0.0) + likely * other
    return {total: likely for total, likely in found.items() if likely > NEGLIGIBLE}


def holm(values: Mapping[str, float]) -> dict[str, float]:
    """P values adjusted for the number of comparisons, by Holm's rule."""
    adjusted: dict[str, float] = {}
    largest = 0.0
    for place, (name, p) in enumerate(sorted(values.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, p * (len(values) - place)))
        adjusted[name] = largest
    return adjusted


def sign_test(wins: int, losses: int) -> float:
    """How likely at least so many wins are if wins and losses are equally likely (one-sided, exact)."""
    count = wins + losses
    return sum(math.comb(count, k) for k in range(wins, count + 1)) / 2**count if count else 1.0


def _by_t(groups: Sequence[Sequence[float]], mean: float) -> Interval:
    error = standard_error(groups, mean)
    reach = t_quantile(1 - (1 - LEVEL) / 2, freedom(groups)) * error
    return Interval(mean, mean - reach, mean + reach, _p(groups, mean))


def _by_bootstrap(groups: Sequence[Sequence[float]], mean: float) -> Interval:
    """The percentile interval, wider by as much as t is than the normal distribution: it is too narrow by itself."""
    draws = random.Random(SEED)
    sums, sizes = [math.fsum(group) for group in groups], [len(group) for group in groups]
    places, count = range(len(groups)), len(groups)
    alike, found = len(set(sizes)) == 1, list[float]()
    for _ in range(RESAMPLES):
        if alike:
            found.append(sum(draws.choices(sums, k=count)) / (count * sizes[0]))
        else:
            chosen = draws.choices(places, k=count)
            found.append(sum(sums[place] for place in chosen) / sum(sizes[place] for place in chosen))
    found.sort()
    cut = round(RESAMPLES * (1 - LEVEL) / 2)
    wider = t_quantile(1 - (1 - LEVEL) / 2, freedom(groups)) / 1.959964 * math.sqrt(count / (count - 1))
    low, high = (mean + wider * (edge - mean) for edge in (found[cut], found[-cut - 1]))
    return Interval(mean, low, high, _p(groups, mean))


def _cautious(groups: Sequence[Sequence[float]], found: Interval) -> Interval:
    """The interval, where the spread of the differences says too little about what they may be.

    If all are the same, it is as wide as the rule of three says. A few that all have one sign may be chance, as heads
    are that come up a few times in a row: then it includes zero. And no difference of scores is larger than 1.
    """
    low, high, p = found.low, found.high, found.p
    if low is None or high is None or p is None:
        return found
    if low == high:
        low, high = found.mean - 3 / len(groups), found.mean + 3 / len(groups)
    moved = [total for group in groups if (total := math.fsum(group))]
    if len({total > 0 for total in moved}) == 1 and _may_be_chance(len(moved)):
        low, high, p = min(low, 0.0), max(high, 0.0), max(p, min(2 * sign_test(len(moved), 0), 1.0))
    return Interval(found.mean, max(low, -1.0), min(high, 1.0), p)


def _may_be_chance(moved: int) -> bool:
    """True for so few groups that all of them move one way more often than the level allows."""
    return 2 * sign_test(moved, 0) >= 1 - LEVEL


def _p(groups: Sequence[Sequence[float]], mean: float) -> float:
    error = standard_error(groups, mean)
    if error == 0:
        return 0.0 if mean else 1.0
    return 2 * (1 - t_cdf(abs(mean) / error, freedom(groups)))


def t_cdf(value: float, free: int) -> float:
    """Student's t distribution."""
    tail = _beta(free / (free + value * value), free / 2, 0.5) / 2
    return 1 - tail if value > 0 else tail


@cache
def t_quantile(share: float, free: int) -> float:
    """The value below which this share of Student's t distribution lies."""
    low, high = -400.0, 400.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, free) < share else (low, middle)
    return (low + high) / 2


def _beta(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function, by its continued fraction."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    tiny, c, d = 1e-300, 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > tiny else tiny)
    fraction = d
    for m in range(1, 300):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 + numerator * d
            c = 1 + numerator / c
            d, c = 1 / (d if abs(d) > tiny else tiny), c if abs(c) > tiny else tiny
            fraction *= d * c
        if abs(d * c - 1) < 1e-12:
            break
    return front * fraction / a
