"""Compares two evaluations case by case: wins, losses, and what the number of cases can show."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from statistics import fmean
from typing import Any

from weakincentives._base.display import Displayed, Drawn, Shown, Table, bar, one_line, shortened, toned
from weakincentives.errors import WinkError
from weakincentives.evals.intervals import (
    Interval,
    correlation,
    holm,
    interval,
    smallest_difference,
)
from weakincentives.evals.judge import Judge
from weakincentives.evals.results import CaseResult, Evaluation
from weakincentives.evals.scorers import Unscored
from weakincentives.evals.spending import counting_judges

MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class Change:
    """A mean per case before and after; None if it is not known for all cases."""

    before: float | None
    after: float | None


@dataclass(frozen=True, slots=True)
class CaseDifference:
    """One case in both evaluations: the share of its repeats that passed."""

    case_id: str
    group: str
    before: float
    after: float
    results: tuple[CaseResult, CaseResult]

    @property
    def difference(self) -> float:
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class ScorerDifference:
    """One scorer in both evaluations; `p` is adjusted for the number of scorers by Holm's rule."""

    name: str
    before: float
    after: float
    interval: Interval
    p: float | None


@dataclass(frozen=True, slots=True)
class GroupDifference:
    """One group of cases in both evaluations."""

    group: str
    cases: int
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Preferences:
    """Preferences of a judge of pairs; `flips` are cases on which its verdict depended on the order, which are ties.

    `unscored` are cases on which it gave no verdict.
    """

    wins: int
    losses: int
    ties: int
    flips: int
    interval: Interval
    cost: float | None = None
    unscored: int = 0


@dataclass(frozen=True, slots=True)
class Comparison(Displayed):
    """How the second of two evaluations differs from the first, over the cases that were scored in both.

    `wins` are cases that the second passes and the first does not. `difference` is that of the pass rates, between
    `low` and `high` at 95%; these are None if fewer than two cases differ. `smallest` is the smallest difference that
    so many cases would show, None if no difference could. `left_out` counts the cases that were not scored in both, and
    `unshared` are scorers that only one of the two has: what passes there is not the same.
    """

    wins: int
    losses: int  #: cases that the first passes and the second does not
    ties: int  #: cases with the same verdict
    difference: float
    low: float | None
    high: float | None
    smallest: float | None
    cases: int  #: cases that were compared
    cost: Change  #: per case, in US dollars
    tokens: Change  #: per case
    seconds: Change  #: per case
    names: tuple[str, str] = ("", "")  #: the names of the two evaluations
    left_out: int = 0
    groups: tuple[GroupDifference, ...] = ()  #: the difference in each group
    scorers: tuple[ScorerDifference, ...] = ()  #: the difference for each scorer
    differing: tuple[CaseDifference, ...] = ()  #: the cases that differ
    preferences: Preferences | None = None  #: verdicts of a judge that saw both answers
    diverged: tuple[int, int] = field(default=(0, 0))  #: cases of each that left their recording
    unshared: tuple[str, ...] = ()
    prompts: str = ""  #: how their prompts differ, in words; empty if that is not known

    @property
    def better(self) -> bool:
        """True if the interval lies above zero."""
        return self.low is not None and self.low > 0

    @property
    def worse(self) -> bool:
        """True if the interval lies below zero."""
        return self.high is not None and self.high < 0

    @property
    def regressed(self) -> tuple[str, ...]:
        """The cases that passed before, in all repeats, and do not any more."""
        return tuple(each.case_id for each in self.differing if each.before == 1 and each.after < 1)

    @property
    def text(self) -> str:
        """The result in words."""
        return "\n".join(self._sentences())

    def __str__(self) -> str:
        return self.text

    def _sentences(self) -> Iterator[str]:
        differ = sum(each.difference != 0 for each in self.differing)
        left = f"{self.left_out} left out, not scored in both" if self.left_out else ""
        if not self.cases:
            yield f"No case was scored in both; {self.left_out} left out."
            return
        noun, verb = "case" if self.cases == 1 else "cases", "differs" if differ == 1 else "differ"
        counted = f"{self.cases} {noun}, {differ} {verb}: {self.wins} won, {self.losses} lost, {self.ties} tied"
        yield f"{counted}{left and f'; {left}'}."
        if differ > 1 and self.low is None:
            yield f"{_points(self.difference)}, all in one group: cases of one source say nothing about others."
        elif self.low is None or self.high is None:
            yield f"Too few disagreements to say more than {_points(self.difference)}."
        else:
            verdict = "better" if self.better else "worse" if self.worse else "no clear difference"
            yield f"{_points(self.difference)}, between {_points(self.low)} and {_points(self.high)} (95%): {verdict}."
        if self.smallest is not None:
            shown, seen = 100 * self.smallest, 100 * abs(self.difference)
            yield f"{self.cases} cases could show {shown:.0f} points; seen: {seen:.0f}."
        elif differ and self.low is not None:
            yield f"{self.cases} cases that differ this often are too few to show a difference four times in five."
        if self.prompts:
            yield self.prompts
        if self.unshared:
            yield f"Only one of the two is scored by {', '.join(self.unshared)}: to pass is not the same in both."
        for name, change, form in (
            ("cost per case", self.cost, "${:.4f}"),
            ("tokens per case", self.tokens, "{:,.0f}"),
            ("seconds per case", self.seconds, "{:.1f}"),
        ):
            if change.before is not None and change.after is not None:
                yield f"{name}: {form.format(change.before)} -> {form.format(change.after)}"
        if self.preferences is not None:
            found = self.preferences
            votes = f"{found.wins} better, {found.losses} worse, {found.ties} tied"
            cost = f", ${found.cost:.4f}" if found.cost else ""
            without = f", {found.unscored} not judged" if found.unscored else ""
            yield f"judged in pairs: {votes} ({found.flips} by a flip){without}{cost}"

    def _display(self) -> Iterator[Shown]:
        counted = (("passed", self.wins), ("rest", self.ties), ("failed", self.losses))
        lines = "<br>".join(map(escape, self._sentences()))
        yield Drawn(self.text, f"<p>{lines}</p>{bar(counted, self.cases).html}")
        if len(self.scorers) > 1:
            yield scorers_table(self.scorers)
        if len(self.groups) > 1 and (moved := [each for each in self.groups if each.before != each.after]):
            yield groups_table(moved)
        if self.differing:
            yield cases_table(self.differing)


