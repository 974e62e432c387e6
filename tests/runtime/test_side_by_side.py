"""Calls that write at the same time: each in its own transaction, and the later one again where two change the same."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tests.waiting import until_async
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
from weakincentives.filesystem import Filesystem, HostFilesystem, InMemoryFilesystem
from weakincentives.prompt import OpenSectionsResult, SectionVisibility
from weakincentives.resources import Binding, ResourceRegistry
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
    if (files := context.filesystem) is not None:
        files.write(f"{name}.txt", str([*files.glob("**")]))
        TOGETHER.wait(20)
    return f"met {name}"


def undo(params: Any, *, context: ToolContext) -> None:
    UNDONE[params.name] += 1


@tool(concurrent=True, compensate=undo)
def add(name: str, context: ToolContext, fails: bool = False) -> str:
    "Change the total and a file that others change too."
    RAN[name] += 1
    context.session.dispatch(Added(name))
    desk = context.resources.get_optional(Desk)
    files = context.resources.get_optional(Filesystem) if desk is None else desk.files
    if files is not None:
        files.write("log.txt", f"{files.read('log.txt')}{name}\n")
    if fails:
        raise ToolValidationError("broken")
    return f"added {name}, now {(context.session[Total].latest() or Total()).count}"


@tool(concurrent=True)
def own(name: str, context: ToolContext) -> str:
    "Change something of its own."
    context.session.dispatch(Noted(name))
    if (files := context.filesystem) is not None:
        files.write(f"{name}.txt", f"{files.exists(f'{name}.txt')}\n", mode="append")
    return f"own {name}"


@tool(concurrent=True)
async def end(context: ToolContext) -> str:
    "End the run while the changes of others are held back."
    await until_async(lambda: sum(RAN.values()) >= 2)
    raise BudgetExceededError("over")


@tool(read_only=True)
def look() -> str:
    "Look."
    return "seen"


@dataclass(frozen=True)
class Desk:
    """Has the files from elsewhere, so that a tool changes them past its branch."""

    files: Any


def prompt(files: Any = None, desk: Desk | None = None) -> Prompt[None]:
    section = MarkdownSection(key="t", title="T", template="Go.", tools=[meet, add, own, end, look])
    made: Prompt[None] = Prompt(ns="tests", key="beside", sections=[section])
    if files is not None:
        made = made.bind(resources={Filesystem: files})
    return made if desk is None else made.bind(resources={Desk: desk})


@pytest.fixture(autouse=True)
def _clean() -> None:
    RAN.clear()
    UNDONE.clear()
    TOGETHER.reset()


@contextmanager
def files_of(kind: str) -> Iterator[Any]:
    """A filesystem of a kind, or none."""
    if kind in ("", "memory"):
        yield InMemoryFilesystem() if kind else None
        return
    with tempfile.TemporaryDirectory() as folder:
        yield HostFilesystem(folder, track_external=kind == "host-tracking")


KINDS = ["", "memory", "host", "host-tracking"]


def contents(files: Any) -> dict[str, str]:
    return {} if files is None else {path: files.read(path) for path in files.glob("**")}


def finished(asked: Prompt[Any], session: Session, script: list[Any], way: str) -> list[str]:
    model = ScriptedAdapter([*script, "Done."])
    if way == "sync":
        run(asked, model, session=session)
    else:
        asyncio.run(run_async(asked, model, session=session))
    return [message.text for message in model.requests[-1].messages if message.role == "tool"]


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("kind", KINDS)
def test_calls_overlap_and_keep_their_order(way: str, kind: str) -> None:
    session = Session()
    calls = [call("meet", name="a"), call("meet", name="b"), call("meet", name="c"), call("look")]
    with files_of(kind) as files:
        assert finished(prompt(files), session, [calls], way) == ["met a", "met b", "met c", "seen"]
        assert contents(files) == ({} if files is None else {f"{name}.txt": "[]" for name in "abc"})
    assert [event.name for event in session[Noted].all()] == ["a", "b", "c"]


@tool(concurrent=True)
def run_program(name: str, context: ToolContext) -> str:
    "Run something in the folder, as a program would."
    RAN[name] += 1
    context.filesystem.write(f"{name}.txt", name)
    with open(os.path.join(context.filesystem.root, "log.txt"), "a") as log:
        log.write(f"{name}\n")
    return f"ran {name}"


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("kind", ["host", "host-tracking"])
def test_a_call_that_needs_the_folder_itself_runs_alone(way: str, kind: str) -> None:
    section = MarkdownSection(key="t", title="T", template="Go.", tools=[run_program, meet])
    with files_of(kind) as files:
        asked: Prompt[None] = Prompt(ns="tests", key="beside", sections=[section]).bind(resources={Filesystem: files})
        calls = [call("run_program", name=name) for name in "ab"]
        assert finished(asked, Session(), [calls], way) == ["ran a", "ran b"]
        assert contents(files) == {"a.txt": "a", "b.txt": "b", "log.txt": "a\nb\n"}


@dataclass
class Counted:
    """A resource with snapshots."""

    count: int = 0

    def snapshot(self) -> int:
        return self.count

    def restore(self, count: int) -> None:
        self.count = count


class Branched(Counted):
    def branch(self) -> Branched:
        return Branched(self.count)


@tool(concurrent=True)
def count(context: ToolContext, number: int) -> str:
    "Count in a resource, which fails for a 0."
    counted = context.resources.get(Counted)
    counted.count += number
    if not number:
        raise ToolValidationError("nothing")
    return f"{counted.count}"


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("kind", [Counted, Branched])
@pytest.mark.parametrize("lazy", [False, True], ids=["", "lazy"])
def test_resources_with_snapshots_count_each_call_once(way: str, kind: type[Counted], lazy: bool) -> None:
    made: list[Counted] = []

    def create(resources: Any) -> Counted:
        made.append(kind())
        return made[-1]

    registry = ResourceRegistry.of(Binding(Counted, create) if lazy else Binding.instance(Counted, create(None)))
    section = MarkdownSection(key="t", title="T", template="Go.", tools=[count])
    asked: Prompt[None] = Prompt(ns="tests", key="counts", sections=[section]).bind(resources=registry)
    calls = [call("count", number=number) for number in (1, 0, 2, 3)]
    assert finished(asked, Session(), [calls], way) == ["1", "nothing", "3", "6"]
    assert made[-1].count == 6


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("direct", [False, True], ids=["", "direct"])
def test_the_later_of_two_that_change_the_same_runs_again_alone(way: str, kind: str, direct: bool) -> None:
    session = Session()
    with files_of(kind) as files:
        if files is not None:
            files.write("log.txt", "")
        calls = [call("add", name=name) for name in "abcd"]
        results = finished(prompt(files, desk=Desk(files) if direct else None), session, [calls], way)
        assert results == [f"added {name}, now {number}" for number, name in enumerate("abcd", 1)]
        assert contents(files) == ({} if files is None else {"log.txt": "a\nb\nc\nd\n"})
    assert session[Total].latest() == Total(4)
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
@given(st.lists(groups, min_size=1, max_size=3), st.sampled_from(["sync", "async"]), st.sampled_from(KINDS))
def test_the_end_is_that_of_the_same_calls_one_after_the_other(turns: list[Any], way: str, kind: str) -> None:
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
            with files_of(kind) as files:
                for name, text in {"log.txt": "", "old.txt": "x"}.items() if kind else ():
                    files.write(name, text)
                results = finished(prompt(files), session, [script(turn) for turn in turns], way)
                written = contents(files)
        finally:
            add.concurrent = own.concurrent = True
        outside = {name: RAN[name] - UNDONE[name] for name in RAN}
        state = session[Total].latest() or Total(), session[Added].all(), session[Noted].all(), written
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
