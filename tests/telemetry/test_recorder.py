from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.telemetry.agents import FAIL, SCRIPT, hearing, prompt, run
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.errors import PromptEvaluationError
from weakincentives.limits import Prices, TokenUsage
from weakincentives.prompt import (
    ClearAllVisibilityOverrides,
    OpenAndHalt,
    Prompt,
    PromptTemplate,
    Tool,
    ToolResult,
    VisibilityExpansionRequired,
)
from weakincentives.redaction import Redactor
from weakincentives.runtime import MainLoop, Message, ModelReply, ToolInvoked
from weakincentives.session import Session
from weakincentives.telemetry import (
    RunFileError,
    RunStore,
    UnknownType,
    Unserialisable,
    read_run,
    reader,
    record,
    recorder,
)
from weakincentives.telemetry.payload import Packer
from weakincentives.telemetry.runfile import Packed, RunFile


@dataclass
class Noted:
    """An event that its maker may change later."""

    words: list[str] = field(default_factory=list)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def only_run(path: Path) -> Any:
    with RunStore(path) as store:
        (summary,) = store.list_runs()
        return summary


@pytest.mark.parametrize("dynamic", [True, False], ids=["injected", "restarted"])
def test_a_run_read_back_gives_the_events_that_were_recorded(path: Path, dynamic: bool) -> None:
    script = SCRIPT if dynamic else (SCRIPT[1], SCRIPT[0], *SCRIPT[2:])
    with hearing() as heard, record(path):
        response = run(*script, supports_dynamic_tools=dynamic)
    assert read_run(path, response.run_id) == tuple(heard.events)


def test_a_main_loop_records_what_it_executes(path: Path) -> None:
    recorder = record(path)
    first, second = run(recorder=recorder), run(recorder=recorder)
    with RunStore(path) as store:
        assert [summary.run_id for summary in store.list_runs()] == [second.run_id, first.run_id]


def test_a_recorder_within_a_recorder_of_the_same_file_writes_nothing_twice(path: Path) -> None:
    with hearing() as heard, record(path):
        response = run(recorder=record(path))
    assert len(read_run(path, response.run_id)) == len(heard.events)


def test_runs_of_many_threads_are_told_apart(path: Path) -> None:
    recorder = record(path)
    with ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(lambda _: run(recorder=recorder).run_id, range(8)))
    with RunStore(path) as store:
        assert sorted(summary.run_id for summary in store.list_runs() if summary.status == "ok") == sorted(runs)
        assert len({tuple(recorded.kind for recorded in store.all_events(run_id)) for run_id in runs}) == 1


async def test_an_event_loop_may_record(path: Path) -> None:
    loop = MainLoop(recorder=record(path))
    response = await loop.execute_async(prompt(), session=Session(), adapter=ScriptedAdapter(SCRIPT))
    assert (only_run(path).run_id, only_run(path).status) == (response.run_id, "ok")


def test_a_run_is_summed_up(path: Path) -> None:
    usage = TokenUsage(input_tokens=1_000_000, output_tokens=100_000, cached_tokens=500_000)
    with record(path, prices={"scripted": Prices(2.0, 10.0, 1.0)}):
        run(*SCRIPT[:3], ModelReply(text="Three.", usage=usage))
    summary = only_run(path)
    assert (summary.status, summary.prompt, summary.adapter, summary.turns) == ("ok", "tests/sums", "scripted", 4)
    assert (summary.tool_calls, summary.disclosures, summary.restarts, summary.error) == (3, 2, 0, "")
    assert summary.usage.output_tokens > 100_000 and summary.cost == pytest.approx(2.5, abs=0.01)


def check_figures(path: Path) -> None:
    """The figures in the list are those of the history that the file holds."""
    with RunStore(path) as store:
        for row in store.list_runs():
            history, ledger = store.history(row.run_id), store.ledger(row.run_id)
            opened = [(step.turn, key) for step in history.openings() if step.kind == "open" for key in step.sections]
            assert (row.full_prompt_tokens, list(row.opened)) == (ledger.full_prompt_tokens, opened)
            assert row.full_prompt_tokens and opened