def compare(before: Evaluation, after: Evaluation, *, judge: Judge | None = None) -> Comparison:
    """Compare two evaluations of the same cases; the result speaks of the second.

    The unit is the case: repeats are averaged first. Cases of one group count as one source. A `judge` of pairs also
    compares the answers, each pair in both orders.
    """
    first, second = before.passes(), after.passes()
    shared = [case for case in first if case in second]
    one, two = _first_results(before), _first_results(after)
    cases = [
        CaseDifference(case, two[case].group, fmean(first[case]), fmean(second[case]), (one[case], two[case]))
        for case in shared
    ]
    grouped = _grouped(cases, {each.case_id: each.difference for each in cases})
    found = interval(grouped)
    every = {result.case_id for result in (*before.results, *after.results)}
    return Comparison(
        wins=sum(each.before < 1 <= each.after for each in cases),
        losses=sum(each.after < 1 <= each.before for each in cases),
        ties=sum((each.before < 1) == (each.after < 1) for each in cases),
        difference=found.mean,
        low=found.low,
        high=found.high,
        smallest=_smallest(grouped, found.mean),
        cases=len(cases),
        cost=_change(before, after, shared, lambda result: result.run_cost),
        tokens=_change(before, after, shared, lambda result: result.run_tokens),
        seconds=_change(before, after, shared, lambda result: result.seconds),
        names=(before.name, after.name),
        left_out=len(every) - len(shared),
        groups=_groups(cases),
        scorers=_scorers(before, after, cases),
        differing=tuple(each for each in cases if each.difference != 0),
        preferences=None if judge is None else _preferences(judge, cases),
        diverged=(before.count("diverged"), after.count("diverged")),
        unshared=tuple(sorted({*before.scorers} ^ {*after.scorers})),
        prompts=_prompts(before, after),
    )


