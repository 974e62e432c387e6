"""A template as an MCP server: calls that need approval are asked about at the host, by elicitation."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, MCPError

from tests.mcp.servers import python_parameters
from tests.waiting import forever, until_async
from weakincentives import PromptTemplate, ScriptedAdapter, call, delegate
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.guards import Guard, Outcome, Refuse
from weakincentives.mcp import serve
from weakincentives.prompt import MarkdownSection, Prompt, Tool, ToolContext, tool
from weakincentives.runtime import CallDecided, PendingCall, ToolInvoked
from weakincentives.session import Session
from weakincentives.telemetry import RunStore

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
SECRET = "sk-ant-api03-" + "a1B2" * 24
OUTSIDE: list[str] = []
KEYS: list[str] = []


@tool(approval="effects", changes=(Filesystem,))
def pay(amount: int, *, context: ToolContext) -> str:
    "Pay an amount."
    OUTSIDE.append(f"paid {amount}")
    KEYS.append(context.idempotency_key)
    assert context.filesystem is not None
    context.filesystem.write("log.txt", f"paid {amount} with {SECRET}\n", mode="append")
    return f"paid {amount}"


@tool(approval="call")
def send(text: str) -> str:
    "Send a text."
    OUTSIDE.append(f"sent {text}")
    return "sent"


@tool
def look(*, context: ToolContext) -> str:
    "Look at the log."
    assert context.filesystem is not None
    return context.filesystem.read("log.txt").replace(f" with {SECRET}", "")


@tool
def change(*, context: ToolContext) -> str:
    "Change the log."
    assert context.filesystem is not None
    context.filesystem.write("log.txt", "changed\n", mode="append")
    return "changed"


ask: Tool[Any, Any] = Tool(name="ask", description="Ask the user.", handler=None)


def prompt() -> Prompt[None]:
    section = MarkdownSection(key="bills", title="Bills", template="Pay.", tools=[pay, send, look, change, ask])
    files = InMemoryFilesystem({"log.txt": "begin\n"})
    return Prompt(ns="tests", key="bills", sections=[section]).bind(resources={Filesystem: files})


@pytest.fixture(autouse=True)
def _clean() -> None:
    OUTSIDE.clear()
    KEYS.clear()


class Person:
    """Answers the questions of a server in this order, and remembers them."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[types.ElicitRequestFormParams] = []

    async def __call__(self, context: Any, params: Any) -> Any:
        self.asked.append(params)
        answer = self.answers.pop(0)
        if callable(answer):
            answer = await answer()
        if isinstance(answer, types.ErrorData):
            return answer
        action, content = answer if isinstance(answer, tuple) else (answer, None)
        return types.ElicitResult(action=action, content=content)


def text(result: Any) -> tuple[str, bool]:
    (block,) = result.content
    return str(block.text), bool(result.is_error)


MODES = pytest.mark.parametrize("mode", ["auto", "legacy"])
NOT_DECIDED = "Not decided: the user went on before a person decided about this call. It had no effect."


@MODES
@pytest.mark.parametrize(
    ("action", "result", "log", "outside"),
    [
        ("accept", ("paid 5", False), "begin\npaid 5\n", ["paid 5"]),
        ("decline", ("A person denied this call", True), "begin\n", ["paid 5"]),
        ("cancel", (NOT_DECIDED, True), "begin\n", ["paid 5"]),
    ],
)
async def test_the_client_asks_with_the_diff_and_the_call_happens_as_decided(
    mode: str, action: str, result: tuple[str, bool], log: str, outside: list[str]
) -> None:
    person, session = Person(action), Session()
    server = serve(prompt(), session=session).server
    async with Client(server, mode=mode, elicitation_callback=person) as client:
        assert text(await client.call_tool("pay", {"amount": 5})) == result
        assert text(await client.call_tool("look", {})) == (log, False)
    (asked,) = person.asked
    words = "Make these changes? They were tried and taken back."
    assert asked.message.startswith(f"{words}\n\npay\n  amount: 5\n\nlog.txt\n@@ ")
    assert "+paid 5 with [redacted]" in asked.message and SECRET not in asked.message
    assert asked.requested_schema == {"type": "object", "properties": {}, "required": []}
    assert outside == OUTSIDE and len(set(KEYS)) == 1
    (invoked,) = (event for event in session[ToolInvoked] if event.name == "pay")
    (decided,) = session[CallDecided].all()
    assert (invoked.success, decided.call_id) == (action == "accept", invoked.call_id)
    assert decided.decision == {"accept": "approve", "decline": "deny", "cancel": "undecided"}[action]
    assert session[PendingCall].all() == ()


