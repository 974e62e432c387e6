"""A call whose effects are shown touches nothing real before a person has agreed, and nothing of other runs ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.approval.bank import Balance, Paid
from weakincentives import (
    Approve,
    Deny,
    MarkdownSection,
    Prompt,
    ScriptedAdapter,
    Session,
    ToolContext,
    call,
    run,
    run_async,
    tool,
)
from weakincentives.errors import ToolValidationError, UnshownChangeError
from weakincentives.filesystem import Filesystem, HostFilesystem, InMemoryFilesystem
from weakincentives.guards import Guard, GuardedCall, Outcome
from weakincentives.prompt import ToolResult
from weakincentives.resources import Binding, ResourceRegistry, Scope
from weakincentives.runtime import GuardContext, ToolInvoked


class Shelf:
    """A resource whose snapshot is its whole state."""

    def __init__(self, *items: str) -> None:
        self.items = items

    def add(self, item: str) -> None:
        self.items = (*self.items, item)

    def snapshot(self) -> tuple[str, ...]:
        return self.items

    def restore(self, items: tuple[str, ...]) -> None:
        self.items = tuple(items)


class BranchedShelf(Shelf):
    def branch(self) -> BranchedShelf:
        return BranchedShelf(*self.items)


@dataclass
class World:
    """What is real: the session, files in memory or on disk, and two resources."""

    files: Filesystem
    shelf: Shelf = field(default_factory=lambda: Shelf("old"))
    branched: BranchedShelf = field(default_factory=lambda: BranchedShelf("old"))
    session: Session = field(default_factory=Session)

    def prompt(self, *tools: Any, **options: Any) -> Prompt[None]:
        section = MarkdownSection(key="t", title="T", template="Go.", tools=tools)
        prompt: Prompt[None] = Prompt(ns="tests", key="previews", sections=[section], **options)
        resources = {Filesystem: self.files, Shelf: self.shelf, BranchedShelf: self.branched}
        return prompt.bind(resources=resources)

    @property
    def state(self) -> tuple[Any, ...]:
        balance = self.session[Balance].latest() or Balance()
        files = [(path, self.files.read(path)) for path in self.files.glob("**")]
        return balance.total, self.session[Paid].all(), files, self.branched.items, self.shelf.items


BEFORE = (100, (), [("a.txt", "old")], ("old",), ("old",))
AFTER = (95, (Paid(5),), [("a.txt", "new"), ("b.txt", "b")], ("old", "new"), ("old", "new"))
EVERYTHING = (Filesystem, Balance, Shelf, BranchedShelf)


def change(context: ToolContext) -> None:
    """Change everything that there is."""
    context.session.dispatch(Paid(5))
    files = context.filesystem
    assert files is not None
    files.write("a.txt", "new")
    files.write("b.txt", "b")
    context.resources.get(BranchedShelf).add("new")
    context.resources.get(Shelf).add("new")


@pytest.fixture(params=["memory", "disk"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    if request.param == "memory":
        return World(InMemoryFilesystem({"a.txt": "old"}))
    (tmp_path / "a.txt").write_text("old")
    return World(HostFilesystem(tmp_path))


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_preview_changes_nothing_that_has_branches_until_it_is_approved(world: World, way: str) -> None:
    seen: list[tuple[Any, ...]] = []

    @tool(approval="effects", changes=EVERYTHING)
    def act(context: ToolContext) -> str:
        "Act."
        change(context)
        seen.append(world.state)
        return "done"

    def go(**options: Any) -> Any:
        if way == "sync":
            return run(world.prompt(act), model, session=world.session, **options)
        return asyncio.run(run_async(world.prompt(act), model, session=world.session, **options))

    model = ScriptedAdapter([call("act"), "Done."])
    (pending,) = go().pending
    # What has no branch is changed itself, and taken back.
    assert seen == [(*BEFORE[:4], ("old", "new"))]
    assert world.state == BEFORE
    assert go(decisions={pending.call_id: Approve()}).text == "Done."
    assert world.state == AFTER
    assert len(seen) == 1


@pytest.mark.parametrize("ends", ["fails", "is denied"])
def test_a_preview_that_comes_to_nothing_leaves_nothing(world: World, ends: str) -> None:
    @tool(approval="effects", changes=EVERYTHING)
    def act(context: ToolContext) -> str:
        "Act."
        change(context)
        if ends == "fails":
            raise ToolValidationError("broken")
        return "done"

    model = ScriptedAdapter([call("act"), "Done."])
    response = run(world.prompt(act), model, session=world.session)
    for pending in response.pending:
        response = run(world.prompt(act), model, session=world.session, decisions={pending.call_id: Deny()})
    assert (response.text, world.state) == ("Done.", BEFORE)
    (invoked,) = world.session[ToolInvoked].all()
    assert (invoked.success, invoked.rolled_back) == (False, True)


PAST: dict[str, Callable[[World], object]] = {
    "session": lambda world: world.session.dispatch(Paid(1)),
    "slice": lambda world: world.session[Balance].seed(Balance(1)),
    "write": lambda world: world.files.write("a.txt", "past"),
    "delete": lambda world: world.files.delete("a.txt"),
    "restore": lambda world: world.files.restore(world.files.snapshot()),
    "folder": lambda world: world.files.mkdir("folder"),
    "own files": lambda world: world.session.workspace.write("a.txt", "past"),
}


@pytest.mark.parametrize("way", PAST)
@pytest.mark.parametrize("place", ["handler", "thread", "async"])
def test_what_a_handler_changes_past_its_context_is_refused(world: World, way: str, place: str) -> None:
    errors: list[BaseException] = []

    def attempt() -> None:
        try:
            PAST[way](world)
        except UnshownChangeError as error:
            errors.append(error)

    @tool(name="act", approval="effects", changes=EVERYTHING)
    def act(context: ToolContext) -> str:
        "Act."
        if place == "thread":
            import contextvars

            thread = threading.Thread(target=contextvars.copy_context().run, args=(attempt,))
            thread.start()
            thread.join()
        else:
            attempt()
        return "done"

    @tool(name="act", approval="effects", changes=EVERYTHING)
    async def act_async(context: ToolContext) -> str:
        "Act."
        await asyncio.sleep(0)
        attempt()
        return "done"

    model = ScriptedAdapter([call("act"), "Done."])
    acting = act_async if place == "async" else act
    assert run(world.prompt(acting), model, session=world.session).text == "Done."
    assert len(errors) == 1 and "take them from the context" in str(errors[0])
    assert world.state == BEFORE and not world.session.workspace.exists("a.txt")


def test_a_resource_that_is_changed_past_its_branch_is_taken_back_and_the_call_fails(world: World) -> None:
    @tool(approval="effects", changes=EVERYTHING)
    def act(context: ToolContext) -> str:
        "Act."
        world.branched.add("past")
        return "done"

    model = ScriptedAdapter([call("act"), "Done."], tool_errors="tell")
    assert run(world.prompt(act), model, session=world.session).pending == ()
    assert "changed BranchedShelf past its context" in model.requests[-1].messages[-1].text
    assert world.state == BEFORE


def test_the_sessions_own_files_are_shown_or_not_changed() -> None:
    @tool(approval="effects", changes=(Balance,))
    def act(context: ToolContext) -> str:
        "Act."
        context.session.workspace.write("a.txt", "new")
        return "done"

    section = MarkdownSection(key="t", title="T", template="Go.", tools=[act])
    session = Session()
    with pytest.raises(UnshownChangeError, match="it changed Filesystem, which it does not declare"):
        run(Prompt(ns="tests", key="own", sections=[section]), ScriptedAdapter([call("act")]), session=session)
    assert not session.workspace.exists("a.txt")


@pytest.mark.parametrize("scope", [Scope.SINGLETON, Scope.TOOL_CALL])
def test_files_that_are_made_for_the_call_are_previewed_too(scope: Scope, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")
    seen: list[str] = []

    @tool(approval="effects", changes=(Filesystem,))
    def act(context: ToolContext) -> str:
        "Act."
        files = context.resources.get(Filesystem)
        files.write("a.txt", "new")
        assert context.resources.get(Filesystem) is files
        seen.append((tmp_path / "a.txt").read_text())
        return "done"

    section = MarkdownSection(key="t", title="T", template="Go.", tools=[act])
    registry = ResourceRegistry.of(Binding(Filesystem, lambda resolver: HostFilesystem(tmp_path), scope=scope))
    prompt: Prompt[None] = Prompt(ns="tests", key="made", sections=[section]).bind(resources=registry)
    session, model = Session(), ScriptedAdapter([call("act"), "Done."])
    (pending,) = run(prompt, model, session=session).pending
    assert (seen, (tmp_path / "a.txt").read_text()) == (["old"], "old")
    assert "-old" in pending.text and "+new" in pending.text
    run(prompt, model, session=session, decisions={pending.call_id: Approve()})
    assert (tmp_path / "a.txt").read_text() == "new"


def test_observers_hear_of_what_a_call_changes_once_it_counts(world: World) -> None:
    @tool(approval="effects", changes=EVERYTHING)
    def act(context: ToolContext) -> str:
        "Act."
        change(context)
        return "done"

    heard: list[object] = []
    world.session.observe(heard.append)
    model = ScriptedAdapter([call("act"), "Done."])
    (pending,) = run(world.prompt(act), model, session=world.session).pending
    assert Paid(5) not in heard
    run(world.prompt(act), model, session=world.session, decisions={pending.call_id: Approve()})
    assert heard.count(Paid(5)) == 1


def test_guards_of_a_result_see_what_the_call_would_change(world: World) -> None:
    seen: list[tuple[int, str]] = []

    class Look(Guard):
        def after_tool(self, call: GuardedCall, result: ToolResult[Any], *, context: GuardContext) -> Outcome | None:
            balance = context.session[Balance].latest() or Balance()
            assert context.filesystem is not None
            seen.append((balance.total, context.filesystem.read("a.txt")))
            return None

    @tool(approval="effects", changes=EVERYTHING)
    def act(context: ToolContext) -> str:
        "Act."
        change(context)
        return "done"

    prompt = world.prompt(act, guards=[Look()])
    run(prompt, ScriptedAdapter([call("act"), "Done."]), session=world.session)
    assert (seen, world.state) == ([(95, "new")], BEFORE)


# Resources that several runs share.


@contextmanager
def side_by_side(*works: Callable[[], object]) -> Iterator[None]:
    """Do this work in threads of its own while the block runs."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("ends", ["asks", "fails"])
