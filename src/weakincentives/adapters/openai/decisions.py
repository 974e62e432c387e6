"""OpenAI's decision endpoint: typed questions about a text, answered with probabilities, and a ranker."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weakincentives._base.imports import import_extra
from weakincentives.limits import Prices, TokenUsage
from weakincentives.prompt.disclosure.ranking import PaidRanking, SectionText

MODEL = "gpt-6-luna"
MAX_QUESTIONS = 400
PRICES = Prices(0.10, 0.0, 0.10)
"""As reported for the endpoint, where answers cost nothing; whether cached input costs less is not known."""
Question = Mapping[str, Any]


def predicate(statement: str) -> Question:
    """The question how likely it is that a statement about the text is true."""
    return {"type": "predicate", "instructions": statement}


def choice(question: str, values: Mapping[str, str] | Iterable[str]) -> Question:
    """The question which of these values fits; a mapping describes them."""
    described = values.items() if isinstance(values, Mapping) else ((value, "") for value in values)
    options = [{"value": value, "description": about} if about else {"value": value} for value, about in described]
    return {"type": "choice", "instructions": question, "choices": options}


def score(question: str, levels: Iterable[str]) -> Question:
    """The question how the text rates on a scale, lowest level first."""
    return {"type": "score", "instructions": question, "levels": [{"label": level} for level in levels]}


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """The answer to one question: a probability, or the best value and how sure the model is of it.

    All are None if the model refused to answer.
    """

    probability: float | None = None
    value: str | bool | float | None = None
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class Decided:
    """The answers, in the order of the questions, and the tokens they took."""

    answers: tuple[JudgedAnswer, ...]
    usage: TokenUsage
    model: str = MODEL


class Decisions:
    """Asks OpenAI's decision model typed questions about a text, in as many requests as they need.

        Decisions().ask("Where is my parcel?", [predicate("The customer is angry.")]).answers[0].probability

    `client` is an `openai.OpenAI` or `AsyncOpenAI`; without one, the SDK reads `OPENAI_API_KEY`. `timeout` is that of
    each request, in seconds. An answer that does not fit its question is a `ValueError`.
    """

    def __init__(self, client: Any = None, *, model: str = MODEL, timeout: float = 10.0) -> None:
        self.model = model
        self._client = client
        self._timeout = timeout

    def ask(self, text: str, questions: Sequence[Question]) -> Decided:
        """The answers to questions about a text; with an async client, call `ask_async`."""
        parts = [self._create(text, part) for part in _batches(questions)]
        if any(map(inspect.isawaitable, parts)):
            for part in parts:
                part.close()
            raise TypeError("ask() needs an OpenAI client, got an async one; call ask_async()")
        return _decided(parts, questions)

    async def ask_async(self, text: str, questions: Sequence[Question]) -> Decided:
        found = [self._create(text, part) for part in _batches(questions)]
        return _decided([await part if inspect.isawaitable(part) else part for part in found], questions)

    @property
    def is_async(self) -> bool:
        """True if the client is an async one."""
        return type(self._connected()).__name__.startswith("Async")

    def _create(self, text: str, questions: Sequence[Question]) -> Any:
        asked = {"model": self.model, "input": text, "questions": list(questions)}
        return self._connected().decisions.create(**asked, timeout=self._timeout)

    def _connected(self) -> Any:
        if self._client is None:
            self._client = import_extra("openai", "openai", type(self).__name__).OpenAI()
        return self._client


class DecisionRanker:
    """Ranks sections by how likely a decision model finds it that a request needs them.

        SearchSections(ranker=DecisionRanker(), preopen=2)

    Every search is a request to OpenAI with a question for each section. Probabilities shift with the request as a
    whole, so only their order counts. With `misses=True`, runs are also checked for missed sections by it.
    """

    def __init__(self, decisions: Decisions | None = None, *, misses: bool = False) -> None:
        self.decisions = decisions or Decisions()
        self.finds_misses = misses

    def index(self, texts: Sequence[str]) -> DecisionIndex:
        return DecisionIndex(self.decisions, [predicate(f"The request needs: {text}") for text in texts])

    def index_sections(self, sections: Sequence[SectionText]) -> DecisionIndex:
        return self.index([section.headline for section in sections])


class DecisionIndex:
    """The question for every section."""

    def __init__(self, decisions: Decisions, questions: Sequence[Question]) -> None:
        self._decisions = decisions
        self._questions = questions

    def rank(self, query: str, limit: int) -> PaidRanking | Awaitable[PaidRanking]:
        if self._decisions.is_async:
            return self._rank_async(query, limit)
        since = time.monotonic()
        return self._ranking(self._decisions.ask(query, self._questions), limit, since)

    async def _rank_async(self, query: str, limit: int) -> PaidRanking:
        since = time.monotonic()
        return self._ranking(await self._decisions.ask_async(query, self._questions), limit, since)

    def _ranking(self, decided: Decided, limit: int, since: float) -> PaidRanking:
        scored = [(place, answer.probability or 0.0) for place, answer in enumerate(decided.answers)]
        best = sorted((one for one in scored if one[1] > 0), key=lambda one: -one[1])[:limit]
        return PaidRanking(best, decided.model, decided.usage, PRICES, time.monotonic() - since)


def _batches(questions: Sequence[Question]) -> list[Sequence[Question]]:
    if not questions:
        raise ValueError("questions must have at least one, got none")
    return [questions[start : start + MAX_QUESTIONS] for start in range(0, len(questions), MAX_QUESTIONS)]


def _decided(parts: Sequence[Any], questions: Sequence[Question]) -> Decided:
    try:
        answers = [answer for part in parts for answer in part.answers]
        usage = sum((_usage(part.usage) for part in parts), TokenUsage())
        if len(answers) != len(questions):
            raise ValueError(f"{len(answers)} of {len(questions)} questions are answered")
        decided = tuple(map(_answer, answers, questions))
        return Decided(decided, usage, str(parts[0].model))
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"openai's answer makes no sense: {error}") from None


def _answer(answer: Any, question: Question) -> JudgedAnswer:
    if answer.type == "refusal":
        return JudgedAnswer()
    if answer.type != question["type"]:
        raise ValueError(f"a {question['type']} was asked for, and a {answer.type} is the answer")
    if answer.type == "predicate":
        return JudgedAnswer(_number(answer.probability, 1.0))
    if answer.type == "choice" and answer.choice not in [each["value"] for each in question["choices"]]:
        raise ValueError(f"{answer.choice!r} is none of the choices")
    value = answer.choice if answer.type == "choice" else _number(answer.score)
    return JudgedAnswer(value=value, confidence=_number(answer.confidence, 1.0))


def _usage(usage: Any) -> TokenUsage:
    cached = usage.input_tokens_details.cached_tokens if usage.input_tokens_details else 0
    return TokenUsage(*(int(_number(tokens)) for tokens in (usage.input_tokens, usage.output_tokens, cached)))


def _number(value: Any, most: float = float("inf")) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most or value == float("inf"):
        raise ValueError(f"{value!r} is no number between 0 and {most:g}")
    return value
