"""What the engine's public calls do to running work: why `durable.ownership` changes its status table itself.

If one of these tests fails with a later DBOS, a public call may have become enough, and ours can go.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from dbos import DBOSClient
from dbos._error import DBOSException

from tests.durable.desk import Question, prompt_with
from tests.durable.fleet import PATIENCE, until
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

        with DurableMainLoop("asking", prompt_with(look), ScriptedAdapter(model), database_url) as loop:
            loop.start()
            loop.submit(Question("?"), key="q1")
            until(lambda: self.begun == 1, "the tool call")
            try:
                yield loop.store.client
            finally:
                self.go.set()
                until(lambda: not loop.health().running, "the work to end")


@pytest.fixture
def held() -> Held:
    return Held()


def state(client: DBOSClient) -> tuple[str, int]:
    (found,) = client.list_workflows(workflow_ids=[WORK], load_input=False, load_output=False)
    return found.status, found.recovery_attempts or 0


def test_resuming_starts_running_work_a_second_time_and_forgets_its_attempts(held: Held, tmp_path: Any) -> None:
    with held.running(str(tmp_path / "durable.db")) as client:
        assert state(client) == ("PENDING", 1)
        client.resume_workflow(WORK, queue_name="asking")
        until(lambda: held.begun == 2, "the second execution")
        assert state(client) == ("PENDING", 1)


def test_work_that_was_cancelled_and_resumed_runs_twice_at_a_time(held: Held, tmp_path: Any) -> None:
    with held.running(str(tmp_path / "durable.db")) as client:
        client.cancel_workflow(WORK)
        client.resume_workflow(WORK, queue_name="asking")
        until(lambda: held.begun == 2, "the second execution")
        assert not held.go.is_set()


def test_our_cancel_and_retry_let_the_execution_go_on(held: Held, tmp_path: Any) -> None:
    database = str(tmp_path / "durable.db")
    with held.running(database), DurableMainLoop("asking", prompt_with(), ScriptedAdapter([]), database) as loop:
        loop.store.cancel(WORK)
        loop.store.retry(WORK)
        held.go.set()
        assert loop.result("q1", timeout=PATIENCE).text == "Done."
    assert held.begun == 1


def test_running_work_cannot_be_delayed_or_rewound(held: Held, tmp_path: Any) -> None:
    with held.running(str(tmp_path / "durable.db")) as client:
        client.set_workflow_delay(WORK, delay_seconds=60)
        assert state(client) == ("PENDING", 1)
        with pytest.raises(DBOSException, match="only a workflow in a terminal state can be rewound"):
            client.rewind_workflow(WORK, start_step=3, queue_name="asking")


def test_a_fork_of_running_work_is_other_work_beside_it(held: Held, tmp_path: Any) -> None:
    with held.running(str(tmp_path / "durable.db")) as client:
        fork = client.fork_workflow(WORK, 3, queue_name="asking").workflow_id
        until(lambda: held.begun == 2, "the fork to begin")
        assert (fork != WORK, state(client)) == (True, ("PENDING", 1))