@MODES
@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (("accept", {"answer": "blue"}), ("blue", False)),
        (("accept", {"answer": "  "}), (NOT_DECIDED, True)),
        ("decline", ("A person denied this call", True)),
    ],
)
async def test_a_tool_without_a_handler_is_a_form_with_an_answer(mode: str, answer: Any, result: Any) -> None:
    person = Person(answer)
    async with Client(serve(prompt()).server, mode=mode, elicitation_callback=person) as client:
        assert text(await client.call_tool("ask", {})) == result
    assert person.asked[0].requested_schema["required"] == ["answer"]


@MODES
@pytest.mark.parametrize("name", ["pay", "send", "ask"])
async def test_a_client_that_cannot_ask_gets_an_error_that_names_the_call_and_nothing_runs(
    mode: str, name: str
) -> None:
    arguments: dict[str, Any] = {"pay": {"amount": 5}, "send": {"text": SECRET}, "ask": {}}[name]
    async with Client(serve(prompt()).server, mode=mode) as client:
        told, failed = text(await client.call_tool(name, arguments))
        assert text(await client.call_tool("look", {})) == ("begin\n", False)
    assert failed and told.startswith(f"Tool '{name}' was not run: {name}({{")
    assert "needs a person's decision, and this client cannot ask for one: it has no elicitation" in told
    assert OUTSIDE == [] and SECRET not in told


@MODES
async def test_a_base_that_changed_while_the_person_thought_is_asked_about_again(mode: str) -> None:
    async def think() -> str:
        await client.call_tool("change", {})
        return "accept"

    person = Person(think, "accept")
    async with Client(serve(prompt()).server, mode=mode, elicitation_callback=person) as client:
        assert text(await client.call_tool("pay", {"amount": 5})) == ("paid 5", False)
        assert text(await client.call_tool("look", {})) == ("begin\nchanged\npaid 5\n", False)
    first, second = (asked.message for asked in person.asked)
    assert " changed\n+paid 5" in second and " changed" not in first
    assert OUTSIDE == ["paid 5", "paid 5"]


@MODES
async def test_questions_do_not_hold_up_each_other(mode: str) -> None:
    seen = asyncio.Event()

    async def first() -> str:
        await seen.wait()
        return "accept"

    async def second() -> str:
        seen.set()
        return "decline"

    person = Person(first, second)
    async with Client(serve(prompt()).server, mode=mode, elicitation_callback=person) as client:
        one = asyncio.ensure_future(client.call_tool("send", {"text": "a"}))
        await until_async(lambda: person.asked)
        assert text(await client.call_tool("send", {"text": "b"})) == ("A person denied this call", True)
        assert text(await one) == ("sent", False)
    assert OUTSIDE == ["sent a"]


@MODES
async def test_an_answer_that_a_guard_refuses_is_asked_for_again(mode: str) -> None:
    class NoCards(Guard):
        def before_run(self, words: str, *, context: Any) -> Outcome | None:
            return Refuse("No cards.") if "4111" in words else None

    section = MarkdownSection(key="bills", title="Bills", template="Pay.", tools=[ask])
    guarded: Prompt[None] = Prompt(ns="tests", key="bills", sections=[section], guards=[NoCards()])
    person = Person(("accept", {"answer": "4111"}), ("accept", {"answer": "Cash."}))
    async with Client(serve(guarded).server, mode=mode, elicitation_callback=person) as client:
        assert text(await client.call_tool("ask", {})) == ("Cash.", False)
    assert "NoCards refused the user's words of 'bills': No cards." in person.asked[1].message


@MODES
async def test_a_call_that_is_cancelled_at_its_question_leaves_nothing(mode: str) -> None:
    thinking = asyncio.Event()

    async def think() -> str:
        thinking.set()
        await forever()
        return "accept"

    person, session = Person(think), Session()
    server = serve(prompt(), session=session).server
    async with Client(server, mode=mode, elicitation_callback=person) as client:
        call = asyncio.ensure_future(client.call_tool("pay", {"amount": 5}))
        await thinking.wait()
        call.cancel()
        assert text(await client.call_tool("look", {})) == ("begin\n", False)
    # In the newer protocol the server learns it when the host leaves.
    assert OUTSIDE == ["paid 5"]
    assert [event.decision for event in session[CallDecided]] == ["undecided"]


