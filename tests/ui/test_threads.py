"""What a web application's threads keep, whom they belong to, and what they refuse."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from starlette.exceptions import HTTPException

from tests.disclosure.accounts import ALICE, BOB, CURRENT, WAYS, Replies, User, Way, assert_own
from tests.disclosure.desk import desk
from tests.ui.server import Page, Talkative, application, asked, chunks, post, said, serving
from tests.waiting import until_async
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.guards import Guard, Outcome, Refuse
from weakincentives.limits import Deadline
from weakincentives.prompt import (
    Prompt,
    PromptTemplate,
    TextSection,
    Tool,
    ToolContext,
    ToolResult,
    WorkspaceSection,
    tool,
)
from weakincentives.resources import Binding, ResourceRegistry
from weakincentives.runtime import Conversation, Message, ModelRequest
from weakincentives.session import Session, Snapshot
from weakincentives.ui import StaleThreadError, ThreadLimits, Threads, ag_ui, ui_messages, vercel_ai

PATHS = pytest.mark.parametrize("path", ["vercel", "ag-ui"])


def chatting(*lines: Any, template: Any = None) -> Conversation[Any]:
    return Conversation(Prompt(template or desk()), adapter=ScriptedAdapter([*lines]))


def scripted(*lines: Any, **options: Any) -> Threads:
    return Threads(lambda thread, request: chatting(*lines), **options)


def one(chat: Conversation[Any], **options: Any) -> Page:
    return Page(Threads(lambda thread, request: chat, **options))


def writing() -> PromptTemplate[Any]:
    @tool
    def write_file(path: str, content: str, context: ToolContext) -> str:
        "Write a file."
        assert context.filesystem is not None
        context.filesystem.write(path, content)
        return "Written."

    sections = [WorkspaceSection(), TextSection(key="a", title="A", text="Go.", tools=[write_file])]
    return PromptTemplate(ns="ui", key="a", sections=sections)


def spoken(chat: Conversation[Any]) -> list[str]:
    return [message.text for message in chat.messages if message.role in ("user", "assistant") and not message.kind]


def test_the_bytes_are_those_of_the_published_protocol() -> None:
    with serving(application(scripted("Hello."))) as url:
        status, body = post(f"{url}/vercel", asked("Hi."))
    assert (status, body.splitlines()[-2]) == (200, "data: [DONE]")
    first, *rest = chunks(body)
    assert first["type"] == "start"
    assert rest == [
        {"type": "start-step"},
        {"type": "text-start", "id": "1"},
        {"type": "text-delta", "id": "1", "delta": "Hello."},
        {"type": "text-end", "id": "1"},
        {"type": "finish-step"},
        {"type": "finish", "finishReason": "stop"},
    ]


# A store, and processes behind it.


@dataclass
class Store:
    """Keeps the newest snapshot of each thread, and refuses to store on top of an older one."""

    rows: dict[str, tuple[str, int]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    before_save: Callable[[], None] = lambda: None

    def load(self, thread: str) -> tuple[str, int] | None:
        return self.rows.get(thread)

    def save(self, thread: str, chat: Conversation[Any], version: int | None) -> int:
        self.before_save()
        with self.lock:
            stored = self.rows.get(thread)
            if (None if stored is None else stored[1]) != version:
                raise StaleThreadError(thread)
            self.rows[thread] = chat.session.snapshot().to_json(), (version or 0) + 1
            return self.rows[thread][1]

    def spoken(self, thread: str = "t1") -> list[str]:
        session = Session()
        session.restore(Snapshot.from_json(self.rows[thread][0]))
        return spoken(Conversation(Prompt(desk()), adapter=ScriptedAdapter([]), session=session))

    def process(self, answer: Callable[[ModelRequest], Any] | None = None, **options: Any) -> Page:
        """The threads of one process that uses this store; its model answers with the user's words."""
        echo = answer or (lambda request: f"{request.messages[-1].text}!")
        make = lambda thread, request: Conversation(Prompt(desk()), adapter=ScriptedAdapter(echo))  # noqa: E731
        return Page(Threads(make, self.load, self.save, **options))


async def test_processes_behind_one_store_keep_every_exchange() -> None:
    store = Store()
    a, b = store.process(), store.process()
    for page, text in zip([a, b, a, b, a], "12345", strict=True):
        assert await page.hear(text) == f"{text}!"
    assert store.spoken() == ["1", "1!", "2", "2!", "3", "3!", "4", "4!", "5", "5!"]


async def test_of_two_exchanges_at_once_in_two_processes_one_is_told_as_failed_and_nothing_is_overwritten() -> None:
    store = Store()
    other = store.process()
    inner: list[str] = []

    def model(request: ModelRequest) -> str:
        if request.messages[-1].text == "slow":
            # While the first exchange is under way, another process answers and stores.
            with ThreadPoolExecutor(1) as another:
                inner.append(another.submit(lambda: asyncio.run(store.process().hear("quick"))).result())
        return "done"

    page = store.process(model)
    _, body = await page.send("slow")
    assert inner == ["quick!"]
    assert chunks(body)[-1]["errorText"] == "The conversation has gone on elsewhere; reload the page to see it."
    assert store.spoken() == ["quick", "quick!"]
    assert await page.hear("again") == "done"
    assert await other.hear("more") == "more!"
    assert store.spoken() == ["quick", "quick!", "again", "done", "more", "more!"]


async def test_many_processes_under_load_lose_no_exchange_that_was_answered() -> None:
    store = Store()
    pages = [store.process() for _ in range(4)]

    async def talk(number: int) -> list[str]:
        answered = []
        for n in range(10):
            body = (await pages[number].send(f"{number}-{n}"))[1]
            if chunks(body)[-1]["type"] == "finish":
                answered.append(f"{number}-{n}")
        return answered

    answered = [text for texts in await asyncio.gather(*map(talk, range(4))) for text in texts]
    kept = [text for text in store.spoken() if not text.endswith("!")]
    assert sorted(kept) == sorted(answered)
    assert len(answered) == store.rows["t1"][1]


