"""`serve` runs a template as an MCP server whose sections open in any host.

The host takes the place of the model: each of its calls is one turn of the inner loop, so that session, transactions,
disclosure and recording work as they do with an adapter.
"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import secrets
import sys
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, redirect_stdout
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any

import mcp_types as types
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from weakincentives.content import Part
from weakincentives.limits import Budget, Meter
from weakincentives.mcp.server import CALL_ID, TOOL_META, AnnouncingServer, Context, Listener, content_block, is_older
from weakincentives.prompt import Prompt, PromptTemplate, ReadSections, SetVisibilityOverride, Tokenizer, Tool
from weakincentives.runtime import (
    InnerLoop,
    Message,
    ModelReply,
    PromptResponse,
    ToolCall,
    ToolExecutionOutcome,
)
from weakincentives.runtime.spi import (
    AskGuards,
    CallModel,
    Cursor,
    Effect,
    LoadSections,
    LoopAdapter,
    RunScope,
    RunTools,
    call_async,
    closing_resources_async,
    load_sections,
)
from weakincentives.session import Session

logger = logging.getLogger("weakincentives.mcp")
# Over HTTP nothing signals that a host has left. Beyond this many, the one idle longest is dropped, if it has been idle
# for some time; otherwise the new one is refused, so that no one can drive others out.
MAX_HOSTS = 1_000
IDLE_SECONDS = 600.0
DROPPED = "This host was idle, and its session was dropped to make room: its sections are closed. Try again."
# How long a host gets to process a list it has requested.
SETTLE_SECONDS = 0.1
HostKey = tuple[str, str, str]
"""The path, authorization and session id that tell hosts apart."""


class TemplateServer:
    """A template as a server: `run_stdio()` serves one host, `app` is an ASGI application for any number of them."""

    def __init__(
        self, prompt: Prompt[Any], params: tuple[Any, ...], session: Session | None, relist_seconds: float
    ) -> None:
        self._prompt = copy.copy(prompt).bind(*params)
        template = self._prompt.template = copy.copy(prompt.template)
        # The host produces its own answer, and sees only as much of a section as the tool that opens it returns.
        template.structured_output = None
        opening = {tool.name for tool in template.builtin_tools()}
        if "read_section" not in opening or "open_sections" in opening:
            template.disclosure = ReadSections()
        # Rendered here, so that missing params raise in `serve` and not in the server's task group.
        self._instructions = self._prompt.render().system_text
        self._session = session
        self._relist_seconds = relist_seconds
        self._hosts: OrderedDict[HostKey, _Host] = OrderedDict()
        self._dropped: OrderedDict[HostKey, None] = OrderedDict()

    def run_stdio(self) -> None:
        """Serve one host over standard input and output until it closes them."""
        asyncio.run(self.run_stdio_async())

    async def run_stdio_async(self) -> None:
        async with stdio_server() as (read, write):
            # Standard output is reserved for the protocol; what tools print goes to standard error.
            with redirect_stdout(sys.stderr):
                await self.server.run(read, write, self.server.create_initialization_options())

    @cached_property
    def app(self) -> Any:
        """The ASGI application; hosts at `/mcp` are distinguished by their authorization, or by a path below it."""
        return self.server.streamable_http_app(streamable_http_path="/mcp{host:path}")

    @cached_property
    def server(self) -> Server[Any]:
        """The server itself, for uses that `run_stdio` and `app` do not cover."""
        return AnnouncingServer(
            self._prompt.name,
            instructions=self._instructions,
            lifespan=self._lifespan,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_subscriptions_listen=self._listen,
        )

    @asynccontextmanager
    async def _lifespan(self, server: Server[Any]) -> AsyncIterator[dict[str, Any]]:
        try:
            yield {}
        finally:
            while self._hosts:
                await self._hosts.popitem()[1].close()

    async def _host(self, context: Context) -> _Host:
        """The host that a request comes from."""
        key = ("", "", "")
        if context.request is not None:
            headers = context.request.headers
            # Only where the protocol has sessions has the SDK checked the id; elsewhere it is just what someone wrote.
            session_id = headers.get("mcp-session-id", "") if is_older(context) else ""
            key = (context.request.url.path, headers.get("authorization", ""), session_id)
        host, idle = self._hosts.get(key), None
        if host is None:
            if key in self._dropped:
                del self._dropped[key]
                raise MCPError(types.INVALID_REQUEST, DROPPED)
            idle = self._idle_host() if len(self._hosts) >= MAX_HOSTS else None
            session = self._session if context.request is None and self._session is not None else Session()
            host = self._hosts[key] = _Host(copy.copy(self._prompt), session, self._relist_seconds)
        host.last_used = time.monotonic()
        self._hosts.move_to_end(key)
        if idle is not None:
            await idle.close()
        try:
            await host.start()
        except Exception as error:
            self._hosts.pop(key, None)
            await host.close()
            raise MCPError(types.INTERNAL_ERROR, str(error)) from error
        return host

    def _idle_host(self) -> _Host:
        """Drop the host that has been idle longest, and remember to tell it."""
        key = next((key for key, host in self._hosts.items() if host.is_idle), None)
        if key is None:
            message = f"This server has {MAX_HOSTS:,} active hosts, the most it serves; try again later."
            raise MCPError(types.INTERNAL_ERROR, message)
        self._dropped[key] = None
        while len(self._dropped) > MAX_HOSTS:
            self._dropped.popitem(last=False)
        logger.warning("An MCP host that was idle has been dropped: there are more than %d.", MAX_HOSTS)
        return self._hosts.pop(key)

    async def _list_tools(self, context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        host = await self._host(context)
        host.listener.listed(context)
        return types.ListToolsResult(tools=[_declared(tool) for tool in host.list_tools()])

    async def _call_tool(self, context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        host = await self._host(context)
        call_id = str((params.meta or {}).get(CALL_ID) or secrets.token_hex(8))
        outcome = await host.call(ToolCall(call_id, params.name, json.dumps(params.arguments or {})))
        content: list[Any] = [types.TextContent(type="text", text=outcome.message)]
        content += (content_block(part) for part in outcome.attachments)
        return types.CallToolResult(content=content, is_error=not outcome.success)

    async def _listen(self, context: Context, params: Any) -> Any:
        return await (await self._host(context)).listener.listen(context, params)


def serve(
    prompt: Prompt[Any] | PromptTemplate[Any],
    *params: Any,
    session: Session | None = None,
    relist_seconds: float = 5.0,
) -> TemplateServer:
    """Offer a prompt to MCP hosts: its text as instructions, its tools, and `read_section` to open more.

    `params` are bound as by `Prompt.bind`. Each host has its own copy of the prompt, with everything bound to it, and
    its own session; the single host of `run_stdio` uses the given one. The answer to a call that adds tools waits until
    the host has listed them, at most `relist_seconds`.
    """
    if isinstance(prompt, PromptTemplate):
        prompt = Prompt(prompt)
    if not isinstance(prompt, Prompt):
        raise TypeError(f"serve takes a Prompt or a PromptTemplate, got {prompt!r}")
    return TemplateServer(prompt, params, session, relist_seconds)


class _HostAdapter(LoopAdapter):
    """The model behind an MCP host: it lists tools again whenever they change."""

    name = "mcp"
    supports_dynamic_tools = True
    tool_route = "mcp"

    def __init__(self, prompt: Prompt[Any]) -> None:
        self._prompt = prompt
        self._counted = lru_cache(maxsize=8192)(self.tokenizer.count)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._prompt.template.counter

    def count_tokens(self, text: str) -> int:
        return self._counted(text)

    def check_parts(self, parts: Sequence[Part], earlier: Iterable[Message] = ()) -> None:
        """Accept all media: the host knows what its model accepts."""


class _Host:
    """One host's run of the template: an inner loop advanced by the host's calls."""

    def __init__(self, prompt: Prompt[Any], session: Session, relist_seconds: float) -> None:
        self.listener = Listener()
        self.last_used = time.monotonic()
        self._loop = InnerLoop(prompt, session, RunScope(Meter(Budget(max_turns=None))), _HostAdapter(prompt))
        self._cursor: Cursor[Effect, PromptResponse[Any]] | None = None
        self._offered: list[Tool[Any, Any]] = []
        self._calls: set[asyncio.Future[ToolExecutionOutcome]] = set()
        self._stack = AsyncExitStack()
        # Two locks, because a host lists the tools again before it gets the result of the call that changed them.
        self._starting = asyncio.Lock()
        self._lock = asyncio.Lock()
        self._relist_seconds = relist_seconds
        self._relisted = asyncio.Event()
        self._follows = True

    async def start(self) -> None:
        async with self._starting:
            if self._cursor is not None:
                return
            loop = self._loop
            self._stack.enter_context(loop.session.claim(loop.owner))
            resources = closing_resources_async(loop.prompt, loop.session, loop.scope.run_id)
            await self._stack.enter_async_context(resources)
            self._cursor = Cursor(loop.run())
            await self._advance()

    async def close(self) -> None:
        """End the run; calls in progress are cancelled."""
        for work in self._calls:
            work.cancel()
        async with self._lock:
            if self._cursor is not None and self._cursor.step is not None:
                self._cursor.answer(ModelReply())
            await self._stack.aclose()

    @property
    def is_idle(self) -> bool:
        is_busy = bool(self._calls) or self._starting.locked()
        return not is_busy and time.monotonic() - self.last_used >= IDLE_SECONDS

    def list_tools(self) -> list[Tool[Any, Any]]:
        # The list is only about to be sent, and over HTTP nothing guarantees that it arrives before the answer.
        asyncio.get_running_loop().call_later(SETTLE_SECONDS, self._relisted.set)
        self._follows = True
        return self._offered

    async def call(self, call: ToolCall) -> ToolExecutionOutcome:
        """Run one call. A call that the host cancels is rolled back, and the run continues."""
        # A separate task: the host's cancel scope would also interrupt the rollback.
        work = asyncio.ensure_future(self._call(call))
        self._calls.add(work)
        work.add_done_callback(self._calls.discard)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            work.cancel()
            raise
        finally:
            self.last_used = time.monotonic()

    async def _call(self, call: ToolCall) -> ToolExecutionOutcome:
        async with self._lock:
            before = await self._advance()
            assert self._cursor is not None
            self._cursor.answer(ModelReply(tool_calls=(call,)))
            assert isinstance(self._cursor.step, RunTools)
            outcome = await self._run(call)
            self._cursor.answer([outcome])
            if await self._advance() != before:
                await self._announce()
            return outcome

    async def _advance(self) -> list[Tool[Any, Any]]:
        """Load sections until the loop waits for the host, and return the tools it then offers."""
        assert self._cursor is not None
        while isinstance(effect := self._cursor.step, LoadSections | AskGuards):
            if isinstance(effect, AskGuards):
                self._cursor.answer(await call_async(effect.steps()))
            else:
                self._cursor.answer(await asyncio.to_thread(load_sections, self._loop, effect))
        if not isinstance(effect, CallModel):
            self._cursor.result()
            raise RuntimeError("the run has ended")
        request = effect.request
        self._offered = [tool for tool in request.tools if tool.name not in request.revoked]
        return self._offered

    async def _run(self, call: ToolCall) -> ToolExecutionOutcome:
        try:
            (outcome,) = await self._loop.executor.execute_all_async([call])
        except asyncio.CancelledError:
            return ToolExecutionOutcome(call.id, f"Tool '{call.name}' was cancelled.", False, name=call.name)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # Whatever a tool raises, the other hosts go on.
            logger.exception("Tool '%s' failed.", call.name)
            return ToolExecutionOutcome(call.id, f"Tool '{call.name}' failed: {error}", False, name=call.name)
        if outcome.ends_turn and outcome.disclosure is not None:
            for path, visibility in outcome.disclosure.overrides.items():
                self._loop.session.dispatch(SetVisibilityOverride(path, visibility))
            return replace(outcome, disclosure=replace(outcome.disclosure, halt=False), restarts=False)
        return outcome

    async def _announce(self) -> None:
        """Tell the host that the list has changed, and wait for it to list again, unless it failed to last time."""
        relisted = self._relisted = asyncio.Event()
        await self.listener.notify()
        if self._follows and self.listener.listens:
            try:
                await asyncio.wait_for(relisted.wait(), self._relist_seconds)
            except TimeoutError:
                self._follows = False
                logger.warning("The MCP host did not list the tools again within %g seconds.", self._relist_seconds)


def _declared(tool: Tool[Any, Any]) -> types.Tool:
    """A tool as MCP lists it."""
    return types.Tool.model_validate(
        {
            "name": tool.name,
            "description": tool.description,
            # Hosts check calls against it, and their models need not write every argument.
            "inputSchema": tool.plain_schema,
            "annotations": {"readOnlyHint": tool.read_only},
            "_meta": TOOL_META,
        }
    )
