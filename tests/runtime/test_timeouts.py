"""A tool may have a timeout: a call that takes longer fails, is undone and compensated, and the run continues."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import forever, until
from weakincentives import (
    Binding,
    Conversation,
    Deadline,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    ResourceRegistry,
    ScriptedAdapter,
    Session,
    Tool,
    ToolContext,
    ToolResult,
    run,
    run_async,
    tool,
)
from weakincentives.adapters.scripted import call
from weakincentives.clock import FakeClock
from weakincentives.errors import AbandonedCallError, DeadlineExceededError, PromptValidationError
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import SearchSections, SectionVisibility
from weakincentives.resources import Scope
from weakincentives.runtime import Message, ToolEnded, ToolInvoked
from weakincentives.runtime.loop import bridge

# Long enough for a thread to start on a busy machine; no handler here ends in time by itself.
SECONDS = 0.3
LATE = f"Tool 'slow' did not end within {SECONDS:g} s."
UNKNOWN = " Whether this call had an effect is not known."
SCRIPT = (("slow",), ("note",), "Done.")
MODES = ["run", "run_async"]


@dataclass(frozen=True)
class Noted:
    text: str


@tool
def note(*, context: ToolContext) -> str:
    """Note it."""
    context.session.dispatch(Noted("kept"))
    return "noted"


@dataclass
class Slow:
    """A tool that is always late; with what became of its handler."""

    is_async: bool
    compensated: bool
    order: list[str] = field(default_factory=list)
    go: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    files: InMemoryFilesystem = field(default_factory=InMemoryFilesystem)

    @property
    def tool(self) -> Tool[None, None]:
        return Tool(
            name="slow",
            description="Take long.",
            handler=self.waiting if self.is_async else self.blocking,
            compensate=self.undo if self.compensated else None,
            timeout=SECONDS,
        )

    def prompt(self) -> Prompt[None]:
        task = MarkdownSection(title="Task", key="task", template="Go.", tools=[self.tool, note])
        return Prompt(ns="tests", key="timeouts", sections=[task], resources={Filesystem: self.files})

    def begin(self, context: ToolContext) -> None:
        context.session.dispatch(Noted("lost"))
        self.files.write("lost.txt", "lost")
        self.order.append("begun")

    def blocking(self, params: None, *, context: ToolContext) -> ToolResult[None]:
        self.begin(context)
        assert context.deadline is not None
        if self.compensated:  # It ends late, but within the time that its compensation waits for it.
            until(lambda: context.deadline.expired)
        else:
            self.go.wait(60)
        try:
            context.session.dispatch(Noted("too late"))
        except AbandonedCallError:
            self.order.append("refused")
            raise
        finally:
            self.ended.set()
        return ToolResult("late")

    async def waiting(self, params: None, *, context: ToolContext) -> ToolResult[None]:
        self.begin(context)
        try:
            await forever()
        except asyncio.CancelledError:
            self.order.append("cancelled")
            raise
        finally:
            self.ended.set()
        return ToolResult("late")

    def undo(self, params: None, *, context: ToolContext) -> None:
        self.order.append("undone")


def scripted() -> ScriptedAdapter:
    return ScriptedAdapter([line if isinstance(line, str) else call(*line) for line in SCRIPT])


def by_run(slow: Slow, folder: Path) -> list[str]:
    return texts(run(slow.prompt(), scripted()).session)


def by_run_async(slow: Slow, folder: Path) -> list[str]:
    return texts(asyncio.run(run_async(slow.prompt(), scripted())).session)


def by_stream(slow: Slow, folder: Path) -> list[str]:
    session = Session()
    with scripted().stream(slow.prompt(), session=session) as events:
        shown = [event.message for event in events if isinstance(event, ToolEnded)]
    assert shown == texts(session)
    return shown


def by_stream_async(slow: Slow, folder: Path) -> list[str]:
    async def main() -> list[str]:
        session = Session()
        async with scripted().stream_async(slow.prompt(), session=session) as events:
            shown = [event.message async for event in events if isinstance(event, ToolEnded)]
        assert shown == texts(session)
        return shown

    return asyncio.run(main())


def by_conversation(slow: Slow, folder: Path) -> list[str]:
    with Conversation(slow.prompt(), adapter=scripted()) as chat:
        assert chat.send("Go.").text == "Done."
    return texts(chat.session)


def by_durable_loop(slow: Slow, folder: Path) -> list[str]:
    pytest.importorskip("dbos", reason="needs the extra [durable]")
    from weakincentives.durable import DurableMainLoop

    sessions: list[Session] = []

    def session(_: Any) -> Session:
        sessions.append(Session())
        return sessions[-1]

    path = str(folder / "durable.db")
    with DurableMainLoop("timeouts", lambda _: slow.prompt(), scripted(), path, new_session=session) as loop:
        assert loop.execute("go", key="a").text == "Done."
    return texts(sessions[0])


def by_claude_agent_sdk(slow: Slow, folder: Path) -> list[str]:
    pytest.importorskip("claude_agent_sdk", reason="needs the extra [claude]: pip install 'weakincentives[claude]'")
    from tests.adapters.claude_agent_sdk.cli_runs import adapter
    from tests.servers import claude_cli

    script = [claude_cli.say(line) if isinstance(line, str) else claude_cli.call(*line) for line in SCRIPT]
    session = Session()
    with claude_cli.CliServer(script) as api, adapter(api) as claude:
        claude.evaluate(slow.prompt(), session=session)
    return texts(session)


def by_mcp_host(slow: Slow, folder: Path) -> list[str]:
    mcp = pytest.importorskip("mcp", reason="needs the extra [mcp]: pip install 'weakincentives[mcp]'")
    from weakincentives.mcp import serve

    async def main() -> list[str]:
        session = Session()
        async with mcp.Client(serve(slow.prompt().template, session=session).server) as client:
            results = [await client.call_tool(*line, {}) for line in SCRIPT[:2]]
        texts(session)
        return [result.content[0].text for result in results]

    return asyncio.run(main())


def texts(session: Session | None) -> list[str]:
    assert session is not None
    assert session[Noted].all() == (Noted("kept"),)
    assert [event.rolled_back for event in session[ToolInvoked]] == [True, False]
    return [message.text for message in session[Message] if message.role == "tool"]


@pytest.mark.parametrize("compensated", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    "route",
    [
        by_run,
        by_run_async,
        by_stream,
        by_stream_async,
        by_conversation,
        by_durable_loop,
        by_claude_agent_sdk,
        by_mcp_host,
    ],
)
def test_a_call_that_takes_too_long_fails_and_the_run_continues(
    route: Callable[[Slow, Path], list[str]], is_async: bool, compensated: bool, tmp_path: Path
) -> None:
    slow = Slow(is_async, compensated)
    try:
        results = route(slow, tmp_path)
        # A blocking handler is still running behind its fence; any other has ended.
        assert slow.ended.is_set() is (is_async or compensated)
    finally:
        slow.go.set()
    assert slow.ended.wait(30)
    assert results == [LATE if compensated else LATE + UNKNOWN, "noted"]
    assert slow.files.glob("**/*") == ()
    expected = ["begun", "cancelled" if is_async else "refused", *(["undone"] if compensated else [])]
    assert wait_for(slow.order, len(expected)) == expected


def wait_for(items: list[str], count: int) -> list[str]:
    until(lambda: len(items) >= count, f"{count} items, got {items}")
    return items


def prompt(*tools: Tool[Any, Any], **options: Any) -> Prompt[None]:
    task = MarkdownSection(title="Task", key="task", template="Go.", tools=tools)
    return Prompt(PromptTemplate(ns="tests", key="timeouts", sections=[task], **options))


def evaluate(mode: str, bound: Prompt[None], *calls: str, session: Session | None = None, **options: Any) -> list[str]:
    """What the model reads of each call."""
    session, adapter = session or Session(), ScriptedAdapter([*map(call, calls), "Done."])
    if mode == "run":
        run(bound, adapter, session=session, **options)
    else:
        asyncio.run(run_async(bound, adapter, session=session, **options))
    return [message.text for message in session[Message] if message.role == "tool"]


@pytest.mark.parametrize(
    ("own", "of_template", "of_run", "left"),
    [
        (None, None, None, None),
        (5.0, None, None, 5),
        (None, 5, None, 5),
        (5, 50, None, 5),
        (50, 5, None, 50),
        (5, None, 50, 5),
        (50, None, 5, 5),
        (50, 20, 5, 5),
        (None, 20, 5, 5),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_the_deadline_of_a_call_is_the_earlier_of_its_tools_and_its_runs(
    mode: str, own: float | None, of_template: float | None, of_run: float | None, left: float | None
) -> None:
    seen: list[float | None] = []
    clock = FakeClock()

    @tool(timeout=own)
    def look(*, context: ToolContext) -> str:
        """Look."""
        seen.append(None if context.deadline is None else context.deadline.remaining().total_seconds())
        return "seen"

    deadline = None if of_run is None else Deadline.after(of_run, clock)
    bound = prompt(look, tool_timeout=of_template)
    assert evaluate(mode, bound, "look", session=Session(clock=clock), deadline=deadline) == ["seen"]
    assert seen == [left]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_a_result_that_comes_late_does_not_count(mode: str, is_async: bool) -> None:
    clock = FakeClock()

    def sleep(params: None, *, context: ToolContext) -> ToolResult[None]:
        context.session.dispatch(Noted("lost"))
        clock.sleep(6)
        return ToolResult("late")

    async def sleep_async(params: None, *, context: ToolContext) -> ToolResult[None]:
        return sleep(params, context=context)

    slow = Tool[None, None](
        name="slow", description="Take long.", handler=sleep_async if is_async else sleep, timeout=5, read_only=False
    )
    session = Session(clock=clock)
    (text,) = evaluate(mode, prompt(slow), "slow", session=session)
    assert text == f"Tool 'slow' did not end within 5 s.{UNKNOWN}"
    assert session[Noted].all() == ()


@pytest.mark.parametrize("mode", MODES)
def test_the_deadline_of_the_run_ends_it_although_the_tool_has_more_time(mode: str) -> None:
    slow = Slow(is_async=False, compensated=False)
    deadline = Deadline.after(SECONDS)
    slow_tool = slow.tool
    slow_tool.timeout = 60.0
    try:
        with pytest.raises(DeadlineExceededError, match="passed while tool 'slow' was running"):
            evaluate(mode, prompt(slow_tool, resources={Filesystem: slow.files}), "slow", deadline=deadline)
        assert not slow.ended.is_set()
    finally:
        slow.go.set()


@pytest.mark.parametrize("mode", MODES)
def test_a_run_inside_a_tool_ends_with_the_tools_timeout_and_the_outer_run_continues(mode: str) -> None:
    inner = Slow(is_async=False, compensated=False)
    inner_tool = inner.tool
    inner_tool.timeout = None

    @tool(timeout=SECONDS)
    def slow(*, context: ToolContext) -> str:
        """Ask another."""
        bound = prompt(inner_tool, resources={Filesystem: inner.files})
        return run(bound, ScriptedAdapter([call("slow")]), deadline=context.deadline).text or ""

    try:
        assert evaluate(mode, prompt(slow, note), "slow", "note") == [LATE + UNKNOWN, "noted"]
    finally:
        inner.go.set()


def test_a_deadline_error_of_an_inner_run_is_the_tools_timeout() -> None:
    clock = FakeClock()

    @tool(timeout=5)
    def slow(*, context: ToolContext) -> str:
        """Ask another."""

        def model(request: Any) -> str:
            clock.advance(6)
            return "not JSON"

        bound = Prompt[Noted](ns="tests", key="inner", sections=[MarkdownSection(title="T", key="t", template="T")])
        return run(bound, ScriptedAdapter(model), deadline=context.deadline).text or ""

    bound = prompt(slow)
    assert evaluate("run", bound, "slow", session=Session(clock=clock)) == [
        f"Tool 'slow' did not end within 5 s.{UNKNOWN}"
    ]


def test_a_handler_that_outlives_the_time_for_its_compensation_may_still_have_an_effect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bridge, "CLEANUP_SECONDS", 0.05)
    go, order = threading.Event(), list[str]()

    def hang(params: None, *, context: ToolContext) -> ToolResult[None]:
        go.wait(60)
        return ToolResult("late")

    slow = Tool[None, None](
        name="slow",
        description="Take long.",
        handler=hang,
        compensate=lambda params, *, context: order.append("undone"),
        timeout=SECONDS,
    )
    try:
        for mode in MODES:
            assert evaluate(mode, prompt(slow), "slow") == [LATE + UNKNOWN]
    finally:
        go.set()
    assert order == ["undone", "undone"]


def test_an_async_handler_that_blocks_does_not_hold_up_a_sync_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "CLEANUP_SECONDS", 0.05)
    go = threading.Event()

    @tool(timeout=SECONDS)
    async def slow() -> str:
        """Take long."""
        go.wait(60)
        return "late"

    seen: list[list[str]] = []

    def model(request: Any) -> Any:
        if request.messages[-1].role != "tool":
            return call("slow")
        seen.append([request.messages[-1].text])
        go.set()
        return "Done."

    run(prompt(slow), ScriptedAdapter(model))
    assert seen == [[LATE + UNKNOWN]]


@pytest.mark.parametrize("mode", MODES)
def test_an_async_handler_that_is_late_before_it_begins_leaves_nothing_unawaited(mode: str) -> None:
    @tool(timeout=0.000_001)
    async def slow() -> str:
        """Take long."""
        await forever()
        return "late"

    with warnings.catch_warnings(record=True) as unawaited:
        warnings.simplefilter("always")
        for _ in range(20):
            evaluate(mode, prompt(slow), "slow")
        gc.collect()
    assert unawaited == []


@pytest.mark.parametrize("mode", MODES)
def test_read_only_calls_in_parallel_time_out_each_on_its_own(mode: str) -> None:
    go = threading.Event()

    @tool(read_only=True, timeout=SECONDS)
    def slow() -> str:
        """Take long."""
        go.wait(60)
        return "late"

    @tool(read_only=True)
    def quick() -> str:
        """Be quick."""
        return "quick"

    session = Session()
    adapter = ScriptedAdapter([[call("slow"), call("quick"), call("slow")], "Done."])
    try:
        if mode == "run":
            run(prompt(slow, quick), adapter, session=session)
        else:
            asyncio.run(run_async(prompt(slow, quick), adapter, session=session))
    finally:
        go.set()
    assert [message.text for message in session[Message] if message.role == "tool"] == [LATE, "quick", LATE]


@pytest.mark.parametrize("mode", MODES)
def test_the_tools_that_open_sections_obey_the_timeout_of_the_template(mode: str) -> None:
    class Slowly:
        """A ranker that is slow, and finds nothing."""

        def index(self, texts: Sequence[str]) -> Slowly:
            return self

        def rank(self, query: str, limit: int) -> list[tuple[int, float]]:
            clock.advance(6)
            return []

    clock = FakeClock()
    more = MarkdownSection(
        title="More", key="more", template="All.", summary="More.", visibility=SectionVisibility.SUMMARY
    )
    bound = Prompt[None](ns="tests", key="more", sections=[more], disclosure=SearchSections(Slowly()), tool_timeout=5)
    session, read = Session(clock=clock), call("read_section", section_key="more")
    adapter = ScriptedAdapter([call("search_sections", query="more"), read, "Done."])
    if mode == "run":
        run(bound, adapter, session=session)
    else:
        asyncio.run(run_async(bound, adapter, session=session))
    late, opened = (message.text for message in session[Message] if message.role == "tool")
    assert (late, "All." in opened) == ("Tool 'search_sections' did not end within 5 s.", True)


@pytest.mark.parametrize("mode", MODES)
def test_what_a_call_in_time_has_left_running_may_still_write(mode: str) -> None:
    clock, go, written = FakeClock(), threading.Event(), threading.Event()
    session = Session(clock=clock)

    @tool(timeout=5)
    def begin(*, context: ToolContext) -> str:
        """Begin."""

        def go_on() -> None:
            go.wait(30)
            context.session.dispatch(Noted("later"))
            written.set()

        threading.Thread(target=contextvars.copy_context().run, args=[go_on]).start()
        return "begun"

    assert evaluate(mode, prompt(begin), "begin", session=session) == ["begun"]
    clock.advance(6)
    go.set()
    assert written.wait(30) and session[Noted].all() == (Noted("later"),)


def test_a_timeout_is_logged_and_recorded_as_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    slow, session = Slow(is_async=True, compensated=False), Session()
    with caplog.at_level(logging.WARNING):
        run(slow.prompt(), scripted(), session=session)
    assert [record.getMessage() for record in caplog.records] == [LATE]
    event = session[ToolInvoked].all()[0]
    assert (event.name, event.success, event.rolled_back, event.text) == ("slow", False, True, LATE + UNKNOWN)


HANGS = """
import threading
from tests.runtime.test_timeouts import prompt
from weakincentives import ScriptedAdapter, run, tool
from weakincentives.adapters.scripted import call

