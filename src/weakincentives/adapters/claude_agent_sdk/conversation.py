"""A conversation with the Claude Code CLI, as requests and replies.

The CLI has its own loop: it calls the model, calls our tools over MCP, and calls the model again. This module inverts
that, so that this library's loop stays in charge: a request with tool results answers the calls the CLI is waiting for,
and the reply is the model's next message.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import claude_agent_sdk as sdk

from weakincentives.adapters.claude_agent_sdk.home import Home
from weakincentives.adapters.claude_agent_sdk.server import Answer, ToolServer
from weakincentives.adapters.claude_agent_sdk.wire import (
    SERVER_NAME,
    WRONG_OUTPUT,
    CliToolUse,
    CliWork,
    Turn,
    first_turn,
    unreported_usage,
)
from weakincentives.errors import PromptEvaluationError
from weakincentives.limits import TokenUsage
from weakincentives.prompt import Tool, portable_name
from weakincentives.runtime import ModelReply, ModelRequest

# Generous, for a busy machine.
CONNECT_SECONDS = 60.0
RELIST_SECONDS = 15.0
_POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Settings:
    """An adapter's settings for every run; `unlisted` makes the error for a CLI that ignores new tools."""

    cli: Path
    model: str | None = None
    env: dict[str, str] = field(default_factory=dict, repr=False)
    workspace: Path | None = None
    setting_sources: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    unlisted: Callable[[], Exception] | None = None
    on_cli_tool: Callable[[CliToolUse], None] | None = None


