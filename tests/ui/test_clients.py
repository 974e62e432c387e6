"""Front ends as they are published, talking to conversations on a loopback server."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.disclosure.desk import desk
from tests.npm_support import NpmModules
from tests.ui.server import Talkative, Whole, application, serving
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, ToolContext, ToolResult, tool
from weakincentives.runtime import Channel, Conversation, ModelReply, ModelRequest
from weakincentives.ui import Threads

pytestmark = pytest.mark.slow

PNG = b"\x89PNG\r\n\x1a\n" + bytes(8) + (3).to_bytes(4, "big") + (4).to_bytes(4, "big")
Talk = Callable[..., list[dict[str, Any]]]


@pytest.fixture(params=["ai", "ai-6", "ag-ui"])
def talk(npm_modules: NpmModules, request: pytest.FixtureRequest) -> Talk:
    """Sends messages with one of the clients, and returns what its page would show after each."""

    def send(url: str, *said: str, thread: str = "t1") -> list[dict[str, Any]]:
        if request.param == "ag-ui":
            return [shown(turn) for turn in npm_modules.run("ag_ui.mjs", f"{url}/ag-ui", thread, *said)]
        return [parts(turn) for turn in npm_modules.run("vercel.mjs", request.param, f"{url}/vercel", thread, *said)]

    send.protocol = request.param  # type: ignore[attr-defined]
    return send


def shown(turn: dict[str, Any]) -> dict[str, Any]:
    """An AG-UI turn, as plain as a Vercel turn."""
    calls = [call for message in turn["messages"] for call in message.get("toolCalls", ())]
    results = {m["toolCallId"]: m["metadata"]["success"] for m in turn["messages"] if m["role"] == "tool"}
    ended = {True: "succeeded", False: "failed"}
    return {
        "text": [m["content"] for m in turn["messages"] if m["role"] == "assistant" and m.get("content")],
        "reasoning": [m["content"] for m in turn["messages"] if m["role"] == "reasoning"],
        "tools": [
            (c["function"]["name"], json.loads(c["function"]["arguments"]), ended.get(results.get(c["id"])))
            for c in calls
        ],
        "open": turn["state"].get("openSections", []),
        "output": turn["state"].get("output"),
        "errors": turn["errors"],
    }


def parts(turn: dict[str, Any]) -> dict[str, Any]:
    def of(kind: str) -> list[dict[str, Any]]:
        return [part for part in turn["parts"] if part["type"] == kind]

    ended = {"output-available": "succeeded", "output-error": "failed", "output-denied": "failed"}
    return {
        "text": [part["text"] for part in of("text")],
        "reasoning": [part["text"] for part in of("reasoning")],
        "tools": [(part["toolName"], part["input"], ended.get(part["state"])) for part in of("dynamic-tool")],
        "open": [part["data"]["key"] for part in of("data-section")],
        "output": next((part["data"] for part in of("data-output")), None),
        "errors": turn["errors"],
    }


def conversations(*lines: Any, template: Any = None, adapter: type[ScriptedAdapter] = ScriptedAdapter) -> Threads:
    """A new conversation per thread, each with a script of its own."""
    made = template or desk()
    return Threads(lambda thread, request: Conversation(Prompt(made), adapter=adapter([*lines])))


def test_a_section_that_was_opened_stays_open_in_the_next_message(talk: Talk) -> None:
    threads = conversations(call("read_section", section_key="orders"), "Read\nit.", call("lookup"), "Found.")
    with serving(application(threads)) as url:
        first, second = talk(url, "Look.", "Look it up.")
    assert (first["text"], first["open"], first["errors"]) == (["Read\nit."], ["orders"], [])
    assert first["tools"] == [("read_section", {"section_key": "orders"}, "succeeded")]
    assert (second["tools"], second["text"]) == ([("lookup", {}, "succeeded")], ["Found."])


def test_the_model_receives_each_message_once(talk: Talk) -> None:
    adapters: list[ScriptedAdapter] = []

    def make(thread: str, request: Any) -> Conversation[None]:
        adapters.append(ScriptedAdapter(["One.", "Two.", "Three."]))
        return Conversation(Prompt(desk()), adapter=adapters[-1])

    with serving(application(Threads(make))) as url:
        talk(url, "a", "b", "c")
    (adapter,) = adapters
    said = [message.text for message in adapter.requests[-1].messages if message.role == "user"]
    assert said == ["a", "b", "c"]


def test_a_failed_tool_and_a_failed_exchange_look_failed_and_secrets_are_not_shown(talk: Talk) -> None:
    @tool
    def refund(order: int) -> ToolResult[None]:
        """Refund an order."""
        return ToolResult("Too late.", success=False)

    template = PromptTemplate(
        ns="t", key="k", sections=[MarkdownSection(title="A", key="a", template="x", tools=[refund])]
    )
    threads = conversations(call("refund", order=7), "Sorry.", RuntimeError("key sk-123"), "Here.", template=template)
    with serving(application(threads)) as url:
        first, second, third = talk(url, "Refund it.", "Why?", "Hello?")
    assert (first["tools"], first["text"]) == ([("refund", {"order": 7}, "failed")], ["Sorry."])
    assert second["errors"] == ["This message could not be answered. Please try again."]
    assert (third["text"], third["errors"]) == (["Here."], [])


@pytest.mark.parametrize(("verdict", "told"), [("approve:", "paid 5"), ("deny:too much", "A person denied this call")])
def test_calls_that_wait_are_decided_by_the_client(talk: Talk, verdict: str, told: str) -> None:
    @tool(approval="call")
    def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    section = MarkdownSection(title="A", key="a", template="x", tools=[pay])
    template = PromptTemplate(ns="t", key="k", sections=[section])
    model = ScriptedAdapter([call("pay", amount=5, call_id="c"), "Done.", "Bye."])
    threads = Threads(lambda thread, request: Conversation(Prompt(template), adapter=model))
    with serving(application(threads)) as url:
        first, second, third = talk(url, "Pay 5.", verdict, "Thanks.")
    assert (first["tools"], first["text"], first["errors"]) == ([("pay", {"amount": 5}, None)], [], [])
    ended = "succeeded" if verdict == "approve:" else "failed"
    if talk.protocol != "ag-ui":  # type: ignore[attr-defined]
        assert second["tools"] == [("pay", {"amount": 5}, ended)]
    assert (second["text"], second["errors"], third["text"]) == (["Done."], [], ["Bye."])
    assert model.requests[1].messages[-1].text.startswith(told)


@dataclass(frozen=True)
class Plan:
    title: str


class Thinking(ScriptedAdapter):
    def channel(self) -> Channel:
        return Whole(self)


def test_reasoning_and_the_typed_answer_are_shown(talk: Talk) -> None:
    template = PromptTemplate[Plan](ns="t", key="k", sections=[MarkdownSection(title="A", key="a", template="x")])
    reply = ModelReply(text='{"title": "Move"}', reasoning="A short one will do.")
    with serving(application(conversations(reply, template=template, adapter=Thinking))) as url:
        (turn,) = talk(url, "Plan it.")
    assert (turn["reasoning"], turn["output"]) == (["A short one will do."], {"title": "Move"})
    assert turn["text"] == []


def test_a_rejected_typed_answer_is_not_shown(talk: Talk) -> None:
    template = PromptTemplate[int](ns="ui", key="n", sections=[MarkdownSection(key="a", title="A", template="Count.")])
    with serving(application(conversations("many", "3", template=template))) as url:
        (turn,) = talk(url, "How many?")
    assert (turn["text"], turn["output"], turn["errors"]) == ([], 3, [])


def test_pictures_and_files_come_with_the_message(talk: Talk) -> None:
    heard: list[Any] = []

    def model(request: ModelRequest) -> str:
        heard.extend(request.messages[-1].parts)
        return "A box."

    data = base64.b64encode(PNG).decode()
    if talk.protocol == "ag-ui":  # type: ignore[attr-defined]
        files = [
            {"type": "image", "source": {"type": "data", "value": data, "mimeType": "image/png"}},
            {"type": "document", "source": {"type": "url", "value": "https://example.com/a.pdf"}},
        ]
    else:
        files = [
            {"type": "file", "mediaType": "image/png", "url": f"data:image/png;base64,{data}"},
            {"type": "file", "mediaType": "application/pdf", "url": "https://example.com/a.pdf"},
        ]
    threads = Threads(lambda thread, request: Conversation(Prompt(desk()), adapter=ScriptedAdapter(model)))
    with serving(application(threads)) as url:
        talk(url, json.dumps([*files, {"type": "text", "text": "What is it?"}]))
    image, document, text = heard
    assert (image.media_type, image.data) == ("image/png", PNG)
    assert (type(document).__name__, document.url, text.text) == (
        "Document",
        "https://example.com/a.pdf",
        "What is it?",
    )


def test_a_stopped_answer_ends_and_the_next_message_is_answered(talk: Talk) -> None:
    chats: list[Conversation[None]] = []

    def make(thread: str, request: Any) -> Conversation[None]:
        chats.append(Conversation(Prompt(desk()), adapter=Talkative(["I begin", "Here."])))
        return chats[-1]

    with serving(application(Threads(make))) as url:
        first, second = talk(url, "stop: Tell me everything.", "Shorter, please.")
    assert (first["text"], second["text"]) == (["I begin"], ["Here."])
    (chat,) = chats
    said = [(message.role, message.text) for message in chat.messages if message.role != "system"]
    assert said == [
        ("user", "stop: Tell me everything."),
        ("assistant", "I begin"),
        ("user", "Shorter, please."),
        ("assistant", "Here."),
    ]


def test_a_stop_in_a_tool_cancels_it_and_the_next_message_is_answered(talk: Talk) -> None:
    cancelled: list[bool] = []

    @tool
    async def search(*, context: ToolContext) -> str:
        """Search for a long time."""
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)
        return "never"

    section = MarkdownSection(title="A", key="a", template="x", tools=[search])
    template = PromptTemplate(ns="t", key="k", sections=[section])
    begin = ModelReply(text="Let me look.", tool_calls=(call("search", call_id="1"),), stop_reason="tool_calls")
    with serving(application(conversations(begin, "Here.", template=template, adapter=Talkative))) as url:
        first, second = talk(url, "stop: Search.", "Never mind.")
    assert (first["text"], second["text"], cancelled) == (["Let me look."], ["Here."], [True])