@tool(timeout=0.3)
def hang() -> None:
    "Hang."
    threading.Event().wait()


print(run(prompt(hang), ScriptedAdapter([call("hang"), "Done."])).text)
"""


def test_a_tool_that_never_returns_does_not_keep_the_program_from_ending() -> None:
    done = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "Done.\n"), done.stderr


def test_ctrl_c_stops_a_run_although_its_tool_has_a_thread_of_its_own() -> None:
    slow, session = Slow(is_async=False, compensated=False), Session()

    def interrupting(params: None, *, context: ToolContext) -> ToolResult[None]:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return slow.blocking(params, context=context)

    slow_tool = Tool[None, None](name="slow", description="Take long.", handler=interrupting, timeout=60)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(prompt(slow_tool, resources={Filesystem: slow.files}), scripted(), session=session)
        assert (slow.ended.is_set(), session[Noted].all()) == (False, ())
    finally:
        slow.go.set()
    assert slow.ended.wait(30) and wait_for(slow.order, 2) == ["begun", "refused"]
    assert run(prompt(note), ScriptedAdapter([call("note"), "Done."]), session=session).text == "Done."


def test_a_stream_may_be_closed_while_a_tool_with_a_timeout_runs() -> None:
    slow, session = Slow(is_async=False, compensated=False), Session()
    slow_tool = slow.tool
    slow_tool.timeout = 60.0
    bound = prompt(slow_tool, note, resources={Filesystem: slow.files})
    events = scripted().stream(bound, session=session)
    reader = threading.Thread(target=lambda: list(events))
    reader.start()
    try:
        wait_for(slow.order, 1)
        events.close()
        assert run(prompt(note), ScriptedAdapter([call("note"), "Done."]), session=session).text == "Done."
        assert not slow.ended.is_set()
    finally:
        slow.go.set()
    reader.join(30)
    assert session[Noted].all() == (Noted("kept"),)


@pytest.mark.parametrize("seconds", [0, -1, 0.0, float("nan"), float("inf"), 1e12, True, False, "5", b"5", [5]])
@pytest.mark.parametrize(
    ("declare", "whose"),
    [
        (lambda seconds: tool(timeout=seconds)(note.function), "Tool 'note': timeout"),
        (
            lambda seconds: Tool(name="t", description="T.", handler=Slow(True, False).waiting, timeout=seconds),
            "Tool 't': timeout",
        ),
        (
            lambda seconds: Tool.from_schema(
                name="t",
                description="T.",
                schema={"type": "object"},
                handler=lambda params, *, context: ToolResult(),
                timeout=seconds,
            ),
            "Tool 't': timeout",
        ),
        (lambda seconds: prompt(tool_timeout=seconds), "Prompt 'timeouts': tool_timeout"),
    ],
)
def test_a_timeout_that_is_no_positive_number_is_refused_when_it_is_declared(
    declare: Callable[[Any], Any], whose: str, seconds: Any
) -> None:
    with pytest.raises(PromptValidationError) as caught:
        declare(seconds)
    expected = f"{whose} must be a number of seconds above 0, or None for no limit, got {seconds!r}."
    assert str(caught.value) == expected


def test_a_tool_keeps_its_timeout_when_it_is_renamed_described_or_copied() -> None:
    made = tool(timeout=5)(note.function)
    assert made.renamed("other").timeout == made.with_descriptions("Else.", {}).timeout == made.timeout == 5


class Door:
    """A resource that opens slowly."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def close(self) -> None:
        self.log.append("closed")