class Conversation:
    """The CLI and our tool server, started by the first request; lives on one event loop."""

    def __init__(self, settings: Settings, home: Home) -> None:
        self._settings = settings
        self._home = home
        self._inbox: asyncio.Queue[Any] = asyncio.Queue()
        self._stderr: deque[str] = deque(maxlen=20)
        self._server: ToolServer | None = None
        self._client: sdk.ClaudeSDKClient | None = None
        self._pump: asyncio.Task[None] | None = None
        self._begun: Turn | None = None
        self._known_tools = 0
        self._known_messages = 0
        self._spent = TokenUsage()
        self._retries = 0
        self._work = CliWork()
        self.uses: deque[CliToolUse] = deque()
        self.idle = False
        self.cost_usd: float | None = None

    async def turn(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        """Pass on what is new in the request, and wait for the model's next message."""
        self.idle = False
        try:
            if self._client is None:
                await self._start(request)
            else:
                await self._continue(request)
            return await self._reply(request, on_text)
        except sdk.ClaudeSDKError as error:
            raise self._failure(request, str(error)) from error

    async def probe(self) -> bool:
        """Whether the CLI lists the tools again when told that they changed; calls no model."""
        server, _ = await self._connect(ModelRequest("probe", ()), "")
        return await server.add((), RELIST_SECONDS)

    async def close(self) -> None:
        if self._pump is not None:
            self._pump.cancel()
        try:
            if self._client is not None:
                await self._client.disconnect()
        finally:
            if self._server is not None:
                await self._server.close()

    async def _start(self, request: ModelRequest) -> None:
        self._known_tools, self._known_messages = len(request.tools), len(request.messages)
        system, user = first_turn(request.messages)
        _, client = await self._connect(request, system)
        await client.query(user)

    async def _connect(self, request: ModelRequest, system: str) -> tuple[ToolServer, sdk.ClaudeSDKClient]:
        self._server = server = ToolServer(request.tools)
        await server.start()
        self._client = client = sdk.ClaudeSDKClient(self._options(request, system, server.url))
        try:
            await client.connect()
        except Exception as error:
            raise sdk.CLIConnectionError(str(error)) from error
        self._pump = asyncio.create_task(self._receive(client))
        if not await server.listed(CONNECT_SECONDS):
            raise sdk.CLIConnectionError(f"it did not list our tools within {CONNECT_SECONDS:.0f} s")
        return server, client

    async def _continue(self, request: ModelRequest) -> None:
        assert self._server is not None and self._client is not None
        added = request.tools[self._known_tools :]
        news = request.messages[self._known_messages :]
        self._known_tools, self._known_messages = len(request.tools), len(request.messages)
        if added and not await self._offer(self._server, self._client, added) and self._settings.unlisted:
            raise self._settings.unlisted()
        for message in news:
            if message.role == "tool":
                self._server.answer(message.call_id, Answer(message.text, message.success))
            elif message.role == "user":
                await self._client.query(message.text)

    async def _offer(self, server: ToolServer, client: sdk.ClaudeSDKClient, tools: tuple[Tool[Any, Any], ...]) -> bool:
        """Offer more tools; True once the CLI reports that it has them."""
        if not await server.add(tools, RELIST_SECONDS):
            return False
        names = {portable_name(tool.name) for tool in tools}
        try:
            async with asyncio.timeout(RELIST_SECONDS):
                while not names <= _listed(await client.get_mcp_status()):
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            return False
        return True

    async def _receive(self, client: sdk.ClaudeSDKClient) -> None:
        try:
            async for message in client.receive_messages():
                self._inbox.put_nowait(message)
            self._inbox.put_nowait(sdk.CLIConnectionError("it ended without a result"))
        except Exception as error:
            self._inbox.put_nowait(error)

    async def _reply(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        turn, self._begun = self._begun, None
        while True:
            message = await self._inbox.get()
            if isinstance(message, Exception):
                raise sdk.CLIConnectionError(str(message)) from message
            if isinstance(message, sdk.ResultMessage):
                return self._final(request, message, turn)
            if isinstance(message, sdk.SystemMessage) and message.subtype == "api_retry":
                self._retries += 1
            if isinstance(message, sdk.UserMessage) and isinstance(message.content, list):
                self.uses += self._work.results(vars(block) for block in message.content)
            if not isinstance(message, sdk.StreamEvent) or message.parent_tool_use_id is not None:
                continue
            if message.event["type"] == "message_start":
                finished, turn = turn, Turn()
                if finished is not None and finished.complete:
                    turn.feed(message.event)
                    self._begun = turn
                    return self._count(finished.reply("pause"))
            if turn is None:
                continue
            if piece := turn.feed(message.event):
                on_text(piece)
            if turn.complete and turn.tool_calls:
                return self._count(turn.reply())
            if turn.complete and turn.uses_cli_tools:
                return self._count(turn.reply("pause"))

    def _final(self, request: ModelRequest, result: sdk.ResultMessage, turn: Turn | None) -> ModelReply:
        self.idle, self.cost_usd = True, result.total_cost_usd
        turn = turn or Turn()
        answer = turn.structured_answer
        if result.is_error and not (result.subtype == WRONG_OUTPUT and answer is not None):
            raise self._failure(request, result.result or "; ".join(result.errors or ()) or result.subtype, result)
        if result.structured_output is not None:
            answer = json.dumps(result.structured_output)
        extra = unreported_usage(result.model_usage, self._spent + turn.usage)
        if answer is not None:
            return self._count(turn.reply("end", text=answer, extra=extra))
        return self._count(turn.reply(text=turn.text or result.result or "", extra=extra))

    def _count(self, reply: ModelReply) -> ModelReply:
        self._spent += reply.usage
        retries, self._retries = self._retries, 0
        items = (*self._work.items(), *reply.items)
        self._work.begin(reply.items)
        return replace(reply, retries=retries, items=items)

    def _failure(
        self, request: ModelRequest, message: str, result: sdk.ResultMessage | None = None
    ) -> PromptEvaluationError:
        hint, payload = "", None
        if result is not None:
            payload = {
                "subtype": result.subtype,
                "status": result.api_error_status,
                "terminal_reason": result.terminal_reason,
                "errors": result.errors,
            }
        if "/login" in message or (payload and payload["status"] in (401, 403)):
            hint = " (set ANTHROPIC_API_KEY, pass api_key=, or use your own login with setting_sources=('user',))"
        return PromptEvaluationError(
            "\n".join((f"Claude Code failed on prompt '{request.prompt_name}': {message}{hint}", *self._stderr)),
            prompt_name=request.prompt_name,
            phase="request",
            payload=payload,
        )

    def _options(self, request: ModelRequest, system: str, url: str) -> sdk.ClaudeAgentOptions:
        settings, home = self._settings, self._home
        servers = {"mcpServers": {SERVER_NAME: {"type": "http", "url": url}}}
        options: dict[str, Any] = {
            "system_prompt": {"type": "file", "path": str(home.write("system.md", system))},
            "mcp_servers": home.write("mcp.json", json.dumps(servers)),
            "strict_mcp_config": True,
            "setting_sources": list(settings.setting_sources),
            "model": settings.model,
            "cwd": settings.workspace or home.workspace,
            "cli_path": home.launcher,
            "include_partial_messages": True,
            "verbatim_prompts": True,
            "max_buffer_size": 64 * 1024 * 1024,
            "stderr": self._stderr.append,
        }
        if request.output is not None:
            options["output_format"] = {"type": "json_schema", "schema": request.output.wire_schema}
        known = {option.name for option in fields(sdk.ClaudeAgentOptions)}
        if unknown := sorted(settings.options.keys() - known):
            raise PromptEvaluationError(
                f"sdk_options sets {', '.join(unknown)}, but the installed SDK's ClaudeAgentOptions has no such field.",
                prompt_name=request.prompt_name,
                phase="request",
            )
        return sdk.ClaudeAgentOptions(**(options | settings.options))


def _listed(status: sdk.McpStatusResponse) -> set[str]:
    return {
        tool["name"]
        for server in status["mcpServers"]
        if server["name"] == SERVER_NAME
        for tool in server.get("tools", ())
    }
