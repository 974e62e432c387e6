"""Subjects made of other subjects: the same adapter with another one around it, or as one of a list of two."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tests.adapters.scenarios import Stage
from tests.servers.loopback import Step
from weakincentives.adapters import FallbackAdapter, WrappedAdapter
from weakincentives.adapters.scripted import ScriptedAdapter
from weakincentives.errors import PromptEvaluationError
from weakincentives.runtime import ModelRequest


class Counting(WrappedAdapter):
    """Counts the requests that go through it, after calling a function that waits for nothing."""

    def __init__(self, adapter: Any) -> None:
        super().__init__(adapter)
        self.seen: list[str] = []

    def respond(self, request: ModelRequest) -> Any:
        yield lambda: self.seen.append(request.prompt_name)
        reply = yield request
        return reply


def down(request: ModelRequest) -> Any:
    raise PromptEvaluationError("down", phase="request")


def wrapped(adapter: Any) -> Any:
    return Counting(adapter)


def taking_over(adapter: Any) -> Any:
    """The second of two, of which the first is down; in all else, that is as the second."""
    first = ScriptedAdapter(down, supports_dynamic_tools=adapter.supports_dynamic_tools)
    return FallbackAdapter(first, adapter)


def first_of_two(adapter: Any) -> Any:
    """The first of two, of which the second never works."""
    return FallbackAdapter(adapter, ScriptedAdapter(down))


AROUND: dict[str, Callable[[Any], Any]] = {
    "wrapped": wrapped,
    "taking over": taking_over,
    "first of two": first_of_two,
}


def refused(outcomes: Mapping[str, str]) -> list[str]:
    return [scenario for scenario in ("image", "document") if scenario in outcomes]


@dataclass(frozen=True)
class Around:
    """A subject, or a speaker, whose adapter stands inside another."""

    inner: Any
    way: str

    @property
    def name(self) -> str:
        return f"{self.inner.name} {self.way}"

    @property
    def exempt(self) -> Mapping[str, str]:
        exempt: Mapping[str, str] = self.inner.exempt
        return exempt

    @property
    def outcomes(self) -> Mapping[str, str]:
        outcomes: Mapping[str, str] = self.inner.outcomes
        if self.way == "first of two":
            # The second is asked, and its error is the last.
            return {
                **outcomes,
                "overflow": "the next is asked",
                **dict.fromkeys(refused(outcomes), "the next is asked"),
            }
        return outcomes

    @property
    def overflow(self) -> Any:
        return self.inner.overflow

    @property
    def patience(self) -> float:
        return getattr(self.inner, "patience", 0.3)

    @contextmanager
    def stage(self, *steps: Step) -> Iterator[Stage]:
        with self.inner.stage(*steps) as stage:
            yield replace(stage, adapter=AROUND[self.way](stage.adapter))


def around(subjects: Any) -> list[Around]:
    """Each of these subjects in each of these ways."""
    return [Around(subject, way) for subject in subjects for way in AROUND]
