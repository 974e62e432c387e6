"""A tool that runs another prompt inside the run that calls it."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from tests.approval.bank import Balance, Paid
from tests.waiting import forever
from weakincentives import (
    Answer,
    Approve,
    Budget,
    BudgetExceededError,
    Conversation,
    Deadline,
    DeadlineExceededError,
    Deny,
    Edit,
    MainLoop,
    MarkdownSection,
    Prompt,
    PromptEvaluationError,
    PromptTemplate,
    PromptValidationError,
    ScriptedAdapter,
    SectionVisibility,
    Session,
    Snapshot,
    ToolContext,
    call,
    delegate,
    run,
    run_async,
    tool,
)
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.limits import TokenUsage
from weakincentives.resources import Binding, ResourceRegistry
from weakincentives.runtime import Message, ModelReply, PendingCall, RunEnded, ToolInvoked
from weakincentives.runtime.delegation import ChildState


@dataclass(frozen=True)
class Topic:
    topic: str


@dataclass(frozen=True)
class Tone:
    tone: str = "plain"


@dataclass(frozen=True)
class Found:
    title: str
    pages: int


@tool(approval="effects", changes=(Filesystem, Balance))
def pay(amount: int, context: ToolContext) -> str:
    "Pay."
    context.session.dispatch(Paid(amount))
    files = context.resources.get(Filesystem)
    files.write("log.txt", f"{amount}\n", mode="append")
    return f"paid {amount}"


@tool
def spend(amount: int, context: ToolContext) -> str:
    "Spend."
    context.session.dispatch(Paid(amount))
    return f"spent {amount}"


def template(key: str, *tools: Any, output: Any = None, params: Any = None) -> PromptTemplate[Any]:
    text = "Look for ${topic}." if params is Topic else "Do it."
    kind = MarkdownSection if params is None else MarkdownSection[params]
    section = kind(key="task", title="Task", template=text, tools=list(tools))
    made = PromptTemplate if output is None else PromptTemplate[output]
    return made(ns="tests", key=key, sections=[section])


def parent(*tools: Any) -> Prompt[Any]:
    files = InMemoryFilesystem({"log.txt": ""})
    return Prompt(template("parent", *tools)).bind(resources={Filesystem: files})


def usage(text: str, *calls: Any) -> ModelReply:
    return ModelReply(text, usage=TokenUsage(100, 10))


def test_a_child_is_typed_in_and_out() -> None:
    child = ScriptedAdapter([Found("Tea", 7)])
    research = delegate(template("research", output=Found, params=Topic), description="Look it up.", adapter=child)
    session = Session()
    model = ScriptedAdapter([call("research", topic="tea"), "Seven pages."])
    response = run(parent(research), model, session=session)
    assert response.text == "Seven pages."
    assert child.requests[0].messages[0].text.endswith("Look for tea.")
    assert session[ToolInvoked].latest().result.value == Found("Tea", 7)  # type: ignore[union-attr]
    assert "Tea" in model.requests[-1].messages[-1].text
    assert research.schema["properties"].keys() == {"topic"}


def test_several_params_are_one_argument_each() -> None:
    sections = [
        MarkdownSection[Topic](key="a", title="A", template="About ${topic}."),
        MarkdownSection[Tone](key="b", title="B", template="In a ${tone} tone."),
    ]
    child = ScriptedAdapter(["Done."])
    made = PromptTemplate(ns="tests", key="both", sections=sections)
    both = delegate(made, description="Write.", adapter=child)
    assert both.schema["properties"].keys() == {"topic", "tone"}
    model = ScriptedAdapter([call("both", topic={"topic": "tea"}, tone={"tone": "warm"}), "Fine."])
    assert run(parent(both), model).text == "Fine."
    text = child.requests[0].messages[0].text
    assert "About tea." in text and "In a warm tone." in text


def test_state_and_files_are_shared_and_conversations_are_not() -> None:
    @tool
    def write(context: ToolContext) -> str:
        "Write."
        context.session.dispatch(Paid(3))
        context.resources.get(Filesystem).write("note.txt", "from the child")
        return "written"

    child = ScriptedAdapter([call("write"), "Child is done."])
    prompt, session = parent(delegate(template("child", write), description="Do.", adapter=child)), Session()
    run(prompt, ScriptedAdapter([call("child"), "Parent is done."]), session=session)
    assert session[Balance].latest() == Balance(97)
    assert [message.text for message in session[Message].all() if message.role == "assistant"] == [
        "",
        "Parent is done.",
    ]
    ended = [(event.run_id.count("/"), event.status) for event in session[RunEnded].all()]
    assert ended == [(1, "completed"), (0, "completed")]
    assert [event.name for event in session[ToolInvoked].all()] == ["write", "child"]


def test_sections_of_parent_and_child_with_the_same_keys_are_apart() -> None:
    def sections(word: str) -> list[Any]:
        return [
            MarkdownSection(
                key="more",
                title="More",
                template=word,
                summary="S.",
                visibility=SectionVisibility.SUMMARY,
                tools=[spend],
            )
        ]

    child = ScriptedAdapter([call("read_section", section_key="more"), call("spend", amount=1), "Child."])
    made = PromptTemplate(ns="tests", key="child", sections=sections("Of the child."))
    task = MarkdownSection(
        key="task", title="T", template="Go.", tools=[delegate(made, description="Do.", adapter=child)]
    )
    outer = Prompt(ns="tests", key="outer", sections=[task, *sections("Of the parent.")])
    model = ScriptedAdapter([call("child"), "Done."])
    assert run(outer, model).text == "Done."
    assert all(tool.name != "spend" for tool in model.requests[-1].tools)
    assert "Of the child." in child.requests[1].messages[-2].text


def test_usage_adds_up_and_the_tree_shares_a_budget() -> None:
    def prompt(budget: Budget | None = None) -> tuple[Prompt[Any], ScriptedAdapter]:
        child = ScriptedAdapter([ModelReply("a", usage=TokenUsage(100, 10))])
        return parent(delegate(template("child"), description="Do.", adapter=child, budget=budget)), child

    script = [call("child"), ModelReply("b", usage=TokenUsage(50, 5))]
    response = run(prompt()[0], ScriptedAdapter(script))
    assert response.usage.input_tokens >= 150
    with pytest.raises(BudgetExceededError):
        run(prompt()[0], ScriptedAdapter(script), budget=Budget(max_input_tokens=90))


def test_a_child_that_ends_by_its_own_budget_returns_what_it_has() -> None:
    child = ScriptedAdapter([[call("spend", amount=1)], [call("spend", amount=2)], "never"])
    small = delegate(template("child", spend), description="Do.", adapter=child, budget=Budget(max_turns=2))
    session, model = Session(), ScriptedAdapter([call("child"), "Done."])
    assert run(parent(small), model, session=session).text == "Done."
    assert "ended before it was finished" in model.requests[-1].messages[-1].text
    assert model.requests[-1].messages[-1].success
    assert session[Balance].latest() == Balance(97)


def test_a_child_that_fails_is_a_failed_result() -> None:
    error = PromptEvaluationError("The model is gone", phase="request")
    child = delegate(template("child"), description="Do.", adapter=ScriptedAdapter([error]))
    model = ScriptedAdapter([call("child"), "Done."])
    assert run(parent(child), model).text == "Done."
    assert model.requests[-1].messages[-1].text == "'child' failed: The model is gone"


def test_a_child_whose_answer_does_not_fit_its_type_is_a_failed_result(caplog: pytest.LogCaptureFixture) -> None:
    child = delegate(template("child", output=Found), description="Do.", adapter=ScriptedAdapter(["Tea."] * 3))
    model = ScriptedAdapter([call("child"), "Done."])
    assert run(parent(child), model).text == "Done."
    assert model.requests[-1].messages[-1].text == "'child' failed: The answer contains no JSON object for Found"
    assert caplog.records == []


def nested(levels: int, *tools: Any, scripts: dict[int, list[Any]]) -> tuple[Prompt[Any], list[ScriptedAdapter]]:
    """Prompts inside each other: the innermost, at level `levels`, has the tools; every other has `down`."""
    adapters: list[ScriptedAdapter] = []
    offered: list[Any] = list(tools)
    for level in range(levels, 0, -1):
        adapters.append(ScriptedAdapter(scripts[level]))
        made = delegate(template(f"level{level}", *offered), name="down", description="Go on.", adapter=adapters[-1])
        offered = [made]
    return parent(*offered), adapters


@pytest.mark.parametrize("levels", [1, 2, 3])
@pytest.mark.parametrize("stored", [False, True], ids=["", "stored"])
@pytest.mark.parametrize(
    "decision", [Approve(), Deny("no"), Edit({"amount": 7}), Answer("later")], ids=lambda d: type(d).__name__
)
def test_calls_wait_at_any_depth(levels: int, stored: bool, decision: Any) -> None:
    scripts = {level: [call("down"), f"up {level}"] for level in range(1, levels)}
    scripts[levels] = [call("pay", amount=5), "bottom"]
    prompt, _ = nested(levels, pay, scripts=scripts)
    session, model = Session(), ScriptedAdapter([call("down"), "Done."])
    response = run(prompt, model, session=session)
    (pending,) = response.pending
    assert pending.call_id.count("/") == levels
    assert (session[Balance].latest() or Balance()).total == 100
    assert run(prompt, model, session=session, decisions={}).pending == (pending,)
    for _ in range(2):
        if stored:
            text = session.snapshot().to_json()
            session = Session(session_id=session.session_id)
            session.restore(Snapshot.from_json(text, types=[Paid]))
        response = run(prompt, model, session=session, decisions={pending.call_id: decision})
        if not response.pending:
            break
        (pending,) = response.pending
        decision = Approve()
    assert response.text == "Done."
    paid = {Approve: 5, Edit: 7}.get(type(decision), 0)
    if response.pending == () and isinstance(decision, Approve):
        paid = session[Paid].latest().amount  # type: ignore[union-attr]
        assert paid in (5, 7)
    assert (session[Balance].latest() or Balance()).total == 100 - paid
    assert session[PendingCall].all() == ()
    calls = [event.name for event in session[ToolInvoked].all()]
    assert calls == ["pay", *["down"] * levels]


def test_a_fourth_level_is_a_failed_result() -> None:
    scripts = {level: [call("down"), "up"] for level in (1, 2, 3)} | {4: ["never"]}
    prompt, adapters = nested(4, scripts=scripts)
    session = Session()
    assert run(prompt, ScriptedAdapter([call("down"), "Done."]), session=session).text == "Done."
    assert adapters[0].requests == []
    assert "at most 3 levels deep" in session[ToolInvoked].all()[0].result.message


def test_a_wrong_edit_below_loses_nothing() -> None:
    prompt, _ = nested(1, pay, scripts={1: [call("pay", amount=5), "bottom"]})
    session, model = Session(), ScriptedAdapter([call("down"), "Done."])
    (pending,) = run(prompt, model, session=session).pending
    with pytest.raises(PromptEvaluationError, match="does not fit 'pay'"):
        run(prompt, model, session=session, decisions={pending.call_id: Edit({"amount": "x"})})
    assert session[PendingCall].all() == (pending,)
    assert run(prompt, model, session=session, decisions={pending.call_id: Approve()}).text == "Done."


def test_an_edit_below_is_checked_by_the_tool_below() -> None:
    @tool(name="spend", approval="call")
    def other(words: str) -> str:
        "Spend words."
        return f"spent {words}"

    down = delegate(template("kid", other), name="down", description="Go on.")
    session, model = Session(), ScriptedAdapter([call("down"), call("spend", words="a"), "bottom", "Done."])
    prompt = parent(down, spend)
    (pending,) = run(prompt, model, session=session).pending
    response = run(prompt, model, session=session, decisions={pending.call_id: Edit({"words": "b"})})
    assert response.text == "Done."
    assert session[ToolInvoked].all()[0].text.endswith("spent b")


@pytest.mark.parametrize("ends", ["budget", "model"])
def test_a_child_that_ends_early_after_a_decision_leaves_no_question(ends: str) -> None:
    failure = PromptEvaluationError("down", prompt_name="kid", phase="request")
    adapter = ScriptedAdapter([call("pay", amount=5), failure])
    budget = Budget(max_turns=1) if ends == "budget" else None
    down = delegate(template("kid", pay), name="down", description="Go on.", adapter=adapter, budget=budget)
    session, model = Session(), ScriptedAdapter([call("down"), "Done."])
    prompt = parent(down)
    (pending,) = run(prompt, model, session=session).pending
    response = run(prompt, model, session=session, decisions={pending.call_id: Approve()})
    assert (response.text, response.pending) == ("Done.", ())
    assert session[Paid].all() == (Paid(5),)
    assert session[PendingCall].all() == session[ChildState].all() == ()


def test_a_wrong_edit_two_levels_below_takes_back_no_decision_above_it() -> None:
    @tool(approval="call")
    def order(count: int, context: ToolContext) -> str:
        "Order."
        context.session.dispatch(Paid(count))
        return "ordered"

    lowest = ScriptedAdapter([call("pay", amount=5), "bottom"])
    down = delegate(template("two", pay), name="deeper", description="Go on.", adapter=lowest)
    middle = ScriptedAdapter([[call("order", count=1), call("deeper")], "up"])
    prompt = parent(delegate(template("one", order, down), name="down", description="Go on.", adapter=middle))
    session, model = Session(), ScriptedAdapter([call("down"), "Done."])
    first, second = run(prompt, model, session=session).pending
    with pytest.raises(PromptEvaluationError, match="does not fit 'pay'"):
        run(prompt, model, session=session, decisions={first.call_id: Approve(), second.call_id: Edit({})})
    assert session[Paid].all() == (Paid(1),)
    assert [each.call_id for each in session[PendingCall].all()] == [second.call_id]
    while (response := run(prompt, model, session=session, decisions={second.call_id: Approve()})).pending:
        pass
    assert response.text == "Done."
    assert session[Paid].all() == (Paid(1), Paid(5))


def test_a_user_who_goes_on_stops_the_child() -> None:
    prompt, (child,) = nested(1, pay, scripts={1: [call("pay", amount=5), "never"]})
    model = ScriptedAdapter([call("down"), "Fine."])
    chat = Conversation(prompt, adapter=model)
    assert len(chat.send("Go.").pending) == 1
    assert chat.send("No.").text == "Fine."
    assert len(child.requests) == 1
    assert chat.pending == ()
    assert "the user went on" in model.requests[-1].messages[-2].text
    assert (chat.session[Balance].latest() or Balance()).total == 100


def test_two_children_of_a_turn_wait_apart() -> None:
    first = delegate(template("one", pay), description="Do.", adapter=ScriptedAdapter([call("pay", amount=5), "one"]))
    second = delegate(template("two", pay), description="Do.", adapter=ScriptedAdapter([call("pay", amount=6), "two"]))
    session, model = Session(), ScriptedAdapter([[call("one"), call("two")], "Done."])
    prompt = parent(first, second)
    one, two = run(prompt, model, session=session).pending
    assert run(prompt, model, session=session, decisions={two.call_id: Approve()}).pending == (one,)
    (again,) = run(prompt, model, session=session, decisions={one.call_id: Approve()}).pending
    assert run(prompt, model, session=session, decisions={again.call_id: Approve()}).text == "Done."
    assert session[Balance].latest() == Balance(89)


def test_async_runs_delegate() -> None:
    prompt, _ = nested(2, spend, scripts={1: [call("down"), "up"], 2: [call("spend", amount=4), "bottom"]})
    session = Session()
    assert asyncio.run(run_async(prompt, ScriptedAdapter([call("down"), "Done."]), session=session)).text == "Done."
    assert session[Balance].latest() == Balance(96)


def test_the_deadline_of_the_tree_goes_up_and_the_childs_own_does_not() -> None:
    @tool
    async def wait() -> str:
        "Wait."
        await forever()
        return "late"

    def prompt(timeout: float | None) -> Prompt[Any]:
        child = ScriptedAdapter([call("wait"), "never"])
        return parent(delegate(template("child", wait), description="Do.", adapter=child, timeout=timeout))

    model = ScriptedAdapter([call("child"), "Done."])
    assert run(prompt(0.2), model).text == "Done."
    assert "ended before it was finished" in model.requests[-1].messages[-1].text
    with pytest.raises(DeadlineExceededError):
        run(prompt(None), ScriptedAdapter([call("child"), "Done."]), deadline=Deadline.after(0.2))


def test_wrong_declarations_are_refused() -> None:
    with pytest.raises(PromptValidationError, match="use approval='call'"):
        delegate(template("child"), description="Do.", approval="effects")
    with pytest.raises(TypeError, match="takes a PromptTemplate"):
        delegate(Prompt(template("child")), description="Do.")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [("concurrent", "yes", "True or False"), ("fork", 1, "True or False"), ("timeout", "5", "seconds above 0")],
)
def test_wrong_options_are_refused(option: str, value: Any, problem: str) -> None:
    with pytest.raises(PromptValidationError, match=f"'child': {option} must be .*{problem}.*, got {value!r}"):
        delegate(template("child"), description="Do.", **{option: value})


def test_calls_of_children_have_keys_of_their_own_and_keep_them_until_they_are_compensated() -> None:
    keys: dict[str, list[tuple[int, str]]] = {"done": [], "undone": []}

    def undo(params: Any, *, context: ToolContext) -> None:
        keys["undone"].append((params.amount, context.idempotency_key))

    @tool(approval="call", compensate=undo)
    def charge(amount: int, context: ToolContext) -> str:
        "Charge."
        keys["done"].append((amount, context.idempotency_key))
        raise ToolValidationError("The card was refused.")

    def twice(amount: int, *below: Any) -> ScriptedAdapter:
        """Repeats its ids, as some providers do."""
        turns: list[Any] = [[call("charge", call_id="c", amount=amount + at), *below] for at in (0, 1)]
        return ScriptedAdapter([turns[0], turns[1], "Done."] * 4)

    down = call("down", call_id="d")
    inner = delegate(template("inner", charge), name="down", description="Go down.", adapter=twice(1))
    middle = delegate(template("middle", charge, inner), name="down", description="Go down.", adapter=twice(3, down))
    model, session = twice(5, down), Session()
    response = run(parent(charge, middle), model, session=session)
    while response.pending:
        decisions = {response.pending[0].call_id: Approve()}
        response = run(parent(charge, middle), model, session=session, decisions=decisions)
    assert sorted(keys["undone"]) == sorted(keys["done"])
    assert len({key for _, key in keys["done"]}) == len(keys["done"]) == 14


@pytest.mark.parametrize("turns", [0, 2])
def test_a_fork_continues_the_parents_conversation_with_the_same_tools(turns: int) -> None:
    made = template("look", output=Found, params=Topic)
    look = delegate(made, description="Look.", fork=True)
    script = [*[call("spend", amount=1) for _ in range(turns)], call("look", topic="tea"), Found("Tea", 7), "Done."]
    model, session = ScriptedAdapter(script), Session()
    assert run(parent(look, spend), model, session=session).text == "Done."
    before, forked, after = model.requests[-3:]
    assert tuple(forked.messages)[: len(before.messages)] == tuple(before.messages)
    assert forked.tools == before.tools == after.tools
    assert forked.output is before.output is None
    asked = forked.messages[len(before.messages) :]
    assert [message.role for message in asked] == ["user"]
    assert "Look for tea." in asked[0].text and '"pages"' in asked[0].text
    assert session[ToolInvoked].latest().result.value == Found("Tea", 7)  # type: ignore[union-attr]
    assert tuple(after.messages)[: len(before.messages)] == tuple(before.messages)


@pytest.mark.parametrize("door", ["run", "async", "conversation", "open conversation"])
def test_a_fork_uses_the_resources_that_its_parent_has_open(door: str) -> None:
    class Counter:
        """Made anew whenever resources are opened."""

        count = 0

    @tool
    def count(*, context: ToolContext) -> str:
        "Count."
        counter = context.resources.get(Counter)
        counter.count += 1
        return str(counter.count)

    counters = ResourceRegistry.of(Binding(Counter, lambda _: Counter()))
    prompt = parent(delegate(template("look"), description="Look.", fork=True), count).bind(resources=counters)
    model = ScriptedAdapter([call("count"), call("look"), call("count"), "forked", call("count"), "Done."])
    if door == "run":
        run(prompt, model)
    elif door == "async":
        asyncio.run(run_async(prompt, model))
    elif door == "conversation":
        Conversation(prompt, adapter=model).send("Go.")
    else:
        with Conversation(prompt, adapter=model) as chat:
            chat.send("Go.")
    texts = [message.text for request in model.requests for message in request.messages if message.name == "count"]
    assert max(texts) == "3"


def test_a_fork_does_not_delegate_and_may_wait() -> None:
    look = delegate(template("look"), description="Look.", fork=True)
    script = [call("look"), call("look"), [call("pay", amount=5)], "forked", "Done."]
    model, session, prompt = ScriptedAdapter(script), Session(), parent(look, pay)
    (pending,) = run(prompt, model, session=session).pending
    assert "at most 3 levels" in session[ToolInvoked].all()[0].result.message
    text = session.snapshot().to_json()
    session = Session(session_id=session.session_id)
    session.restore(Snapshot.from_json(text, types=[Paid]))
    assert run(prompt, model, session=session, decisions={pending.call_id: Approve()}).text == "Done."
    assert session[Balance].latest() == Balance(95)


def test_a_fork_that_does_not_fit_its_type_is_a_failed_result() -> None:
    look = delegate(template("look", output=Found), description="Look.", fork=True)
    model, session = ScriptedAdapter([call("look"), "no JSON", "Done."]), Session()
    assert run(parent(look), model, session=session).text == "Done."
    assert not session[ToolInvoked].latest().success  # type: ignore[union-attr]


@pytest.mark.parametrize("ways", ["sync", "async"])
def test_stopping_the_parent_stops_its_children(ways: str) -> None:
    began, released = threading.Event(), threading.Event()

    @tool
    def block() -> str:
        "Block."
        began.set()
        released.wait(20)
        return "late"

    prompt, (child,) = nested(1, block, scripts={1: [call("block"), "never"]})
    session, model = Session(), ScriptedAdapter([call("down"), "never"])
    try:
        if ways == "sync":
            stream = MainLoop().stream(prompt, session=session, adapter=model)
            reader = threading.Thread(target=lambda: list(stream))
            reader.start()
            assert began.wait(20)
            stream.close()
            released.set()
            reader.join(20)
        else:

            async def work() -> None:
                task = asyncio.create_task(run_async(prompt, model, session=session))
                await asyncio.to_thread(began.wait, 20)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

            asyncio.run(work())
    finally:
        released.set()
    assert sorted((event.run_id.count("/"), event.status) for event in session[RunEnded].all()) == [
        (0, "stopped"),
        (1, "stopped"),
    ]
    assert (len(child.requests), len(model.requests)) == (1, 1)
    assert [message.role for message in session[Message].all()][-1] == "tool"