async def test_a_thread_that_was_deleted_from_the_store_begins_anew() -> None:
    store = Store()
    page = store.process()
    await page.hear("1")
    store.rows.clear()
    await page.hear("2")
    assert store.spoken() == ["2", "2!"]


async def test_opened_sections_and_snapshots_as_objects_go_from_process_to_process() -> None:
    saved: dict[str, tuple[Snapshot, int]] = {}

    def save(thread: str, chat: Conversation[Any], version: Any) -> int:
        saved[thread] = chat.session.snapshot(), (version or 0) + 1
        return saved[thread][1]

    for script in ([call("read_section", section_key="orders"), "Read."], [call("lookup"), "Found."]):
        page = Page(Threads(lambda thread, request, script=script: chatting(*script), saved.get, save))
        status, body = await page.send("Look.")
        assert (status, chunks(body)[-1]["type"]) == (200, "finish")
    assert [chunk["toolName"] for chunk in chunks(body) if chunk["type"] == "tool-input-available"] == ["lookup"]


async def test_the_functions_of_the_application_may_be_async() -> None:
    store = Store()

    async def make(thread: str, request: Any) -> Conversation[Any]:
        return chatting("One.")

    async def load(thread: str) -> Any:
        return store.load(thread)

    async def save(thread: str, chat: Conversation[Any], version: Any) -> int:
        return store.save(thread, chat, version)

    async def owner(request: Any) -> str:
        return "ann"

    page = Page(Threads(make, lambda thread: load(thread), save, owner=owner))
    assert await page.hear("Hi.") == "One."
    assert list(store.rows) == ["ann/t1"]


