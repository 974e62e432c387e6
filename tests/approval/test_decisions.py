"""A person decides about tool calls: before they run, or with what they would change."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.approval.bank import Balance, Paid
from weakincentives import (
    Answer,
    Approve,
    Conversation,
    Deny,
    Edit,
    MarkdownSection,
    Prompt,
    PromptEvaluationError,
    PromptTemplate,
    PromptValidationError,
    ScriptedAdapter,
    Session,
    Snapshot,
    Tool,
    ToolContext,
    ToolResult,
    call,
    run,
    run_async,
    tool,
)
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.guards import Ask, Guard, Replace
from weakincentives.prompt import CollapseSection, SectionVisibility
from weakincentives.resources import Binding, ResourceRegistry, Scope, TransactionRefusedError
from weakincentives.runtime import (
    ApprovalNeeded,
    CallDecided,
    Completed,
    MainLoop,
    PendingCall,
    RunEnded,
    ToolInvoked,
    UndeclaredChangesError,
)

OUTSIDE: list[str] = []
FILES: list[InMemoryFilesystem] = []


def compensated(params: Any, *, context: ToolContext) -> None:
    OUTSIDE.append("undone")


def tools(approval: Any, *, outside: bool = False) -> list[Tool[Any, Any]]:
    @tool(approval=approval, compensate=compensated if outside else None, changes=(Filesystem, Balance))
    def pay(amount: int, *, context: ToolContext) -> str:
        "Pay an amount."
        OUTSIDE.append(f"pay {amount}")
        context.session.dispatch(Paid(amount))
        files = context.filesystem
        assert files is not None
        files.write("log.txt", f"paid {amount}\n", mode="append")
        return f"paid {amount}"

    @tool
    def note(text: str, *, context: ToolContext) -> str:
        "Write a note."
        files = context.filesystem
        assert files is not None
        files.write("notes.txt", text)
        return "noted"

    return [pay, note]


def prompt_with(approval: Any, *, outside: bool = False) -> Prompt[None]:
    section = MarkdownSection(key="pay", title="Pay", template="Pay bills.", tools=tools(approval, outside=outside))
    FILES.append(InMemoryFilesystem({"log.txt": "begin\n"}))
    return Prompt(ns="tests", key="approval", sections=[section]).bind(resources={Filesystem: FILES[-1]})


@pytest.fixture(autouse=True)
def _clean() -> None:
    OUTSIDE.clear()


def state(session: Session) -> tuple[Any, ...]:
    """The state of the session, and of the files of the last prompt."""
    written = {path: FILES[-1].read(path) for path in FILES[-1].glob("**")}
    return (session[Balance].latest() or Balance()).total, session[Paid].all(), written


BEFORE = (100, (), {"log.txt": "begin\n"})
AFTER = (95, (Paid(5),), {"log.txt": "begin\npaid 5\n"})


@pytest.mark.parametrize(("needs", "outside"), [("call", False), ("call", True), ("effects", False)])
def test_a_call_waits_and_then_happens_as_it_was_decided(needs: str, outside: bool) -> None:
    for decision in (Approve(by="ann"), Deny("too much"), Edit({"amount": 7}), Answer("later")):
        OUTSIDE.clear()
        prompt, session = prompt_with(needs, outside=outside), Session()
        model = ScriptedAdapter([call("pay", amount=5), "Done."])
        first = run(prompt, model, session=session)
        (pending,) = first.pending
        assert (pending.tool, pending.arguments, pending.needs) == ("pay", '{"amount": 5}', needs)
        assert pending.params.amount == 5
        assert state(session) == BEFORE
        assert session[RunEnded].latest().status == "waiting"  # type: ignore[union-attr]
        assert ([] if needs == "call" else ["pay 5"]) == OUTSIDE
        if needs == "effects":
            assert "+paid 5" in pending.text and pending.effects is not None
            assert pending.effects.events == (Paid(5),)
        second = run(prompt, model, session=session, decisions={pending.call_id: decision})
        if needs == "effects" and isinstance(decision, Edit):
            (again,) = second.pending
            assert (again.arguments, again.call_id) == ('{"amount": 7}', pending.call_id)
            assert state(session) == BEFORE
            second = run(prompt, model, session=session, decisions={pending.call_id: Approve()})
        assert (second.text, second.pending) == ("Done.", ())
        result = model.requests[-1].messages[-1]
        expected = {
            Approve: (AFTER, "paid 5", True),
            Deny: (BEFORE, "A person denied this call: too much", False),
            Edit: ((93, (Paid(7),), {"log.txt": "begin\npaid 7\n"}), None, True),
            Answer: (BEFORE, "later", True),
        }[type(decision)]
        found, text, success = expected
        assert state(session) == found
        assert result.success is success
        if text is not None:
            assert result.text == text
        else:
            assert result.text.startswith('A person changed the arguments of this call to {"amount": 7}.')
            assert result.text.endswith("paid 7")
        made = [entry for entry in OUTSIDE if entry != "undone"]
        if needs == "call":
            assert made == {Approve: ["pay 5"], Edit: ["pay 7"]}.get(type(decision), [])
            assert "undone" not in OUTSIDE
        else:
            assert made == (["pay 5", "pay 7"] if isinstance(decision, Edit) else ["pay 5"])
        (invoked,) = session[ToolInvoked].all()
        assert invoked.call_id == pending.call_id
        decided = session[CallDecided].all()[0]
        assert (decided.decision, decided.by) == (type(decision).__name__.lower(), decision.by)


@pytest.mark.parametrize("needs", ["call", "effects"])
def test_other_calls_of_the_turn_run_and_nothing_is_sent_until_all_are_decided(needs: str) -> None:
    prompt, session = prompt_with(needs), Session()
    model = ScriptedAdapter([[call("pay", amount=5), call("note", text="n"), call("pay", amount=6)], "Done."])
    first = run(prompt, model, session=session)
    assert [each.params.amount for each in first.pending] == [5, 6]
    assert state(session)[2]["notes.txt"] == "n"
    one, two = (each.call_id for each in first.pending)
    assert run(prompt, model, session=session, decisions={}).pending == first.pending
    assert model.resume(prompt, session=session).pending == first.pending
    part = run(prompt, model, session=session, decisions={two: Approve()})
    if needs == "effects":
        # It was shown as it would be after the first.
        (_, again) = part.pending
        assert again.effects is not None and again.effects.slices[0].before == (Balance(100),)
        part = run(prompt, model, session=session, decisions={two: Approve()})
    assert [each.call_id for each in part.pending] == [one]
    assert len(model.requests) == 1
    assert session[Balance].latest() == Balance(94)
    last = run(prompt, model, session=session, decisions={one: Deny()})
    if needs == "effects":
        assert last.text == "Done."
    results = [message for message in model.requests[-1].messages if message.role == "tool"]
    assert sorted(message.call_id for message in results) == sorted({one, two, *(m.call_id for m in results)})
    assert len(results) == 3


@pytest.mark.parametrize("stored", [False, True])
def test_effects_of_one_turn_on_the_same_things_are_shown_and_decided_together(stored: bool) -> None:
    prompt, session = prompt_with("effects"), Session()
    calls = [call("pay", amount=amount) for amount in (5, 6, 7)]
    model = ScriptedAdapter([calls, "Done."])
    response = run(prompt, model, session=session)
    shown = [pending.effects.slices[0] for pending in response.pending if pending.effects]
    assert [(each.before[0].total, each.after[0].total) for each in shown] == [(100, 95), (95, 89), (89, 82)]
    assert state(session) == BEFORE
    if stored:
        text = session.snapshot().to_json()
        session = Session(session_id=session.session_id)
        session.restore(Snapshot.from_json(text, types=[Paid]))
    decisions = {pending.call_id: Approve() for pending in response.pending}
    assert run(prompt, model, session=session, decisions=decisions).text == "Done."
    assert state(session) == (82, (Paid(5), Paid(6), Paid(7)), {"log.txt": "begin\npaid 5\npaid 6\npaid 7\n"})
    assert OUTSIDE == ["pay 5", "pay 6", "pay 7"]


def test_after_a_denial_of_one_the_effects_that_were_shown_on_top_of_it_are_asked_about_once_more() -> None:
    prompt, session = prompt_with("effects"), Session()
    calls = [call("pay", amount=amount) for amount in (5, 6, 7)]
    model = ScriptedAdapter([calls, "Done."])
    first, second, third = run(prompt, model, session=session).pending
    decisions = {first.call_id: Approve(), second.call_id: Deny("no"), third.call_id: Approve()}
    (again,) = run(prompt, model, session=session, decisions=decisions).pending
    assert again.call_id == third.call_id and again.effects is not None
    assert again.effects.slices[0].before == (Balance(95),)
    assert state(session) == AFTER
    assert run(prompt, model, session=session, decisions={again.call_id: Approve()}).text == "Done."
    assert session[Balance].latest() == Balance(88)


def test_a_base_that_changed_makes_the_handler_run_again_and_the_person_is_asked_again() -> None:
    prompt, session = prompt_with("effects"), Session()
    model = ScriptedAdapter([call("pay", amount=5), "Done."])
    (pending,) = run(prompt, model, session=session).pending
    session.dispatch(Paid(1))
    (again,) = run(prompt, model, session=session, decisions={pending.call_id: Approve()}).pending
    assert OUTSIDE == ["pay 5", "pay 5"]
    assert again.effects is not None and again.effects.slices[0].before == (Balance(99),)
    assert session[Balance].latest() == Balance(99)
    assert run(prompt, model, session=session, decisions={pending.call_id: Approve()}).text == "Done."
    assert session[Balance].latest() == Balance(94)
    assert OUTSIDE == ["pay 5", "pay 5"]


@pytest.mark.parametrize("decision", [Deny("no"), Answer("later")], ids=["deny", "answer"])
def test_an_edited_call_that_does_not_happen_says_nothing_of_its_arguments(decision: Any) -> None:
    prompt, session = prompt_with("effects"), Session()
    model = ScriptedAdapter([call("pay", amount=5), "Done."])
    (pending,) = run(prompt, model, session=session).pending
    (again,) = run(prompt, model, session=session, decisions={pending.call_id: Edit({"amount": 7})}).pending
    assert again.edited
    run(prompt, model, session=session, decisions={pending.call_id: decision})
    told = {Deny: "A person denied this call: no", Answer: "later"}[type(decision)]
    assert model.requests[-1].messages[-1].text == told
    assert state(session) == BEFORE


def test_a_pending_call_survives_its_process() -> None:
    prompt, session = prompt_with("effects"), Session()
    (pending,) = run(prompt, ScriptedAdapter([call("pay", amount=5)]), session=session).pending
    text = session.snapshot().to_json()
    later = Session(session_id=session.session_id)
    later.restore(Snapshot.from_json(text, types=[Paid]))
    assert later[PendingCall].all() == (pending,)
    other = prompt_with("effects")
    done = run(other, ScriptedAdapter(["Done."]), session=later, decisions={pending.call_id: Approve()})
    assert done.text == "Done."
    assert state(later) == AFTER
    assert OUTSIDE == ["pay 5"]


@pytest.mark.parametrize(("kind", "name"), [(Approve, "by"), (Deny, "reason"), (Edit, "by"), (Answer, "text")])
def test_the_texts_of_a_decision_are_texts(kind: Any, name: str) -> None:
    given = {"arguments": {}} if kind is Edit else {"text": ""} if kind is Answer else {}
    with pytest.raises(TypeError, match=f"{kind.__name__} takes {name} as a str, got 5"):
        kind(**(given | {name: 5}))


@pytest.mark.parametrize(
    ("decisions", "problem"),
    [
        ({"nope": Approve()}, r"No call 'nope' waits for a decision; open calls: '.*' \(pay\)"),
        ({"$": "yes"}, r"must be Approve\(\), Deny"),
        ({"$": True}, r"must be Approve\(\), Deny"),
        ([Approve()], "decisions must map call ids"),
        ({"$": Edit({"amount": "x"})}, "The edit of call .* does not fit 'pay': amount"),
        ({"$": Edit({"other": 1})}, "does not fit 'pay'"),
        ({"$": Edit("{}")}, "Edit takes the arguments as a mapping"),
        ({5: Approve()}, r"decisions must map call ids to decisions, got .*; write decisions="),
    ],
)
def test_a_wrong_decision_is_an_error_and_nothing_is_lost(decisions: Any, problem: str) -> None:
    prompt, session = prompt_with("effects"), Session()
    model = ScriptedAdapter([[call("pay", amount=5), call("pay", amount=6)], "Done."])
    first = run(prompt, model, session=session)
    one, two = (each.call_id for each in first.pending)
    if isinstance(decisions, dict):
        decisions = {two: Approve(), **{one if key == "$" else key: value for key, value in decisions.items()}}
    with pytest.raises((PromptEvaluationError, TypeError), match=problem):
        run(prompt, model, session=session, decisions=decisions)
    assert session[PendingCall].all() == first.pending
    assert state(session) == BEFORE
    decided = {one: Approve(), two: Deny()}
    assert run(prompt, model, session=session, decisions=decided).text == "Done."
    with pytest.raises(PromptEvaluationError, match=r"No call .* waits for a decision; open calls: none"):
        run(prompt, model, session=session, decisions={one: Approve()})


def test_a_new_run_over_waiting_calls_is_refused_by_name() -> None:
    prompt, session = prompt_with("call"), Session()
    model = ScriptedAdapter([call("pay", amount=5)])
    first = run(prompt, model, session=session)
    with pytest.raises(PromptEvaluationError, match=r"calls that wait for a decision: '.*' \(pay\); pass decisions"):
        run(prompt, model, session=session)
    assert session[PendingCall].all() == first.pending


@pytest.mark.parametrize("needs", ["call", "effects"])
def test_a_conversation_decides_or_goes_on(needs: str) -> None:
    script = [call("pay", amount=5), "Paid.", call("pay", amount=6), "You said no more.", "Fine."]
    model = ScriptedAdapter(script)
    chat = Conversation(prompt_with(needs), adapter=model)
    (pending,) = chat.send("Pay 5.").pending
    assert chat.pending == (pending,)
    assert chat.decide({pending.call_id: Approve()}).text == "Paid."
    assert chat.pending == ()
    (late,) = chat.send("Pay 6.").pending
    assert chat.send("No, do not.").text == "You said no more."
    result, said = model.requests[-1].messages[-2:]
    assert (result.role, result.call_id, said.text) == ("tool", late.call_id, "No, do not.")
    assert result.text.startswith("Not decided: the user went on")
    assert chat.session[Balance].latest() == Balance(95)
    assert (["pay 5"] if needs == "call" else ["pay 5", "pay 6"]) == OUTSIDE
    assert chat.pending == ()
    assert chat.send("Thanks.").text == "Fine."


@pytest.mark.parametrize("needs", ["call", "effects"])
@pytest.mark.parametrize("dynamic", [True, False])
def test_a_call_that_waits_outlives_the_restart_of_its_exchange(needs: str, dynamic: bool) -> None:
    closed = MarkdownSection(
        key="more", title="More", template="x", summary="s", visibility=SectionVisibility.SUMMARY, tools=tools(None)[1:]
    )
    pay = MarkdownSection(key="pay", title="Pay", template="Pay bills.", tools=tools(needs)[:1])
    prompt: Prompt[None] = Prompt(ns="tests", key="restart", sections=[pay, closed])
    prompt.bind(resources={Filesystem: InMemoryFilesystem({"log.txt": "begin\n"})})
    script = [[call("pay", amount=5), call("read_section", section_key="more")], call("note", text="n"), "Done."]
    chat = Conversation(prompt, adapter=(model := ScriptedAdapter(script, supports_dynamic_tools=dynamic)))
    (pending,) = chat.send("Go.").pending
    assert chat.decide({pending.call_id: Approve()}).text == "Done."
    told = [message.text for message in model.requests[-1].messages if message.role == "tool"]
    assert {"paid 5", "noted"} <= set(told) and len(told) == 3
    assert OUTSIDE == ["pay 5"]


def test_a_message_may_come_with_the_decisions_and_results_come_first() -> None:
    model = ScriptedAdapter([[call("pay", amount=5), call("pay", amount=6)], "Well."])
    chat = Conversation(prompt_with("effects"), adapter=model)
    one, _ = (each.call_id for each in chat.send("Pay.").pending)
    assert chat.send("By the way ...", decisions={one: Approve()}).text == "Well."
    first, second, said = model.requests[-1].messages[-3:]
    assert (first.text, said.text) == ("paid 5", "By the way ...")
    assert second.text.startswith("Not decided")
    assert chat.session[Balance].latest() == Balance(95)


def test_a_stream_ends_with_the_calls_that_wait() -> None:
    prompt, session = prompt_with("effects"), Session()
    model = ScriptedAdapter([call("pay", amount=5), "Done."])
    with MainLoop().stream(prompt, session=session, adapter=model) as events:
        seen = list(events)
    assert isinstance(seen[-2], ApprovalNeeded) and isinstance(seen[-1], Completed)
    assert seen[-1].response.pending == (seen[-2].call,)
    decisions = {seen[-2].call.call_id: Approve()}
    with MainLoop().stream(prompt, session=session, adapter=model, decisions=decisions) as events:
        seen = list(events)
    assert seen[-1].response.text == "Done."
    assert state(session) == AFTER


def test_async_runs_wait_and_decide() -> None:
    async def work() -> None:
        prompt, session = prompt_with("effects"), Session()
        model = ScriptedAdapter([call("pay", amount=5), "Done."])
        (pending,) = (await run_async(prompt, model, session=session)).pending
        done = await run_async(prompt, model, session=session, decisions={pending.call_id: Approve()})
        assert done.text == "Done."
        assert state(session) == AFTER

    asyncio.run(work())


def test_a_rule_decides_for_each_call_with_the_typed_params_and_the_session() -> None:
    def rule(params: Any, *, session: Session) -> Any:
        return "call" if params.amount > 10 or session[Paid].all() else None

    prompt, session = prompt_with(rule), Session()
    model = ScriptedAdapter([call("pay", amount=5), call("pay", amount=6), "Done."])
    (pending,) = run(prompt, model, session=session).pending
    assert pending.params.amount == 6
    assert session[Balance].latest() == Balance(95)


@pytest.mark.parametrize("rule", [lambda params: 1 / 0, lambda params: "yes", lambda params: True, lambda params: ""])
def test_a_rule_that_fails_lets_nothing_run(rule: Any) -> None:
    prompt, session = prompt_with(rule), Session()
    model = ScriptedAdapter([call("pay", amount=5), "Done."])
    assert run(prompt, model, session=session).text == "Done."
    assert OUTSIDE == []
    assert "Tool 'pay' was not run, because its approval rule failed" in model.requests[-1].messages[-1].text


def test_a_rule_is_asked_once() -> None:
    asked: list[int] = []

    def rule(params: Any) -> Any:
        asked.append(params.amount)
        return "call" if len(asked) == 1 else None

    prompt, session = prompt_with(rule), Session()
    model = ScriptedAdapter([call("pay", amount=5), "Done."])
    (pending,) = run(prompt, model, session=session).pending
    assert run(prompt, model, session=session, decisions={pending.call_id: Deny()}).text == "Done."
    assert (asked, OUTSIDE) == ([5], [])


def test_a_handler_that_fails_or_changes_nothing_asks_nobody() -> None:
    @tool(approval="effects", changes=(Balance,))
    def fail(context: ToolContext) -> str:
        "Fail."
        context.session.dispatch(Paid(1))
        raise RuntimeError("broken")

    @tool(approval="effects", changes=(Filesystem, Balance))
    def look() -> str:
        "Look."
        return "seen"

    section = MarkdownSection(key="t", title="T", template="Go.", tools=[fail, look])
    prompt, session = Prompt(ns="tests", key="quiet", sections=[section]), Session()
    prompt.bind(resources={Filesystem: InMemoryFilesystem()})
    model = ScriptedAdapter([[call("fail"), call("look")], "Done."])
    assert run(prompt, model, session=session).text == "Done."
    failed, unchanged = session[ToolInvoked].all()
    assert (failed.success, failed.unchanged) == (False, ())
    assert (unchanged.success, unchanged.unchanged) == (True, ("Filesystem", "Balance"))
    assert session[Paid].all() == ()


class Register:
    """A resource with a whole state."""

    def __init__(self) -> None:
        self.rows: tuple[str, ...] = ()

    def snapshot(self) -> tuple[str, ...]:
        return self.rows

    def restore(self, rows: tuple[str, ...]) -> None:
        self.rows = rows


class Unsaved:
    """A resource without snapshots."""


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ((Filesystem, Register), "it changed Balance, which it does not declare"),
        ((Balance, Register), "it changed Filesystem, which it does not declare"),
        ((Filesystem, Balance), "it changed Register, which it does not declare"),
        ((PendingCall,), "it changed Balance, Filesystem, Register, which it does not declare"),
    ],
)
def test_a_change_of_more_than_was_declared_is_undone_and_named(changes: Any, named: str) -> None:
    @tool(approval="effects", changes=changes)
    def act(context: ToolContext) -> str:
        "Act."
        context.session.dispatch(Paid(1))
        assert context.filesystem is not None
        context.filesystem.write("a.txt", "new")
        context.resources.get(Register).restore(("row",))
        return "done"

    register, files, session = Register(), InMemoryFilesystem({"a.txt": "old"}), Session()
    session[Balance].seed(Balance(50))
    prompt: Prompt[None] = Prompt(
        ns="tests", key="undeclared", sections=[MarkdownSection(key="t", title="T", template="Go.", tools=[act])]
    )
    prompt.bind(resources={Filesystem: files, Register: register})
    model = ScriptedAdapter([call("act"), "Done."], tool_errors="tell")
    response = run(prompt, model, session=session)
    assert (response.pending, response.text) == ((), "Done.")
    text = model.requests[-1].messages[-1].text
    assert named in text and "Write changes=(" in text and "approval='call' if it acts outside" in text
    assert (session[Paid].all(), session[Balance].latest()) == ((), Balance(50))
    assert (files.read("a.txt"), register.rows) == ("old", ())
    with pytest.raises(UndeclaredChangesError, match=named):
        run(prompt, ScriptedAdapter([call("act"), "Done."]))


def test_a_transaction_is_not_opened_before_a_person_has_agreed() -> None:
    opened: list[str] = []

    @contextmanager
    def unit_of_work() -> Iterator[list[str]]:
        opened.append("begin")
        yield opened

    @tool(approval="effects", changes=(Balance,))
    def act(context: ToolContext) -> str:
        "Act."
        context.session.dispatch(Paid(1))
        context.resources.get(list).append("row")
        return "done"

    section = MarkdownSection(key="t", title="T", template="Go.", tools=[act])
    registry = ResourceRegistry.of(Binding(list, lambda resolver: unit_of_work(), scope=Scope.TOOL_CALL))
    prompt = Prompt[None](ns="tests", key="transaction", sections=[section]).bind(resources=registry)
    session = Session()
    with pytest.raises(TransactionRefusedError, match="list cannot be opened"):
        run(prompt, ScriptedAdapter([call("act"), "Done."]), session=session)
    assert (session[PendingCall].all(), session[Paid].all(), opened) == ((), (), [])


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        ({}, "must name what it may change: changes=.Filesystem, Cart."),
        ({"changes": ()}, "must name what it may change"),
        ({"changes": Filesystem}, "changes takes a tuple of classes, got"),
        ({"changes": ("files",)}, "changes must name classes, got 'files'"),
        ({"changes": (Unsaved,)}, "changes= names Unsaved, whose changes cannot be captured"),
        (
            {"changes": (Balance,), "outside": True},
            "but outside=True says that it acts outside before anybody is asked",
        ),
        ({"changes": (Balance,), "compensate": compensated}, "but compensate= says that it acts outside"),
        ({"changes": (Balance,), "read_only": True}, "read_only, so it has no effects"),
        ({"approval": None, "changes": (Balance,), "read_only": True}, "so it changes nothing; drop changes="),
        ({"approval": None, "outside": True, "read_only": True}, "so it changes nothing; drop outside=True"),
    ],
)
def test_effects_are_for_declared_changes_that_can_be_taken_back(declared: Any, problem: str) -> None:
    def act() -> str:
        "Act."
        return ""

    with pytest.raises(PromptValidationError, match=problem):
        tool(**{"approval": "effects", **declared})(act)


class Store(ABC):
    """What a tool changes, whatever is bound to it."""

    @abstractmethod
    def rows(self) -> tuple[str, ...]: ...


class UnsavedStore(Store):
    def rows(self) -> tuple[str, ...]:
        return ()


class SavedStore(UnsavedStore):
    def snapshot(self) -> tuple[str, ...]:
        return ()

    def restore(self, rows: tuple[str, ...]) -> None:
        pass


UNSAVED = "changes= names Store, whose changes cannot be captured: UnsavedStore has no snapshot"


@pytest.mark.parametrize(
    ("bound", "problem"),
    [
        (Binding.instance(Store, SavedStore()), ""),
        (Binding.instance(Store, UnsavedStore()), UNSAVED),
        (Binding(Store, UnsavedStore), UNSAVED),
        (Binding(Store, lambda resolver: SavedStore(), scope=Scope.PROTOTYPE), "it is bound as a PROTOTYPE"),
    ],
)
@pytest.mark.parametrize("where", ["template", "bind"])
def test_what_is_bound_to_a_declared_protocol_can_be_captured(bound: Any, problem: str, where: str) -> None:
    @tool(approval="effects", changes=(Store,))
    def act() -> str:
        "Act."
        return ""

    sections = [MarkdownSection(key="t", title="T", template="Go.", tools=[act])]
    registry = ResourceRegistry.of(bound)
    expected = pytest.raises(PromptValidationError, match=problem) if problem else nullcontext()
    with expected:
        if where == "template":
            PromptTemplate[None](ns="tests", key="bound", sections=sections, resources=registry)
        else:
            Prompt[None](ns="tests", key="bound", sections=sections).bind(resources=registry)


@pytest.mark.parametrize("approval", ["effects", lambda params: "effects"], ids=["declared", "by a rule"])
def test_a_declared_resource_that_is_not_bound_is_an_error_of_the_call(approval: Any) -> None:
    @tool(approval=approval, changes=(Register,))
    def act() -> str:
        "Act."
        OUTSIDE.append("acted")
        return ""

    section = MarkdownSection(key="t", title="T", template="Go.", tools=[act])
    model = ScriptedAdapter([call("act"), "Done."])
    assert run(Prompt(ns="tests", key="unbound", sections=[section]), model).pending == ()
    assert "it declares changes of Register, but nothing is bound to it" in model.requests[-1].messages[-1].text
    assert OUTSIDE == []


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        ({}, "it returned 'effects', which tool 'act' cannot have, because it does not declare what it may change"),
        ({"changes": ()}, "it returned 'effects', which tool 'act' cannot have"),
        ({"changes": (Balance,), "outside": True}, "it returned 'effects', but the tool acts outside"),
        ({"changes": (Balance,), "compensate": compensated}, "it returned 'effects', but the tool acts outside"),
    ],
)
def test_a_rule_may_ask_for_effects_only_of_declared_changes(declared: Any, problem: str) -> None:
    @tool(approval=lambda params: "effects", **declared)
    def act() -> str:
        "Act."
        OUTSIDE.append("acted")
        return ""

    section = MarkdownSection(key="t", title="T", template="Go.", tools=[act])
    model = ScriptedAdapter([call("act"), "Done."])
    run(Prompt(ns="tests", key="rule", sections=[section]), model)
    assert problem in model.requests[-1].messages[-1].text
    assert OUTSIDE == []


def test_a_tool_without_a_handler_is_answered_by_a_person() -> None:
    ask = Tool[None, str](name="ask_user", description="Ask the user.", handler=None)
    prompt = Prompt(ns="tests", key="ask", sections=[MarkdownSection(key="t", title="T", template="Go.", tools=[ask])])
    session, model = Session(), ScriptedAdapter([call("ask_user"), "Done."])
    (pending,) = run(prompt, model, session=session).pending
    assert pending.needs == "answer"
    with pytest.raises(PromptEvaluationError, match=r"has no handler; decide it with Answer"):
        run(prompt, model, session=session, decisions={pending.call_id: Approve()})
    assert run(prompt, model, session=session, decisions={pending.call_id: Answer("blue")}).text == "Done."
    assert model.requests[-1].messages[-1].text == "blue"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"approval": "always"}, "approval must be 'call', 'effects' or a function"),
        ({"approval": True}, "approval must be 'call', 'effects' or a function"),
        ({"approval": "effects", "read_only": True}, "read_only, so it has no effects; use approval='call'"),
    ],
)
def test_a_wrong_declaration_is_refused(options: Any, problem: str) -> None:
    def act() -> str:
        "Act."
        return ""

    with pytest.raises(PromptValidationError, match=problem):
        tool(**options)(act)


def test_the_output_says_that_calls_wait() -> None:
    prompt, session = prompt_with("call"), Session()
    response = run(prompt, ScriptedAdapter([call("pay", amount=5)]), session=session)
    with pytest.raises(PromptEvaluationError, match=r"calls wait for a decision: '.*' \(pay\); pass decisions="):
        response.require_output()


def test_results_with_media_are_kept_with_the_effects() -> None:
    @tool(approval="effects", changes=(Balance,))
    def act(context: ToolContext) -> ToolResult[int]:
        "Act."
        context.session.dispatch(Paid(1))
        return ToolResult("done", 7)

    section = MarkdownSection(key="t", title="T", template="Go.", tools=[act])
    prompt, session = Prompt(ns="tests", key="kept", sections=[section]), Session()
    model = ScriptedAdapter([call("act"), "Done."])
    (pending,) = run(prompt, model, session=session).pending
    run(prompt, model, session=session, decisions={pending.call_id: Approve()})
    assert session[ToolInvoked].latest().result.value == 7  # type: ignore[union-attr]


@pytest.mark.parametrize("decision", [Approve(), Edit({"amount": 7}), Deny("no"), Answer("later")])
def test_a_call_whose_section_was_closed_meanwhile_does_not_happen(decision: Any) -> None:
    pay, _ = tools("effects")
    shop = MarkdownSection(key="shop", title="Shop", template="Pay.", summary="Paying.", tools=[pay])
    prompt = Prompt(ns="tests", key="closed", sections=[shop]).bind(resources={Filesystem: InMemoryFilesystem()})
    session, model = Session(), ScriptedAdapter([call("pay", amount=5), "Done."])
    (pending,) = run(prompt, model, session=session).pending
    session.dispatch(CollapseSection(("shop",)))
    assert run(prompt, model, session=session, decisions={pending.call_id: decision}).text == "Done."
    text = (
        model.requests[-1].messages[-1].text
        if isinstance(decision, Deny | Answer)
        else session[ToolInvoked].all()[-1].text
    )
    assert ("is closed" in text) is isinstance(decision, Approve | Edit)
    assert (session[Paid].all(), OUTSIDE) == ((), ["pay 5"])


class More(Guard):
    """Adds to the amount, another one each time if it `grows`."""

    def __init__(self, *, grows: bool = False) -> None:
        self.extra, self.grows = 1, grows

    def before_tool(self, call: Any, *, context: Any) -> Any:
        amount, self.extra = call.params.amount + self.extra, self.extra + self.grows
        return Replace(replace(call.params, amount=amount))


class Why(Guard):
    def before_tool(self, call: Any, *, context: Any) -> Any:
        return Ask("Is it due?")


@pytest.mark.parametrize("needs", ["call", "effects"])
@pytest.mark.parametrize("grows", [False, True], ids=["same", "other"])
def test_what_guards_made_of_a_call_happens_as_it_was_approved(needs: str, grows: bool) -> None:
    section = MarkdownSection(key="pay", title="Pay", template="Pay bills.", tools=tools(needs))
    FILES.append(InMemoryFilesystem({"log.txt": "begin\n"}))
    prompt = Prompt[None](ns="tests", key="guarded", sections=[section], guards=[More(grows=grows), Why()])
    prompt.bind(resources={Filesystem: FILES[-1]})
    session, model = Session(), ScriptedAdapter([call("pay", amount=5), "Done."])
    (pending,) = run(prompt, model, session=session).pending
    assert (pending.params.amount, pending.note) == (6, "Is it due?")
    response = run(prompt, model, session=session, decisions={pending.call_id: Approve()})
    if grows:
        assert [(each.params.amount, each.note) for each in response.pending] == [(7, "Is it due?")]
        assert state(session) == BEFORE
        response = run(prompt, model, session=session, decisions={pending.call_id: Deny()})
    assert response.text == "Done."
    assert session[Paid].all() == (() if grows else (Paid(6),))


def test_the_notice_of_an_edit_has_the_arguments_that_guards_made_of_it() -> None:
    prompt = Prompt[None](
        ns="tests",
        key="guarded",
        sections=[MarkdownSection(key="pay", title="Pay", template="Pay bills.", tools=tools("call"))],
        guards=[More()],
    ).bind(resources={Filesystem: InMemoryFilesystem({"log.txt": ""})})
    session, model = Session(), ScriptedAdapter([call("pay", amount=5), "Done."])
    (pending,) = run(prompt, model, session=session).pending
    run(prompt, model, session=session, decisions={pending.call_id: Edit({"amount": 8})})
    result = model.requests[-1].messages[-1].text
    assert result.startswith('A person changed the arguments of this call to {"amount":9}.')
    assert result.endswith("paid 9")


@dataclass(frozen=True)
class Noted:
    text: str


LINES = [f"{letter * 3}abcdefghijklmnopqrstuvwxyz0123456789" for letter in "MZ"]
KEY = "\n".join(["-----BEGIN KEY-----", *LINES, "-----END KEY-----"])


@pytest.mark.parametrize("before", [0, *range(1_900, 2_001, 10), 19_970])
def test_no_part_of_a_secret_is_shown(before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANK_API_KEY", secret := "k7Qm2ZpX9vLr4TnB8wYc5HdJ")
    monkeypatch.setenv("BANK_PRIVATE_KEY", KEY)

    @tool(approval="effects", changes=(Filesystem,))
    def keep(text: str, context: ToolContext) -> str:
        "Keep a text."
        context.session.dispatch(Noted(text))
        files = context.filesystem
        assert files is not None
        files.write("key.txt", KEY)
        return "kept"

    section = MarkdownSection(key="keep", title="Keep", template="Keep.", tools=[keep])
    prompt = Prompt[None](ns="tests", key="keep", sections=[section])
    prompt.bind(resources={Filesystem: InMemoryFilesystem()})
    model = ScriptedAdapter([call("keep", text="-" * before + secret + "-" * 30_000)])
    shown = run(prompt, model).pending[0].text
    assert "Noted" in shown and "key.txt" in shown
    for hidden in (secret, *LINES):
        assert not any(hidden[at : at + 6] in shown for at in range(len(hidden) - 5))


@pytest.mark.parametrize(
    ("decision", "result"),
    [
        (Approve(), "Unknown tool 'pay'. Available tools: none."),
        (Edit({"amount": 7}), "Unknown tool 'pay'. Available tools: none."),
        (Deny("Too much."), "A person denied this call: Too much."),
        (Answer("Later."), "Later."),
    ],
)
def test_a_decision_about_a_tool_that_is_gone_says_why(decision: Any, result: str) -> None:
    session, model = Session(), ScriptedAdapter([call("pay", amount=5), "Done."])
    (pending,) = run(prompt_with("effects"), model, session=session).pending
    bare: Prompt[None] = Prompt(
        ns="tests", key="approval", sections=[MarkdownSection(key="pay", title="Pay", template="No tools.")]
    )
    assert run(bare, model, session=session, decisions={pending.call_id: decision}).text == "Done."
    assert [each.text for each in model.requests[-1].messages if each.role == "tool"] == [result]
    assert session[Paid].all() == ()


@pytest.mark.parametrize("first_id", ["a/b", "a"], ids=["inside the other", "the same"])
def test_a_call_with_the_id_of_another_is_decided_by_itself(first_id: str) -> None:
    session = Session()
    calls = [call("pay", call_id=first_id, amount=5), call("pay", call_id="a", amount=6)]
    model = ScriptedAdapter([calls, "Done."])
    before, after = run(prompt_with("call"), model, session=session).pending
    assert (before.params.amount, after.params.amount) == (5, 6)
    decisions = {before.call_id: Deny("No."), after.call_id: Approve()}
    run(prompt_with("call"), model, session=session, decisions=decisions)
    assert [paid.amount for paid in session[Paid].all()] == [6]
