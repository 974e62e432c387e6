"""Calls of tools that declare `approval=` wait in the durable loop, and happen as a person has decided."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.durable.fleet import PATIENCE, until
from tests.durable.payer import LOG, Bill, Paid, Payer
from weakincentives import Answer, Approve, Deny, Edit
from weakincentives.durable import DurableMainLoop, Question

DECISIONS = {
    "approve": Approve("Ann"),
    "deny": Deny("Too much.", "Ann"),
    "edit": Edit({"amount": 50}),
    "answer": Answer("Later."),
}
BEFORE = (1000, (), {"log.txt": LOG})


def waiting(loop: DurableMainLoop[Bill, None], *call_ids: str) -> tuple[Question, ...]:
    """The questions, once these calls wait."""
    until(lambda: tuple(question.call_id for question in loop.questions("bill")) == call_ids, str(call_ids))
    return loop.questions("bill")


def after(*amounts: int) -> tuple[int, tuple[Paid, ...], dict[str, str]]:
    log = LOG + "".join(f"paid {amount}\n" for amount in amounts)
    return 1000 - sum(amounts), tuple(map(Paid, amounts)), {"log.txt": log}


@pytest.mark.parametrize("kind", DECISIONS)
@pytest.mark.parametrize("needs", ["call", "effects"])
@pytest.mark.parametrize("amounts", [(5,), (5, 7)], ids=["one", "two"])
def test_a_call_waits_and_then_happens_as_it_was_decided(
    tmp_path: Path, kind: str, needs: str, amounts: tuple[int, ...]
) -> None:
    payer, decision = Payer(tmp_path), DECISIONS[kind]
    with payer.loop() as loop:
        loop.start()
        loop.submit(Bill(needs, amounts, outside=True), key="bill")
        names = [f"c{number}" for number in range(1, len(amounts) + 1)]
        asked = waiting(loop, *names)
        assert payer.state() == BEFORE
        assert [(q.tool, q.arguments, q.needs) for q in asked] == [
            ("pay", json.dumps({"amount": amount}), needs) for amount in amounts
        ]
        for question, amount in zip(asked, amounts, strict=True):
            assert question.text.startswith(f'pay({{"amount": {amount}}})')
            assert (f"+paid {amount}" in question.text) == (needs == "effects")
        assert payer.handled == ([] if needs == "call" else list(amounts))
        for name in names:
            loop.approve("bill", name, decision)
        until(lambda: answer_rest(loop, Approve()), "the end")
        found = json.loads(loop.result("bill", timeout=PATIENCE).text)
    done = {"approve": amounts, "edit": tuple(50 for _ in amounts)}.get(kind, ())
    total, paid, written = after(*done)
    assert found["state"] == [total, [each.amount for each in paid], written]
    assert [call_id for call_id, _, _ in found["results"]] == names
    assert {success for _, success, _ in found["results"]} == {kind != "deny"}
    expected = {"approve": "paid 5", "deny": "A person denied this call: Too much.", "answer": "Later."}
    assert found["results"][0][2] == expected.get(kind, found["results"][0][2])
    if kind == "edit":
        assert found["results"][0][2].startswith('A person changed the arguments of this call to {"amount": 50}.')
    assert list(payer.service.charged().values()) == list(done)
    assert len({key for _, key, _ in payer.service.entries()}) <= len(amounts)


def answer_rest(loop: DurableMainLoop[Bill, None], decision: Any) -> bool:
    """Decide what is asked again; True if the work has ended."""
    for question in loop.questions("bill"):
        loop.approve("bill", question.call_id, decision)
    return loop.status("bill").status == "done"