@PATHS
async def test_an_exchange_that_cannot_be_saved_is_logged_told_to_the_page_and_kept_in_memory(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    store, full = Store(), [True]

    def fail() -> None:
        if full:
            raise OSError("disk full")

    store.before_save = fail
    page = store.process()
    page._path = path
    _, body = await page.send("1")
    text = "The answer could not be saved. Please try again."
    assert text in (chunks(body)[-1].get("errorText"), chunks(body)[-1].get("message"))
    assert "disk" not in body and "OSError" not in body
    assert [str(r.exc_info[1]) for r in caplog.records if r.exc_info and "not be saved" in r.message] == ["disk full"]
    full.clear()
    await page.send("2")
    assert store.spoken() == ["1", "1!", "2", "2!"]


async def test_a_store_that_cannot_be_read_refuses_the_message_and_says_nothing_of_why() -> None:
    def load(thread: str) -> Any:
        raise OSError("postgres://app:hunter2@db")

    page = Page(scripted("Hello.", load=load, save=Store().save))
    answer = '{"error":"The conversation is not available at the moment. Please try again."}'
    assert await page.send("Hi.") == (503, answer)
    assert await page.get("id=t1") == (500, answer)


@pytest.mark.parametrize("stored", ["text", ("text",), ("text", None), (7, 1)])
async def test_what_load_returns_must_be_a_snapshot_and_a_version(
    stored: Any, caplog: pytest.LogCaptureFixture
) -> None:
    status, _ = await Page(scripted("Hello.", load=lambda thread: stored, save=Store().save)).send("Hi.")
    assert status == 503
    assert "load must return a snapshot, or its text, and its version" in caplog.text


async def test_what_save_returns_must_be_a_version_if_load_returns_one(caplog: pytest.LogCaptureFixture) -> None:
    store = Store()
    page = Page(scripted("One.", load=store.load, save=lambda *given: print(store.save(*given), end="")))
    _, body = await page.send("Hi.")
    assert chunks(body)[-1]["errorText"] == "The answer could not be saved. Please try again."
    assert "save must return the new version of the thread, as load will, got None" in caplog.text


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"make": None}, r"make must be a function, make\(thread, request\), got None"),
        ({"make": chatting()}, r"make must be a function, make\(thread, request\), got <.*Conversation"),
        ({"load": lambda thread: None}, "load= needs save=, which stores what load.* returns; pass both"),
        ({"load": {}, "save": print}, r"load must be a function, load\(thread\), got {}"),
        ({"save": "threads.db"}, r"save must be a function, save\(thread, chat, version\), got 'threads.db'"),
        ({"owner": "ann"}, r"owner must be a function, owner\(request\), got 'ann'"),
        ({"options": {"deadline": 1}}, r"options must be a function, options\(chat, request\), got {"),
        ({"show": True}, "show must be a function of a ToolEnded, got True; write show=lambda ended: True"),
        ({"limits": 10}, r"limits must be ThreadLimits\(...\), got 10"),
    ],
)
def test_threads_that_cannot_work_are_refused_when_they_are_made(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        Threads(**{"make": lambda thread, request: chatting(), **given})


def test_a_history_with_something_else_to_show_is_refused() -> None:
    with pytest.raises(TypeError, match="show must be a function of a ToolEnded, got True"):
        ui_messages(chatting(), show=True)  # type: ignore[arg-type]


async def test_make_sees_the_request_and_may_refuse_it() -> None:
    def make(thread: str, request: Any) -> Conversation[Any]:
        if request.headers["x-user"] != "ann":
            raise HTTPException(403, "Not yours.")
        return chatting("Hello.")

    page = Page(Threads(make))
    assert await page.send("Hi.", headers={"x-user": "bob"}) == (403, "Not yours.")
    assert await page.hear("Hi.", headers={"x-user": "ann"}) == "Hello."


async def test_options_see_every_request_and_limit_its_exchange() -> None:
    def options(chat: Conversation[Any], request: Any) -> Any:
        return {"deadline": Deadline.after(float(request.headers["x-seconds"]))}

    chat = chatting("One.", "Two.")
    page = one(chat, options=options)
    _, late = await page.send("Hi.", headers={"x-seconds": "-1"})
    assert chunks(late)[-1]["type"] == "error"
    assert await page.hear("Hi.", headers={"x-seconds": "60"}) == "One."


# Conversations stay open between exchanges.


class Connection:
    opened: ClassVar[list[str]] = []

    def __init__(self) -> None:
        self.opened.append("open")

    def close(self) -> None:
        self.opened.append("close")


@tool
def query(*, context: ToolContext) -> str:
    """Ask the database."""
    context.resources.get(Connection)
    return "7"


def connected() -> Conversation[Any]:
    section = TextSection(key="a", title="A", text="Go.", tools=[query])
    prompt: Prompt[None] = Prompt(PromptTemplate(ns="ui", key="db", sections=[section]))
    prompt = prompt.bind(resources=ResourceRegistry.of(Binding(Connection, lambda r: Connection())))
    return Conversation(prompt, adapter=ScriptedAdapter([call("query"), "One.", call("query"), "Two."]))


async def test_resources_live_between_exchanges_and_are_closed_when_the_thread_is_idle() -> None:
    Connection.opened.clear()
    chat = connected()
    page = one(chat, idle=0.05)
    assert await page.hear("1") == "One."
    assert await page.hear("2") == "Two."
    assert Connection.opened == ["open"]
    await until_async(lambda: Connection.opened == ["open", "close"])


@pytest.mark.slow
async def test_an_mcp_server_lives_between_exchanges() -> None:
    mcp = pytest.importorskip("tests.mcp.test_sections", reason="needs the extra [mcp]")
    listing, adding = call("list_items"), call("add_item", item="table")
    chat = Conversation(
        mcp.prompt(mcp.shop()), adapter=ScriptedAdapter([mcp.READ, listing, "One.", adding, "Two.", listing, "Three."])
    )
    threads = Threads(lambda thread, request: chat)
    assert [await Page(threads).hear(text) for text in "123"] == ["One.", "Two.", "Three."]
    assert "table" in [message.text for message in chat.messages if message.role == "tool"][-1]
    await threads.aclose()


async def test_an_idle_conversation_that_is_not_stored_goes_on_with_new_resources() -> None:
    Connection.opened.clear()
    page = one(connected(), idle=0)
    assert await page.hear("1") == "One."
    await until_async(lambda: Connection.opened == ["open", "close"])
    assert await page.hear("2") == "Two."
    assert Connection.opened[:3] == ["open", "close", "open"]


async def test_an_idle_conversation_that_is_stored_leaves_memory() -> None:
    store, made = Store(), list[str]()

    def make(thread: str, request: Any) -> Conversation[Any]:
        made.append(thread)
        return chatting("One.", "Two.")

    threads = Threads(make, store.load, store.save, idle=0)
    await Page(threads).hear("1")
    await until_async(lambda: not threads._threads)
    await Page(threads).hear("2")
    assert made == ["t1", "t1"]


async def test_closing_threads_closes_their_conversations_and_stops_answers() -> None:
    Connection.opened.clear()
    threads = Threads(lambda thread, request: connected())
    await Page(threads).hear("1")
    await threads.aclose()
    assert Connection.opened == ["open", "close"]


def test_conversations_are_closed_when_the_server_ends() -> None:
    Connection.opened.clear()
    with serving(application(Threads(lambda thread, request: connected()))) as url:
        post(f"{url}/vercel", asked("1"))
        assert Connection.opened == ["open"]
    assert Connection.opened == ["open", "close"]


async def test_a_conversation_that_cannot_be_opened_is_tried_again_with_the_next_message() -> None:
    tried: list[int] = []

    def connect(r: Any) -> Connection:
        tried.append(1)
        if len(tried) == 1:
            raise OSError("hunter2")
        return Connection()

    prompt: Prompt[None] = Prompt(desk())
    prompt = prompt.bind(resources=ResourceRegistry.of(Binding(Connection, connect, eager=True)))
    page = one(Conversation(prompt, adapter=ScriptedAdapter(["Hello."])))
    status, body = await page.send("Hi.")
    assert (status, "hunter2" in body) == (503, False)
    assert await page.hear("Hi.") == "Hello."


@pytest.mark.parametrize("how", ["hangs", "cancels itself", "is cancelled by another"])
async def test_an_opening_that_never_ends_holds_up_only_its_own_message(how: str) -> None:
    tried: list[int] = []

    async def connect(r: Any) -> Connection:
        tried.append(1)
        if len(tried) == 1:
            if how == "hangs":
                await asyncio.Event().wait()
            if how == "cancels itself":
                raise asyncio.CancelledError
            other = asyncio.get_running_loop().create_future()
            other.cancel()
            await other
        return Connection()

    prompt: Prompt[None] = Prompt(desk())
    prompt = prompt.bind(resources=ResourceRegistry.of(Binding(Connection, connect, eager=True)))
    threads = Threads(lambda thread, request: Conversation(prompt, adapter=ScriptedAdapter(["Hello."])))
    first = asyncio.ensure_future(Page(threads).send("Hi."))
    await until_async(lambda: tried)
    if how != "hangs":
        assert (await first)[0] == 503
    assert await Page(threads).hear("Are you there?") == "Hello."
    assert (await first)[0] == (409 if how == "hangs" else 503)


# Owners.


async def test_threads_of_one_owner_are_closed_to_another() -> None:
    made: list[str] = []

    def make(thread: str, request: Any) -> Conversation[None]:
        made.append(thread)
        return chatting("One.", "Two.")

    page = Page(Threads(make, owner=lambda request: request.headers["x-user"]))
    for user, thread in (("ann", "a/b"), ("bob", "a/b"), ("ann/a", "b"), ("ann", "a/b"), ("a@b.org", "ü")):
        await page.send("Hi.", thread, headers={"x-user": user})
    assert made == ["ann/a%2Fb", "bob/a%2Fb", "ann%2Fa/b", "a@b.org/%C3%BC"]


@PATHS
@pytest.mark.parametrize("owner", [None, "", " \t"])
async def test_a_request_without_an_owner_is_refused_and_makes_no_thread(path: str, owner: str | None) -> None:
    def make(thread: str, request: Any) -> Conversation[None]:
        raise AssertionError("made")

    page = Page(Threads(make, owner=lambda request: owner), path)
    refused = 401, '{"error":"Sign in to use this conversation."}'
    assert await page.send("Hi.") == refused
    assert await page.get("id=t1&threadId=t1") == refused


async def test_an_owner_of_another_type_is_a_mistake_and_no_owner(caplog: pytest.LogCaptureFixture) -> None:
    status, _ = await Page(scripted("Hello.", owner=lambda request: 7)).send("Hi.")
    assert status == 500
    assert "owner must return a string, or None for a request without an owner, got 7" in caplog.text


@pytest.mark.parametrize("thread", ["", ".", "..", "a\x00b", "a\nb", "x" * 129])
async def test_ids_that_a_store_could_trip_over_are_refused(thread: str) -> None:
    status, body = await Page(scripted("Hello.")).send("Hi.", thread)
    assert (status, body) == (400, '{"error":"The id of a thread must have 1 to 128 printable characters."}')


# Limits.


async def test_a_body_over_the_limit_is_not_read_to_its_end() -> None:
    page = Page(scripted("Hello.", limits=ThreadLimits(body_bytes=500)))
    page.piece = b"x" * 100
    refused = 413, '{"error":"The request may have at most 500 bytes."}'
    assert await page.send("x" * 500) == refused
    assert page.pieces == 6
    assert await page.post(b"{}", **{"content-length": "501"}) == refused
    assert page.pieces == 0
    page.piece = b""
    assert await page.hear("Hi.") == "Hello."


async def test_a_message_over_the_limit_is_refused() -> None:
    page = Page(scripted("Hello.", limits=ThreadLimits(message_length=5)))
    assert await page.send("123456") == (413, '{"error":"A message may have at most 5 characters, got 6."}')
    assert await page.hear("12345") == "Hello."


PIXEL = "data:image/png;base64,AAAA"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "file", "mediaType": "image/png", "url": PIXEL, "filename": "x" * 60_000},
        {"type": "file", "mediaType": "image/png", "url": f"https://example.com/{'x' * 60_000}"},
        {"type": "file", "mediaType": f"image/{'x' * 60_000}", "url": PIXEL},
    ],
    ids=["name", "url", "type"],
)
async def test_names_and_addresses_of_files_are_part_of_a_messages_length(part: dict[str, Any]) -> None:
    body = {"id": "t1", "messages": [{"role": "user", "parts": [part]}]}
    assert (await Page(scripted("Hello.")).post(body))[0] == 413


