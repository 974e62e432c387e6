"""Adapters around others: what goes through them, and what stays as it is."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.adapters.vendors import ANTHROPIC, LEAN, OPENAI
from tests.disclosure.desk import desk
from tests.servers.turn import Call, Turn
from weakincentives.adapters import FallbackAdapter, SendTo, WrappedAdapter
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import Prompt
from weakincentives.runtime import (
    Conversation,
    ModelCalled,
    ModelReply,
    ModelRequest,
    PromptResponse,
    ProviderAdapter,
    TextDelta,
)
from weakincentives.runtime.spi import MODEL_FACTS
from weakincentives.session import Session

# The doors through which a wrapped adapter is run; each returns the text of the answer, and what was streamed of it.


def by_evaluate(adapter: ProviderAdapter, prompt: Prompt[Any]) -> tuple[str, str]:
    return adapter.evaluate(prompt, session=Session()).text, ""


def by_evaluate_async(adapter: ProviderAdapter, prompt: Prompt[Any]) -> tuple[str, str]:
    return asyncio.run(adapter.evaluate_async(prompt, session=Session())).text, ""


def by_stream(adapter: ProviderAdapter, prompt: Prompt[Any]) -> tuple[str, str]:
    events = list(adapter.stream(prompt, session=Session()))
    return events[-1].response.text, _streamed(events)


def by_stream_async(adapter: ProviderAdapter, prompt: Prompt[Any]) -> tuple[str, str]:
    async def read() -> list[Any]:
        return [event async for event in adapter.stream_async(prompt, session=Session())]

    events = asyncio.run(read())
    return events[-1].response.text, _streamed(events)


def _streamed(events: list[Any]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


BLOCKING = [by_evaluate, by_stream]
DOORS = [*BLOCKING, by_evaluate_async, by_stream_async]
Door = Callable[[ProviderAdapter, Prompt[Any]], tuple[str, str]]


class Cached(WrappedAdapter):
    """Answers a request that it has seen without sending it."""

    def __init__(self, adapter: ProviderAdapter) -> None:
        super().__init__(adapter)
        self.replies: dict[str, ModelReply] = {}

    def respond(self, request: ModelRequest) -> Any:
        key = repr(request.messages)
        if key not in self.replies:
            self.replies[key] = yield request
        return self.replies[key]


class Limited(WrappedAdapter):
    """Waits before each request, by a function for threads or one for event loops."""

    def __init__(self, adapter: ProviderAdapter, wait: Callable[[], Any]) -> None:
        super().__init__(adapter)
        self.wait = wait

    def respond(self, request: ModelRequest) -> Any:
        waited = yield self.wait
        reply = yield request
        assert waited == "waited"
        return reply


class Router(WrappedAdapter):
    """Sends the first request of a conversation to another adapter."""

    def respond(self, request: ModelRequest) -> Any:
        if any(message.role == "assistant" for message in request.messages):
            return (yield request)
        return (yield SendTo(self.others[0], request))


@pytest.mark.parametrize("door", DOORS)
def test_a_cached_reply_is_given_and_streamed_again_without_a_request(door: Door) -> None:
    inner = ScriptedAdapter(["One.\nTwo."])
    cached = Cached(inner)
    first, again = door(cached, Prompt(desk())), door(cached, Prompt(desk()))
    assert first == again
    assert (first[0], len(inner.requests)) == ("One.\nTwo.", 1)


@pytest.mark.parametrize("door", DOORS)
def test_a_wrapped_adapter_may_wait_before_each_request(door: Door) -> None:
    calls: list[str] = []

    def wait() -> str:
        calls.append("wait")
        return "waited"

    adapter = Limited(ScriptedAdapter([call("read_section", section_key="orders"), "Done."]), wait)
    assert (door(adapter, Prompt(desk()))[0], calls) == ("Done.", ["wait", "wait"])


async def wait_async() -> str:
    await asyncio.sleep(0)
    return "waited"


@pytest.mark.parametrize("door", [by_evaluate_async, by_stream_async])
def test_on_an_event_loop_it_may_wait_by_an_async_function(door: Door) -> None:
    assert door(Limited(ScriptedAdapter(["Done."]), wait_async), Prompt(desk()))[0] == "Done."


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("door", BLOCKING)
def test_without_one_an_async_function_is_an_error_that_names_it(door: Door) -> None:
    with pytest.raises(
        TypeError, match=r"Limited.respond\(\) has yielded an async function, in a run without an event"
    ):
        door(Limited(ScriptedAdapter(["Done."]), wait_async), Prompt(desk()))


@pytest.mark.parametrize("door", DOORS)
def test_a_router_sends_requests_to_one_of_several_adapters(door: Door) -> None:
    large, small = ScriptedAdapter(["Done."]), ScriptedAdapter([call("read_section", section_key="orders")])
    assert door(Router(large, small), Prompt(desk()))[0] == "Done."
    assert (len(large.requests), len(small.requests)) == (1, 1)


def test_a_router_may_go_to_another_vendor_whose_items_stay_there() -> None:
    reading = Turn(calls=(Call("read_section", {"section_key": "orders"}),))
    with (
        ANTHROPIC.server([Turn("Done.")]) as large,
        OPENAI.server([reading]) as small,
        ANTHROPIC.adapter(large) as first,
        OPENAI.adapter(small) as second,
    ):
        chat = Conversation(Prompt(desk()), adapter=Router(first, second))
        assert chat.send("Go.").text == "Done."
        assert (len(large.requests), len(small.requests)) == (1, 1)
    assert [message.items for message in chat.messages if message.tool_calls] == [()]


@pytest.mark.parametrize("problem", ["nonsense", "stranger"])
@pytest.mark.parametrize("door", DOORS)
def test_what_it_may_not_yield_is_an_error_that_names_it(door: Door, problem: str) -> None:
    class Wrong(WrappedAdapter):
        def respond(self, request: ModelRequest) -> Any:
            return (yield "nonsense" if problem == "nonsense" else SendTo(ScriptedAdapter(["No."]), request))

    expected = "neither a request nor a function" if problem == "nonsense" else "SendTo an adapter that was not passed"
    with pytest.raises(TypeError, match=expected):
        door(Wrong(ScriptedAdapter(["Never."])), Prompt(desk()))


def test_an_error_of_the_adapter_inside_can_be_answered_by_it() -> None:
    class Patient(WrappedAdapter):
        def respond(self, request: ModelRequest) -> Any:
            try:
                reply = yield request
            except PromptEvaluationError:
                reply = ModelReply("Try later.")
            return reply

    adapter = Patient(ScriptedAdapter([PromptEvaluationError("down", phase="request")]))
    assert [door(adapter, Prompt(desk()))[0] for door in (by_evaluate,)] == ["Try later."]


@pytest.mark.parametrize("vendor", LEAN, ids=str)
def test_all_facts_are_those_of_the_adapter_inside(vendor: Any) -> None:
    with vendor.server([]) as server, vendor.adapter(server) as inner:
        wrapped = WrappedAdapter(inner)
        same = [name for name in MODEL_FACTS if name != "identity"]
        assert [name for name in same if getattr(wrapped, name) != getattr(inner, name)] == []
        assert wrapped.identity == ("WrappedAdapter", inner.identity)


def test_a_subclass_may_change_a_fact() -> None:
    class Small(WrappedAdapter):
        @property
        def context_window(self) -> int:
            return 1_000

    assert (Small(ScriptedAdapter()).context_window, Small(ScriptedAdapter(model="m")).model) == (1_000, "m")


def test_around_a_list_it_stands_around_each_model_and_events_name_these() -> None:
    broken = ScriptedAdapter([PromptEvaluationError("down", phase="request")], model="first")
    working = ScriptedAdapter([call("read_section", section_key="orders"), "Done."], model="second")
    seen: list[str] = []

    class Logged(WrappedAdapter):
        def respond(self, request: ModelRequest) -> Any:
            seen.append(self.model)
            return (yield request)

    session = Session()
    response = Logged(FallbackAdapter(broken, working)).evaluate(Prompt(desk()), session=session)
    assert (response.text, seen) == ("Done.", ["first", "second", "second"])
    assert {event.model for event in session[ModelCalled]} == {"second"}


def test_wrappers_stand_around_wrappers() -> None:
    inner = ScriptedAdapter(itertools.repeat("Hi.", 2))
    cached = Cached(Limited(inner, lambda: "waited"))
    assert [by_evaluate(cached, Prompt(desk()))[0] for _ in range(2)] == ["Hi.", "Hi."]
    assert len(inner.requests) == 1


def test_what_has_no_requests_cannot_be_wrapped() -> None:
    class Whole(ProviderAdapter[Any]):
        def evaluate(self, prompt: Any, *, session: Session) -> Any:  # type: ignore[override]
            return PromptResponse(prompt_name=prompt.name, text="done")

    with pytest.raises(TypeError, match=r"WrappedAdapter wraps the requests of a model, and Whole has no channel\(\)"):
        WrappedAdapter(Whole("m"))
    with pytest.raises(TypeError, match="Cached wraps adapters, got 'openai'"):
        Cached("openai")  # type: ignore[arg-type]
