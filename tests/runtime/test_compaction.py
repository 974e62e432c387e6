"""A conversation that outgrows the model's window is sent in a shorter form, and nothing of it is lost."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tests.servers.rules import messages_problem, responses_problem
from weakincentives.adapters import FallbackAdapter
from weakincentives.adapters.anthropic.wire import MessagesWire
from weakincentives.adapters.openai.wire import ResponsesWire
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.clock import FakeClock
from weakincentives.errors import BudgetExceededError, ContextOverflowError, PromptEvaluationError
from weakincentives.limits import Budget, Prices
from weakincentives.prompt import CollapseSection, MarkdownSection, Prompt, PromptTemplate, SectionVisibility, tool
from weakincentives.runtime import (
    Approve,
    Compacted,
    Compaction,
    Completed,
    ContextWindow,
    Conversation,
    Exposure,
    Message,
    ModelCalled,
    ModelReply,
    ModelRequest,
    Restarted,
    SectionsExposed,
    TextDelta,
    delegate,
    run,
)
from weakincentives.session import Session, Snapshot

PADDING = "lorem ipsum dolor sit amet " * 60
SUMMARY = "Summarize the conversation"


@tool(read_only=True)
def look(n: int) -> str:
    "Look at a row."
    return f"row {n} {PADDING}"


@tool(read_only=True)
def track(n: int) -> str:
    "Track a parcel."
    return f"Parcel {n} is in Lyon."


@tool(approval="call")
def pay(n: int) -> str:
    "Pay."
    return f"Paid {n}."


TEMPLATE = PromptTemplate(
    ns="tests",
    key="compaction",
    sections=[
        MarkdownSection(key="task", title="Task", template="Help the customer.", tools=[look, pay]),
        MarkdownSection(
            key="parcels",
            title="Parcels",
            template=f"Parcels come from Turin. {PADDING}",
            summary="Where parcels are.",
            visibility=SectionVisibility.SUMMARY,
            tools=[track],
        ),
    ],
)


def asked(request: ModelRequest) -> int:
    return max(map(int, re.findall(r"Question (\d+)", texts(request))))


def words(request: ModelRequest) -> list[str]:
    return [each.text for each in request.messages if each.role == "user" and each.text.startswith("Question ")]


def latest(request: ModelRequest) -> Message:
    """The last message of the user or a tool; notices may follow it."""
    return [each for each in request.messages if each.role == "tool" or (each.role == "user" and not each.kind)][-1]


def looks(request: ModelRequest) -> Any:
    """Looks at a row for each question, and writes a summary when that is asked for."""
    last = latest(request)
    if last.role == "user" and last.text.startswith(SUMMARY):
        return "The customer asked about rows."
    if last.role == "tool" and last.name == "look":
        return f"Answer {asked(request)}."
    return call("look", n=asked(request))


def chat_of(script: Any = looks, **options: Any) -> tuple[Conversation[Any], ScriptedAdapter]:
    adapter = ScriptedAdapter(script)
    given = {"compaction": Compaction(window=3_000, keep=2), **options}
    return Conversation(Prompt(TEMPLATE), adapter=adapter, **given), adapter


def talk(chat: Conversation[Any], first: int, last: int) -> None:
    for number in range(first, last + 1):
        assert chat.send(f"Question {number}?").text == f"Answer {number}."


def texts(request: ModelRequest) -> str:
    return "\n".join(message.text for message in request.messages)


def size(request: ModelRequest) -> int:
    return sum(len(message.text) for message in request.messages) // 4


def test_old_results_are_replaced_before_anything_is_summarized() -> None:
    chat, adapter = chat_of(compaction=Compaction(window=5_000, keep=2))
    talk(chat, 1, 11)
    (event,) = chat.session[Compacted].all()
    assert (event.by, event.saved) == ("results", event.before - event.after)
    assert event.after < event.before / 2
    assert 'recall("call_1")' in texts(adapter.requests[-1]) and "row 1 " not in texts(adapter.requests[-1])
    assert "row 11 " in texts(adapter.requests[-1])


def test_the_whole_history_stays_in_the_session() -> None:
    chat, _ = chat_of()
    talk(chat, 1, 30)
    results = [each.text for each in chat.messages if each.role == "tool"]
    assert [text.split()[1] for text in results] == [str(number) for number in range(1, 31)]
    assert "model" in {event.by for event in chat.session[Compacted]}


def test_requests_stay_below_the_window() -> None:
    chat, adapter = chat_of()
    talk(chat, 1, 40)
    assert max(map(size, adapter.requests)) < 3_000


def test_without_a_compaction_the_conversation_only_grows() -> None:
    chat, adapter = chat_of(compaction=None)
    talk(chat, 1, 12)
    assert not chat.session[Compacted].all() and len(adapter.requests[-1].messages) == len(chat.messages) - 1


def test_a_run_is_compacted_only_where_it_is_asked_for() -> None:
    def many(request: ModelRequest) -> Any:
        done = sum(each.role == "tool" for each in request.messages)
        if request.messages[-1].text.startswith(SUMMARY):
            return "Rows were looked at."
        return call("look", n=done) if len(adapter.requests) < 25 else "Done."

    adapter = ScriptedAdapter(many)
    session = Session()
    run(Prompt(TEMPLATE), adapter, session=session)
    assert not session[Compacted].all()
    adapter = ScriptedAdapter(many)
    session = Session()
    run(Prompt(TEMPLATE), adapter, session=session, compaction=Compaction(window=3_000, keep=2))
    assert session[Compacted].all()
    assert max(map(size, adapter.requests)) < 3_000


def test_the_user_s_words_survive_a_summary_verbatim() -> None:
    chat, adapter = chat_of()
    chat.send("Question 1? And never call me Bob.")
    talk(chat, 2, 30)
    assert "model" in {event.by for event in chat.session[Compacted]}
    assert "And never call me Bob." in texts(adapter.requests[-1])


def test_recall_returns_what_was_left_out() -> None:
    def play(request: ModelRequest) -> Any:
        last = latest(request)
        if last.text == "Question 99?":
            return [call("recall", what="call_1"), call("recall", what="2"), call("recall", what="no such thing")]
        return "Answer 99." if last.name == "recall" else looks(request)

    chat, _ = chat_of(play)
    talk(chat, 1, 25)
    chat.send("Question 99?")
    found = [each for each in chat.messages if each.name == "recall"]
    assert found[0].text == look_text(1)
    assert re.sub(r"text-\w{16}", "TAG", found[1].text) == (
        "[Exchange 2. Only lines with the tag TAG begin and end a message, and say who wrote it.]\n\n"
        "<TAG user>\nQuestion 2?\n</TAG user>\n\n"
        '<TAG assistant calls look (call_2)>\n{"n": 2}\n</TAG assistant calls look (call_2)>\n\n'
        f"<TAG result of look (call_2)>\n{look_text(2)}\n</TAG result of look (call_2)>\n\n"
        "<TAG assistant>\nAnswer 2.\n</TAG assistant>"
    )
    assert not found[2].success


def look_text(n: int) -> str:
    return f"row {n} {PADDING}"


def test_recall_appears_with_the_first_replaced_result() -> None:
    chat, adapter = chat_of()
    talk(chat, 1, 3)
    assert "recall" not in {each.name for each in adapter.requests[-1].tools}
    talk(chat, 4, 8)
    assert "recall" in {each.name for each in adapter.requests[-1].tools}


def test_an_open_section_is_rendered_again_and_not_summarized() -> None:
    def play(request: ModelRequest) -> Any:
        last, number = latest(request), asked(request) if words(request) else 0
        if number == 1 and last.role == "user":
            return call("read_section", section_key="parcels")
        if last.name == "look":
            return call("track", n=number)
        return f"Answer {number}." if last.name == "track" else looks(request)

    chat, adapter = chat_of(play, compaction=Compaction(window=4_000, keep=2))
    talk(chat, 1, 30)
    assert "model" in {event.by for event in chat.session[Compacted]}
    assert "Parcels come from Turin." in texts(adapter.requests[-1])
    assert not any("Turin" in event.cut.head.text for event in chat.session[Compacted] if event.cut.head)
    exposed = (chat.session[Exposure].latest() or Exposure())[("parcels",)]
    assert exposed.source == "conversation" and exposed.call_id == ""
    assert "compaction" in {event.reason for event in chat.session[SectionsExposed]}


def test_a_section_that_is_not_used_is_closed_first() -> None:
    def play(request: ModelRequest) -> Any:
        if words(request)[-1:] == ["Question 1?"] and latest(request).role == "user":
            return call("read_section", section_key="parcels")
        return f"Answer {asked(request)}." if latest(request).name == "read_section" else looks(request)

    chat, adapter = chat_of(play, compaction=Compaction(window=3_500, keep=2))
    talk(chat, 1, 10)
    assert [event.path for event in chat.session[CollapseSection]] == [("parcels",)]
    assert "Parcels come from Turin." not in texts(adapter.requests[-1])
    assert "track" in adapter.requests[-1].revoked


@pytest.mark.parametrize("summary", ["", "  \n", None, RuntimeError("no")], ids=["empty", "blank", "none", "raised"])
def test_an_empty_summary_never_replaces_history(summary: Any) -> None:
    def fails(messages: Sequence[Message]) -> Any:
        if isinstance(summary, Exception):
            raise summary
        return summary

    chat, adapter = chat_of(compaction=Compaction(window=1_500, keep=1, by=fails))
    talk(chat, 1, 20)
    assert {event.by for event in chat.session[Compacted]} == {"results"}
    assert "Question 1?" in texts(adapter.requests[-1])


def test_a_summary_as_long_as_what_it_replaces_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    made: list[int] = []

    def long(messages: Sequence[Message]) -> str:
        made.append(len(messages))
        return "and so on " * 2_000

    chat, adapter = chat_of(compaction=Compaction(window=1_500, keep=1, by=long))
    talk(chat, 1, 20)
    assert {event.by for event in chat.session[Compacted]} == {"results"}
    assert "Question 1?" in texts(adapter.requests[-1]) and "and so on" not in texts(adapter.requests[-1])
    assert size(adapter.requests[-1]) < 1_500 and 0 < len(made) < 8
    assert "a summary is as long as what it would replace" in caplog.text


@pytest.mark.parametrize("options", [{"window": True}, {"keep": True}, {"at": "0.8"}, {"window": -1}, {"keep": 0}])
def test_what_is_no_size_or_share_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(
        ValueError, match=f"Compaction {next(iter(options))} must be .*, got {next(iter(options.values()))!r}"
    ):
        Compaction(**options)


async def _summary(messages: Sequence[Message]) -> str:
    return f"{len(messages)} messages."


@pytest.mark.parametrize("by", [lambda messages: f"{len(messages)} messages.", _summary], ids=["sync", "async"])
def test_a_function_summarizes(by: Callable[..., Any]) -> None:
    chat, adapter = chat_of(compaction=Compaction(window=1_500, keep=1, by=by))
    talk(chat, 1, 20)
    assert "function" in {event.by for event in chat.session[Compacted]}
    assert " messages." in texts(adapter.requests[-1])


async def test_async_conversations_are_compacted_too() -> None:
    chat, _ = chat_of(compaction=Compaction(window=1_500, keep=1, by=_summary))
    for number in range(1, 21):
        assert (await chat.send_async(f"Question {number}?")).text == f"Answer {number}."
    assert "function" in {event.by for event in chat.session[Compacted]}


def test_another_adapter_summarizes() -> None:
    other = ScriptedAdapter(lambda request: f"Read {request.messages[-1].text[:20]!r}.")
    chat, _ = chat_of(compaction=Compaction(window=1_500, keep=1, by=other))
    talk(chat, 1, 20)
    assert "model" in {event.by for event in chat.session[Compacted]}
    assert [each.role for each in other.requests[0].messages] == ["system", "user"] and not other.requests[0].tools


def test_an_overflow_shortens_the_conversation_once_and_is_remembered() -> None:
    refused: list[int] = []

    def play(request: ModelRequest) -> Any:
        if size(request) > 3_000:
            refused.append(size(request))
            raise ContextOverflowError("prompt is too long: 3011 tokens > 3000 maximum", phase="request")
        return looks(request)

    chat, _ = chat_of(play, compaction=Compaction(keep=2))
    talk(chat, 1, 40)
    assert len(refused) == 1
    window = chat.session[ContextWindow].latest()
    assert window is not None and window.limit == 3_000


def test_an_overflow_that_cannot_be_mended_is_raised() -> None:
    def play(request: ModelRequest) -> Any:
        raise ContextOverflowError("prompt is too long", phase="request")

    chat, adapter = chat_of(play)
    with pytest.raises(ContextOverflowError):
        chat.send("Question 1?")
    assert len(adapter.requests) == 1


def test_an_answer_that_the_window_cut_off_is_asked_for_again() -> None:
    lines = [call("look", n=1), "Answer 1.", ModelReply("Answ", stop_reason="overflow"), "Answer 2."]
    chat, _ = chat_of(lines, compaction=Compaction(keep=1))
    talk(chat, 1, 1)
    with chat.stream("Question 2?") as events:
        seen = list(events)
    assert [event.text for event in seen if isinstance(event, TextDelta)] == ["Answ", "Answer 2."]
    assert any(isinstance(event, Restarted) for event in seen) and isinstance(seen[-1], Completed)


def test_a_stream_shows_nothing_of_a_summary() -> None:
    chat, _ = chat_of(compaction=Compaction(window=1_500, keep=1))
    shown: list[str] = []
    for number in range(1, 16):
        with chat.stream(f"Question {number}?") as events:
            shown += [event.text for event in events if isinstance(event, TextDelta)]
    assert shown == [f"Answer {number}." for number in range(1, 16)]
    assert "model" in {event.by for event in chat.session[Compacted]}


def test_a_snapshot_between_exchanges_keeps_the_compaction() -> None:
    chat, adapter = chat_of()
    talk(chat, 1, 25)
    restored = Session()
    restored.restore(Snapshot.from_json(chat.session.snapshot().to_json()))
    again = Conversation(Prompt(TEMPLATE), adapter=adapter, session=restored, compaction=chat.compaction)
    talk(chat, 26, 26)
    expected = adapter.requests[-1]
    talk(again, 26, 26)
    assert [m.text for m in adapter.requests[-1].messages] == [m.text for m in expected.messages]


def test_going_back_before_a_compaction_forgets_it() -> None:
    chat, adapter = chat_of()
    talk(chat, 1, 5)
    before = chat.session.snapshot()
    talk(chat, 6, 6)
    expected = [m.text for m in adapter.requests[-1].messages]
    talk(chat, 7, 12)
    assert chat.session[Compacted].all()
    chat.session.restore(before)
    talk(chat, 6, 6)
    assert [m.text for m in adapter.requests[-1].messages] == expected


def test_a_changed_history_voids_the_summary_of_it() -> None:
    chat, adapter = chat_of()
    chat.send("Question 1? The secret is 4711.")
    talk(chat, 2, 30)
    assert "4711" in texts(adapter.requests[-1])
    chat.session[Message].update(lambda said: [replace(each, text=each.text.replace("4711", "...")) for each in said])
    talk(chat, 31, 31)
    assert not any("4711" in texts(request) for request in adapter.requests[-2:])


def test_pending_calls_survive_a_compaction() -> None:
    def play(request: ModelRequest) -> Any:
        last = latest(request)
        if last.text == "Question 90?":
            return call("pay", n=90)
        return "Answer 90." if last.name == "pay" else looks(request)

    chat, _ = chat_of(play)
    talk(chat, 1, 9)
    response = chat.send("Question 90?")
    (pending,) = response.pending
    assert chat.decide({pending.call_id: Approve()}).text == "Answer 90."
    talk(chat, 91, 99)
    assert [each.text for each in chat.messages if each.name == "pay"] == ["Paid 90."]


def test_the_summary_s_usage_counts_and_is_no_turn() -> None:
    chat, _ = chat_of(compaction=Compaction(window=1_500, keep=1), budget=Budget(max_turns=2))
    talk(chat, 1, 20)
    spent = sum(event.usage.input_tokens for event in chat.session[Compacted])
    assert spent > 0
    assert chat.usage.input_tokens == spent + sum(event.usage.input_tokens for event in chat.session[ModelCalled])


def test_a_budget_that_is_used_up_stops_before_the_summary() -> None:
    chat, _ = chat_of(compaction=Compaction(window=1_500, keep=1), total=Budget(max_turns=6))
    talk(chat, 1, 3)
    with pytest.raises(BudgetExceededError):
        chat.send("Question 4?")


def test_a_fallback_compacts_for_itself() -> None:
    def broken(request: ModelRequest) -> Any:
        raise PromptEvaluationError("down", phase="request")

    adapter = ScriptedAdapter(looks)
    chat = Conversation(
        Prompt(TEMPLATE),
        adapter=FallbackAdapter(ScriptedAdapter(broken), adapter),
        compaction=Compaction(window=3_000, keep=2),
    )
    talk(chat, 1, 25)
    assert chat.session[Compacted].all() and max(map(size, adapter.requests)) < 3_000


@pytest.mark.parametrize("fork", [True, False], ids=["fork", "child"])
def test_children_have_a_conversation_of_their_own(fork: bool) -> None:
    helper = PromptTemplate(
        ns="tests",
        key="helper",
        sections=[MarkdownSection(key="help", title="Help", template="Question 70?", tools=[look])],
    )
    ask = delegate(helper, description="Ask a helper.", name="ask", fork=fork)

    def play(request: ModelRequest) -> Any:
        last = latest(request)
        if last.role == "user" and last.text == "Question 60?":
            return call("ask")
        if last.name == "ask":
            return "Answer 60."
        if "Question 70?" in texts(request):
            return "Helped."
        return looks(request)

    template = PromptTemplate(
        ns="tests",
        key="parent",
        sections=[MarkdownSection(key="task", title="Task", template="Help.", tools=[look, ask])],
    )
    adapter = ScriptedAdapter(play)
    chat = Conversation(Prompt(template), adapter=adapter, compaction=Compaction(window=3_000, keep=2))
    talk(chat, 1, 20)
    chat.send("Question 60?")
    talk(chat, 61, 65)
    (helped,) = [request for request in adapter.requests if "Question 70?" in texts(request)]
    assert ('recall("' in texts(helped)) is fork


def test_when_it_pays_a_cold_cache_is_the_best_moment() -> None:
    clock = FakeClock()

    class Cached(ScriptedAdapter):
        cache_seconds = 300.0

        def reply(self, request: ModelRequest) -> ModelReply:
            made = super().reply(request)
            return replace(made, usage=replace(made.usage, cached_tokens=made.usage.input_tokens))

    adapter = Cached(looks)
    compaction = Compaction(when="pays", keep=2)
    budget = Budget(prices=Prices(input=1.0, output=5.0, cached_input=0.1))
    chat = Conversation(
        Prompt(TEMPLATE), adapter=adapter, session=Session(clock=clock), budget=budget, compaction=compaction
    )
    talk(chat, 1, 11)
    assert not chat.session[Compacted].all()
    clock.advance(600)
    talk(chat, 12, 12)
    assert [event.by for event in chat.session[Compacted]] == ["results"]


def test_unknown_prices_never_pay() -> None:
    chat, _ = chat_of(compaction=Compaction(when="pays", keep=2))
    talk(chat, 1, 20)
    assert not chat.session[Compacted].all()


@pytest.mark.parametrize(
    "given",
    [{"window": 0}, {"at": 0}, {"at": 1.5}, {"keep": 0}, {"when": "never"}],
    ids=lambda given: next(iter(given)),
)
def test_wrong_settings_are_refused_by_name(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"Compaction {next(iter(given))} must"):
        Compaction(**given)


def test_by_must_be_something_that_summarizes() -> None:
    with pytest.raises(TypeError, match="Compaction by must be"):
        Compaction(by="model")
    with pytest.raises(TypeError, match="compaction must be a Compaction"):
        Conversation(Prompt(TEMPLATE), adapter=ScriptedAdapter(), compaction=True)  # type: ignore[arg-type]


ACTIONS = ("ask", "ask", "ask", "read", "track", "close", "restart", "snapshot", "rebind")


@dataclass(frozen=True)
class Guest:
    name: str


DESK = PromptTemplate(
    ns="tests",
    key="desk",
    sections=[
        MarkdownSection[Guest](key="task", title="Task", template="Help ${name}.", tools=[look]),
        *TEMPLATE.sections[1:],
    ],
)


class RandomModel:
    """Does what it was told to for each question; says anything else in one word."""

    def __init__(self) -> None:
        self.plan: dict[int, str] = {}

    def __call__(self, request: ModelRequest) -> Any:
        last = latest(request)
        if last.text.startswith(SUMMARY):
            return "A summary."
        if last.role == "tool":
            return f"Answer {asked(request)}."
        number = asked(request)
        offered = {each.name for each in request.tools} - request.revoked
        if self.plan[number] == "read" and "read_section" in offered:
            return call("read_section", section_key="parcels")
        if self.plan[number] == "track" and "track" in offered:
            return [call("track", n=number), call("look", n=number)]
        return call("look", n=number)


def spoken(chat: Conversation[Any]) -> list[str]:
    return [each.text for each in chat.messages if each.by_user or each.role == "assistant"]


def check_request(request: ModelRequest, chat: Conversation[Any]) -> None:
    """The request is one that the vendors accept, and has what the model must still have."""
    responses = ResponsesWire("gpt-5.6", route="additional_tools", codecs={}, parameters={})
    assert responses_problem(json.loads(responses.encode_request(request).body()), {}) is None
    route: dict[str, Any] = {"route": "tool_addition", "codecs": {}, "parameters": {}}
    messages = MessagesWire("claude-opus-5", max_tokens=100, **route)
    assert messages_problem(json.loads(messages.encode_request(request).body())) is None
    calls = [each.id for message in request.messages for each in message.tool_calls]
    assert sorted(calls) == sorted(each.call_id for each in request.messages if each.role == "tool")
    assert f"Question {len([each for each in chat.messages if each.by_user])}?" in texts(request)


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.sampled_from(ACTIONS), min_size=8, max_size=22),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1_500, 2_500]),
    st.booleans(),
)
def test_random_conversations_stay_valid_and_lose_nothing(
    actions: list[str], keep: int, window: int, dynamic: bool
) -> None:
    model, number = RandomModel(), 0
    adapter = ScriptedAdapter(model, supports_dynamic_tools=dynamic)
    compaction = Compaction(window=window, keep=keep)
    prompt = Prompt(DESK).bind(Guest("Ann"))
    chat: Conversation[Any] = Conversation(prompt, adapter=adapter, compaction=compaction)
    for action in actions:
        if action == "snapshot":
            session = Session()
            session.restore(Snapshot.from_json(chat.session.snapshot().to_json()))
            chat = Conversation(chat.prompt, adapter=adapter, session=session, compaction=compaction)
        elif action == "rebind":
            chat.bind(Guest(f"Guest {number}"))
        elif action == "close":
            chat.session.dispatch(CollapseSection(("parcels",)))
        else:
            number += 1
            model.plan[number] = action
            before = chat.messages
            chat.send(f"Question {number}?")
            check_request(adapter.requests[-1], chat)
            said = [each.text for each in before if each.by_user or each.role == "assistant"]
            assert [each.text for each in chat.messages if each.by_user or each.role == "assistant"][
                : len(said)
            ] == said
            view = chat.prompt.render(session=chat.session).view
            if view.is_open(("parcels",)):
                assert "Parcels come from Turin." in texts(adapter.requests[-1])
            assert f"Help {chat.prompt.params[0].name}." in texts(adapter.requests[-1])
