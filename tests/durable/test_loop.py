"""A loop in one process: keys, results, failures, cancelling, retrying, restarts and the limits of a run."""

import sqlite3
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tests.disclosure.accounts import ALICE, BOB, WAYS, User, Way, assert_own, script
from tests.durable.desk import Question, prompt_with, shout
from tests.waiting import PATIENCE, until
from weakincentives import (
    Binding,
    Budget,
    MarkdownSection,
    Prompt,
    PromptEvaluationError,
    PromptTemplate,
    ResourceRegistry,
    ScriptedAdapter,
    Tool,
    ToolContext,
    ToolResult,
    tool,
)
from weakincentives.adapters.scripted import call
from weakincentives.durable import (
    DatabaseBusyError,
    DeadLetterError,
    DurableError,
    DurableMainLoop,
    KeyConflictError,
    NoSuchWorkError,
    WorkCancelledError,
    WorkPendingError,
)
from weakincentives.errors import BudgetExceededError, DeadlineExceededError, SerdeError
from weakincentives.prompt import OpenAndHalt, OpenOrRead
from weakincentives.runtime import ModelReply, ModelRequest


@dataclass(frozen=True, slots=True)
class Answer:
    text: str


@contextmanager
def running(path: Path, script: Any, *tools: Tool[Any, Any], disclosure: Any = None, **options: Any) -> Iterator[Any]:
    prepare = prompt_with(*tools, disclosure=disclosure)
    with DurableMainLoop("test", prepare, ScriptedAdapter(script), str(path / "durable.db"), **options) as loop:
        yield loop


def calling(name: str, **arguments: Any) -> Callable[[ModelRequest], Any]:
    """A model that calls a tool once and repeats its result."""

    def model(request: ModelRequest) -> Any:
        last = request.messages[-1]
        return last.text if last.role == "tool" else call(name, **arguments)

    return model


def test_a_key_gives_one_result_once(tmp_path: Path) -> None:
    script = [call("shout", text="hi"), "HI it is."]
    with running(tmp_path, script, shout) as loop:
        first = loop.execute(Question("Say hi"), key="a")
        assert (first.text, first.turns, loop.execute(Question("Say hi"), key="a")) == ("HI it is.", 2, first)


def test_a_key_used_twice_at_once_is_worked_on_once(tmp_path: Path) -> None:
    pytest.importorskip("dbos", reason="needs the extra [durable]")
    asked = threading.Barrier(2)
    calls: list[ModelRequest] = []

    def model(request: ModelRequest) -> str:
        calls.append(request)
        asked.wait(PATIENCE)
        return "once"

    with running(tmp_path, model) as loop, ThreadPoolExecutor(2) as pool:
        first = pool.submit(loop.execute, Question("?"), key="a")
        until(lambda: calls, "the first to ask")
        second = pool.submit(loop.execute, Question("?"), key="a")
        asked.wait(PATIENCE)
        assert (first.result().text, second.result().text, len(calls)) == ("once", "once", 1)


def test_a_result_outlives_its_process(tmp_path: Path) -> None:
    with running(tmp_path, ["yes"]) as loop:
        first = loop.execute(Question("?"), key="a")
    with running(tmp_path, []) as loop:
        assert loop.execute(Question("?"), key="a") == loop.result("a") == first


def test_a_typed_output_comes_back_typed(tmp_path: Path) -> None:
    template = PromptTemplate[Answer](
        ns="tests", key="typed", sections=[MarkdownSection(title="T", key="t", template="?")]
    )
    loop = DurableMainLoop("test", lambda _: Prompt(template), ScriptedAdapter([Answer("42")]), str(tmp_path / "d.db"))
    with loop:
        assert loop.execute(Question("?"), key="a").output == Answer("42")
    with loop:
        assert loop.result("a").output == Answer("42")


class Person(BaseModel):
    name: str


