"""`DurableClient` submits and asks, blocking and awaited; it never does the work."""

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.durable.agent import Task
from tests.durable.answers import approve
from tests.durable.desk import Question, Refund, desk, prompt_with
from tests.durable.fleet import workers
from tests.waiting import PATIENCE, until
from weakincentives import ScriptedAdapter
from weakincentives.durable import (
    DurableClient,
    DurableMainLoop,
    NoSuchWorkError,
    WorkCancelledError,
    WorkPendingError,
)


@pytest.mark.slow
def test_a_client_shares_a_database_with_a_worker_process(database_url: str, tmp_path: Path) -> None:
    with DurableClient[Task, None]("agent", database_url) as client:
        client.submit(Task("early"), key="early")
        with workers(1, tmp_path, database_url):
            client.submit(Task("late"), key="late")
            texts = [client.result(key, timeout=PATIENCE).text for key in ("early", "late")]
        assert texts == ["Total(value=3) abc for early", "Total(value=3) abc for late"]


def test_submit_and_result_do_not_make_a_process_a_worker(tmp_path: Path) -> None:
    database = tmp_path / "durable.db"
    threads = threading.enumerate()
    loop = DurableMainLoop("test", prompt_with(), ScriptedAdapter(["never"]), str(database))
    with loop, DurableClient[Question, None]("test", str(database)) as client:
        for key, submitter in (("a", client), ("b", loop)):
            submitter.submit(Question("?"), key=key)
            with pytest.raises(
                WorkPendingError, match=f"'test/{key}' is queued for workers of version '{loop.version}'"
            ):
                submitter.result(key, timeout=0)
        assert (loop.health().ready, loop.health().reason) == (False, "not started")
        assert not (tmp_path / "durable.db.lock").exists()
        assert threading.enumerate() == threads


def test_every_call_of_a_client_has_an_awaitable_form() -> None:
    plain = ("submit", "result", "status", "cancel", "retry", "approve", "questions")
    for owner, names in ((DurableClient, plain), (DurableMainLoop, (*plain, "execute"))):
        for name in names:
            awaitable = getattr(owner, f"{name}_async")
            assert inspect.iscoroutinefunction(awaitable)
            assert inspect.signature(awaitable) == inspect.signature(getattr(owner, name))


def test_awaited_calls_do_what_the_blocking_ones_do(tmp_path: Path) -> None:
    database = str(tmp_path / "durable.db")

    async def use(client: DurableClient[Refund, None]) -> str:
        await client.submit_async(Refund(5), key="r")
        await client.submit_async(Refund(6), key="s")
        while len(await client.questions_async()) < 2:
            pass
        await client.cancel_async("s")
        with pytest.raises(WorkCancelledError, match="'desk/s' was cancelled"):
            await client.result_async("s")
        await client.retry_async("s")
        (question,) = await client.questions_async("r")
        await client.approve_async(question.key, question.id, by="Ann")
        response = await client.result_async("r", timeout=PATIENCE)
        assert (await client.status_async("r")).status == "done"
        return response.text

    with desk(database) as loop, DurableClient[Refund, None]("desk", database) as client:
        loop.start()
        assert asyncio.run(use(client)) == "Refunded 5, says Ann (desk/r:3:c1)."
        assert asyncio.run(loop.execute_async(Refund(5), key="r")).text == "Refunded 5, says Ann (desk/r:3:c1)."


def test_a_hundred_awaited_results_need_no_hundred_threads(tmp_path: Path) -> None:
    gate, database = threading.Event(), str(tmp_path / "durable.db")

    def model(request: Any) -> str:
        gate.wait(PATIENCE)
        return "open"

    async def wait_for_all(client: DurableClient[Question, None]) -> list[str]:
        results = [asyncio.create_task(client.result_async("a", timeout=PATIENCE)) for _ in range(100)]
        _, waiting = await asyncio.wait(results, timeout=1.0)
        assert len(waiting) == 100
        assert threading.active_count() < 60
        gate.set()
        return [(await result).text for result in results]

    loop = DurableMainLoop("test", prompt_with(), ScriptedAdapter(model), database)
    with loop, DurableClient[Question, None]("test", database) as client:
        loop.start()
        client.submit(Question("?"), key="a")
        assert asyncio.run(wait_for_all(client)) == ["open"] * 100


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[DurableClient[Refund, None]]:
    """A client for a worker on which two runs wait for a person."""
    database = str(tmp_path / "d.db")
    with desk(database, within=3600) as loop, DurableClient[Refund, None]("desk", database) as client:
        loop.start()
        client.submit(Refund(5), key="first/5")
        until(client.questions, "the first question")
        client.submit(Refund(5), key="second")
        until(lambda: len(client.questions()) == 2, "the second question")
        yield client


def test_questions_say_what_is_asked_for_which_key_and_until_when(asking: DurableClient[Refund, None]) -> None:
    first, second = asking.questions()
    assert [(q.key, q.call_id, q.text) for q in (first, second)] == [
        ("first/5", "c1", "Refund 5?"),
        ("second", "c1", "Refund 5?"),
    ]
    assert first.asked_ms <= second.asked_ms < (second.expires_ms or 0)
    assert asking.questions("second") == (second,)


def test_answered_and_cancelled_questions_are_no_longer_asked(asking: DurableClient[Refund, None]) -> None:
    approve(asking, "first/5", "c1")
    asking.cancel("second")
    assert asking.questions() == ()
    assert "Refunded 5" in asking.result("first/5", timeout=PATIENCE).text


def test_a_client_sees_the_questions_of_its_own_loop_only(asking: DurableClient[Refund, None]) -> None:
    with DurableClient[Refund, None]("other", asking.database_url) as other:
        assert other.questions() == ()
        with pytest.raises(NoSuchWorkError, match="There is no work 'other/second'"):
            approve(other, "second", "c1")


def test_a_request_whose_class_no_worker_can_find_is_refused(tmp_path: Path) -> None:
    script = (
        "from dataclasses import dataclass\nfrom weakincentives.durable import DurableClient\n"
        "@dataclass\nclass Ticket:\n    number: int\n"
        f"DurableClient('agent', {str(tmp_path / 'd.db')!r}).submit(Ticket(1), key='a')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "DurableError: Ticket is defined in the running script, where no worker can find it" in done.stderr


def test_the_database_tells_the_time_in_milliseconds_on_every_sqlite(tmp_path: Path) -> None:
    """On Python 3.12 and newer, the engine's tables call a function that SQLite has had since 3.42 only."""
    import time

    import sqlalchemy as sa

    with (
        DurableClient[Task, None]("agent", str(tmp_path / "d.db")) as client,
        client.store.engine.begin() as connection,
    ):
        connection.execute(sa.text("CREATE TABLE t (at INTEGER NOT NULL DEFAULT (unixepoch('subsec') * 1000), x)"))
        connection.execute(sa.text("INSERT INTO t (x) VALUES (1)"))
        at, kind = connection.execute(sa.text("SELECT at, typeof(at) FROM t")).one()
    assert abs(at - time.time() * 1000) < 60_000 and kind in ("integer", "real")
