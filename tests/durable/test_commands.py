"""`wink work` and the arguments of `wink worker`."""

import json
import sqlite3
import threading
import time
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.durable.desk import Question, prompt_with, shout
from tests.waiting import PATIENCE
from weakincentives import PromptEvaluationError, ScriptedAdapter
from weakincentives.adapters.scripted import call
from weakincentives.cli import main
from weakincentives.durable import DurableMainLoop

loop = DurableMainLoop("desk", prompt_with(shout), ScriptedAdapter())


@pytest.fixture
def database(tmp_path: Path) -> str:
    """A database with a run that is done and one that failed."""
    path = str(tmp_path / "durable.db")
    failure = PromptEvaluationError("overloaded", prompt_name="loop", phase="request")
    script = [call("shout", text="a"), "A", failure]
    with DurableMainLoop("desk", prompt_with(shout), ScriptedAdapter(script), path) as loop:
        loop.execute(Question("?"), key="good")
        with pytest.raises(PromptEvaluationError):
            loop.execute(Question("?"), key="bad")
    return path


def wink(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    assert main(words) == code
    written = capsys.readouterr()
    return json.loads(written.out) if "--json" in words else written.out + written.err


def test_list_shows_the_newest_first(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    listed = wink(capsys, "work", "list", "--json", "--database-url", database)
    assert {(work["id"], work["status"], work["attempts"]) for work in listed} == {
        ("desk/good", "done", 1),
        ("desk/bad", "failed", 1),
    }
    text = wink(capsys, "work", "list", "--status", "failed", "--loop", "desk", "--database-url", database)
    assert "desk/bad" in text and "desk/good" not in text


@pytest.mark.parametrize("schema", ["", "CREATE TABLE notes (text TEXT)"])
def test_reading_commands_leave_the_database_of_another_program_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], schema: str
) -> None:
    pytest.importorskip("dbos", reason="needs the extra [durable]")
    path = tmp_path / "other.db"
    path.touch()
    with closing(sqlite3.connect(path)) as other:
        other.execute(schema)
    before = path.read_bytes()
    said = wink(capsys, "work", "list", "--database-url", str(path), code=2)
    assert f"There is no durable work in {path}" in said
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (before, [path])