@pytest.mark.parametrize("dynamic", [True, False])
def test_the_figures_of_a_list_are_those_of_the_history(path: Path, dynamic: bool) -> None:
    with record(path) as recorder:

        def flush(request: Any) -> Any:
            recorder.flush()
            return next(script)

        script = iter(SCRIPT)
        adapter = ScriptedAdapter(flush, supports_dynamic_tools=dynamic)
        MainLoop().execute(prompt(), session=Session(), adapter=adapter)
    check_figures(path)


def test_the_figures_of_a_continued_run_include_what_another_recorder_wrote(path: Path) -> None:
    session = Session()
    with record(path), pytest.raises(PromptEvaluationError):
        ScriptedAdapter([*SCRIPT[:2], PromptEvaluationError("no", phase="request")]).evaluate(prompt(), session=session)
    with record(path):
        ScriptedAdapter(SCRIPT[2:]).resume(prompt(), session=session)
    check_figures(path)
    assert (only_run(path).status, only_run(path).opened) == ("ok", ((1, "guide"), (2, "sums")))


def test_the_figures_do_not_count_events_of_a_failed_transaction(path: Path) -> None:
    packer = Packer(Redactor(variables={}))
    with hearing() as heard:
        run_id = run().run_id
    batch = [Packed(run_id, "s", at, each, packer.pack(each), packer.texts, {}) for at, each in enumerate(heard.events)]
    file = RunFile(path, str, None)

    def fail(file: RunFile) -> None:
        file.write(batch[:5])
        raise ValueError

    with pytest.raises(ValueError):
        file.transact(fail)
    file.transact(lambda file: file.write(batch))
    file.close()
    check_figures(path)


def test_a_run_of_a_model_without_a_known_price_has_no_cost(path: Path) -> None:
    run(recorder=record(path))
    assert only_run(path).cost is None


def test_a_failed_run_says_why(path: Path) -> None:
    with pytest.raises(PromptEvaluationError):
        run(PromptEvaluationError("no answer", phase="request"), recorder=record(path))
    summary = only_run(path)
    assert (summary.status, summary.error) == ("failed", "PromptEvaluationError: no answer")


def test_a_run_that_opens_too_much_has_failed(path: Path) -> None:
    adapter = ScriptedAdapter([SCRIPT[1]], supports_dynamic_tools=False)
    loop = MainLoop(max_expansions=0, recorder=record(path))
    with pytest.raises(PromptEvaluationError, match="more than 0 times"):
        loop.execute(prompt(), session=Session(), adapter=adapter)
    assert only_run(path).status == "failed"


def test_an_interrupted_run_is_called_so(path: Path) -> None:
    def interrupt(request: Any) -> Any:
        raise KeyboardInterrupt

    adapter = ScriptedAdapter(interrupt)
    with pytest.raises(KeyboardInterrupt), record(path):
        adapter.evaluate(prompt(), session=Session())
    assert only_run(path).status == "interrupted"


def test_a_run_that_its_caller_stopped_is_not_running_any_more(path: Path) -> None:
    with record(path) as recorder:
        with ScriptedAdapter(["One.\nTwo."]).stream(prompt(), session=Session()) as events:
            next(events)
        recorder.flush()
        assert only_run(path).status == "interrupted"


def test_a_run_that_hands_an_opening_to_its_caller_is_halted(path: Path) -> None:
    adapter = ScriptedAdapter([SCRIPT[1]], supports_dynamic_tools=False)
    with pytest.raises(VisibilityExpansionRequired), record(path):
        adapter.evaluate(prompt(), session=Session())
    assert only_run(path).status == "halted"


def test_a_run_that_asks_its_caller_to_open_sections_has_halted(path: Path) -> None:
    session = Session()
    with record(path) as recorder:
        for _ in range(2):
            adapter = ScriptedAdapter([SCRIPT[1]], supports_dynamic_tools=False)
            with pytest.raises(VisibilityExpansionRequired):
                adapter.evaluate(prompt(), session=session)
            session.dispatch(ClearAllVisibilityOverrides())
        recorder.flush()
        with RunStore(path) as store:
            assert [summary.status for summary in store.list_runs()] == ["halted", "halted"]