def test_a_preview_keeps_what_calls_of_other_runs_have_done(world: World, ends: str) -> None:
    begun = threading.Event()

    @tool(approval="effects", changes=EVERYTHING)
    def act(context: ToolContext) -> str:
        "Act."
        context.resources.get(Shelf).add("shown")
        begun.set()
        if ends == "fails":
            raise ToolValidationError("broken")
        return "done"

    @tool
    def quick(context: ToolContext) -> str:
        "Be quick."
        context.resources.get(Shelf).add("quick")
        return "done"

    def other() -> None:
        begun.wait()
        run(world.prompt(quick), ScriptedAdapter([call("quick"), "Done."]))

    with side_by_side(other):
        run(world.prompt(act), ScriptedAdapter([call("act"), "Done."]), session=world.session)
    assert world.shelf.items == ("old", "quick")


def test_a_failed_call_leaves_what_other_runs_have_done_meanwhile(world: World) -> None:
    begun, done = threading.Event(), threading.Event()

    @tool
    def slow(change_first: bool, context: ToolContext) -> str:
        "Be slow, and fail."
        if change_first:
            context.resources.get(Shelf).add("half")
        begun.set()
        done.wait()
        raise ToolValidationError("broken")

    @tool
    def quick(context: ToolContext) -> str:
        "Be quick."
        context.resources.get(Shelf).add("quick")
        return "done"

    def other() -> None:
        begun.wait()
        run(world.prompt(quick), ScriptedAdapter([call("quick"), "Done."]))
        done.set()

    for change_first, items in ((False, ("old", "quick")), (True, ("old", "half", "quick"))):
        begun.clear()
        done.clear()
        world.shelf.items = ("old",)
        model = ScriptedAdapter([call("slow", change_first=change_first), "Done."])
        with side_by_side(other):
            run(world.prompt(slow), model)
        assert world.shelf.items == items
        left = "What it changed of Shelf, if anything, was not undone: other runs changed that too."
        assert (left in model.requests[-1].messages[-1].text) is change_first


