"""What disclosure saved and what it cost, computed from the events of a run.

The counterfactual is the same run with everything open from the start: each turn sends the full prompt and all tools
in place of what was shown, without the calls and results that only opened sections, and the turns that did nothing
else do not happen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weakincentives.prompt.disclosure.strategy import RESERVED_NAMES
from weakincentives.prompt.tokens import Tokenizer, default_tokenizer
from weakincentives.runtime.events import ModelCalled, PromptRendered, RunRestarted, ToolInvoked, ToolsInjected
from weakincentives.session import Session

CACHE_SAFE_ROUTES = frozenset({"additional_tools", "tool_addition"})


@dataclass(frozen=True, slots=True)
class LedgerSection:
    """One section over the run: what a full prompt would send of it each turn, what was shown, how often it was opened."""

    key: str
    full_tokens: int
    shown_tokens: int
    opened: int = 0
    tools_used: int = 0


@dataclass(frozen=True, slots=True)
class Ledger:
    """Tokens of one run: sent, and what the full prompt would have sent; `saved` may be negative."""

    run_id: str
    turns: int
    sent_tokens: int
    cached_tokens: int
    full_prompt_tokens: int
    restarts: int
    cache_lost_tokens: int
    sections: tuple[LedgerSection, ...]

    @property
    def saved(self) -> int:
        return self.full_prompt_tokens - self.sent_tokens


def ledger(session: Session, run_id: str | None = None, *, tokenizer: Tokenizer | None = None) -> Ledger:
    """The ledger of a run of the session, the last one unless told."""
    rendered = session[PromptRendered].all()
    if run_id is None:
        run_id = rendered[-1].run_id if rendered else ""
    events: list[Any] = [
        event
        for kind in (PromptRendered, ModelCalled, ToolInvoked, ToolsInjected, RunRestarted)
        for event in session[kind].view()  # type: ignore[type-abstract]
        if event.run_id == run_id
    ]
    events.sort(key=lambda event: event.timestamp)
    return ledger_of(events, run_id, tokenizer=tokenizer)


def ledger_of(events: Sequence[Any], run_id: str = "", *, tokenizer: Tokenizer | None = None) -> Ledger:
    """The ledger of the events of one run, in their order."""
    count = (tokenizer or default_tokenizer()).count
    turns = sent = cached = full = lost = restarts = 0
    hidden = disclosed = previous = opening = 0
    broken = False
    opened: dict[str, int] = {}
    used: dict[str, int] = {}
    last: PromptRendered | None = None
    calls: list[tuple[int, bool]] = []
    for event in events:
        match event:
            case PromptRendered():
                last = event
                hidden = sum(s.full_tokens - s.shown_tokens for s in event.sections)
                hidden += sum(s.tool_tokens for s in event.sections if s.tools and not set(s.tools) <= set(event.tools))
                hidden -= event.builtin_tool_tokens
                disclosed = opening = 0
            case ModelCalled():
                turns += 1
                sent += event.usage.input_tokens
                cached += event.usage.cached_tokens
                if broken:
                    lost += previous
                previous, broken = event.usage.input_tokens, False
                calls.append((event.usage.input_tokens + hidden - disclosed, True))
                opening = 0
            case ToolInvoked():
                if event.name in RESERVED_NAMES:
                    cost = count(event.arguments) + count(event.result.render())
                    disclosed += cost
                    opening += 1
                    for key in event.disclosure.requested_sections if event.disclosure else ():
                        opened[key] = opened.get(key, 0) + 1
                    if calls:
                        calls[-1] = (calls[-1][0], opening == 0)
                else:
                    if event.section_key:
                        used[event.section_key] = used.get(event.section_key, 0) + 1
                    if calls:
                        calls[-1] = (calls[-1][0], True)
            case ToolsInjected():
                injected = _tool_tokens(last, event)
                disclosed += injected
                broken = broken or event.route not in CACHE_SAFE_ROUTES
            case RunRestarted():
                restarts += 1
                broken = True
                for key in event.section_keys:
                    opened.setdefault(key, 1)
    full = sum(tokens for tokens, real in calls if real)
    sections = () if last is None else last.sections
    return Ledger(
        run_id=run_id,
        turns=turns,
        sent_tokens=sent,
        cached_tokens=cached,
        full_prompt_tokens=full,
        restarts=restarts,
        cache_lost_tokens=lost,
        sections=tuple(
            LedgerSection(
                key=".".join(section.path),
                full_tokens=section.full_tokens + section.tool_tokens,
                shown_tokens=section.shown_tokens,
                opened=opened.get(".".join(section.path), 0),
                tools_used=used.get(".".join(section.path), 0),
            )
            for section in sections
        ),
    )


def _tool_tokens(rendered: PromptRendered | None, event: ToolsInjected) -> int:
    if rendered is None:
        return 0
    return next((s.tool_tokens for s in rendered.sections if ".".join(s.path) == event.section_key), 0)
