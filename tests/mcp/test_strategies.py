"""Each strategy in each host: what a call opens reaches the host with its text and its tools."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from mcp import Client

from tests.disclosure.desk import SUMMARY, LookUp, a_tool, changing, desk_with_files, section
from tests.mcp.servers import python_parameters
from tests.waiting import until_async
from weakincentives.mcp import serve
from weakincentives.prompt import (
    Disclosure,
    LateContent,
    OpenAndHalt,
    OpenOrRead,
    OpenSectionsResult,
    OpenToFiles,
    PromptTemplate,
    ReadSections,
    SearchSections,
    Section,
    SectionVisibility,
    SetVisibilityOverride,
    Tool,
    ToolContext,
    ToolResult,
    VisibilityExpansionRequired,
)
from weakincentives.resources import ScopedResourceContext
from weakincentives.runtime import Exposure
from weakincentives.session import Session

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Wish:
    key: str


class Own(Disclosure):
    """A strategy with one tool, `unfold`, that is given as a function."""

    def __init__(self, handler: Any) -> None:
        self.unfold = Tool[Wish, Any](name="unfold", description="Unfold a section.", handler=handler)

    def tools(self, *, with_tools: bool, content_only: bool) -> tuple[Tool[Any, Any], ...]:
        return (self.unfold,)

    def hint(self, key: str, *, children: Sequence[str], has_tools: bool) -> str:
        return f"[Unfold {key}.]"


def overrides_of(key: str, context: ToolContext) -> dict[tuple[str, ...], SectionVisibility]:
    path = context.view.find(key)
    assert path is not None
    return dict(context.view.opening(path).overrides)


def restarts(params: Wish, *, context: ToolContext) -> ToolResult[Any]:
    raise VisibilityExpansionRequired(
        "Again.", requested_overrides=overrides_of(params.key, context), reason="", section_keys=(params.key,)
    )


def halts(params: Wish, *, context: ToolContext) -> ToolResult[Any]:
    return ToolResult("Opening.", OpenSectionsResult(overrides_of(params.key, context)))


def writes(params: Wish, *, context: ToolContext) -> ToolResult[Any]:
    assert context.filesystem is not None
    context.filesystem.write("text.md", "It is here.")
    request = context.view.request([params.key], overrides={}, files=["text.md"])
    return ToolResult("Written to text.md.", disclosure=request)


def dispatches(params: Wish, *, context: ToolContext) -> ToolResult[Any]:
    for path, visibility in overrides_of(params.key, context).items():
        context.session.dispatch(SetVisibilityOverride(path, visibility))
    return ToolResult("Opened.")


STRATEGIES: dict[str, Disclosure] = {
    "read": ReadSections(),
    "read by key": ReadSections(suffix="key"),
    "read as system text": ReadSections(voice="system"),
    "search": SearchSections(menu="none"),
    "open or read": OpenOrRead(),
    "open or read by key": OpenOrRead(suffix="key"),
    "open and halt": OpenAndHalt(),
    "open to files": OpenToFiles(),
    "none": Disclosure(),
    "own that returns the text": LookUp(),
    "own that restarts": Own(restarts),
    "own that halts": Own(halts),
    "own that writes files": Own(writes),
    "own that dispatches": Own(dispatches),
}
restarting = desk_with_files(disclosure=OpenOrRead())
own_restarting = desk_with_files(disclosure=Own(restarts))


@asynccontextmanager
async def in_memory(template: PromptTemplate[None], mode: str = "auto") -> AsyncIterator[Client]:
    async with Client(serve(template, relist_seconds=0.01).server, mode=mode) as client:
        yield client


@asynccontextmanager
async def over_http(template: PromptTemplate[None]) -> AsyncIterator[Client]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        app = serve(template, relist_seconds=0.01).app
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
        task = asyncio.ensure_future(server.serve(sockets=[listener]))
        await until_async(lambda: server.started)
        try:
            async with Client(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp") as client:
                yield client
        finally:
            server.should_exit = True
            await task


@asynccontextmanager
async def over_stdio(variable: str) -> AsyncIterator[Client]:
    words = ["-m", "weakincentives.cli", "mcp", "serve", f"tests.mcp.test_strategies:{variable}"]
    async with Client(python_parameters(*words, cwd=ROOT)) as client:
        yield client


async def names(client: Client) -> set[str]:
    return {offered.name for offered in (await client.list_tools(cache_mode="refresh")).tools}


async def opened(client: Client, key: str) -> str:
    """The answer to the call that opens a section, by whichever tool the host is offered."""
    offered = await names(client)
    if "read_section" in offered:
        result = await client.call_tool("read_section", {"section_key": key})
    elif "unfold" in offered:
        result = await client.call_tool("unfold", {"key": key})
    else:
        result = await client.call_tool("look_up", {"words": f"All of {key.rpartition('.')[2]}"})
    assert not result.is_error
    return "\n".join(block.text for block in result.content)


async def check(client: Client) -> None:
    """Each section brings its text, and those with tools bring them: at the top, inside another, and without tools."""
    for key, brought in (("orders", "lookup"), ("orders.refunds", "refund"), ("docs", "")):
        before = await names(client)
        assert (key, f"All of {key.rpartition('.')[2]}." in await opened(client, key)) == (key, True)
        assert (await names(client)) - before == {*filter(None, [brought])}


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("name", STRATEGIES)
async def test_a_host_gets_the_text_and_the_tools_of_what_it_opens(name: str, mode: str) -> None:
    template = desk_with_files(disclosure=STRATEGIES[name])
    # What was laid out for other models may not appear in what hosts read.
    template.render()
    async with in_memory(template, mode) as client:
        assert ("open_sections" in (client.instructions or "")) is False
        await check(client)


@pytest.mark.parametrize("name", ["open and halt", "open to files", "own that halts"])
async def test_a_host_gets_them_over_http(name: str) -> None:
    async with over_http(desk_with_files(disclosure=STRATEGIES[name])) as client:
        await check(client)


@pytest.mark.parametrize("variable", ["restarting", "own_restarting"])
async def test_a_host_gets_them_over_stdio(variable: str) -> None:
    async with over_stdio(variable) as client:
        await check(client)


@pytest.mark.parametrize("name", STRATEGIES)
async def test_a_server_that_starts_again_on_a_session_shows_what_is_open(name: str) -> None:
    session, template = Session(), desk_with_files(disclosure=STRATEGIES[name])
    async with Client(serve(template, session=session, relist_seconds=0.01).server) as client:
        await opened(client, "orders")
    async with Client(serve(template, session=session, relist_seconds=0.01).server) as client:
        assert "All of orders." in (client.instructions or "")
        assert "lookup" in await names(client)
        assert "All of refunds." in await opened(client, "orders.refunds")


@pytest.mark.parametrize("name", STRATEGIES)
async def test_the_session_knows_that_the_host_has_the_text(name: str) -> None:
    session, template = Session(), desk_with_files(disclosure=STRATEGIES[name])
    async with Client(serve(template, session=session, relist_seconds=0.01).server) as client:
        await opened(client, "orders")
        exposure = session[Exposure].latest()
    assert exposure is not None and exposure["orders",].source == "conversation"


class Loaded(Section[None]):
    """A section whose text and tool are loaded when it is opened."""

    def render_body(self, params: None) -> str:
        return "Not loaded."

    def load(self, resources: ScopedResourceContext) -> LateContent | None:
        return LateContent((a_tool("late"),), text="All of orders, loaded.")

    def clone(self, **options: Any) -> Loaded:
        raise NotImplementedError


# It finds words, and those are not there yet.
@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "own that returns the text"])
async def test_a_section_that_is_loaded_when_it_is_opened_reaches_the_host_too(name: str) -> None:
    loaded = Loaded(title="Orders", key="orders", summary="About orders.", visibility=SUMMARY)
    sections = [section("docs"), loaded, *desk_with_files().sections[-1:]]
    template: PromptTemplate[None] = PromptTemplate(ns="t", key="late", sections=sections, disclosure=STRATEGIES[name])
    async with in_memory(template) as client:
        assert "All of orders, loaded." in await opened(client, "orders")
        assert "late" in await names(client)


async def test_a_host_reads_of_what_a_call_has_changed_in_the_prompt() -> None:
    unlock = changing(SetVisibilityOverride(("vault",), SectionVisibility.FULL))
    template: PromptTemplate[None] = PromptTemplate(ns="t", key="vault", sections=[unlock, section("vault")])
    async with in_memory(template) as client:
        first = await client.call_tool("change", {})
        second = await client.call_tool("change", {})
    assert [block.text.count("All of vault.") for block in (*first.content, *second.content)] == [1, 0]  # type: ignore[union-attr]
