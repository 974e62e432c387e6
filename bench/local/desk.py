"""Asks the support desk every question of a set and looks at what it opened and said."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from weakincentives.adapters.local import LocalAdapter
from weakincentives.demo.desk import Question, ask, template
from weakincentives.errors import PromptEvaluationError
from weakincentives.limits import Budget
from weakincentives.prompt import Prompt, SectionVisibility
from weakincentives.runtime import ToolInvoked
from weakincentives.session import Session

SETS = (
    "test",
    "fresh",
    "tuning",
    "last",
    "new",
    "unseen",
    "final",
    "open",
    "asked",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "mixed",
    "ninth",
    "tenth",
    "eleventh",
    "twelfth",
    "thirteenth",
    "fourteenth",
)
NOTHING = "The text does not say that."
QUESTIONS: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parent / "questions.json").read_text(encoding="utf-8")
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One question: what was opened and said, and whether that was right.

    `wanted` is empty if the handbook does not answer the question; then `refused` is right. `section` says that the
    right one was opened first, `found` that it was opened at all; `composed` is the fact without the quotation.
    """

    question: str
    wanted: str
    opened: tuple[str, ...]
    called: tuple[str, ...]
    answer: str
    section: bool
    found: bool
    fact: bool
    composed: bool
    refused: bool
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Result:
    """A whole set; `full` is what the prompt would take with the handbook open."""

    outcomes: tuple[Outcome, ...]
    full: int

    @property
    def answerable(self) -> tuple[Outcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.wanted)

    def refused(self, *, answerable: bool) -> tuple[int, int]:
        """The number of questions refused, and of questions, among those with or without an answer."""
        asked = [outcome for outcome in self.outcomes if bool(outcome.wanted) is answerable]
        return sum(outcome.refused for outcome in asked), len(asked)

    def count(self, what: Literal["section", "found", "fact", "composed"]) -> int:
        return sum(getattr(outcome, what) for outcome in self.answerable)

    def share(self, what: Literal["section", "found", "fact", "composed"]) -> float:
        return 100 * self.count(what) / len(self.answerable)

    @property
    def tokens(self) -> float:
        return statistics.mean(outcome.tokens for outcome in self.outcomes)

    @property
    def seconds(self) -> float:
        return statistics.median(outcome.seconds for outcome in self.outcomes)


def measure(
    adapter: LocalAdapter, name: str, told: Callable[[Outcome], None] | None = None, limit: int | None = None
) -> Result:
    """Ask all questions of a set, one after the other."""
    outcomes = []
    for case in QUESTIONS[name][:limit]:
        outcome = _asked(adapter, case)
        outcomes.append(outcome)
        if told is not None:
            told(outcome)
    everything = Prompt(template(SectionVisibility.FULL)).bind(Question(QUESTIONS[name][0]["question"]))
    return Result(tuple(outcomes), adapter.tokenizer.count(everything.render().text))


def _asked(adapter: LocalAdapter, case: dict[str, Any]) -> Outcome:
    session = Session()
    started = time.perf_counter()
    try:
        response = adapter.evaluate(ask(case["question"]), session=session, budget=Budget(max_turns=8))
        answer, tokens = response.text, response.usage.input_tokens
    except PromptEvaluationError as error:
        answer, tokens = f"({error})", 0
    seconds = time.perf_counter() - started
    calls = session[ToolInvoked].all()
    opened = tuple(call.params.section_key for call in calls if call.name == "read_section" and call.success)
    right = {case["section"], *case.get("also", ())}
    return Outcome(
        question=case["question"],
        wanted=case["section"],
        opened=opened,
        called=tuple(call.name for call in calls if call.name != "read_section"),
        answer=answer,
        section=right.issuperset(opened[:1]) and bool(opened),
        found=not right.isdisjoint(opened),
        fact=_holds(answer, case),
        composed=_holds(answer.partition("\n\n> ")[0], case),
        refused=answer.startswith(NOTHING),
        tokens=tokens,
        seconds=seconds,
    )


def _holds(answer: str, case: dict[str, Any]) -> bool:
    return all(any(fact.lower() in answer.lower() for fact in group) for group in case["facts"])
