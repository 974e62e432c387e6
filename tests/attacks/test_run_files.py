"""A run file that was cut off, overwritten or made up: our errors alone, and what can be read is shown."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, redirect_stderr, redirect_stdout, suppress
from dataclasses import fields
from io import StringIO
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pytest

from tests.rounds import rounds
from tests.telemetry.agents import FAIL, prompt, run
from weakincentives.adapters.scripted import call
from weakincentives.cli import main
from weakincentives.errors import WinkError
from weakincentives.telemetry import (
    RunFileError,
    RunNotFoundError,
    RunStore,
    RunSummary,
    Unreadable,
    advise,
    read_run,
    record,
)
from weakincentives.viewer import export_run
from weakincentives.viewer.documents import Documents


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that ended, one with a failed call."""
    path = tmp_path_factory.mktemp("sound") / "runs.db"
    run(recorder=record(path))
    run(call("fail"), "Oh.", bound=prompt(FAIL), recorder=record(path))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


@pytest.fixture
def path(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(sound, tmp_path / "runs.db"))


def changed(path: Path, *statements: str, **values: Any) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement, values)


def read_everything(path: Path) -> list[str]:
    """Ask a file for all it has, in every way; the errors that came, of which only ours are let through."""
    problems: list[str] = []

    def ask(question: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return question(*arguments)
        except (RunFileError, RunNotFoundError) as error:
            problems.append(str(error))

    store = ask(RunStore, path)
    if store is None:
        return problems
    with store:
        documents = Documents(store)
        for question in (store.count_runs, store.last_event_id, documents.runs, documents.report):
            ask(question)
        ask(documents.search, "work")
        ask(advise, store)
        for run_id in [summary.run_id for summary in ask(store.list_runs) or ()]:
            for question in (store.ledger, documents.run, documents.events):
                json.dumps(ask(question, run_id), default=str)
            json.dumps(ask(documents.messages, run_id, 0, 50))
            ask(read_run, path, run_id)
            ask(export_run, path, run_id)
            for number in range(1, 6):
                ask(store.turn, run_id, number)
                for question in (documents.turn, documents.event, documents.prompt):
                    json.dumps(ask(question, run_id, number))
        return [*problems, *store.problems]


def wink(*words: str) -> tuple[int, str, str]:
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        code = main(words)
    return code, out.getvalue(), err.getvalue()


def run_commands(path: Path) -> Iterator[tuple[int, str, str]]:
    for words in (("runs", "list"), ("runs", "show"), ("runs", "export"), ("report",), ("view", "--export", "x.html")):
        with suppress(WinkError):
            extra = [str(path.parent / word) if word == "x.html" else word for word in words]
            position = 2 if extra[0] == "runs" else 1
            yield wink(*extra[:position], str(path), *extra[position:])


def test_a_sound_file_has_no_problem(path: Path) -> None:
    assert [
        problem for problem in read_everything(path) if "has turns" not in problem and "has no" not in problem
    ] == []
    assert [code for code, *_ in run_commands(path)] == [0] * 5


@pytest.mark.parametrize("share", range(5, 100, rounds(15, 5)))
def test_a_file_that_was_cut_off_is_named(path: Path, share: int) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * share // 100])
    assert read_everything(path) != []
    for code, _, err in run_commands(path):
        assert code == 1 and str(path) in err and "Traceback" not in err


@pytest.mark.parametrize("seed", range(rounds(15, 60)))
def test_bytes_that_were_overwritten_raise_nothing_but_our_errors(path: Path, seed: int) -> None:
    chance, content = random.Random(seed), bytearray(path.read_bytes())
    for _ in range(chance.choice([1, 20, 400])):
        at = chance.randrange(100, len(content))
        content[at : at + 8] = chance.randbytes(8)
    path.write_bytes(content)
    read_everything(path)
    for code, _, err in run_commands(path):
        assert code in (0, 1, 2) and "Traceback" not in err


DEEP = "[" * 5_000 + "]" * 5_000
PAYLOADS = {
    "nothing": "",
    "half": '{"$": "weakincentives:ModelCalled", "v": {"run',
    "null": "null",
    "another class": '{"$": "weakincentives:TokenUsage", "v": {}}',
    "no class": '{"$": "os:system", "v": "rm -rf /"}',
    "a tag of another type": '{"$": {"a": 1}, "v": []}',
    "no fields": '{"$": "weakincentives:ModelCalled", "v": {}}',
    "a missing text": '{"$": "text", "v": "00000000000000000000000000000000"}',
    "a missing part": '{"$": "json", "v": "00000000000000000000000000000000"}',
    "rows that fit nothing": '{"$": "rows", "v": {"class": "a:b", "names": ["x"], "values": [], "rows": [[3, 4]]}}',
    "deep": f'{{"$": "weakincentives:ModelCalled", "v": {DEEP}}}',
    "deep and unknown": '{"a":' * 700 + "1" + "}" * 700,
}


EVENTS = ["PromptRendered", "ModelCalled", "ToolInvoked", "Message", "ToolsInjected"]
EACH_PAYLOAD_ONCE = [*zip(cycle(EVENTS), PAYLOADS, strict=False)]


@pytest.mark.parametrize(("kind", "name"), rounds(EACH_PAYLOAD_ONCE, [*product(EVENTS, PAYLOADS)]))
def test_events_that_are_damaged_leave_the_others_readable(path: Path, kind: str, name: str) -> None:
    changed(path, "UPDATE events SET payload = :payload WHERE kind = :kind", payload=PAYLOADS[name], kind=kind)
    assert any(problem.startswith("event ") for problem in read_everything(path))
    for code, _, err in run_commands(path):
        assert code in (0, 1) and "Traceback" not in err


@pytest.mark.parametrize("field", ["usage", "tools", "overrides", "messages", "latency", "model", "stop_reason"])
def test_a_field_of_another_type_makes_its_event_unreadable(path: Path, field: str) -> None:
    changed(
        path, f"UPDATE events SET payload = json_set(payload, '$.v.{field}', json('[[7]]')) WHERE kind = 'ModelCalled'"
    )
    read_everything(path)
    with RunStore(path) as store:
        run_id = store.list_runs()[-1].run_id
        events = store.events(run_id, kinds=["ModelCalled"])
    assert {type(recorded.event) for recorded in events} == {Unreadable}
    assert store.problems[0] == f"event {events[0].seq} of run {run_id}: {events[0].event.problem}"


def test_what_can_be_read_of_a_run_is_shown(path: Path) -> None:
    changed(path, "UPDATE events SET payload = '{' WHERE kind = 'ModelCalled' AND turn = 2")
    with RunStore(path) as store:
        run_id = store.list_runs()[-1].run_id
        assert [turn.number for turn in store.history(run_id).turns] == [1, 3, 4]
        assert store.turn(run_id, 4).complete
        with pytest.raises(RunFileError, match=rf"Turn 2 of run '{run_id}' in '.*runs\.db' cannot be read; event \d+"):
            store.turn(run_id, 2)
    code, out, err = wink("runs", "show", str(path), run_id)
    assert (code, "open    guide\n" in out) == (1, True)
    assert err.startswith(f"wink: '{path}' is damaged: event ")


def test_texts_that_are_missing_are_named(path: Path) -> None:
    changed(path, "DELETE FROM texts WHERE text LIKE '%How to work%'")
    with RunStore(path) as store:
        run_id = store.list_runs()[-1].run_id
        replies = [message.text for message in store.turn(run_id, 2).messages]
        assert "[this text is missing in the run file]" in replies[-1] and "texts are missing" in store.problems[0]


@pytest.mark.parametrize("table", ["runs", "events", "texts", "recorders"])
def test_a_file_without_one_of_its_tables_is_refused_by_name(path: Path, table: str) -> None:
    changed(path, "DROP VIEW disclosure", "DROP VIEW tokens", "DROP VIEW errors", f"DROP TABLE {table}")
    assert any("no such table" in problem for problem in read_everything(path))
    told = [(code, err) for code, _, err in run_commands(path)]
    assert any(code == 1 and f"no such table: {table}" in err for code, err in told)
    assert [(code, err) for code, err in told if code and "no such table" not in err] == []


def test_columns_of_other_types_are_left_out(path: Path) -> None:
    changed(
        path,
        "CREATE TABLE copy AS SELECT * FROM events",
        "DROP VIEW disclosure",
        "DROP VIEW tokens",
        "DROP VIEW errors",
        "DROP TABLE events",
        "CREATE TABLE events (id, run_id, seq, session_id, turn, kind, time, payload)",
        "INSERT INTO events SELECT id, run_id, seq, session_id, 'x', kind, 'y', x'ff' FROM copy",
        "INSERT INTO events SELECT * FROM copy",
        "CREATE INDEX events_by_kind ON events (run_id, kind, seq)",
        "CREATE INDEX events_by_run ON events (run_id, seq)",
        "CREATE INDEX events_disclosing ON events (run_id, seq) "
        "WHERE kind = 'ToolInvoked' AND instr(payload, '\"disclosure\":{')",
    )
    assert any("columns of other types" in problem for problem in read_everything(path))


def test_a_summary_of_other_types_is_shown_as_far_as_it_goes(path: Path) -> None:
    changed(
        path,
        "CREATE TABLE copy AS SELECT * FROM runs",
        "DROP TABLE runs",
        "CREATE TABLE runs AS SELECT * FROM copy",
        "UPDATE runs SET started = 1e300, updated = 'now', turns = 'many', cost = x'00', model = NULL, prompt = 5",
    )
    with RunStore(path) as store:
        summaries = store.list_runs()
    assert [(run.turns, run.cost, run.model, run.prompt) for run in summaries] == [(0, None, "", "5")] * 2
    assert [code for code, *_ in run_commands(path)] == [0] * 5


TEXTS = (DEEP, "[[1" * 600, '[["x", 1]]', '[[1e999, "k"]]', "[[1]]", "{}", "", "\x00\x1b[31m\u202e", "x" * 100_000)
NUMBERS = (2**63 - 1, -(2**63), -1, 0)
REALS = (1e308, -1e308, float("inf"), -1.0, 0.0)
BY_TYPE: dict[str, tuple[Any, ...]] = {"TEXT": TEXTS, "INTEGER": NUMBERS, "REAL": REALS}


USAGE = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens")
NO_COLUMNS = ("run_id", "usage", "status", "tags", "children")
SUMMARY = [*USAGE, *(each.name for each in fields(RunSummary) if each.name not in NO_COLUMNS)]


@pytest.mark.parametrize("column", SUMMARY)
def test_a_run_with_a_damaged_column_is_still_listed_and_shown(path: Path, column: str) -> None:
    with RunStore(path) as store:
        run_ids = [row[0] for row in store.query("SELECT run_id FROM runs ORDER BY rowid")]
        ((kind,),) = store.query("SELECT type FROM pragma_table_info('runs') WHERE name = ?", [column])
    for value in BY_TYPE[kind]:
        changed(path, f"UPDATE runs SET {column} = :value WHERE rowid = 1", value=value)
        with RunStore(path) as store:
            documents = Documents(store)
            shown = [documents.runs(), documents.groups("prompt"), documents.run(run_ids[0])]
            json.dumps(shown, allow_nan=False)
            assert len(store.list_runs()) == 2
        for words in (("list",), ("list", "--json"), ("show", run_ids[0]), ("show", run_ids[0], "--json")):
            code, out, err = wink("runs", words[0], str(path), *words[1:])
            assert (code, err, bool(out)) == (0, "", True), str(value)[:40]


@pytest.mark.parametrize("kind", ["PromptRendered", "ModelCalled", "ToolInvoked", "Message", "%"])
def test_the_figures_of_a_run_are_shown_although_its_events_are_damaged(path: Path, kind: str) -> None:
    with RunStore(path) as store:
        run_id = store.list_runs()[-1].run_id
    _, sound, _ = wink("runs", "show", str(path), run_id)
    changed(path, "UPDATE events SET payload = '{' WHERE kind LIKE :kind", kind=kind)
    _, damaged, _ = wink("runs", "show", str(path), run_id)
    assert " tokens over 4 turns, " in sound
    assert damaged.splitlines()[-1] == sound.splitlines()[-1]


def test_bytes_that_are_no_text_are_replaced(path: Path) -> None:
    changed(path, "UPDATE runs SET model = cast(x'ff41' AS TEXT)")
    with RunStore(path) as store:
        assert [run.model for run in store.list_runs()] == ["\ufffdA", "\ufffdA"]


def test_recording_to_a_damaged_file_is_our_error(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:8192])
    with pytest.raises(RunFileError, match=r"Cannot record to '.*runs\.db'"), record(path):
        pass


TAGS = ("7", "[1, [2]]", '"x"', "null", '{"a": {"b": 1}, "c": null}', '{"a": 1e999}', "[" * 2000, "{")


@pytest.mark.parametrize("tags", TAGS)
def test_a_run_with_damaged_tags_is_still_listed_and_filtered(path: Path, tags: str) -> None:
    payload = f'{{"$": "x", "v": {{"tags": {tags}, "overrides_tag": {tags}}}}}'
    changed(path, "UPDATE events SET payload = :payload WHERE kind = 'PromptRendered' AND seq = 1", payload=payload)
    with RunStore(path) as store:
        assert len(store.list_runs()) == 2
        assert store.list_runs(tags={"a": "b"}) == ()
        json.dumps(Documents(store).runs(), allow_nan=False)
