"""A list of models is part of the run: what a run can do, it can do on any model of the list."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tests.disclosure.desk import desk
from tests.helpers.endings import endings
from weakincentives import FallbackAdapter, Settings
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.content import Image
from weakincentives.errors import BudgetExceededError, PromptEvaluationError
from weakincentives.limits import Budget
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, SectionVisibility, ToolContext, tool
from weakincentives.runtime import (
    Compacted,
    Compaction,
    Completed,
    Conversation,
    MediaSupport,
    ModelReply,
    ModelRequest,
    PromptRendered,
    PromptResponse,
    ProviderAdapter,
    Restarted,
    TextDelta,
    ToolEmitted,
    ToolsInjected,
)
from weakincentives.session import Session

PICTURE = Image.from_url("https://x.example/a.png")
READ = call("read_section", section_key="orders")


def broken(times: int = 1, **options: Any) -> ScriptedAdapter:
    return ScriptedAdapter([PromptEvaluationError("down", phase="request")] * times, **options)


def by_run(adapter: Any, prompt: Any, session: Session) -> str:
    return str(adapter.evaluate(prompt, session=session).text)


def by_run_async(adapter: Any, prompt: Any, session: Session) -> str:
    return str(asyncio.run(adapter.evaluate_async(prompt, session=session)).text)


def by_stream(adapter: Any, prompt: Any, session: Session) -> str:
    events = list(adapter.stream(prompt, session=session))
    streamed = "".join(event.text for event in events if isinstance(event, TextDelta))
    assert isinstance(events[-1], Completed) and streamed == events[-1].response.text
    return streamed


def by_stream_async(adapter: Any, prompt: Any, session: Session) -> str:
    async def read() -> str:
        events = [event async for event in adapter.stream_async(prompt, session=session)]
        return "".join(event.text for event in events if isinstance(event, TextDelta))

    return asyncio.run(read())


DOORS = [by_run, by_run_async, by_stream, by_stream_async]


@pytest.mark.parametrize("door", DOORS)
def test_each_model_of_the_list_uses_its_own_route_for_new_tools(door: Any) -> None:
    session = Session()
    first = ScriptedAdapter([READ, PromptEvaluationError("down", phase="request")], tool_route="first")
    second = ScriptedAdapter([call("lookup"), "Found."], supports_dynamic_tools=False)
    assert door(FallbackAdapter(first, second), Prompt(desk()), session) == "Found."
    assert [event.route for event in session[ToolsInjected]] == ["first"]
    (recovered,) = endings(session, "recovered")
    assert (recovered.error, recovered.reason, recovered.phase) == ("PromptEvaluationError", "down", "request")


@pytest.mark.parametrize("door", DOORS)
def test_a_model_that_evaluates_by_itself_is_tried_whole(door: Any) -> None:
    class Whole(ProviderAdapter[Any]):
        name = "whole"

        def evaluate(self, prompt: Any, *, session: Session) -> Any:  # type: ignore[override]
            return PromptResponse(prompt_name=prompt.name, text="One.\nTwo.")

    session = Session()
    assert door(FallbackAdapter(broken(), Whole("m")), Prompt(desk()), session) == "One.\nTwo."
    assert [end.adapter for end in endings(session, "completed")] == ["whole"]


@pytest.mark.parametrize("door", DOORS)
def test_after_one_that_evaluates_by_itself_and_fails_the_next_is_asked(door: Any) -> None:
    class Whole(ProviderAdapter[Any]):
        name = "whole"

        async def evaluate_async(self, prompt: Any, *, session: Session) -> Any:  # type: ignore[override]
            raise PromptEvaluationError("cannot", phase="request")

    adapter = FallbackAdapter(Whole("m"), ScriptedAdapter([READ, call("lookup"), "Found."]))
    assert door(adapter, Prompt(desk()), Session()) == "Found."


class Sighted(ScriptedAdapter):
    """A model that accepts pictures, and says so."""

    def check_content(self, parts: Any) -> None:
        self.media.check(parts, "The sighted model")

    @property
    def media(self) -> MediaSupport:
        return MediaSupport(images=("image/png",))


def test_a_picture_may_join_a_run_on_a_list_of_models_that_accept_it() -> None:
    began, joined = threading.Event(), threading.Event()

    def slow(request: ModelRequest) -> Any:
        if len(request.messages) > 2:
            return "A box, I see."
        began.set()
        assert joined.wait(30)
        return "Where is it?"

    chat = Conversation(Prompt(desk()), adapter=FallbackAdapter(Sighted(slow), Sighted([])))
    answers: list[str] = []
    run = threading.Thread(target=lambda: answers.append(chat.send("Look.").text))
    run.start()
    assert began.wait(30)
    sender = threading.Thread(target=lambda: answers.append(chat.send([PICTURE, "Here."], join=True).text))
    sender.start()
    while not any(message.parts for message in chat.messages):
        pass
    joined.set()
    run.join()
    sender.join()
    assert answers == ["A box, I see.", "A box, I see."]


def test_a_list_of_models_may_summarize_conversations() -> None:
    summarizer = FallbackAdapter(broken(9, model="a"), ScriptedAdapter(lambda request: "All was well.", model="b"))
    adapter = ScriptedAdapter(lambda request: "Yes, " * 60)
    chat = Conversation(Prompt(desk()), adapter=adapter, compaction=Compaction(window=600, keep=1, by=summarizer))
    for number in range(8):
        chat.send(f"Question {number}: " + "well? " * 20)
    assert "model" in {event.by for event in chat.session[Compacted]}


@pytest.mark.parametrize("is_async", [False, True])
def test_what_is_no_part_of_a_run_goes_to_the_first_model_that_answers(is_async: bool) -> None:
    adapter = FallbackAdapter(broken(), ScriptedAdapter(["Here."]))
    request = ModelRequest("p", [])

    async def ask() -> ModelReply:
        async with adapter.open_spare_channel_async() as channel:
            return await channel.call_async(request)

    if is_async:
        reply = asyncio.run(ask())
    else:
        with adapter.open_spare_channel() as channel:
            reply = channel.call(request)
    assert reply.text == "Here."
    with (
        pytest.raises(PromptEvaluationError, match="down"),
        FallbackAdapter(broken(), broken()).open_spare_channel() as c,
    ):
        c.call(request)


def test_the_settings_of_a_list_count_for_each_of_its_models_and_of_lists_in_it() -> None:
    seen: list[tuple[str, Any, Any]] = []

    def model(name: str, **settings: Any) -> ScriptedAdapter:
        def answer(request: ModelRequest) -> Any:
            seen.append((name, request.settings.temperature, request.settings.effort))
            raise PromptEvaluationError("down", phase="request")

        return ScriptedAdapter(answer, model=name, settings=Settings(**settings))

    inner = FallbackAdapter(model("b", temperature=0.5), model("c"), settings=Settings(effort="low"))
    adapter = FallbackAdapter(model("a", effort="high"), inner, settings=Settings(temperature=0.1))
    with pytest.raises(PromptEvaluationError):
        adapter.evaluate(Prompt(desk()), session=Session())
    assert seen == [("a", 0.1, "high"), ("b", 0.1, "low"), ("c", 0.1, "low")]


def test_limits_of_the_run_count_over_all_models() -> None:
    first = ScriptedAdapter([READ, PromptEvaluationError("down", phase="request")])
    second = ScriptedAdapter([call("lookup"), "Never."])
    with pytest.raises(BudgetExceededError):
        FallbackAdapter(first, second).evaluate(Prompt(desk()), session=Session(), budget=Budget(max_turns=2))
    assert (len(first.requests), len(second.requests)) == (2, 1)


def test_a_prompt_is_rendered_once_and_a_list_is_explained_by_its_first_model() -> None:
    session = Session()
    first, second = ScriptedAdapter([READ, PromptEvaluationError("x", phase="request")]), ScriptedAdapter(["Done."])
    adapter = FallbackAdapter(first, second)
    adapter.evaluate(Prompt(desk()), session=session)
    assert len(session[PromptRendered]) == 1
    explained, expected = adapter.explain(Prompt(desk())), ScriptedAdapter().explain(Prompt(desk()))
    assert (explained.sections, explained.route) == (expected.sections, expected.route)
    assert adapter.count(Prompt(desk())) == ScriptedAdapter().count(Prompt(desk()))


@tool
def work(*, context: ToolContext) -> str:
    """Work, and say how far it is."""
    context.emit("half")
    return "worked"


@pytest.mark.parametrize("dynamic", [True, False])
def test_what_tools_emit_is_streamed_on_any_model_and_after_a_restart(dynamic: bool) -> None:
    hidden = MarkdownSection[None](
        key="more", title="More", template="More.", summary="More.", visibility=SectionVisibility.SUMMARY, tools=[work]
    )
    template = PromptTemplate[None](ns="t", key="k", sections=[hidden])
    opening, lines = call("read_section", section_key="more"), [call("work"), "Done."]
    adapter = FallbackAdapter(broken(), ScriptedAdapter([opening, *lines], supports_dynamic_tools=dynamic))
    chat = Conversation(Prompt(template), adapter=adapter)
    events = list(chat.stream("Go."))
    assert [event.data for event in events if isinstance(event, ToolEmitted)] == ["half"]
    assert any(isinstance(event, Restarted) for event in events) is not dynamic