def test_a_busy_file_holds_up_the_recording_and_not_the_agent(path: Path) -> None:
    with record(path) as recorder:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        response = run()
        other.execute("ROLLBACK")
        other.close()
        recorder.flush()
    assert (response.text, only_run(path).status) == ("Three.", "ok")


def test_a_file_that_stays_busy_is_given_up_and_the_agent_goes_on(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reader, "BUSY_SECONDS", 0.05)
    monkeypatch.setattr(recorder, "CLOSING_SECONDS", 0.05)
    with record(path):
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        response = run()
    other.close()
    assert response.text == "Three." and "events are missing in" in caplog.text


def test_a_file_deleted_or_moved_while_it_is_recorded_to_is_replaced_with_a_warning(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = path.with_name("kept.db")
    with record(path) as recorder:
        run()
        recorder.flush()
        path.unlink()
        run()
        recorder.flush()
        path.rename(kept)
        run()
        recorder.flush()
    assert [only_run(kept).status, only_run(path).status] == ["ok", "ok"]
    assert [entry.message for entry in caplog.records] == [
        f"'{path}' was deleted, moved or replaced; recording goes on in a new file."
    ] * 2


def test_a_new_file_has_nothing_of_a_deleted_one_that_another_process_still_has_open(path: Path) -> None:
    with record(path):
        run()
    write = "c = sqlite3.connect(sys.argv[1]); c.execute('DELETE FROM events'); c.commit()"
    hold = f"import sqlite3, sys; {write}; print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", hold, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdin is not None
        other.stdout.readline()
        path.unlink()
        with record(path):
            run()
        other.communicate(b"\n")
    assert only_run(path).status == "ok"


def test_what_is_too_much_to_keep_is_dropped_and_counted(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorder, "MAX_PENDING", 5)
    with record(path):
        run()
    with RunStore(path) as store:
        ((dropped, kept),) = store.query("SELECT dropped, (SELECT count(*) FROM events) FROM recorders")
    assert dropped > 0 and kept >= 5 and f"{dropped} events are missing" in caplog.text


def test_a_halted_evaluation_is_recorded_as_halted(path: Path) -> None:
    template = PromptTemplate(ns="t", key="h", sections=prompt().template.sections, disclosure=OpenAndHalt())
    adapter = ScriptedAdapter([call("open_sections", section_keys=["guide"], reason="to know")])
    with record(path):
        adapter.evaluate(Prompt(template), session=Session())
    assert only_run(path).status == "halted"


def test_events_outside_of_a_run_are_kept_with_their_session(path: Path) -> None:
    session = Session()
    with record(path):
        session.dispatch(Noted(["before"]))
        response = run(session=session)
        session.dispatch(Noted(["after"]))
    with RunStore(path) as store:
        assert [recorded.event for recorded in store.session_events(session.session_id)] == [Noted(["before"])]
    assert read_run(path, response.run_id)[-1] == Noted(["after"])


def test_an_event_is_recorded_as_it_was_when_it_happened(path: Path) -> None:
    session, noted = Session(), Noted(["first"])
    with record(path):
        session.dispatch(noted)
        noted.words.append("second")
    with RunStore(path) as store:
        (recorded,) = store.session_events(session.session_id)
    assert recorded.event == Noted(["first"])


class Handle:
    """What a tool may return and nobody can write down."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __repr__(self) -> str:
        return "<a handle>"

    def render(self) -> str:
        return "opened"


def test_a_value_that_cannot_be_serialised_leaves_a_placeholder(path: Path) -> None:
    def handle(params: None, *, context: Any) -> ToolResult[Handle]:
        return ToolResult("Here.", Handle())

    bound = prompt(Tool[None, Handle](name="open", description="Open.", handler=handle))
    with record(path):
        response = run(call("open"), "Done.", bound=bound)
    (invoked,) = [event for event in read_run(path, response.run_id) if isinstance(event, ToolInvoked)]
    assert response.text == "Done."
    assert invoked.result == ToolResult("Here.", Unserialisable(f"{__name__}:Handle", "<a handle>"))


def test_a_value_whose_repr_fails_is_recorded_too(path: Path) -> None:
    class Broken(Handle):
        def __repr__(self) -> str:
            raise RuntimeError("no")

    session = Session()
    with record(path):
        session.dispatch(Noted([Broken()]))  # type: ignore[list-item]
    with RunStore(path) as store:
        (recorded,) = store.session_events(session.session_id)
    assert "Broken instance" in recorded.event.words[0].text


def test_a_value_that_contains_itself_is_recorded_as_far_as_it_goes(path: Path) -> None:
    session, words = Session(), ["first"]
    words.extend([words, words])  # type: ignore[list-item]
    with record(path):
        session.dispatch(Noted(words))
    with RunStore(path) as store:
        (recorded,) = store.session_events(session.session_id)
    assert recorded.event.words[0] == "first" and "Unserialisable" in str(recorded.event)


def test_a_class_that_the_reader_does_not_have_is_named(path: Path) -> None:
    session = Session()
    with record(path):
        session.dispatch(Noted(["x"]))
    with RunStore(path) as store:
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE events SET payload = replace(payload, 'Noted', 'Gone')")
        connection.close()
        (recorded,) = store.session_events(session.session_id)
    assert recorded.event == UnknownType(f"{__name__}:Gone", {"words": ["x"]})


@pytest.mark.parametrize(
    "text", ["<script>alert(1)</script>", "\x1b[31mred\x1b[0m", "x" * 1_000_000, "broken \ud800 pair", "nul \0 byte"]
)
def test_any_text_comes_back_as_it_was(path: Path, text: str) -> None:
    with record(path):
        response = run(ModelReply(text=text), bound=prompt(intro=text.replace("$", "")))
    messages = [event for event in read_run(path, response.run_id) if isinstance(event, Message)]
    assert messages[-1].text == text and text in messages[0].text


def test_the_same_prompt_is_stored_once(path: Path) -> None:
    counts = []
    for _ in range(2):
        run(recorder=record(path))
        with RunStore(path) as store:
            counts += store.query("SELECT count(*), sum(length(text)) FROM texts")
    assert counts[0] == counts[1]


def test_failed_tools_and_runs_are_in_the_view_of_errors(path: Path) -> None:
    run(call("fail"), "Oh.", bound=prompt(FAIL), recorder=record(path))
    with RunStore(path) as store:
        found = store.query("SELECT turn, source, name, message FROM errors")
    assert found == [(1, "tool", "fail", "Tool 'fail' failed: ValueError: no such thing")]


def test_openings_are_in_the_view_of_disclosure(path: Path) -> None:
    run(recorder=record(path))
    with RunStore(path) as store:
        found = store.query("SELECT turn, action, section, route, tools FROM disclosure ORDER BY seq")
    assert found == [
        (1, "read_section", "guide", "", "[]"),
        (2, "read_section", "sums", "", "[]"),
        (2, "injected", "sums", "append", '["add"]'),
    ]


def test_tokens_of_each_turn_are_in_their_view(path: Path) -> None:
    run(ModelReply(text="Hi.", usage=TokenUsage(120, 7, 100)), recorder=record(path))
    with RunStore(path) as store:
        found = store.query("SELECT turn, model, input_tokens, cached_tokens, output_tokens FROM tokens")
    assert found == [(1, "scripted", 120, 100, 7)]


def test_flushing_makes_everything_readable_at_once(path: Path) -> None:
    with record(path) as recorder:
        response = run()
        recorder.flush()
        assert len(read_run(path, response.run_id)) == only_run(path).events


def test_a_file_that_is_no_file_of_runs_is_refused(path: Path) -> None:
    path.write_text("Dear diary, " * 1000)
    with pytest.raises(RunFileError, match=r"runs\.db"), record(path):
        pass
    with pytest.raises(RunFileError, match=r"runs\.db"):
        RunStore(path)


def test_a_file_that_is_not_there_is_named_with_the_way_out(path: Path) -> None:
    with pytest.raises(RunFileError, match=r"no run file at .*record"):
        RunStore(path)
