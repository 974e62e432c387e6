"""Advises which sections to show in full and which to summarize, based on how recorded runs used them.

Per run and section, with the prices of the run's model and cache rates measured over all runs of the prompt:

    first   = input - c0 * (input - cached)      a token at the start of an evaluation; a share c0 comes from the cache
    again   = input - c  * (input - cached)      a token also in the previous request; a share c comes from the cache
    FULL    = F * (first + (n - 1) * again)      F tokens in each of the n turns that did not only open the section
    SUMMARY = the section's tokens in each of those n turns, new ones at `input`, the rest at `first` or `again`
              + the cost of the other turns      they only opened it, or a restart for it discarded them
              + lost * (input - cached)          tokens that missed the cache because its tools were added

What a summarized section hides counts as part of it: opening something inside it is a cost of its summary. A cost
shared by several sections is divided among them. FULL is advised if its mean over the runs is smaller, and from the
first run on if the summary takes as many tokens as the section itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from weakincentives.limits import Prices
from weakincentives.prompt import SectionVisibility, Tokenizer, inside
from weakincentives.runtime import HistoryTurn, RunHistory
from weakincentives.runtime.spi import SectionState, prices_for, request_tokens
from weakincentives.telemetry.store import RunStore

MIN_RUNS = 3
# Costs in input tokens, for models without a known price: output counts five times as much, cached input a tenth.
RELATIVE = Prices(1_000_000, 5_000_000, 100_000)
# The assumed size of a summary if no run has shown one.
TYPICAL_SUMMARY_TOKENS = 40

NEVER_OPENED = "never opened"
ALWAYS_OPENED = "always opened"
TOOLS_UNUSED = "opened, but its tools were never used"
TOOLS_NEVER_USED = "shown in full, but its tools were never used"


@dataclass(frozen=True, slots=True)
class SectionAdvice:
    """One section over the runs of its prompt.

    `cost_full` and `cost_summary` are expected costs per run, None if the runs do not show them; `advised` is 'full',
    'summary' or '' (leave it as it is, for the reason given). `full_tokens` is None if no run has loaded the section,
    such as one with an MCP server's tools. `first_use` is the median turn in which the section was first opened or, if
    it was open from the start, in which one of its tools was first used. `misses` are reasons why it may have been
    needed in runs that left it closed.
    """

    key: str  #: the section
    title: str  #: its title
    shown: str  #: its visibility at the start of the last run
    runs: int  #: runs that had the section
    opened_runs: int  #: runs that opened it
    openings: int  #: how often it was opened
    first_use: float | None
    tools: tuple[str, ...]  #: names of its tools
    tool_runs: int  #: runs that used one of them
    full_tokens: int | None
    summary_tokens: int | None  #: tokens of its summary; None if it has none
    cost_full: float | None
    cost_summary: float | None
    advised: str
    reason: str  #: the reason for the advice
    findings: tuple[str, ...] = ()  #: other things to look at
    misses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptAdvice:
    """One prompt: its sections, and what its recorded runs cost and would have cost with the advice.

    `unit` is 'USD', or 'input tokens' if a model's price is unknown. `cache_first` and `cache_again` are the measured
    shares of tokens that came from the cache.
    """

    prompt: str  #: namespace and key of the template
    runs: int  #: the number of runs
    unit: str
    cost: float  #: the cost of the runs, in `unit`
    cost_advised: float  #: what they would have cost
    cache_first: float
    cache_again: float
    sections: tuple[SectionAdvice, ...]  #: one for each section

    @property
    def saved(self) -> float:
        return self.cost - self.cost_advised


@dataclass(frozen=True, slots=True)
class Advice:
    """The advice for every prompt in a file, based on its last runs."""

    prompts: tuple[PromptAdvice, ...]  #: one for each prompt

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
    """Advice from the last successful runs in a file, for each of its prompts or only the one named."""
    found = store.list_runs(last, status="ok", prompt=prompt, parent=None)
    grouped: dict[str, list[_Run]] = {}
    for summary in found:
        run = _Run(store.history(summary.run_id), tokenizer)
        if run.turns and run.sections:
            grouped.setdefault(summary.prompt, []).append(run)
    return Advice(tuple(_advise_prompt(name, runs, prices) for name, runs in sorted(grouped.items())))


def _advise_prompt(name: str, runs: Sequence[_Run], prices: Mapping[str, Prices] | None) -> PromptAdvice:
    """The advice from the runs of one prompt."""
    costs = PriceModel(runs, prices)
    keys = dict.fromkeys(key for run in runs for key in run.sections)
    sections = tuple(_section(key, [run for run in runs if key in run.sections], costs) for key in keys)
    cost = sum(costs.paid(run) for run in runs)
    changed = [section for section in sections if section.advised and section.advised != section.shown]
    opened = [section.key for section in changed if section.advised == "full"]
    gained = sum(_gain(section, run, costs, opened) for run in runs for section in changed)
    # Where nothing is left to open, neither are the tools for that.
    if len(opened) == len(changed):
        gained += sum(costs.full(run.builtin_tokens, run, *opened) for run in runs if run.summarized <= set(opened))
    return PromptAdvice(
        prompt=name,
        runs=len(runs),
        unit=costs.unit,
        cost=cost,
        cost_advised=cost - gained,
        cache_first=costs.cache_first,
        cache_again=costs.cache_again,
        sections=sections,
    )


class _Run:
    """A run with its tokens counted: its initial sections, and what was opened and used in which turn."""

    def __init__(self, history: RunHistory, tokenizer: Tokenizer | None) -> None:
        self.turns = history.turns
        self.tokens = [request.sections for request in request_tokens(history, tokenizer)]
        self.opened_for = [history.opened_for(turn) for turn in self.turns]
        states = [{".".join(state.path): state for state in render.sections} for render in history.renders]
        self.sections: dict[str, SectionState] = states[0] if states else {}
        self.summarized = {key for key, state in self.sections.items() if state.base is SectionVisibility.SUMMARY}
        self.builtin_tokens = history.renders[0].builtin_tool_tokens if self.summarized else 0
        self.shown = {
            key: state
            for sections in states
            for key, state in sections.items()
            if state.visibility is not SectionVisibility.HIDDEN
        }
        self.misses = history.misses
        uses = [(turn.number, use) for turn in self.turns for use in turn.uses]
        self.uses = [(turn, use.section_key) for turn, use in uses if use.disclosure is None]
        openings = [(turn, key) for turn, use in uses for key in use.opened]
        restarts = [(step.turn, key) for step in history.steps if step.kind == "restart" for key in step.sections]
        self.openings = sorted([*openings, *(found for found in restarts if found not in openings)])

    def within(self, key: str) -> set[str]:
        """The section and those it initially hid inside it, which would open with it."""
        hidden = (name for name, state in self.sections.items() if state.visibility is SectionVisibility.HIDDEN)
        return {key, *(name for name in hidden if _is_inside(self.sections[name], self.sections.get(key)))}


class PriceModel:
    """The cost of a token: the prices of the models, with the measured cache rates."""

    def __init__(self, runs: Sequence[_Run], prices: Mapping[str, Prices] | None) -> None:
        models = {turn.called.model for run in runs for turn in run.turns}
        known = {model: found for model in models if (found := prices_for(model, prices))}
        self.unit = "USD" if len(known) == len(models) else "input tokens"
        self._prices = known if self.unit == "USD" else dict.fromkeys(models, RELATIVE)
        starts = [turn.called.usage for run in runs for turn in run.turns if turn.first]
        self.cache_first = _share((usage.cached_tokens, usage.input_tokens) for usage in starts)
        again = [
            (turn.called.usage.cached_tokens, before.called.usage.input_tokens)
            for run in runs
            for before, turn in pairwise(run.turns)
            if not turn.first and not turn.route
        ]
        self.cache_again = _share((min(cached, sent), sent) for cached, sent in again)
        self.summary_tokens = [
            state.shown_tokens
            for run in runs
            for state in run.shown.values()
            if state.visibility is SectionVisibility.SUMMARY
        ]

    def of(self, turn: HistoryTurn, *, first: bool) -> tuple[float, float, float]:
        """Price per token: of a new one, of one at the start of an evaluation or resent, and what a cache miss adds."""
        prices = self._prices[turn.called.model]
        fresh = prices.input / 1_000_000
        cached = fresh if prices.cached_input is None else prices.cached_input / 1_000_000
        share = self.cache_first if first else self.cache_again
        return fresh, fresh - share * (fresh - cached), fresh - cached

    def paid(self, run: _Run) -> float:
        return sum(self.price(turn) for turn in run.turns)

    def price(self, turn: HistoryTurn) -> float:
        return self._prices[turn.called.model].cost(turn.called.usage)

    def full(self, tokens: int, run: _Run, *keys: str) -> float:
        """The cost of sending these tokens in every turn that would remain if the sections were open from the start."""
        within = {name for key in keys for name in run.within(key)}
        left = [turn for turn, opens in zip(run.turns, run.opened_for, strict=True) if within.isdisjoint(opens)]
        return sum(tokens * self.of(turn, first=turn.first or turn is left[0])[1] for turn in left)

    def summary(self, key: str, run: _Run) -> float:
        """The section's cost in a run that began with its summary."""
        cost, before, within = 0.0, 0, run.within(key)
        for turn, sections, opens in zip(run.turns, run.tokens, run.opened_for, strict=True):
            fresh, base, miss = self.of(turn, first=turn.first)
            tokens = sum(sections.get(name, 0) for name in within)
            if asked := within.intersection(opens):
                cost += self.price(turn) * len(asked) / len(opens)
            else:
                cost += tokens * base + (0 if turn.first else max(0, tokens - before) * (fresh - base))
            if blamed := within.intersection(turn.lost_for):
                cost += turn.cache_lost_tokens * miss * len(blamed) / len(turn.lost_for)
            before = tokens
        return cost


