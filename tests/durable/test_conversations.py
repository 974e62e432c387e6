"""Durable conversations in one process: order, joining, stopping, decisions, media, limits, and what is stored."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from tests.disclosure.accounts import ALICE, BOB, Replies, User, assert_own, bound_again
from tests.guarding.loaded import Loaded
from tests.waiting import PATIENCE, until
from weakincentives import (
    Approve,
    Budget,
    Deny,
    Image,
    MarkdownSection,
    Prompt,
    PromptEvaluationError,
    PromptTemplate,
    ScriptedAdapter,
    ToolContext,
    call,
    delegate,
    tool,
)
from weakincentives.durable import (
    DatabaseUnavailableError,
    DurableConversations,
    DurableError,
    KeyConflictError,
    NoSuchWorkError,
    QueueLimits,
    WorkCancelledError,
    WorkPendingError,
)
from weakincentives.durable.database import blob_table, conversation_table, run_table, stream_table
from weakincentives.errors import AbandonedCallError, BudgetExceededError, DeadlineExceededError, GuardRefusedError
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.guards import Guard, Refuse
from weakincentives.resources import Binding, ResourceRegistry
from weakincentives.runtime import (
    Channel,
    Compacted,
    Compaction,
    Completed,
    LiveRun,
    ModelReply,
    ModelRequest,
    Restarted,
    SectionOpened,
    TextDelta,
    ToolEmitted,
    ToolEnded,
    ToolStarted,
)

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 20
Model = Callable[[ModelRequest], Any]


def template(*tools: Any, **options: Any) -> PromptTemplate[Any]:
    desk = MarkdownSection(title="Desk", key="desk", template="Answer.", tools=list(tools))
    return PromptTemplate[None](ns="tests", key="desk", sections=[desk], **options)


@contextmanager
def answered_by(
    model: Model | list[Any], database_url: str, *tools: Any, limits: QueueLimits = QueueLimits(), **options: Any
) -> Iterator[DurableConversations[Any]]:
    """Conversations with this model, answered in this process."""
    declared = {name: options.pop(name) for name in ("guards",) if name in options}
    prompt = template(*tools, **declared)
    prepare = options.pop("prepare", lambda conversation: Prompt(prompt))
    with DurableConversations[Any]("desk", prepare, ScriptedAdapter(model), database_url, **options) as chats:
        chats.start(limits=limits)
        yield chats


def echo(request: ModelRequest) -> str:
    return f"{sum(message.by_user for message in request.messages)}: {request.messages[-1].text}"


class Held:
    """A model that waits, in the answer to `text`, until it is let go."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.reached, self.go = threading.Event(), threading.Event()

    def __call__(self, request: ModelRequest) -> str:
        if request.messages[-1].text == self._text and not self.go.is_set():
            self.reached.set()
            assert self.go.wait(PATIENCE)
        return echo(request)


def texts(chats: DurableConversations[Any], conversation: str = "ann") -> list[str]:
    return [message.text for message in chats.messages(conversation) if message.role != "system"]


def rows(chats: DurableConversations[Any], table: sa.Table) -> int:
    with chats.store.engine.connect() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


def test_a_client_sends_messages_and_a_worker_answers_them_in_order(database_url: str) -> None:
    client = DurableConversations[None]("desk", lambda name: Prompt(template()), ScriptedAdapter(echo), database_url)
    with answered_by(echo, database_url), client:
        assert client.send("ann", "one", timeout=PATIENCE).text == "1: one"
        assert client.send("ann", "two", timeout=PATIENCE).text == "2: two"
        assert client.send("bob", "one", timeout=PATIENCE).run_id == "desk/bob:1"
        assert texts(client) == ["one", "1: one", "two", "2: two"]
        assert client.read("ann").conversation_id == "desk/ann"
        assert client.messages("nobody") == ()


def test_messages_that_arrive_during_a_run_come_next_in_order(database_url: str) -> None:
    model = Held("one")
    with answered_by(model, database_url) as chats:
        streams = [chats.stream("ann", text) for text in ("one", "two", "three")]
        assert model.reached.wait(PATIENCE)
        with pytest.raises(WorkPendingError, match="Run 4 of conversation 'ann' is queued for workers of version"):
            chats.send("ann", "four", timeout=0)
        # Other conversations are not held up.
        assert chats.send("bob", "hi", timeout=PATIENCE).text == "1: hi"
        model.go.set()
        ends = [list(stream)[-1] for stream in streams]
        assert [end.response.text for end in ends if isinstance(end, Completed)] == ["1: one", "2: two", "3: three"]
        assert chats.send("ann", "five", timeout=PATIENCE).text == "5: five"


