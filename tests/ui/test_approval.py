"""A page decides about tool calls in either protocol, at once, after a reload, or at another process."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.rounds import rounds
from tests.ui.visitors import VISITORS, AgUiVisitor, VercelVisitor
from weakincentives import (
    Conversation,
    MarkdownSection,
    Prompt,
    ScriptedAdapter,
    Snapshot,
    Tool,
    ToolContext,
    call,
    delegate,
    reducer,
    tool,
)
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import PromptTemplate, SectionVisibility
from weakincentives.runtime import ApprovalNeeded, CallDecided, PendingCall
from weakincentives.ui import StaleThreadError, ThreadLimits, Threads, ui_messages

PATHS = pytest.mark.parametrize("path", ["vercel", "ag-ui"])
NEEDS = pytest.mark.parametrize("needs", ["call", "effects"])
SECRET = "ghp_" + "a1B2" * 9


@dataclass(frozen=True)
class Paid:
    amount: int
    password: str = "swordfish"


@dataclass(frozen=True)
class Balance:
    total: int = 100

    @reducer(on=Paid)
    def pay(self, event: Paid) -> Balance:
        return replace(self, total=self.total - event.amount)


class Shop:
    """An application with a store, whose processes share its files and its model."""

    def __init__(self, *script: Any, needs: Any = "effects", **options: Any) -> None:
        self.model = ScriptedAdapter([*script])
        self.files = InMemoryFilesystem({"log.txt": "begin\n"})
        self.outside: list[str] = []
        self.rows: dict[str, tuple[str, int]] = {}
        self._options = options

        @tool(approval=needs, changes=(Filesystem, Balance))
        def pay(amount: int, *, context: ToolContext) -> str:
            "Pay an amount."
            self.outside.append(f"pay {amount}")
            context.session.dispatch(Paid(amount))
            context.resources.get(Filesystem).write("log.txt", f"paid {amount} with {SECRET}\n", mode="append")
            return f"paid {amount}"

        @tool
        def note(text: str) -> str:
            "Note something."
            return f"noted {text}"

        ask = Tool[None, str](name="ask_user", description="Ask the user.", handler=None)
        section = MarkdownSection(key="pay", title="Pay", template="Pay bills.", tools=[pay, note, ask])
        closed = MarkdownSection(
            key="more", title="More", template="x", summary="s", visibility=SectionVisibility.SUMMARY, tools=[]
        )
        self._prompt: Prompt[None] = Prompt(ns="tests", key="web", sections=[section, closed])
        self._prompt.bind(resources={Filesystem: self.files})

    def process(self) -> Threads:
        return Threads(
            lambda *_: Conversation(self._prompt, adapter=self.model), self._load, self._save, **self._options
        )

    def _load(self, thread: str) -> Any:
        found = self.rows.get(thread)
        return None if found is None else (Snapshot.from_json(found[0], types=[Paid]), found[1])

    def _save(self, thread: str, chat: Conversation[Any], version: int | None) -> int:
        if self.rows.get(thread, (None, None))[1] != version:
            raise StaleThreadError(thread)
        self.rows[thread] = chat.session.snapshot().to_json(), (version or 0) + 1
        return self.rows[thread][1]

    def chat(self, thread: str = "t1") -> Conversation[Any]:
        """The conversation as it is stored."""
        chat: Conversation[Any] = Conversation(self._prompt, adapter=self.model)
        chat.session.restore(self._load(thread)[0])
        return chat

    def state(self) -> tuple[int, str]:
        balance = self.chat().session[Balance].latest() or Balance()
        return balance.total, self.files.read("log.txt").replace(SECRET, "*")


BEFORE = (100, "begin\n")


async def elsewhere(way: str, shop: Shop, visitor: Any) -> None:
    """Between two requests: nothing, a reload, or a reload at another process."""
    if way == "process":
        visitor.connect(shop.process())
    if way != "stream":
        before = dict(visitor.states), {name: each["id"] for name, each in visitor.questions.items()}
        await visitor.reload()
        assert (visitor.states, {name: each["id"] for name, each in visitor.questions.items()}) == before


# Vercel's protocol has no edits.
DECISIONS = [*product(VISITORS, ["approve", "deny", "answer"]), ("ag-ui", "edit")]


@NEEDS
@pytest.mark.parametrize("way", ["stream", "reload", "process"])
@pytest.mark.parametrize(("path", "decision"), DECISIONS)
async def test_a_page_decides_and_the_exchange_goes_on(path: str, needs: str, way: str, decision: str) -> None:
    name = "ask_user" if decision == "answer" else "pay"
    arguments = {} if decision == "answer" else {"amount": 5}
    shop = Shop([call("note", text="n", call_id="n"), call(name, call_id="c", **arguments)], "Done.", needs=needs)
    visitor = VISITORS[path](shop.process())
    assert await visitor.say("Go.") == ""
    asks = decision == "answer" and path == "vercel"
    assert visitor.states == {"n": "output-available", "c": "input-available" if asks else "approval-requested"}
    assert shop.state() == BEFORE and len(shop.model.requests) == 1
    await elsewhere(way, shop, visitor)
    match decision:
        case "approve":
            assert await visitor.decide("c", True) == ""
        case "deny":
            assert await visitor.decide("c", False, "too much") == ""
        case "edit":
            assert await visitor.resolve("c", {"approved": True, "editedArgs": {"amount": 7}}) == ""
            if needs == "effects":
                assert visitor.states["c"] == "approval-requested" and shop.state() == BEFORE
                assert visitor.shown("c")["arguments"] == {"amount": 7}
                await elsewhere(way, shop, visitor)
                assert await visitor.decide("c", True) == ""
        case "answer" if path == "vercel":
            assert await visitor.answer("c", "blue") == ""
        case "answer":
            assert await visitor.resolve("c", {"answer": "blue"}) == ""
    assert (visitor.text, visitor.questions, visitor.unanswered) == ("Done.", {}, [])
    assert visitor.states["c"] == ("output-denied" if decision == "deny" else "output-available")
    result = shop.model.requests[-1].messages[-1]
    paid = {"approve": 5, "edit": 7}.get(decision)
    assert shop.state() == (BEFORE if paid is None else (100 - paid, f"begin\npaid {paid} with *\n"))
    assert (result.call_id, result.success) == ("c", decision != "deny")
    expected = {"approve": "paid 5", "deny": "A person denied this call: too much", "edit": "paid 7", "answer": "blue"}
    assert result.text.endswith(expected[decision])
    ran = {"approve": ["pay 5"], "deny": ["pay 5"][needs == "call" :], "edit": ["pay 5", "pay 7"][needs == "call" :]}
    assert shop.outside == ran.get(decision, [])
    await elsewhere("reload", shop, visitor)
    assert visitor.states["n"] == "output-available"


@pytest.mark.parametrize("way", ["stream", "reload", "process"])
@pytest.mark.parametrize("tells", [True, False], ids=["declared again", "not declared again"])
async def test_a_tool_of_the_page_is_answered_by_the_page(way: str, tells: bool) -> None:
    shop = Shop([call("page.pick", call_id="c", color="red"), call("note", text="n", call_id="n")], "Done.")
    visitor = AgUiVisitor(shop.process())
    schema = {"type": "object", "properties": {"color": {"type": "string"}}, "required": ["color"]}
    visitor.tools = ({"name": "pick", "description": "Pick a color.", "parameters": schema},)
    assert await visitor.say("Go.") == ""
    assert (visitor.unanswered, visitor.questions) == (["c"], {})
    assert b'"toolCallName": "pick"' in visitor.received and b"page.pick" not in visitor.received
    offered = {each.name: each for each in shop.model.requests[-1].tools}
    assert offered["page.pick"].description == "Pick a color." and offered["page.pick"].schema == schema
    await elsewhere(way, shop, visitor)
    if not tells:
        visitor.tools = ()
    assert await visitor.answer("c", '{"hex": "#f00"}') == ""
    assert (visitor.text, visitor.states) == ("Done.", {"c": "output-available", "n": "output-available"})
    request = shop.model.requests[-1]
    assert {message.call_id: message.text for message in request.messages if message.role == "tool"} == {
        "c": '{"hex": "#f00"}',
        "n": "noted n",
    }
    assert ("page.pick" in {each.name for each in request.tools if each.name not in request.revoked}) is tells


async def test_tools_of_a_page_are_there_for_one_run_and_hide_none_of_the_servers() -> None:
    shop = Shop(call("note", text="n", call_id="1"), "One.", "Two.", "Three.")
    visitor = AgUiVisitor(shop.process())
    visitor.tools = ({"name": "note", "description": "Mine."}, {"name": "read_section", "parameters": None})
    assert await visitor.say("Go.") == ""
    assert visitor.states == {"1": "output-available"}
    mine = {"page.note", "page.read_section"}
    assert mine < {each.name for each in shop.model.requests[-1].tools}
    assert [each.description for each in shop.model.requests[-1].tools if each.name == "note"] == ["Note something."]
    visitor.tools = ()
    assert await visitor.say("And now?") == ""
    assert mine.isdisjoint(each.name for each in shop.model.requests[-1].tools)
    visitor.tools = ({"name": "pick"},)
    assert await visitor.say("And now?") == ""
    assert "page.pick" in {each.name for each in shop.model.requests[-1].tools}


@pytest.mark.parametrize("dynamic", [True, False])
async def test_tools_of_a_page_may_come_and_go_on_every_adapter(dynamic: bool) -> None:
    shop, script = Shop(), ["One.", call("page.pick", call_id="c"), "Two.", "Three."]
    shop.model = ScriptedAdapter(script, supports_dynamic_tools=dynamic)
    visitor = AgUiVisitor(shop.process())
    assert await visitor.say("Go.") == ""
    visitor.tools = ({"name": "pick"},)
    assert await visitor.say("Pick.") == ""
    assert visitor.unanswered == ["c"]
    assert await visitor.answer("c", "red") == ""
    visitor.tools = ()
    assert await visitor.say("Go.") == ""
    assert visitor.text == "Three."


@pytest.mark.parametrize(
    ("tools", "problem"),
    [
        ([{"name": f"t{n}"} for n in range(21)], "400 A page may declare at most 20 tools, got 21: 't0', 't1'"),
        ([{"name": "a", "description": "x" * 50_000}], "413 The tools of a page may have at most 50,000 characters"),
        ([{"name": "a"}, {"name": "a"}], "400 The tools of a page must have different names."),
        ([{"name": "a", "parameters": {"type": "string"}}], "400 The tool 'a' of the page cannot be offered"),
        ([{"name": "a", "parameters": [1]}], "400 The tool 'a' of the page cannot be offered: Expected `object"),
        ([{"name": "a\n"}], "400 The tool 'a\\n' of the page cannot be offered"),
        ([{"name": "a" * 200}], "of the page cannot be offered"),
        ([{"description": "a"}], "400 Object missing required field `name`"),
    ],
)
async def test_tools_of_a_page_are_bounded_and_checked(tools: Any, problem: str) -> None:
    visitor = AgUiVisitor(Shop("Hello.").process())
    visitor.tools = tools
    assert problem in await visitor.say("Hi.")
    visitor.tools = ()
    assert await visitor.say("Hi.") == ""


# Forged, stale and repeated decisions.


async def asked(path: str, *more: Any, **options: Any) -> tuple[Shop, Any]:
    shop = Shop(call("pay", amount=5, call_id="c"), "Done.", *more, **options)
    visitor = VISITORS[path](shop.process())
    assert await visitor.say("Go.") == ""
    return shop, visitor


NOT_WAITING = (
    "409 No call waits for this decision: it was made, or the question has changed; reload the page to see it."
)


def untouched(shop: Shop) -> bool:
    waiting = [call.call_id for call in shop.chat().pending]
    return (waiting, shop.state(), shop.outside, len(shop.model.requests)) == (["c"], BEFORE, ["pay 5"], 1)


@PATHS
@pytest.mark.parametrize("approved", ["true", 1, "yes", None, [True], {"approved": True}])
async def test_only_true_and_false_are_verdicts(path: str, approved: Any) -> None:
    shop, visitor = await asked(path)
    assert (await visitor.decide("c", approved)).startswith("400 Expected `bool`, got ")
    assert untouched(shop)
    assert await visitor.decide("c", True) == ""
    assert shop.state()[0] == 95


@PATHS
@pytest.mark.parametrize("question", ["c", "", "0" * 32, "other thread"])
async def test_a_decision_about_another_question_changes_nothing(path: str, question: str) -> None:
    shop, visitor = await asked(path)
    if question == "other thread":  # With the same call.
        question = (await asked(path))[1].questions["c"]["id"]
    visitor.questions["c"]["id"] = question
    assert await visitor.decide("c", True) == NOT_WAITING
    assert untouched(shop)


@PATHS
async def test_a_decision_is_void_if_the_same_call_is_made_again(path: str) -> None:
    shop, visitor = await asked(path, call("pay", amount=5, call_id="c"), "Sorry.")
    first = visitor.questions["c"]
    assert await visitor.decide("c", False) == ""
    visitor.states.clear()
    assert await visitor.say("Again.") == ""
    visitor.questions["c"] = first
    assert await visitor.decide("c", True) == NOT_WAITING
    assert shop.state() == BEFORE


@PATHS
async def test_a_decision_counts_once(path: str) -> None:
    shop, visitor = await asked(path)
    question = visitor.questions["c"]
    assert await visitor.decide("c", True) == ""
    for approved in (True, False):
        visitor.questions = {"c": question}
        assert await visitor.decide("c", approved) == NOT_WAITING
    assert shop.outside == ["pay 5"] and len(shop.model.requests) == 2
    assert [(event.decision, event.by) for event in shop.chat().session[CallDecided].all()] == [("approve", "")]


@PATHS
async def test_an_approval_of_what_was_shown_before_is_void_once_the_effects_are_others(path: str) -> None:
    shop, visitor = await asked(path)
    first = visitor.questions["c"]
    shop.files.write("log.txt", "other\n")
    assert await visitor.decide("c", True) == ""
    assert visitor.states["c"] == "approval-requested" and shop.files.read("log.txt") == "other\n"
    second, visitor.questions["c"] = visitor.questions["c"], first
    assert second["id"] != first["id"]
    assert await visitor.decide("c", True) == NOT_WAITING
    visitor.questions["c"] = second
    assert await visitor.decide("c", True) == ""
    assert shop.files.read("log.txt").startswith("other\npaid 5")


async def test_arguments_that_a_page_changes_in_its_history_are_not_used() -> None:
    shop, visitor = await asked("vercel")
    forged = {"input": {"amount": 99}, "toolName": "note", "type": "tool-note", "rawInput": '{"amount": 99}'}
    approval = {"id": visitor.questions["c"]["id"], "approved": True}
    assert await visitor.tell(visitor.part("other", "approval-responded", approval=approval, **forged)) == ""
    assert shop.state()[0] == 95


@PATHS
async def test_a_result_that_a_page_makes_up_is_refused(path: str) -> None:
    shop, visitor = await asked(path)
    refused = "400 A call of 'pay' must be approved or denied; its result is the server's."
    assert await visitor.answer("c", "paid 5000") == refused
    if path == "ag-ui":
        refused = "400 A call of 'pay' must be approved or denied, not answered."
        assert await visitor.resolve("c", {"answer": "paid 5000"}) == refused
    assert untouched(shop)


@PATHS
async def test_a_request_that_decides_nothing_is_refused(path: str) -> None:
    shop, visitor = await asked(path)
    assert await visitor.answer("unknown", "x") == NOT_WAITING
    assert untouched(shop)


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (None, "Expected `object`, got `null`"),
        (True, "Expected `object`, got `bool`"),
        ({}, "missing required field `approved`"),
        ({"approved": True, "editedargs": {"amount": 1}}, "unknown field `editedargs`"),
        ({"approved": True, "editedArgs": [1]}, "Expected `object | null`, got `array`"),
        ({"approved": True, "editedArgs": {"amount": "x"}}, "The edited arguments do not fit 'pay': amount: "),
        ({"approved": True, "editedArgs": {"amount": 1, "to": "me"}}, "The edited arguments do not fit 'pay': to: "),
        ({"approved": False, "editedArgs": {"amount": 1}}, "Edited arguments need `approved` to be true"),
        ({"approved": False, "reason": 7}, "Expected `str | null`, got `int`"),
        ({"answer": 7}, "Expected `str`, got `int`"),
    ],
)
async def test_a_bad_payload_is_an_error_and_no_denial(payload: Any, problem: str) -> None:
    shop, visitor = await asked("ag-ui")
    found = await visitor.resolve("c", payload)
    assert found.startswith("400 ") and problem in found
    assert untouched(shop)


async def test_arguments_that_a_form_sends_back_unchanged_are_no_edit() -> None:
    shop, visitor = await asked("ag-ui")
    assert await visitor.resolve("c", {"approved": True, "editedArgs": {"amount": 5}}) == ""
    assert shop.model.requests[-1].messages[-1].text == "paid 5"


@PATHS
async def test_contradictions_are_refused(path: str) -> None:
    shop, visitor = await asked(path)
    question = visitor.questions["c"]["id"]
    if path == "vercel":
        approvals = [{"id": question, "approved": verdict} for verdict in (True, False)]
        problem = await visitor.tell(*(visitor.part("c", "approval-responded", approval=each) for each in approvals))
    else:
        entry = {"interruptId": question, "status": "resolved"}
        problem = await visitor.resume(*({**entry, "payload": {"approved": v}} for v in (True, False)))
    assert "is answered twice" in problem and untouched(shop)


@PATHS
async def test_reasons_and_answers_are_limited_as_messages_are(path: str) -> None:
    limits = ThreadLimits(message_length=100)
    shop, visitor = await asked(path, limits=limits)
    assert (await visitor.decide("c", False, "x" * 101)).startswith("413 A message may have at most 100 characters")
    assert untouched(shop)
    asking = Shop(call("ask_user", call_id="q"), "Done.", limits=limits)
    visitor = VISITORS[path](asking.process())
    await visitor.say("Go.")
    assert (await visitor.answer("q", "x" * 101)).startswith("413 An answer may have at most 100 characters, got 101")
    assert len(asking.model.requests) == 1


@PATHS
async def test_decisions_count_as_requests(path: str) -> None:
    shop, visitor = await asked(path, limits=ThreadLimits(per_minute=2))
    visitor.questions["x"] = {"id": "x"}
    assert await visitor.decide("x", True) == NOT_WAITING
    assert await visitor.decide("c", True) == "429 Too many messages; wait a moment."
    assert untouched(shop)


@PATHS
async def test_the_owner_of_a_thread_decides_and_nobody_else(path: str) -> None:
    owners = iter(["ann", "bob", "ann"])
    shop, visitor = await asked(path, owner=lambda request: next(owners))
    assert await visitor.decide("c", True) == NOT_WAITING
    assert await visitor.decide("c", True) == ""
    (decided,) = shop.chat("ann/t1").session[CallDecided].all()
    assert (decided.decision, decided.by) == ("approve", "ann")


@pytest.mark.parametrize(
    ("fields", "told", "state"),
    [
        ({"output": {"hex": "#f00"}}, '{"hex": "#f00"}', "output-available"),
        ({"output": None}, "null", "output-available"),
        ({"state": "output-error", "errorText": "no camera"}, "A person denied this call: no camera", "output-denied"),
        ({"state": "output-error"}, "A person denied this call", "output-denied"),
    ],
)
async def test_a_vercel_page_answers_with_data_or_fails(fields: Any, told: str, state: str) -> None:
    shop = Shop([call("note", text="n", call_id="n"), call("ask_user", call_id="c")], "Done.")
    visitor = VercelVisitor(shop.process())
    await visitor.say("Go.")
    text = {"type": "text", "text": "x", "state": "done"}
    history = [text, visitor.part("n", "output-available", output={"shown": [1]})]
    part = {**visitor.part("c", "output-available"), **fields}
    visitor.states["c"] = "output-available"
    assert await visitor.tell({"type": "step-start"}, *history, part) == ""
    assert shop.model.requests[-1].messages[-1].text == told
    await visitor.reload()
    assert visitor.states["c"] == state


# Several calls, and messages over calls that wait.


@PATHS
async def test_some_calls_may_be_decided_before_others(path: str) -> None:
    shop = Shop([call("pay", amount=5, call_id="a"), call("pay", amount=6, call_id="b")], "Done.", needs="call")
    visitor = VISITORS[path](shop.process())
    await visitor.say("Go.")
    assert set(visitor.questions) == {"a", "b"}
    assert await visitor.decide("b", True) == ""
    assert visitor.states == {"a": "approval-requested", "b": "output-available"}
    assert shop.state()[0] == 94 and len(shop.model.requests) == 1
    await elsewhere("reload", shop, visitor)
    assert await visitor.decide("a", False) == ""
    assert visitor.states == {"a": "output-denied", "b": "output-available"}
    assert (visitor.text, shop.outside) == ("Done.", ["pay 6"])


@PATHS
async def test_a_new_message_leaves_calls_undecided_and_a_late_approval_is_refused(path: str) -> None:
    shop, visitor = await asked(path, "Bye.")
    question = visitor.questions["c"]
    assert await visitor.say("Never mind.") == ""
    assert visitor.text == "Done." and shop.state() == BEFORE
    assert shop.outside == ["pay 5"]
    result, said = shop.model.requests[-1].messages[-2:]
    assert result.text.startswith("Not decided") and said.text == "Never mind."
    visitor.questions = {"c": question}
    assert await visitor.decide("c", True) == NOT_WAITING
    await visitor.reload()
    assert visitor.states == {"c": "output-denied"}


@PATHS
async def test_a_message_may_come_with_decisions_and_with_old_ones(path: str) -> None:
    shop = Shop([call("pay", amount=5, call_id="a"), call("pay", amount=6, call_id="b")], "Well.", "Yes.", needs="call")
    visitor = VISITORS[path](shop.process())
    await visitor.say("Go.")
    question = visitor.questions["a"]["id"]
    for text in ("By the way ...", "And?"):
        if path == "vercel":
            part = visitor.part("a", "approval-responded", approval={"id": question, "approved": True})
            *earlier, newest = visitor.user(text)
            messages = [*earlier, {"id": "a1", "role": "assistant", "parts": [part]}, newest]
            assert await visitor.post(messages=messages) == ""
        else:
            entry = {"interruptId": question, "status": "resolved", "payload": {"approved": True}}
            assert await visitor.say(text, resume=[entry]) == ""
    assert shop.outside == ["pay 5"] and shop.state()[0] == 95
    told = [message.text for message in shop.model.requests[1].messages[-3:]]
    assert told[0] == "paid 5" and told[1].startswith("Not decided") and told[2] == "By the way ..."


async def test_a_dismissed_interrupt_is_a_denial_and_before_a_message_no_decision() -> None:
    for with_message in (True, False):
        shop, visitor = await asked("ag-ui")
        entry = {"interruptId": visitor.questions["c"]["id"], "status": "cancelled"}
        assert await (visitor.say("Well?", resume=[entry]) if with_message else visitor.resume(entry)) == ""
        told = [message.text for message in shop.model.requests[-1].messages if message.role == "tool"]
        assert ("Not decided" in told[0]) is with_message
        assert ("A person denied this call: The question was dismissed." in told[0]) is not with_message


@PATHS
async def test_a_repeated_message_leaves_the_calls_waiting(path: str) -> None:
    shop, visitor = await asked(path)
    assert await visitor.say("Go.", again=True) == "409 This message has already been received."
    assert untouched(shop)


@PATHS
async def test_a_second_click_does_not_stop_the_call_that_the_first_has_begun(path: str) -> None:
    started, go = asyncio.Event(), asyncio.Event()

    @tool(approval="call")
    async def work() -> str:
        "Work."
        started.set()
        await go.wait()
        return "worked"

    section = MarkdownSection(key="a", title="A", template="x", tools=[work])
    prompt: Prompt[None] = Prompt(ns="tests", key="slow", sections=[section])
    chat = Conversation(prompt, adapter=ScriptedAdapter([call("work", call_id="c"), "Done."]))
    threads = Threads(lambda *_: chat)
    first, second = VISITORS[path](threads), VISITORS[path](threads)
    await first.say("Go.")
    second.questions = dict(first.questions)
    deciding = asyncio.ensure_future(first.decide("c", True))
    await started.wait()
    assert await second.decide("c", True) == "409 The conversation is being answered; decide when that has ended."
    go.set()
    assert (await deciding, first.text) == ("", "Done.")


@PATHS
async def test_a_failed_answer_after_an_approval_does_not_repeat_the_call(path: str) -> None:
    shop = Shop(call("pay", amount=5, call_id="c"), RuntimeError("down"), "Done.", "Again.")
    visitor = VISITORS[path](shop.process())
    await visitor.say("Go.")
    assert await visitor.decide("c", True) == "This message could not be answered. Please try again."
    assert visitor.states == {"c": "output-available"}
    assert await visitor.say("Well?") == ""
    assert (visitor.text, shop.outside) == ("Done.", ["pay 5"])


@pytest.mark.parametrize("path", ["vercel"])
async def test_another_answer_leaves_calls_undecided(path: str) -> None:
    shop, visitor = await asked(path)
    assert await visitor.say("Go.", again=True, trigger="regenerate-message") == ""
    assert (visitor.text, shop.outside, shop.chat().pending) == ("Done.", ["pay 5"], ())


@PATHS
@pytest.mark.parametrize("answers", [True, False])
async def test_an_id_that_the_provider_gives_again_is_another_call(path: str, answers: bool) -> None:
    name = "ask_user" if answers else "pay"
    arguments = {} if answers else {"amount": 5}
    shop = Shop(call(name, call_id="c", **arguments), call("note", text="n", call_id="c"), "Done.")
    visitor = VISITORS[path](shop.process())
    await visitor.say("Go.")
    before = len(visitor.received)
    assert await (visitor.answer("c", "blue") if answers else visitor.decide("c", True)) == ""
    after = visitor.received[before:]
    assert b"TOOL_CALL_CHUNK" in after or b"tool-input-available" in after
    later = [state for call_id, state in visitor.states.items() if call_id != "c"]
    assert (later, visitor.text) == (["output-available"], "Done.")


async def test_approvals_and_tools_of_the_page_wait_side_by_side() -> None:
    for together in (True, False):
        shop = Shop([call("pay", amount=5, call_id="a"), call("page.pick", call_id="b")], "Done.", needs="call")
        visitor = AgUiVisitor(shop.process())
        visitor.tools = ({"name": "pick"},)
        await visitor.say("Go.")
        assert list(visitor.questions) == ["a"]
        entry = {"interruptId": visitor.questions["a"]["id"], "status": "resolved", "payload": {"approved": True}}
        result = {"id": "r", "role": "tool", "toolCallId": "b", "content": "blue"}
        if together:
            messages = [{"id": "a1", "role": "assistant"}, result]
            assert await visitor.post(messages=messages, resume=[entry], tools=visitor.tools) == ""
        else:
            assert await visitor.resume(entry) == ""
            assert (visitor.unanswered, visitor.text) == (["b"], "")
            assert await visitor.answer("b", "blue") == ""
        assert visitor.text == "Done."
        told = {m.call_id: m.text for m in shop.model.requests[-1].messages if m.role == "tool"}
        assert told == {"a": "paid 5", "b": "blue"}


@PATHS
async def test_results_in_the_history_of_a_page_decide_nothing(path: str) -> None:
    shop = Shop(call("note", text="n", call_id="n"), "One.", RuntimeError("down"), "Two.")
    visitor = VISITORS[path](shop.process())
    await visitor.say("Go.")
    part = visitor.part("n", "output-available", output=None) if path == "vercel" else {}
    history = [
        {"id": "a1", "role": "assistant", "parts": [part]},
        {"id": "r1", "role": "tool", "toolCallId": "n", "content": "Done."},
    ]
    *earlier, newest = visitor.user("And?")
    messages = [*earlier, *(history if path == "ag-ui" else history[:1]), newest]
    assert await visitor.post(messages=messages) == "This message could not be answered. Please try again."
    assert await visitor.post(messages=messages) == "" and visitor.text == "Two."
    assert await visitor.post(messages=messages) == "409 This message has already been received."


@PATHS
@pytest.mark.parametrize("dynamic", [True, False])
async def test_a_typed_answer_comes_after_the_decision_and_after_restarts(path: str, dynamic: bool) -> None:
    @tool(approval="call")
    def act() -> str:
        "Act."
        return "acted"

    sections = [
        MarkdownSection(key="a", title="A", template="x", tools=[act]),
        MarkdownSection(
            key="b",
            title="B",
            template="y",
            summary="z",
            visibility=SectionVisibility.SUMMARY,
            tools=[Tool[None, str](name="look", description="Look.", handler=None)],
        ),
    ]
    calls = [call("act", call_id="1"), call("read_section", section_key="b", call_id="2")]
    script = [calls, call("look", call_id="4"), '{"amount": 7}']
    adapter = ScriptedAdapter(script, supports_dynamic_tools=dynamic)
    chat = Conversation(Prompt[Paid](ns="t", key="typed", sections=sections), adapter=adapter)
    visitor = VISITORS[path](Threads(lambda *_: chat))
    assert await visitor.say("Go.") == ""
    while visitor.questions or visitor.unanswered:
        await visitor.reload()
        (name,) = visitor.questions or visitor.unanswered
        if name != "4":
            assert await visitor.decide(name, True) == ""
        elif path == "ag-ui":
            assert await visitor.resolve(name, {"answer": "seen"}) == ""
        else:
            assert await visitor.answer(name, "seen") == ""
    assert (visitor.text, chat.pending) == ("", ())
    assert b'"amount": 7' in visitor.received and chat.messages[-1].text == '{"amount": 7}'
    results = [message.text for message in chat.messages if message.role == "tool"]
    assert "acted" in results and "seen" in results


@PATHS
@pytest.mark.parametrize("way", ["stream", "reload"])
async def test_calls_of_a_delegated_run_are_decided_with_the_call_that_the_page_knows(path: str, way: str) -> None:
    @tool(approval="call")
    def act(what: str) -> str:
        "Act."
        return f"did {what}"

    child = PromptTemplate[Paid](
        ns="t", key="child", sections=[MarkdownSection(key="a", title="A", template="x", tools=[act])]
    )
    helper = delegate(child, name="helper", description="Help.")
    prompt: Prompt[None] = Prompt(
        ns="t", key="parent", sections=[MarkdownSection(key="a", title="A", template="x", tools=[helper])]
    )
    calls = [call("act", what="one", call_id="1"), call("act", what="two", call_id="2")]
    adapter = ScriptedAdapter([call("helper", call_id="h"), calls, '{"amount": 3}', "Done."])
    chat = Conversation(prompt, adapter=adapter)
    visitor = VISITORS[path](Threads(lambda *_: chat))
    assert await visitor.say("Go.") == ""
    for _ in range(2):
        if not visitor.questions:
            break
        if way == "reload":
            await visitor.reload()
        assert (list(visitor.questions), visitor.states) == (["h"], {"h": "approval-requested"})
        if path == "vercel":
            assert await visitor.decide("h", True) == ""
        else:
            history = await visitor._page.get("threadId=t1")
            entries = json.loads(history[1])["interrupts"]
            payload = {"status": "resolved", "payload": {"approved": True}}
            assert await visitor.resume(*({"interruptId": each["id"], **payload} for each in entries)) == ""
    assert (visitor.text, visitor.states, chat.pending) == ("Done.", {"h": "output-available"}, ())
    told = [message.text for request in adapter.requests for message in request.messages if message.role == "tool"]
    assert {"did one", "did two"} <= set(told)


# What a page sees.


def parts(visitor: Any, *kinds: str) -> list[list[str]]:
    """The lines of the parts of these kinds, as the page draws them."""
    return [[line["text"] for line in part["lines"]] for part in visitor.shown("c")["parts"] if part["kind"] in kinds]


@PATHS
async def test_without_show_a_page_gets_name_arguments_and_paths(path: str) -> None:
    _, visitor = await asked(path)
    for _ in range(2):
        question = visitor.shown("c")
        assert (question["tool"], question["arguments"]) == ("pay", {"amount": 5})
        assert parts(visitor, "call") == [["pay", "  amount: 5"]]
        assert parts(visitor, "file", "slice", "resource", "events") == [["log.txt"]]
        assert question["complete"] is False
        assert question["missing"] == ["What it would change is not shown on this page."]
        assert question["missing"][0] in question["text"]
        await visitor.reload()
    for hidden in (b"Balance", b"Paid", b"swordfish", b"+paid", b"ghp_"):
        assert hidden not in visitor.received


@PATHS
async def test_show_lets_the_effects_through_and_secrets_are_replaced(path: str) -> None:
    _, visitor = await asked(path, show=lambda event: event.name == "pay")
    for _ in range(2):
        question = visitor.shown("c")
        assert parts(visitor, "file")[0][-1] == "+paid 5 with [redacted]"
        assert parts(visitor, "slice") == [["Balance", "  total: 100 -> 95"]]
        assert parts(visitor, "events") == [["It would record:", "+ Paid(amount=5, password='[redacted]')"]]
        (changes,) = [part["changes"] for part in question["parts"] if part["kind"] == "slice"]
        assert changes == [{"kind": "changed", "path": "total", "before": "100", "after": "95"}]
        assert question["missing"] == ["2 values that look like a secret are not shown."]
        assert "+paid 5 with [redacted]" in question["text"]
        assert SECRET.encode() not in visitor.received and b"swordfish" not in visitor.received
        await visitor.reload()


@PATHS
@pytest.mark.parametrize(
    ("show", "shown"),
    [
        (lambda event: {"sum": event.call.params.amount} if isinstance(event, ApprovalNeeded) else False, {"sum": 5}),
        (lambda event: 1 / 0, None),
        (lambda event: event.message, None),
        (lambda event: object(), None),
        (lambda event: False, None),
    ],
)
async def test_show_may_say_it_in_other_words_and_what_fails_hides(path: str, show: Any, shown: Any) -> None:
    _, visitor = await asked(path, show=show)
    assert visitor.shown("c").get("effects") == shown
    assert parts(visitor, "file", "slice", "events") == [["log.txt"]] and not visitor.shown("c")["complete"]
    assert b"+paid" not in visitor.received
    assert await visitor.decide("c", True) == ""


async def test_long_effects_are_shown_whole_or_say_what_is_left_out() -> None:
    @tool(approval="effects", changes=(Balance,))
    def fill(number: int, *, context: ToolContext) -> str:
        "Fill."
        for at in range(number):
            context.session.dispatch(Paid(at, "x " * 500))
        return "filled"

    async def question(number: int) -> Any:
        section = MarkdownSection(key="a", title="A", template="x", tools=[fill])
        prompt: Prompt[None] = Prompt(ns="t", key="k", sections=[section])
        chat = Conversation(prompt, adapter=ScriptedAdapter([call("fill", number=number, call_id="c")]))
        visitor = VercelVisitor(Threads(lambda *_: chat, show=lambda event: True))
        await visitor.say("Go.")
        return visitor.shown("c")

    few, many = await question(100), await question(2_000)
    assert all(f"amount: {at}" in few["text"] for at in range(100))
    assert not many["complete"] and "not shown" in many["text"] and len(json.dumps(many)) < 1_500_000


async def test_the_messages_of_a_conversation_have_its_questions() -> None:
    shop, visitor = await asked("vercel")
    (part,) = [part for part in ui_messages(shop.chat())[-1]["parts"] if part["type"] == "dynamic-tool"]
    assert (part["state"], part["approval"]["id"]) == ("approval-requested", visitor.questions["c"]["id"])
    assert isinstance(shop.chat().pending[0], PendingCall)


async def test_an_interrupt_says_how_to_answer_it() -> None:
    shop = Shop([call("pay", amount=5, call_id="c"), call("ask_user", call_id="q")], "Done.")
    visitor = AgUiVisitor(shop.process())
    await visitor.say("Go.")
    assert {name: sorted(each["responseSchema"]["properties"]) for name, each in visitor.questions.items()} == {
        "c": ["approved", "editedArgs", "reason"],
        "q": ["answer"],
    }
    assert await visitor.resolve("q", {"approved": True}) == "400 A call of 'ask_user' must be answered, not approved."
    entries = [
        {"interruptId": visitor.questions["c"]["id"], "status": "resolved", "payload": {"approved": True}},
        {"interruptId": visitor.questions["q"]["id"], "status": "resolved", "payload": {"answer": "blue"}},
    ]
    assert await visitor.resume(*entries) == ""
    assert visitor.text == "Done."


# Whatever two tabs do, in any order.

ACTIONS = st.one_of(
    st.tuples(st.just("say"), st.integers(0, 1), st.integers(0, 2)),
    st.tuples(st.just("decide"), st.integers(0, 1), st.tuples(st.integers(0, 2), st.booleans())),
    st.tuples(st.just("answer"), st.integers(0, 1), st.integers(0, 2)),
    st.tuples(st.just("repeat"), st.integers(0, 1), st.tuples(st.integers(0, 9), st.booleans())),
    st.tuples(st.sampled_from(["reload", "process"]), st.integers(0, 1), st.none()),
)


class Clerk:
    """A model that makes as many calls as the user's number says, each with an amount and an id of its own."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, request: Any) -> Any:
        newest = request.messages[-1]
        if newest.role != "user" or newest.text == "0":
            return "Done."
        self.made += int(newest.text)
        numbers = range(self.made - int(newest.text) + 1, self.made + 1)
        return [call("pay", amount=number, call_id=f"p{number}") for number in numbers]


