"""What a page receives: nothing internal, unless `show` lets it through; its history; progress; typed answers."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from tests.disclosure.desk import desk
from tests.ui.server import Page, Whole, chunks, said
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.content import Image
from weakincentives.prompt import (
    MarkdownSection,
    OpenAndHalt,
    OpenOrRead,
    Prompt,
    PromptTemplate,
    ReadSections,
    SearchSections,
    SectionVisibility,
    TextSection,
    ToolContext,
    ToolResult,
    tool,
)
from weakincentives.runtime import Channel, Conversation, Message, ModelReply, ToolEnded
from weakincentives.ui import StaleThreadError, Threads, ui_messages

PATHS = pytest.mark.parametrize("path", ["vercel", "ag-ui"])
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


# A leak test: every text that is not meant for a page has this mark.
MARK = "hunter2"


@dataclass(frozen=True)
class Secret:
    word: str


@dataclass(frozen=True)
class Found:
    value: str


@tool
def fetch(order: int) -> ToolResult[Found]:
    """Fetch. hunter2"""
    return ToolResult(f"Drawer {MARK}.", Found(MARK))


@tool
def fail(order: int) -> ToolResult[None]:
    """Fail. hunter2"""
    return ToolResult(f"Locked by {MARK}.", success=False)


@tool
def crash(order: int) -> str:
    """Crash. hunter2"""
    raise ConnectionError(f"postgres://app:{MARK}@db")


@tool
def picture(order: int) -> ToolResult[None]:
    """Show. hunter2"""
    return ToolResult(MARK, attachments=(Image.from_bytes(PNG, "image/png", name=f"{MARK}.png"),))


def marked(disclosure: Any, output: Any = None) -> Any:
    def closed(key: str, tools: Any = (), **options: Any) -> MarkdownSection[Secret]:
        return MarkdownSection[Secret](
            key=key,
            title=f"Title {MARK}",
            template=f"All of it: {MARK} ${{word}}",
            summary=f"Some of it: {MARK}",
            visibility=SectionVisibility.SUMMARY,
            tools=tools,
            **options,
        )

    sections = [
        MarkdownSection[Secret](key="task", title=MARK, template=f"{MARK} ${{word}}", tools=[fetch, fail, crash]),
        TextSection(key="user", title=MARK, text=MARK, role="user"),
        closed("orders", [picture], children=[closed("returns")]),
        closed("docs"),
    ]
    kind = PromptTemplate if output is None else PromptTemplate[output]
    return kind(ns=MARK, key=MARK, sections=sections, disclosure=disclosure)


STRATEGIES = {
    "read": (ReadSections(), [call("read_section", section_key="orders"), call("read_section", section_key="docs")]),
    "search": (SearchSections(), [call("search_sections", query="it"), call("read_section", section_key="orders")]),
    "open": (OpenOrRead(), [call("open_sections", section_keys=["orders"], reason="I need it.")]),
    "halt": (OpenAndHalt(), [call("open_sections", section_keys=["orders"], reason="I need it.")]),
}


@PATHS
@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_no_byte_that_a_page_receives_is_internal(
    path: str, dynamic: bool, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", MARK)
    disclosure, opening = STRATEGIES[strategy]
    script = [
        *opening,
        call("picture", order=1),
        call("fetch", order=1),
        call("fail", order=1),
        call("crash", order=1),
        call("fetch", order="one"),
        call("nothing"),
        call("read_section", section_key="gone"),
        "Here.",
        RuntimeError(f"401: key {MARK}"),
        "Again.",
    ]
    adapter = ScriptedAdapter(script, supports_dynamic_tools=dynamic)
    problems: dict[str, Exception] = {}

    def raised(place: str) -> None:
        if place in problems:
            raise problems[place]

    stored: dict[str, Any] = {}

    def make(thread: str, request: Any) -> Conversation[Any]:
        raised("make")
        return Conversation(Prompt(marked(disclosure)).bind(Secret(MARK)), adapter=adapter)

    def load(thread: str) -> Any:
        raised("load")
        return stored.get(thread)

    def save(thread: str, chat: Conversation[Any], version: Any) -> int:
        raised("save")
        stored[thread] = chat.session.snapshot().to_json(), (version or 0) + 1
        return stored[thread][1]

    def owner(request: Any) -> str:
        raised("owner")
        return MARK

    page = Page(Threads(make, load, save, owner=owner), path)
    headers = {"authorization": f"Bearer {MARK}", "x-secret": MARK}
    for text in ("Hi.", "More.", "Please."):
        await page.send(text, headers=headers)
    opened = b"openSections" if path == "ag-ui" else b"data-section"
    assert all(text in page.received for text in (b"Here.", b"Again.", opened, b"picture"))
    for place, kind in [("owner", OSError), ("load", OSError), ("save", OSError), ("save", StaleThreadError)]:
        problems.clear()
        problems[place] = kind(MARK)
        await page.send("More?", headers=headers)
    problems.clear()
    problems["make"] = OSError(MARK)
    await page.send("New.", "t2", headers=headers)
    await page.post(b"{", **headers)
    for query in ("id=t1&threadId=t1", "id=t2&threadId=t2", ""):
        await page.get(query, **headers)
    assert MARK.encode() not in page.received
    assert base64.b64encode(PNG) not in page.received
    for name in (b"ConnectionError", b"RuntimeError", b"OSError", b"StaleThreadError", b"SerdeError"):
        assert name not in page.received


@PATHS
async def test_the_mark_is_found_if_the_results_are_shown(path: str) -> None:
    script = [call("read_section", section_key="orders"), "Done."]
    prompt = Prompt(marked(ReadSections())).bind(Secret(MARK))
    make = lambda *_: Conversation(prompt, adapter=ScriptedAdapter(script))  # noqa: E731
    page = Page(Threads(make, show=lambda ended: True), path)
    await page.send("Hi.")
    assert MARK.encode() in page.received


@PATHS
async def test_no_byte_of_a_typed_exchange_is_internal(path: str) -> None:
    script = [call("fetch", order=1), "not json " + MARK, '{"value": "yes"}']
    prompt = Prompt(marked(ReadSections(), Found)).bind(Secret(MARK))
    page = Page(Threads(lambda *_: Conversation(prompt, adapter=ScriptedAdapter(script))), path)
    await page.send("Hi.")
    await page.get("id=t1&threadId=t1")
    assert MARK.encode() not in page.received
    assert b'"yes"' in page.received


# What `show` lets through.


def desk_page(path: str, show: Any, *script: Any) -> Page:
    lines = script or (call("read_section", section_key="orders"), call("lookup"), "Done.")
    make = lambda *_: Conversation(Prompt(desk()), adapter=ScriptedAdapter([*lines]))  # noqa: E731
    return Page(Threads(make, show=show), path)


def outputs(path: str, body: str) -> list[Any]:
    if path == "vercel":
        return [chunk["output"] for chunk in chunks(body) if chunk["type"] == "tool-output-available"]
    return [chunk["content"] for chunk in chunks(body) if chunk["type"] == "TOOL_CALL_RESULT"]


@PATHS
@pytest.mark.parametrize(
    ("show", "shown"),
    [
        (None, [None, None]),
        (lambda ended: ended.name == "lookup", [None, "lookup done"]),
        (lambda ended: f"{ended.name}: {len(ended.message) > 3}", ["read_section: True", "lookup: True"]),
        (lambda ended: {"rows": [1, 2]}, [{"rows": [1, 2]}] * 2),
        (lambda ended: None, [None, None]),
        (lambda ended: 1 / 0, [None, None]),
        (lambda ended: sys.exit(4), [None, None]),
        (lambda ended: object(), [None, None]),
    ],
)
async def test_a_result_is_shown_where_show_says_so_in_the_stream_and_in_the_history(
    path: str, show: Any, shown: list[Any]
) -> None:
    page = desk_page(path, show)
    live = outputs(path, (await page.send("Look."))[1])
    history = json.loads((await page.get("id=t1&threadId=t1"))[1])
    if path == "vercel":
        later = [part["output"] for part in history[1]["parts"] if part["type"] == "dynamic-tool"]
    else:
        shown = [text if isinstance(text, str) else "Done." if text is None else json.dumps(text) for text in shown]
        later = [message["content"] for message in history["messages"] if message["role"] == "tool"]
    assert (live, later) == (shown, shown)


@PATHS
async def test_a_failed_call_looks_failed_and_its_text_is_never_shown(path: str) -> None:
    asked: list[ToolEnded] = []

    def show(ended: ToolEnded) -> bool:
        asked.append(ended)
        return True

    page = desk_page(path, show, call("read_section", section_key="nowhere"), "Sorry.")
    _, body = await page.send("Look.")
    (ended,) = [chunk for chunk in chunks(body) if chunk["type"] in ("tool-output-error", "TOOL_CALL_RESULT")]
    if path == "vercel":
        assert ended["errorText"] == "The tool call failed."
    else:
        assert (ended["content"], ended["metadata"]) == ("The tool call failed.", {"success": False})
    assert asked == [] and "nowhere" not in json.dumps(ended)


# Steps, progress and typed answers.


async def test_a_step_is_one_reply_with_the_results_of_all_its_calls() -> None:
    reply = ModelReply(
        text="Both.", tool_calls=(call("read_section", call_id="1", section_key="docs"), call("lookup", call_id="2"))
    )
    page = desk_page("vercel", None, call("read_section", call_id="0", section_key="orders"), reply, "Done.")
    _, body = await page.send("Look.")
    kinds = [chunk["type"] for chunk in chunks(body) if "step" in chunk["type"] or chunk["type"].startswith("tool-o")]
    step = ["start-step", "finish-step"]
    assert kinds == [
        *("start-step", "tool-output-available", "finish-step"),
        *("start-step", "tool-output-available", "tool-output-available", "finish-step"),
        *step,
    ]


@tool
def copy(*, context: ToolContext) -> str:
    """Copy."""
    for share in (0.5, float("nan")):
        context.emit({"share": share})
    return "Copied."


def template(*tools: Any, output: Any = None) -> Any:
    sections = [TextSection(key="a", title="A", text="Go.", tools=tools)]
    return (PromptTemplate if output is None else PromptTemplate[output])(ns="ui", key="p", sections=sections)


@PATHS
async def test_data_that_a_tool_emits_is_sent_with_the_call_it_belongs_to(path: str) -> None:
    adapter = ScriptedAdapter([call("copy", call_id="1"), "Done."])
    page = Page(Threads(lambda *_: Conversation(Prompt(template(copy)), adapter=adapter)), path)
    _, body = await page.send("Copy.")
    values = [{"toolCallId": "1", "toolName": "copy", "data": {"share": share}} for share in (0.5, None)]
    if path == "vercel":
        expected = [{"type": "data-progress", "id": "1", "data": value} for value in values]
    else:
        expected = [{"type": "CUSTOM", "name": "progress", "value": value} for value in values]
    assert [chunk for chunk in chunks(body) if chunk["type"] in ("data-progress", "CUSTOM")] == expected


@dataclass(frozen=True)
class Plan:
    title: str
    steps: list[str]


class Thinking(ScriptedAdapter):
    def channel(self) -> Channel:
        return Whole(self)


PLAN = '{"title": "Move", "steps": ["pack", "go"]}'
COPYING = ModelReply(text="Let me copy first.", tool_calls=(call("copy", call_id="1"),), stop_reason="tool_calls")


@PATHS
async def test_of_a_typed_exchange_only_what_is_said_before_a_call_is_text(path: str) -> None:
    adapter = Thinking([COPYING, "I would rather not.", PLAN])
    page = Page(Threads(lambda *_: Conversation(Prompt(template(copy, output=Plan)), adapter=adapter)), path)
    _, body = await page.send("Plan.")
    assert said(body) == "Let me copy first."
    value = json.loads(PLAN)
    if path == "vercel":
        assert [chunk["data"] for chunk in chunks(body) if chunk["type"] == "data-output"][-1] == value
    else:
        changes = [chunk["delta"][0] for chunk in chunks(body) if chunk["type"] == "STATE_DELTA"]
        assert changes[-1] == {"op": "add", "path": "/output", "value": value}


@pytest.mark.parametrize("state", [None, 7, [], "x", {"page": "x" * 10_000, "openSections": 7}, {}])
async def test_the_state_of_a_page_is_neither_trusted_nor_echoed(state: Any) -> None:
    page = desk_page("ag-ui", None)
    _, body = await page.send("Look.", state=state)
    (change,) = [chunk for chunk in chunks(body) if chunk["type"].startswith("STATE")]
    if isinstance(state, dict):
        delta = [{"op": "add", "path": "/openSections", "value": ["orders"]}]
        assert change == {"type": "STATE_DELTA", "delta": delta}
    else:
        assert change == {"type": "STATE_SNAPSHOT", "snapshot": {"openSections": ["orders"]}}
    assert "xxx" not in body


# History.


def spoken_to(*script: Any, texts: list[Any], **options: Any) -> Conversation[Any]:
    chat = Conversation(Prompt(options.get("template") or desk()), adapter=Thinking([*script]))
    for text in texts:
        chat.send(text)
    return chat


def test_the_history_of_a_conversation_is_its_messages_in_either_protocol() -> None:
    reply = ModelReply(
        text="Let me see.", reasoning="Hm.", tool_calls=(call("read_section", call_id="1", section_key="orders"),)
    )
    picture = Image.from_bytes(PNG, "image/png", name="box.png")
    link = Image.from_url("https://example.com/a.png", media_type="image/png")
    chat = spoken_to(reply, "In Lyon.", "A box.", texts=["Where?", ["And this?", picture, link]])
    mine = chat.conversation_id
    data = base64.b64encode(PNG).decode()
    called = {"toolName": "read_section", "toolCallId": "1", "input": {"section_key": "orders"}}
    assert ui_messages(chat) == [
        {"id": f"{mine}-0", "role": "user", "parts": [{"type": "text", "text": "Where?"}]},
        {
            "id": f"{mine}-0-answer",
            "role": "assistant",
            "parts": [
                {"type": "step-start"},
                {"type": "reasoning", "text": "Hm.", "state": "done"},
                {"type": "text", "text": "Let me see.", "state": "done"},
                {"type": "dynamic-tool", **called, "state": "output-available", "output": None},
                {"type": "data-section", "id": "orders", "data": {"key": "orders", "tools": ("lookup",)}},
                {"type": "step-start"},
                {"type": "text", "text": "In Lyon.", "state": "done"},
            ],
        },
        {
            "id": f"{mine}-1",
            "role": "user",
            "parts": [
                {"type": "text", "text": "And this?"},
                {
                    "type": "file",
                    "mediaType": "image/png",
                    "url": f"data:image/png;base64,{data}",
                    "filename": "box.png",
                },
                {"type": "file", "mediaType": "image/png", "url": "https://example.com/a.png"},
            ],
        },
        {
            "id": f"{mine}-1-answer",
            "role": "assistant",
            "parts": [{"type": "step-start"}, {"type": "text", "text": "A box.", "state": "done"}],
        },
    ]
    given = {
        "id": "1",
        "type": "function",
        "function": {"name": "read_section", "arguments": '{"section_key": "orders"}'},
    }
    answer, later = f"{mine}-0-answer", f"{mine}-1-answer"
    assert ui_messages(chat, "ag_ui") == [
        {"id": f"{mine}-0", "role": "user", "content": "Where?"},
        {"id": f"{answer}-0-reasoning", "role": "reasoning", "content": "Hm."},
        {"id": f"{answer}-0", "role": "assistant", "content": "Let me see.", "toolCalls": [given]},
        {"id": "1-result", "role": "tool", "toolCallId": "1", "content": "Done.", "metadata": {"success": True}},
        {"id": f"{answer}-1", "role": "assistant", "content": "In Lyon."},
        {
            "id": f"{mine}-1",
            "role": "user",
            "content": [
                {"type": "text", "text": "And this?"},
                {"type": "image", "source": {"type": "data", "value": data, "mimeType": "image/png"}},
                {
                    "type": "image",
                    "source": {"type": "url", "value": "https://example.com/a.png", "mimeType": "image/png"},
                },
            ],
        },
        {"id": f"{later}-0", "role": "assistant", "content": "A box."},
    ]


def test_messages_of_the_prompt_corrections_and_rejected_answers_are_not_in_the_history() -> None:
    sections = [
        TextSection(key="a", title="A", text="Go."),
        TextSection(key="b", title="B", text="Internal.", role="user"),
    ]
    made: Any = PromptTemplate[Plan](ns="ui", key="p", sections=sections)
    chat = spoken_to("Rather not.", PLAN, texts=["Plan."], template=made)
    question, answer = ui_messages(chat)
    assert question["parts"] == [{"type": "text", "text": "Plan."}]
    assert answer["parts"] == [{"type": "data-output", "id": "output", "data": json.loads(PLAN)}]
    assert "Internal" not in json.dumps(ui_messages(chat, "ag_ui"))


async def test_an_unknown_thread_has_no_history_and_is_not_made() -> None:
    def make(thread: str, request: Any) -> Conversation[Any]:
        raise AssertionError("made")

    assert await Page(Threads(make)).get("id=t1") == (200, "[]")
    assert await Page(Threads(make), "ag-ui").get("threadId=t1") == (
        200,
        '{"messages": [], "state": {}, "interrupts": []}',
    )
    assert (await Page(Threads(make)).get(""))[0] == 400


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(ValueError, match="protocol must be 'vercel_ai' or 'ag_ui', got 'agui'"):
        ui_messages(spoken_to("Hi.", texts=["Hi."]), "agui")  # type: ignore[arg-type]


def test_a_message_that_is_not_answered_yet_is_in_the_history() -> None:
    chat = spoken_to("One.", texts=["First?"])
    chat.session.dispatch(Message("user", "Second?", key="k"))
    assert [message["id"] for message in ui_messages(chat)][-1] == "k"


async def test_the_history_is_read_from_the_store_and_by_its_owner_alone() -> None:
    stored: dict[str, Any] = {}

    def save(thread: str, chat: Conversation[Any], version: Any) -> int:
        stored[thread] = chat.session.snapshot().to_json(), (version or 0) + 1
        return stored[thread][1]

    def process() -> Page:
        make = lambda *_: Conversation(Prompt(desk()), adapter=ScriptedAdapter(["Hello."]))  # noqa: E731
        return Page(Threads(make, stored.get, save, owner=lambda request: request.headers.get("x-user")))

    page = process()
    await page.send("Hi.", key="k", headers={"x-user": "ann"})
    other = process()
    status, body = await other.get("id=t1", **{"x-user": "ann"})
    assert (status, [message["id"] for message in json.loads(body)]) == (200, ["k", "k-answer"])
    assert await other.get("id=t1", **{"x-user": "bob"}) == (200, "[]")
    assert (await other.get("id=t1"))[0] == 401


@PATHS
async def test_others_are_served_while_a_long_history_is_written(path: str) -> None:
    chat = Conversation(Prompt(desk()), adapter=ScriptedAdapter(["Nice.", "Hi."]))
    await chat.send_async([Image.from_bytes(b"GIF89a" + bytes(20_000_000), "image/gif"), "Look."])
    page = Page(Threads(lambda thread, request: chat), path)
    await page.send("Hello?")
    history = asyncio.ensure_future(page.get("id=t1&threadId=t1"))
    turns = 0
    while not history.done():
        await asyncio.sleep(0)
        turns += 1
    assert len((await history)[1]) > 20_000_000
    assert turns > 3


@dataclass(frozen=True)
class Anything:
    value: object


@PATHS
async def test_an_answer_too_deep_for_json_does_not_make_its_thread_unreadable(path: str) -> None:
    answer = f'{{"value": {"[" * 900}{"]" * 900}}}'
    template = PromptTemplate[Anything](ns="ui", key="deep", sections=[TextSection(key="a", title="A", text="Go.")])
    chat = Conversation(Prompt(template), adapter=ScriptedAdapter([answer, '{"value": 7}']))
    page = Page(Threads(lambda thread, request: chat), path)
    await page.send("Deep?", key="a")
    await page.send("Flat?", key="b", earlier=["a"])
    status, history = await page.get("id=t1&threadId=t1")
    assert status == 200 and '"value": 7' in history
