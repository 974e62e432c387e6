"""Calls that write at the same time: each in its own transaction, and the later one again where two change the same."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from weakincentives import (
    MarkdownSection,
    Prompt,
    ScriptedAdapter,
    Session,
    ToolContext,
    ToolResult,
    call,
    reducer,
    run,
    run_async,
    tool,
)
from weakincentives.errors import BudgetExceededError, ToolValidationError
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import OpenSectionsResult, SectionVisibility
from weakincentives.runtime import Message, ToolInvoked

RAN: Counter[str] = Counter()
UNDONE: Counter[str] = Counter()
TOGETHER = threading.Barrier(3)


@dataclass(frozen=True)
class Added:
    name: str


@dataclass(frozen=True)
class Total:
    count: int = 0

    @reducer(on=Added)
    def add(self, event: Added) -> Total:
        return replace(self, count=self.count + 1)


@dataclass(frozen=True)
class Noted:
    name: str


@tool(concurrent=True)
def meet(name: str, context: ToolContext) -> str:
    "Write, at the same time as others."
    TOGETHER.wait(20)
    context.session.dispatch(Noted(name))
    return f"met {name}"


def undo(params: Any, *, context: ToolContext) -> None:
    UNDONE[params.name] += 1


@tool(concurrent=True, compensate=undo)
def add(name: str, context: ToolContext, fails: bool = False) -> str:
    "Change the total and a file that others change too."
    RAN[name] += 1
    context.session.dispatch(Added(name))
    if (files := context.resources.get_optional(Filesystem)) is not None:
        files.write("log.txt", f"{files.read('log.txt')}{name}\n")
    if fails:
        raise ToolValidationError("broken")
    return f"added {name}, now {(context.session[Total].latest() or Total()).count}"


@tool(concurrent=True)
def own(name: str, context: ToolContext) -> str:
    "Change something of its own."
    context.session.dispatch(Noted(name))
    return f"own {name}"


@tool(concurrent=True)
async def end(context: ToolContext) -> str:
    "End the run while the changes of others are held back."
    while sum(RAN.values()) < 2:
        await asyncio.sleep(0.001)
    raise BudgetExceededError("over")


@tool(read_only=True)
def look() -> str:
    "Look."
    return "seen"


def prompt(files: Any = None) -> Prompt[None]:
    section = MarkdownSection(key="t", title="T", template="Go.", tools=[meet, add, own, end, look])
    made: Prompt[None] = Prompt(ns="tests", key="beside", sections=[section])
    return made if files is None else made.bind(resources={Filesystem: files})


@pytest.fixture(autouse=True)
def _clean() -> None:
    RAN.clear()
    UNDONE.clear()
    TOGETHER.reset()


def finished(asked: Prompt[Any], session: Session, script: list[Any], way: str) -> list[str]:
    model = ScriptedAdapter([*script, "Done."])
    if way == "sync":
        run(asked, model, session=session)
    else:
        asyncio.run(run_async(asked, model, session=session))
    return [message.text for message in model.requests[-1].messages if message.role == "tool"]


@pytest.mark.parametrize("way", ["sync", "async"])
def test_calls_overlap_and_keep_their_order(way: str) -> None:
    session = Session()
    calls = [call("meet", name="a"), call("meet", name="b"), call("meet", name="c"), call("look")]
    assert finished(prompt(), session, [calls], way) == ["met a", "met b", "met c", "seen"]
    assert sorted(event.name for event in session[Noted].all()) == ["a", "b", "c"]


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("files", [None, InMemoryFilesystem()], ids=["", "files"])
def test_the_later_of_two_that_change_the_same_runs_again_alone(way: str, files: Any) -> None:
    session = Session()
    if files is not None:
        files.write("log.txt", "")
    calls = [call("add", name=name) for name in "abcd"]
    results = finished(prompt(files), session, [calls], way)
    assert results == [f"added {name}, now {number}" for number, name in enumerate("abcd", 1)]
    assert session[Total].latest() == Total(4)
    if files is not None:
        assert files.read("log.txt") == "a\nb\nc\nd\n"
        assert dict.fromkeys("abcd", 1) == RAN, "calls that may change files overlapped"
    assert [event.name for event in session[Added].all()] == list("abcd")
    assert {name: RAN[name] - UNDONE[name] for name in "abcd"} == dict.fromkeys("abcd", 1)
    assert len(session[ToolInvoked].all()) == 4


names = st.integers(0, 5).map("n{}".format)
groups = st.lists(
    st.one_of(
        st.tuples(st.just("add"), names, st.booleans()), st.tuples(st.just("own"), names), st.tuples(st.just("look"))
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60)
@given(st.lists(groups, min_size=1, max_size=3), st.sampled_from(["sync", "async"]))
def test_the_end_is_that_of_the_same_calls_one_after_the_other(turns: list[Any], way: str) -> None:
    def script(turn: Any) -> list[Any]:
        keys = ("name", "fails")
        return [call(name, **dict(zip(keys, given, strict=False))) for name, *given in turn]

    ends = []
    for concurrent in (True, False):
        RAN.clear()
        UNDONE.clear()
        for each in (add, own):
            each.concurrent = concurrent
        session = Session()
        try:
            results = finished(prompt(), session, [script(turn) for turn in turns], way)
        finally:
            add.concurrent = own.concurrent = True
        outside = {name: RAN[name] - UNDONE[name] for name in RAN}
        state = session[Total].latest() or Total(), session[Added].all(), session[Noted].all()
        ends.append((results, state, outside))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_run_that_ends_undoes_what_is_held_back(way: str) -> None:
    session = Session()
    with pytest.raises(BudgetExceededError, match="over"):
        finished(prompt(), session, [[call("add", name="a"), call("end"), call("add", name="b")]], way)
    assert RAN == UNDONE == {"a": 1, "b": 1}
    assert session[Added].all() == ()
    invoked = {event.call_id: event for event in session[ToolInvoked].all()}
    assert len(invoked) == len(session[ToolInvoked].all()) == 3
    results = {each.call_id: each.text for each in session[Message].all() if each.role == "tool"}
    assert [results[call_id] for call_id, event in invoked.items() if event.name == "add"] == [
        "Not finished: the run was stopped."
    ] * 2


@tool(concurrent=True)
def unlock(name: str, context: ToolContext) -> ToolResult[OpenSectionsResult]:
    "Note the name, and open the rest."
    context.session.dispatch(Noted(name))
    return ToolResult(value=OpenSectionsResult({("rest",): SectionVisibility.FULL}, reason="asked"))


@pytest.mark.parametrize("way", ["sync", "async"])
def test_calls_that_open_sections_make_their_changes_too(way: str) -> None:
    first = MarkdownSection(key="t", title="T", template="Go.", tools=[unlock])
    rest = MarkdownSection(
        key="rest", title="R", template="The rest.", summary="More.", visibility=SectionVisibility.SUMMARY
    )
    session = Session()
    asked: Prompt[None] = Prompt(ns="tests", key="opens", sections=[first, rest])
    finished(asked, session, [[call("unlock", name="a"), call("unlock", name="b")]], way)
    assert session[Noted].all() == (Noted("a"), Noted("b"))
    assert asked.render(session=session).text.count("The rest.") == 1