@pytest.mark.parametrize("output", [Person, Person | int])
def test_models_and_tools_of_others_work_durably(tmp_path: Path, output: Any) -> None:
    def greet(params: dict[str, Any], *, context: ToolContext) -> ToolResult[Person]:
        return ToolResult(value=Person(name=params["name"]))

    schema = {"properties": {"name": {"type": "string"}}, "required": ["name"]}
    foreign = Tool.from_schema(name="People.greet", description="", schema=schema, handler=greet)
    section = MarkdownSection(title="T", key="t", template="?", tools=[foreign])
    template = PromptTemplate[output](ns="tests", key="models", sections=[section])
    script = [call("People.greet", name="Ann"), Person(name="Ann")]
    loop = DurableMainLoop("test", lambda _: Prompt(template), ScriptedAdapter(script), str(tmp_path / "d.db"))
    with loop:
        assert loop.execute(Question("?"), key="a").output == Person(name="Ann")
    with loop:
        assert loop.result("a").output == Person(name="Ann")


def test_a_key_of_another_request_is_refused(tmp_path: Path) -> None:
    with running(tmp_path, ["yes"]) as loop:
        loop.execute(Question("one"), key="a")
        with pytest.raises(KeyConflictError, match="'test/a' was used for another request"):
            loop.execute(Question("two"), key="a")


def test_submitted_work_is_done_in_the_background(tmp_path: Path) -> None:
    with running(tmp_path, lambda request: request.messages[0].text[-3:]) as loop:
        loop.start()
        for number in range(20):
            loop.submit(Question(f"no {number:03}"), key=f"{number}")
        assert len({loop.result(f"{number}").text for number in range(20)}) == 1


def test_an_unknown_key_is_an_error(tmp_path: Path) -> None:
    with running(tmp_path, []) as loop, pytest.raises(NoSuchWorkError, match="wink work list"):
        loop.result("nothing")


def test_a_failure_is_raised_again_and_can_be_retried_from_its_step(tmp_path: Path) -> None:
    script = [
        call("shout", text="hi"),
        PromptEvaluationError("overloaded", prompt_name="loop", phase="request"),
        "HI, at last.",
    ]
    with running(tmp_path, script, shout) as loop:
        with pytest.raises(PromptEvaluationError, match="overloaded") as caught:
            loop.execute(Question("?"), key="a")
        assert caught.value.phase == "request"
        loop.retry("a")
        assert loop.result("a").text == "HI, at last."
        assert [step.name for step in loop.store.steps("test/a")] == ["begin", "model", "shout", "model"]


def test_a_retry_repeats_no_tool_call_that_succeeded(tmp_path: Path) -> None:
    paid: list[str] = []

    @tool
    def pay(context: ToolContext) -> str:
        """Pay."""
        paid.append(context.idempotency_key)
        return "paid"

    with running(tmp_path, [call("pay", call_id="c")], pay, budget=Budget(max_turns=1)) as loop:
        with pytest.raises(BudgetExceededError):
            loop.execute(Question("?"), key="a")
        loop.retry("a")
        with pytest.raises(BudgetExceededError):
            loop.result("a")
    with running(tmp_path, ["done"], pay) as loop:
        loop.start()
        loop.retry("a")
        assert (loop.result("a").text, paid) == ("done", ["test/a:3:c"])


def test_a_retry_asks_the_model_again_if_its_reply_was_rejected(tmp_path: Path) -> None:
    with running(tmp_path, [ModelReply("No.", stop_reason="refusal"), "Yes."]) as loop:
        with pytest.raises(PromptEvaluationError, match="refused to answer"):
            loop.execute(Question("?"), key="a")
        loop.retry("a")
        assert loop.result("a").text == "Yes."


