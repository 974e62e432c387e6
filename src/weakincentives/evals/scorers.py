"""Scorers: functions of a finished run that give a score between 0 and 1."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from weakincentives.evals.cases import Case, CaseError
from weakincentives.filesystem import Filesystem
from weakincentives.limits import TokenUsage
from weakincentives.runtime import PromptResponse, RunHistory, SectionsOpened, ToolInvoked
from weakincentives.session import Session
from weakincentives.telemetry import plain

MAX_REASON = 10_000


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A case that has run: its answer as text and typed output, and everything that happened.

    `cost` is in US dollars, None if the price of the model is unknown; both it and `usage` cover all exchanges.
    """

    case: Case  #: the case
    text: str  #: the text of the answer
    output: Any  #: the typed answer
    response: PromptResponse[Any]  #: the response of the last exchange
    session: Session  #: the session of the run
    filesystem: Filesystem | None  #: the files of the run, if it had any
    history: RunHistory  #: the turns and disclosures of the run
    usage: TokenUsage = field(default_factory=TokenUsage)
    cost: float | None = None

    @property
    def opened(self) -> tuple[str, ...]:
        """The sections that were opened or read, in order, by the model or for it."""
        found: list[tuple[float, tuple[str, ...]]] = [
            (event.timestamp, event.section_keys) for event in self.session[SectionsOpened] if not event.parent_run_id
        ]
        for event in self._calls:
            if event.disclosure is not None and event.success and event.disclosure.action == "open":
                found.append((event.timestamp, event.disclosure.keys))
        return tuple(dict.fromkeys(key for _, keys in sorted(found, key=lambda each: each[0]) for key in keys))

    @property
    def called(self) -> tuple[str, ...]:
        """The tools that were called, without those that open sections."""
        return tuple(event.name for event in self._calls if event.disclosure is None)

    @property
    def _calls(self) -> list[ToolInvoked]:
        return [event for event in self.session[ToolInvoked] if not event.parent_run_id]


class Unscored(Exception):
    """Raised by a scorer that cannot tell, such as one that needs a price which is not known."""


@dataclass(frozen=True, slots=True)
class Score:
    """The value of one scorer, between 0 and 1, and why."""

    value: float  #: from 0 to 1
    reason: str = ""  #: why


@dataclass(frozen=True, slots=True)
class Scorer:
    """A named function of the finished run; `name` identifies it in results and comparisons."""

    name: str
    function: Callable[[FinishedRun], Any]  #: returns a bool, a number from 0 to 1, or one of them with a reason

    def __call__(self, run: FinishedRun) -> Score:
        return as_score(self.function(run), self.name)


def as_scorer(given: Any) -> Scorer:
    """A scorer of what was given: one already, or a function."""
    if isinstance(given, Scorer):
        return given
    if callable(given):
        name = getattr(given, "name", None) or getattr(given, "__name__", None) or type(given).__name__
        return Scorer(str(name), given)
    raise TypeError(f"scorers must be scorers or functions of a FinishedRun, got {given!r}; write scorers=[contains()]")


def as_score(found: Any, name: str) -> Score:
    """The score in what a scorer returned: a bool, a number, or one of them with a reason."""
    if inspect.isawaitable(found):
        found = asyncio.run(_awaited(found))
    reason = ""
    if isinstance(found, Score):
        found, reason = found.value, found.reason
    if isinstance(found, tuple) and len(found) == 2:
        found, reason = found
    if callable(item := getattr(found, "item", None)):
        found = item()  # A number of numpy's or torch's.
    if isinstance(found, bool | int | float) and 0 <= found <= 1:
        return Score(float(found), "" if reason is None else str(reason)[:MAX_REASON])
    raise TypeError(
        f"scorer {name!r} must return a bool, a number from 0 to 1, or one of them and a reason; got {found!r}"
    )


async def _awaited(found: Any) -> Any:
    return await found


def equals(expected: Any = None) -> Scorer:
    """The typed output, or the text, equals what is expected (by default the case's)."""

    def score(run: FinishedRun) -> tuple[bool, str]:
        wanted = _wanted(run, expected)
        if run.output is None:
            got: Any = run.text.strip()
            same = got == _text(wanted).strip()
        else:
            got = plain(run.output)
            same = run.output == wanted or got == plain(wanted)
        return same, "" if same else f"expected {_text(wanted)}, got {_text(got)}"

    return Scorer("equals" if expected is None else f"equals({_text(expected)})", score)


