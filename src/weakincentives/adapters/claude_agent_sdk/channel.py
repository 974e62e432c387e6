"""One run's line to a model that sits behind the Claude Code CLI.

The CLI owns its own loop: it asks the model, calls our tools over MCP, and asks again. This channel turns that inside
out, so that the loop of this library stays in charge. A request that brings tool results answers the calls that the CLI
is waiting on; the reply is the next message of the model. The CLI, the MCP server and the SDK's client live in a thread
of their own with an event loop, which makes the sync and the async way the same.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import queue
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import claude_agent_sdk as sdk

from weakincentives.adapters.claude_agent_sdk.events import CliToolUse
from weakincentives.adapters.claude_agent_sdk.home import Home
from weakincentives.adapters.claude_agent_sdk.server import Answer, ToolServer
from weakincentives.adapters.claude_agent_sdk.wire import SERVER_NAME, CliWork, Turn, opening, unseen
from weakincentives.errors import DeadlineExceededError, PromptEvaluationError
from weakincentives.limits import TokenUsage
from weakincentives.runtime.messages import ModelReply, ModelRequest

ResultT = TypeVar("ResultT")

CONNECT_SECONDS = 10.0
RELIST_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What an adapter asks of every run; `unlisted` is the error for a CLI that does not take up new tools."""

    cli: Path
    model: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    workspace: Path | None = None
    setting_sources: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    unlisted: Callable[[], Exception] | None = None
    on_cli_tool: Callable[[CliToolUse], None] | None = None