async def two_tabs(path: str, needs: str, actions: list[Any]) -> None:
    shop = Shop(needs=needs, limits=ThreadLimits(per_minute=10_000))
    shop.model = ScriptedAdapter(Clerk())
    tabs = [VISITORS[path](shop.process()) for _ in range(2)]
    for tab in tabs:
        tab.strict = False
    seen: list[dict[str, Any]] = []
    await tabs[0].say("1")
    for kind, number, detail in [*actions, ("reload", 0, None), ("say", 0, 0)]:
        tab, before = tabs[number], dict(shop.rows)
        parts = [part for message in ui_messages(shop.chat()) for part in message["parts"]]
        open_ids = [part["approval"]["id"] for part in parts if part.get("state") == "approval-requested"]
        problem, valid = "", True
        if kind == "say":
            valid = [message.key for message in shop.chat().messages if message.by_user][-1] in tab.sent
            problem = await tab.say(str(detail))
        elif kind in ("decide", "repeat") and (known := seen if kind == "repeat" else list(tab.questions.values())):
            at, approved = detail
            question = known[at % len(known)]
            tab.questions[""] = question
            problem, valid = await tab.decide("", approved), question["id"] in open_ids
            tab.questions.pop("", None)
        elif kind == "answer":
            problem, valid = await tab.answer(f"p{detail}", "forged"), False
        elif kind in ("reload", "process"):
            if kind == "process":
                tab.connect(shop.process())
            await tab.reload()
        seen.extend(question for tab in tabs for question in tab.questions.values() if question not in seen)
        assert (problem == "") is valid, (kind, problem)
        if not valid:
            assert problem.startswith("4") and shop.rows == before
    chat = shop.chat()
    approved = [int(event.call_id[1:]) for event in chat.session[CallDecided].all() if event.decision == "approve"]
    paid = [event.amount for event in chat.session[Paid].all()]
    assert set(paid) <= set(approved) and len(paid) == len(set(paid))
    assert shop.state() == (100 - sum(paid), "".join(["begin\n", *(f"paid {amount} with *\n" for amount in paid)]))
    if needs == "call":
        assert paid == approved and shop.outside == [f"pay {amount}" for amount in paid]
    else:
        assert {f"pay {amount}" for amount in paid} <= set(shop.outside), "it was run for the question"
    made = [call.id for message in chat.messages for call in message.tool_calls]
    ended = [message.call_id for message in chat.messages if message.role == "tool"]
    assert (sorted(made), chat.pending) == (sorted(ended), ())


@PATHS
@NEEDS
@hypothesis.settings(max_examples=rounds(10, 40))
@hypothesis.given(actions=st.lists(ACTIONS, max_size=12))
def test_whatever_two_tabs_decide_each_call_happens_as_it_was_approved_or_not_at_all(
    path: str, needs: str, actions: list[Any]
) -> None:
    asyncio.run(two_tabs(path, needs, actions))