def _prompts(before: Evaluation, after: Evaluation) -> str:
    if not before.prompt_hash or not after.prompt_hash:
        return ""
    if before.prompt_hash == after.prompt_hash:
        return "Both have the same prompt."
    if before.variant != after.variant:
        return f"{before.name}: {before.variant}; {after.name}: {after.variant}."
    where = "its declaration" if not after.tag else "its declaration or its override"
    return f"Both are {after.variant}; the prompt has changed between them, in {where}."


def assert_no_regression(before: Evaluation, after: Evaluation) -> None:
    """Raise AssertionError if a case that passed before, in all repeats, does not pass now."""
    passed = {case for case, shares in before.passes().items() if fmean(shares) == 1}
    worse = [
        f"{result.case_id}: {result.verdict}" + (f"; {shortened(result.reason, 300)}" if result.reason else "")
        for result in after.results
        if result.case_id in passed and result.verdict != "passed"
    ]
    missing = sorted(passed - {result.case_id for result in after.results})
    worse += [f"{case}: not in {after.name!r}" for case in missing]
    if worse:
        cases = {result.case_id for result in after.results if result.case_id in passed and result.verdict != "passed"}
        counted = f"{len(cases) + len(missing)} of {len(passed)} cases that passed in {before.name!r} do not any more"
        raise AssertionError(f"{counted}:\n" + "\n".join(worse))


def assert_at_least(evaluation: Evaluation, bound: float) -> None:
    """Raise AssertionError unless the pass rate is at least `bound` with 95% confidence, by its lower bound.

    Cases that diverged or could not be scored are not part of it; they are named in a warning.
    """
    shares = evaluation.passes()
    left = [result for result in evaluation.results if not result.counts]
    if shares and left:
        named = "; ".join(f"{each.case_id} {each.verdict}: {shortened(each.reason, 200)}" for each in left[:MAX_NAMED])
        message = f"{len(left)} results of {evaluation.name!r} are not in the pass rate: {named}"
        warnings.warn(message, stacklevel=2)
    if not shares:
        raise AssertionError(f"no case of {evaluation.name!r} was scored: {evaluation}")
    low, rate = lower_bound(evaluation), evaluation.pass_rate
    if low < bound:
        raise AssertionError(
            f"the pass rate of {evaluation.name!r} is {rate:.2f} over {len(shares)} cases, and may be as low as "
            f"{low:.2f}, less than {bound:.2f}; more cases narrow this"
        )


def lower_bound(evaluation: Evaluation) -> float:
    """The lower bound of the pass rate at 95%; if all cases agree, by the rule of three."""
    groups: dict[str, list[float]] = {}
    of = {result.case_id: result.group for result in evaluation.results}
    for case, shares in evaluation.passes().items():
        groups.setdefault(of[case] or f"\0{case}", []).append(fmean(shares))
    values = [value for group in groups.values() for value in group]
    rate = fmean(values)
    if len(set(values)) == 1:
        return max(0.0, rate - 3 / len(groups))
    low = interval(list(groups.values())).low
    return max(0.0, rate - 3 / len(groups)) if low is None else max(0.0, low)


def scorers_table(scorers: Sequence[ScorerDifference]) -> Table:
    rows = [
        (
            each.name,
            f"{each.before:.2f}",
            f"{each.after:.2f}",
            _points(each.interval.mean),
            _range(each.interval),
            "-" if each.p is None else f"{each.p:.3f}",
        )
        for each in scorers
    ]
    heading = ("scorer", "before", "after", "difference", "95%", "p (Holm)")
    return Table(heading, rows, right=("before", "after", "difference", "p (Holm)"))


def groups_table(groups: Sequence[GroupDifference]) -> Table:
    rows = [
        (
            each.group or "-",
            str(each.cases),
            f"{each.before:.2f}",
            f"{each.after:.2f}",
            _points(each.after - each.before),
        )
        for each in groups
    ]
    heading = ("group", "cases", "before", "after", "difference")
    return Table(heading, rows, right=("cases", "before", "after", "difference"))


