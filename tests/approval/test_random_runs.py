"""Random runs with calls that wait: whatever is decided, when and in which order, only what was approved happens."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given, settings, strategies as st

from tests.approval.bank import Balance, Paid
from tests.rounds import rounds
from tests.waiting import forever
from weakincentives import (
    Answer,
    Approve,
    Conversation,
    Deny,
    Edit,
    MainLoop,
    MarkdownSection,
    Prompt,
    PromptResponse,
    PromptTemplate,
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
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.runtime import Completed, Message, ModelReply, ModelRequest, PendingCall, ToolInvoked

Way = Literal["run", "async", "stream", "chat"]
KINDS = ("pay_effects", "pay_outside", "pay_call", "pay_free", "fail", "look", "pay_late", "pay_stopped")


@dataclass
class World:
    """Everything outside of the session: the files, and what happened outside."""

    files: InMemoryFilesystem = field(default_factory=lambda: InMemoryFilesystem({"log.txt": ""}))
    outside: list[tuple[str, int]] = field(default_factory=list)

    def pay(self, name: str, amount: int, context: ToolContext) -> str:
        if name == "pay_outside":
            self.outside.append(("done", amount))
        context.session.dispatch(Paid(amount))
        files = context.filesystem
        assert files is not None
        files.write("log.txt", f"{amount}\n", mode="append")
        files.write(f"bills/{amount}.txt", name)
        if amount % 7 == 0:
            files.delete("bills", recursive=True)
        return f"paid {amount}"

    def digest(self, session: Session) -> str:
        files = sorted((path, self.files.read(path)) for path in self.files.glob("**"))
        state = (session[Balance].latest() or Balance(), session[Paid].all(), files)
        return hashlib.sha256(repr(state).encode()).hexdigest()


WORLD = World()
CHANGES = (Filesystem, Balance)


def undo(params: Any, *, context: ToolContext) -> None:
    WORLD.outside.append(("undone", params.amount))


@tool(approval="effects", changes=CHANGES)
def pay_effects(amount: int, context: ToolContext) -> str:
    "Pay."
    return WORLD.pay("pay_effects", amount, context)


@tool(approval="call", compensate=undo)
def pay_outside(amount: int, context: ToolContext) -> str:
    "Pay."
    return WORLD.pay("pay_outside", amount, context)


@tool(approval="call")
def pay_call(amount: int, context: ToolContext) -> str:
    "Pay."
    return WORLD.pay("pay_call", amount, context)


@tool
def pay_free(amount: int, context: ToolContext) -> str:
    "Pay."
    return WORLD.pay("pay_free", amount, context)


@tool(approval="effects", changes=CHANGES)
def fail(amount: int, context: ToolContext) -> str:
    "Fail."
    WORLD.pay("fail", amount, context)
    raise ToolValidationError("broken")


@tool(approval="effects", changes=CHANGES)
def look(amount: int) -> str:
    "Look."
    return f"seen {amount}"


@tool(approval="call", timeout=0.02)
async def pay_late(amount: int, context: ToolContext) -> str:
    "Pay, and take too long."
    WORLD.pay("pay_late", amount, context)
    await forever()
    return "late"


@tool(approval="call")
def pay_stopped(amount: int, context: ToolContext) -> str:
    "Pay, and be interrupted."
    WORLD.pay("pay_stopped", amount, context)
    raise KeyboardInterrupt


TOOLS = [pay_effects, pay_outside, pay_call, pay_free, fail, look, pay_late, pay_stopped]
TEMPLATE = PromptTemplate[None](
    ns="tests",
    key="random",
    sections=[MarkdownSection(key="pay", title="Pay", template="Pay bills.", tools=TOOLS)],
)


def agents(script: list[Any], levels: int) -> tuple[Prompt[None], StrictModel]:
    """A prompt and its model; the calls are those of a child so many levels below."""
    made, model = TEMPLATE, StrictModel(script)
    for level in range(levels):
        below = delegate(made, name="hand_on", description="Hand on.", adapter=model)
        section = MarkdownSection(key="task", title="Task", template="Hand on.", tools=[below])
        made = PromptTemplate[None](ns="tests", key=f"level{level}", sections=[section])
        model = StrictModel([[("hand_on", None)], [("hand_on", None)]])
    return Prompt(made).bind(resources={Filesystem: WORLD.files}), model


class StrictModel(ScriptedAdapter):
    """Refuses what strict vendors refuse: a call without exactly one result before the next message."""

    def __init__(self, turns: list[list[tuple[str, Any]]]) -> None:
        self._turns = list(turns)
        super().__init__(self._reply)

    def _reply(self, request: ModelRequest) -> ModelReply | Any:
        open_calls: list[str] = []
        for message in request.messages:
            if message.role == "tool":
                assert message.call_id in open_calls, "a result without a call, or a second one"
                open_calls.remove(message.call_id)
            elif message.role in ("user", "assistant"):
                assert not open_calls, f"{message.role} before the results of {open_calls}"
                open_calls = [each.id for each in message.tool_calls]
        assert not open_calls
        if not self._turns:
            return "Done."
        made = self._turns.pop(0)
        return [call(name) if amount is None else call(name, amount=amount) for name, amount in made] or "Nothing."


def stepped(way: Way, prompt: Any, model: Any, session: Session, content: str | None, decisions: Any) -> PromptResponse:
    if way == "chat":
        chat = Conversation(prompt, adapter=model, session=session)
        if content is None:
            return chat.decide(decisions)
        return chat.send(content, decisions=decisions)
    if way == "run":
        return run(prompt, model, session=session, decisions=decisions)
    if way == "async":
        return asyncio.run(run_async(prompt, model, session=session, decisions=decisions))
    with MainLoop().stream(prompt, session=session, adapter=model, decisions=decisions) as events:
        last = list(events)[-1]
    assert isinstance(last, Completed)
    return last.response


turns = st.lists(
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 30)), min_size=1, max_size=4), min_size=1, max_size=4
)


@settings(max_examples=rounds(25, 200))
@pytest.mark.limit(180)
@given(st.data(), turns, st.sampled_from(["run", "async", "stream", "chat"]), st.integers(0, 3))
def test_only_what_was_approved_happens(data: st.DataObject, script: list[Any], way: Way, levels: int) -> None:
    WORLD.files, WORLD.outside = InMemoryFilesystem({"log.txt": ""}), []
    world, session = WORLD, Session()
    prompt, model = agents(script, levels)
    response = stepped(way, prompt, model, session, "Go." if way == "chat" else None, None)
    for _ in range(60):
        if not response.pending:
            break
        if data.draw(st.booleans(), "stored"):
            text = session.snapshot().to_json()
            session = Session(session_id=session.session_id)
            session.restore(Snapshot.from_json(text, types=[Paid]))
        assert session[PendingCall].all() == response.pending
        if data.draw(st.integers(0, 9), "others") == 0:
            session.dispatch(Paid(1))  # The base of what was shown has changed.
        before = world.digest(session)
        chosen = data.draw(st.lists(st.sampled_from(response.pending), unique_by=lambda each: each.call_id), "calls")
        decisions = {each.call_id: data.draw(decision_for(each), "decision") for each in chosen}
        goes_on = way == "chat" and data.draw(st.integers(0, 4), "goes on") == 0
        content = "And then?" if goes_on else None
        try:
            after = stepped(way, prompt, model, session, content, decisions)
        except KeyboardInterrupt:
            assert any(each.tool == "pay_stopped" for each in response.pending)
            if not session[PendingCall].all():
                break
            after = stepped(way, prompt, model, session, None, {})
            decisions = {}
        denied = all(isinstance(each, Deny | Answer) for each in decisions.values())
        if (
            denied
            and decisions
            and not goes_on
            and after.pending
            and len(after.pending) == len(response.pending) - len(decisions)
        ):
            assert world.digest(session) == before, "a denial changed something"
        response = after
    else:
        decisions = {each.call_id: Deny() for each in response.pending}
        response = stepped(way, prompt, model, session, None, decisions)
        while response.pending:
            decisions = {each.call_id: Deny() for each in response.pending}
            response = stepped(way, prompt, model, session, None, decisions)
    check_end(session, world)


def decision_for(pending: PendingCall) -> st.SearchStrategy[Any]:
    edit = st.integers(1, 30).map(lambda amount: Edit({"amount": amount}))
    return st.one_of(st.just(Approve(by="ann")), st.just(Deny("no")), edit, st.just(Answer("later")))


def check_end(session: Session, world: World) -> None:
    """Every call has one result, and session and files show exactly the calls that took effect."""
    asked = [each.id for message in session[Message].all() for each in message.tool_calls]
    answered = [message.call_id for message in session[Message].all() if message.role == "tool"]
    assert sorted(asked) == sorted(answered)
    assert session[PendingCall].all() == ()
    invoked = [event for event in session[ToolInvoked].all() if event.name != "hand_on"]
    made = [event for event in invoked if event.success and event.result.value]
    amounts = sorted(event.params.amount for event in made if event.result.value == f"paid {event.params.amount}")
    spoilt = session[Paid].all().count(Paid(1))
    logged = sorted(int(line) for line in world.files.read("log.txt").splitlines())
    assert logged == amounts
    paid = sorted(each.amount for each in session[Paid].all())
    assert [each for each in paid if each != 1] == [each for each in amounts if each != 1]
    assert spoilt >= amounts.count(1)
    assert (session[Balance].latest() or Balance()).total == 100 - sum(paid)
    for amount in {amount for _, amount in world.outside}:
        done = world.outside.count(("done", amount)) - world.outside.count(("undone", amount))
        assert done == sum(
            event.name == "pay_outside" and event.params.amount == amount and str(event.result.value).startswith("paid")
            for event in invoked
            if event.success
        )
