"""Are comparisons honest, and does tuning restore what was lost? Simulations, and public sets with `--data FOLDER`.

False alarms are the share of evaluations without a true difference in which the interval excludes zero; power is the
share in which a true difference of the printed size is seen, given the share of cases that disagree and how much those
of a group move together. Summaries are good if tuning finds nothing better: those of the demo's handbook, those that
tuning has adopted itself, and any if what a question needs has nothing to do with its words.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle, islice
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from bench.finding import Dataset, read_sets
from bench.row import Row
from weakincentives.demo.desk import template
from weakincentives.demo.questions import cases
from weakincentives.evals import Case, Tuning, tune
from weakincentives.evals.intervals import Interval, interval, smallest_difference
from weakincentives.prompt import (
    Disclosure,
    JsonPromptOverridesStore,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    ReadSections,
    SearchSections,
    SectionVisibility,
)
from weakincentives.prompt.disclosure.ranking import LexicalRanker, SectionText

SLOW = True
ALARM_TRIALS, POWER_TRIALS = 4_000, 2_000
SETS = (("livemcp", ""), ("bfcl_miss_func", ""), ("metatool", ""), ("tau_banking", ""))
MIN_LOST = 0.05
PLACEBO_SEEDS, PLACEBO_CASES = 20, 60


def rows() -> Iterable[Row]:
    yield from alarm_rows()
    yield from power_rows()
    handbook = tune(template(), cases())
    yield Row(
        "demo's handbook: adopted", float(handbook.adopted), "", goal=0, note=f"held recall@5 {_change(handbook)}"
    )
    try:
        sets = read_sets(SETS)
    except FileNotFoundError:
        return
    for data in sets.values():
        yield from tuning_rows(data)
    yield from placebo_rows(sets.values())


def alarm_rows() -> Iterable[Row]:
    drawn = random.Random(1)
    for count in (30, 50, 100):
        for share in (0.1, 0.2, 0.4):
            seen = _excluding_zero(drawn, [1] * count, share, 0.0)
            yield Row(f"false alarms, {count} cases, {share:.0%} disagree", seen, "%", goal=6)
    for name, sizes, together in _groupings():
        seen = _excluding_zero(drawn, sizes, 0.3, together)
        yield Row(f"false alarms, {name}", seen, "%", goal=6)


def power_rows() -> Iterable[Row]:
    """How far is the power at the smallest difference from 80%, at worst over several shares of disagreements?"""
    drawn = random.Random(2)
    ungrouped = [(f"{count} cases", [1] * count, 0.0) for count in (10, 20, 30, 50, 100, 200)]
    for name, sizes, together in (*ungrouped, *_groupings()):
        seen, said = [80.0], list[str]()
        for share in (0.1, 0.2, 0.3, 0.5):
            smallest = smallest_difference(sizes, share, together=together**2)
            if smallest is not None:
                seen.append(_excluding_zero(drawn, sizes, share, together, smallest))
                said.append(f"{100 * smallest:.0f} points at {share:.0%} disagreeing: {seen[-1]:.1f}%")
        note = "; ".join(said) or "nothing can be shown"
        yield Row(
            f"power, {name}: away from 80% by", max(abs(power - 80) for power in seen), "points", goal=5, note=note
        )


def _groupings() -> Iterable[tuple[str, list[int], float]]:
    """Groups by name, sizes, and the chance that a case of a group moves as the group does."""
    for count in (8, 12, 20, 30, 40, 60):
        for name, some in (("5 cases each", (5,)), ("2, 4 or 9 cases each", (2, 4, 9))):
            for moved, together in (("together", 1.0), ("half together", 0.5), ("apart", 0.0)):
                yield f"{count} groups of {name} that move {moved}", [*islice(cycle(some), count)], together


def tuning_rows(data: Dataset) -> Iterable[Row]:
    """Every other summary is cut to its first three words; how much of what that costs does tuning bring back?"""
    original = tune(_template(data), _cases(data), by="summaries")
    worsened = tune(_template(_cut(data)), _cases(data), by="summaries")
    lost = original.before - worsened.before
    gain = f"held recall@5 {_change(original)}; {original.tokens:+,} tokens"
    yield Row(f"{data.name}: original summaries, adopted", float(original.adopted), "", note=gain)
    again = _tuned_again(_template(data), original, _cases(data))
    note = f"{len(again.summaries)} summaries proposed; held recall@5 {_change(again)}"
    yield Row(f"{data.name}: tuned again, adopted", float(again.adopted), "", goal=0, note=note)
    yield Row(f"{data.name}: the cut costs on the held half", 100 * lost, "points")
    if 100 * lost > 0:
        restored = 100 * (worsened.after - worsened.before) / (100 * lost) * 100
        enough = lost >= MIN_LOST or worsened.chosen_before + MIN_LOST <= original.chosen_before
        yield Row(
            f"{data.name}: restored",
            restored,
            "%",
            goal=50 if enough else None,
            better="more",
            note=f"held recall@5 {_change(worsened)}; {worsened.tokens:+,} tokens; adopted: {worsened.adopted}",
        )


def placebo_rows(sets: Iterable[Dataset]) -> Iterable[Row]:
    """How often are summaries adopted if the sections that a question needs are drawn at random?

    No summary can be better then, provided that each question finds equally many sections: a fuller summary would
    otherwise gain by being found where nothing was found before.
    """
    found: list[Tuning] = []
    for data in sets:
        for seed in range(PLACEBO_SEEDS):
            drawn = random.Random(seed)
            asked = [
                replace(case, metadata={"sections": [f"s{drawn.randrange(len(data.sections))}"]}, group="")
                for case in drawn.sample(_cases(data), PLACEBO_CASES)
            ]
            found.append(tune(_template(data, SearchSections(ranker=EveryRank())), asked, by="summaries"))
    adopted = sum(each.adopted for each in found)
    gain = fmean(each.after - each.before for each in found)
    note = f"{adopted} of {len(found)} tunings; held recall@5 {100 * gain:+.1f} points on average"
    yield Row("sections drawn at random: adopted (nominal 10%)", 100 * adopted / len(found), "%", goal=15, note=note)


def _tuned_again(prompt: PromptTemplate[Any], found: Tuning, asked: Sequence[Case]) -> Tuning:
    with TemporaryDirectory() as folder:
        store = JsonPromptOverridesStore(folder)
        if found.adopted and found.override is not None:
            store.upsert(found.override)
        return tune(Prompt(prompt, overrides_store=store, overrides_tag="tuned"), asked, by="summaries")


def _cases(data: Dataset) -> list[Case]:
    return [
        Case(
            f"{query.task}-{query.kind}-{place}",
            query.text,
            metadata={"sections": [[f"s{each}" for each in group] for group in query.gold]},
            group=query.task,
        )
        for place, query in enumerate(data.queries)
    ]


def _cut(data: Dataset) -> Dataset:
    """Every other summary, cut to its first three words."""
    cut = [
        replace(section, summary=" ".join(section.summary.split()[:3])) if place % 2 else section
        for place, section in enumerate(data.sections)
    ]
    return replace(data, sections=cut)


def _change(found: Tuning) -> str:
    return f"{100 * found.before:.1f} -> {100 * found.after:.1f} (p = {found.p:.3f})"


class EveryRank:
    """Ranks as `LexicalRanker` does, and sections that share no word with the question after the others."""

    def index(self, texts: Sequence[str]) -> EveryIndex:
        return EveryIndex(LexicalRanker().index(texts), len(texts))

    def index_sections(self, sections: Sequence[SectionText]) -> EveryIndex:
        return EveryIndex(LexicalRanker().index_sections(sections), len(sections))


@dataclass(frozen=True, slots=True)
class EveryIndex:
    index: Any
    count: int

    def rank(self, query: str, limit: int) -> list[tuple[int, float]]:
        found = self.index.rank(query, limit)
        rest = [place for place in range(self.count) if place not in {known for known, _ in found}]
        return [
            *found,
            *((place, 0.0) for place in random.Random(query).sample(rest, min(limit - len(found), len(rest)))),
        ]


def _template(data: Dataset, disclosure: Disclosure | None = None) -> PromptTemplate[None]:
    sections = [
        MarkdownSection(
            title=one.title or one.key,
            key=f"s{place}",
            template=body.replace("$", "$$") or one.title,
            summary=(one.summary or one.title).replace("$", "$$"),
            visibility=SectionVisibility.SUMMARY,
        )
        for place, (one, body) in enumerate(zip(data.sections, data.bodies, strict=True))
    ]
    return PromptTemplate(ns="bench", key="tuning", sections=sections, disclosure=disclosure or ReadSections())


def _case(drawn: random.Random, share: float, difference: float = 0.0) -> int:
    """One paired case: 1 is a win, -1 a loss; this share of cases disagrees."""
    value = drawn.random()
    if value < (share + difference) / 2:
        return 1
    return -1 if value < share else 0


def _grouped(
    drawn: random.Random, sizes: Sequence[int], share: float, together: float, difference: float
) -> Iterable[tuple[int, int, int]]:
    """The size of each group, the sum of its differences, and how many of its cases differ."""
    for size in sizes:
        common = _case(drawn, share, difference)
        group = [common if drawn.random() < together else _case(drawn, share, difference) for _ in range(size)]
        yield size, sum(group), sum(map(abs, group))


def _excluding_zero(
    drawn: random.Random, sizes: Sequence[int], share: float, together: float, difference: float = 0.0
) -> float:
    trials, seen = POWER_TRIALS if difference else ALARM_TRIALS, 0
    for _ in range(trials):
        found = _interval(tuple(sorted(_grouped(drawn, sizes, share, together, difference))))
        seen += found.low is not None and found.high is not None and (found.low > 0 or found.high < 0)
    return 100 * seen / trials


@cache
def _interval(groups: tuple[tuple[int, int, int], ...]) -> Interval:
    """The interval, once for each set of groups: it depends on the sizes and sums of groups alone."""
    made = []
    for size, total, differing in groups:
        wins = (total + differing) // 2
        made.append([1.0] * wins + [-1.0] * (differing - wins) + [0.0] * (size - differing))
    return interval(made)