async def test_a_refusal_repeats_little_of_a_long_request() -> None:
    body = {"id": "t1", "messages": [{"role": "user", "parts": [{"type": "x" * 9_000, "url": "data:;base64,&"}]}]}
    status, answer = await Page(scripted()).post(body)
    assert status == 400 and len(answer) < 500


async def test_an_owner_has_a_limited_number_of_threads_in_memory() -> None:
    threads = scripted("One.", "Two.", owner=lambda r: r.headers["x-user"], limits=ThreadLimits(threads=2))
    page = Page(threads)
    asks = [("ann", "a"), ("ann", "b"), ("ann", "c"), ("bob", "c"), ("ann", "a")]
    statuses = [(await page.send("Hi.", thread, headers={"x-user": user}))[0] for user, thread in asks]
    assert statuses == [200, 200, 429, 200, 200]


async def test_a_thread_takes_a_limited_number_of_messages_a_minute() -> None:
    chat = Conversation(Prompt(desk()), adapter=ScriptedAdapter(lambda request: "Yes."))
    page = one(chat, limits=ThreadLimits(per_minute=3))
    assert [(await page.send(f"{n}"))[0] for n in range(10_000)].count(200) == 3
    assert [text for text in spoken(chat) if text != "Yes."] == ["0", "1", "2"]


async def test_a_thread_has_a_limited_number_of_messages_waiting() -> None:
    till = Till()
    threads = Threads(lambda thread, request: till.chat, limits=ThreadLimits(requests=2))
    first = asyncio.ensure_future(Page(threads).send("Buy."))
    await until_async(lambda: till.started.is_set())
    second = asyncio.ensure_future(Page(threads).send("And?"))
    await until_async(lambda: threads._threads["t1"].requests == 2)
    assert (await Page(threads).send("Well?"))[0] == 429
    till.go.set()
    assert said((await second)[1]) == "Sorry."
    await first