class ClaudeChannel:
    """Starts the CLI with the first request and keeps it until `close`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._home = Home(cli=settings.cli, env=settings.env, own_home="user" in settings.setting_sources)
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
        self._uses: deque[CliToolUse] = deque()
        self._idle = False
        self.cost_usd: float | None = None
        self._stop: asyncio.Event
        self._loop: asyncio.AbstractEventLoop
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run_loop, args=(ready,), name="wink-claude", daemon=True)
        self._thread.start()
        ready.wait()

    def call(self, request: ModelRequest) -> ModelReply:
        with self._telling():
            return self._submit(self._turn(request, None)).result()

    async def call_async(self, request: ModelRequest) -> ModelReply:
        with self._telling():
            return await asyncio.wrap_future(self._submit(self._turn(request, None)))

    def stream(self, request: ModelRequest) -> Iterator[str | ModelReply]:
        pieces: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        reply = self._submit(self._turn(request, pieces.put))
        reply.add_done_callback(lambda _: pieces.put(None))
        with self._telling():
            while (piece := pieces.get()) is not None:
                yield piece
        yield reply.result()

    async def stream_async(self, request: ModelRequest) -> AsyncIterator[str | ModelReply]:
        pieces: asyncio.Queue[str | None] = asyncio.Queue()
        here = asyncio.get_running_loop()

        def put(piece: str | None) -> None:
            here.call_soon_threadsafe(pieces.put_nowait, piece)

        reply: concurrent.futures.Future[str | ModelReply] = self._submit(self._turn(request, put))
        reply.add_done_callback(lambda _: put(None))
        with self._telling():
            while (piece := await pieces.get()) is not None:
                yield piece
        yield await asyncio.wrap_future(reply)

    def follows_list_changes(self) -> bool:
        """Whether this CLI asks for the tools again when told that they changed; no model is asked."""
        return self._submit(self._probe()).result()

    def close(self) -> None:
        """End the CLI and all that it started; one that is still at work is not asked, lest it go on spending."""
        if not self._thread.is_alive():
            return
        if not self._idle:
            self._home.cut()
        try:
            self._submit(self._close()).result()
        finally:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
            self._home.remove()

    def _run_loop(self, ready: threading.Event) -> None:
        async def main() -> None:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            ready.set()
            await self._stop.wait()

        with asyncio.Runner() as runner:
            runner.run(main())

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Report the tools that the CLI has run, in the thread of whoever asks."""
        try:
            yield
        finally:
            while self._uses and self._settings.on_cli_tool is not None:
                self._settings.on_cli_tool(self._uses.popleft())

    def _submit(self, work: Coroutine[Any, Any, ResultT]) -> concurrent.futures.Future[ResultT]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _turn(self, request: ModelRequest, on_text: Callable[[str], None] | None) -> ModelReply:
        self._idle = False
        seconds = None if request.deadline is None else max(0.0, request.deadline.remaining().total_seconds())
        try:
            async with asyncio.timeout(seconds) as limit:
                if self._client is None:
                    await self._start(request)
                else:
                    await self._continue(request)
                return await self._reply(request, on_text or _ignore)
        except TimeoutError as error:
            self._home.cut()
            if not limit.expired():
                raise
            raise DeadlineExceededError(
                f"The deadline of prompt '{request.prompt_name}' passed while the Claude CLI was at work.",
                prompt_name=request.prompt_name,
                phase="budget",
            ) from error
        except sdk.ClaudeSDKError as error:
            raise self._failure(request, str(error)) from error

    async def _probe(self) -> bool:
        server, _ = await self._connect(ModelRequest("probe", ()), "")
        return await server.add((), RELIST_SECONDS)

    async def _start(self, request: ModelRequest) -> None:
        self._known_tools, self._known_messages = len(request.tools), len(request.messages)
        system, user = opening(request.messages)
        _, client = await self._connect(request, system)
        await client.query(user)

    async def _connect(self, request: ModelRequest, system: str) -> tuple[ToolServer, sdk.ClaudeSDKClient]:
        self._server = server = ToolServer(request.tools)
        await server.start()
        self._client = client = sdk.ClaudeSDKClient(self._options(request, system, server.url))
        await client.connect()
        self._pump = asyncio.create_task(self._receive(client))
        if not await server.listed(CONNECT_SECONDS):
            raise sdk.CLIConnectionError(f"it did not ask for our tools within {CONNECT_SECONDS:.0f} s")
        return server, client

    async def _continue(self, request: ModelRequest) -> None:
        assert self._server is not None and self._client is not None
        added = request.tools[self._known_tools :]
        news = request.messages[self._known_messages :]
        self._known_tools, self._known_messages = len(request.tools), len(request.messages)
        if added and not await self._server.add(added, RELIST_SECONDS) and self._settings.unlisted:
            raise self._settings.unlisted()
        for message in news:
            if message.role == "tool":
                self._server.answer(message.call_id, Answer(message.text, message.success))
            elif message.role == "user":
                await self._client.query(message.text)

    async def _receive(self, client: sdk.ClaudeSDKClient) -> None:
        try:
            async for message in client.receive_messages():
                self._inbox.put_nowait(message)
            self._inbox.put_nowait(sdk.CLIConnectionError("The Claude CLI ended without a result"))
        except Exception as error:
            self._inbox.put_nowait(error)

    async def _reply(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        turn, self._begun = self._begun, None
        while True:
            message = await self._inbox.get()
            if isinstance(message, Exception):
                raise message
            if isinstance(message, sdk.ResultMessage):
                return self._final(request, message, turn)
            if isinstance(message, sdk.SystemMessage) and message.subtype == "api_retry":
                self._retries += 1
            if isinstance(message, sdk.UserMessage) and isinstance(message.content, list):
                self._uses += self._work.results(vars(block) for block in message.content)
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
                return self._count(turn.reply("tool_calls"))
            if turn.complete and turn.uses_cli_tools:
                return self._count(turn.reply("pause"))

    def _count(self, reply: ModelReply) -> ModelReply:
        self._spent += reply.usage
        retries, self._retries = self._retries, 0
        items = (*self._work.items(), *reply.items)
        self._work.begin(reply.items)
        return replace(reply, retries=retries, items=items)

    def _final(self, request: ModelRequest, result: sdk.ResultMessage, turn: Turn | None) -> ModelReply:
        self._idle, self.cost_usd = True, result.total_cost_usd
        if result.is_error:
            raise self._failure(request, result.result or "; ".join(result.errors or ()) or result.subtype, result)
        turn = turn or Turn()
        text = turn.text or result.result or ""
        if result.structured_output is not None:
            text = json.dumps(result.structured_output)
        extra = unseen(result.model_usage, self._spent + turn.usage)
        return self._count(turn.reply("end" if turn.stopped_for_output else None, text=text, extra=extra))

    def _failure(
        self, request: ModelRequest, message: str, result: sdk.ResultMessage | None = None
    ) -> PromptEvaluationError:
        hint = ""
        if (result is not None and result.api_error_status in (401, 403)) or "/login" in message:
            hint = " (set ANTHROPIC_API_KEY, pass api_key=, or use your own login with setting_sources=('user',))"
        noise = "\n".join(self._stderr)
        return PromptEvaluationError(
            f"The Claude CLI failed on prompt '{request.prompt_name}': {message}{hint}"
            + (f"\n{noise}" if noise else ""),
            prompt_name=request.prompt_name,
            phase="request",
            payload=None
            if result is None
            else {
                "subtype": result.subtype,
                "status": result.api_error_status,
                "terminal_reason": result.terminal_reason,
                "errors": result.errors,
            },
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
        return sdk.ClaudeAgentOptions(**(options | settings.options))

    async def _close(self) -> None:
        server, client = self._server, self._client
        if self._pump is not None:
            self._pump.cancel()
        try:
            if client is not None:
                await client.disconnect()
        finally:
            if server is not None:
                await server.close()


def _ignore(piece: str) -> None:
    """For callers that do not stream."""
