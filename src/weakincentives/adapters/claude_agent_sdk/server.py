"""The servers on loopback that the CLI calls: our tools, and a model that makes a call which a person has approved.

Our tools are an MCP server whose list may change while it runs. The CLI reaches it over HTTP, the only transport that
announces a changed list through public API: the SDK's in-process servers drop such notices. The path contains a secret,
so that no other user of the machine can call it.
"""

from __future__ import annotations

import asyncio
import json
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
from weakincentives.runtime import ToolCall


@dataclass(frozen=True, slots=True)
class ServedResult:
    """The result of a tool call."""

    parts: tuple[Part, ...]
    success: bool = True


class Loopback:
    """An ASGI application behind a secret path."""

    def __init__(self, app: Any, path: str) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}{path}"
        self._http = uvicorn.Server(
            uvicorn.Config(
                app, interface="asgi3", log_config=None, access_log=False, ws="none", timeout_graceful_shutdown=1
            )
        )

    async def start(self) -> None:
        self._http.config.load()
        self._http.lifespan = self._http.config.lifespan_class(self._http.config)
        await self._http.startup(sockets=[self._socket])

    async def close(self) -> None:
        """Stop at once: no client is left, and uvicorn's own shutdown takes 0.2 s."""
        if self._http.started:
            for listener in self._http.servers:
                listener.close()
            for connection in list(self._http.server_state.connections):
                connection.shutdown()
            if self._http.server_state.tasks:
                await asyncio.wait(self._http.server_state.tasks, timeout=1)
            await self._http.lifespan.shutdown()
        self._socket.close()


class ToolServer:
    """Serves a list of tools; calls wait until `answer` is given for their id."""

    def __init__(self, tools: Iterable[Tool[Any, Any]]) -> None:
        self._tools = {portable_name(tool.name): declare_tool(tool) for tool in tools}
        self._answers: dict[str, asyncio.Future[ServedResult]] = {}
        self._listed = asyncio.Event()
        self._listener = Listener()
        app = AnnouncingServer(
            SERVER_NAME,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_subscriptions_listen=self._listener.listen,
            get_tool_input_schema=self._schema,
        )
        path = _secret_path()
        self._http = Loopback(app.streamable_http_app(streamable_http_path=path), path)
        self.url = self._http.url
        self.start = self._http.start

    async def close(self) -> None:
        for waiting in self._answers.values():
            waiting.cancel()
        await self._http.close()

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

    def answer(self, call_id: str, answer: ServedResult) -> None:
        """Set the result of a call, which may not have arrived yet."""
        slot = self._slot(call_id)
        if not slot.done():
            slot.set_result(answer)

    def _slot(self, call_id: str) -> asyncio.Future[ServedResult]:
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


class CallingModel:
    """A Messages API whose model makes one call and then ends; `result` is the block that the CLI answered it with."""

    def __init__(self, call: ToolCall) -> None:
        self._call = call
        self._path = _secret_path()
        self.result: dict[str, Any] | None = None
        http = Loopback(self._app, self._path)
        self.url, self.start, self.close = http.url, http.start, http.close

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        known = scope["path"] == f"{self._path}/v1/messages"
        answer = self._answer(json.loads(body)) if known else b""
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200 if known else 404, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    def _answer(self, asked: dict[str, Any]) -> bytes:
        blocks = [each for said in asked["messages"] if isinstance(said["content"], list) for each in said["content"]]
        results = [block for block in blocks if block.get("tool_use_id") == self._call.id]
        self.result = results[-1] if results else self.result
        # Requests of another purpose, such as a title, offer no tools.
        offers = any(tool["name"] == self._call.name for tool in asked.get("tools") or ())
        calls = offers and not results
        use = {"type": "tool_use", "id": self._call.id, "name": self._call.name, "input": {}}
        start = use if calls else {"type": "text", "text": ""}
        delta = (
            {"type": "input_json_delta", "partial_json": self._call.arguments}
            if calls
            else {"type": "text_delta", "text": "Done."}
        )
        usage = {"input_tokens": 0, "output_tokens": 0}
        message = {
            "id": f"msg_{secrets.token_hex(8)}",
            "type": "message",
            "role": "assistant",
            "model": asked["model"],
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        stop = {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}
        events: list[dict[str, Any]] = [
            {"type": "message_start", "message": message},
            {"type": "content_block_start", "index": 0, "content_block": start},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": stop, "usage": usage},
            {"type": "message_stop"},
        ]
        return b"".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in events)


def _secret_path() -> str:
    return f"/{secrets.token_urlsafe(24)}"
