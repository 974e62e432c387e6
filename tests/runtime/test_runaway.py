"""A model that never stops calling a tool is stopped, wherever the run was started, and the error says what it cost."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest

from weakincentives import FallbackAdapter, run, run_async
from weakincentives.adapters.scripted import ScriptedAdapter
from weakincentives.clock import FakeClock
from weakincentives.errors import (
    BudgetExceededError,
    ContextOverflowError,
    DeadlineExceededError,
    OutputParseError,
    PromptEvaluationError,
    WinkError,
)
from weakincentives.limits import Budget, Deadline, Prices, TokenUsage
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, ToolContext, tool
from weakincentives.resources import Binding, ResourceRegistry
from weakincentives.runtime import Conversation, MainLoop, ModelReply, ModelRequest, ToolCall
from weakincentives.session import Session, Snapshot


@tool
def search(query: str) -> str:
    """Search."""
    raise RuntimeError("try again")


def prompt(*tools: Any, **options: Any) -> Prompt[Any]:
    task = MarkdownSection(key="task", title="Task", template="Find it.", tools=[*(tools or (search,))])
    return Prompt(PromptTemplate(ns="tests", key="runaway", sections=[task], **options))


class Obedient(ScriptedAdapter):
    """A model that searches again whenever a search has failed."""

    def __init__(self, model: str = "scripted", usage: TokenUsage | None = None) -> None:
        reply = ModelReply(tool_calls=(ToolCall("c", "search", '{"query": "x"}'),), usage=usage or TokenUsage(10, 2))
        super().__init__(lambda request: reply, model=model)


class Broken(ScriptedAdapter):
    def reply(self, request: ModelRequest) -> ModelReply:
        raise PromptEvaluationError("no connection", phase="request")


def drained(stream: Any) -> None:
    with stream:
        list(stream)


async def drained_async(stream: Any) -> None:
    async with stream:
        async for _ in stream:
            pass


FORMS = ("sync", "async", "stream", "stream_async")


def begin(entry: str, form: str, adapter: ScriptedAdapter | FallbackAdapter, **options: Any) -> None:
    """Run the prompt to its end from one entry point, in one form."""
    given: dict[str, Any] = {"session": options.pop("session", None) or Session(), "adapter": adapter}
    if entry == "run":
        if form == "sync":
            run(prompt(), adapter, session=given["session"], **options)
        else:
            asyncio.run(run_async(prompt(), adapter, session=given["session"], **options))
        return
    names = ["evaluate", "evaluate_async", "stream", "stream_async"]
    on: Any = adapter
    words: tuple[Any, ...] = (prompt(),)
    if entry == "main loop":
        on, names[:2] = MainLoop(), ["execute", "execute_async"]
    elif entry == "conversation":
        on, names[:2], words = Conversation(prompt(), **given), ["send", "send_async"], ("Go.",)
    given = {} if entry == "conversation" else {"session": given["session"]} if on is adapter else given
    method = getattr(on, names[FORMS.index(form)])
    if form == "sync":
        method(*words, **given, **options)
    elif form == "async":
        asyncio.run(method(*words, **given, **options))
    elif form == "stream":
        drained(method(*words, **given, **options))
    else:
        asyncio.run(streamed(method, words, {**given, **options}))


async def streamed(method: Any, words: tuple[Any, ...], options: dict[str, Any]) -> None:
    await drained_async(method(*words, **options))


ENTRIES = [(entry, form) for entry in ("adapter", "main loop", "conversation") for form in FORMS]
ENTRIES += [("run", "sync"), ("run", "async")]
every_entry = pytest.mark.parametrize(("entry", "form"), ENTRIES)


@every_entry
@pytest.mark.parametrize("falls_back", [False, True])
def test_a_runaway_loop_stops_after_fifty_turns(entry: str, form: str, falls_back: bool) -> None:
    model = Obedient()
    with pytest.raises(BudgetExceededError, match=r"max_turns=50, spent 50; pass budget=Budget\(max_turns=") as caught:
        begin(entry, form, FallbackAdapter(Broken(), model) if falls_back else model)
    assert (len(model.requests), caught.value.limit) == (50, "max_turns")
    assert caught.value.usage == TokenUsage(500, 100)


@every_entry
@pytest.mark.parametrize(("turns", "asked"), [(3, 3), (70, 70), (None, 200)])
def test_a_budget_allows_fewer_turns_or_more(entry: str, form: str, turns: int | None, asked: int) -> None:
    model = Obedient()
    tokens = None if turns else 12 * 200
    with pytest.raises(BudgetExceededError):
        begin(entry, form, model, budget=Budget(max_turns=turns, max_total_tokens=tokens))
    assert len(model.requests) == asked


@every_entry
def test_a_budget_in_money_knows_the_prices_of_known_models(entry: str, form: str) -> None:
    """A thousand tokens of gpt-6-sol are $0.002, and ten thousand written ones $0.1."""
    model = Obedient("gpt-6-sol", TokenUsage(1_000, 10_000))
    with pytest.raises(BudgetExceededError, match=r"max_cost=0\.25, spent 0\.306") as caught:
        begin(entry, form, model, budget=Budget(max_cost=0.25))
    assert (len(model.requests), Prices(2.0, 10.0).cost(caught.value.usage)) == (3, pytest.approx(0.306))


@every_entry
def test_a_budget_in_money_for_an_unknown_model_is_refused_before_it_is_called(entry: str, form: str) -> None:
    model = Obedient("my-own-model")
    with pytest.raises(PromptEvaluationError, match=r"model 'my-own-model'.*prices=Prices\(input=") as caught:
        begin(entry, form, model, budget=Budget(max_cost=0.25))
    assert (model.requests, caught.value.phase, caught.value.usage) == ([], "budget", TokenUsage())


def test_own_prices_come_before_the_table() -> None:
    model = Obedient("gpt-6-sol", TokenUsage(1_000_000))
    with pytest.raises(BudgetExceededError, match="spent 6"):
        begin("run", "sync", model, budget=Budget(max_cost=5, prices=Prices(2, 0)))


def failing(kind: str) -> tuple[Any, dict[str, Any]]:
    """A run that fails in its second turn, and its options."""
    first, clock = ModelReply(tool_calls=(ToolCall("c", "wait", "{}"),), usage=TokenUsage(30, 5)), FakeClock()

    @tool
    def wait(context: ToolContext) -> str:
        """Wait."""
        clock.advance(10 if kind == "deadline" else 0)
        if kind == "nested":
            run(prompt(), Obedient(), budget=Budget(max_turns=1))
        return "Done."

    last: Any = {
        "response": ModelReply(text="No.", stop_reason="refusal"),
        "overflow": ModelReply(stop_reason="overflow"),
        "request": PromptEvaluationError("no connection", phase="request"),
    }.get(kind, ModelReply(text="not a number"))
    script = [first, *[last] * 3]
    sections = [MarkdownSection(key="task", title="Task", template="Go.", tools=[wait])]
    template: Any = PromptTemplate(ns="tests", key="failing", sections=sections)
    if kind == "parse":
        template = PromptTemplate[int](ns="tests", key="failing", sections=sections)
    adapter = ScriptedAdapter(script, output_retries=0)
    options = {"deadline": Deadline.after(5, clock)} if kind == "deadline" else {}
    return (Prompt(template), adapter), options


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("deadline", DeadlineExceededError),
        ("nested", BudgetExceededError),
        ("response", PromptEvaluationError),
        ("overflow", ContextOverflowError),
        ("request", PromptEvaluationError),
        ("parse", OutputParseError),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
def test_the_error_of_a_failed_run_has_its_usage(kind: str, error: type[WinkError], is_async: bool) -> None:
    words, options = failing(kind)
    with pytest.raises(error) as caught:
        asyncio.run(run_async(*words, **options)) if is_async else run(*words, **options)
    assert caught.value.usage == TokenUsage(30, 5)
    assert pickle.loads(pickle.dumps(caught.value)).usage == TokenUsage(30, 5)


def test_an_error_that_ended_no_run_has_no_usage() -> None:
    assert WinkError("x").usage is None


class Unclosable:
    def close(self) -> None:
        raise OSError("the disk is full")


def test_an_error_of_the_resources_of_a_failed_run_has_its_usage() -> None:
    @tool
    def touch(context: ToolContext) -> str:
        """Touch."""
        context.resources.get(Unclosable)
        return "Touched."

    resources = ResourceRegistry.of(Binding(Unclosable, lambda resolver: Unclosable()))
    touched = ModelReply(tool_calls=(ToolCall("c", "touch", "{}"),), usage=TokenUsage(3))
    script = [touched, PromptEvaluationError("no connection", phase="request")]
    with pytest.raises(WinkError) as caught:
        run(prompt(touch, resources=resources), ScriptedAdapter(script))
    assert caught.value.usage == TokenUsage(3)


def exchanges(chat: Conversation[Any], form: str, n: int) -> None:
    for _ in range(n):
        if form == "sync":
            chat.send("More.")
        elif form == "async":
            asyncio.run(chat.send_async("More."))
        elif form == "stream":
            drained(chat.stream("More."))
        else:
            asyncio.run(streamed(chat.stream_async, ("More.",), {}))


def answering(model: str = "gpt-6-sol") -> ScriptedAdapter:
    return ScriptedAdapter(lambda request: ModelReply(text="Yes.", usage=TokenUsage(1_000, 10_000)), model=model)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize(
    ("total", "most"),
    [
        (Budget(max_turns=4), 4),
        (Budget(max_total_tokens=44_000), 4),
        (Budget(max_cost=0.4), 4),
        (Budget(max_cost=40, prices=Prices(0, 1_000)), 4),
        (Budget(max_cost=100), None),
    ],
)
def test_a_total_limits_a_conversation_also_after_it_was_restored(
    form: str, restored: bool, total: Budget, most: int | None
) -> None:
    chat = Conversation(prompt(), adapter=answering(), total=total)
    exchanges(chat, form, 3)
    if restored:
        session = Session()
        session.restore(Snapshot.from_json(chat.session.snapshot().to_json()))
        chat = Conversation(prompt(), adapter=answering(), session=session, total=total)
    if most is None:
        exchanges(chat, form, 52)
        return
    exchanges(chat, form, most - 3)
    with pytest.raises(BudgetExceededError, match=r"Total budget of the conversation.*pass total=Budget\(max_"):
        exchanges(chat, form, 1)
    assert chat.usage == TokenUsage(1_000 * most, 10_000 * most)


def test_a_total_stops_an_exchange_in_the_middle_and_counts_tool_calls_of_all() -> None:
    model = Obedient()
    chat = Conversation(prompt(), adapter=model, budget=Budget(max_turns=4), total=Budget(max_tool_calls=6))
    for limit in ("max_turns", "max_tool_calls", "max_tool_calls"):
        with pytest.raises(BudgetExceededError) as caught:
            chat.send("Go.")
        assert caught.value.limit == limit
    assert len(model.requests) == 4 + 3 + 1


@pytest.mark.parametrize("restored", [False, True])
def test_whoever_stops_each_exchange_in_time_does_not_pass_a_total(restored: bool) -> None:
    model = answering()
    chat = Conversation(prompt(), adapter=model, total=Budget(max_turns=4))
    for _ in range(4):
        with chat.stream("Go.") as events:
            next(events)
        if restored:
            session = Session()
            session.restore(Snapshot.from_json(chat.session.snapshot().to_json()))
            chat = Conversation(prompt(), adapter=model, session=session, total=Budget(max_turns=4))
    with pytest.raises(BudgetExceededError, match="Total budget of the conversation"):
        chat.send("Go.")
    assert len(model.requests) == 4


@pytest.mark.parametrize("name", ["budget", "total"])
def test_a_conversation_refuses_what_is_no_budget_when_it_is_made(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} must be a Budget, got 5"):
        Conversation(prompt(), adapter=Obedient(), **{name: 5})  # type: ignore[arg-type]


def test_a_resumed_run_goes_on_counting() -> None:
    model, session = Obedient(), Session()
    with pytest.raises(BudgetExceededError):
        model.evaluate(prompt(), session=session)
    with pytest.raises(BudgetExceededError, match="max_turns=50, spent 50"):
        model.resume(prompt(), session=session)
    with pytest.raises(BudgetExceededError, match="max_turns=60, spent 60") as caught:
        model.resume(prompt(), session=session, budget=Budget(max_turns=60))
    assert (len(model.requests), caught.value.usage) == (60, TokenUsage(600, 120))
