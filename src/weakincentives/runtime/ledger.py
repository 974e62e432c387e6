"""What disclosure saved and what it cost, computed from the events of a run.

The counterfactual is the same run with everything open from the start: its turns are those of the last evaluation
(what a restart threw away does not happen) without the ones that only opened sections, and each sends the full prompt
and all tools in place of what was shown, without the calls and results by which sections were opened. Tokens sent are
the provider's count; what is put in their place is counted by the tokenizer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from weakincentives.prompt import SectionVisibility, Tokenizer, default_tokenizer
from weakincentives.runtime.events import (
    ModelCalled,
    PromptRendered,
    RunRestarted,
    SectionState,
    ToolInvoked,
    ToolsInjected,
)
from weakincentives.runtime.messages import Message
from weakincentives.runtime.providers import cache_safe_routes
from weakincentives.session import Session

RESTART = "restart"


@dataclass(frozen=True, slots=True)
class LedgerTurn:
    """One call of the model.

    `full_prompt_tokens` is None where the full prompt would not have needed the call. `cache_lost_tokens` were sent
    before and could not be read from the cache again, since `route` changed the beginning of the request.
    """

    turn: int
    attempt: int
    sent_tokens: int
    cached_tokens: int
    full_prompt_tokens: int | None
    cache_lost_tokens: int = 0
    route: str = ""


@dataclass(frozen=True, slots=True)
class LedgerSection:
    """One section over the run, its tools included.

    `full_tokens` and `shown_tokens` are per turn, as at the last render; `sent_tokens` and `full_prompt_tokens` are
    sums over all turns, of this run and of the counterfactual.
    """

    key: str
    full_tokens: int
    shown_tokens: int
    opened: int = 0
    tools_used: int = 0
    sent_tokens: int = 0
    full_prompt_tokens: int = 0

    @property
    def saved(self) -> int:
        return self.full_prompt_tokens - self.sent_tokens


@dataclass(frozen=True, slots=True)
class Ledger:
    """Tokens of one run: sent, and what the full prompt would have sent; `saved` may be negative."""

    run_id: str
    rows: tuple[LedgerTurn, ...]
    restarts: int
    sections: tuple[LedgerSection, ...]

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
    """The ledger of a run of the session, the last one unless told."""
    last = session[PromptRendered].latest()
    if run_id is None:
        run_id = last.run_id if last else ""
    kinds: tuple[type[Any], ...] = (PromptRendered, ModelCalled, ToolInvoked, ToolsInjected, RunRestarted)
    events = [event for kind in kinds for event in session[kind].view() if event.run_id == run_id]
    events.sort(key=lambda event: event.timestamp)
    messages = session[Message].view()
    if last is not None and last.run_id == run_id:
        events = _as_said(events, messages)
    return ledger_of([*messages, *events], run_id, tokenizer=tokenizer)


def ledger_of(events: Iterable[Any], run_id: str = "", *, tokenizer: Tokenizer | None = None) -> Ledger:
    """The ledger of the events of one run, in their order; messages tell what the model read, wherever they stand."""
    book = _Book((tokenizer or default_tokenizer()).count)
    others = []
    for event in events:
        if not isinstance(event, Message):
            others.append(event)
        elif event.role == "tool":
            book.results[event.call_id] = event.text
    for event in others:
        book.enter(event)
    return book.close(run_id)


def _as_said(events: list[Any], messages: Iterable[Message]) -> list[Any]:
    """The events with those of the last evaluation in the order of its conversation.

    Times alone do not order them: a clock that stands still gives all of them the same.
    """
    waiting: dict[Any, list[Any]] = {}
    for event in events:
        waiting.setdefault(_said_as(event), []).append(event)
    said = [_said_as(message) for message in messages]
    missing = Counter(said)
    for key, found in waiting.items():
        del found[: max(0, len(found) - missing[key])]
    told = [waiting[key].pop(0) for key in said if waiting.get(key)]
    known = {id(event) for event in told}
    return [*(event for event in events if id(event) not in known), *told]


def _said_as(entry: Any) -> tuple[str, str]:
    """What an event and the message that it led to have in common."""
    match entry:
        case Message():
            return entry.role, entry.call_id if entry.role == "tool" else ""
        case PromptRendered():
            return "system", ""
        case ModelCalled():
            return "assistant", ""
        case ToolInvoked():
            return "tool", entry.call_id
        case ToolsInjected():
            return "tools_added", ""
    return type(entry).__name__, ""


@dataclass(slots=True)
class _Row:
    attempt: int
    sent: int
    cached: int
    full: int
    lost: int
    route: str
    opening: bool | None = None


@dataclass(slots=True)
class _Account:
    """One section: what it has brought into the conversation of this attempt, and its sums."""

    state: SectionState
    read: int = 0
    tools: int = 0
    opened: int = 0
    used: int = 0
    sent: int = 0

    @property
    def is_open(self) -> bool:
        return self.state.visibility is SectionVisibility.FULL

    @property
    def full(self) -> int:
        return self.state.full_tokens + self.state.tool_tokens

    @property
    def shown(self) -> int:
        return self.state.shown_tokens + (self.state.tool_tokens if self.is_open else 0)


class _Book:
    """Takes the events of a run one by one."""

    def __init__(self, count: Callable[[str], int]) -> None:
        self.results: dict[str, str] = {}
        self._count = count
        self._rows: list[_Row] = []
        self._accounts: dict[str, _Account] = {}
        self._attempt = self._hidden = self._disclosed = self._restarts = 0
        self._broken_by = ""

    def enter(self, event: Any) -> None:
        match event:
            case PromptRendered():
                self._begin(event)
            case ModelCalled():
                self._call(event)
            case ToolInvoked():
                self._invoke(event)
            case ToolsInjected():
                self._inject(event)
            case RunRestarted():
                self._restarts += 1
                self._broken_by = RESTART

    def close(self, run_id: str) -> Ledger:
        happens = [row.attempt == self._attempt and not row.opening for row in self._rows]
        real = sum(happens)
        return Ledger(
            run_id=run_id,
            rows=tuple(
                LedgerTurn(
                    turn=number,
                    attempt=max(row.attempt, 1),
                    sent_tokens=row.sent,
                    cached_tokens=row.cached,
                    full_prompt_tokens=row.full if real_turn else None,
                    cache_lost_tokens=row.lost,
                    route=row.route,
                )
                for number, (row, real_turn) in enumerate(zip(self._rows, happens, strict=True), 1)
            ),
            restarts=self._restarts,
            sections=tuple(
                LedgerSection(
                    key=key,
                    full_tokens=account.full,
                    shown_tokens=account.shown,
                    opened=account.opened,
                    tools_used=account.used,
                    sent_tokens=account.sent,
                    full_prompt_tokens=account.full * real,
                )
                for key, account in self._accounts.items()
            ),
        )

    def _begin(self, event: PromptRendered) -> None:
        self._attempt += 1
        self._disclosed = 0
        before, self._accounts = self._accounts, {}
        for state in event.sections:
            account = self._accounts[".".join(state.path)] = _Account(state)
            if old := before.get(".".join(state.path)):
                account.opened, account.used, account.sent = old.opened, old.used, old.sent
        closed = [account for account in self._accounts.values() if not account.is_open]
        self._hidden = sum(account.full - account.shown for account in closed) - event.builtin_tool_tokens

    def _call(self, event: ModelCalled) -> None:
        usage, lost = event.usage, 0
        if self._broken_by and self._rows:
            lost = max(0, min(self._rows[-1].sent, usage.input_tokens) - usage.cached_tokens)
        full = max(0, usage.input_tokens + self._hidden - self._disclosed)
        route = self._broken_by if self._rows else ""
        self._rows.append(_Row(self._attempt, usage.input_tokens, usage.cached_tokens, full, lost, route))
        self._broken_by = ""
        for account in self._accounts.values():
            account.sent += account.shown + account.read + account.tools

    def _invoke(self, event: ToolInvoked) -> None:
        disclosing = event.disclosure is not None
        if self._rows:
            row = self._rows[-1]
            row.opening = disclosing and row.opening is not False
        if not disclosing:
            if account := self._accounts.get(event.section_key):
                account.used += 1
            return
        text = self.results.get(event.call_id)
        cost = self._count(event.arguments) + self._count(event.result.render() if text is None else text)
        self._disclosed += cost
        if event.disclosure is None or not event.success or event.disclosure.action == "close":
            return
        asked = [a for key in event.disclosure.requested_sections if (a := self._accounts.get(key))]
        for account in asked:
            account.opened += 1
            account.read += cost // len(asked)

    def _inject(self, event: ToolsInjected) -> None:
        account = self._accounts.get(event.section_key)
        if account is not None and not account.is_open and not account.tools:
            account.tools = account.state.tool_tokens
            self._disclosed += account.tools
        if event.route not in cache_safe_routes():
            self._broken_by = event.route or "append"