def test_reading_commands_create_no_tables_on_a_server(postgres_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        said = wink(capsys, "work", "list", "--database-url", postgres_url, code=2)
        assert "There is no durable work in postgresql" in said


def test_show_prints_the_steps_and_the_failure(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = wink(capsys, "work", "show", "desk/bad", "--json", "--database-url", database)
    assert shown["error"] == "PromptEvaluationError: overloaded"
    assert [(step["name"], step["error"]) for step in shown["steps"]] == [
        ("begin", None),
        ("model", "PromptEvaluationError: overloaded"),
    ]
    assert "shout" in wink(capsys, "work", "show", "desk/good", "--database-url", database)


def test_show_prints_the_answer_of_work_that_is_done(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "answer    A\n" in wink(capsys, "work", "show", "desk/good", "--database-url", database)
    shown = wink(capsys, "work", "show", "desk/good", "--json", "--database-url", database)
    assert shown["answer"] == "A"
    assert datetime.fromisoformat(shown["updated"]).tzinfo is not None


def test_times_are_local_in_tables(
    database: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    flags = ("desk/good", "--database-url", database)
    try:
        shown = wink(capsys, "work", "show", *flags)
    finally:
        monkeypatch.undo()
        time.tzset()
    created = datetime.fromisoformat(wink(capsys, "work", "show", "--json", *flags)["created"])
    assert f"created   {created + timedelta(hours=5, minutes=30):%Y-%m-%d %H:%M:%S}\n" in shown


def test_running_work_shows_its_last_step_and_whether_its_worker_lives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, held, release = str(tmp_path / "d.db"), threading.Event(), threading.Event()

    def model(request: Any) -> Any:
        if request.messages[-1].role != "tool":
            return call("shout", text="a")
        held.set()
        assert release.wait(PATIENCE)
        return "A"

    loop: DurableMainLoop[Any, Any]
    with DurableMainLoop("desk", prompt_with(shout), ScriptedAdapter(model), path) as loop:
        loop.start()
        loop.submit(Question("?"), key="slow")
        assert held.wait(PATIENCE)
        (listed,) = wink(capsys, "work", "list", "--json", "--database-url", path)
        assert (listed["status"], listed["worker_alive"]) == ("running", True)
        assert loop.status("slow").updated_ms == loop.store.steps("desk/slow")[-1].completed_ms
        release.set()
        loop.result("slow")
        loop.submit(Question("?"), key="next", queue="elsewhere")
    assert "no worker is alive" in wink(capsys, "work", "list", "--database-url", path)


def test_list_says_which_version_has_no_worker(postgres_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    def of(version: str) -> DurableMainLoop[Any, Any]:
        return DurableMainLoop("desk", prompt_with(shout), ScriptedAdapter(), postgres_url, version=version)

    with of("8") as new, of("7") as old:
        new.start()
        old.submit(Question("?"), key="left")
        listed = wink(capsys, "work", "list", "--database-url", postgres_url)
    assert "no worker of version 7 is alive; its runs wait for one" in listed


def test_a_queue_without_a_name_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--queue", "", "--database-url", str(tmp_path / "d.db"))
    assert "A queue needs a name, got ('',)" in wink(
        capsys, "worker", "tests.durable.test_commands:loop", *flags, code=1
    )


def test_retry_and_cancel_change_the_status(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--database-url", database)
    assert wink(capsys, "work", "retry", "desk/bad", *flags) == "desk/bad is queued\n"
    assert wink(capsys, "work", "cancel", "desk/bad", "--json", *flags)["status"] == "cancelled"
    refused = wink(capsys, "work", "retry", "desk/good", *flags, code=1)
    assert "'desk/good' is done; only failed, dead or cancelled work can be retried" in refused


def test_unknown_names_are_errors(tmp_path: Path, database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "There is no work 'desk/x'" in wink(capsys, "work", "show", "desk/x", "--database-url", database, code=2)
    assert "no durable work in" in wink(capsys, "work", "list", "--database-url", str(tmp_path / "no.db"), code=2)
    listed = wink(capsys, "work", "list", "--status", "lost", "--database-url", database, code=2)
    assert "--status must be one of queued, running, waiting, done, failed, cancelled, dead, got 'lost'" in listed


def test_prune_deletes_what_finished_long_ago(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    prune = ("work", "prune", "--database-url", database, "--older-than")
    assert wink(capsys, *prune, "1d") == "deleted 0 runs\n"
    assert wink(capsys, *prune, "0s", "--status", "failed") == "deleted 1 run\n"
    listed = wink(capsys, "work", "list", "--json", "--database-url", database)
    assert [work["id"] for work in listed] == ["desk/good"]
    assert wink(capsys, *prune, "0s", "--loop", "other", "--json") == {"deleted": 0}
    assert wink(capsys, *prune, "0s", "--json") == {"deleted": 1}
    assert "There is no work 'desk/good'" in wink(capsys, "work", "show", "desk/good", *prune[2:4], code=2)


@pytest.mark.parametrize("time", ["30", "d", "-1d", "1y"])
def test_the_age_of_pruned_work_is_a_number_with_a_unit(time: str, capsys: pytest.CaptureFixture[str]) -> None:
    written = wink(capsys, "work", "prune", f"--older-than={time}", code=2)
    assert f"time must be like 30d, 12h, 90m or 45s, got '{time}'" in written


def test_only_finished_work_can_be_pruned(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--database-url", database, "--older-than", "0s", "--status", "queued")
    written = wink(capsys, "work", "prune", *flags, code=2)
    assert "--status must be one of done, failed, cancelled, dead, got 'queued'" in written


@pytest.mark.parametrize("rate", ["10", "0/s", "x/m"])
def test_a_rate_is_a_number_per_time(rate: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "must be like 10/s, 300/m or 1000/h" in wink(capsys, "worker", "a:b", "--rate", rate, code=2)


def test_a_worker_needs_a_durable_loop(capsys: pytest.CaptureFixture[str]) -> None:
    written = wink(capsys, "worker", "tests.durable.desk:Question", code=2)
    assert "must be a DurableMainLoop or DurableConversations, got type" in written