def test_a_failure_is_logged_once_with_the_frames_of_the_program(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def explode(request: Any) -> str:
        raise RuntimeError("exploded")

    loop = DurableMainLoop[Question, None]("test", prompt_with(), ScriptedAdapter(explode), str(tmp_path / "d.db"))
    with loop, pytest.raises(RuntimeError):
        loop.execute(Question("?"), key="a")
    (record,) = [record for record in caplog.records if record.exc_info]
    assert record.getMessage() == "test/a failed: RuntimeError: exploded"
    assert record.exc_info is not None
    assert [frame.name for frame in traceback.extract_tb(record.exc_info[2])] == ["explode"]


@pytest.mark.parametrize("place", ["model", "prepare"])
def test_a_program_that_exits_fails_its_run_and_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    def leave(where: str) -> None:
        if where == place:
            raise SystemExit(3)

    def model(request: ModelRequest) -> Any:
        leave("model")

    def prepare(question: Question) -> Prompt[Any]:
        leave("prepare")
        return prompt_with()(question)

    loop = DurableMainLoop[Question, None]("test", prepare, ScriptedAdapter(model), str(tmp_path / "d.db"))
    with loop, pytest.raises(DurableError, match=r"SystemExit\(3\) was raised"):
        loop.execute(Question("?"), key="a")
    (record,) = [record for record in caplog.records if record.exc_info]
    assert record.exc_info is not None
    assert [frame.name for frame in traceback.extract_tb(record.exc_info[2])][-1] == "leave"


def test_a_tool_that_exits_has_failed_and_its_run_goes_on(tmp_path: Path) -> None:
    @tool
    def stop() -> None:
        """Stop."""
        raise SystemExit(3)

    with running(tmp_path, [call("stop"), "at last"], stop) as loop:
        assert loop.execute(Question("?"), key="a").text == "at last"


def test_cancelled_work_stops_and_can_be_continued(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "weakincentives.durable")
    attempts = iter([True])

    def stop(params: None, *, context: ToolContext) -> ToolResult[None]:
        if next(attempts, False):
            loop.cancel("a")
        return ToolResult("stopping")

    stopping = Tool[None, None](name="stop", description="Stop.", handler=stop)
    with running(tmp_path, [call("stop"), "at last"], stopping) as loop:
        with pytest.raises(WorkCancelledError, match="wink work retry test/a"):
            loop.execute(Question("?"), key="a")
        assert loop.status("a").status == "cancelled"
        assert not [record for record in caplog.records if record.exc_info]
        assert "test/a left: it was cancelled" in caplog.messages
        loop.retry("a")
        assert loop.result("a").text == "at last"


def test_waiting_for_a_result_ends_at_its_timeout(tmp_path: Path) -> None:
    def model(request: ModelRequest) -> str:
        with pytest.raises(WorkPendingError) as caught:
            loop.result("a", timeout=0)
        return str(caught.value.status)

    with running(tmp_path, model) as loop:
        assert loop.execute(Question("?"), key="a").text == "running"


@pytest.mark.parametrize("disclosure", [OpenOrRead(), OpenAndHalt()])
def test_a_restart_opens_sections_as_in_the_main_loop(tmp_path: Path, disclosure: Any) -> None:
    def model(request: ModelRequest) -> Any:
        if not any(tool.name == "shout" for tool in request.tools):
            return call("open_sections", section_keys=["tools"], reason="to shout")
        return "open" if request.messages[-1].name == "shout" else call("shout", text="a")

    with running(tmp_path, model, shout, disclosure=disclosure) as loop:
        assert loop.execute(Question("?"), key="a").text == "open"
        assert [step.name for step in loop.store.steps("test/a")] == [
            "begin",
            "model",
            "open_sections",
            "model",
            "shout",
            "model",
        ]


def test_work_without_a_budget_stops_after_fifty_turns_and_its_error_has_the_usage(tmp_path: Path) -> None:
    with running(tmp_path, lambda request: call("shout", text="hi"), shout) as loop:
        with pytest.raises(BudgetExceededError, match="max_turns=50, spent 50") as caught:
            loop.execute(Question("Never end"), key="a")
        assert caught.value.usage.input_tokens > 0
        with pytest.raises(BudgetExceededError) as again:
            loop.execute(Question("Never end"), key="a")
        assert again.value.usage == caught.value.usage


def test_the_budget_holds_for_the_work(tmp_path: Path) -> None:
    script = [call("shout", text="a"), call("shout", text="b"), "never"]
    refused = pytest.raises(BudgetExceededError, match="max_tool_calls=1")
    with running(tmp_path, script, shout, budget=Budget(max_tool_calls=1)) as loop, refused:
        loop.execute(Question("?"), key="a")


def test_the_deadline_counts_from_the_beginning_of_the_work(tmp_path: Path) -> None:
    with running(tmp_path, ["never"], deadline_seconds=0.0) as loop, pytest.raises(DeadlineExceededError):
        loop.execute(Question("?"), key="a")


def test_a_tool_gets_a_key_that_is_the_same_for_every_attempt(tmp_path: Path) -> None:
    keys: list[str] = []

    def remember(params: None, *, context: ToolContext) -> ToolResult[None]:
        keys.append(context.idempotency_key)
        return ToolResult("ok")

    once = Tool[None, None](name="once", description="Remember.", handler=remember)
    with running(tmp_path, [call("once", call_id="c"), call("once", call_id="c"), "done"], once) as loop:
        loop.execute(Question("?"), key="a")
    before, after = keys
    assert before == "test/a:3:c"
    assert after.startswith("test/a:5:") and after != "test/a:5:c"


def test_another_process_cannot_run_the_work_of_a_file_that_is_in_use(tmp_path: Path) -> None:
    pytest.importorskip("dbos", reason="needs the extra [durable]")
    script = (
        "from weakincentives.durable.ownership import FileLock; "
        f"lock = FileLock({str(tmp_path / 'durable.db')!r}); lock.acquire(); print('locked', flush=True); input()"
    )
    with (
        subprocess.Popen([sys.executable, "-c", script], stdin=-1, stdout=-1, text=True) as other,
        running(tmp_path, ["yes"]) as loop,
    ):
        assert other.stdout is not None and other.stdout.readline() == "locked\n"
        with pytest.raises(DatabaseBusyError, match=rf"Process {other.pid} runs the work"):
            loop.execute(Question("?"), key="a")
        loop.submit(Question("?"), key="b")
        assert loop.status("b").status == "queued"
        other.communicate("\n")
        loop.start()
        assert loop.result("b").text == "yes"


def test_loops_share_their_process(tmp_path: Path) -> None:
    """A tool of one loop executes another, under the key of its call."""

    @tool
    def delegate(context: ToolContext) -> str:
        """Let the other loop answer."""
        return str(other.execute(Question("?"), key=context.idempotency_key).text)

    database = str(tmp_path / "durable.db")
    with running(tmp_path, calling("delegate", call_id="c"), delegate) as loop:
        other = DurableMainLoop("other", prompt_with(), ScriptedAdapter(["from the other"]), database)
        with other:
            assert loop.execute(Question("?"), key="a").text == "from the other"
            assert other.result("test/a:3:c").text == "from the other"


def test_loops_that_share_a_process_share_database_and_version(tmp_path: Path) -> None:
    with running(tmp_path, ["yes"]) as loop:
        loop.execute(Question("?"), key="a")
        elsewhere = DurableMainLoop("other", prompt_with(), ScriptedAdapter(["no"]), str(tmp_path / "other.db"))
        with elsewhere, pytest.raises(DurableError, match="need the same database_url and version"):
            elsewhere.execute(Question("?"), key="a")
        with running(tmp_path, ["no"]) as twin, pytest.raises(DurableError, match="already runs a loop called 'test'"):
            twin.execute(Question("?"), key="b")
        assert loop.execute(Question("?"), key="a").text == "yes"


def test_a_prompt_that_changed_between_runs_is_detected(tmp_path: Path) -> None:
    versions = iter(["old", "new"])

    def prepare(question: Question) -> Prompt[Any]:
        section = MarkdownSection(title="T", key="t", template=next(versions))
        return Prompt(PromptTemplate[None](ns="t", key="k", sections=[section]))

    failing = [call("none"), PromptEvaluationError("overloaded", prompt_name="k", phase="request")]
    with DurableMainLoop("test", prepare, ScriptedAdapter(failing), str(tmp_path / "d.db")) as loop:
        with pytest.raises(PromptEvaluationError, match="overloaded"):
            loop.execute(Question("?"), key="a")
        loop.retry("a")
        with pytest.raises(DurableError, match=r"prepare\(\), a section or a tool has changed"):
            loop.result("a")


def test_work_of_another_version_is_left_to_its_workers(tmp_path: Path) -> None:
    with running(tmp_path, ["never"], version="1") as loop:
        loop.start()
        loop.store.submit("test", "a", Question("?"), queue="test", version="2", tenant=None)
        loop.submit(Question("?"), key="b")
        loop.result("b")
        assert (loop.status("a").status, loop.status("a").version) == ("queued", "2")
    with running(tmp_path, ["done"], version="2") as loop:
        loop.start()
        assert loop.result("a").text == "done"


def test_async_tools_run_in_durable_work_too(tmp_path: Path) -> None:
    @tool
    async def later(text: str) -> str:
        """Say it later."""
        return f"later {text}"

    with running(tmp_path, calling("later", text="a"), later) as loop:
        assert loop.execute(Question("?"), key="a").text == "later a"


def test_a_resource_that_cannot_be_closed_does_not_cost_the_answer(tmp_path: Path) -> None:
    class Stubborn:
        def close(self) -> None:
            raise OSError("still in use")

    def prepare(question: Question) -> Prompt[Any]:
        stubborn = Binding(Stubborn, lambda _: Stubborn(), eager=True)
        return prompt_with(shout)(question).bind(resources=ResourceRegistry.of(stubborn))

    adapter = ScriptedAdapter([call("shout", text="hi"), "HI"])
    with DurableMainLoop("test", prepare, adapter, str(tmp_path / "d.db")) as loop:
        assert loop.execute(Question("?"), key="a").text == "HI"


def test_a_value_that_cannot_be_serialised_is_named(tmp_path: Path) -> None:
    class Handle:
        def render(self) -> str:
            return "a handle"

    @tool
    def handle() -> Any:
        """Return something that can be shown but not recorded."""
        return ToolResult("ok", value=Handle())

    refused = pytest.raises(SerdeError, match="Handle cannot be serialised; use a dataclass")
    with running(tmp_path, [call("handle"), "never"], handle) as loop, refused:
        loop.execute(Question("?"), key="a")


def test_nothing_is_stored_as_a_pickle(tmp_path: Path) -> None:
    with running(tmp_path, [call("shout", text="hi"), "HI"], shout) as loop:
        loop.execute(Question("?"), key="a")
    with closing(sqlite3.connect(tmp_path / "durable.db")) as database:
        for table in ("workflow_status", "operation_outputs"):
            assert set(database.execute(f"SELECT serialization FROM {table}")) == {("wink_tagged_json",)}


def test_a_prompt_in_the_place_of_prepare_is_refused(tmp_path: Path) -> None:
    prompt = prompt_with()(Question("?"))
    with pytest.raises(DurableError, match="got Prompt and ScriptedAdapter"):
        DurableMainLoop("a", prompt, ScriptedAdapter())  # type: ignore[arg-type]
    forgetful = DurableMainLoop("a", lambda _: prompt.template, ScriptedAdapter(), str(tmp_path / "d.db"))  # type: ignore[arg-type, return-value]
    with forgetful, pytest.raises(DurableError, match=r"prepare\(\) must return a Prompt, got PromptTemplate"):
        forgetful.execute(Question("?"), key="a")


@pytest.mark.parametrize("folder", ["a b", "jürgen", "100%", "what?", "a#b", "a%20b"])
def test_a_file_and_its_lock_are_where_they_were_named(tmp_path: Path, folder: str) -> None:
    database = tmp_path / folder / "d.db"
    with DurableMainLoop("test", prompt_with(), ScriptedAdapter(["yes"]), str(database)) as loop:
        assert loop.execute(Question("?"), key="a").text == "yes"
    assert {path.name for path in database.parent.iterdir()} == {"d.db", "d.db.lock"}
    assert list(tmp_path.iterdir()) == [database.parent]


@pytest.mark.parametrize("end", ["cancelled", "dead"])
def test_work_that_is_retried_goes_back_to_its_own_queue(database_url: str, end: str) -> None:
    with DurableMainLoop("test", prompt_with(), ScriptedAdapter(), database_url) as loop:
        loop.submit(Question("?"), key="a", tenant="t", queue="machine-7")
        if end == "cancelled":
            loop.cancel("a")
        else:
            give_up(loop.store)
        assert (loop.status("a").status, loop.status("a").queue) == (end, "machine-7")
        loop.retry("a")
        work = loop.status("a")
        assert (work.status, work.queue, work.tenant) == ("queued", "machine-7", "t")


def test_pruned_work_is_gone_with_its_steps_and_its_key_is_free(database_url: str) -> None:
    answers = iter(["first", "second"])
    with DurableMainLoop("test", prompt_with(), ScriptedAdapter(lambda _: next(answers)), database_url) as loop:
        assert loop.execute(Question("?"), key="a").text == "first"
        loop.submit(Question("?"), key="later", queue="machine-7")
        assert loop.store.prune(older_than_seconds=3600) == 0
        assert loop.store.prune(older_than_seconds=-60) == 1
        assert [work.key for work in loop.store.list()] == ["later"]
        assert loop.store.steps("test/a") == ()
        assert loop.execute(Question("other"), key="a").text == "second"


def give_up(store: Any) -> None:
    """Mark all work as the engine marks work that was attempted too often."""
    import sqlalchemy as sa

    from weakincentives.durable.database import status_table as status

    given_up = {"status": "MAX_RECOVERY_ATTEMPTS_EXCEEDED", "queue_name": None, "owner_xid": None}
    with store.engine.begin() as connection:
        connection.execute(sa.update(status).values(**given_up))


def test_work_that_is_given_up_says_how_often_it_was_executed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import sqlalchemy as sa

    from weakincentives.durable.database import status_table as status

    with running(tmp_path, ["never"], max_attempts=3) as loop:
        loop.submit(Question("?"), key="a")
        with loop.store.engine.begin() as connection:
            connection.execute(sa.update(status).values(recovery_attempts=3))
        loop.start()
        with pytest.raises(DeadLetterError, match="given up after 3 attempts"):
            loop.result("a")
        assert (loop.status("a").status, loop.status("a").attempts) == ("dead", 3)
    assert "test/a was given up after 3 attempts without progress." in caplog.messages


def test_work_needs_a_key(tmp_path: Path) -> None:
    with running(tmp_path, ["never"]) as loop:
        for call_it in (loop.execute, loop.submit):
            with pytest.raises(DurableError, match=r"key must be a text that names the work, .* got ''"):
                call_it(Question("?"), key="")
        with pytest.raises(DurableError, match="got 7"):
            loop.result(7)  # type: ignore[arg-type]


def test_a_bad_name_and_a_bad_database_are_refused(tmp_path: Path) -> None:
    for nowhere in (":memory:", "sqlite://", "sqlite:///:memory:"):
        with pytest.raises(DurableError, match="does not support databases in memory"):
            DurableMainLoop("a", prompt_with(), ScriptedAdapter(), nowhere).status("a")
    with pytest.raises(DurableError, match="without '/'"):
        DurableMainLoop("a/b", prompt_with(), ScriptedAdapter())
    with pytest.raises(DurableError, match="does not support 'mysql'"):
        DurableMainLoop("a", prompt_with(), ScriptedAdapter(), "mysql://host/db").status("a")
    with pytest.raises(DurableError, match="Cannot use postgresql"):
        DurableMainLoop("a", prompt_with(), ScriptedAdapter(), "postgresql://localhost:1/db").status("a")


@pytest.mark.parametrize("way", WAYS)
def test_what_a_section_has_loaded_for_one_work_is_not_shown_to_another(tmp_path: Path, way: Callable[[], Way]) -> None:
    prompt_for, adapter = way(), ScriptedAdapter([*script(ALICE), *script(BOB)])
    with DurableMainLoop("pay", lambda name: prompt_for(User(name)), adapter, str(tmp_path / "d.db")) as loop:
        for user in (ALICE, BOB):
            before = len(adapter.requests)
            loop.execute(user.name, key=user.name)
            assert_own(user, adapter.requests[before:])