def test_a_message_joins_the_run_under_way_before_its_next_model_call(database_url: str) -> None:
    reached, go = threading.Event(), threading.Event()

    @tool
    def look() -> str:
        """Look."""
        reached.set()
        assert go.wait(PATIENCE)
        return "seen"

    def model(request: ModelRequest) -> Any:
        return call("look") if request.messages[-1].text == "one" else echo(request)

    with answered_by(model, database_url, look) as chats:
        first = chats.stream("ann", "one")
        assert reached.wait(PATIENCE)
        second = chats.stream("ann", "two", join=True)
        go.set()
        (*_, end), (*_, same) = first, second
        assert end == same and isinstance(end, Completed)
        assert end.response.text == "2: two"
        assert texts(chats) == ["one", "", "seen", "two", "2: two"]
        # Without a run under way, it is a message like any other.
        assert chats.send("ann", "three", join=True, timeout=PATIENCE).text == "3: three"


def test_a_message_that_joins_while_the_model_writes_its_answer_is_answered_too(tmp_path: Any) -> None:
    model = Held("one")
    with answered_by(model, str(tmp_path / "durable.db")) as chats:
        first = chats.stream("ann", "one")
        assert model.reached.wait(PATIENCE)
        joined = chats.stream("ann", "two", join=True, key="k")
        again = chats.stream("ann", "two", join=True, key="k")
        model.go.set()
        assert [list(stream)[-1] for stream in (first, joined, again)] == [list(chats.stream("ann"))[-1]] * 3
        assert texts(chats) == ["one", "1: one", "two", "2: two"]


class NoTwo(Guard):
    def before_run(self, words: str, **_: Any) -> Refuse | None:
        return Refuse("Not two.") if "two" in words else None


@pytest.mark.parametrize("is_loaded", [False, True], ids=["of the template", "of a loaded section"])
def test_guards_pass_a_message_that_would_join_as_a_run_of_its_own(tmp_path: Any, is_loaded: bool) -> None:
    model = Held("one")
    declared = template(guards=[NoTwo()])
    if is_loaded:
        declared = PromptTemplate(ns="tests", key="desk", sections=[*template().sections, Loaded(NoTwo())])
    with answered_by(model, str(tmp_path / "durable.db"), prepare=lambda name: Prompt(declared)) as chats:
        first = chats.stream("ann", "one")
        assert model.reached.wait(PATIENCE)
        joined = chats.stream("ann", "two", join=True)
        model.go.set()
        assert isinstance(list(first)[-1], Completed)
        with pytest.raises(GuardRefusedError, match="Not two"):
            list(joined)
        assert texts(chats) == ["one", "1: one"]


def test_a_message_with_a_known_key_is_not_sent_again(database_url: str) -> None:
    with answered_by(echo, database_url) as chats:
        first = chats.send("ann", "one", key="m1", timeout=PATIENCE)
        assert chats.send("ann", "one", key="m1", timeout=PATIENCE) == first
        with pytest.raises(KeyConflictError, match="Key 'm1' of conversation 'desk/ann' was used for another message"):
            chats.send("ann", "two", key="m1")
        assert chats.send("bob", "two", key="m1", timeout=PATIENCE).text == "1: two"
        assert [message.key for message in chats.messages("ann") if message.by_user] == ["m1"]


def test_a_stream_has_the_events_of_a_conversation(database_url: str) -> None:
    @tool
    def look(what: str, *, context: ToolContext) -> str:
        """Look."""
        context.emit({"looking": what})
        return f"a {what}"

    script = [call("look", call_id="c1", what="cat"), "It is\na cat."]
    with answered_by(script, database_url, look) as chats:
        events = list(chats.stream("ann", "What is it?"))
        again = list(chats.stream("ann"))
    assert [type(event) for event in events[1:]] == [ToolStarted, ToolEmitted, ToolEnded, TextDelta, Completed]
    assert events[2:5] == [
        ToolEmitted("c1", "look", {"looking": "cat"}),
        ToolEnded("c1", "look", True, "a cat"),
        TextDelta("It is\na cat."),
    ]
    assert again == events


def test_a_stream_says_which_tools_appeared_with_a_section(tmp_path: Any) -> None:
    from weakincentives import SectionVisibility

    @tool
    def look() -> str:
        """Look."""
        return "seen"

    closed = MarkdownSection(
        title="Eyes", key="eyes", template="Look.", summary="Eyes.", visibility=SectionVisibility.SUMMARY, tools=[look]
    )
    prompt = PromptTemplate[None](ns="tests", key="eyes", sections=[closed])
    script = [call("read_section", section_key="eyes"), "Done."]
    with answered_by(script, str(tmp_path / "durable.db"), prepare=lambda name: Prompt(prompt)) as chats:
        opened = [event for event in chats.stream("ann", "Look!") if isinstance(event, SectionOpened)]
    assert opened == [SectionOpened("eyes", ("look",))]


