"""Pages on durable conversations: any web process serves them, and a page may leave, come back, stop and decide."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ui.server import Page, asked, chunks, said
from tests.waiting import until_async
from weakincentives import MarkdownSection, Prompt, PromptTemplate, ScriptedAdapter, call, tool
from weakincentives.durable import DurableConversations
from weakincentives.runtime import Channel, ModelReply, ModelRequest, TextDelta
from weakincentives.ui import DurableThreads, ThreadLimits


@tool(approval="call")
def act(what: str) -> str:
    "Act."
    return f"{what}, done"


class Answers(Channel):
    """Answers each message; `long` word by word, without an end."""

    def call(self, request: ModelRequest) -> ModelReply:
        last = request.messages[-1]
        if last.text == "fail":
            raise RuntimeError("The password is 1234.")
        if last.text == "act":
            return ModelReply(tool_calls=(call("act", call_id="c", what="it"),), stop_reason="tool_calls")
        if last.text == "pick":
            return ModelReply(tool_calls=(call("page.pick", call_id="p"),), stop_reason="tool_calls")
        count = sum(message.by_user for message in request.messages)
        return ModelReply(f"{count}: {last.text}")

    def stream(self, request: ModelRequest) -> Iterator[str | TextDelta | ModelReply]:
        while request.messages[-1].text == "long":
            yield "more "
            time.sleep(0.01)
        reply = self.call(request)
        yield reply.text
        yield reply


class Adapter(ScriptedAdapter):
    def channel(self) -> Channel:
        return Answers()


DESK_SECTION = MarkdownSection(title="Desk", key="desk", template="Answer.", tools=[act])
DESK = PromptTemplate[None](ns="tests", key="desk", sections=[DESK_SECTION])


@pytest.fixture
async def chats(tmp_path: Path) -> AsyncIterator[DurableConversations[Any]]:
    with DurableConversations[Any]("desk", lambda name: Prompt(DESK), Adapter(), str(tmp_path / "durable.db")) as chats:
        chats.start()
        yield chats


def another(chats: DurableConversations[Any], **options: Any) -> DurableThreads:
    """The threads of another web process, which answers nothing itself."""
    client = DurableConversations[Any]("desk", lambda name: Prompt(DESK), Adapter(), chats.database_url)
    return DurableThreads(client, **options)


async def history(page: Page, thread: str = "t1") -> list[str]:
    _, body = await page.get(f"id={thread}&threadId={thread}")
    return [part["text"] for message in json.loads(body) for part in message["parts"] if part["type"] == "text"]


async def test_messages_that_alternate_between_web_processes_are_one_conversation(
    chats: DurableConversations[Any],
) -> None:
    one, two = Page(DurableThreads(chats)), Page(another(chats), "ag-ui")
    assert await one.hear("a") == "1: a"
    assert await two.hear("b") == "2: b"
    assert await history(one) == ["a", "1: a", "b", "2: b"]
    assert await history(one, "t2") == []


async def test_a_call_that_waits_is_decided_at_another_web_process(chats: DurableConversations[Any]) -> None:
    one, two = Page(DurableThreads(chats)), Page(another(chats))
    (question,) = [chunk for chunk in chunks((await one.send("act"))[1]) if chunk["type"] == "tool-approval-request"]
    approval = {"id": question["approvalId"], "approved": True}
    part = {"type": "dynamic-tool", "toolCallId": "c", "state": "approval-responded", "approval": approval}
    decision = {"id": "t1", "messages": [{"id": "2", "role": "assistant", "parts": [part]}]}
    status, body = await two.post(decision)
    assert (status, said(body)) == (200, "1: it, done")
    assert (await one.post(decision))[0] == 409


async def test_a_page_that_leaves_does_not_stop_its_run_and_one_that_comes_back_reads_it_from_the_start(
    chats: DurableConversations[Any],
) -> None:
    page, back = Page(DurableThreads(chats)), Page(another(chats), "vercel/t1/stream")
    sending = asyncio.create_task(page.send("long"))
    await until_async(lambda: "more" in page.body.decode())
    page.gone.set()
    await sending
    assert (await chats.in_flight_async("t1")).number == 1
    assert await history(Page(another(chats))) == ["long"]
    reading = asyncio.create_task(back.get(""))
    await until_async(lambda: back.body.decode().count("text-delta") >= 2)
    assert await chats.stop_async("t1")
    assert said((await reading)[1]) == chats.messages("t1")[-1].text
    assert (await Page(another(chats), "vercel/t1/stream").get(""))[0] == 204


@pytest.mark.parametrize("path", ["vercel", "ag-ui"])
async def test_a_new_message_stops_the_answer_to_the_last_one(chats: DurableConversations[Any], path: str) -> None:
    page, other = Page(DurableThreads(chats), path), Page(another(chats), path)
    sending = asyncio.create_task(page.send("long", key="1"))
    await until_async(lambda: "more" in page.body.decode())
    assert (await other.send("long", key="1"))[0] == 409
    assert await other.hear("b", key="2", earlier=["1"]) == "2: b"
    await sending


async def test_delete_stops_an_answer(chats: DurableConversations[Any]) -> None:
    page, other = Page(DurableThreads(chats)), Page(another(chats))
    sending = asyncio.create_task(page.send("long"))
    await until_async(lambda: "more" in page.body.decode())
    assert (await other._request("DELETE", b"", headers={}, query="id=t1"))[0] == 204
    status, body = await sending
    assert (status, body.endswith("data: [DONE]\n\n")) == (200, True)


async def test_a_message_is_answered_again(chats: DurableConversations[Any]) -> None:
    page = Page(DurableThreads(chats))
    await page.hear("a", key="1")
    assert await page.hear("a", key="1", trigger="regenerate-message") == "1: a"
    assert await history(page) == ["a", "1: a"]
    assert (await page.send("a", key="1"))[0] == 409


async def test_an_edited_message_takes_a_durable_conversation_back(chats: DurableConversations[Any]) -> None:
    page, other = Page(DurableThreads(chats)), Page(another(chats))
    await page.hear("a", key="1")
    await page.hear("b", key="2", earlier=["1"])
    await page.hear("c", key="3", earlier=["1", "2"])
    assert await other.hear("B", key="2", earlier=["1"]) == "2: B"
    assert await history(page) == ["a", "1: a", "B", "2: B"]
    assert await page.hear("bb", key="2", earlier=["1"]) == "2: bb"
    assert await page.hear("a", key="1", trigger="regenerate-message") == "1: a"
    assert await history(page) == ["a", "1: a"]


async def test_a_page_answers_the_calls_of_its_own_tools(chats: DurableConversations[Any]) -> None:
    page = Page(DurableThreads(chats), "ag-ui")
    tools = [{"name": "pick", "description": "Pick.", "parameters": {"type": "object", "properties": {}}}]
    await page.send("pick", tools=tools)
    assert [each.tool for each in chats.pending("t1")] == ["page.pick"]
    result = {"id": "r", "role": "tool", "toolCallId": "p", "content": "red"}
    body = asked("pick", tools=tools)
    body["messages"].append(result)
    assert said((await page.post(body))[1]) == "1: red"


async def test_errors_are_not_shown_and_limits_hold_for_all_web_processes(chats: DurableConversations[Any]) -> None:
    page = Page(DurableThreads(chats, limits=ThreadLimits(per_minute=2)))
    status, body = await page.send("fail")
    assert (status, "1234" in body, "could not be answered" in body) == (200, False, True)
    assert await Page(another(chats)).hear("b") == "2: b"
    assert (await page.send("c"))[0] == 429


async def test_an_owner_reads_only_its_own_threads(chats: DurableConversations[Any]) -> None:
    threads = DurableThreads(chats, owner=lambda request: request.headers.get("user"))
    page = Page(threads)
    assert (await page.send("a"))[0] == 401
    assert said((await page.send("a", headers={"user": "ann"}))[1]) == "1: a"
    assert (await page.get("id=t1", user="bob"))[1] == "[]"
    assert [message.text for message in chats.messages("ann/t1")][-1] == "1: a"
