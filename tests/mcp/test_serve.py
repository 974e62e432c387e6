"""A template as an MCP server: sections open in the host, and calls are transactions of a session."""

from __future__ import annotations

import asyncio
import base64
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from tests.disclosure.accounts import ALICE, BOB, CURRENT, User, from_a_bound_factory, from_a_factory
from tests.disclosure.desk import FULL
from tests.helpers.endings import endings
from tests.mcp.desk import PNG, Notes, pondered, template
from tests.mcp.servers import python_parameters, python_server
from tests.waiting import until_async
from weakincentives.guards import Guard, GuardedCall, MaxCalls, Outcome, Stop
from weakincentives.mcp import MCPSection, StdioServer, serve
from weakincentives.prompt import MarkdownSection, PromptTemplate, tool
from weakincentives.runtime import PromptRendered, ToolInvoked, ToolsInjected
from weakincentives.session import Session
from weakincentives.telemetry import RunStore

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
READ: dict[str, Any] = {"section_key": "notes"}


def text(result: Any) -> str:
    (block,) = result.content
    return str(block.text)


async def names(client: Client) -> list[str]:
    return [tool.name for tool in (await client.list_tools(cache_mode="refresh")).tools]


def stdio(*words: str) -> StdioServerParameters:
    return python_parameters("-m", "weakincentives.cli", "mcp", "serve", *words, cwd=ROOT)