class Halting(Channel):
    """Writes a reply in two halves, and waits between those of the first until it is let go."""

    go = threading.Event()

    def call(self, request: ModelRequest) -> ModelReply:
        return ModelReply(echo(request))

    def stream(self, request: ModelRequest) -> Iterator[str | TextDelta | ModelReply]:
        reply = self.call(request)
        yield reply.text[:2]
        assert self.go.wait(PATIENCE)
        yield reply.text[2:]
        yield reply


class HaltingAdapter(ScriptedAdapter):
    def channel(self) -> Channel:
        return Halting()


def test_a_reader_that_falls_behind_reads_each_word_once(tmp_path: Any) -> None:
    Halting.go.clear()
    database = str(tmp_path / "durable.db")
    with DurableConversations[None]("desk", lambda name: Prompt(template()), HaltingAdapter(), database) as chats:
        chats.start()
        behind, late, unread = chats.stream("ann", "one"), chats.stream("ann"), chats.stream("ann")
        assert (next(behind), next(late)) == (TextDelta("1:"), TextDelta("1:"))
        Halting.go.set()
        chats.send("ann", "two", timeout=PATIENCE)
        rest, end = behind
        assert (rest, isinstance(end, Completed)) == (TextDelta(" one"), True)
        # A minute later, only the stream of the newest run is kept.
        with chats.store.engine.begin() as connection:
            connection.execute(sa.update(run_table).values(ended_ms=run_table.c.ended_ms - 60_000))
        chats.send("ann", "three", timeout=PATIENCE)
        with chats.store.engine.connect() as connection:
            assert set(connection.execute(sa.select(stream_table.c.number)).scalars()) == {3}
        assert list(unread) == [TextDelta("1: one"), end]
        assert list(late) == [Restarted("The run ended a while ago; this is its answer."), TextDelta("1: one"), end]


class LostAtTheEnd:
    """An archive whose database is lost, once, after a reader has read the events of a run that has ended."""

    def __init__(self, archive: Any) -> None:
        self._archive = archive
        self.lost = False
        self._read = False

    def find(self, *arguments: Any) -> Any:
        if self._read and not self.lost:
            self.lost = True
            raise DatabaseUnavailableError("restarting")
        return self._archive.find(*arguments)

    def read(self, *arguments: Any) -> Any:
        self._read = True
        return self._archive.read(*arguments)


def test_a_reader_loses_no_word_when_the_database_restarts_while_it_reads(tmp_path: Any) -> None:
    with answered_by(echo, str(tmp_path / "durable.db")) as chats:
        chats.send("ann", "one", timeout=PATIENCE)
        stream = chats.stream("ann")
        archive = stream._reader.archive = LostAtTheEnd(chats.store.archive)  # type: ignore[assignment]
        delta, end = stream
        assert (delta, isinstance(end, Completed), archive.lost) == (TextDelta("1: one"), True, True)


def test_a_failed_run_raises_for_its_sender_and_the_conversation_goes_on(database_url: str) -> None:
    def model(request: ModelRequest) -> str:
        if request.messages[-1].text == "one":
            raise PromptEvaluationError("overloaded", prompt_name="desk", phase="request")
        return echo(request)

    with answered_by(model, database_url) as chats:
        with pytest.raises(PromptEvaluationError, match="overloaded"):
            chats.send("ann", "one", timeout=PATIENCE)
        with pytest.raises(PromptEvaluationError, match="overloaded"):
            list(chats.stream("ann"))
        assert chats.send("ann", "two", timeout=PATIENCE).text == "2: two"
        with pytest.raises(DurableError, match=r"send the message again"):
            chats.store.retry("desk/ann:1")


class Endless(Channel):
    """Writes one reply without end, and any other at once."""

    def call(self, request: ModelRequest) -> ModelReply:
        return ModelReply(echo(request))

    def stream(self, request: ModelRequest) -> Iterator[str | TextDelta | ModelReply]:
        while request.messages[-1].text == "one":
            yield "more "
            time.sleep(0.01)
        yield self.call(request)


class EndlessAdapter(ScriptedAdapter):
    def channel(self) -> Channel:
        return Endless()


