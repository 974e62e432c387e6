"""A run may be stopped at any moment: nothing goes on writing, and the session is free at once."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.helpers.endings import endings
from tests.waiting import executes, forever, until
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.clock import FakeClock
from weakincentives.errors import (
    AbandonedCallError,
    DeadlineExceededError,
    PromptEvaluationError,
    ToolValidationError,
)
from weakincentives.limits import Deadline
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, Tool, ToolContext, ToolResult, tool
from weakincentives.resources import Binding, ResourceRegistry
from weakincentives.runtime import (
    ArgumentsDelta,
    Channel,
    Conversation,
    Message,
    ModelReply,
    ModelRequest,
    ResourcesNotClosed,
    TextDelta,
    ToolEnded,
    ToolInvoked,
    ToolStarted,
)
from weakincentives.session import Session, SessionBusyError


@dataclass(frozen=True)
class Noted:
    text: str


def prompt(*tools: Any, **kwargs: Any) -> Prompt[None]:
    task = MarkdownSection(title="Task", key="task", template="Go.", tools=tools)
    return Prompt(PromptTemplate(ns="tests", key="stop", sections=[task], **kwargs))


class Blocking:
    """A tool that blocks until it is let go, then writes; with what became of it."""

    def __init__(self, compensate: Callable[..., Any] | None = None) -> None:
        self.started, self.go, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.refused: list[Exception] = []
        self.tool: Tool[None, None] = Tool(
            name="block", description="Block.", handler=self.handle, compensate=compensate
        )

    def handle(self, params: None, *, context: ToolContext) -> ToolResult[None]:
        context.session.dispatch(Noted("before"))
        self.started.set()
        self.go.wait(10)
        try:
            context.session.dispatch(Noted("after"))
        except AbandonedCallError as error:
            self.refused.append(error)
            raise
        finally:
            self.ended.set()
        return ToolResult("done")


def test_a_blocking_tool_of_a_cancelled_run_writes_nothing_any_more() -> None:
    block, session = Blocking(), Session()

    async def main() -> None:
        run = asyncio.ensure_future(
            ScriptedAdapter([call("block")]).evaluate_async(prompt(block.tool), session=session)
        )
        await asyncio.to_thread(block.started.wait, 10)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert session[Noted].all() == ()
        (event,) = session[ToolInvoked].all()
        assert (event.success, event.rolled_back) == (False, True)
        block.go.set()
        await asyncio.to_thread(block.ended.wait, 10)

    asyncio.run(main())
    assert len(block.refused) == 1 and session[Noted].all() == ()


def test_a_cancelled_call_is_compensated_once_after_its_handler_has_ended() -> None:
    order: list[str] = []
    block = Blocking(compensate=lambda params, *, context: order.append("compensated"))

    async def main() -> None:
        session = Session()
        run = asyncio.ensure_future(
            ScriptedAdapter([call("block")]).evaluate_async(prompt(block.tool), session=session)
        )
        await asyncio.to_thread(block.started.wait, 10)
        run.cancel()
        block.go.set()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert [event.compensation for event in session[ToolInvoked]] == ["done"]

    asyncio.run(main())
    assert order == ["compensated"] and block.ended.is_set()


def test_the_cleanup_of_an_interrupted_async_handler_comes_before_the_rollback() -> None:
    cleaned: list[bool] = []

    @tool
    async def wait(*, context: ToolContext) -> str:
        """Wait."""
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await forever()
        finally:
            context.session.dispatch(Noted("cleaned up"))
            cleaned.append(True)

    session = Session()
    with pytest.raises(KeyboardInterrupt):
        ScriptedAdapter([call("wait")]).evaluate(prompt(wait), session=session)
    assert (cleaned, session[Noted].all()) == ([True], ())
    assert [event.rolled_back for event in session[ToolInvoked]] == [True]
    assert len(endings(session, "stopped")) == 1


class Stubborn:
    def snapshot(self) -> int:
        return 1

    def restore(self, snapshot: int) -> None:
        raise OSError("disk full")


def test_a_restore_that_fails_does_not_hide_that_the_run_was_cancelled() -> None:
    resources = ResourceRegistry.build({Stubborn: Stubborn()})

    @tool
    def stop(*, context: ToolContext) -> str:
        """Stop."""
        context.resources.get(Stubborn)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        bound = prompt(stop, resources=resources)
        with bound.resources:
            bound.resources.get(Stubborn)
            ScriptedAdapter([call("stop")]).evaluate(bound, session=Session())
    assert "Rolling back failed as well" in caught.value.__notes__[0]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_deadline_cancels_an_async_tool(is_async: bool) -> None:
    @tool
    async def slow(*, context: ToolContext) -> str:
        """Take long."""
        context.session.dispatch(Noted("begun"))
        await forever()
        return "late"

    session, adapter, deadline = Session(), ScriptedAdapter([call("slow")]), Deadline.after(0.5)
    started = time.monotonic()
    with pytest.raises(DeadlineExceededError, match="passed while tool 'slow' was running") as caught:
        if is_async:
            asyncio.run(adapter.evaluate_async(prompt(slow), session=session, deadline=deadline))
        else:
            adapter.evaluate(prompt(slow), session=session, deadline=deadline)
    assert time.monotonic() - started < 10
    assert (caught.value.phase, session[Noted].all(), len(session[ToolInvoked])) == ("tool", (), 1)


def test_a_deadline_fences_a_blocking_tool() -> None:
    block, session = Blocking(), Session()

    async def main() -> None:
        with pytest.raises(DeadlineExceededError):
            await ScriptedAdapter([call("block")]).evaluate_async(
                prompt(block.tool), session=session, deadline=Deadline.after(0.5)
            )
        block.go.set()
        await asyncio.to_thread(block.ended.wait, 10)

    asyncio.run(main())
    assert len(block.refused) == 1 and session[Noted].all() == ()


def test_a_blocking_tool_of_a_sync_run_writes_nothing_after_the_deadline() -> None:
    block, session, deadline = Blocking(), Session(), Deadline.after(0.5)
    threading.Timer(0.8, block.go.set).start()
    with pytest.raises(DeadlineExceededError):
        ScriptedAdapter([call("block")]).evaluate(prompt(block.tool), session=session, deadline=deadline)
    assert len(block.refused) == 1 and session[Noted].all() == ()


def test_a_deadline_error_raised_in_a_handler_ends_the_run() -> None:
    @tool
    def late() -> str:
        """Be late."""
        raise DeadlineExceededError("the bank closes at five")

    session = Session()
    with pytest.raises(DeadlineExceededError, match="the bank closes at five"):
        ScriptedAdapter([call("late")]).evaluate(prompt(late), session=session)
    assert [event.success for event in session[ToolInvoked]] == [False]


def test_a_tool_validation_error_is_the_models_to_read_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    def refund(amount: int) -> str:
        """Refund."""
        raise ToolValidationError("The amount must be below 100.")

    session = Session()
    ScriptedAdapter([call("refund", amount=200), "Sorry."]).evaluate(prompt(refund), session=session)
    assert [m.text for m in session[Message] if m.role == "tool"] == ["The amount must be below 100."]
    assert caplog.records == []


class Leaky:
    def close(self) -> None:
        raise OSError("stuck")


@pytest.mark.parametrize("is_async", [False, True])
def test_a_close_that_fails_does_not_take_the_answer_away(is_async: bool) -> None:
    @tool
    def use(*, context: ToolContext) -> str:
        """Use it."""
        context.resources.get(Leaky)
        return "used"

    session, adapter = Session(), ScriptedAdapter([call("use"), "Paid for."])
    bound = prompt(use, resources=ResourceRegistry.of(Binding(Leaky, lambda resolver: Leaky())))
    if is_async:
        response = asyncio.run(adapter.evaluate_async(bound, session=session))
    else:
        response = adapter.evaluate(bound, session=session)
    assert response.text == "Paid for."
    assert [event.message for event in session[ResourcesNotClosed]] == ["Could not close Leaky: stuck"]


def story(events: Any) -> list[str]:
    return [type(event).__name__ for event in events]


def test_leaving_a_stream_frees_the_session_and_keeps_what_was_shown() -> None:
    session, adapter = Session(), ScriptedAdapter(["One.\nTwo.\nThree.", "Again."])
    with adapter.stream(prompt(), session=session) as events:
        assert next(events) == TextDelta("One.\n")
    assert [(m.role, m.text) for m in session[Message]][1:] == [("assistant", "One.\n")]
    assert len(endings(session, "stopped")) == 1
    assert adapter.evaluate(prompt(), session=session).text == "Again."


def test_a_stream_that_is_held_open_says_how_to_free_the_session() -> None:
    session, adapter = Session(), ScriptedAdapter(["One.\nTwo.", "Again."])
    events = adapter.stream(prompt(), session=session)
    next(events)
    with pytest.raises(SessionBusyError, match="close its stream"):
        adapter.evaluate(prompt(), session=session)
    events.close()
    assert adapter.evaluate(prompt(), session=session).text == "Again."


def test_leaving_an_async_stream_frees_the_session() -> None:
    async def main() -> None:
        session, adapter = Session(), ScriptedAdapter(["One.\nTwo.", "Three.\nFour.", "Again."])
        async with adapter.stream_async(prompt(), session=session) as events:
            async for event in events:
                assert event == TextDelta("One.\n")
                break
        async for _ in adapter.stream_async(prompt(), session=session):
            break
        assert (await adapter.evaluate_async(prompt(), session=session)).text == "Again."

    asyncio.run(main())


def test_a_stream_may_be_closed_from_another_thread_while_a_tool_runs() -> None:
    block, session = Blocking(), Session()
    adapter = ScriptedAdapter([call("block"), "Again."])
    events = adapter.stream(prompt(block.tool), session=session)
    seen: list[str] = []
    reader = threading.Thread(target=lambda: seen.extend(story(events)))
    reader.start()
    block.started.wait(10)
    events.close()
    assert adapter.evaluate(prompt(), session=session).text == "Again."
    block.go.set()
    reader.join(10)
    assert (seen, session[Noted].all()) == (["ArgumentsDelta", "ToolStarted"], ())
    assert [event.success for event in session[ToolInvoked]] == [False]


def test_whoever_closes_a_stream_waits_until_the_session_is_free() -> None:
    block, session = Blocking(lambda params, *, context: None), Session()
    adapter = ScriptedAdapter([call("block"), "Again."])
    events = adapter.stream(prompt(block.tool), session=session)
    readers = [threading.Thread(target=each) for each in (lambda: story(events), events.close)]
    readers[0].start()
    block.started.wait(10)
    readers[1].start()
    until(lambda: executes(readers[1], type(events).close), "the other thread to wait")
    this_thread = threading.current_thread()

    def end_the_call() -> None:
        until(lambda: executes(this_thread, type(events).close), "this thread to wait")
        block.go.set()

    readers.append(threading.Thread(target=end_the_call))
    readers[2].start()
    events.close()
    assert adapter.evaluate(prompt(), session=session).text == "Again."
    for reader in readers:
        reader.join(10)


def test_an_async_stream_may_be_closed_by_another_task_while_a_tool_runs() -> None:
    async def main() -> None:
        begun = asyncio.Event()

        @tool
        async def wait() -> str:
            """Wait."""
            begun.set()
            try:
                await forever()
            finally:
                await asyncio.to_thread(int)
            return "waited"

        session, adapter = Session(), ScriptedAdapter([call("wait"), "Again."])
        events = adapter.stream_async(prompt(wait), session=session)

        async def read() -> list[str]:
            return story([event async for event in events])

        reader = asyncio.create_task(read())
        await begun.wait()
        await asyncio.gather(events.aclose(), events.aclose())
        assert await reader == ["ArgumentsDelta", "ToolStarted"]
        assert (await adapter.evaluate_async(prompt(), session=session)).text == "Again."

    asyncio.run(main())


def test_a_tool_whose_end_was_shown_keeps_its_result() -> None:
    @tool
    def note() -> str:
        """Note."""
        return "noted"

    session = Session()
    with ScriptedAdapter([call("note"), "Never."]).stream(prompt(note), session=session) as events:
        for event in events:
            if isinstance(event, ToolEnded):
                break
            assert isinstance(event, ArgumentsDelta | ToolStarted)
    assert [(m.role, m.text) for m in session[Message]][2:] == [("tool", "noted")]


UNKNOWN = "Whether this call had an effect is not known."


def results(session: Session) -> list[str]:
    return [message.text for message in session[Message] if message.role == "tool"]


def test_a_call_that_was_stopped_is_not_said_to_be_not_run() -> None:
    @tool
    def pay(euros: int) -> str:
        """Pay."""
        if euros == 2:
            raise KeyboardInterrupt
        return "paid"

    session = Session()
    with pytest.raises(KeyboardInterrupt):
        calls = [call("pay", euros=euros) for euros in (1, 2, 3)]
        ScriptedAdapter([calls]).evaluate(prompt(pay), session=session)
    assert results(session) == [
        "paid",
        f"Not finished: the run was stopped. {UNKNOWN}",
        "Not run: the run was stopped.",
    ]
    assert [event.success for event in session[ToolInvoked]] == [True, False]


def test_a_call_that_ended_beside_one_that_was_stopped_keeps_its_result() -> None:
    @tool(read_only=True)
    def look(number: int) -> str:
        """Look."""
        if number == 2:
            raise KeyboardInterrupt
        return "seen"

    session = Session()
    with pytest.raises(KeyboardInterrupt):
        ScriptedAdapter([[call("look", number=1), call("look", number=2)]]).evaluate(prompt(look), session=session)
    assert sorted(results(session)) == ["Not finished: the run was stopped.", "seen"]


def test_a_handler_that_returns_after_the_deadline_keeps_its_result_and_is_not_called_again() -> None:
    clock, paid = FakeClock(), list[int]()

    @tool
    def pay(euros: int) -> str:
        """Pay."""
        clock.advance(10)
        paid.append(euros)
        return "paid"

    session = Session(clock=clock)
    with pytest.raises(DeadlineExceededError):
        deadline = Deadline.after(5, clock)
        ScriptedAdapter([call("pay", euros=7)]).evaluate(prompt(pay), session=session, deadline=deadline)
    assert ScriptedAdapter(["Done."]).resume(prompt(pay), session=session).text == "Done."
    assert (paid, results(session)) == ([7], ["paid"])


def test_a_call_that_the_deadline_stopped_is_not_made_again_on_resume() -> None:
    begun = list[str]()

    @tool
    async def pay() -> str:
        """Pay."""
        begun.append("pay")
        await forever()
        return "paid"

    session = Session()
    with pytest.raises(DeadlineExceededError):
        ScriptedAdapter([call("pay")]).evaluate(prompt(pay), session=session, deadline=Deadline.after(0.5))
    ScriptedAdapter(["Asking the bank."]).resume(prompt(pay), session=session)
    assert (begun, results(session)) == (["pay"], [f"Not finished: the deadline passed. {UNKNOWN}"])


def test_a_handler_that_outlives_its_run_learns_that_it_was_abandoned() -> None:
    problems, ended = list[Exception](), threading.Event()
    started, go = threading.Event(), threading.Event()

    @tool
    def slow(*, context: ToolContext) -> str:
        """Take long."""
        started.set()
        go.wait(10)
        try:
            context.resources.get(Leaky)
        except AbandonedCallError as error:
            problems.append(error)
        ended.set()
        return "late"

    async def main() -> None:
        run = asyncio.ensure_future(ScriptedAdapter([call("slow")]).evaluate_async(prompt(slow), session=Session()))
        await asyncio.to_thread(started.wait, 10)
        run.cancel()
        await asyncio.wait([run])
        go.set()
        await asyncio.to_thread(ended.wait, 10)

    asyncio.run(main())
    assert len(problems) == 1


class Breaking(ScriptedAdapter):
    """Shows the beginning of its first reply, then the connection breaks."""

    def channel(self) -> Channel:
        whole = super().channel()

        class Broken(Channel):
            def call(self, request: ModelRequest) -> ModelReply:
                return whole.call(request)

            def stream(self, request: ModelRequest) -> Iterator[Any]:
                reply = whole.call(request)
                yield TextDelta(reply.text[:4])
                raise PromptEvaluationError("the connection broke", phase="response")

        return Broken()


def test_what_a_stream_has_shown_stays_when_it_breaks() -> None:
    chat = Conversation(prompt(), adapter=Breaking(["One. Two.", "As I said."]))
    with pytest.raises(PromptEvaluationError), chat.stream("Count.") as events:
        list(events)
    assert chat.send("Go on.").text == "As I said."
    assert [(message.role, message.text) for message in chat.messages][1:] == [
        ("user", "Count."),
        ("assistant", "One."),
        ("user", "Go on."),
        ("assistant", "As I said."),
    ]


def test_a_reply_that_broke_off_is_written_anew_when_nothing_was_said_since() -> None:
    adapter, bound, session = Breaking(["One. Two.", "One. Two."]), prompt(), Session()
    with pytest.raises(PromptEvaluationError):
        list(adapter.stream(bound, session=session))
    assert adapter.resume(prompt(), session=session).text == "One. Two."
    assert [(message.role, message.text) for message in session[Message]][1:] == [("assistant", "One. Two.")]
