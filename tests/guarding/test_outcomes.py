"""Several guards together, guards of sections, streams that are held back, and answers that are asked for again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import pytest

from tests.guarding.cases import OUTSIDE, SEVEN, Paid, pay, prompt_for
from weakincentives import (
    Conversation,
    Image,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    ScriptedAdapter,
    SectionVisibility,
    Session,
    ToolResult,
    call,
    run,
    run_async,
    tool,
)
from weakincentives.guards import (
    Ask,
    Guard,
    GuardContext,
    GuardDecided,
    GuardedCall,
    GuardRefusedError,
    Outcome,
    Refuse,
    Replace,
    Retry,
    Stop,
)
from weakincentives.runtime import (
    Completed,
    MainLoop,
    Message,
    ModelRequest,
    PartialOutput,
    Restarted,
    StreamEvent,
    TextDelta,
    ToolInvoked,
)

PIXEL = Image.from_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 16, "image/png", name="box.png")


def ruling(hook: str, outcome: Outcome | None, name: str = "Rule", **attributes: Any) -> Guard:
    made: type[Guard] = type(name, (Guard,), {hook: lambda self, *given, context: outcome, **attributes})
    return made()


STRONGEST_FIRST: list[Outcome | None] = [Stop("stop"), Refuse("refuse"), Ask("ask"), None]


@pytest.mark.parametrize("outcomes", list(permutations(STRONGEST_FIRST, 2)), ids=repr)
def test_the_strongest_outcome_counts_in_whatever_order(outcomes: tuple[Outcome | None, ...]) -> None:
    OUTSIDE.clear()
    prompt, session = prompt_for(*(ruling("before_tool", each) for each in outcomes)), Session()
    strongest = min(outcomes, key=STRONGEST_FIRST.index)
    try:
        response = run(prompt, ScriptedAdapter([call("pay", amount=5), "Done."]), session=session)
    except GuardRefusedError:
        assert isinstance(strongest, Stop)
    else:
        assert bool(response.pending) == isinstance(strongest, Ask)
        results = [message.text for message in session[Message].all() if message.role == "tool"]
        assert results == {Refuse: ["refuse"], Ask: []}.get(type(strongest), ["paid 5"])
    decided = [each.outcome for each in session[GuardDecided].all()]
    assert decided == [type(each).__name__.lower() for each in outcomes if each is not None]
    assert ([] if strongest is not None else ["pay 5"]) == OUTSIDE


def test_a_refusal_of_the_answer_is_stronger_than_a_retry() -> None:
    prompt = prompt_for(ruling("before_answer", Retry("again")), ruling("before_answer", Refuse("never"), "Other"))
    with pytest.raises(GuardRefusedError, match="Other refused the answer of 'guarding': never"):
        run(prompt, ScriptedAdapter(["Done.", "Done."]))


def test_the_texts_of_guards_with_the_same_outcome_are_joined() -> None:
    prompt = prompt_for(ruling("before_tool", Ask("One?"), "One"), ruling("before_tool", Ask("Two?"), "Two"))
    (pending,) = run(prompt, ScriptedAdapter([call("pay", amount=5)])).pending
    assert "A guard asks a person:\n  One?\n  Two?\n" in pending.text


class Adds(Guard):
    """Adds its letter to whatever passes."""

    def __init__(self, letter: str) -> None:
        self.letter = letter

    def before_run(self, words: str, *, context: GuardContext) -> Outcome:
        return Replace(words + self.letter)

    def before_tool(self, call: GuardedCall, *, context: GuardContext) -> Outcome:
        return Replace(type(call.params)(amount=call.params.amount + 1))

    def after_tool(self, call: GuardedCall, result: ToolResult[Any], *, context: GuardContext) -> Outcome:
        assert call.arguments == f'{{"amount":{call.params.amount}}}'
        return Replace(ToolResult(result.render() + self.letter))

    def before_answer(self, answer: str, *, context: GuardContext) -> Outcome:
        return Replace(answer + self.letter)


class AddsLater(Adds):
    async def before_run(self, words: str, *, context: GuardContext) -> Outcome:  # type: ignore[override]
        return super().before_run(words, context=context)

    async def before_answer(self, answer: str, *, context: GuardContext) -> Outcome:  # type: ignore[override]
        return super().before_answer(answer, context=context)


def test_replacements_chain_and_events_do_not_have_the_values() -> None:
    OUTSIDE.clear()
    session = Session()
    prompt = prompt_for(AddsLater("c"), Adds("a"), Adds("b"))
    # Sync guards come first, all of them in one thread.
    assert run(prompt, ScriptedAdapter([call("pay", amount=5), "Done."]), session=session).text == "Done.abc"
    assert OUTSIDE == ["pay 8"]
    assert [m.text for m in session[Message].all() if m.asks] == ["Pay 5.abc"]
    assert [m.text for m in session[Message].all() if m.role == "tool"] == ["paid 8cab"]
    decided = session[GuardDecided].all()
    assert len(decided) == 12
    assert {(each.outcome, each.message) for each in decided} == {("replace", "")}
    (invoked,) = session[ToolInvoked].all()
    assert (invoked.arguments, invoked.params.amount) == ('{"amount": 5}', 8)


def test_a_guard_of_a_section_holds_for_the_whole_run_while_the_section_is_open() -> None:
    OUTSIDE.clear()
    careful = MarkdownSection(
        key="careful",
        title="Careful",
        template="Be careful.",
        summary="Care.",
        visibility=SectionVisibility.SUMMARY,
        guards=[ruling("before_tool", Refuse("Carefully!"), tools=("pay",))],
    )
    bills = MarkdownSection(key="bills", title="Bills", template="Pay bills.", tools=[pay])
    prompt: Prompt[Any] = Prompt(ns="tests", key="k", sections=[bills, careful], allow_collapse=True)
    script: list[Any] = [
        call("pay", amount=1),
        call("read_section", section_key="careful"),
        call("pay", amount=2),
        call("collapse_section", section_key="careful"),
        call("pay", amount=3),
        "Done.",
    ]
    session = Session()
    assert run(prompt, ScriptedAdapter(script), session=session).text == "Done."
    assert OUTSIDE == ["pay 1", "pay 3"]
    assert [each.text for each in session[ToolInvoked].all() if each.name == "pay"][1] == "Carefully!"


def test_tool_hooks_of_a_guard_with_names_are_called_for_these_alone() -> None:
    seen: list[str] = []

    class Named(Guard):
        tools = ("pay",)

        def before_tool(self, call: GuardedCall, *, context: GuardContext) -> None:
            seen.append(call.name)

    @tool
    def note(text: str) -> str:
        "Note it."
        return text

    section = MarkdownSection(key="bills", title="Bills", template="Pay.", tools=[pay, note])
    prompt: Prompt[Any] = Prompt(ns="tests", key="k", sections=[section], guards=[Named()])
    run(prompt, ScriptedAdapter([[call("note", text="x"), call("pay", amount=1)], "Done."]))
    assert seen == ["pay"]


def test_the_context_knows_the_session_the_history_and_the_params() -> None:
    @dataclass(frozen=True)
    class Customer:
        name: str

    seen: list[Any] = []

    class Looks(Guard):
        def before_answer(self, answer: str, *, context: GuardContext) -> None:
            turn = context.history.turns[0]
            seen.append((context.params(Customer).name, [use.name for use in turn.uses], context.deadline))
            seen.append([each.amount for each in context.session[Paid].all()])

    section = MarkdownSection[Customer](key="bills", title="Bills", template="Serve ${name}.", tools=[pay])
    prompt: Prompt[Any] = Prompt(ns="tests", key="k", sections=[section], guards=[Looks()]).bind(Customer("Ann"))
    run(prompt, ScriptedAdapter([call("pay", amount=5), "Done."]))
    assert seen == [("Ann", ["pay"], None), [5]]


# Answers


def only(*wanted: str, hold: bool = False) -> Guard:
    def before_answer(self: Guard, answer: str, *, context: GuardContext) -> Outcome | None:
        return None if answer in wanted else Retry(f"Not {answer!r}.")

    made: type[Guard] = type("Only", (Guard,), {"before_answer": before_answer, "hold": hold})
    return made()


def test_an_answer_is_asked_for_again_as_often_as_the_adapter_allows_and_then_refused() -> None:
    session = Session()
    model = ScriptedAdapter(["a", "b", "c"], output_retries=2)
    with pytest.raises(GuardRefusedError, match=r"Only refused the answer of 'guarding': Not 'c'\."):
        run(prompt_for(only("d")), model, session=session)
    assert len(model.requests) == 3
    assert [m.text for m in model.requests[-1].messages[-4:]] == ["a", "Not 'a'.", "b", "Not 'b'."]
    assert [m.text for m in session[Message].all() if m.role != "system"] == ["Pay 5."]


def test_a_refused_answer_is_not_sent_with_the_next_message() -> None:
    model = ScriptedAdapter(["a", "b", "fine"])
    chat = Conversation(prompt_for(only("fine"), words=""), adapter=model)
    with pytest.raises(GuardRefusedError):
        chat.send("One")
    assert chat.send("Two").text == "fine"
    assert [(m.role, m.text) for m in model.requests[-1].messages[1:]] == [("user", "One"), ("user", "Two")]


def test_a_replaced_answer_is_what_the_conversation_has() -> None:
    model = ScriptedAdapter(["secret", "fine"])
    chat = Conversation(prompt_for(ruling("before_answer", Replace("hidden")), words=""), adapter=model)
    chat.send("One")
    chat.send("Two")
    assert [(m.role, m.text) for m in model.requests[-1].messages[1:]] == [
        ("user", "One"),
        ("assistant", "hidden"),
        ("user", "Two"),
    ]


def streamed(prompt: Prompt[Any], model: ScriptedAdapter, *, is_async: bool) -> list[StreamEvent[Any]]:
    if not is_async:
        with MainLoop().stream(prompt, session=Session(), adapter=model) as events:
            return list(events)

    async def work() -> list[StreamEvent[Any]]:
        async with MainLoop().stream_async(prompt, session=Session(), adapter=model) as events:
            return [event async for event in events]

    return asyncio.run(work())


def texts(events: list[StreamEvent[Any]]) -> list[str]:
    return [event.text for event in events if isinstance(event, TextDelta)]


@pytest.mark.parametrize("is_async", [False, True], ids=["stream", "stream_async"])
def test_a_retry_is_a_restart_of_the_stream_unless_the_text_is_held_back(is_async: bool) -> None:
    for hold in (False, True):
        events = streamed(prompt_for(only("fine", hold=hold)), ScriptedAdapter(["bad", "fine"]), is_async=is_async)
        restarts = [event.reason for event in events if isinstance(event, Restarted)]
        assert (texts(events), restarts) == ((["fine"], []) if hold else (["bad", "fine"], ["Not 'bad'."]))
        assert isinstance(events[-1], Completed) and events[-1].response.text == "fine"


@pytest.mark.parametrize("is_async", [False, True], ids=["stream", "stream_async"])
@pytest.mark.parametrize("hold", [False, True], ids=["shown", "held"])
def test_a_stream_shows_the_answer_that_a_guard_has_put_in_its_place(is_async: bool, hold: bool) -> None:
    guard = ruling("before_answer", Replace("hidden"), hold=hold)
    events = streamed(prompt_for(guard), ScriptedAdapter([call("pay", amount=5), "secret"]), is_async=is_async)
    assert texts(events) == (["hidden"] if hold else ["secret", "hidden"])
    assert [isinstance(event, Restarted) for event in events].count(True) == (not hold)


@pytest.mark.parametrize("is_async", [False, True], ids=["stream", "stream_async"])
def test_nothing_of_a_refused_answer_is_shown_if_it_is_held_back(is_async: bool) -> None:
    guard = ruling("before_answer", Refuse("No."), hold=True)
    seen: list[Any] = []

    def collect() -> None:
        model, session = ScriptedAdapter(["secret"]), Session()
        if is_async:

            async def work() -> None:
                async with MainLoop().stream_async(prompt_for(guard), session=session, adapter=model) as events:
                    async for event in events:
                        seen.append(event)

            asyncio.run(work())
        else:
            with MainLoop().stream(prompt_for(guard), session=session, adapter=model) as events:
                seen.extend(events)

    with pytest.raises(GuardRefusedError):
        collect()
    assert texts(seen) == []


@dataclass(frozen=True)
class Offer:
    price: int


@pytest.mark.parametrize(
    ("replacement", "price"),
    [(Offer(3), 3), ('{"price": 4}', 4), ("cheap", None), (Offer("x"), None)],  # type: ignore[arg-type]
)
@pytest.mark.parametrize("hold", [False, True], ids=["shown", "held"])
def test_a_typed_answer_is_replaced_by_a_value_or_its_text(replacement: Any, price: int | None, hold: bool) -> None:
    outputs: list[Any] = []

    def before_answer(self: Guard, answer: str, *, context: GuardContext) -> Outcome:
        outputs.append(context.output)
        return Replace(replacement)

    guard: Guard = type("Rule", (Guard,), {"before_answer": before_answer, "hold": hold})()
    section = MarkdownSection(key="s", title="S", template="Offer.")
    template = PromptTemplate[Offer](ns="tests", key="k", sections=[section], guards=[guard])
    if price is None:
        with pytest.raises(GuardRefusedError, match="Guard 'Rule' failed: "):
            run(Prompt(template), ScriptedAdapter(['{"price": 9}']))
    else:
        assert run(Prompt(template), ScriptedAdapter(['{"price": 9}'])).require_output() == Offer(price)
        events = streamed(Prompt(template), ScriptedAdapter(['{"price": 9}']), is_async=False)
        assert [event.value for event in events if isinstance(event, PartialOutput)][-1] == {"price": price}
        if hold:
            assert "9" not in "".join(texts(events))
    assert set(outputs) == {Offer(9)}


# Words


def test_every_text_of_the_user_passes_the_guards_once() -> None:
    seen: list[str] = []

    class Looks(Guard):
        def before_run(self, words: str, *, context: GuardContext) -> None:
            seen.append(words)

    chat = Conversation(prompt_for(Looks(), words="Pay bills."), adapter=ScriptedAdapter(["a", "b"]))
    chat.send("One")
    chat.send([PIXEL, "Two"])
    assert seen[:2] == ["Pay bills.", "One"]
    assert len(seen) == 3 and "Two" in seen[2]


def test_a_run_without_words_passes_the_guards_too() -> None:
    with pytest.raises(GuardRefusedError, match=r"Rule stopped 'guarding': Closed\."):
        run(prompt_for(ruling("before_run", Stop("Closed.")), words=""), ScriptedAdapter(["Done."]))


def test_words_in_the_session_of_a_new_run_pass_the_guards() -> None:
    session = Session()
    session.dispatch(Message("user", "Pay at once."))
    with pytest.raises(GuardRefusedError):
        run(prompt_for(ruling("before_run", Refuse("No.")), words=""), ScriptedAdapter(["Done."]), session=session)


def test_media_stay_where_the_words_are_replaced() -> None:
    model = ScriptedAdapter(["a"])
    chat = Conversation(prompt_for(ruling("before_run", Replace("Look.")), words=""), adapter=model)
    chat.send([PIXEL, "My card is 4111."])
    message = next(message for message in chat.messages if message.by_user)
    assert [type(part).__name__ for part in message.parts] == ["Text", "Image"]
    assert "4111" not in message.text and "Look." in message.text


def test_a_restart_does_not_ask_again_and_keeps_the_replaced_words() -> None:
    asked: list[str] = []

    class Cleans(Guard):
        def before_run(self, words: str, *, context: GuardContext) -> Outcome:
            asked.append(words)
            return Replace("clean")

    hidden = MarkdownSection(
        key="more", title="More", template="More.", summary="More.", visibility=SectionVisibility.SUMMARY, tools=[pay]
    )
    words = MarkdownSection(key="words", title="Words", template="dirty", role="user", heading=False)
    prompt: Prompt[Any] = Prompt(ns="tests", key="k", sections=[hidden, words], guards=[Cleans()])
    model = ScriptedAdapter([call("read_section", section_key="more"), "Done."], supports_dynamic_tools=False)
    assert run(prompt, model).text == "Done."
    assert len(model.requests) == 2
    assert asked == ["dirty"]
    for request in model.requests:
        assert [message.text for message in request.messages if message.asks] == ["clean"]


def test_calls_that_wait_still_wait_if_the_next_message_is_refused() -> None:
    class Polite(Guard):
        def before_run(self, words: str, *, context: GuardContext) -> Outcome | None:
            return Refuse("Please!") if "please" not in words else None

        def before_tool(self, call: GuardedCall, *, context: GuardContext) -> Outcome:
            return Ask("Sure?")

    model = ScriptedAdapter([call("pay", amount=5), "Well."])
    chat = Conversation(prompt_for(Polite(), words=""), adapter=model)
    pending = chat.send("Pay, please.").pending
    before = chat.messages
    with pytest.raises(GuardRefusedError, match="Please!"):
        chat.send("Hurry.")
    assert (chat.pending, chat.messages) == (pending, before)
    assert chat.send("Forget it, please.").text == "Well."


def test_explaining_and_counting_ask_no_guard() -> None:
    prompt, model = prompt_for(ruling("before_run", Stop("never"))), ScriptedAdapter([])
    assert model.count(prompt) > 0
    assert model.explain(prompt) is not None
    assert isinstance(model.next_request(prompt), ModelRequest)


def test_params_that_do_not_fit_the_tool_are_no_replacement() -> None:
    OUTSIDE.clear()
    for value in (None, {"amount": 7}, Paid(7), type(SEVEN)(amount="x")):
        session = Session()
        model = ScriptedAdapter([call("pay", amount=5), "Done."])
        run(prompt_for(ruling("before_tool", Replace(value))), model, session=session)
        (text,) = [message.text for message in session[Message].all() if message.role == "tool"]
        assert text.startswith("Guard 'Rule' failed: "), value
    assert OUTSIDE == []


@pytest.mark.parametrize("hook", ["before_tool", "after_tool"])
def test_a_stop_answers_the_calls_that_were_not_made_and_the_conversation_goes_on(hook: str) -> None:
    OUTSIDE.clear()
    stopped = ruling(hook, Stop("Fraud."))
    model = ScriptedAdapter([[call("pay", amount=1), call("pay", amount=2)], "Fine."])
    chat = Conversation(prompt_for(stopped, words=""), adapter=model)
    with pytest.raises(GuardRefusedError, match=r"Rule stopped 'guarding': Fraud\."):
        chat.send("Pay both.")
    results = [message for message in chat.messages if message.role == "tool"]
    assert [message.text for message in results] == [
        "Not run: Fraud." if hook == "before_tool" else "Fraud.",
        "Not run: the run was stopped.",
    ]
    assert chat.session[Paid].all() == ()
    assert chat.send("Sorry.").text == "Fine."
    assert [message.role for message in model.requests[-1].messages[-3:]] == ["tool", "tool", "user"]


@pytest.mark.parametrize("is_async", [False, True], ids=["run", "run_async"])
def test_calls_beside_one_that_is_stopped_keep_their_results(is_async: bool) -> None:
    @tool(read_only=True)
    def look(number: int) -> str:
        "Look."
        return f"saw {number}"

    class StopsAtTwo(Guard):
        async def before_tool(self, call: GuardedCall, *, context: GuardContext) -> Outcome | None:
            return Stop("Two.") if call.params.number == 2 else None

    section = MarkdownSection(key="s", title="S", template="Look.", tools=[look])
    prompt: Prompt[Any] = Prompt(ns="tests", key="k", sections=[section], guards=[StopsAtTwo()])
    session, model = Session(), ScriptedAdapter([[call("look", number=n) for n in (1, 2, 3)]])
    with pytest.raises(GuardRefusedError):
        if is_async:
            asyncio.run(run_async(prompt, model, session=session))
        else:
            run(prompt, model, session=session)
    results = {message.text for message in session[Message].all() if message.role == "tool"}
    assert results == {"saw 1", "Not run: Two.", "saw 3"}
