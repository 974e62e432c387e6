"""Tool calls are transactions: what a failed call did is undone, what earlier calls did stays."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.errors import BudgetExceededError
from weakincentives.filesystem import Filesystem
from weakincentives.limits import Budget
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    PromptValidationError,
    Tool,
    ToolContext,
    ToolResult,
    WorkspaceSection,
    tool,
)
from weakincentives.resources import Binding, ResourceRegistry, Scope
from weakincentives.runtime import Conversation, Message, PromptEvaluationError, ToolInvoked
from weakincentives.session import Session, Snapshot


@dataclass(frozen=True)
class Noted:
    text: str


@tool
def note(text: str, fail: str = "", *, context: ToolContext) -> ToolResult[None]:
    """Write a note to session and file."""
    context.session.dispatch(Noted(text))
    assert context.filesystem is not None
    context.filesystem.write(f"{text}.txt", text)
    if fail == "raise":
        raise RuntimeError("disk full")
    return ToolResult(f"noted {text}", success=fail != "result")


def prompt(*tools: Tool[Any, Any], **kwargs: Any) -> Prompt[None]:
    task = MarkdownSection(title="Task", key="task", template="Go.", tools=tools)
    return Prompt(PromptTemplate(ns="tests", key="tx", sections=[task, WorkspaceSection()], **kwargs))


def run(bound: Prompt[Any], *lines: Any, session: Session | None = None) -> Session:
    session = session or Session()
    with ScriptedAdapter([*lines, "done"]) as adapter:
        adapter.evaluate(bound, session=session)
    return session


def results(session: Session) -> list[tuple[bool, str]]:
    return [(m.success, m.text) for m in session[Message].all() if m.role == "tool"]


@pytest.mark.parametrize("how", ["raise", "result"])
def test_a_failed_call_is_undone_and_earlier_successes_stay(how: str) -> None:
    bound = prompt(note)
    with bound.resources:
        session = run(bound, [call("note", text="kept"), call("note", text="lost", fail=how)])
        files = bound.resources.get(Filesystem)
        assert files.exists("kept.txt")
        assert not files.exists("lost.txt")
    assert session[Noted].all() == (Noted("kept"),)
    assert [(e.success, e.rolled_back) for e in session[ToolInvoked].all()] == [(True, False), (False, True)]


def test_the_model_reads_why_a_call_failed() -> None:
    session = run(prompt(note), call("note", text="x", fail="raise"))
    assert results(session) == [(False, "Tool 'note' failed: RuntimeError: disk full")]


def test_argument_errors_list_every_field_at_once() -> None:
    session = run(prompt(note), call("note", txt="x", fail=3))
    ((success, message),) = results(session)
    assert not success
    assert all(part in message for part in ("text: missing", "txt: unknown field", "fail: ", "expected str"))


@pytest.mark.parametrize("arguments", ["{", "[]", "null", '"text"'])
def test_malformed_arguments_go_back_to_the_model(arguments: str) -> None:
    from weakincentives.runtime import ToolCall

    session = run(prompt(note), ToolCall("c1", "note", arguments))
    ((success, message),) = results(session)
    assert (success, message.startswith("Invalid arguments for 'note': ")) == (False, True)


def test_an_unknown_tool_is_answered_with_the_known_ones() -> None:
    session = run(prompt(note), call("nota"))
    assert results(session) == [(False, "Unknown tool 'nota'. Available tools: note.")]


def test_arguments_for_a_tool_without_any_are_refused() -> None:
    bare = Tool(name="bare", description="Bare.", handler=lambda params, *, context: ToolResult("ok"))
    session = run(prompt(bare), call("bare"), call("bare", x=1))
    assert [success for success, _ in results(session)] == [True, False]


def test_a_validation_error_inside_a_handler_goes_to_the_model() -> None:
    @tool
    def strict() -> None:
        """Strict."""
        raise PromptValidationError("not like that")

    assert results(run(prompt(strict), call("strict"))) == [
        (False, "Tool 'strict' failed: PromptValidationError: not like that")
    ]


def test_a_handler_that_returns_no_result_is_the_programmers_mistake() -> None:
    wrong = Tool(name="wrong", description="Wrong.", handler=lambda params, *, context: 3)  # type: ignore[arg-type,return-value]
    with pytest.raises(PromptEvaluationError, match="'wrong' returned a int; return a ToolResult") as caught:
        run(prompt(wrong), call("wrong"))
    assert caught.value.phase == "tool"


class Unreadable:
    def render(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize("value", [Unreadable(), object()])
def test_a_result_that_cannot_be_shown_is_undone_compensated_and_logged(value: Any) -> None:
    undone: list[str] = []

    def handle(params: Any, *, context: ToolContext) -> ToolResult[Any]:
        context.session.dispatch(Noted("kept?"))
        return ToolResult("Done.", value)

    def compensate(params: Any, *, context: ToolContext) -> None:
        undone.append(context.call_id)

    session = Session()
    odd = Tool(name="odd", description="Odd.", handler=handle, compensate=compensate)
    with pytest.raises(PromptEvaluationError, match="result of tool 'odd' cannot be shown to the model") as caught:
        ScriptedAdapter([call("odd", call_id="1")]).evaluate(prompt(odd), session=session)
    assert (caught.value.prompt_name, undone, session[Noted].all()) == ("tx", ["1"], ())
    assert [(event.success, event.rolled_back) for event in session[ToolInvoked]] == [(False, True)]


def test_async_handlers_work_in_sync_runs_on_one_event_loop() -> None:
    loops: list[Any] = []

    @tool
    async def wait() -> str:
        """Wait."""
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())
        return "waited"

    before = set(threading.enumerate())
    session = run(prompt(wait), call("wait"), call("wait"))
    assert results(session) == [(True, "waited")] * 2
    assert loops[0] is loops[1]
    assert set(threading.enumerate()) <= before


def test_sync_evaluation_works_inside_a_running_event_loop() -> None:
    @tool
    async def wait() -> str:
        """Wait."""
        return "waited"

    async def main() -> Session:
        return run(prompt(wait), call("wait"))

    assert results(asyncio.run(main())) == [(True, "waited")]


def test_sync_and_async_handlers_work_in_async_runs() -> None:
    @tool
    async def wait(*, context: ToolContext) -> str:
        """Wait."""
        context.session.dispatch(Noted("async"))
        return "waited"

    session = Session()
    adapter = ScriptedAdapter([call("wait"), call("note", text="sync"), "done"])
    asyncio.run(adapter.evaluate_async(prompt(wait, note), session=session))
    assert session[Noted].all() == (Noted("async"), Noted("sync"))


@pytest.mark.parametrize("is_async", [False, True])
def test_a_handler_that_runs_out_of_items_fails_and_does_not_hang(is_async: bool) -> None:
    @tool
    def first() -> str:
        """First of nothing."""
        return next(iter(()))

    adapter, session = ScriptedAdapter([call("first"), "done"]), Session()
    if is_async:
        asyncio.run(asyncio.wait_for(adapter.evaluate_async(prompt(first), session=session), 5))
    else:
        adapter.evaluate(prompt(first), session=session)
    ((success, message),) = results(session)
    assert not success
    assert "StopIteration" in message


@pytest.mark.parametrize("is_async", [False, True])
def test_read_only_calls_of_one_turn_run_side_by_side(is_async: bool) -> None:
    together = threading.Barrier(2, timeout=5)

    @tool(read_only=True)
    def meet() -> str:
        """Wait for the other call."""
        together.wait()
        return "met"

    adapter, session = ScriptedAdapter([[call("meet"), call("meet")], "done"]), Session()
    if is_async:
        asyncio.run(adapter.evaluate_async(prompt(meet), session=session))
    else:
        adapter.evaluate(prompt(meet), session=session)
    assert results(session) == [(True, "met")] * 2


def test_other_calls_run_in_order() -> None:
    session = run(prompt(note), [call("note", text=str(n)) for n in range(5)])
    assert [event.text for event in session[Noted].all()] == ["0", "1", "2", "3", "4"]


@dataclass
class Opened:
    log: list[str] = field(default_factory=list)

    def close(self) -> None:
        self.log.append("closed")


def test_tool_call_resources_live_for_one_call() -> None:
    made: list[Opened] = []

    def make(resolver: Any) -> Opened:
        made.append(Opened())
        return made[-1]

    @tool
    def use(*, context: ToolContext) -> str:
        """Use it twice."""
        same = context.resources.get(Opened) is context.resources.get(Opened)
        return str(same)

    resources = ResourceRegistry.of(Binding(Opened, make, scope=Scope.TOOL_CALL))
    session = run(prompt(use, resources=resources), call("use"), call("use"))
    assert results(session) == [(True, "True")] * 2
    assert [opened.log for opened in made] == [["closed"], ["closed"]]


def charging(compensate: Any, *, fail: bool) -> Tool[Any, Any]:
    def charge(params: None, *, context: ToolContext) -> ToolResult[None]:
        if fail:
            raise TimeoutError("no answer")
        return ToolResult("charged")

    return Tool(name="charge", description="Charge.", handler=charge, compensate=compensate)


def test_compensation_runs_once_when_the_call_fails_and_not_otherwise() -> None:
    undone: list[str] = []

    def undo(params: None, *, context: ToolContext) -> None:
        undone.append(context.call_id)

    run(prompt(charging(undo, fail=False)), call("charge"))
    assert undone == []
    session = run(prompt(charging(undo, fail=True)), call("charge", call_id="c7"))
    assert undone == ["c7"]
    assert session[ToolInvoked].all()[-1].compensation == "done"


def test_a_compensation_that_fails_is_reported() -> None:
    async def undo(params: None, *, context: ToolContext) -> None:
        raise ConnectionError("bank is down")

    session = run(prompt(charging(undo, fail=True)), call("charge"))
    ((_, message),) = results(session)
    assert "no answer" in message
    assert "Compensation of 'charge' failed: ConnectionError: bank is down" in message


class Unclosable:
    def close(self) -> None:
        raise OSError("stuck")


def test_a_call_whose_resources_do_not_close_is_undone_and_compensated_once() -> None:
    undone: list[str] = []

    def handle(params: Any, *, context: ToolContext) -> ToolResult[None]:
        context.resources.get(Unclosable)
        context.session.dispatch(Noted("lost"))
        return ToolResult("Sent.")

    def compensate(params: Any, *, context: ToolContext) -> None:
        undone.append(context.call_id)

    send = Tool(name="send", description="Send.", handler=handle, compensate=compensate)
    bindings = ResourceRegistry.of(Binding(Unclosable, lambda resolver: Unclosable(), scope=Scope.TOOL_CALL))
    session = run(prompt(send, resources=bindings), call("send", call_id="c1"))
    assert (undone, session[Noted].all()) == (["c1"], ())
    assert "Tool 'send' failed to close its resources: Could not close Unclosable: stuck" in results(session)[0][1]


def test_no_call_is_still_at_work_when_another_ended_the_run() -> None:
    @tool(read_only=True)
    async def look(n: int) -> str:
        """Look."""
        await asyncio.sleep(0)
        return str(n)

    async def run_out() -> int:
        session = Session()
        adapter = ScriptedAdapter([[call("look", n=n) for n in range(3)]])
        with pytest.raises(BudgetExceededError):
            await adapter.evaluate_async(prompt(look), session=session, budget=Budget(max_tool_calls=2))
        return len(session[ToolInvoked])

    assert asyncio.run(run_out()) == 2


def test_handlers_see_the_limits_and_the_call() -> None:
    seen: list[ToolContext] = []

    @tool
    def look(*, context: ToolContext) -> str:
        """Look."""
        seen.append(context)
        return "seen"

    bound = prompt(look)
    session = run(bound, call("look", call_id="c1"))
    assert (seen[0].call_id, seen[0].session, seen[0].budget) == ("c1", session, Budget())
    assert (seen[0].prompt.template, seen[0].prompt.params) == (bound.template, bound.params)


def test_every_call_has_a_key_of_its_own_even_if_the_provider_repeats_its_ids() -> None:
    keys: list[str] = []

    @tool
    def pay(*, context: ToolContext) -> str:
        """Pay."""
        keys.append(context.idempotency_key)
        return "paid"

    for _ in range(2):
        twice = [call("pay", call_id="call_1"), call("pay", call_id="call_1"), "Paid."]
        chat = Conversation(prompt(pay), adapter=ScriptedAdapter(twice * 2))
        chat.send("Pay twice.")
        chat.send("Again.")
    assert len(set(keys)) == len(keys) == 8


def test_a_call_keeps_its_key_when_it_is_compensated_and_when_its_run_is_resumed() -> None:
    keys: list[str] = []
    snapshots: list[Snapshot] = []

    def pay(params: None, *, context: ToolContext) -> ToolResult[None]:
        keys.append(context.idempotency_key)
        snapshots.append(context.session.snapshot())
        raise ConnectionError("no answer")

    def undo(params: None, *, context: ToolContext) -> None:
        keys.append(context.idempotency_key)

    bound = prompt(Tool(name="pay", description="Pay.", handler=pay, compensate=undo))
    elsewhere = run(bound, call("pay"))
    elsewhere.restore(Snapshot.from_json(snapshots[0].to_json()), preserve_logs=False)
    ScriptedAdapter(["done"]).resume(bound, session=elsewhere)
    assert keys == [keys[0]] * 4
