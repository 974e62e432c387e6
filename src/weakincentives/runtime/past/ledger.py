"""The savings and costs of disclosure, from the history of a run.

The counterfactual is the same run with everything open from the start: it has no turns that only opened sections, and
every other turn sends the full prompt and all tools in place of what was shown, without the calls and results that
opened sections. If a run ends in turns that only opened sections (it failed, halted or is still running), the first of
them counts for both runs. Tokens sent are the provider's count; what replaces them is counted by the tokenizer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from weakincentives._base.display import Displayed, Shown, Table
from weakincentives.limits import TokenUsage
from weakincentives.prompt import SectionVisibility, Tokenizer, default_tokenizer, tokenizer_named
from weakincentives.runtime.past.history import RunHistory, run_history
from weakincentives.session import Session


@dataclass(frozen=True, slots=True)
class LedgerTurn:
    """One call of the model.

    `full_prompt_tokens` is None if the full prompt would not have needed the call. `cache_lost_tokens` had been sent
    before but could not be read from the cache, because `route` changed the beginning of the request. `ranked_tokens`
    were sent to the model that ranks sections, for `ranking_cost` dollars.
    """

    turn: int  #: its number in the run, from 1
    attempt: int  #: the number of its attempt, from 1
    sent_tokens: int  #: tokens sent
    cached_tokens: int  #: of those, read from the cache
    full_prompt_tokens: int | None
    cache_lost_tokens: int = 0
    route: str = ""
    ranked_tokens: int = 0
    ranking_cost: float = 0.0


@dataclass(frozen=True, slots=True)
class LedgerSection:
    """One section over the whole run, including its tools.

    `full_tokens` and `shown_tokens` are per turn, as at the last render; `sent_tokens` and `full_prompt_tokens` are
    sums over all turns, of this run and of the counterfactual.
    """

    key: str  #: the section
    full_tokens: int
    shown_tokens: int
    opened: int = 0  #: how often it was opened
    tools_used: int = 0  #: calls of its tools
    sent_tokens: int = 0
    full_prompt_tokens: int = 0

    @property
    def saved(self) -> int:
        return self.full_prompt_tokens - self.sent_tokens


@dataclass(frozen=True, slots=True, repr=False)
class Ledger(Displayed):
    """Tokens that a run sent, and those the full prompt would have sent; `saved` may be negative.

    `children` is what the runs used that its calls made, by run id, and `ranked_tokens` what the model read that ranks
    sections; the other figures include neither.
    """

    run_id: str  #: the run
    rows: tuple[LedgerTurn, ...]  #: one for each model call
    restarts: int  #: how often the run began again to open sections
    sections: tuple[LedgerSection, ...]  #: one for each section
    children: Mapping[str, TokenUsage] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Ledger of run {self.run_id}: {self._totals()}>"

    def _display(self) -> Iterator[Shown]:
        yield f"Run {self.run_id}: {self._totals()}"
        turns = [
            (
                f"{row.turn}",
                f"{row.sent_tokens:,}",
                f"{row.cached_tokens:,}",
                "-" if row.full_prompt_tokens is None else f"{row.full_prompt_tokens:,}",
                f"{row.ranked_tokens:,}",
            )
            for row in self.rows
        ]
        numbers = ("turn", "sent", "cached", "full prompt", "ranked")[: 5 if self.ranked_tokens else 4]
        yield Table(numbers, [turn[: len(numbers)] for turn in turns], right=numbers)
        sections = [
            (section.key, f"{section.opened}", f"{section.sent_tokens:,}", f"{section.full_prompt_tokens:,}")
            for section in self.sections
        ]
        yield Table(("section", "opened", "sent", "full prompt"), sections, right=("opened", "sent", "full prompt"))

    def _totals(self) -> str:
        share = f" ({self.saved / self.full_prompt_tokens:.0%})" if self.full_prompt_tokens else ""
        inner = sum(usage.input_tokens for usage in self.children.values())
        more = f"; {inner:,} more in {len(self.children)} runs inside it" if self.children else ""
        if self.ranked_tokens:
            more += f"; {self.ranked_tokens:,} more to rank sections (${self.ranking_cost:.4f})"
        return f"{self.sent_tokens:,} tokens sent in {self.turns} turns, {self.saved:,} saved{share}{more}"

    @property
    def turns(self) -> int:
        return len(self.rows)

    @property
    def sent_tokens(self) -> int:
        return sum(row.sent_tokens for row in self.rows)

    @property
    def cached_tokens(self) -> int:
        return sum(row.cached_tokens for row in self.rows)

    @property
    def full_prompt_tokens(self) -> int:
        return sum(row.full_prompt_tokens or 0 for row in self.rows)

    @property
    def saved(self) -> int:
        return self.full_prompt_tokens - self.sent_tokens

    @property
    def ranked_tokens(self) -> int:
        return sum(row.ranked_tokens for row in self.rows)

    @property
    def ranking_cost(self) -> float:
        return sum(row.ranking_cost for row in self.rows)

    @property
    def cache_lost_tokens(self) -> int:
        return sum(row.cache_lost_tokens for row in self.rows)

    @property
    def cache_lost_by_route(self) -> dict[str, int]:
        lost: dict[str, int] = {}
        for row in self.rows:
            if row.cache_lost_tokens:
                lost[row.route] = lost.get(row.route, 0) + row.cache_lost_tokens
        return lost


def ledger(session: Session, run_id: str | None = None, *, tokenizer: Tokenizer | None = None) -> Ledger:
    """The ledger of a run of the session, by default the last one."""
    return ledger_of(run_history(session, run_id), tokenizer=tokenizer)


def ledger_of(history: RunHistory, *, tokenizer: Tokenizer | None = None) -> Ledger:
    """The ledger of a history."""
    rows: list[LedgerTurn] = []
    real = 0
    requests = list(request_tokens(history, tokenizer))
    ending = max((at for at, turn in enumerate(history.turns) if not turn.only_opened), default=-1) + 1
    for at, (turn, request) in enumerate(zip(history.turns, requests, strict=True)):
        usage = turn.called.usage
        happens = not turn.only_opened or at == ending
        real += happens
        rows.append(
            LedgerTurn(
                turn=turn.number,
                attempt=turn.attempt,
                sent_tokens=usage.input_tokens,
                cached_tokens=usage.cached_tokens,
                full_prompt_tokens=max(0, usage.input_tokens + request.undisclosed) if happens else None,
                cache_lost_tokens=turn.cache_lost_tokens,
                route=turn.route,
                ranked_tokens=sum(ranking.usage.input_tokens for ranking in turn.rankings),
                ranking_cost=sum(ranking.cost for ranking in turn.rankings),
            )
        )
    return Ledger(
        run_id=history.run_id,
        rows=tuple(rows),
        restarts=history.restarts,
        sections=_sections(history, _sent(requests), real),
        children=history.children,
    )


@dataclass(frozen=True, slots=True)
class RequestTokens:
    """Disclosure's part of one request: tokens by section, and how many more the full prompt would have had."""

    sections: Mapping[str, int]
    undisclosed: int


