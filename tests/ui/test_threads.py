"""What a web application's threads keep, whom they belong to, and what they refuse."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.disclosure.desk import desk
from tests.ui.server import Talkative, application, serving
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.content import Content
from weakincentives.prompt import Prompt, PromptTemplate, TextSection, Tool, ToolContext, ToolResult, tool
from weakincentives.runtime import Conversation, TextDelta
from weakincentives.session import Session, Snapshot
from weakincentives.ui import Threads


def post(url: str, body: Any, **headers: str) -> tuple[int, str]:
    """A request as a page would send it, and the response whole."""
    given = {"content-type": "application/json", **headers}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, given), timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def asked(text: str, thread: str = "t1") -> dict[str, Any]:
    return {"id": thread, "messages": [{"role": "user", "parts": [{"type": "text", "text": text}]}]}


def test_the_bytes_are_those_of_the_published_protocol() -> None:
    threads = Threads(lambda thread: Conversation(Prompt(desk()), adapter=ScriptedAdapter(["Hello."])))
    with serving(application(threads)) as url:
        status, body = post(f"{url}/vercel", asked("Hi."))
    lines = [line.removeprefix("data: ") for line in body.splitlines() if line]
    first, *chunks = [json.loads(line) for line in lines[:-1]]
    assert (status, first["type"], lines[-1]) == (200, "start", "[DONE]")
    assert chunks == [
        {"type": "start-step"},
        {"type": "text-start", "id": "1"},
        {"type": "text-delta", "id": "1", "delta": "Hello."},
        {"type": "text-end", "id": "1"},
        {"type": "finish-step"},
        {"type": "finish", "finishReason": "stop"},
    ]


def test_a_saved_thread_goes_on_after_the_server_was_restarted() -> None:
    saved: dict[str, str] = {}

    def make(thread: str) -> Conversation[None]:
        session = Session()
        if thread in saved:
            session.restore(Snapshot.from_json(saved[thread]))
        script = ["Found."] if thread in saved else [call("read_section", section_key="docs"), "Read."]
        return Conversation(Prompt(desk()), adapter=ScriptedAdapter(script), session=session)

    def save(thread: str, chat: Conversation[Any]) -> None:
        saved[thread] = chat.session.snapshot().to_json()

    for text in ("Look.", "And?"):
        with serving(application(Threads(make, save=save))) as url:
            assert post(f"{url}/vercel", asked(text))[0] == 200
    session = Session()
    session.restore(Snapshot.from_json(saved["t1"]))
    chat = Conversation(Prompt(desk()), adapter=ScriptedAdapter([]), session=session)
    assert [m.text for m in chat.messages if m.role in ("user", "assistant")] == [
        "Look.",
        "",
        "Read.",
        "And?",
        "Found.",
    ]


@pytest.mark.parametrize(
    ("path", "last"),
    [
        ("vercel", {"type": "error", "errorText": "The turn failed (OSError)."}),
        ("ag-ui", {"type": "RUN_ERROR", "message": "The turn failed (OSError).", "code": "OSError"}),
    ],
)
def test_a_turn_that_cannot_be_saved_is_logged_told_to_the_page_and_kept_in_memory(
    path: str, last: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    made: list[str] = []

    def make(thread: str) -> Conversation[None]:
        made.append(thread)
        return Conversation(Prompt(desk()), adapter=ScriptedAdapter(["One.", "Two."]))

    def save(thread: str, chat: Conversation[Any]) -> None:
        if thread == "full":
            raise OSError("disk full")

    with serving(application(Threads(make, save=save, limit=1))) as url:
        for thread in ("full", "other", "full"):
            body = post(f"{url}/{path}", {**asked("Hi.", thread), "threadId": thread, "runId": "r"})[1]
    assert made == ["full", "other"]
    assert json.loads([line for line in body.splitlines() if line.startswith("data: {")][-1][6:]) == last
    records = [(r.name, r.exc_info[1]) for r in caplog.records if r.exc_info and "could not be saved" in r.message]
    assert [(name, str(error)) for name, error in records] == [("weakincentives.ui", "disk full")] * 2


def test_threads_of_one_owner_are_closed_to_another() -> None:
    made: list[str] = []

    def make(thread: str) -> Conversation[None]:
        made.append(thread)
        return Conversation(Prompt(desk()), adapter=ScriptedAdapter(["One.", "Two."]))

    threads = Threads(make, owner=lambda request: request.headers["x-user"])
    with serving(application(threads)) as url:
        for user, thread in (("ann", "a/b"), ("bob", "a/b"), ("ann/a", "b"), ("ann", "a/b")):
            post(f"{url}/vercel", asked("Hi.", thread), **{"x-user": user})
    assert made == ["ann/a%2Fb", "bob/a%2Fb", "ann/a/b"]


def test_the_thread_that_was_idle_longest_leaves_memory_first() -> None:
    made: list[str] = []

    def make(thread: str) -> Conversation[None]:
        made.append(thread)
        return Conversation(Prompt(desk()), adapter=ScriptedAdapter(["One.", "Two."]))

    with serving(application(Threads(make, limit=2))) as url:
        for thread in ("a", "b", "a", "c", "a", "b"):
            post(f"{url}/vercel", asked("Hi.", thread))
    assert made == ["a", "b", "c", "b"]


async def heard(threads: Threads, content: Content) -> list[Any]:
    events = threads.events("t1", *await threads.find("t1"), content)
    return [event.text async for event in events if isinstance(event, TextDelta)]


async def test_a_new_message_stops_the_turn_that_is_under_way() -> None:
    script = ["I begin", "Here."]
    threads = Threads(lambda thread: Conversation(Prompt(desk()), adapter=Talkative(script)))
    first = threads.events("t1", *await threads.find("t1"), "Tell me everything.")
    assert await anext(first) == TextDelta("I begin")
    reader = asyncio.ensure_future(anext(first, "ended"))
    assert await heard(threads, "Shorter.") == ["Here."]
    assert await reader == "ended"


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


async def test_a_message_after_a_stop_waits_until_the_stopped_call_has_ended() -> None:
    till = Till()
    threads = Threads(lambda thread: till.chat)
    page = asyncio.ensure_future(heard(threads, "Buy."))
    while not till.started.is_set():
        await asyncio.sleep(0)
    page.cancel()
    await asyncio.wait([page])
    asyncio.get_running_loop().call_later(0.05, till.go.set)
    assert await asyncio.wait_for(heard(threads, "And now?"), 10) == ["Sorry."]
    assert till.outside == ["charged", "refunded"]
    told = [message.text for message in till.chat.messages if message.role == "tool"]
    assert told == ["Not finished: the run was stopped."]


async def test_a_turn_is_saved_before_the_next_one_begins_although_it_was_stopped_while_it_was_saved() -> None:
    saving, go, saved = threading.Event(), threading.Event(), list[int]()

    def save(thread: str, chat: Conversation[Any]) -> None:
        answers = sum(message.role == "assistant" for message in chat.messages)
        if not saving.is_set():
            saving.set()
            go.wait(10)
        saved.append(answers)

    chat = Conversation(Prompt(desk()), adapter=ScriptedAdapter(["One.", "Two."]))
    threads = Threads(lambda thread: chat, save=save)
    page = asyncio.ensure_future(heard(threads, "First?"))
    while not saving.is_set():
        await asyncio.sleep(0)
    page.cancel()
    await asyncio.wait([page])
    asyncio.get_running_loop().call_later(0.05, go.set)
    assert await asyncio.wait_for(heard(threads, "Second?"), 10) == ["Two."]
    assert saved == [1, 2]


async def test_a_thread_stays_in_memory_until_its_stopped_turn_is_saved_although_the_next_was_stopped_too() -> None:
    saving, go, made = threading.Event(), threading.Event(), list[str]()

    def make(thread: str) -> Conversation[None]:
        made.append(thread)
        return Conversation(Prompt(desk()), adapter=ScriptedAdapter(["One.", "Two."]))

    def save(thread: str, chat: Conversation[Any]) -> None:
        saving.set()
        go.wait(10)

    threads = Threads(make, save=save, limit=1)
    pages = [asyncio.ensure_future(heard(threads, "First?"))]
    while not saving.is_set():
        await asyncio.sleep(0)
    pages.append(asyncio.ensure_future(heard(threads, "Second?")))
    await asyncio.sleep(0.05)
    pages[1].cancel()
    await asyncio.wait([pages[1]])
    await threads.find("other")
    await threads.find("t1")
    go.set()
    await asyncio.wait(pages)
    assert made == ["t1", "other"]


async def test_threads_are_made_and_saved_although_asyncios_own_threads_are_busy() -> None:
    go, saved = threading.Event(), list[str]()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    busy = loop.run_in_executor(None, go.wait, 30)
    chat = Conversation(Prompt(desk()), adapter=ScriptedAdapter(["Hello."]))
    threads = Threads(lambda thread: chat, save=lambda thread, chat: saved.append(thread))
    try:
        assert await asyncio.wait_for(heard(threads, "Hi."), 10) == ["Hello."]
        assert saved == ["t1"]
    finally:
        go.set()
        await busy


@pytest.mark.parametrize("place", ["model", "save"])
async def test_code_that_exits_fails_its_turn_and_not_the_server(place: str) -> None:
    def leave(*arguments: Any) -> Any:
        raise SystemExit(2)

    adapter = ScriptedAdapter(leave if place == "model" else ["Hello."])
    threads = Threads(
        lambda thread: Conversation(Prompt(desk()), adapter=adapter), save=leave if place == "save" else None
    )
    events = threads.events("t1", *await threads.find("t1"), "Hi.")
    *_, last = [event async for event in events]
    assert isinstance(last, RuntimeError) and str(last) == "raised SystemExit(2)"


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("vercel", b"{", "Input data was truncated"),
        ("vercel", {"id": "t1"}, "missing required field `messages`"),
        ("vercel", {"id": "t1", "messages": []}, "The newest message must be the user's, got none"),
        ("vercel", {"id": "t1", "messages": [{"role": "assistant"}]}, "must be the user's, got assistant"),
        ("vercel", asked(""), "The newest message must have some content"),
        (
            "ag-ui",
            {"threadId": "t1", "runId": "r", "messages": [{"role": "user", "content": 7}]},
            "Expected `str | array`",
        ),
    ],
)
def test_a_request_that_cannot_be_read_is_refused_with_the_reason(path: str, body: Any, reason: str) -> None:
    threads = Threads(lambda thread: Conversation(Prompt(desk()), adapter=ScriptedAdapter([])))
    with serving(application(threads)) as url:
        status, answer = post(f"{url}/{path}", body)
    assert status == 400 and reason in json.loads(answer)["error"]


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ({"type": "image", "source": {"type": "file", "value": "file_1"}}, "Invalid enum value 'file'"),
        ({"type": "image", "source": {"type": "url", "value": "file:///etc/passwd"}}, "takes an http or https address"),
        ({"type": "image", "source": {"type": "data", "value": "&", "mimeType": "image/png"}}, "data in base64"),
    ],
)
def test_a_page_can_send_neither_file_ids_nor_paths(part: dict[str, Any], reason: str) -> None:
    threads = Threads(lambda thread: Conversation(Prompt(desk()), adapter=ScriptedAdapter([])))
    body = {"threadId": "t1", "runId": "r", "messages": [{"role": "user", "content": [part]}]}
    with serving(application(threads)) as url:
        status, answer = post(f"{url}/ag-ui", body)
    assert status == 400 and reason in json.loads(answer)["error"]


def test_a_form_of_another_site_is_refused() -> None:
    threads = Threads(lambda thread: Conversation(Prompt(desk()), adapter=ScriptedAdapter([])))
    with serving(application(threads)) as url:
        status, _ = post(f"{url}/vercel", asked("Hi."), **{"content-type": "text/plain"})
    assert status == 415


def regenerated(text: str) -> dict[str, Any]:
    return {**asked(text), "trigger": "regenerate-message"}


def test_an_answer_is_regenerated_without_the_message_or_the_tools_twice() -> None:
    ran: list[int] = []

    @tool
    def refund(order: int) -> str:
        "Refund an order."
        ran.append(order)
        return "Refunded."

    template = PromptTemplate(ns="ui", key="a", sections=[TextSection(key="a", title="A", text="Go.", tools=[refund])])
    chat = Conversation(Prompt(template), adapter=ScriptedAdapter([call("refund", order=7), "Done.", "It is done."]))
    with serving(application(Threads(lambda thread: chat))) as url:
        post(f"{url}/vercel", asked("Refund 7."))
        status, body = post(f"{url}/vercel", regenerated("Refund 7."))
    assert (status, ran, '"delta": "It is done."' in body) == (200, [7], True)
    said = [(message.role, message.text) for message in chat.messages if message.role != "system"]
    assert said == [("user", "Refund 7."), ("assistant", ""), ("tool", "Refunded."), ("assistant", "It is done.")]


def test_only_the_last_answer_can_be_regenerated_and_an_unknown_message_is_sent() -> None:
    chat = Conversation(Prompt(desk()), adapter=ScriptedAdapter(["One.", "Two.", "Three."]))
    with serving(application(Threads(lambda thread: chat))) as url:
        for text in ("First?", "Second?"):
            post(f"{url}/vercel", asked(text))
        assert post(f"{url}/vercel", regenerated("First?")) == (
            409,
            '{"error":"Only the last answer of a conversation can be regenerated"}',
        )
        post(f"{url}/vercel", regenerated("Third?"))
    assert [message.text for message in chat.messages if message.role == "assistant"] == ["One.", "Two.", "Three."]