def contains(text: str | None = None) -> Scorer:
    """The answer contains a text, or each of the case's expected texts; case is ignored.

    If `expected` is a list, each item must occur, of a mapping each value; of an item that is a list itself, one
    spelling is enough.
    """

    def score(run: FinishedRun) -> tuple[bool, str]:
        wanted = _wanted(run, text)
        if wanted in ("", [], (), {}):
            raise Unscored(f"what case {run.case.id!r} expects is empty, and every answer contains that")
        answer = f"{run.text}\n{_text(plain(run.output))}".casefold() if run.output is not None else run.text.casefold()
        wanted = list(wanted.values()) if isinstance(wanted, Mapping) else wanted
        groups = wanted if isinstance(wanted, list | tuple) else [wanted]
        missing = [
            group
            for group in groups
            if not any(
                _text(one).casefold() in answer for one in (group if isinstance(group, list | tuple) else [group])
            )
        ]
        written = (" or ".join(map(_text, each)) if isinstance(each, list | tuple) else _text(each) for each in missing)
        return not missing, f"missing: {', '.join(written)}" if missing else ""

    return Scorer("contains" if text is None else f"contains({text})", score)


def opened(key: str | None = None) -> Scorer:
    """A section was opened; by default all that the case needs, `metadata["sections"]`.

    Of an item of it that is a list itself, one section is enough.
    """

    def score(run: FinishedRun) -> tuple[bool, str]:
        missing = [group for group in _keys(run, key) if not any(each in run.opened for each in group)]
        wanted = ", ".join(" or ".join(group) for group in missing)
        return not missing, f"not opened: {wanted}; opened: {', '.join(run.opened) or 'none'}" if missing else ""

    return Scorer("opened" if key is None else f"opened({key})", score)


def not_opened(key: str | None = None) -> Scorer:
    """A section was not opened; by default none but those that the case needs."""

    def score(run: FinishedRun) -> tuple[bool, str]:
        wrong = [key] if key in run.opened else []
        if key is None:
            needed = {each for group in _keys(run, None) for each in group}
            wrong = [each for each in run.opened if each not in needed]
        return not wrong, f"opened: {', '.join(map(str, wrong))}" if wrong else ""

    return Scorer("not_opened" if key is None else f"not_opened({key})", score)


def called(name: str) -> Scorer:
    """A tool was called: one with this name, whatever section it is of, or the `section.tool`."""

    def score(run: FinishedRun) -> tuple[bool, str]:
        was_called = False
        for event in run._calls:
            if event.disclosure is None and (event.is_of(name) or event.own_name == name):
                was_called = True
        return was_called, f"called: {', '.join(run.called) or 'nothing'}"

    return Scorer(f"called({name})", score)


def max_calls(most: int) -> Scorer:
    """At most so many tool calls, without those that open sections."""
    return Scorer(f"max_calls({most})", lambda run: (len(run.called) <= most, f"{len(run.called)} calls"))


def max_tokens(most: int) -> Scorer:
    """At most so many tokens, in and out."""
    return Scorer(
        f"max_tokens({most})", lambda run: (run.usage.total_tokens <= most, f"{run.usage.total_tokens:,} tokens")
    )


def max_cost(most: float) -> Scorer:
    """At most so many US dollars; unscored if the price of the model is unknown."""

    def score(run: FinishedRun) -> tuple[bool, str]:
        if run.cost is None:
            raise Unscored("the price of the model is unknown; pass prices=")
        return run.cost <= most, f"${run.cost:.4f}"

    return Scorer(f"max_cost({most:g})", score)


def _wanted(run: FinishedRun, given: Any) -> Any:
    wanted = run.case.expected if given is None else given
    if wanted is None:
        raise Unscored(f"case {run.case.id!r} has nothing expected; give it expected=, or pass the text to the scorer")
    return wanted


def _keys(run: FinishedRun, key: str | None) -> list[list[str]]:
    if key is not None:
        return [[key]]
    if run.case.metadata.get("sections") is None:
        raise Unscored(f"case {run.case.id!r} names no sections; give it metadata={{'sections': [...]}}")
    return needed_sections(run.case)


def needed_sections(case: Case) -> list[list[str]]:
    """The sections that a case needs, each as its alternatives: `metadata["sections"]`, else those its run opened."""
    needed = case.metadata.get("sections")
    if needed is None and case.recording is not None:
        needed = case.recording.get("opened")
    items = [needed] if isinstance(needed, str) else needed or []
    if not isinstance(items, list | tuple) or not all(isinstance(item, str | list | tuple) for item in items):
        raise CaseError(f"the sections of case {case.id!r} must be a list of keys, got {needed!r}")
    return [[item] if isinstance(item, str) else [str(each) for each in item] for item in items]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(plain(value), sort_keys=True, ensure_ascii=False)


def names_of(scorers: Iterable[Scorer]) -> list[str]:
    """The names of scorers, which must differ."""
    names = [scorer.name for scorer in scorers]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"two scorers have the name {twice!r}; wrap one in Scorer(name, function)")
    return names
