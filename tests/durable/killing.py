"""Random bills whose workers are killed at random points, while a person decides and cancels at random moments."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tests.durable.payer import LOG, Bill, Payer
from tests.waiting import PATIENCE, until
from weakincentives import Answer, Approve, Deny, Edit
from weakincentives.durable import DurableClient, DurableQuestion
from weakincentives.runtime.spi import Decision

MAX_DEATHS = 4
LATE = "within 0.05 s."


class Workers:
    """Workers that die, forked by one process."""

    def __init__(self, orders: IO[str], reports: IO[str]) -> None:
        self._orders, self._reports = orders, reports

    def start(self, folder: Path, *, point: int | None = None, seconds: float | None = None) -> None:
        order = {"folder": str(folder), "point": point, "seconds": seconds}
        self._orders.write(f"{json.dumps(order)}\n")
        self._orders.flush()
        assert self._reports.readline()

    def wait(self) -> None:
        assert self._reports.readline()


@contextmanager
def worker_factory() -> Iterator[Workers]:
    command = [sys.executable, "-c", "from tests.durable.payer import main; main()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        yield Workers(process.stdin, process.stdout)
        process.stdin.close()
        assert process.wait(PATIENCE) == 0


def make_database(folder: Path) -> Path:
    """A database with its tables."""
    with DurableClient[Bill, None]("payer", Payer(folder).database) as client:
        client.questions()
    return folder / "durable.db"


class Person:
    """Decides about some of the open questions, and remembers what was shown and decided."""

    def __init__(self, client: DurableClient[Bill, None], chance: random.Random) -> None:
        self.client, self.chance = client, chance
        self.decided: dict[str, list[tuple[DurableQuestion, Decision]]] = {}

    def decide(self, *, all_of_them: bool = False) -> None:
        for question in self.client.questions("bill"):
            if all_of_them or self.chance.random() < 0.6:
                call_id, _, number = question.call_id.rpartition("/")[2].partition("#")
                edit = Edit({"amount": self.chance.randrange(100, 200)}, "Ann")
                choices = [Approve("Ann"), Approve("Ann"), Deny("No.", "Ann"), Answer("Later.", "Ann")]
                decision = self.chance.choice([*choices, edit] if int(number or 1) < 4 else choices)
                self.client.approve("bill", question.id, decision)
                self.decided.setdefault(call_id, []).append((question, decision))


def bill_for(seed: int) -> Bill:
    """A random bill, paid by the run itself or by one or more up to three levels below it; some payments are late."""
    chance = random.Random(seed)
    amounts = tuple(chance.sample(range(1, 100), chance.randint(1, 3)))
    needs = chance.choice(["call", "effects"])
    outside = needs == "call" and chance.random() < 0.7
    late = tuple(amount for amount in amounts if chance.random() < 0.25)
    return Bill(needs, amounts, outside, levels=seed % 4, late=late, side_by_side=chance.random() < 0.5)


def pay_and_die(seed: int, folder: Path, empty: Path, workers: Workers) -> int:
    """Pay a bill in spite of all deaths, and check what has happened; returns the number of workers that were killed.

    Now and then the work is cancelled, in whatever it is doing, and goes on with the next worker.
    """
    bill, chance, payer = bill_for(seed), random.Random(-seed - 1), Payer(folder)
    deaths = chance.randint(1, MAX_DEATHS)
    shutil.copy(empty, payer.database)
    with DurableClient[Bill, None]("payer", payer.database) as client:
        person = Person(client, chance)
        client.submit(bill, key="bill")
        for _ in range(deaths):
            by_time = chance.random() < 0.5
            point, seconds = (None, chance.uniform(0.05, 0.4)) if by_time else (chance.randint(1, 8), 0.4)
            workers.start(folder, point=point, seconds=seconds)
            if chance.random() < 0.7:
                person.decide()
            if chance.random() < 0.3:
                client.cancel("bill")
            workers.wait()
            person.decide()
            if client.status("bill").status == "cancelled":
                client.retry("bill")
        workers.start(folder)
        until(lambda: person.decide(all_of_them=True) or client.status("bill").status in ("done", "failed"), "the end")
        workers.wait()
        found = json.loads(client.result("bill").text)
        assert client.questions("bill") == ()
    check(bill, payer, person, found)
    return deaths


def check(bill: Bill, payer: Payer, person: Person, found: dict[str, Any]) -> None:
    results = {call_id: (success, text) for call_id, success, text in found["results"]}
    names = [f"c{number}" for number in range(1, len(bill.amounts) + 1)]
    assert Counter(call_id for call_id, _, _ in found["results"]) == Counter(names)
    paid: dict[str, int] = {}
    for call_id, first in zip(names, bill.amounts, strict=True):
        success, text = results[call_id]
        if first in bill.late and bill.needs == "effects":
            assert call_id not in person.decided and not success and LATE in text
            continue
        question, decision = person.decided[call_id][-1]
        amount = json.loads(question.arguments)["amount"]
        if isinstance(decision, Edit):
            # Without a second question, the person has seen no effects.
            assert bill.needs == "call"
            amount = decision.arguments["amount"]
        match decision:
            case Approve() | Edit() if first in bill.late:
                assert not success and LATE in text
            case Approve() | Edit():
                paid[call_id] = amount
                assert (success, text.rpartition("\n")[2]) == (True, f"paid {amount}")
                shown = [line for line in question.text.splitlines() if line.startswith("+paid")]
                assert shown == ([f"+paid {amount}"] if bill.needs == "effects" else [])
            case Deny():
                assert (success, text) == (False, "A person denied this call: No.")
            case Answer():
                assert (success, text) == (True, "Later.")
    total, events, files = found["state"]
    assert total == 1000 - sum(paid.values())
    assert Counter(events) == Counter(paid.values())
    assert files == {"log.txt": LOG + "".join(f"paid {amount}\n" for amount in events)}
    charged = {key.rpartition(":")[2]: amount for key, amount in payer.service.charged().items()}
    assert charged == (paid if bill.outside else {})
    assert len(payer.service.charged()) == len(charged)