async def test_a_client_that_fails_to_ask_leaves_the_call_undone() -> None:
    person = Person(types.ErrorData(code=-32603, message="no window"))
    async with Client(serve(prompt()).server, mode="legacy", elicitation_callback=person) as client:
        assert text(await client.call_tool("pay", {"amount": 5})) == (NOT_DECIDED, True)
    assert OUTSIDE == ["paid 5"]


async def test_an_answer_counts_once_and_only_for_the_call_that_was_asked_about() -> None:
    accept = {"approval": types.ElicitResult(action="accept")}
    async with Client(serve(prompt()).server, elicitation_callback=Person()) as client:

        async def call(amount: int, **more: Any) -> Any:
            return await client.session.call_tool("pay", {"amount": amount}, allow_input_required=True, **more)

        asked = await call(5)
        assert isinstance(asked, types.InputRequiredResult)
        state = asked.request_state
        for amount, forged in ((6, state), (5, "guessed"), (5, f"{state}x")):
            with pytest.raises(MCPError, match="This question is not open, or was about another call"):
                await call(amount, request_state=forged, input_responses=accept)
        again = await call(5, request_state=state, input_responses={"other": types.ElicitResult(action="accept")})
        assert isinstance(again, types.InputRequiredResult) and again.request_state == state
        assert text(await call(5, request_state=state, input_responses=accept)) == ("paid 5", False)
        with pytest.raises(MCPError, match="This question is not open"):
            await call(5, request_state=state, input_responses=accept)
        assert text(await client.call_tool("look", {})) == ("begin\npaid 5\n", False)


async def test_a_host_that_leaves_questions_open_has_decided_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weakincentives.mcp.host.MAX_QUESTIONS", 2)
    async with Client(serve(prompt()).server, elicitation_callback=Person()) as client:
        for amount in (1, 2, 3):
            await client.session.call_tool("pay", {"amount": amount}, allow_input_required=True)
        assert text(await client.call_tool("look", {})) == ("begin\n", False)
    assert OUTSIDE == ["paid 1", "paid 2", "paid 3"]


@MODES
@pytest.mark.parametrize(
    ("answers", "outside", "result"),
    [
        (("accept", "decline"), ["sent a"], ("Both done.", False)),
        (("accept", "accept"), ["sent a", "sent b"], ("Both done.", False)),
        (("cancel",), [], ("'clerk' was stopped: the user went on before its calls were decided.", True)),
        (None, [], None),
    ],
)
async def test_calls_of_a_run_inside_a_call_are_asked_about_too(
    mode: str, answers: Any, outside: list[str], result: Any
) -> None:
    inner = MarkdownSection(key="send", title="Send", template="Send.", tools=[send])
    template: PromptTemplate[None] = PromptTemplate(ns="tests", key="clerk", sections=[inner])
    model = ScriptedAdapter([[call("send", text="a"), call("send", text="b")], "Both done."])
    clerk = delegate(template, description="A clerk.", adapter=model)
    section = MarkdownSection(key="desk", title="Desk", template="Ask the clerk.", tools=[clerk, look])
    files = InMemoryFilesystem({"log.txt": "begin\n"})
    made: Prompt[None] = Prompt(ns="tests", key="desk", sections=[section]).bind(resources={Filesystem: files})
    person = None if answers is None else Person(*answers)
    async with Client(serve(made).server, mode=mode, elicitation_callback=person) as client:
        told, failed = text(await client.call_tool("clerk", {}))
        assert text(await client.call_tool("look", {})) == ("begin\n", False)
    assert outside == OUTSIDE
    if result is None:
        assert failed and 'send({"text": "a"}) needs a person\'s decision, and this client cannot ask' in told
    else:
        assert (told, failed) == result


@MODES
async def test_over_stdio_it_is_recorded(mode: str, tmp_path: Path) -> None:
    file = tmp_path / "runs.db"
    words = ["-m", "weakincentives.cli", "mcp", "serve", "tests.mcp.test_approval:prompt", "--record", str(file)]
    server = python_parameters(*words, cwd=ROOT)
    async with Client(server, mode=mode, elicitation_callback=Person("accept", "decline")) as client:
        assert text(await client.call_tool("pay", {"amount": 5})) == ("paid 5", False)
        assert text(await client.call_tool("send", {"text": "x"})) == ("A person denied this call", True)
    with RunStore(file) as store:
        (run,) = store.list_runs()
        asked = [event.event.tool for event in store.of_kinds(run.run_id, ["PendingCall"])]
        decided = [event.event.decision for event in store.of_kinds(run.run_id, ["CallDecided"])]
    assert (run.status, asked, decided) == ("ok", ["pay", "send"], ["approve", "deny"])
    assert SECRET.encode() not in file.read_bytes()