@asynccontextmanager
async def over_http(prompt: Any = template) -> AsyncIterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(serve(prompt).app, log_config=None, timeout_graceful_shutdown=1))
        task = asyncio.ensure_future(server.serve(sockets=[listener]))
        await until_async(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        finally:
            server.should_exit = True
            await task


async def relisting(client: Client, listens: asyncio.Event) -> None:
    """Lists again at every announcement, as a host does."""
    async with client.listen(tools_list_changed=True) as events:
        listens.set()
        async for _ in events:
            await names(client)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_section_opens_in_the_host_and_brings_its_tools(mode: str, tmp_path: Path) -> None:
    file = tmp_path / "runs.db"
    async with Client(stdio("tests.mcp.desk:template", "--record", str(file)), mode=mode) as client:
        assert "Help with notes." in (client.instructions or "")
        assert 'call `read_section` with key "notes"' in (client.instructions or "")
        assert await names(client) == ["read_section"]
        opened = await client.call_tool("read_section", READ)
        assert "Keep notes short." in text(opened)
        assert await names(client) == ["read_section", "keep", "ponder", "paint"]
        kept = await client.call_tool("keep", {"text": "milk"})
        assert (text(kept), kept.is_error) == ("Kept milk.", False)
    with RunStore(file) as store:
        (run,) = store.list_runs()
    assert (run.prompt_name, run.status) == ("desk", "ok")


async def test_a_call_is_a_transaction_of_the_session_and_is_recorded() -> None:
    session = Session()
    server = serve(template, session=session)
    async with Client(server.server) as client:
        await client.call_tool("read_section", READ)
        for note in ("milk", "broken", "eggs"):
            result = await client.call_tool("keep", {"text": note})
    assert text(result) == "Kept milk and eggs."
    assert session[Notes].all() == (Notes(("milk", "eggs")),)
    calls = [(event.name, event.success, event.rolled_back) for event in session[ToolInvoked]]
    assert calls == [
        ("read_section", True, False),
        ("keep", True, False),
        ("keep", False, True),
        ("keep", True, False),
    ]
    assert [event.tool_names for event in session[ToolsInjected]] == [("keep", "ponder", "paint")]
    assert (len(session[PromptRendered].all()), len(endings(session, "completed"))) == (1, 1)


async def test_a_call_id_that_the_host_gives_again_is_another_call() -> None:
    session = Session()
    async with Client(serve(template, session=session).server) as client:
        await client.call_tool("read_section", READ)
        for note in ("milk", "eggs"):
            await client.call_tool("keep", {"text": note}, meta={"claudecode/toolUseId": "c1"})
    before, after = (event.call_id for event in session[ToolInvoked].all() if event.name == "keep")
    assert before == "c1" and len(after) == 9


async def test_what_a_call_gets_wrong_is_told_to_the_host() -> None:
    async with Client(serve(template).server) as client:
        unknown = await client.call_tool("keep", {"text": "milk"})
        assert (unknown.is_error, "Unknown tool 'keep'" in text(unknown)) == (True, True)
        await client.call_tool("read_section", READ)
        wrong = await client.call_tool("keep", {"text": 1})
    assert text(wrong) == "Invalid arguments for 'keep': text: expected str, got int 1"


async def test_a_call_that_the_host_cancels_is_rolled_back_and_the_run_goes_on() -> None:
    session = Session()
    async with Client(serve(template, session=session).server) as client:
        await client.call_tool("read_section", READ)
        call = asyncio.ensure_future(client.call_tool("ponder", {"text": "why"}))
        await until_async(lambda: session[Notes].latest() == Notes(("why",)))
        assert await names(client) == ["read_section", "keep", "ponder", "paint"]
        call.cancel()
        assert text(await client.call_tool("keep", {"text": "milk"})) == "Kept milk."
    invoked = [(event.name, event.success, event.rolled_back) for event in session[ToolInvoked]]
    assert invoked[1:] == [("ponder", False, True), ("keep", True, False)]


class Odd(BaseException):
    pass


@pytest.mark.parametrize("error", [SystemExit(2), GeneratorExit(), asyncio.CancelledError(), Odd("odd")])
async def test_whatever_a_tool_raises_the_server_goes_on(error: BaseException) -> None:
    @tool
    async def leave() -> str:
        "Leave."
        raise error

    @tool
    def stay() -> str:
        "Stay."
        return "Still here."

    section = MarkdownSection(title="Task", key="task", template="Go.", tools=[leave, stay])
    async with Client(serve(PromptTemplate(ns="tests", key="exits", sections=[section])).server) as client:
        left = await client.call_tool("leave", {})
        assert (left.is_error, text(left).startswith("Tool 'leave' failed: ")) == (True, True)
        assert text(await client.call_tool("stay", {})) == "Still here."


async def test_guards_hold_for_the_calls_of_a_host() -> None:
    @tool
    def pay(amount: int) -> str:
        "Pay."
        return f"paid {amount}"

    class Modest(Guard):
        async def before_run(self, words: str, *, context: Any) -> None:
            assert words == ""

        def before_tool(self, call: GuardedCall, *, context: Any) -> Outcome | None:
            return Stop("Fraud.") if call.params.amount > 100 else None

    section = MarkdownSection(title="Task", key="task", template="Go.", tools=[pay])
    guards = [Modest(), MaxCalls("pay", 1)]
    guarded: PromptTemplate[None] = PromptTemplate(ns="tests", key="guarded", sections=[section], guards=guards)
    async with Client(serve(guarded).server) as client:
        results = [await client.call_tool("pay", {"amount": amount}) for amount in (101, 5, 6)]
    assert [result.is_error for result in results] == [True, False, True]
    assert text(results[0]) == "Tool 'pay' failed: Modest stopped 'guarded': Fraud."
    assert text(results[1]) == "paid 5"
    assert text(results[2]) == "The tool 'pay' may be called once in a run; go on without it."


async def test_a_host_that_leaves_ends_the_call_that_is_under_way() -> None:
    session = Session()
    async with Client(serve(template, session=session).server) as client:
        await client.call_tool("read_section", READ)
        call = asyncio.ensure_future(client.call_tool("ponder", {"text": "why"}))
        await until_async(lambda: session[Notes].latest() == Notes(("why",)))
    await asyncio.gather(call, return_exceptions=True)
    assert session[Notes].latest() == Notes()
    assert len(endings(session, "completed")) == 1


async def test_an_mcp_server_may_stand_behind_a_served_section() -> None:
    server = python_server(str(ROOT / "tests/mcp/shop.py"))
    shop = MCPSection(key="shop", title="Shop", server=server)
    chained: PromptTemplate[None] = PromptTemplate(ns="tests", key="chain", sections=[shop])
    async with Client(serve(chained).server) as client:
        await client.call_tool("read_section", {"section_key": "shop"})
        assert text(await client.call_tool("get_stock", {"item": "chair"})) == "chair: 3"


async def test_a_section_that_must_be_open_and_cannot_be_is_an_error_for_the_host(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shop = MCPSection(key="shop", title="Shop", server=StdioServer("no-such-command"), visibility=FULL)
    broken: PromptTemplate[None] = PromptTemplate(ns="tests", key="broken", sections=[shop])
    async with Client(serve(broken).server) as client:
        for _ in range(2):
            with pytest.raises(MCPError, match=r"^'broken' is not available now; the server's log says why\.$"):
                await client.list_tools()
    assert "No such file or directory: 'no-such-command'" in caplog.text


async def test_pictures_go_to_the_host_as_such() -> None:
    async with Client(serve(template).server) as client:
        await client.call_tool("read_section", READ)
        blocks: Any = (await client.call_tool("paint", {})).content
    assert (blocks[0].text, blocks[1].type, blocks[1].mime_type) == ("Painted.", "image", "image/png")
    assert base64.b64decode(blocks[1].data) == PNG


async def test_the_answer_to_an_opening_waits_until_the_host_has_listed_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    order: list[str] = []
    async with over_http() as url, Client(url) as client:
        listens = asyncio.Event()
        host = asyncio.ensure_future(relisting(client, listens))
        await listens.wait()
        listing = client.list_tools

        async def noted(**options: Any) -> Any:
            result = await listing(**options)
            order.append("listed")
            return result

        client.list_tools = noted  # type: ignore[method-assign]
        await client.call_tool("read_section", READ)
        order.append("answered")
        host.cancel()
    assert (order, caplog.text) == (["listed", "answered"], "")


async def test_a_host_that_does_not_list_again_gets_its_answer_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with Client(serve(template, relist_seconds=0.05).server, mode="legacy") as client:
        await names(client)
        opened = await client.call_tool("read_section", READ)
    assert not opened.is_error
    assert "did not list the tools again within 0.05 seconds" in caplog.text


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_over_http_every_host_has_sections_and_a_session_of_its_own(mode: str) -> None:
    async with over_http() as url, Client(f"{url}/ann", mode=mode) as ann, Client(f"{url}/bob", mode=mode) as bob:
        await ann.call_tool("read_section", READ)
        await bob.call_tool("read_section", READ)
        await ann.call_tool("keep", {"text": "ann's"})
        kept = await bob.call_tool("keep", {"text": "bob's"})
    assert text(kept) == "Kept bob's."


@asynccontextmanager
async def connected(url: str, mode: str = "auto", **headers: str) -> AsyncIterator[tuple[Client, list[str]]]:
    """A client that sends these headers, and the session ids it was given."""
    given: list[str] = []

    async def note(response: httpx2.Response) -> None:
        given.extend(filter(None, [response.headers.get("mcp-session-id")]))

    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        httpx2.AsyncClient(headers=named, event_hooks={"response": [note]}, timeout=30) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client, given


async def keep(client: Client, words: str) -> str:
    await client.call_tool("read_section", READ)
    return text(await client.call_tool("keep", {"text": words}))


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("authorization", ["Bearer token", ""])
async def test_neither_a_session_id_nor_parts_of_a_name_give_anothers_session(mode: str, authorization: str) -> None:
    own = {"authorization": authorization} if authorization else {}
    async with over_http() as url, connected(f"{url}/ann", mode, **own) as (ann, ids):
        assert await keep(ann, "ann's") == "Kept ann's."
        stolen = {"mcp_session_id": ids[0]} if ids else {}
        others: list[tuple[str, dict[str, str]]] = [
            ("/ann", {**stolen, "authorization": "Bearer other"}),
            ("/ann%20Bearer", {**stolen, "authorization": "token"}),
            ("/ann%20Bearer%20token", stolen),
            ("/bob", {**stolen, **own}),
        ]
        # Where nothing else is known of a host, everyone at its path without a session is one host.
        others += [("/ann", stolen)] if authorization or stolen else []
        for path, headers in others:
            async with connected(f"{url}{path}", "auto", **headers) as (other, _):
                assert (path, headers, await keep(other, "mine")) == (path, headers, "Kept mine.")
        assert await keep(ann, "more") == "Kept ann's and more."


async def test_a_host_that_is_not_idle_is_never_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weakincentives.mcp.host.MAX_HOSTS", 2)
    async with over_http() as url, Client(f"{url}/ann") as ann, Client(f"{url}/bob") as bob:
        assert await keep(ann, "ann's") == "Kept ann's."
        assert await keep(bob, "bob's") == "Kept bob's."
        async with Client(f"{url}/eve") as eve:
            with pytest.raises(MCPError, match="This server has 2 active hosts, the most it serves; try again later"):
                await names(eve)
        assert await keep(ann, "more") == "Kept ann's and more."


async def test_a_host_that_was_dropped_is_told_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("weakincentives.mcp.host.MAX_HOSTS", 2)
    monkeypatch.setattr("weakincentives.mcp.host.IDLE_SECONDS", 0.0)
    async with over_http() as url, Client(f"{url}/ann") as ann, Client(f"{url}/bob") as bob:
        await ann.call_tool("read_section", READ)
        pondering = asyncio.ensure_future(ann.call_tool("ponder", {"text": "who is dropped"}))
        await until_async(lambda: "who is dropped" in pondered)
        assert await names(bob) == ["read_section"]
        async with Client(f"{url}/eve") as eve:
            assert await names(eve) == ["read_section"]
        assert not pondering.done()
        with pytest.raises(MCPError, match="its session was dropped to make room: its sections are closed"):
            await names(bob)
        pondering.cancel()
        assert await names(bob) == ["read_section"]
    assert "An MCP host that was idle has been dropped" in caplog.text


async def test_hosts_get_a_plain_schema_and_may_call_by_the_strict_one_too() -> None:
    @tool
    def note(text: str, size: int = 3, tags: dict[str, str] | None = None) -> str:
        "Note it."
        return f"{text} {size} {tags}"

    section = MarkdownSection(title="Task", key="task", template="Note.", tools=[note])
    async with Client(serve(PromptTemplate(ns="tests", key="note", sections=[section])).server) as client:
        (listed,) = (await client.list_tools()).tools
        plain = {"text": "a", "tags": {"b": "c"}}
        strict = {"text": "a", "size": None, "tags": [{"key": "b", "value": "c"}]}
        answers = [text(await client.call_tool("note", arguments)) for arguments in (plain, strict)]
    assert answers == ["a 3 {'b': 'c'}"] * 2
    texts = {"type": "object", "additionalProperties": {"type": "string"}}
    assert listed.input_schema == {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "size": {"type": "integer", "default": 3},
            "tags": {"anyOf": [texts, {"type": "null"}], "default": None},
        },
        "required": ["text"],
        "additionalProperties": False,
    }


async def test_params_and_resources_bound_to_a_prompt_reach_its_hosts() -> None:
    async with Client(stdio("tests.mcp.desk:bound_prompt")) as client:
        assert "Serve Ann." in (client.instructions or "")
        assert text(await client.call_tool("whose", {})) == "Ann's notebook"
    async with Client(stdio("tests.mcp.desk:bound_prompt", "--params", "name=Bob")) as client:
        assert "Serve Bob." in (client.instructions or "")


def test_only_a_prompt_can_be_served() -> None:
    with pytest.raises(TypeError, match="serve takes a Prompt or a PromptTemplate, got 'desk'"):
        serve("desk")  # type: ignore[arg-type]
    assert isinstance(template, PromptTemplate)


@pytest.mark.parametrize("way", [from_a_factory, from_a_bound_factory])
@pytest.mark.parametrize("is_beside", [True, False], ids=["beside each other", "one after the other"])
async def test_what_a_section_has_loaded_for_one_host_is_not_shown_to_another(way: Any, is_beside: bool) -> None:
    prompt = way()(ALICE)
    async with over_http(prompt) as url, AsyncExitStack() as stack:
        hosts: dict[str, Client] = {}

        async def connect(user: User) -> None:
            CURRENT[0] = user
            hosts[user.name] = client = await stack.enter_async_context(Client(f"{url}/{user.name}"))
            assert await names(client) == ["read_section"]

        if is_beside:
            for user in (ALICE, BOB):
                await connect(user)
        for user in (BOB, ALICE):
            if not is_beside:
                await connect(user)
            client = hosts[user.name]
            opened = await client.call_tool("read_section", {"section_key": "account"})
            assert f"Account of {user.name}." in text(opened)
            assert await names(client) == ["read_section", f"pay_{user.name}"]
            assert text(await client.call_tool(f"pay_{user.name}", {})) == f"balance-of-{user.name}"
