"""A tool call that has started is brought to its end once, however its run is stopped."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from starlette.responses import StreamingResponse

from tests.waiting import executes, until, until_async
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.errors import DeadlineExceededError
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.limits import Deadline
from weakincentives.prompt import MarkdownSection, Prompt, Tool, ToolContext, ToolResult, WorkspaceSection
from weakincentives.runtime import Conversation, EventStream, ModelCalled, ToolInvoked, ToolStarted
from weakincentives.runtime.loop.bridge import MAX_THREADS, threads

UNKNOWN = " Whether this call had an effect is not known."


@dataclass(frozen=True)
class Noted:
    text: str


class Shop:
    """A conversation whose model charges a card, with what happens outside: charges, and their refunds."""

    def __init__(self, handler: str, compensation: str, deadline: Deadline | None = None) -> None:
        self.outside: list[str] = []
        self.started, self.go, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.deadline = deadline
        self.files = InMemoryFilesystem()
        charge: Tool[None, None] = Tool(
            name="charge",
            description="Charge the card.",
            handler=self._charge if handler == "blocking" else self._charge_async,
            compensate={"none": None, "sync": self._refund, "async": self._refund_async}[compensation],
        )
        task = MarkdownSection(title="Task", key="task", template="Sell.", tools=[charge])
        prompt: Prompt[None] = Prompt(ns="tests", key="shop", sections=[task, WorkspaceSection(self.files)])
        self.adapter = ScriptedAdapter([call("charge"), "Sorry."])
        self.chat = Conversation(prompt, adapter=self.adapter)

    def _begin(self, context: ToolContext) -> None:
        context.session.dispatch(Noted("charging"))
        self.files.write("order.txt", "charging")
        self.started.set()

    def _charge(self, params: None, *, context: ToolContext) -> ToolResult[None]:
        self._begin(context)
        self.go.wait(10)
        self.outside.append("charged")
        self.ended.set()
        return ToolResult("Charged.")

    async def _charge_async(self, params: None, *, context: ToolContext) -> ToolResult[None]:
        self._begin(context)
        try:
            await asyncio.Event().wait()
        finally:
            # The charge cannot be called back any more; it is confirmed in several steps.
            await asyncio.sleep(0)
            await asyncio.to_thread(int)
            self.outside.append("charged")
            self.ended.set()
        return ToolResult("Charged.")

    def _refund(self, params: None, *, context: ToolContext) -> None:
        self.outside.append("refunded")

    async def _refund_async(self, params: None, *, context: ToolContext) -> None:
        await asyncio.sleep(0)
        await asyncio.to_thread(int)
        self.outside.append("refunded")

    async def begun(self) -> None:
        async with asyncio.timeout(10):
            await until_async(lambda: self.started.is_set())

    def release(self) -> None:
        """Let a blocking charge go on, once the cancellations that follow have been delivered."""
        asyncio.get_running_loop().call_later(0.02, self.go.set)


async def evaluate(shop: Shop) -> None:
    await shop.adapter.evaluate_async(shop.chat.prompt, session=shop.chat.session, deadline=shop.deadline)


async def send(shop: Shop) -> None:
    await shop.chat.send_async("Sell.", deadline=shop.deadline)


async def stream(shop: Shop) -> None:
    async with shop.chat.stream_async("Sell.", deadline=shop.deadline) as events:
        async for _ in events:
            pass


Front = Callable[[Shop], Awaitable[None]]


async def cancelled(shop: Shop, front: Front, times: int) -> None:
    """Cancel the task so often, each time when it is waiting again."""
    run = asyncio.ensure_future(front(shop))
    await shop.begun()
    shop.release()
    for _ in range(times):
        run.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await run


async def late_and_cancelled(shop: Shop, front: Front) -> None:
    run = asyncio.ensure_future(front(shop))
    assert shop.deadline is not None
    await until_async(lambda: shop.deadline.expired)
    shop.release()
    while not run.done():
        run.cancel()
        await asyncio.sleep(0)
    with pytest.raises((asyncio.CancelledError, DeadlineExceededError)):
        await run


async def in_task_group(shop: Shop, front: Front) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(front, shop)
        await shop.begun()
        shop.release()
        group.cancel_scope.cancel()


async def failing_after(shop: Shop, front: Front) -> None:
    async def expire() -> None:
        await shop.begun()
        shop.release()
        scope.deadline = anyio.current_time()

    with pytest.raises(TimeoutError):
        with anyio.fail_after(60) as scope:
            expiring = asyncio.ensure_future(expire())
            await front(shop)
    await expiring


async def disconnected(shop: Shop, front: Front) -> None:
    """Serve the stream with Starlette to a client that leaves."""

    async def body() -> Any:
        async with shop.chat.stream_async("Sell.", deadline=shop.deadline) as events:
            async for event in events:
                yield str(event)

    async def receive() -> dict[str, Any]:
        await shop.begun()
        shop.release()
        return {"type": "http.disconnect"}

    async def deliver(message: Any) -> None:
        pass

    await StreamingResponse(body())({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, deliver)


STOPS: dict[str, Callable[[Shop, Front], Awaitable[None]]] = {
    "one cancel": lambda shop, front: cancelled(shop, front, 1),
    "two cancels": lambda shop, front: cancelled(shop, front, 2),
    "many cancels": lambda shop, front: cancelled(shop, front, 100),
    "an anyio task group": in_task_group,
    "anyio's fail_after": failing_after,
    "a client that disconnects": disconnected,
}
FRONTS: dict[str, Front] = {"evaluate": evaluate, "send": send, "stream": stream}
CASES = [
    case
    for case in itertools.product(STOPS, FRONTS, ("async", "blocking"), ("none", "sync", "async"))
    if case[0] != "a client that disconnects" or case[1] == "stream"
]


async def check(shop: Shop, compensation: str) -> None:
    session = shop.chat.session
    (event,) = session[ToolInvoked]
    assert (event.success, event.rolled_back) == (False, True)
    assert event.compensation == ("" if compensation == "none" else "done")
    assert (session[Noted].all(), shop.files.exists("order.txt")) == ((), False)
    assert await asyncio.to_thread(shop.ended.wait, 10)
    assert shop.outside == ["charged", *([] if compensation == "none" else ["refunded"])]
    (text,) = told(shop.chat)
    whys = ("the run was stopped", "the deadline passed")[: 1 if shop.deadline is None else 2]
    assert text in [f"Not finished: {why}.{UNKNOWN if compensation == 'none' else ''}" for why in whys]
    assert (await shop.chat.send_async("And now?")).text == "Sorry."
    assert (len(session[ToolInvoked]), shop.files.exists("order.txt")) == (1, False)


@pytest.mark.parametrize(("stop", "front", "handler", "compensation"), CASES)
async def test_a_started_call_is_compensated_rolled_back_and_recorded_however_it_is_stopped(
    stop: str, front: str, handler: str, compensation: str
) -> None:
    shop = Shop(handler, compensation)
    async with asyncio.timeout(20):
        await STOPS[stop](shop, FRONTS[front])
    await check(shop, compensation)


async def test_a_started_call_that_is_late_and_then_cancelled_is_ended_once() -> None:
    async def one(front: str, handler: str, compensation: str) -> None:
        shop = Shop(handler, compensation, Deadline.after(2))
        await late_and_cancelled(shop, FRONTS[front])
        await check(shop, compensation)

    async with asyncio.timeout(30):
        cases = itertools.product(FRONTS, ("async", "blocking"), ("none", "sync", "async"))
        await asyncio.gather(*itertools.starmap(one, cases))


def conversation(*script: Any, **options: Any) -> Conversation[None]:
    """One whose model calls the tool 'charge', with these options."""
    charge: Tool[None, None] = Tool(name="charge", description="Charge.", **options)
    task = MarkdownSection(title="Task", key="task", template="Sell.", tools=[charge])
    prompt: Prompt[None] = Prompt(ns="tests", key="shop", sections=[task])
    return Conversation(prompt, adapter=ScriptedAdapter([call("charge"), *script]))


def told(chat: Conversation[None]) -> list[str]:
    return [message.text for message in chat.messages if message.role == "tool"]


async def test_a_call_that_was_cancelled_before_its_handler_began_is_neither_run_nor_compensated() -> None:
    shop = Shop("blocking", "sync")
    shop.chat.session.observe(lambda event: isinstance(event, ModelCalled) and run.cancel())
    busy = [threads.call(lambda: shop.go.wait(10)) for _ in range(MAX_THREADS)]
    run = asyncio.ensure_future(send(shop))
    with pytest.raises(asyncio.CancelledError):
        await run
    shop.go.set()
    await asyncio.gather(*busy)
    assert (shop.outside, shop.started.is_set()) == ([], False)
    assert told(shop.chat) == ["Not run: the run was stopped."]


async def test_a_handler_that_ended_as_its_run_was_cancelled_keeps_its_result() -> None:
    async def charge(params: None, *, context: ToolContext) -> ToolResult[None]:
        run.cancel()
        return ToolResult("Charged.")

    chat = conversation(handler=charge)
    run = asyncio.ensure_future(chat.send_async("Sell."))
    with pytest.raises(asyncio.CancelledError):
        await run
    assert ([event.success for event in chat.session[ToolInvoked]], told(chat)) == ([True], ["Charged."])


async def test_a_run_that_is_cancelled_as_a_function_returns_its_awaitable_does_not_wait_for_it() -> None:
    loop = asyncio.get_running_loop()

    def cancel(thread: threading.Thread) -> None:
        until(lambda: not executes(thread, charge), "the function to return")
        loop.call_soon(run.cancel)

    def charge(params: None, *, context: ToolContext) -> Any:
        loop.call_soon_threadsafe(cancel, threading.current_thread())
        return asyncio.sleep(10, ToolResult("Charged."))

    chat = conversation(handler=charge)
    run = asyncio.ensure_future(chat.send_async("Sell."))
    with pytest.raises(asyncio.CancelledError):
        await run
    assert told(chat) == [f"Not finished: the run was stopped.{UNKNOWN}"]


async def test_a_run_that_is_cancelled_while_a_failed_call_is_ending_is_cancelled() -> None:
    async def refund(params: None, *, context: ToolContext) -> None:
        run.cancel()
        await asyncio.sleep(0)
        run.cancel()
        await asyncio.to_thread(int)

    def charge(params: None, *, context: ToolContext) -> ToolResult[None]:
        return ToolResult("No answer.", success=False)

    chat = conversation("Never said.", handler=charge, compensate=refund)
    run = asyncio.ensure_future(chat.send_async("Sell."))
    with pytest.raises(asyncio.CancelledError):
        await run
    assert [event.compensation for event in chat.session[ToolInvoked]] == ["done"]
    assert told(chat) == ["No answer."]


def test_ctrl_c_during_a_compensation_leaves_the_call_rolled_back_and_recorded() -> None:
    def interrupted(params: None, *, context: ToolContext) -> Any:
        context.session.dispatch(Noted("charging"))
        raise KeyboardInterrupt

    chat = conversation(handler=interrupted, compensate=interrupted)
    with pytest.raises(KeyboardInterrupt):
        chat.send("Sell.")
    (event,) = chat.session[ToolInvoked]
    assert (event.rolled_back, chat.session[Noted].all()) == (True, ())
    assert event.compensation == "Compensation of 'charge' failed: KeyboardInterrupt: "


class Reader:
    """Reads a stream in its own thread until its tool has started."""

    def __init__(self, events: EventStream[Any]) -> None:
        self.seen: list[str] = []
        self.thread = threading.Thread(target=self._read, args=(events,))
        self.thread.start()

    def _read(self, events: EventStream[Any]) -> None:
        self.seen.extend(type(event).__name__ for event in events)


@pytest.mark.parametrize("handler", ["async", "blocking"])
@pytest.mark.parametrize("compensation", ["sync", "async"])
def test_a_stream_closed_from_another_thread_is_compensated_after_its_handler_has_ended(
    handler: str, compensation: str
) -> None:
    shop = Shop(handler, compensation)
    events = shop.chat.stream("Sell.")
    reader = Reader(events)
    assert shop.started.wait(10)
    threading.Timer(0.05, shop.go.set).start()
    events.close()
    assert shop.outside == ["charged", "refunded"]
    reader.thread.join(10)
    (event,) = shop.chat.session[ToolInvoked]
    assert (event.compensation, reader.seen[-1]) == ("done", ToolStarted.__name__)
    assert shop.chat.send("And now?").text == "Sorry."


def test_closing_a_stream_waits_for_a_call_that_is_ending() -> None:
    compensating, go = threading.Event(), threading.Event()

    def charge(params: None, *, context: ToolContext) -> ToolResult[None]:
        context.session.dispatch(Noted("charging"))
        raise TimeoutError("no answer")

    def refund(params: None, *, context: ToolContext) -> None:
        compensating.set()
        go.wait(10)

    chat = conversation("Sorry.", handler=charge, compensate=refund)
    events = chat.stream("Sell.")
    reader = Reader(events)
    assert compensating.wait(10)
    threading.Timer(0.05, go.set).start()
    events.close()
    assert go.is_set()
    (event,) = chat.session[ToolInvoked]
    assert (event.rolled_back, event.compensation, chat.session[Noted].all()) == (True, "done", ())
    assert told(chat) == ["Tool 'charge' failed: TimeoutError: no answer"]
    reader.thread.join(10)
    assert chat.send("And now?").text == "Sorry."