def test_a_stopped_run_keeps_what_was_shown_and_the_next_message_is_answered(database_url: str) -> None:
    adapter = EndlessAdapter()
    with DurableConversations[None]("desk", lambda name: Prompt(template()), adapter, database_url) as chats:
        chats.start()
        assert chats.stop("ann") is False
        stream = chats.stream("ann", "one", key="k")
        waiting = chats.stream("ann", "two")
        begun = next(stream)
        assert chats.stop("ann") is True
        shown = "".join(event.text for event in (begun, *stream) if isinstance(event, TextDelta))
        with pytest.raises(WorkCancelledError, match="'desk/ann:1' was stopped"):
            chats.send("ann", "one", key="k", timeout=PATIENCE)
        assert list(waiting)[-1].response.text == "2: two"  # type: ignore[union-attr]
        assert texts(chats) == ["one", shown, "two", "2: two"]


class Silent(Channel):
    """Writes one word of its reply, and no more until it is interrupted."""

    def __init__(self) -> None:
        self.interrupted = threading.Event()

    def call(self, request: ModelRequest) -> ModelReply:
        raise NotImplementedError

    def stream(self, request: ModelRequest) -> Iterator[str | TextDelta | ModelReply]:
        yield "one"
        assert self.interrupted.wait(PATIENCE)
        raise AbandonedCallError("interrupted")


class SilentAdapter(ScriptedAdapter):
    @contextmanager
    def open_channel(self, live: LiveRun) -> Iterator[Channel]:
        channel = Silent()
        live.interrupt = channel.interrupted.set
        yield channel


def test_a_stopped_run_does_not_wait_for_a_model_that_is_silent(database_url: str) -> None:
    with DurableConversations[None]("desk", lambda name: Prompt(template()), SilentAdapter(), database_url) as chats:
        chats.start()
        stream = chats.stream("ann", "one")
        assert next(stream) == TextDelta("one")
        assert chats.stop("ann")
        assert list(stream) == []


def test_a_run_that_is_stopped_before_it_begins_keeps_its_message(database_url: str) -> None:
    client = DurableConversations[None]("desk", lambda name: Prompt(template()), ScriptedAdapter(echo), database_url)
    with client:
        stream = client.stream("ann", "one")
        assert client.stop("ann")
        with answered_by(echo, database_url):
            assert list(stream) == []
            assert client.send("ann", "two", timeout=PATIENCE).text == "2: two"


def test_a_call_waits_for_a_decision_that_any_client_makes(database_url: str) -> None:
    keys: list[str] = []

    @tool(approval="effects", changes=(Filesystem,))
    def write(text: str, *, context: ToolContext) -> str:
        """Write."""
        keys.append(context.idempotency_key)
        context.filesystem.write("note.txt", text)
        return "written"

    def model(request: ModelRequest) -> Any:
        last = request.messages[-1]
        return call("write", call_id="c1", text=last.text) if last.by_user else f"{last.text}!"

    def prepare(name: str) -> Prompt[Any]:
        return Prompt(template(write)).bind(resources={Filesystem: InMemoryFilesystem()})

    client = DurableConversations[Any]("desk", prepare, ScriptedAdapter(model), database_url)
    with answered_by(model, database_url, prepare=prepare), client:
        response = client.send("ann", "hello", timeout=PATIENCE)
        assert [(each.call_id, each.tool) for each in response.pending] == [("c1", "write")]
        (pending,) = client.pending("ann")
        assert pending.effects is not None and [file.path for file in pending.effects.files] == ["note.txt"]
        assert client.decide("ann", {"c1": Approve(by="Ann")}, timeout=PATIENCE).text == "written!"
        assert (client.pending("ann"), len(keys)) == ((), 1)
        shown = [step.name for step in client.store.steps("desk/ann:2")]
        assert (shown, client.store.archive.decisions("desk/ann:2")) == (
            ["write", "model"],
            {"c1": Approve("Ann")},
        )
        (later,) = client.send("ann", "again", timeout=PATIENCE).pending
        assert later.call_id != "c1"
        denied = client.send("ann", "No.", decisions={later.call_id: Deny("Not now.")}, timeout=PATIENCE)
        assert denied.pending
        with pytest.raises(PromptEvaluationError, match="nothing"):
            client.decide("ann", {"nothing": Approve()}, timeout=PATIENCE)