def request_tokens(history: RunHistory, tokenizer: Tokenizer | None = None) -> Iterator[RequestTokens]:
    """Each turn's request, counted.

    A section's tokens are what the prompt shows of it, what was read of it, and its tools. What opened sections is
    counted by the tokenizer, by default as the run counted its prompt.
    """
    if tokenizer is None:
        tokenizer = default_tokenizer()
        if history.renders:
            tokenizer = tokenizer_named(history.renders[0].tokenizer)
    count = tokenizer.count
    request, state, changed = RequestTokens({}, 0), None, True
    asked: Counter[str] = Counter()
    for turn in history.turns:
        if changed or turn.first or turn.state is not state:
            state, changed = turn.state, False
            builtin = history.renders[turn.attempt - 1].builtin_tool_tokens if history.renders else 0
            # The text in a result is part of what the call that returned it cost.
            sent = {each.key: each.shown_tokens - each.read_tokens for each in state.sections}
            hidden = sum(each.full_tokens - sent[each.key] for each in state.sections)
            tokens = {key: shown + asked[key] for key, shown in sent.items()}
            request = RequestTokens(tokens, hidden - builtin - asked.total())
        yield request
        for use in turn.uses:
            if use.disclosure is not None:
                changed, cost = True, count(use.arguments) + count(use.text)
                asked.update(dict.fromkeys(use.opened or ("",), cost // max(1, len(use.opened))))


def _sent(requests: Sequence[RequestTokens]) -> Counter[str]:
    """Tokens by section over all requests; most turns change nothing, so equal turns are counted together."""
    sent: Counter[str] = Counter()
    for _, same in groupby(requests, key=id):
        request, *others = same
        for key, tokens in request.sections.items():
            sent[key] += tokens * (1 + len(others))
    return sent


def _sections(history: RunHistory, sent: Mapping[str, int], real: int) -> tuple[LedgerSection, ...]:
    uses = [use for turn in history.turns for use in turn.uses]
    used = Counter(use.section_key for use in uses if use.disclosure is None)
    opened = Counter(key for use in uses for key in use.opened)
    states = {".".join(state.path): state for render in history.renders[-1:] for state in render.sections}
    found: list[LedgerSection] = []
    for key, state in states.items():
        full = state.full_tokens + state.tool_tokens
        shown = state.shown_tokens + (state.tool_tokens if state.visibility is SectionVisibility.FULL else 0)
        found.append(LedgerSection(key, full, shown, opened[key], used[key], sent.get(key, 0), full * real))
    return tuple(found)