@dataclass
class Opening:
    """A provider that hangs the first time, and how a handler asks for what it provides."""

    kind: str
    go: threading.Event = field(default_factory=threading.Event)
    left: threading.Event = field(default_factory=threading.Event)
    log: list[str] = field(default_factory=list)

    def registry(self, scope: Scope) -> ResourceRegistry:
        provider: Any = {"blocking": self.block, "async": self.wait, "manager": self.manage}[self.kind]
        return ResourceRegistry.of(Binding(Door, provider, scope=scope))

    def first(self) -> bool:
        self.log.append("opens")
        return self.log == ["opens"]

    def block(self, resolver: Any) -> Door:
        if self.first():
            self.go.wait(60)
        return Door(self.log)

    async def wait(self, resolver: Any) -> Door:
        await self.hang()
        return Door(self.log)

    @asynccontextmanager
    async def manage(self, resolver: Any) -> AsyncIterator[Door]:
        await self.hang()
        door = Door(self.log)
        yield door
        door.close()

    async def hang(self) -> None:
        if self.first():
            try:
                await forever()
            except asyncio.CancelledError:
                self.log.append("cancelled")
                raise


@pytest.mark.parametrize("scope", [Scope.SINGLETON, Scope.TOOL_CALL, Scope.PROTOTYPE])
@pytest.mark.parametrize(
    ("kind", "is_async"),
    # Not a blocking provider in an async handler: whatever blocks an event loop, nothing there can stop.
    [("blocking", False), ("async", False), ("async", True), ("manager", False), ("manager", True)],
)
@pytest.mark.parametrize("mode", MODES)
def test_a_resource_that_a_call_opens_counts_in_its_time(mode: str, kind: str, is_async: bool, scope: Scope) -> None:
    opening = Opening(kind)

    def open_it(params: None, *, context: ToolContext) -> ToolResult[None]:
        try:
            return ToolResult(type(context.resources.get(Door)).__name__)
        except AbandonedCallError:
            opening.left.set()
            raise

    async def open_async(params: None, *, context: ToolContext) -> ToolResult[None]:
        return ToolResult(type(await context.resources.get_async(Door)).__name__)

    slow = Tool[None, None](
        name="slow", description="Open it.", handler=open_async if is_async else open_it, timeout=SECONDS
    )
    again = Tool[None, None](name="again", description="Open it.", handler=open_async if is_async else open_it)
    try:
        bound = prompt(slow, again, resources=opening.registry(scope))
        # The second call does not wait for the provider that hangs.
        assert evaluate(mode, bound, "slow", "again") == [LATE + UNKNOWN, "Door"]
    finally:
        opening.go.set()
    if kind == "blocking":
        # What the provider returns in the end is closed, and its handler learns that it is late.
        assert opening.left.wait(30)
        assert sorted(wait_for(opening.log, 4)) == ["closed", "closed", "opens", "opens"]
    else:
        assert sorted(wait_for(opening.log, 4)) == ["cancelled", "closed", "opens", "opens"]