def cases_table(cases: Sequence[CaseDifference]) -> Table:
    rows = [
        (
            each.case_id,
            Drawn(
                f"{each.before:.2f} -> {each.after:.2f}",
                "&nbsp;→&nbsp;".join(toned(result.verdict).html for result in each.results),
            ),
            each.results[0].run_id,
            each.results[1].run_id,
            shortened(one_line(each.results[0].reason or each.results[1].reason), 200),
        )
        for each in cases
    ]
    heading = ("case", "passed", "run before", "run after", "reason")
    return Table(heading, rows, drop=("run before", "run after"), flexible="reason")


def _first_results(evaluation: Evaluation) -> dict[str, CaseResult]:
    found: dict[str, CaseResult] = {}
    for result in evaluation.results:
        if result.counts:
            found.setdefault(result.case_id, result)
    return found


def _grouped(cases: Sequence[CaseDifference], values: Mapping[str, float]) -> list[list[float]]:
    groups: dict[str, list[float]] = {}
    for case in cases:
        groups.setdefault(case.group or f"\0{case.case_id}", []).append(values[case.case_id])
    return list(groups.values())


def _smallest(groups: Sequence[Sequence[float]], mean: float) -> float | None:
    """The smallest difference that could be seen; groups whose cases move together count as fewer cases."""
    values = [value for group in groups for value in group]
    if not any(values) or len(groups) < 2:
        return None
    # With repeats, a case may differ by a part; its square is what counts.
    share = fmean(value * value for value in values)
    return smallest_difference([len(group) for group in groups], share, together=correlation(groups, mean))


def _change(before: Evaluation, after: Evaluation, shared: Sequence[str], value: Any) -> Change:
    def mean(evaluation: Evaluation) -> float | None:
        chosen = set(shared)
        found = [value(result) for result in evaluation.results if result.case_id in chosen and result.counts]
        return None if not found or None in found else fmean(found)

    return Change(mean(before), mean(after))


def _groups(cases: Sequence[CaseDifference]) -> tuple[GroupDifference, ...]:
    groups: dict[str, list[CaseDifference]] = {}
    for case in cases:
        groups.setdefault(case.group, []).append(case)
    return tuple(
        GroupDifference(name, len(found), fmean(each.before for each in found), fmean(each.after for each in found))
        for name, found in groups.items()
    )


def _scorers(before: Evaluation, after: Evaluation, cases: Sequence[CaseDifference]) -> tuple[ScorerDifference, ...]:
    found: list[tuple[str, float, float, Interval]] = []
    for name in (name for name in after.scorers if name in before.scorers):
        first, second = before.scores(name), after.scores(name)
        scored = [case for case in cases if case.case_id in first and case.case_id in second]
        if not scored:
            continue
        one = {case.case_id: fmean(first[case.case_id]) for case in scored}
        two = {case.case_id: fmean(second[case.case_id]) for case in scored}
        differences = {case: two[case] - one[case] for case in one}
        found.append((name, fmean(one.values()), fmean(two.values()), interval(_grouped(scored, differences))))
    adjusted = holm({name: each.p for name, _, _, each in found if each.p is not None})
    return tuple(ScorerDifference(name, one, two, each, adjusted.get(name)) for name, one, two, each in found)


def _preferences(judge: Judge, cases: Sequence[CaseDifference]) -> Preferences:
    votes: dict[str, float] = {}
    flips = 0
    with counting_judges() as spent:
        for case in cases:
            one, two = case.results
            same = one.answer == two.answer
            try:
                vote, flipped = (0.0, False) if same else judge.prefer(two.question, one.answer, two.answer)
            except (WinkError, Unscored):
                continue
            votes[case.case_id], flips = vote, flips + flipped
    return Preferences(
        sum(vote > 0 for vote in votes.values()),
        sum(vote < 0 for vote in votes.values()),
        sum(vote == 0 for vote in votes.values()),
        flips,
        interval(_grouped([case for case in cases if case.case_id in votes], votes)),
        spent.cost,
        len(cases) - len(votes),
    )


def _points(share: float) -> str:
    return f"{100 * share:+.0f} points" if round(100 * share) else "0 points"


def _range(found: Interval) -> str:
    if found.low is None or found.high is None:
        return "too few disagreements"
    return f"{100 * found.low:+.0f} to {100 * found.high:+.0f}"