@pytest.mark.parametrize("name", ["body_bytes", "message_length", "requests", "per_minute", "threads", "in_memory"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "x", None])
def test_a_limit_is_at_least_one(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a whole number of at least 1, got {value!r}"):
        ThreadLimits(**{name: value})


async def test_the_thread_that_was_idle_longest_leaves_memory_first() -> None:
    made: list[str] = []

    def make(thread: str, request: Any) -> Conversation[None]:
        made.append(thread)
        return chatting("One.", "Two.")

    page = Page(Threads(make, limits=ThreadLimits(in_memory=2)))
    for thread in ("a", "b", "a", "c", "a", "b"):
        await page.send("Hi.", thread)
    assert made == ["a", "b", "c", "b"]


async def test_a_thread_has_one_conversation_however_many_others_push_it_out_of_memory() -> None:
    live: dict[str, int] = {}
    worst: list[int] = []

    def model(thread: str) -> Callable[[ModelRequest], str]:
        def answer(request: ModelRequest) -> str:
            live[thread] = live.get(thread, 0) + 1
            worst.append(live[thread])
            live[thread] -= 1
            return "Yes."

        return answer

    def make(thread: str, request: Any) -> Conversation[Any]:
        return Conversation(Prompt(desk()), adapter=ScriptedAdapter(model(thread)))

    page = Threads(make, limits=ThreadLimits(in_memory=2, requests=100, per_minute=1000))
    await asyncio.gather(*(Page(page).send(f"{n}", f"t{n % 6}") for n in range(288)))
    assert max(worst) == 1
    assert len(page._threads) <= 6


# Exchanges are stopped once, and end before the next begins.


async def test_a_new_message_stops_the_exchange_that_is_under_way() -> None:
    threads = Threads(lambda thread, request: Conversation(Prompt(desk()), adapter=Talkative(["I begin", "Here."])))
    first = Page(threads)
    waiting = asyncio.ensure_future(first.send("Tell me everything."))
    await until_async(lambda: b"I begin" in first.body)
    assert await Page(threads).hear("Shorter.") == "Here."
    assert said((await waiting)[1]) == "I begin"


class Till:
    """A thread whose model charges a card, with what happens outside: the charge, and its refund."""

    def __init__(self) -> None:
        self.outside: list[str] = []
        self.started, self.go = threading.Event(), threading.Event()
        charge: Tool[None, None] = Tool(
            name="charge", description="Charge.", handler=self._charge, compensate=self._refund
        )
        section = TextSection(key="a", title="A", text="Go.", tools=[charge])
        prompt: Prompt[None] = Prompt(PromptTemplate(ns="ui", key="till", sections=[section]))
        self.chat = Conversation(prompt, adapter=ScriptedAdapter([call("charge"), "Sorry."]))

    def _charge(self, params: None, *, context: ToolContext) -> ToolResult[None]:
        self.started.set()
        self.go.wait(10)
        self.outside.append("charged")
        return ToolResult("Charged.")

    def _refund(self, params: None, *, context: ToolContext) -> None:
        self.outside.append("refunded")


@pytest.mark.parametrize("leaves", ["breaks", "closes"])
async def test_a_message_after_a_stop_waits_until_the_stopped_call_has_ended(leaves: str) -> None:
    till = Till()
    threads = Threads(lambda thread, request: till.chat)
    first = Page(threads)
    waiting = asyncio.ensure_future(first.send("Buy."))
    await until_async(lambda: till.started.is_set())
    if leaves == "closes":
        first.gone.set()
    else:
        waiting.cancel()
    await asyncio.wait([waiting])
    asyncio.get_running_loop().call_later(0.05, till.go.set)
    assert await asyncio.wait_for(Page(threads).hear("And now?"), 10) == "Sorry."
    assert till.outside == ["charged", "refunded"]
    told = [message.text for message in till.chat.messages if message.role == "tool"]
    assert told == ["Not finished: the run was stopped."]


async def test_an_exchange_is_saved_before_the_next_begins_although_it_was_stopped_while_it_was_saved() -> None:
    saving, go, saved = threading.Event(), threading.Event(), list[int]()

    def save(thread: str, chat: Conversation[Any], version: Any) -> None:
        answers = sum(message.role == "assistant" for message in chat.messages)
        if not saving.is_set():
            saving.set()
            go.wait(10)
        saved.append(answers)

    chat = chatting("One.", "Two.")
    threads = Threads(lambda thread, request: chat, save=save)
    waiting = asyncio.ensure_future(Page(threads).send("First?"))
    await until_async(lambda: saving.is_set())
    waiting.cancel()
    await asyncio.wait([waiting])
    asyncio.get_running_loop().call_later(0.05, go.set)
    assert await asyncio.wait_for(Page(threads).hear("Second?"), 10) == "Two."
    assert saved == [1, 2]


async def test_a_thread_stays_in_memory_until_its_stopped_exchange_is_saved_although_the_next_was_stopped_too() -> None:
    saving, go, made = threading.Event(), threading.Event(), list[str]()

    def make(thread: str, request: Any) -> Conversation[None]:
        made.append(thread)
        return chatting("One.", "Two.")

    def save(thread: str, chat: Conversation[Any], version: Any) -> None:
        if thread == "t1":
            saving.set()
            go.wait(10)

    threads = Threads(make, save=save, limits=ThreadLimits(in_memory=1))
    pages = [asyncio.ensure_future(Page(threads).send("First?"))]
    await until_async(lambda: saving.is_set())
    pages.append(asyncio.ensure_future(Page(threads).send("Second?")))
    await until_async(lambda: threads._threads["t1"].requests == 2)
    pages[1].cancel()
    await asyncio.wait([pages[1]])
    await Page(threads).send("Hi.", "other")
    waiting = threads._threads["t1"].requests
    pages.append(asyncio.ensure_future(Page(threads).send("Third?")))
    await until_async(lambda: threads._threads["t1"].requests > waiting)
    go.set()
    await asyncio.wait(pages)
    assert made == ["t1", "other"]


async def test_threads_are_made_and_saved_although_asyncios_own_threads_are_busy() -> None:
    go, saved = threading.Event(), list[str]()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    busy = loop.run_in_executor(None, go.wait, 30)
    page = Page(scripted("Hello.", save=lambda thread, chat, version: saved.append(thread)))
    try:
        assert await asyncio.wait_for(page.hear("Hi."), 10) == "Hello."
        assert saved == ["t1"]
    finally:
        go.set()
        await busy


@pytest.mark.parametrize("place", ["make", "load", "model", "save", "async save", "owner", "options"])
async def test_code_that_exits_fails_its_exchange_and_not_the_server(place: str) -> None:
    def leave(*arguments: Any) -> Any:
        raise SystemExit(2)

    async def leave_later(*arguments: Any) -> Any:
        raise SystemExit(2)

    adapter = ScriptedAdapter(leave if place == "model" else ["Hello."])
    chat: Conversation[Any] = Conversation(Prompt(desk()), adapter=adapter)
    options: dict[str, Any] = {"save": lambda *given: 1} if place == "load" else {}
    if place not in ("make", "model"):
        options[place.removeprefix("async ")] = leave_later if " " in place else leave
    make = leave if place == "make" else lambda thread, request: chat
    status, body = await Page(Threads(make, **options)).send("Hi.")
    assert status in (500, 503) or chunks(body)[-1]["type"] == "error"


# What is refused.


@pytest.mark.parametrize("endpoint", [vercel_ai, ag_ui])
def test_an_endpoint_without_threads_is_refused_when_it_is_made(endpoint: Any) -> None:
    with pytest.raises(TypeError, match=r"needs the threads that it serves, got .*; write Threads\(make\)"):
        endpoint(lambda thread, request: None)


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("vercel", b"{", "Input data was truncated"),
        ("vercel", {"id": "t1"}, "missing required field `messages`"),
        ("vercel", {"id": "t1", "messages": []}, "The newest message must be the user's, got none"),
        ("vercel", {"id": "t1", "messages": [{"role": "assistant"}]}, "must be the user's, got assistant"),
        ("vercel", {"id": "t1", "messages": [{"role": "user"}]}, "The newest message must have some content"),
        (
            "vercel",
            {"id": "t1", "messages": [{"role": "user", "parts": [{"type": "text"}] * 101}]},
            "at most 100 parts",
        ),
        ("vercel", b'{"id":"t1","messages":[{"role":"user","parts":' + b"[" * 100_000, "recursion"),
        ("vercel", b'{"id":"t1","messages":[{"role":"user","content":"\\ud800 and more"}]}', "malformed"),
        ("ag-ui", b'{"threadId":"t1","runId":"r","messages":[],"state":' + b'{"a":' * 100_000, "recursion"),
        (
            "ag-ui",
            {"threadId": "t1", "runId": "r", "messages": [{"role": "user", "content": 7}]},
            "Expected `str | array`",
        ),
        ("ag-ui", {**asked("Hi."), "resume": [{"interruptId": "1"}]}, "missing required field `status`"),
    ],
)
async def test_a_request_that_cannot_be_read_is_refused_with_the_reason(path: str, body: Any, reason: str) -> None:
    status, answer = await Page(scripted(), path).post(body)
    assert status == 400 and reason in json.loads(answer)["error"]


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ({"type": "image", "source": {"type": "file", "value": "file_1"}}, "Invalid enum value 'file'"),
        ({"type": "image", "source": {"type": "url", "value": "file:///etc/passwd"}}, "takes an http or https address"),
        ({"type": "image", "source": {"type": "data", "value": "&", "mimeType": "image/png"}}, "data in base64"),
    ],
)
async def test_a_page_can_send_neither_file_ids_nor_paths(part: dict[str, Any], reason: str) -> None:
    body = {"threadId": "t1", "runId": "r", "messages": [{"role": "user", "content": [part]}]}
    status, answer = await Page(scripted(), "ag-ui").post(body)
    assert status == 400 and reason in json.loads(answer)["error"]