def test_a_failed_call_beside_nobody_is_undone(world: World) -> None:
    @tool
    def fail(context: ToolContext) -> str:
        "Fail."
        change(context)
        raise ToolValidationError("broken")

    run(world.prompt(fail), ScriptedAdapter([call("fail"), "Done."]), session=world.session)
    assert world.state == BEFORE


def test_a_run_inside_a_preview_does_not_wait_for_it(world: World) -> None:
    @tool
    def inner(context: ToolContext) -> str:
        "Act inside."
        context.resources.get(Shelf).add("inner")
        return "done"

    @tool(approval="effects", changes=EVERYTHING)
    def outer(context: ToolContext) -> str:
        "Act outside."
        context.resources.get(Shelf).add("outer")
        run(world.prompt(inner), ScriptedAdapter([call("inner"), "Done."]))
        return "done"

    (pending,) = run(world.prompt(outer), ScriptedAdapter([call("outer")]), session=world.session).pending
    assert world.shelf.items == ("old",)
    assert pending.effects is not None and pending.effects.resources[0].after == ("old", "outer", "inner")


@pytest.mark.parametrize("rounds", [20])
def test_whatever_runs_do_at_the_same_time_only_what_was_approved_and_done_is_there(rounds: int) -> None:
    world = World(InMemoryFilesystem({"a.txt": "old"}))

    @tool(approval="effects", changes=(Shelf,))
    def shown(item: str, context: ToolContext) -> str:
        "Add an item."
        context.resources.get(Shelf).add(item)
        return "done"

    @tool
    def quick(item: str, context: ToolContext) -> str:
        "Add an item."
        context.resources.get(Shelf).add(item)
        return "done"

    def previews(name: str) -> None:
        for number in range(rounds):
            model = ScriptedAdapter([call("shown", item=f"{name}{number}"), "Done."])
            run(world.prompt(shown), model)

    def works(name: str) -> None:
        for number in range(rounds):
            model = ScriptedAdapter([call("quick", item=f"{name}{number}"), "Done."])
            run(world.prompt(quick), model)

    with side_by_side(lambda: previews("a"), lambda: previews("b"), lambda: works("c")):
        pass
    assert world.shelf.items == ("old", *(f"c{number}" for number in range(rounds)))


