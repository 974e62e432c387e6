"""A guard asks for a person: the call waits like any other, and the other guards still count after the approval."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.guarding.cases import Paid
from tests.waiting import forever
from weakincentives import (
    Answer,
    Approve,
    Conversation,
    Deny,
    Edit,
    MarkdownSection,
    Prompt,
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
    Stop,
)
from weakincentives.runtime import CallDecided, Message, PendingCall

OUTSIDE: list[str] = []
SEEN: list[int] = []
POLICY: list[Outcome | None] = []
AFTER: list[Outcome | None] = []


@pytest.fixture(autouse=True)
def _clean() -> None:
    for each in (OUTSIDE, SEEN, POLICY, AFTER):
        each.clear()


class AsksAbove5(Guard):
    def before_tool(self, call: GuardedCall, *, context: GuardContext) -> Outcome | None:
        return Ask("That is a lot.") if call.params.amount >= 5 else None


class Policy(Guard):
    """Whatever the policy is when it is asked."""

    async def before_tool(self, call: GuardedCall, *, context: GuardContext) -> Outcome | None:
        SEEN.append(call.params.amount)
        return POLICY[-1] if POLICY else None

    async def after_tool(self, call: GuardedCall, result: ToolResult[Any], *, context: GuardContext) -> Outcome | None:
        return AFTER[-1] if AFTER else None


def undo(params: Any, *, context: ToolContext) -> None:
    OUTSIDE.append(f"undo {params.amount}")


def prompt_with(approval: Any) -> tuple[Prompt[Any], Tool[Any, Any]]:
    acts_outside = approval in (None, "call")

    @tool(approval=approval, compensate=undo if acts_outside else None, changes=(Paid,))
    def pay(amount: int, *, context: ToolContext) -> str:
        "Pay an amount."
        OUTSIDE.append(f"pay {amount}")
        context.session.dispatch(Paid(amount))
        return f"paid {amount}"

    section = MarkdownSection(key="pay", title="Pay", template="Pay bills.", tools=[pay])
    return Prompt(ns="tests", key="asking", sections=[section], guards=[AsksAbove5(), Policy()]), pay


def paid(session: Session) -> list[int]:
    return [each.amount for each in session[Paid].all()]


def results(session: Session) -> list[str]:
    return [message.text for message in session[Message].all() if message.role == "tool"]


def rule(params: Any) -> str:
    return "effects"


@pytest.mark.parametrize("approval", [None, "call", "effects", rule], ids=["none", "call", "effects", "rule"])
@pytest.mark.parametrize("decision", [Approve(), Deny("no"), Edit({"amount": 6}), Answer("later")], ids=repr)
def test_a_call_that_a_guard_asked_about_is_decided_once_and_survives_its_process(approval: Any, decision: Any) -> None:
    with_effects = approval not in (None, "call")
    prompt, _ = prompt_with(approval)
    session = Session()
    (pending,) = run(prompt, ScriptedAdapter([call("pay", amount=5)]), session=session).pending
    assert "A guard asks a person:\n  That is a lot.\n\npay\n  amount: 5" in pending.text
    assert (pending.needs, pending.effects is not None) == (("effects", True) if with_effects else ("call", False))
    assert (paid(session), OUTSIDE) == ([], ["pay 5"] if with_effects else [])
    later = Session(session_id=session.session_id)
    later.restore(Snapshot.from_json(session.snapshot().to_json(), types=[Paid]))
    assert later[PendingCall].all() == (pending,)
    model = ScriptedAdapter(["Done."])
    response = run(prompt, model, session=later, decisions={pending.call_id: decision})
    if isinstance(decision, Edit) and with_effects:
        (again,) = response.pending
        assert again.params.amount == 6
        response = run(prompt, model, session=later, decisions={pending.call_id: Approve()})
    assert (response.text, response.pending) == ("Done.", ())
    amounts = {Approve: [5], Edit: [6]}.get(type(decision), [])
    assert paid(later) == amounts
    asked = [each for each in later[GuardDecided].all() if each.outcome == "ask"]
    assert [(each.guard, each.message) for each in asked] == [("AsksAbove5", "That is a lot.")]
    made = [entry for entry in OUTSIDE if entry.startswith("pay")]
    assert made == ["pay 5"] * with_effects + [f"pay {amount}" for amount in amounts if amount == 6 or not with_effects]
    # Guards see the edited arguments, and are not asked about a call that does not happen.
    expected = {Approve: [5, 5], Edit: [5, 6, 6] if with_effects else [5, 6]}.get(type(decision), [5])
    assert expected == SEEN


@pytest.mark.parametrize("approval", [None, "call", "effects"])
@pytest.mark.parametrize("outcome", [Refuse("Closed."), Stop("Closed.")], ids=["refuse", "stop"])
@pytest.mark.parametrize("decision", [Approve(), Edit({"amount": 6})], ids=["approve", "edit"])
def test_a_policy_that_has_changed_meanwhile_counts_after_the_approval(
    approval: Any, outcome: Outcome, decision: Any
) -> None:
    prompt, _ = prompt_with(approval)
    session, model = Session(), ScriptedAdapter([call("pay", amount=5), "Done."])
    (pending,) = run(prompt, model, session=session).pending
    POLICY.append(outcome)
    stops = isinstance(outcome, Stop)
    try:
        response = run(prompt, model, session=session, decisions={pending.call_id: decision})
    except GuardRefusedError as error:
        assert stops and error.message == "Closed."
    else:
        assert not stops and response.text == "Done."
    (result,) = results(session)
    assert result.endswith("Not run: Closed." if stops else "Closed.")
    assert (paid(session), session[PendingCall].all()) == ([], ())
    assert ([] if approval != "effects" else ["pay 5"]) == OUTSIDE


def test_a_denial_comes_before_every_guard() -> None:
    prompt, _ = prompt_with(None)
    session, model = Session(), ScriptedAdapter([call("pay", amount=5), "Done."])
    (pending,) = run(prompt, model, session=session).pending
    POLICY.append(Stop("Closed."))
    assert run(prompt, model, session=session, decisions={pending.call_id: Deny("no")}).text == "Done."
    assert results(session) == ["A person denied this call: no"]


@pytest.mark.parametrize("approval", [None, "call", "effects"])
def test_params_that_a_guard_replaces_are_those_that_a_person_sees(approval: Any) -> None:
    prompt, pay = prompt_with(approval)
    assert pay.params_type is not None
    POLICY.append(Replace(pay.params_type(amount=4)))
    session, model = Session(), ScriptedAdapter([call("pay", amount=5), "Done."])
    (pending,) = run(prompt, model, session=session).pending
    assert (pending.arguments, pending.params.amount) == ('{"amount":4}', 4)
    assert run(prompt, model, session=session, decisions={pending.call_id: Approve()}).text == "Done."
    assert (paid(session), results(session)) == ([4], ["paid 4"])
    assert OUTSIDE == ["pay 4"]


def test_other_params_than_those_whose_effects_were_shown_are_shown_again() -> None:
    prompt, pay = prompt_with("effects")
    session, model = Session(), ScriptedAdapter([call("pay", amount=5), "Done."])
    (pending,) = run(prompt, model, session=session).pending
    assert pay.params_type is not None
    POLICY.append(Replace(pay.params_type(amount=4)))
    (again,) = run(prompt, model, session=session, decisions={pending.call_id: Approve()}).pending
    assert (again.params.amount, paid(session)) == (4, [])
    assert OUTSIDE == ["pay 5", "pay 4"]
    assert run(prompt, model, session=session, decisions={pending.call_id: Approve()}).text == "Done."
    assert (paid(session), OUTSIDE) == ([4], ["pay 5", "pay 4"])


def test_a_result_is_refused_when_its_effects_are_applied_too() -> None:
    prompt, _ = prompt_with("effects")
    session, model = Session(), ScriptedAdapter([call("pay", amount=5), "Done."])
    (pending,) = run(prompt, model, session=session).pending
    AFTER.append(Refuse("Not any more."))
    assert run(prompt, model, session=session, decisions={pending.call_id: Approve()}).text == "Done."
    assert (paid(session), results(session)) == ([], ["Not any more."])
    assert OUTSIDE == ["pay 5"]


def test_a_result_that_is_refused_before_the_question_asks_nobody() -> None:
    prompt, _ = prompt_with("effects")
    AFTER.append(Refuse("Not like this."))
    session, model = Session(), ScriptedAdapter([call("pay", amount=5), "Done."])
    assert run(prompt, model, session=session).text == "Done."
    assert (paid(session), results(session)) == ([], ["Not like this."])
    assert OUTSIDE == ["pay 5"]


def test_the_answer_of_a_person_is_a_result_that_guards_see() -> None:
    class NoNumbers(Guard):
        def after_tool(self, call: GuardedCall, result: ToolResult[Any], *, context: GuardContext) -> Outcome | None:
            return Replace(ToolResult("a secret")) if any(map(str.isdigit, result.render())) else None

    ask: Tool[Any, Any] = Tool(name="ask_user", description="Ask the user.", handler=None)
    section = MarkdownSection(key="ask", title="Ask", template="Ask.", tools=[ask])
    chat = Conversation(
        Prompt(ns="tests", key="k", sections=[section], guards=[NoNumbers()]),
        adapter=ScriptedAdapter([call("ask_user"), "Done."]),
    )
    (pending,) = chat.send("Hello").pending
    assert chat.decide({pending.call_id: Answer("4711")}).text == "Done."
    assert results(chat.session) == ["a secret"]
    assert [each.decision for each in chat.session[CallDecided].all()] == ["answer"]


@pytest.mark.parametrize("approval", [None, "effects"])
def test_a_call_still_waits_if_the_run_is_stopped_while_guards_are_asked_again(approval: Any) -> None:
    prompt, _ = prompt_with(approval)
    session, model = Session(), ScriptedAdapter([call("pay", amount=5), "Done."])
    (pending,) = run(prompt, model, session=session).pending
    begun = asyncio.Event()

    async def waits(self: Guard, call: GuardedCall, *, context: GuardContext) -> None:
        begun.set()
        await forever()

    async def work() -> None:
        section = prompt.template.sections[0]
        slow: Guard = type("Slow", (Guard,), {"before_tool": waits})()
        same: Prompt[Any] = Prompt(ns="tests", key="asking", sections=[section], guards=[slow])
        deciding = run_async(same, model, session=session, decisions={pending.call_id: Approve()})
        running = asyncio.create_task(deciding)
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(work())
    assert session[PendingCall].all() == (pending,)
    assert run(prompt, model, session=session, decisions={pending.call_id: Approve()}).text == "Done."
    assert (paid(session), OUTSIDE) == ([5], ["pay 5"])