async def test_the_id_of_a_run_is_short_since_every_event_repeats_it() -> None:
    page = Page(scripted("Hello."), "ag-ui")
    refused = 400, '{"error":"The id of a run may have at most 128 characters."}'
    assert await page.send("Hi.", runId="r" * 129) == refused
    assert await page.hear("Hi.", runId="r" * 128) == "Hello."


async def test_a_form_of_another_site_is_refused() -> None:
    status, _ = await Page(scripted()).post(asked("Hi."), **{"content-type": "text/plain"})
    assert status == 415


async def test_tools_of_the_page_are_refused_by_name_where_the_application_wants_none() -> None:
    tools = [{"name": "confirm", "description": "", "parameters": {}}, {"name": "pick"}]
    refused = "A page may declare at most 0 tools, got 2: 'confirm', 'pick'."
    page = Page(scripted("Hello.", limits=ThreadLimits(page_tools=0)), "ag-ui")
    assert await page.send("Hi.", tools=tools) == (400, json.dumps({"error": refused}, separators=(",", ":")))
    assert await page.hear("Hi.", tools=[]) == "Hello."


def error(status: int, text: str) -> tuple[int, str]:
    return status, json.dumps({"error": text}, separators=(",", ":"))


EDITED = error(409, "The message that was edited is not known here; reload the page to see the conversation.")
NO_WAY_BACK = error(409, "The conversation cannot go back to that message; send a new one.")
EFFECTS = error(
    409, "Later steps had effects that are not taken back, so the conversation cannot go back; send a new message."
)
RECEIVED = error(409, "This message has already been received.")
BEHIND = error(409, "The conversation has gone on elsewhere; reload the page to see it.")


@PATHS
async def test_a_repeated_message_is_not_sent_twice_and_an_unknown_one_cannot_be_edited(path: str) -> None:
    chat = chatting("One.", "Two.", "Three.")
    page = one(chat)
    page._path = path
    await page.send("First?", key="a")
    await page.send("Second?", key="b", earlier=["a"])
    assert await page.send("First?", key="a") == RECEIVED
    assert await page.send("Second?", key="b", earlier=["a"]) == RECEIVED
    assert await page.send("New?", key="c", earlier=["a"]) == BEHIND
    if path == "vercel":
        assert await page.send("Other?", key="x", messageId="x") == EDITED
    assert await page.hear("Third?", key="d", earlier=["a", "b", "never received"]) == "Three."
    assert spoken(chat) == ["First?", "One.", "Second?", "Two.", "Third?", "Three."]