def test_a_call_that_no_longer_waits_for_a_resource_leaves_it_to_the_others() -> None:
    go, late = asyncio.Event(), asyncio.Event()

    async def provide(resolver: Any) -> Door:
        await go.wait()
        return Door([])

    async def open_it(params: None, *, context: ToolContext) -> ToolResult[None]:
        try:
            door = await context.resources.get_async(Door)
        except asyncio.CancelledError:
            late.set()
            raise
        return ToolResult(type(door).__name__)

    def made(name: str, seconds: float | None) -> Tool[None, None]:
        return Tool(name=name, description="Open it.", handler=open_it, read_only=True, timeout=seconds)

    @tool(read_only=True)
    async def release() -> str:
        """Let it be created once the first who waits is late."""
        await late.wait()
        go.set()
        return "released"

    async def main() -> list[str]:
        session = Session()
        calls = [call("first"), call("slow"), call("third"), call("release")]
        resources = ResourceRegistry.of(Binding(Door, provide))
        bound = prompt(made("first", None), made("slow", SECONDS), made("third", None), release, resources=resources)
        await run_async(bound, ScriptedAdapter([calls, "Done."]), session=session)
        return [message.text for message in session[Message] if message.role == "tool"]

    assert asyncio.run(main()) == ["Door", LATE, "Door", "released"]
