"""Durable work that was recorded before a class changed goes on, and its result can be read."""

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from weakincentives import MarkdownSection, Prompt, PromptTemplate, ScriptedAdapter, ToolContext, ToolResult, tool
from weakincentives.adapters.scripted import call
from weakincentives.durable import DurableClient, DurableMainLoop, KeyConflictError
from weakincentives.errors import SerdeError
from weakincentives.runtime import ModelRequest

HERE = __name__


@dataclass(frozen=True)
class Ticket:
    number: int
    wish: str


@dataclass(frozen=True)
class Receipt:
    cents: int


@dataclass(frozen=True)
class Report:
    receipt: Receipt


@tool
def pay(*, context: ToolContext) -> ToolResult[Receipt]:
    """Pay."""
    context.session.dispatch(Receipt(500))
    return ToolResult("Paid.", Receipt(500))


@tool
def count(*, context: ToolContext) -> str:
    """Count the receipts."""
    return str([receipt.cents for receipt in context.session[Receipt]])


TEMPLATE = PromptTemplate[Report](
    ns="tests",
    key="upgrades",
    sections=[MarkdownSection[Ticket](title="Desk", key="desk", template="${wish}", tools=[pay, count])],
)
WORK = Ticket(7, "Pay, please.")
UPGRADES: dict[str, Any] = {
    f"{HERE}:Ticket": lambda fields: {"number": fields["number"], "wish": fields.get("wish", fields.get("words"))},
    f"{HERE}:Receipt": lambda fields: {"cents": fields.get("cents") or fields["price"] * 100},
}
seen: list[str] = []


def answering(*, fails: bool) -> Any:
    def model(request: ModelRequest) -> Any:
        results = [message.text for message in request.messages if message.role == "tool"]
        if not results:
            return call("pay")
        if fails:
            raise RuntimeError("the provider is down")
        seen[:] = results
        return call("count") if len(results) == 1 else '{"receipt": {"cents": 500}}'

    return model


def loop(path: Path, *, fails: bool = False, **options: Any) -> DurableMainLoop[Ticket, Report]:
    adapter = ScriptedAdapter(answering(fails=fails))
    return DurableMainLoop("test", lambda work: Prompt(TEMPLATE).bind(work), adapter, str(path), **options)


def age(path: Path) -> None:
    """Rewrite the database as if it had been written before `words` became `wish`, and `price` became `cents`."""
    connection = sqlite3.connect(path)
    with connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            for _, column, *_ in connection.execute(f"PRAGMA table_info('{table}')").fetchall():
                for now, then in (('"wish":"Pay', '"words":"Pay'), ('"cents":500', '"price":5')):
                    connection.execute(
                        f'UPDATE "{table}" SET "{column}" = replace("{column}", ?, ?) WHERE instr("{column}", ?)',
                        (now, then, now),
                    )
    connection.close()


def test_work_that_had_begun_goes_on_with_the_classes_of_today(tmp_path: Path) -> None:
    path = tmp_path / "durable.db"
    with loop(path, fails=True) as before, pytest.raises(Exception, match="the provider is down"):
        before.execute(WORK, key="a")
    age(path)
    with loop(path, upgrades=UPGRADES) as later:
        later.retry("a")
        later.start()
        response = later.result("a", timeout=30)
        assert later.execute(WORK, key="a") == response
        with pytest.raises(KeyConflictError):
            later.execute(Ticket(7, "Something else."), key="a")
    assert (response.output, seen[1]) == (Report(Receipt(500)), "[500]")


def test_a_client_reads_a_result_of_a_changed_class(tmp_path: Path) -> None:
    path = tmp_path / "durable.db"
    with loop(path) as before:
        before.execute(WORK, key="a")
    age(path)
    refused = pytest.raises(SerdeError, match="Receipt has no field 'price'")
    with DurableClient[Ticket, Report]("test", str(path)) as client, refused:
        client.result("a")
    with DurableClient[Ticket, Report]("test", str(path), upgrades=UPGRADES) as client:
        assert client.result("a").output == Report(Receipt(500))