def _is_inside(state: SectionState, other: SectionState | None) -> bool:
    return other is not None and inside(state.path, other.path)


def _share(pairs: Iterable[tuple[int, int]]) -> float:
    counted = list(pairs)
    whole = sum(whole for _, whole in counted)
    return min(1.0, sum(part for part, _ in counted) / whole) if whole else 0.0


def _first_turns(key: str, runs: Iterable[Sequence[tuple[int, str]]]) -> list[int]:
    """For each run that used the section, the turn in which it first did."""
    found = (next((turn for turn, name in done if name == key), None) for done in runs)
    return [turn for turn in found if turn is not None]


def _section(key: str, runs: Sequence[_Run], costs: PriceModel) -> SectionAdvice:
    first = runs[0].sections[key]
    began = {run.sections[key].visibility for run in runs}
    shown = first.visibility.value if len(began) == 1 else "mixed"
    summarized = [run for run in runs if run.sections[key].visibility is SectionVisibility.SUMMARY]
    opened = _first_turns(key, [run.openings for run in runs])
    used = _first_turns(key, [run.uses for run in runs])
    full_tokens = _full_tokens(key, runs)
    summary_tokens = round(fmean([run.sections[key].shown_tokens for run in summarized])) if summarized else None
    cost_full = cost_summary = None
    if full_tokens is not None and (summarized or shown == "full"):
        cost_full = fmean([costs.full(full_tokens, run, key) for run in summarized or runs])
    if summarized:
        cost_summary = fmean([costs.summary(key, run) for run in summarized])
    findings = []
    misses = [miss.reason for run in runs for miss in run.misses if miss.section_key == key]
    if misses:
        findings.append(f"possibly missed in {len(misses)} of {len(runs)} runs")
    if shown == "summary":
        if not any(run.within(key) & {name for _, name in run.openings} for run in runs):
            findings.append(NEVER_OPENED)
        elif len(opened) == len(runs):
            findings.append(ALWAYS_OPENED)
        if opened and first.tools and not used:
            findings.append(TOOLS_UNUSED)
    elif shown == "full" and first.tools and first.collapsible and not used:
        findings.append(TOOLS_NEVER_USED)
    if shown == "summary" and full_tokens is not None and summary_tokens is not None and full_tokens <= summary_tokens:
        advised, reason = "full", f"closing it costs more than it saves: {summary_tokens} tokens, in full {full_tokens}"
    else:
        advised, reason = _verdict(key, shown, len(runs), cost_full, cost_summary, findings)
    return SectionAdvice(
        key=key,
        title=first.title,
        shown=shown,
        runs=len(runs),
        opened_runs=len(opened),
        openings=sum(opened_key == key for run in runs for _, opened_key in run.openings),
        first_use=median(opened or used) if opened or used else None,
        tools=first.tools,
        tool_runs=len(used),
        full_tokens=full_tokens,
        summary_tokens=summary_tokens,
        cost_full=cost_full,
        cost_summary=cost_summary,
        advised=advised,
        reason=reason,
        findings=tuple(findings),
        misses=tuple(dict.fromkeys(misses)),
    )