@PATHS
@pytest.mark.parametrize("edited", ["a", "b"])
async def test_an_edited_message_takes_the_conversation_back(path: str, edited: str) -> None:
    chat = chatting("One.", "Two.", "Other.", "Last.")
    page = one(chat)
    page._path = path
    await page.send("First?", key="a")
    await page.send("Second?", key="b", earlier=["a"])
    assert await page.hear("Other?", key=edited, earlier=["a"] if edited == "b" else []) == "Other."
    assert await page.hear("Last?", key="c", earlier=["a", "b"][: 1 + (edited == "b")]) == "Last."
    kept = ["First?", "One."] if edited == "b" else []
    assert spoken(chat) == [*kept, "Other?", "Other.", "Last?", "Last."]


@PATHS
async def test_a_page_goes_back_over_effects_outside_only_if_the_application_allows_it(path: str) -> None:
    sent: list[str] = []

    def unsend(params: Any, *, context: ToolContext) -> None:
        sent.append("not sent")

    @tool(compensate=unsend)
    def send_mail() -> str:
        "Send a mail."
        sent.append("sent")
        return "Sent."

    def made(**options: Any) -> tuple[Page, Conversation[Any]]:
        section = TextSection(key="a", title="A", text="Go.", tools=[send_mail])
        template = PromptTemplate(ns="ui", key="a", sections=[section])
        chat = chatting("One.", call("send_mail"), "Two.", "Other.", "Last.", template=template)
        return Page(Threads(lambda thread, request: chat, **options), path), chat

    for over_effects in (False, True):
        page, chat = made(over_effects=over_effects)
        await page.send("First?", key="a")
        await page.send("Mail it.", key="b", earlier=["a"])
        status, _ = edited = await page.send("Other?", key="a")
        assert (status, edited == EFFECTS) == ((200, False) if over_effects else (409, True))
        kept = ["Other?", "Other."] if over_effects else ["First?", "One.", "Mail it.", "", "Two."]
        assert spoken(chat) == kept
    assert sent == ["sent", "sent"]


async def test_going_back_is_saved_before_the_message_is_answered() -> None:
    saved: list[list[str]] = []

    def save(thread: str, chat: Conversation[Any], version: Any) -> int:
        saved.append(spoken(chat))
        return len(saved)

    page = one(chatting("One.", "Other."), save=save)
    await page.send("First?", key="a")
    await page.send("Other?", key="a")
    assert saved == [["First?", "One."], [], ["Other?", "Other."]]


@PATHS
async def test_files_go_back_with_an_edited_message(path: str) -> None:
    chat = chatting(call("write_file", path="a.txt", content="1"), "One.", "Other.", template=writing())
    page = one(chat)
    page._path = path
    await page.send("Write.", key="a")
    assert chat.session.workspace.read("a.txt") == "1"
    assert await page.hear("Do nothing.", key="a") == "Other."
    assert not chat.session.workspace.exists("a.txt")


@PATHS
async def test_a_message_that_failed_is_answered_when_the_page_sends_it_again(path: str) -> None:
    chat = chatting(RuntimeError("overloaded"), "Here.")
    page = one(chat)
    page._path = path
    _, body = await page.send("Hi.", key="a")
    assert "overloaded" not in body and "RuntimeError" not in body
    assert await page.hear("Hi.", key="a") == "Here."
    assert spoken(chat) == ["Hi.", "Here."]


async def test_a_repeated_message_does_not_stop_its_own_exchange() -> None:
    till = Till()
    threads = Threads(lambda thread, request: till.chat)
    first = asyncio.ensure_future(Page(threads).send("Buy.", key="a"))
    await until_async(lambda: till.started.is_set())
    assert await Page(threads).send("Buy.", key="a") == RECEIVED
    till.go.set()
    assert said((await first)[1]) == "Sorry."
    assert till.outside == ["charged"]


@pytest.mark.parametrize("options", [{}, {"trigger": "regenerate-message"}], ids=["again", "regenerated"])
async def test_a_stopped_message_is_answered_when_the_page_sends_it_again_at_once(options: dict[str, str]) -> None:
    saving, stored = threading.Event(), threading.Event()

    def save(thread: str, chat: Conversation[Any], version: Any) -> int:
        saving.set()
        stored.wait(10)
        return 1

    chat = Conversation(Prompt(desk()), adapter=Talkative(["I begin", "Here."]))
    threads = Threads(lambda thread, request: chat, save=save)
    stopped = Page(threads)
    first = asyncio.ensure_future(stopped.send("Hi.", key="a"))
    await until_async(lambda: b"I begin" in stopped.body)
    stopped.gone.set()
    await until_async(lambda: saving.is_set())
    again = asyncio.ensure_future(Page(threads).hear("Hi.", key="a", **options))
    await asyncio.sleep(0)
    stored.set()
    await first
    assert await again == "Here."
    assert [text for text in spoken(chat) if text == "Hi."] == ["Hi."]


async def test_the_answer_under_way_can_be_regenerated() -> None:
    threads = Threads(lambda thread, request: Conversation(Prompt(desk()), adapter=Talkative(["I begin", "Here."])))
    page = Page(threads)
    first = asyncio.ensure_future(page.send("Hi.", key="a"))
    await until_async(lambda: b"I begin" in page.body)
    assert await Page(threads).hear("Hi.", key="a", trigger="regenerate-message") == "Here."
    await first


async def test_a_message_that_is_refused_does_not_stop_the_exchange_under_way() -> None:
    till = Till()
    till.chat.session.dispatch(Message("user", "First?", key="a"))
    till.chat.session.dispatch(Message("user", "Second?", key="b"))
    threads = Threads(lambda thread, request: till.chat)
    first = asyncio.ensure_future(Page(threads).send("Buy.", key="c", earlier=["a", "b"]))
    await until_async(lambda: till.started.is_set())
    assert await Page(threads).send("Other?", key="a") == NO_WAY_BACK
    assert await Page(threads).send("New?", key="d", earlier=["a"]) == BEHIND
    till.go.set()
    assert said((await first)[1]) == "Sorry."
    assert till.outside == ["charged"]


