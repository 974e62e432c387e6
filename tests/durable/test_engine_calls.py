"""The engine's public calls on running and waiting work, which show why we change its table of workflows ourselves.

Each row of the table in ARCHITECTURE.md has its tests here. If one fails with a later DBOS, a public call may have
become enough, and ours can go.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from dbos import DBOS, DBOSClient, SetWorkflowID, WorkflowStatus
from dbos._error import DBOSException

from tests.durable.desk import Question, prompt_with
from tests.waiting import PATIENCE, until
from weakincentives import ScriptedAdapter, tool
from weakincentives.adapters.scripted import call
from weakincentives.durable import DurableMainLoop

WORK = "asking/q1"


class Held:
    """Durable work inside a tool call that does not end until it is let go; `begun` counts the calls."""

    def __init__(self) -> None:
        self.begun = 0
        self.go = threading.Event()

    @contextmanager
    def running(self, database_url: str) -> Iterator[DBOSClient]:
        @tool
        def look() -> str:
            """Look."""
            self.begun += 1
            assert self.go.wait(PATIENCE)
            return "seen"

        def model(request: Any) -> Any:
            return "Done." if request.messages[-1].role == "tool" else call("look", call_id="c1")

        with DurableMainLoop("asking", prompt_with(look), ScriptedAdapter(model), database_url) as self.loop:
            self.loop.start()
            self.loop.submit(Question("?"), key="q1")
            until(lambda: self.begun == 1, "the tool call")
            try:
                yield self.loop.store.client
            finally:
                self.let_go()

    def let_go(self) -> None:
        """Let the tool call end, and wait until nothing runs."""
        self.go.set()
        until(lambda: not self.loop.health().running, "the work to end")


@pytest.fixture
def held() -> Held:
    return Held()


def status_of(client: DBOSClient, work_id: str = WORK) -> WorkflowStatus:
    (found,) = client.list_workflows(workflow_ids=[work_id], load_input=False, load_output=False)
    return found


def state(client: DBOSClient, work_id: str = WORK) -> tuple[str, int]:
    found = status_of(client, work_id)
    return found.status, found.recovery_attempts or 0


@contextmanager
def engine(folder: Path, workflow: Any, max_recovery_attempts: int = 5) -> Iterator[tuple[Any, DBOSClient]]:
    """A process of the engine alone, with this workflow and a client; it recovers what the last one left."""
    url = f"sqlite:///{folder / 'plain.db'}"
    DBOS(config={"name": "plain", "system_database_url": url, "application_version": "1", "log_level": "CRITICAL"})
    registered = DBOS.workflow(name="plain", max_recovery_attempts=max_recovery_attempts)(workflow)
    DBOS.launch()
    client = DBOSClient(system_database_url=url)
    try:
        yield registered, client
    finally:
        client.destroy()
        DBOS.destroy(destroy_registry=True)


def test_resuming_starts_running_work_a_second_time_and_forgets_its_attempts(held: Held, tmp_path: Path) -> None:
    with held.running(str(tmp_path / "durable.db")) as client:
        assert state(client) == ("PENDING", 1)
        client.resume_workflow(WORK, queue_name="asking")
        until(lambda: held.begun == 2, "the second execution")
        assert state(client) == ("PENDING", 1)


def test_work_that_was_cancelled_and_resumed_runs_twice_at_a_time(held: Held, tmp_path: Path) -> None:
    with held.running(str(tmp_path / "durable.db")) as client:
        client.cancel_workflow(WORK)
        client.resume_workflow(WORK, queue_name="asking")
        until(lambda: held.begun == 2, "the second execution")
        assert not held.go.is_set()


def test_our_cancel_and_retry_let_the_execution_go_on(held: Held, tmp_path: Path) -> None:
    database = str(tmp_path / "durable.db")
    with held.running(database), DurableMainLoop("asking", prompt_with(), ScriptedAdapter([]), database) as loop:
        loop.store.cancel(WORK)
        loop.store.retry(WORK)
        held.go.set()
        assert loop.result("q1", timeout=PATIENCE).text == "Done."
    assert held.begun == 1


def test_running_work_cannot_be_delayed_or_rewound(held: Held, tmp_path: Path) -> None:
    with held.running(str(tmp_path / "durable.db")) as client:
        client.set_workflow_delay(WORK, delay_seconds=60)
        assert state(client) == ("PENDING", 1)
        with pytest.raises(DBOSException, match="only a workflow in a terminal state can be rewound"):
            client.rewind_workflow(WORK, start_step=3, queue_name="asking")


def test_a_fork_of_running_work_is_other_work_beside_it(held: Held, tmp_path: Path) -> None:
    with held.running(str(tmp_path / "durable.db")) as client:
        fork = client.fork_workflow(WORK, 3, queue_name="asking").workflow_id
        until(lambda: held.begun == 2, "the fork to begin")
        assert (fork != WORK, state(client)) == (True, ("PENDING", 1))


def test_a_step_of_cancelled_work_is_not_recorded(held: Held, tmp_path: Path) -> None:
    with held.running(str(tmp_path / "durable.db")) as client:
        before = len(client.list_workflow_steps(WORK))
        client.cancel_workflow(WORK)
        held.let_go()
        assert len(client.list_workflow_steps(WORK)) == before


def test_a_step_of_work_that_we_cancel_is_recorded(held: Held, tmp_path: Path) -> None:
    with held.running(str(tmp_path / "durable.db")) as client:
        before = len(client.list_workflow_steps(WORK))
        held.loop.cancel("q1")
        held.let_go()
        assert len(client.list_workflow_steps(WORK)) == before + 1


def test_work_that_waits_for_a_message_keeps_its_thread(tmp_path: Path) -> None:
    threads = []

    def wait() -> None:
        threads.append(threading.current_thread())
        DBOS.recv("answer", timeout_seconds=PATIENCE)
        threads.append(threading.current_thread())

    with engine(tmp_path, wait) as (workflow, client):
        with SetWorkflowID("w1"):
            handle = DBOS.start_workflow(workflow)
        until(lambda: threads, "the execution")
        assert state(client, "w1") == ("PENDING", 1)
        client.send("w1", "yes", topic="answer")
        handle.get_result()
    assert threads[0] is threads[1]


def test_ending_a_delay_does_not_queue_the_work(tmp_path: Path) -> None:
    with engine(tmp_path, lambda: None) as (_, client):
        client.register_queue("line")
        options: Any = {"workflow_name": "plain", "queue_name": "line", "workflow_id": "w1", "delay_seconds": 3600}
        client.enqueue(options)
    lone = DBOSClient(system_database_url=f"sqlite:///{tmp_path / 'plain.db'}")
    lone.set_workflow_delay("w1", delay_seconds=0)
    assert state(lone, "w1") == ("DELAYED", 0)
    lone.destroy()


def test_no_call_ends_a_delay_in_a_transaction_of_ours() -> None:
    found = {name for name in dir(DBOSClient) if name.endswith("_in_transaction")}
    assert found == {"enqueue_in_transaction", "send_in_transaction", "send_bulk_in_transaction"}


def test_work_that_gets_further_in_each_attempt_is_given_up_all_the_same(tmp_path: Path) -> None:
    done: list[int] = []

    def climb() -> None:
        for number in range(5):
            before = len(done)
            DBOS.run_step({"name": "climb"}, lambda number=number: done.append(number))
            if len(done) > before:
                raise SystemExit("killed after one more step")

    def steps(client: DBOSClient) -> int:
        return len(client.list_workflow_steps("w1"))

    with engine(tmp_path, climb, max_recovery_attempts=1) as (workflow, client):
        with SetWorkflowID("w1"):
            DBOS.start_workflow(workflow)
        until(lambda: steps(client) == 1, "the first attempt")
    with engine(tmp_path, climb, max_recovery_attempts=1) as (_, client):
        until(lambda: steps(client) == 2, "the second attempt")
    with engine(tmp_path, climb, max_recovery_attempts=1) as (_, client):
        until(lambda: state(client, "w1")[0] == "MAX_RECOVERY_ATTEMPTS_EXCEEDED", "the end of the third")
    assert done == [0, 1]


def test_the_status_of_work_does_not_name_its_execution() -> None:
    assert "owner_xid" not in WorkflowStatus.__annotations__


def test_no_call_counts_work() -> None:
    assert not [name for name in dir(DBOSClient) if "count" in name or "aggregate" in name]
