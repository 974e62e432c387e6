"""Children that are stopped, or that end by their own limits, while some of their calls wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.approval.bank import Balance, Paid
from tests.delegation.agents import template
from tests.waiting import forever
from weakincentives import (
    Approve,
    Deadline,
    Prompt,
    ScriptedAdapter,
    Session,
    Snapshot,
    ToolContext,
    call,
    delegate,
    run,
    run_async,
    tool,
)
from weakincentives.errors import DeadlineExceededError
from weakincentives.runtime import Message, ModelRequest

OUTSIDE: list[str] = []
INTERRUPTS = [False]
WAYS = ("sync", "async")


@tool(approval="effects", changes=(Balance,))
def pay(amount: int, context: ToolContext) -> str:
    "Pay, here and outside."
    OUTSIDE.append(f"pay {amount}")
    context.session.dispatch(Paid(amount))
    return f"paid {amount}"


@tool(approval="call")
async def act(context: ToolContext) -> str:
    "Act, or be interrupted, or take too long."
    if INTERRUPTS.pop():
        raise KeyboardInterrupt
    await forever()
    return "late"


@pytest.fixture(autouse=True)
def _clean() -> None:
    OUTSIDE.clear()
    INTERRUPTS[:] = [False]


def agents(calls: list[Any], levels: int = 1, **limits: Any) -> tuple[Prompt[Any], ScriptedAdapter]:
    """A prompt with children below it, the last of which makes these calls."""

    def model(request: ModelRequest) -> Any:
        return "Child is done." if request.messages[-1].role == "tool" else calls

    below = delegate(template("child", pay, act), description="Go.", adapter=ScriptedAdapter(model), **limits)

    def calling(name: str, text: str) -> ScriptedAdapter:
        made = call(name, call_id="c")
        return ScriptedAdapter(lambda request: text if request.messages[-1].role == "tool" else made)

    for level in range(1, levels):
        below = delegate(template(f"level{level}", below), description="Go.", adapter=calling(below.name, "Done."))
    return Prompt(template("top", below)), calling(below.name, "All done.")


def evaluated(way: str, prompt: Prompt[Any], model: ScriptedAdapter, session: Session, **options: Any) -> Any:
    if way == "sync":
        return run(prompt, model, session=session, **options)
    return asyncio.run(run_async(prompt, model, session=session, **options))


def moved(session: Session) -> Session:
    later = Session()
    later.restore(Snapshot.from_json(session.snapshot().to_json()))
    return later


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_after_an_interrupt_only_the_undecided_calls_of_a_child_wait(levels: int) -> None:
    INTERRUPTS.append(True)
    prompt, model = agents([call("pay", amount=3), call("act"), call("pay", amount=5)], levels)
    session = Session()
    paid, acted, other = run(prompt, model, session=session).pending
    with pytest.raises(KeyboardInterrupt):
        run(prompt, model, session=session, decisions={paid.call_id: Approve(), acted.call_id: Approve()})
    assert session[Paid].all() == (Paid(3),)
    session = moved(session)
    (left,) = run(prompt, model, session=session, decisions={}).pending
    assert left.call_id == other.call_id
    # It was shown as it would be after the first payment, which has been made.
    response = run(prompt, model, session=session, decisions={left.call_id: Approve()})
    assert (response.text, session[Balance].latest()) == ("All done.", Balance(92))
    assert OUTSIDE == ["pay 3", "pay 5"]
    assert [each.call_id for each in session[Message].all() if each.role == "tool"] == ["c"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("levels", [1, 2])
def test_a_child_that_ends_by_its_own_time_leaves_no_call_waiting(way: str, levels: int) -> None:
    prompt, model = agents([call("act"), call("pay", amount=5)], levels, timeout=0.3)
    session = Session()
    acted, _ = evaluated(way, prompt, model, session).pending
    session = moved(session)
    response = evaluated(way, prompt, model, session, decisions={acted.call_id: Approve()})
    assert (response.text, response.pending) == ("All done.", ())
    assert OUTSIDE == ["pay 5"]
    assert session[Paid].all() == ()


@pytest.mark.parametrize("way", WAYS)
def test_the_calls_of_a_child_go_on_waiting_if_the_time_of_the_whole_run_is_over(way: str) -> None:
    prompt, model = agents([call("act"), call("pay", amount=5)])
    session = Session()
    acted, paid = evaluated(way, prompt, model, session).pending
    with pytest.raises(DeadlineExceededError):
        decisions = {acted.call_id: Approve()}
        evaluated(way, prompt, model, session, decisions=decisions, deadline=Deadline.after(0.3))
    assert OUTSIDE == ["pay 5"]
    response = evaluated(way, prompt, model, moved(session), decisions={paid.call_id: Approve()})
    assert response.pending == ()
    assert (response.text, OUTSIDE) == ("All done.", ["pay 5"])