# Where it is done.


def test_effects_are_captured_and_applied_off_the_event_loop() -> None:
    places: list[tuple[str, bool]] = []

    class Watched(Shelf):
        def note(self, what: str) -> None:
            try:
                asyncio.get_running_loop()
                places.append((what, True))
            except RuntimeError:
                places.append((what, False))

        def branch(self) -> Watched:
            self.note("branch")
            return Watched(*self.items)

        def begin_call(self) -> tuple[str, ...]:
            return self.items

        def changes_since(self, before: tuple[str, ...]) -> tuple[str, ...]:
            self.note("changes")
            return self.items[len(before) :]

        def apply(self, changes: tuple[str, ...]) -> None:
            self.note("apply")
            self.items += changes

    @tool(approval="effects", changes=(Watched,))
    async def act(context: ToolContext) -> str:
        "Act."
        context.resources.get(Watched).add("new")
        return "done"

    async def go() -> None:
        (pending,) = (await run_async(prompt, model, session=session)).pending
        await run_async(prompt, model, session=session, decisions={pending.call_id: Approve()})

    shelf = Watched("old")
    section = MarkdownSection(key="t", title="T", template="Go.", tools=[act])
    prompt = Prompt[None](ns="tests", key="off", sections=[section]).bind(resources={Watched: shelf})
    session, model = Session(), ScriptedAdapter([call("act"), "Done."])
    asyncio.run(go())
    assert shelf.items == ("old", "new")
    assert {what for what, _ in places} == {"branch", "changes", "apply"}
    assert [what for what, on_loop in places if on_loop and what != "branch"] == []
