"""Names of servers' tools where another process, or another program, goes on with the conversation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mcp import Client

from tests.attacks.late_servers import No, Server, prompt, read
from tests.waiting import PATIENCE
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.durable import DurableConversations
from weakincentives.mcp import serve
from weakincentives.prompt import Prompt
from weakincentives.runtime import Approve, Conversation, ModelRequest


def servers(keys: str) -> Prompt[Any]:
    return prompt([Server(key, ["delete"], approval="call") for key in keys])


def deleting(request: ModelRequest) -> Any:
    """A model that opens b before a, and deletes with the tool of b."""
    results = [message.text for message in request.messages if message.role == "tool"]
    if not results:
        return read("b", "a")
    return f"{results[-1]}." if "|" in results[-1] else call("b_delete")


def test_a_durable_call_is_made_by_another_process_at_the_section_of_its_question(
    tmp_path: Path,
) -> None:
    answers: list[Any] = []
    for keys in ("ab", "bca"):
        adapter, database = ScriptedAdapter(deleting), str(tmp_path / "durable.db")
        chats = DurableConversations[Any]("desk", lambda _: servers(keys), adapter, database)  # noqa: B023
        with chats:
            chats.start()
            if keys == "ab":
                answers.append(chats.send("ann", "Delete.", timeout=PATIENCE).pending)
            else:
                (pending,) = chats.pending("ann")
                assert (pending.tool, pending.section_key) == ("b_delete", "b")
                decisions = {pending.call_id: Approve()}
                answers.append(chats.decide("ann", decisions, timeout=PATIENCE).text)
    assert [len(answers[0]), answers[1]] == [1, "b|delete."]


def test_a_fork_and_its_origin_keep_the_names() -> None:
    chat = Conversation(servers("ba"), adapter=ScriptedAdapter(deleting))
    (pending,) = chat.send("Delete.").pending
    fork = chat.fork()
    for each in (fork, chat):
        assert each.decide({pending.call_id: Approve()}).text == "b|delete."


async def test_an_mcp_host_gets_the_same_names_in_every_order_and_guards_hold() -> None:
    served = prompt([Server(key, ["delete"]) for key in "ab"], guards=[No("a.delete")])
    for order in ("ab", "ba"):
        async with Client(serve(served).server) as client:
            for key in order:
                await client.call_tool("read_section", {"section_key": key})
            tools = (await client.list_tools(cache_mode="refresh")).tools
            results = [await client.call_tool(f"{key}_delete", {}) for key in "ab"]
        assert {tool.name for tool in tools} == {"read_section", "a_delete", "b_delete"}
        assert [result.content[0].text for result in results] == ["No delete of a.", "b|delete"]
