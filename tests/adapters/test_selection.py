"""Adapters by name, and several in a row."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from tests.adapters.vendors import ANTHROPIC, OPENAI
from tests.disclosure.desk import desk
from tests.helpers.hosted_tools import OracleCodec, oracle_tool
from tests.servers.turn import Raw, Turn
from weakincentives import FallbackAdapter, Settings, adapter_for
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.content import Image
from weakincentives.errors import BudgetExceededError, PromptEvaluationError
from weakincentives.limits import Budget
from weakincentives.prompt import MarkdownSection, OpenOrRead, Prompt, PromptTemplate, TextSection
from weakincentives.runtime import Conversation, ModelCalled, ModelReply, PromptRendered, TextDelta
from weakincentives.session import Session

BROKEN = PromptEvaluationError("overloaded", phase="request")


def test_an_adapter_is_named_by_provider_and_model() -> None:
    adapter = adapter_for("openai:gpt-5.6", settings=Settings(effort="low"))
    assert isinstance(adapter, OpenAIAdapter)
    assert (adapter.model, adapter.settings.effort) == ("gpt-5.6", "low")
    assert adapter_for("litellm:gemini/gemini-3-pro").model == "gemini/gemini-3-pro"


@pytest.mark.parametrize(("name", "problem"), [("nobody:x", "takes one of"), ("openai", "needs a model")])
def test_a_wrong_name_says_which_there_are(name: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        adapter_for(name)


@pytest.mark.parametrize("is_async", [False, True])
def test_the_next_adapter_goes_on_in_the_same_session(is_async: bool) -> None:
    first = ScriptedAdapter([call("read_section", section_key="orders"), BROKEN])
    second, session = ScriptedAdapter([call("lookup"), "Found."]), Session()
    adapter = FallbackAdapter(first, second)
    if is_async:
        response = asyncio.run(adapter.evaluate_async(Prompt(desk()), session=session))
    else:
        response = adapter.evaluate(Prompt(desk()), session=session)
    assert (response.text, response.turns) == ("Found.", 3)
    assert [message.role for message in second.requests[0].messages] == ["system", "assistant", "tool", "tools_added"]
    assert {event.run_id for event in session[ModelCalled]} == {response.run_id}


def test_closing_several_closes_each() -> None:
    closed: list[str] = []

    class Kept(ScriptedAdapter):
        def close(self) -> None:
            closed.append(self.model)

    with FallbackAdapter(Kept(["Hi."], model="first"), Kept([], model="second")) as adapter:
        adapter.evaluate(Prompt(desk()), session=Session())
    assert closed == ["first", "second"]


def test_a_run_stays_with_the_adapter_that_answered_and_the_next_begins_with_the_first() -> None:
    opened = call("open_sections", section_keys=["orders"], reason="needed")
    first, second = ScriptedAdapter([BROKEN, "First again."]), ScriptedAdapter([opened, "Second."])
    chat = Conversation(Prompt(desk(disclosure=OpenOrRead())), adapter=FallbackAdapter(first, second))
    assert [chat.send("a").text, chat.send("b").text] == ["Second.", "First again."]
    assert (len(first.requests), len(second.requests)) == (2, 2)


def test_a_stream_falls_back_until_something_was_shown() -> None:
    adapter = FallbackAdapter(ScriptedAdapter([BROKEN]), ScriptedAdapter(["One.\nTwo."]))
    events = list(adapter.stream(Prompt(desk()), session=Session()))
    assert events[:-1] == [TextDelta("One.\n"), TextDelta("Two.")]


def test_a_stream_that_has_shown_something_does_not_fall_back() -> None:
    cut = Turn("one two three", cut_after=4)
    other = ScriptedAdapter(["Never."])
    with OPENAI.server([cut]) as server, OPENAI.adapter(server) as first:
        stream = FallbackAdapter(first, other).stream(Prompt(desk()), session=Session())
        with pytest.raises(PromptEvaluationError, match="had been streamed"):
            list(stream)
    assert other.requests == []


@pytest.mark.parametrize(
    ("line", "options", "error"),
    [
        (ModelReply("No.", stop_reason="refusal"), {}, PromptEvaluationError),
        ("Fine.", {"budget": Budget(max_turns=0)}, BudgetExceededError),
    ],
)
def test_what_another_adapter_would_not_change_is_no_reason(line: Any, options: Any, error: Any) -> None:
    other = ScriptedAdapter(["Never."])
    with pytest.raises(error):
        FallbackAdapter(ScriptedAdapter([line]), other).evaluate(Prompt(desk()), session=Session(), **options)
    assert other.requests == []


class Blind(ScriptedAdapter):
    def check_content(self, parts: Any) -> None:
        raise PromptEvaluationError("no pictures", phase="request")


def test_what_the_first_model_does_not_take_goes_to_the_next() -> None:
    picture = Image.from_url("https://x.example/a.png")
    chat = Conversation(Prompt(desk()), adapter=FallbackAdapter(Blind([]), ScriptedAdapter(["A box."])))
    assert chat.send([picture, "What is it?"]).text == "A box."
    assert [message.parts[0] for message in chat.messages if message.role == "user"] == [picture]


def test_a_hosted_tool_that_the_first_does_not_offer_goes_to_the_next() -> None:
    oracle = TextSection(key="a", title="A", text="Ask.", hosted_tools=[oracle_tool()])
    able = ScriptedAdapter(["Later."], hosted_tool_codecs={"oracle": OracleCodec()})
    prompt = Prompt(PromptTemplate(ns="t", key="o", sections=[oracle]))
    assert FallbackAdapter(ScriptedAdapter([]), able).evaluate(prompt, session=Session()).text == "Later."


def test_a_later_turn_goes_to_the_next_too_with_what_the_user_said() -> None:
    oracle = TextSection(key="a", title="A", text="Ask.", hosted_tools=[oracle_tool()])
    able = ScriptedAdapter(["One.", "Two."], hosted_tool_codecs={"oracle": OracleCodec()})
    prompt = Prompt(PromptTemplate(ns="t", key="o", sections=[oracle]))
    chat = Conversation(prompt, adapter=FallbackAdapter(ScriptedAdapter([]), able))
    assert [chat.send("a").text, chat.send("b").text] == ["One.", "Two."]
    assert [message.text for message in able.requests[1].messages][1:] == ["a", "One.", "b"]
    first, second = chat.session[PromptRendered]
    assert second.continues == first.run_id


def test_the_next_adapter_has_nothing_to_answer_either() -> None:
    asked = MarkdownSection(key="q", title="Q", template="How are you?", role="user")
    prompt = Prompt(PromptTemplate(ns="t", key="q", sections=[asked]))
    chat = Conversation(prompt, adapter=FallbackAdapter(ScriptedAdapter(["Fine."]), ScriptedAdapter([])))
    assert chat.send().text == "Fine."
    with pytest.raises(PromptEvaluationError, match=r"has nothing to answer: .*; pass content\.$"):
        chat.send()


PICTURE = Image.from_url("https://x.example/a.png")


def test_the_next_adapter_must_accept_what_the_user_sends_now() -> None:
    first, second = ScriptedAdapter(["A box.", BROKEN, BROKEN]), Blind(["As I said."])
    chat = Conversation(Prompt(desk()), adapter=FallbackAdapter(first, second))
    assert [chat.send([PICTURE, "What is it?"]).text, chat.send("Sure?").text] == ["A box.", "As I said."]
    with pytest.raises(PromptEvaluationError, match=r"^no pictures \(before that, .* overloaded\)$"):
        chat.send([PICTURE, "And this?"])


@dataclass(frozen=True)
class Asked:
    photo: Image = PICTURE


def test_the_next_adapter_must_accept_what_the_prompt_asks() -> None:
    asked = MarkdownSection[Asked](key="q", title="Q", template="What is ${photo}?", role="user")
    prompt = Prompt(PromptTemplate(ns="t", key="q", sections=[asked])).bind(Asked())
    with pytest.raises(PromptEvaluationError, match=r"^no pictures"):
        FallbackAdapter(ScriptedAdapter([BROKEN]), Blind([])).evaluate(prompt, session=Session())


def test_the_last_error_says_how_the_others_failed() -> None:
    first, last = (PromptEvaluationError(words, phase="request") for words in ("OpenAI is down.", "No such setting."))
    adapter = FallbackAdapter(ScriptedAdapter([first], model="a"), ScriptedAdapter([last], model="b"))
    with pytest.raises(PromptEvaluationError) as caught:
        adapter.evaluate(Prompt(desk()), session=Session())
    assert str(caught.value) == "No such setting. (before that, scripted:a failed: OpenAI is down.)"


def test_real_vendors_take_over_from_each_other() -> None:
    down = Raw(400, b'{"error":{"message":"broken"}}')
    with (
        OPENAI.server([Turn("Hello."), down]) as one,
        ANTHROPIC.server([Turn("From Anthropic.")]) as two,
        OPENAI.adapter(one) as first,
        ANTHROPIC.adapter(two) as second,
    ):
        chat = Conversation(Prompt(desk()), adapter=FallbackAdapter(first, second))
        assert [chat.send("Hi.").text, chat.send("Still there?").text] == ["Hello.", "From Anthropic."]
    assert [message["role"] for message in two.requests[0].json["messages"]] == ["user", "assistant", "user"]


def test_fewer_than_two_adapters_are_a_mistake() -> None:
    with pytest.raises(TypeError, match="two or more adapters"):
        FallbackAdapter(ScriptedAdapter([]))


@dataclass(frozen=True)
class Asking:
    allowed: bool


def test_a_conversation_goes_on_without_a_hosted_tool_that_the_next_adapter_lacks_once_its_section_is_gone() -> None:
    oracle = MarkdownSection[Asking](
        key="o", title="O", template="Ask.", enabled=lambda params: params.allowed, hosted_tools=[oracle_tool()]
    )
    able = ScriptedAdapter(["One."], hosted_tool_codecs={"oracle": OracleCodec()})
    chat = Conversation(Prompt(ns="t", key="o", sections=[oracle]).bind(Asking(True)), adapter=able)
    chat.send("a")
    chat.bind(Asking(False))
    chat.adapter = ScriptedAdapter(["Two."])
    assert chat.send("b").text == "Two."
