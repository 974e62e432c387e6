"""What a recorded run says about its sections: when each was opened and used, and what it cost in every turn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from weakincentives.limits import TokenUsage
from weakincentives.prompt.disclosure.strategy import RESERVED_NAMES
from weakincentives.prompt.tokens import Tokenizer, default_tokenizer
from weakincentives.prompt.visibility import SectionVisibility
from weakincentives.runtime import (
    Message,
    ModelCalled,
    PromptRendered,
    RunRestarted,
    SectionState,
    ToolInvoked,
    ToolsInjected,
    cache_safe_routes,
)


@dataclass(slots=True)
class TurnFacts:
    """One call of the model.

    `opens` are the sections for whose opening alone it happened: it did nothing else, or a restart for them threw it
    away. `lost_for` are the sections whose tools or whose restart broke the cache before it. `tokens` is what each
    section had in the request.
    """

    number: int
    attempt: int
    model: str
    usage: TokenUsage
    tokens: dict[str, int]
    lost_for: tuple[str, ...] = ()
    opens: tuple[str, ...] = ()
    first: bool = False


@dataclass(slots=True)
class RunFacts:
    """One run: its turns, the sections as it began, what was opened and whose tools were used (by turn)."""

    turns: list[TurnFacts] = field(default_factory=list)
    sections: dict[str, SectionState] = field(default_factory=dict)
    shown: dict[str, SectionState] = field(default_factory=dict)
    openings: list[tuple[int, str]] = field(default_factory=list)
    uses: list[tuple[int, str]] = field(default_factory=list)

    def first_opening(self, key: str) -> int | None:
        return next((turn for turn, opened in self.openings if opened == key), None)

    def first_use(self, key: str) -> int | None:
        return next((turn for turn, used in self.uses if used == key), None)

    def lost(self, turn: TurnFacts) -> int:
        """Tokens that this turn had to send afresh since the beginning of the request had changed."""
        if not turn.lost_for or turn.number < 2:
            return 0
        before = self.turns[turn.number - 2].usage.input_tokens
        return max(0, min(before, turn.usage.input_tokens) - turn.usage.cached_tokens)


def run_facts(events: Iterable[Any], tokenizer: Tokenizer | None = None) -> RunFacts:
    """The facts in the events of one run, in their order."""
    reader = _Reader((tokenizer or default_tokenizer()).count)
    others = []
    for event in events:
        if isinstance(event, Message):
            reader.results[event.call_id] = event.text
        else:
            others.append(event)
    for event in others:
        reader.read(event)
    reader.end_turn()
    return reader.facts


class _Reader:
    def __init__(self, count: Any) -> None:
        self.facts = RunFacts()
        self.results: dict[str, str] = {}
        self._count = count
        self._attempt = 0
        self._fresh = True
        self._states: dict[str, SectionState] = {}
        self._brought: dict[str, int] = {}
        self._broken_for: tuple[str, ...] = ()
        self._asked: list[str] = []
        self._worked = False

    def read(self, event: Any) -> None:
        match event:
            case PromptRendered():
                self.end_turn()
                self._render(event)
            case ModelCalled():
                self.end_turn()
                self._call(event)
            case ToolInvoked():
                self._invoke(event)
            case ToolsInjected():
                state = self._states.get(event.section_key)
                if state is not None and state.visibility is not SectionVisibility.FULL:
                    self._bring(event.section_key, state.tool_tokens)
                if event.route not in cache_safe_routes():
                    self._broken_for += (event.section_key,)
            case RunRestarted():
                self._broken_for = event.section_keys
                for turn in self.facts.turns:
                    if turn.attempt == self._attempt:
                        turn.opens = event.section_keys
                for key in event.section_keys:
                    if (len(self.facts.turns), key) not in self.facts.openings:
                        self.facts.openings.append((len(self.facts.turns), key))

    def end_turn(self) -> None:
        if self.facts.turns and self._asked and not self._worked:
            self.facts.turns[-1].opens = tuple(dict.fromkeys(self._asked))
        self._asked, self._worked = [], False

    def _render(self, event: PromptRendered) -> None:
        self._attempt += 1
        self._fresh = True
        self._brought = {}
        self._states = {".".join(state.path): state for state in event.sections}
        if not self.facts.sections:
            self.facts.sections = dict(self._states)
        self.facts.shown |= {
            key: state for key, state in self._states.items() if state.visibility is not SectionVisibility.HIDDEN
        }

    def _call(self, event: ModelCalled) -> None:
        self.facts.turns.append(
            TurnFacts(
                number=len(self.facts.turns) + 1,
                attempt=self._attempt,
                model=event.model,
                usage=event.usage,
                tokens={key: _in_prompt(state) + self._brought.get(key, 0) for key, state in self._states.items()},
                lost_for=self._broken_for,
                first=self._fresh,
            )
        )
        self._broken_for, self._fresh = (), False

    def _invoke(self, event: ToolInvoked) -> None:
        if event.name not in RESERVED_NAMES:
            self._worked = True
            if event.section_key:
                self.facts.uses.append((len(self.facts.turns), event.section_key))
            return
        keys = event.disclosure.requested_sections if event.disclosure is not None else ()
        known = [key for key in keys if key in self._states]
        self._asked += known
        self._worked = self._worked or not known
        if not event.success or event.name == "collapse_section":
            return
        text = self.results.get(event.call_id)
        cost = self._count(event.arguments) + self._count(event.result.render() if text is None else text)
        for key in known:
            self.facts.openings.append((len(self.facts.turns), key))
            self._bring(key, cost // len(known))

    def _bring(self, key: str, tokens: int) -> None:
        self._brought[key] = self._brought.get(key, 0) + tokens


def _in_prompt(state: SectionState) -> int:
    return state.shown_tokens + (state.tool_tokens if state.visibility is SectionVisibility.FULL else 0)