def test_results_stand_in_the_order_of_the_calls_after_a_decision(database_url: str) -> None:
    @tool(read_only=True)
    def look(n: int) -> str:
        "Look."
        return f"looked {n}"

    @tool(approval="call")
    def pay(n: int) -> str:
        "Pay."
        return f"paid {n}"

    seen: list[list[str]] = []

    def model(request: ModelRequest) -> Any:
        results = [message.text for message in request.messages if message.role == "tool"]
        seen.append(results)
        return "Done." if results else [call("pay", n=1), call("look", n=2), call("pay", n=3)]

    with answered_by(model, database_url, look, pay) as client:
        client.send("ann", "Go.", timeout=PATIENCE)
        first, second = client.pending("ann")
        client.decide("ann", {second.call_id: Approve()}, timeout=PATIENCE)
        client.decide("ann", {first.call_id: Approve()}, timeout=PATIENCE)
    assert seen == [[], ["paid 1", "looked 2", "paid 3"]]


def test_wink_work_shows_who_decided(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from weakincentives.cli import main

    @tool(approval="call")
    def act() -> str:
        """Act."""
        return "done"

    database = str(tmp_path / "durable.db")
    with answered_by([call("act", call_id="c1"), "Well."], database, act) as chats:
        chats.send("ann", "Act.", timeout=PATIENCE)
        chats.decide("ann", {"c1": Deny("Not now.", by="Carol")}, timeout=PATIENCE)
    assert main(["work", "show", "desk/ann:2", "--database-url", database]) == 0
    printed = capsys.readouterr().out
    assert "denied    c1 (by Carol: Not now.)" in printed and "answer    Well." in printed


def test_files_in_memory_are_part_of_a_conversation(database_url: str) -> None:
    @tool
    def note(text: str, *, context: ToolContext) -> str:
        """Note."""
        files = context.filesystem
        files.write("notes.txt", text, mode="append" if files.exists("notes.txt") else "create")
        return files.read("notes.txt")

    def prepare(name: str) -> Prompt[Any]:
        return Prompt(template(note)).bind(resources={Filesystem: InMemoryFilesystem({"a.txt": "a"})})

    def model(request: ModelRequest) -> Any:
        last = request.messages[-1]
        return call("note", text=last.text) if last.by_user else last.text

    with answered_by(model, database_url, prepare=prepare) as chats:
        assert chats.send("ann", "x", timeout=PATIENCE).text == "x"
        assert chats.send("ann", "y", timeout=PATIENCE).text == "xy"
        assert chats.send("bob", "z", timeout=PATIENCE).text == "z"


def test_the_bytes_of_media_are_stored_once(database_url: str) -> None:
    image = Image.from_bytes(PNG, "image/png")
    with answered_by(echo, database_url) as chats:
        for _ in range(3):
            chats.send("ann", [image, "What is it?"], timeout=PATIENCE)
        assert rows(chats, blob_table) == 1
        assert [message.parts[0] for message in chats.messages("ann") if message.by_user] == [image] * 3
        with chats.store.engine.connect() as connection:
            (state,) = connection.execute(sa.select(conversation_table.c.state)).scalars()
        assert len(state) < len(PNG)


def test_params_come_with_a_message(tmp_path: Any) -> None:
    from tests.durable.desk import Question

    section = MarkdownSection[Question](title="Desk", key="desk", template="${text}")
    prompt = PromptTemplate[None](ns="tests", key="desk", sections=[section])

    def model(request: ModelRequest) -> str:
        return request.messages[0].text.splitlines()[-1]

    with answered_by(model, str(tmp_path / "durable.db"), prepare=lambda name: Prompt(prompt)) as chats:
        assert chats.send("ann", "one", params=(Question("Be brief."),), timeout=PATIENCE).text == "Be brief."


def test_params_that_come_with_a_message_are_not_another_conversation_s(tmp_path: Any) -> None:
    """One prompt for all."""
    from tests.durable.desk import Question

    section = MarkdownSection[Question](title="Desk", key="desk", template="${text}")
    prompt = Prompt(PromptTemplate[None](ns="tests", key="desk", sections=[section])).bind(Question("Be polite."))

    def model(request: ModelRequest) -> str:
        return request.messages[0].text.splitlines()[-1]

    with answered_by(model, str(tmp_path / "durable.db"), prepare=lambda name: prompt) as chats:
        assert chats.send("ann", "one", params=(Question("Be brief."),), timeout=PATIENCE).text == "Be brief."
        assert chats.send("bob", "one", timeout=PATIENCE).text == "Be polite."


def test_budgets_and_deadlines_limit_a_run_and_a_conversation(tmp_path: Any) -> None:
    def model(request: ModelRequest) -> Any:
        return call("look") if request.messages[-1].text == "loop" else echo(request)

    @tool
    def look() -> str:
        """Look."""
        return "loop"

    total = Budget(max_turns=3)
    with answered_by(model, str(tmp_path / "a.db"), look, budget=Budget(max_turns=2), total=total) as chats:
        with pytest.raises(BudgetExceededError, match="max_turns=2"):
            chats.send("ann", "loop", timeout=PATIENCE)
        assert chats.send("ann", "one", timeout=PATIENCE).turns == 1
        with pytest.raises(BudgetExceededError, match="max_turns=3"):
            chats.send("ann", "two", timeout=PATIENCE)
        assert chats.send("bob", "one", timeout=PATIENCE).turns == 1
    with (
        answered_by(echo, str(tmp_path / "b.db"), deadline_seconds=0.0) as chats,
        pytest.raises(DeadlineExceededError),
    ):
        chats.send("ann", "one", timeout=PATIENCE)


def test_a_tenant_has_at_most_so_many_runs_at_a_time(database_url: str) -> None:
    running, most, lock = [0], [0], threading.Lock()
    full = threading.Barrier(2)

    def model(request: ModelRequest) -> str:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        full.wait(PATIENCE)
        with lock:
            running[0] -= 1
        return "Done."

    with answered_by(model, database_url, limits=QueueLimits(tenant_concurrency=2)) as chats:
        streams = [chats.stream(f"chat-{number}", "hi", tenant="acme") for number in range(6)]
        assert [list(stream)[-1].response.text for stream in streams] == ["Done."] * 6  # type: ignore[union-attr]
    assert most == [2]


def test_a_delegated_run_is_part_of_the_run(tmp_path: Any) -> None:
    child = PromptTemplate[None](
        ns="tests", key="child", sections=[MarkdownSection(title="C", key="c", template="Work.")]
    )
    work = delegate(child, name="work", description="Work.", adapter=ScriptedAdapter(["The child is done."]))
    script = [call("work", call_id="c1"), "All done."]
    with answered_by(script, str(tmp_path / "durable.db"), work) as chats:
        response = chats.send("ann", "Go.", timeout=PATIENCE)
        assert (response.text, response.turns) == ("All done.", 3)


def test_a_cancelled_run_is_not_in_the_way_of_the_next(database_url: str) -> None:
    reached, go = threading.Event(), threading.Event()

    @tool
    def look() -> str:
        """Look."""
        reached.set()
        assert go.wait(PATIENCE)
        return "seen"

    def model(request: ModelRequest) -> Any:
        return call("look") if request.messages[-1].text == "one" else echo(request)

    with answered_by(model, database_url, look) as chats:
        first, second = chats.stream("ann", "one"), chats.stream("ann", "two")
        assert reached.wait(PATIENCE)
        chats.store.cancel("desk/ann:1")
        go.set()
        assert [type(event) for event in first][-1] is ToolEnded
        assert isinstance(list(second)[-1], Completed)
        assert texts(chats) == ["one", "", "seen", "two", "2: two"]


def test_a_deleted_conversation_leaves_no_row(database_url: str) -> None:
    with answered_by(echo, database_url) as chats:
        chats.send("ann", [Image.from_bytes(PNG, "image/png"), "one"], timeout=PATIENCE)
        chats.send("bob", "one", timeout=PATIENCE)
        late = chats.stream("ann")
        assert (chats.delete("ann"), chats.delete("ann")) == (True, False)
        with pytest.raises(NoSuchWorkError, match="it was deleted"):
            list(late)
        tables = (conversation_table, run_table, stream_table, blob_table)
        assert [rows(chats, table) for table in tables] == [1, 1, 1, 0]
        assert [work.id for work in chats.store.list()] == ["desk/bob:1"]
        assert chats.send("ann", "new", timeout=PATIENCE).text == "1: new"


def test_a_conversation_that_is_deleted_during_a_run_ends_quietly(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = Held("one")
    with answered_by(model, database_url) as chats:
        stream = chats.stream("ann", "one")
        assert model.reached.wait(PATIENCE)
        chats.delete("ann")
        model.go.set()
        with pytest.raises(NoSuchWorkError):
            list(stream)
        until(lambda: not chats.health().running, "the run to end")
        assert chats.send("ann", "new", timeout=PATIENCE).text == "1: new"
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def test_who_waits_for_a_deleted_conversation_does_not_get_the_answer_of_its_successor(database_url: str) -> None:
    model = Held("one")
    with answered_by(model, database_url) as chats, ThreadPoolExecutor() as threads:
        sender = threads.submit(chats.send, "ann", "one", timeout=PATIENCE)
        assert model.reached.wait(PATIENCE)
        reader = chats.stream("ann")
        chats.delete("ann")
        assert chats.send("ann", "new", timeout=PATIENCE).text == "1: new"
        model.go.set()
        for wait in (sender.result, lambda: list(reader)):
            with pytest.raises(NoSuchWorkError, match="it was deleted"):
                wait()


def test_a_state_of_another_release_says_what_to_do(tmp_path: Any) -> None:
    from weakincentives.durable.archive import State, _packed

    with answered_by(echo, str(tmp_path / "durable.db")) as chats:
        chats.send("ann", "one", timeout=PATIENCE)
        old = _packed(State('{"format": "weakincentives.session/1", "session_id": "", "slices": []}'))[0]
        with chats.store.engine.begin() as connection:
            connection.execute(sa.update(conversation_table).values(state=old))
        with pytest.raises(DurableError, match=r"(?s)'desk/ann' was stored by another version.*upgrades=.*delete\(\)"):
            chats.send("ann", "two", timeout=PATIENCE)


@pytest.mark.parametrize("name", ["", "  ", 7, "a\0b", "\ud800"])
def test_a_conversation_needs_a_name(tmp_path: Any, name: Any) -> None:
    with answered_by(echo, str(tmp_path / "durable.db")) as chats, pytest.raises(DurableError, match="must be a text"):
        chats.send(name, "one")


@pytest.mark.parametrize("key", ["", 7, "a\0b", "\ud800"])
def test_a_key_that_no_database_stores_is_refused_before_anything_is_sent(tmp_path: Any, key: Any) -> None:
    with answered_by(["hi"], str(tmp_path / "durable.db")) as chats:
        with pytest.raises(DurableError, match="key must be a text that names the message"):
            chats.send("ann", "hi", key=key)
        assert chats.send("ann", "hi", timeout=PATIENCE).text == "hi"


def test_a_conversation_that_does_not_exist_cannot_be_forked_or_rewound(tmp_path: Any) -> None:
    with answered_by([], str(tmp_path / "durable.db")) as chats:
        for change in (lambda: chats.fork("bob"), lambda: chats.rewind("bob", "p1"), lambda: chats.undo_rewind("bob")):
            with pytest.raises(NoSuchWorkError, match="There is no conversation 'bob'; send it a message first"):
                change()
        assert not chats.delete("bob")


async def test_the_awaitable_forms_do_the_same(tmp_path: Any) -> None:
    with answered_by(echo, str(tmp_path / "durable.db")) as chats:
        assert (await chats.send_async("ann", "one", timeout=PATIENCE)).text == "1: one"
        async with chats.stream_async("ann", "two") as stream:
            events = [event async for event in stream]
            assert (await stream.number(), events[0]) == (2, TextDelta("2: two"))
        assert [message.text for message in await chats.messages_async("ann")][-1] == "2: two"
        assert (await chats.read_async("ann")).messages == chats.messages("ann")
        assert (await chats.pending_async("ann"), await chats.stop_async("ann")) == ((), False)
        assert await chats.delete_async("ann")


def test_a_conversation_goes_back_to_a_point_and_forward_again(database_url: str) -> None:
    @tool
    def note(text: str, *, context: ToolContext) -> str:
        """Note."""
        context.filesystem.write("note.txt", text)
        return text

    def model(request: ModelRequest) -> Any:
        last = request.messages[-1]
        return call("note", text=last.text) if last.by_user else f"{echo(request)} noted"

    def prepare(name: str) -> Prompt[Any]:
        return Prompt(template(note)).bind(resources={Filesystem: InMemoryFilesystem()})

    with answered_by(model, database_url, prepare=prepare) as chats:
        for text in ("one", "two"):
            chats.send("ann", text, timeout=PATIENCE)
        before = chats.messages("ann")
        second = [point for point in chats.checkpoints("ann") if point.kind == "message"][-1]
        assert chats.preview("ann", second, timeout=PATIENCE).files
        assert chats.messages("ann") == before
        report = chats.rewind("ann", second, timeout=PATIENCE)
        assert [file.path for file in report.files] == ["note.txt"]
        assert texts(chats) == ["one", "", "one", "1: one noted"]
        chats.undo_rewind("ann", timeout=PATIENCE)
        assert chats.messages("ann") == before
        chats.rewind("ann", second.id, timeout=PATIENCE)
        # Numbers are not used again.
        assert chats.send("ann", "three", timeout=PATIENCE).run_id == "desk/ann:7"
        assert texts(chats)[-1] == "2: three noted"
        with pytest.raises(Exception, match="no point 'nothing'"):
            chats.rewind("ann", "nothing", timeout=PATIENCE)


class Cart:
    """A resource that each opening of the resources makes anew, and whose state belongs to the conversation."""

    def __init__(self) -> None:
        self.items: tuple[str, ...] = ()

    def snapshot(self) -> tuple[str, ...]:
        return self.items

    def restore(self, items: tuple[str, ...]) -> None:
        self.items = items


@pytest.mark.parametrize("way", ["rewind", "message to a point"])
def test_resources_that_a_factory_makes_go_back_too(tmp_path: Any, way: str) -> None:
    @tool
    def put(item: str, *, context: ToolContext) -> str:
        """Put an item into the cart."""
        cart, files = context.resources.get(Cart), context.filesystem
        cart.items = (*cart.items, item)
        files.write("cart.txt", " ".join(cart.items))
        return f"{' '.join(cart.items)} of {len(files.glob('*'))} files"

    def model(request: ModelRequest) -> Any:
        last = request.messages[-1]
        return call("put", item=last.text) if last.by_user else last.text

    made = ResourceRegistry.of(
        Binding(Cart, lambda _: Cart()), Binding(Filesystem, lambda _: InMemoryFilesystem({"a.txt": "a"}))
    )

    def prepare(name: str) -> Prompt[Any]:
        return Prompt(template(put)).bind(resources=made)

    with answered_by(model, str(tmp_path / "d.db"), prepare=prepare) as chats:
        for item in ("one", "two", "three"):
            chats.send("ann", item, timeout=PATIENCE)
        (second,) = [point for point in chats.checkpoints("ann") if point.text == "two"]
        report = chats.preview("ann", second, timeout=PATIENCE)
        assert (Cart in report.slices, report.left_alone) == (True, {})
        if way == "rewind":
            chats.rewind("ann", second, timeout=PATIENCE)
            answer = chats.send("ann", "other", timeout=PATIENCE)
        else:
            answer = chats.send("ann", "other", point=second.id, timeout=PATIENCE)
        assert answer.text == "one other of 2 files"


def test_a_fork_is_a_conversation_of_its_own(database_url: str) -> None:
    with answered_by(echo, database_url) as chats:
        for text in ("one", "two"):
            chats.send("ann", text, timeout=PATIENCE)
        second = [point for point in chats.checkpoints("ann") if point.kind == "message"][-1]
        assert chats.fork("ann", second, "bob", timeout=PATIENCE) == "bob"
        assert chats.send("bob", "other", timeout=PATIENCE).text == "2: other"
        assert (texts(chats)[-1], texts(chats, "bob")[-1]) == ("2: two", "2: other")
        assert chats.read("bob").conversation_id == "desk/bob"
        whole = chats.fork("ann", timeout=PATIENCE)
        assert texts(chats, whole) == texts(chats)
        with pytest.raises(DurableError, match="There is a conversation 'bob' already"):
            chats.fork("ann", new="bob")


def test_a_long_conversation_is_compacted_and_stays_so_for_the_next_worker(database_url: str) -> None:
    @tool(read_only=True)
    def look(row: int) -> str:
        "Look at a row."
        return f"row {row} " + "lorem ipsum dolor sit amet " * 60

    summaries, sent = [0], [0]

    def model(request: ModelRequest) -> Any:
        last = request.messages[-1]
        if last.text.startswith("Summarize"):
            summaries[0] += 1
            return "Rows were looked at."
        sent[0] = len(request.messages)
        return "Seen." if last.role == "tool" else call("look", row=sent[0])

    for worker in (1, 2):
        with answered_by(model, database_url, look, compaction=Compaction(window=2_000, keep=1)) as chats:
            for number in range(8):
                assert chats.send("ann", f"Question {worker}.{number}?", timeout=PATIENCE).text == "Seen."
                assert sent[0] < 32
            assert summaries[0] >= worker
            assert [each.by for each in chats.read("ann").session[Compacted]].count("model") == summaries[0]
            assert len(chats.messages("ann")) > 32 * worker


def test_what_a_section_has_loaded_for_one_conversation_is_not_shown_in_another(database_url: str) -> None:
    """One prompt, which each run binds again."""
    prompt_for, requests = bound_again(), dict[str, list[ModelRequest]](alice=[], bob=[])

    def model(request: ModelRequest) -> Any:
        name = next(message.text for message in request.messages if message.by_user)
        requests[name].append(request)
        return Replies(User(name))(request)

    with answered_by(model, database_url, prepare=lambda name: prompt_for(User(name))) as chats:
        for name in ("alice", "bob", "alice"):
            chats.send(name, name)
    assert_own(ALICE, requests["alice"])
    assert_own(BOB, requests["bob"])