async def test_an_answer_is_regenerated_without_the_message_or_the_tools_twice() -> None:
    ran: list[int] = []

    @tool
    def refund(order: int) -> str:
        "Refund an order."
        ran.append(order)
        return "Refunded."

    template = PromptTemplate(ns="ui", key="a", sections=[TextSection(key="a", title="A", text="Go.", tools=[refund])])
    chat = chatting(call("refund", order=7), "Done.", "It is done.", template=template)
    page = one(chat)
    await page.send("Refund 7.")
    assert await page.hear("Refund 7.", trigger="regenerate-message") == "It is done."
    assert ran == [7]
    said = [(message.role, message.text) for message in chat.messages if message.role != "system"]
    assert said == [("user", "Refund 7."), ("assistant", ""), ("tool", "Refunded."), ("assistant", "It is done.")]


@PATHS
@pytest.mark.parametrize("keys", [("", "", ""), ("a", "b", "c")])
async def test_any_answer_can_be_regenerated_and_an_unknown_message_is_sent(path: str, keys: tuple[str, ...]) -> None:
    chat = chatting("One.", "Two.", "Again.", "Three.")
    page = one(chat)
    page._path = path
    await page.send("First?", key=keys[0])
    await page.send("Second?", key=keys[1], earlier=[*filter(None, keys[:1])])
    again: dict[str, Any] = {"trigger": "regenerate-message"}
    if path == "ag-ui":
        again = {"forwardedProps": {"regenerate": True}}
    assert await page.hear("First?", key=keys[0], **again) == "Again."
    await page.send("Third?", key=keys[2], earlier=[*filter(None, keys[:1])], **again)
    assert spoken(chat) == ["First?", "Again.", "Third?", "Three."]


async def test_a_message_that_the_application_adds_does_not_make_the_page_outdated() -> None:
    chat = chatting("One.", "Two.")
    chat.session.dispatch(Message("user", "A customer calls."))
    page = one(chat)
    await page.send("First?", key="a")
    chat.session.dispatch(Message("user", "By the way."))
    assert await page.hear("Second?", key="b", earlier=["a"]) == "Two."


@PATHS
@pytest.mark.parametrize(
    ("earlier", "refused"),
    [
        (["a", "b"], False),
        (["a", "b", "rejected"], False),
        (["b"], False),
        (["a"], True),
        ([], True),  # A tab that was opened before another had the first exchange.
        (["rejected"], True),
    ],
)
async def test_a_page_must_know_the_newest_exchange(path: str, earlier: list[str], refused: bool) -> None:
    chat = chatting("One.", "Two.", "Three.")
    page = one(chat)
    page._path = path
    await page.send("First?", key="a")
    await page.send("Second?", key="b", earlier=["a"])
    status, body = await page.send("Third?", key="c", earlier=earlier)
    assert (status, body) == BEHIND if refused else said(body) == "Three."
    assert ("Third?" in spoken(chat)) is not refused


@PATHS
async def test_a_page_that_has_loaded_the_history_again_may_go_on(path: str) -> None:
    page = one(chatting("One.", "Two."))
    page._path = path
    await page.send("First?", key="a")
    assert await page.send("Second?", key="b") == BEHIND
    _, history = await page.get("id=t1&threadId=t1")
    messages = json.loads(history) if path == "vercel" else json.loads(history)["messages"]
    known = [message["id"] for message in messages if message["role"] == "user"]
    assert await page.hear("Second?", key="c", earlier=known) == "Two."


async def test_a_page_without_ids_is_taken_at_its_word() -> None:
    page = one(chatting("One.", "Two."))
    assert [await page.hear(text) for text in ("First?", "Second?")] == ["One.", "Two."]


@PATHS
def test_a_page_cannot_keep_a_model_calling_tools_for_ever(path: str) -> None:
    chat = Conversation(Prompt(desk()), adapter=(model := ScriptedAdapter(lambda request: call("unknown"))))
    status, body = asyncio.run(Page(Threads(lambda thread, request: chat), path).send("Go."))
    assert (status, len(model.requests)) == (200, 50)
    assert "This message could not be answered." in body
    assert "Go." in spoken(chat)


@PATHS
async def test_a_page_reads_why_a_guard_refused_but_not_why_one_failed(path: str) -> None:
    class Polite(Guard):
        hold = True

        def before_run(self, words: str, *, context: Any) -> Outcome | None:
            return Refuse("Please ask politely.") if "please" not in words else None

        def before_answer(self, answer: str, *, context: Any) -> Outcome | None:
            raise ValueError("the password is 4711")

    template = PromptTemplate[None](
        ns="tests", key="polite", sections=[TextSection(key="s", title="S", text="Serve.")], guards=[Polite()]
    )
    chat = chatting("It is in Lyon.", template=template)
    page = Page(Threads(lambda thread, request: chat), path)
    _, body = await page.send("Where is it?")
    assert "Please ask politely." in body
    assert spoken(chat) == []
    _, body = await page.send("Where is it, please?")
    assert "This message could not be answered." in body
    assert "Lyon" not in body and "4711" not in body and "Polite" not in body


@pytest.mark.parametrize("way", WAYS)
async def test_what_a_section_has_loaded_for_one_thread_is_not_shown_in_another(way: Callable[[], Way]) -> None:
    prompt_for, adapters = way(), {user.name: ScriptedAdapter(Replies(user)) for user in (ALICE, BOB)}

    def make(thread: str, request: Any) -> Conversation[Any]:
        return Conversation(prompt_for(User(thread)), adapter=adapters[thread])

    page = Page(Threads(make))
    for user in (ALICE, BOB, ALICE):
        CURRENT[0] = user
        assert await page.hear("Pay.", user.name) == "Done."
    assert_own(ALICE, adapters["alice"].requests)
    assert_own(BOB, adapters["bob"].requests)
