"""Which sections to show in full and which to summarize, from what recorded runs did with them.

Per run and section, with the prices of the run's model and cache rates measured over all runs of the prompt:

    first   = input - c0 * (input - cached)      a token at the start of an evaluation; c0 of those come from the cache
    again   = input - c  * (input - cached)      a token that the request before had too; c of those come from the cache
    FULL    = F * (first + (n - 1) * again)      F tokens in each of the n turns that did not only open the section
    SUMMARY = what the section had in each of those n turns, new tokens at `input`, the others at `first` or `again`
              + what the other turns cost        they only opened it, or a restart for it threw them away
              + lost * (input - cached)          tokens that could not be read from the cache, since its tools came

What a summarized section hides belongs to it: to open something inside it is what its summary costs. A cost shared by
several sections is divided among them. FULL is advised where its mean over the runs is the smaller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from weakincentives.limits import Prices
from weakincentives.prompt.tokens import Tokenizer
from weakincentives.prompt.visibility import SectionVisibility
from weakincentives.telemetry.facts import RunFacts, TurnFacts, run_facts
from weakincentives.telemetry.prices import prices_for
from weakincentives.telemetry.store import RunStore

FEWEST_RUNS = 3
# Costs in input tokens, for models without a known price: output at five times, cached input at a tenth of the price.
RELATIVE = Prices(1_000_000, 5_000_000, 100_000)
# The size of a summary that no recorded run has shown, where the prompt shows no other either.
TYPICAL_SUMMARY_TOKENS = 40

NEVER_OPENED = "never opened"
ALWAYS_OPENED = "always opened"
TOOLS_UNUSED = "opened, but its tools were never used"
TOOLS_NEVER_USED = "shown in full, but its tools were never used"


@dataclass(frozen=True, slots=True)
class SectionAdvice:
    """One section over the runs of its prompt.

    `cost_full` and `cost_summary` are expected per run, None where the runs cannot tell; `advised` is 'full', 'summary'
    or '' (leave it as it is, for the reason given). `first_use` is the median turn in which it was first opened, or in
    which a tool of it was first used when it was open from the start.
    """

    key: str
    title: str
    shown: str
    runs: int
    opened_runs: int
    openings: int
    first_use: float | None
    tools: tuple[str, ...]
    tool_runs: int
    full_tokens: int
    summary_tokens: int | None
    cost_full: float | None
    cost_summary: float | None
    advised: str
    reason: str
    findings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptAdvice:
    """One prompt: its sections, and what its recorded runs cost and would have cost with the advice.

    `unit` is 'USD', or 'input tokens' where the price of a model is not known. `cache_first` and `cache_again` are the
    measured shares of tokens that came from the cache.
    """

    prompt: str
    runs: int
    unit: str
    cost: float
    cost_advised: float
    cache_first: float
    cache_again: float
    sections: tuple[SectionAdvice, ...]

    @property
    def saved(self) -> float:
        return self.cost - self.cost_advised


@dataclass(frozen=True, slots=True)
class Advice:
    """The advice for every prompt of a file, over its last runs."""

    prompts: tuple[PromptAdvice, ...]

    @property
    def runs(self) -> int:
        return sum(prompt.runs for prompt in self.prompts)


def advise(
    store: RunStore,
    *,
    last: int = 100,
    prompt: str = "",
    prices: Mapping[str, Prices] | None = None,
    tokenizer: Tokenizer | None = None,
) -> Advice:
    """Advice from the last runs of a file that ended well, for each of its prompts or the one named."""
    found = store.list_runs(last, status="ok", prompt=prompt)
    grouped: dict[str, list[RunFacts]] = {}
    for run in found:
        facts = run_facts(store.disclosure_events(run.run_id), tokenizer)
        if facts.turns and facts.sections:
            grouped.setdefault(run.prompt, []).append(facts)
    return Advice(tuple(advise_prompt(name, runs, prices) for name, runs in sorted(grouped.items())))


def advise_prompt(name: str, runs: Sequence[RunFacts], prices: Mapping[str, Prices] | None = None) -> PromptAdvice:
    """The advice that the runs of one prompt give."""
    market = _Market(runs, prices)
    keys = dict.fromkeys(key for run in runs for key in run.sections)
    sections = tuple(_section(key, [run for run in runs if key in run.sections], market) for key in keys)
    cost = sum(market.paid(run) for run in runs)
    changed = {section.key: section for section in sections if section.advised and section.advised != section.shown}
    gained = sum(_gain(section, run, market) for run in runs for section in changed.values())
    return PromptAdvice(
        prompt=name,
        runs=len(runs),
        unit=market.unit,
        cost=cost,
        cost_advised=cost - gained,
        cache_first=market.cache_first,
        cache_again=market.cache_again,
        sections=sections,
    )


class _Market:
    """What a token costs: prices of the models, and the cache as it was measured."""

    def __init__(self, runs: Sequence[RunFacts], prices: Mapping[str, Prices] | None) -> None:
        models = {turn.model for run in runs for turn in run.turns}
        known = {model: found for model in models if (found := prices_for(model, prices))}
        self.unit = "USD" if len(known) == len(models) else "input tokens"
        self._prices = known if self.unit == "USD" else dict.fromkeys(models, RELATIVE)
        starts = [turn for run in runs for turn in run.turns if turn.first]
        self.cache_first = _share((turn.usage.cached_tokens, turn.usage.input_tokens) for turn in starts)
        self.cache_again = _share(
            (min(turn.usage.cached_tokens, before.usage.input_tokens), before.usage.input_tokens)
            for run in runs
            for before, turn in zip(run.turns, run.turns[1:], strict=False)
            if not turn.first and not turn.lost_for
        )
        self.summary_tokens = [
            state.shown_tokens
            for run in runs
            for state in run.shown.values()
            if state.visibility is SectionVisibility.SUMMARY
        ]

    def of(self, turn: TurnFacts, *, first: bool) -> tuple[float, float, float]:
        """Per token: new, at the start of an evaluation or sent again, and what a miss of the cache adds."""
        prices = self._prices[turn.model]
        fresh = prices.input / 1_000_000
        cached = fresh if prices.cached_input is None else prices.cached_input / 1_000_000
        share = self.cache_first if first else self.cache_again
        return fresh, fresh - share * (fresh - cached), fresh - cached

    def paid(self, run: RunFacts) -> float:
        return sum(self.price(turn) for turn in run.turns)

    def price(self, turn: TurnFacts) -> float:
        return self._prices[turn.model].cost(turn.usage)

    def full(self, tokens: int, key: str, run: RunFacts) -> float:
        """What so many tokens cost that are there from the start, in the turns that would have been left."""
        within = _within(key, run)
        left = [turn for turn in run.turns if within.isdisjoint(turn.opens)]
        return sum(tokens * self.of(turn, first=turn.first or turn is left[0])[1] for turn in left)

    def summary(self, key: str, run: RunFacts) -> float:
        """What the section has cost in a run that began with its summary."""
        cost, before, within = 0.0, 0, _within(key, run)
        for turn in run.turns:
            fresh, base, miss = self.of(turn, first=turn.first)
            tokens = sum(turn.tokens.get(name, 0) for name in within)
            if asked := within.intersection(turn.opens):
                cost += self.price(turn) * len(asked) / len(turn.opens)
            else:
                cost += tokens * base + (0 if turn.first else max(0, tokens - before) * (fresh - base))
            if blamed := within.intersection(turn.lost_for):
                cost += run.lost(turn) * miss * len(blamed) / len(turn.lost_for)
            before = tokens
        return cost


def _within(key: str, run: RunFacts) -> set[str]:
    """The section, and the sections inside it that it hid when the run began: they would open with it."""
    hidden = (name for name, state in run.sections.items() if state.visibility is SectionVisibility.HIDDEN)
    return {key, *(name for name in hidden if name.startswith(f"{key}."))}


def _share(pairs: Iterable[tuple[int, int]]) -> float:
    parts = wholes = 0
    for part, whole in pairs:
        parts += part
        wholes += whole
    return min(1.0, parts / wholes) if wholes else 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _median(values: Sequence[int]) -> float:
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _section(key: str, runs: Sequence[RunFacts], market: _Market) -> SectionAdvice:
    first = runs[0].sections[key]
    began = {run.sections[key].visibility for run in runs}
    shown = first.visibility.value if len(began) == 1 else "mixed"
    summarized = [run for run in runs if run.sections[key].visibility is SectionVisibility.SUMMARY]
    opened = [turn for run in runs if (turn := run.first_opening(key)) is not None]
    used = [turn for run in runs if (turn := run.first_use(key)) is not None]
    full_tokens = _full_tokens(key, runs)
    summary_tokens = round(_mean([run.sections[key].shown_tokens for run in summarized])) if summarized else None
    cost_full = cost_summary = None
    if summarized:
        cost_full = _mean([market.full(full_tokens, key, run) for run in summarized])
        cost_summary = _mean([market.summary(key, run) for run in summarized])
    elif shown == "full":
        cost_full = _mean([market.full(full_tokens, key, run) for run in runs])
    findings = []
    if shown == "summary":
        if not any(_within(key, run) & {name for _, name in run.openings} for run in runs):
            findings.append(NEVER_OPENED)
        elif len(opened) == len(runs):
            findings.append(ALWAYS_OPENED)
        if opened and first.tools and not used:
            findings.append(TOOLS_UNUSED)
    elif shown == "full" and first.tools and first.collapsible and not used:
        findings.append(TOOLS_NEVER_USED)
    advised, reason = _verdict(key, shown, len(runs), cost_full, cost_summary, findings)
    return SectionAdvice(
        key=key,
        title=first.title,
        shown=shown,
        runs=len(runs),
        opened_runs=len(opened),
        openings=sum(opened_key == key for run in runs for _, opened_key in run.openings),
        first_use=_median(opened or used) if opened or used else None,
        tools=first.tools,
        tool_runs=len(used),
        full_tokens=full_tokens,
        summary_tokens=summary_tokens,
        cost_full=cost_full,
        cost_summary=cost_summary,
        advised=advised,
        reason=reason,
        findings=tuple(findings),
    )


def _verdict(
    key: str, shown: str, runs: int, cost_full: float | None, cost_summary: float | None, findings: Sequence[str]
) -> tuple[str, str]:
    if shown == "hidden":
        return "", f"inside '{key.rpartition('.')[0]}', which is summarized"
    if runs < FEWEST_RUNS:
        return "", f"only {runs} run{'s' if runs > 1 else ''}; {FEWEST_RUNS} say more"
    if cost_full is not None and cost_summary is not None:
        if cost_full < cost_summary:
            return "full", f"in full it costs {1 - cost_full / cost_summary:.0%} less"
        return "summary", f"summarized it costs {1 - cost_summary / cost_full:.0%} less" if cost_full else "equal cost"
    if TOOLS_NEVER_USED in findings:
        return "summary", "its tools were used in no run"
    return "", "open in every run, so the runs cannot tell who would have opened it"


def _full_tokens(key: str, runs: Sequence[RunFacts]) -> int:
    """What opening the section shows: itself with its tools, and what is inside it as that was last seen."""
    seen = {name: state for run in runs for name, state in run.shown.items()}
    total = 0
    sections = runs[-1].sections
    for name, state in sections.items():
        if name == key or name.startswith(f"{key}."):
            now = seen.get(name, state)
            summarized = now.visibility is SectionVisibility.SUMMARY and name != key
            total += now.shown_tokens if summarized else state.full_tokens + state.tool_tokens
    return total


def _gain(section: SectionAdvice, run: RunFacts, market: _Market) -> float:
    """What a run would have saved had the section been shown as advised."""
    state = run.sections.get(section.key)
    if state is None or state.visibility is SectionVisibility.HIDDEN or state.visibility.value == section.advised:
        return 0.0
    full = market.full(section.full_tokens, section.key, run)
    if section.advised == "full":
        return market.summary(section.key, run) - full
    typical = round(_mean(market.summary_tokens)) if market.summary_tokens else TYPICAL_SUMMARY_TOKENS
    return full - market.full(typical, section.key, run)
