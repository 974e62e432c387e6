"""Our tools as an MCP server on loopback whose list may change while it runs.

The CLI reaches it over HTTP, the only transport that announces a changed list through public API: the SDK's in-process
servers drop such notices. The path contains a secret, so that no other user of the machine can call it.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import mcp_types as types
import uvicorn

from weakincentives.adapters.claude_agent_sdk.wire import SERVER_NAME, declare_tool, shown_in_result
from weakincentives.content import Part
from weakincentives.mcp.server import CALL_ID, TOOL_META, AnnouncingServer, Context, Listener, content_block
from weakincentives.prompt import Tool, portable_name


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a tool call."""

    parts: tuple[Part, ...]
    success: bool = True


class ToolServer:
    """Serves a list of tools; calls wait until `answer` is given for their id."""

    def __init__(self, tools: Iterable[Tool[Any, Any]]) -> None:
        self._tools = {portable_name(tool.name): declare_tool(tool) for tool in tools}
        self._answers: dict[str, asyncio.Future[Answer]] = {}
        self._listed = asyncio.Event()
        self._listener = Listener()
        self._path = f"/{secrets.token_urlsafe(24)}"
        self._socket = socket.create_server(("127.0.0.1", 0))
        app = AnnouncingServer(
            SERVER_NAME,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_subscriptions_listen=self._listener.listen,
            get_tool_input_schema=self._schema,
        )
        self._http = uvicorn.Server(
            uvicorn.Config(
                app.streamable_http_app(streamable_http_path=self._path),
                log_config=None,
                access_log=False,
                ws="none",
                timeout_graceful_shutdown=1,
            )
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}{self._path}"

    async def start(self) -> None:
        self._http.config.load()
        self._http.lifespan = self._http.config.lifespan_class(self._http.config)
        await self._http.startup(sockets=[self._socket])

    async def close(self) -> None:
        """Stop at once: no client is left, and uvicorn's own shutdown takes 0.2 s."""
        for waiting in self._answers.values():
            waiting.cancel()
        if self._http.started:
            for listener in self._http.servers:
                listener.close()
            for connection in list(self._http.server_state.connections):
                connection.shutdown()
            if self._http.server_state.tasks:
                await asyncio.wait(self._http.server_state.tasks, timeout=1)
            await self._http.lifespan.shutdown()
        self._socket.close()

    async def listed(self, timeout: float) -> bool:
        """Wait until the CLI has listed the tools (again)."""
        try:
            await asyncio.wait_for(self._listed.wait(), timeout)
        except TimeoutError:
            return False
        return True

    async def add(self, tools: Iterable[Tool[Any, Any]], timeout: float) -> bool:
        """Offer more tools and announce them; False if the CLI does not list the tools again."""
        self._tools |= {portable_name(tool.name): declare_tool(tool) for tool in tools}
        self._listed.clear()
        await self._listener.notify()
        return await self.listed(timeout)

    def answer(self, call_id: str, answer: Answer) -> None:
        """Set the result of a call, which may not have arrived yet."""
        slot = self._slot(call_id)
        if not slot.done():
            slot.set_result(answer)

    def _slot(self, call_id: str) -> asyncio.Future[Answer]:
        return self._answers.setdefault(call_id, asyncio.get_running_loop().create_future())

    def _schema(self, name: str) -> dict[str, Any] | None:
        declared = self._tools.get(name)
        return None if declared is None else declared["input_schema"]

    async def _list_tools(self, context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        self._listener.listed(context)
        self._listed.set()
        tools = [types.Tool.model_validate({**tool, "_meta": TOOL_META}) for tool in self._tools.values()]
        return types.ListToolsResult(tools=tools)

    async def _call_tool(self, context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        answer = await self._slot(str((params.meta or {}).get(CALL_ID, "")))
        content = [content_block(shown_in_result(part)) for part in answer.parts]
        return types.CallToolResult(content=content, is_error=not answer.success)