def _verdict(
    key: str, shown: str, runs: int, cost_full: float | None, cost_summary: float | None, findings: Sequence[str]
) -> tuple[str, str]:
    if shown == "hidden":
        return "", f"inside '{key.rpartition('.')[0]}', which is summarized"
    if runs < MIN_RUNS:
        return "", f"only {runs} run{'s' if runs > 1 else ''}; at least {MIN_RUNS} are needed"
    if cost_full is not None and cost_summary is not None:
        if cost_full < cost_summary:
            return "full", f"in full it costs {1 - cost_full / cost_summary:.0%} less"
        return "summary", f"summarized it costs {1 - cost_summary / cost_full:.0%} less" if cost_full else "equal cost"
    if cost_summary is not None:
        return "", "no run has loaded its tools, so what it costs in full is not known"
    if TOOLS_NEVER_USED in findings:
        return "summary", "no run used its tools"
    return "", "open in every run, so the runs do not show which would have opened it"


def _full_tokens(key: str, runs: Sequence[_Run]) -> int | None:
    """The tokens that opening the section shows: itself, its tools, and the sections inside it as last seen.

    They are those of the newest run that knows them all; None if there is none.
    """
    seen = {name: state for run in reversed(runs) for name, state in run.shown.items()}

    def is_summarized(name: str, state: SectionState) -> bool:
        return name != key and seen.get(name, state).visibility is SectionVisibility.SUMMARY

    for run in runs:
        inside = [(name, state) for name, state in run.sections.items() if _is_inside(state, run.sections[key])]
        if not any(state.unloaded and not is_summarized(name, state) for name, state in inside):
            return sum(
                seen[name].shown_tokens if is_summarized(name, state) else state.full_tokens + state.tool_tokens
                for name, state in inside
            )
    return None


def _gain(section: SectionAdvice, run: _Run, costs: PriceModel, opened: Sequence[str]) -> float:
    """The saving of a run, had the section been shown as advised."""
    state = run.sections.get(section.key)
    if state is None or state.visibility.value in ("hidden", section.advised) or section.full_tokens is None:
        return 0.0
    if section.advised == "full":
        return costs.summary(section.key, run) - costs.full(section.full_tokens, run, section.key)
    typical = round(fmean(costs.summary_tokens)) if costs.summary_tokens else TYPICAL_SUMMARY_TOKENS
    # Turns that only opened what is then open from the start are counted there.
    return costs.full(section.full_tokens - typical, run, section.key, *opened)
