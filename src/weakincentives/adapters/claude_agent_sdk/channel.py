"""A run's connection to a model through the Claude Code CLI, as requests and replies.

The CLI, the MCP server and the SDK's client live on an event loop in a separate thread, so that blocking and async
callers work the same way. The CLI has its own loop: it calls the model, calls our tools over MCP, and calls the model
again. A `Conversation` inverts that, so that this library's loop stays in charge: a request with tool results answers
the calls the CLI is waiting for, and the reply is the model's next message.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import logging
import os
import queue
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import claude_agent_sdk as sdk

from weakincentives._base.loops import LoopThread
from weakincentives.adapters.anthropic.models import facts
from weakincentives.adapters.anthropic.wire import content_block
from weakincentives.adapters.claude_agent_sdk.approval import WAITS, Gate, Judge, Judgement
from weakincentives.adapters.claude_agent_sdk.cli import KEYS, Home
from weakincentives.adapters.claude_agent_sdk.server import ServedResult, ToolServer
from weakincentives.adapters.claude_agent_sdk.wire import (
    CONTINUE,
    MEANWHILE,
    SERVER_NAME,
    WRONG_OUTPUT,
    CliWork,
    Turn,
    has_thinking,
    system_text,
    transcript,
    turns,
    unreported_usage,
    words,
)
from weakincentives.adapters.network import FIRST_USER_TURN, refused
from weakincentives.content import Text
from weakincentives.errors import (
    AbandonedCallError,
    ContextOverflowError,
    DeadlineExceededError,
    PromptEvaluationError,
)
from weakincentives.limits import Deadline, TokenUsage
from weakincentives.prompt import Tool, portable_name
from weakincentives.runtime import Message, ModelReply, ModelRequest, ToolInvoked
from weakincentives.runtime.spi import ModelDelta, Workers, finish
from weakincentives.session import extends
from weakincentives.telemetry import Redactor

logger = logging.getLogger("weakincentives.adapters")
T = TypeVar("T")
OnDelta = Callable[[ModelDelta], None]
_workers = Workers("wink-claude-closing")

# Generous, for a busy machine.
CONNECT_SECONDS = 60.0
RELIST_SECONDS = 15.0
_POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Settings:
    """An adapter's settings for every run; `unlisted` creates the error for a CLI that ignores new tools.

    `approval` names the CLI's own tools whose calls may wait for a person, `guarded` those that guards decide about.
    """

    cli: Path
    model: str | None = None
    env: dict[str, str] = field(default_factory=dict, repr=False)
    workspace: Path | None = None
    setting_sources: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    approval: frozenset[str] = frozenset()
    guarded: frozenset[str] = frozenset()
    unlisted: Callable[[], Exception] | None = None

    def redactor(self) -> Redactor:
        """Removes the secrets in our environment and the CLI's from what an error shows."""
        return Redactor(variables={**os.environ, **self.env}, values=filter(None, map(self.env.get, KEYS)))


class ClaudeChannel:
    """Starts the CLI with the first request and keeps it until `close`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.report: Callable[[ToolInvoked], None] | None = None
        # Decides about a call of the CLI's own tools.
        self.judge: Judge | None = None
        self.finalizer: weakref.finalize[Any, Any] | None = None
        self._earlier_cost: float | None = None
        self._interrupted = False
        self._home: Home
        self._conversation: Conversation
        self._begin()
        self._thread = LoopThread("wink-claude", self._last)

    @property
    def idle(self) -> bool:
        """True if the CLI has answered and is waiting for the user."""
        return self._conversation.idle

    @property
    def cost_usd(self) -> float | None:
        """The cost of everything on this channel, as the CLI reports it."""
        reported = self._conversation.cost_usd
        return self._earlier_cost if reported is None else (self._earlier_cost or 0.0) + reported

    def call(self, request: ModelRequest) -> ModelReply:
        with self._reporting():
            return self._thread.submit(self._turn(request, _ignore)).result()

    async def call_async(self, request: ModelRequest) -> ModelReply:
        with self._reporting():
            return await asyncio.wrap_future(self._thread.submit(self._turn(request, _ignore)))

    def stream(self, request: ModelRequest) -> Iterator[ModelDelta | ModelReply]:
        pieces: queue.SimpleQueue[ModelDelta | None] = queue.SimpleQueue()
        reply = self._thread.submit(self._turn(request, pieces.put))
        reply.add_done_callback(lambda _: pieces.put(None))
        with self._reporting():
            while (piece := pieces.get()) is not None:
                yield piece
        yield reply.result()

    async def stream_async(self, request: ModelRequest) -> AsyncIterator[ModelDelta | ModelReply]:
        pieces: asyncio.Queue[ModelDelta | None] = asyncio.Queue()
        here = asyncio.get_running_loop()

        def put(piece: ModelDelta | None) -> None:
            here.call_soon_threadsafe(pieces.put_nowait, piece)

        reply: concurrent.futures.Future[ModelDelta | ModelReply] = self._thread.submit(self._turn(request, put))
        reply.add_done_callback(lambda _: put(None))
        with self._reporting():
            while (piece := await pieces.get()) is not None:
                yield piece
        yield await asyncio.wrap_future(reply)

    def finish_turn(self, deadline: Deadline | None) -> list[str]:
        """Let the CLI run the rest of its own calls in a turn that waits for a person; their results, as items."""
        with self._reporting():
            return self._thread.submit(self._conversation.finish_turn(_seconds(deadline))).result()

    async def finish_turn_async(self, deadline: Deadline | None) -> list[str]:
        with self._reporting():
            finishing = self._thread.submit(self._conversation.finish_turn(_seconds(deadline)))
            return await asyncio.wrap_future(finishing)

    def follows_list_changes(self) -> bool:
        """True if this CLI picks up new tools while it runs; calls no model."""
        return self._thread.submit(self._conversation.probe()).result()

    def close(self) -> None:
        """Stop the CLI and everything it started; if it is still working, kill it so that it stops spending."""
        if self._thread.ended.done():
            return
        self.abandon()
        self._thread.join()
        if self.finalizer is not None:
            self.finalizer.detach()

    async def close_async(self) -> None:
        """`close` on an event loop; to the end, whatever is cancelled."""
        closing = _workers.call(self.close)
        cancelled = await finish(closing)
        closing.result()
        if cancelled is not None:
            raise cancelled

    def abandon(self) -> None:
        """`close` without waiting for it."""
        self._thread.stop()

    def interrupt(self) -> None:
        """Kill a CLI whose reply another thread is reading, so that it stops spending; that thread's call ends."""
        self._interrupted = True
        with suppress(RuntimeError):  # The channel may be closed already.
            self._thread.loop.call_soon_threadsafe(self._cut_if_working)

    async def _turn(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        self._check_running()
        if not self._conversation.continues(request):
            self._earlier_cost = self.cost_usd
            await self._end()
            self._begin()
        try:
            async with asyncio.timeout(_seconds(request.deadline)) as limit:
                return await self._conversation.turn(request, on_delta)
        except PromptEvaluationError:
            self._check_running()
            raise
        except TimeoutError as error:
            self._home.cut()
            if not limit.expired():
                raise
            raise DeadlineExceededError(
                f"The deadline of prompt '{request.prompt_name}' passed while Claude Code was working.",
                prompt_name=request.prompt_name,
                phase="request",
            ) from error

    def _check_running(self) -> None:
        if self._interrupted:
            raise AbandonedCallError("the run was stopped while Claude Code was working")

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Report the tools that the CLI has run, in the caller's thread."""
        try:
            yield
        finally:
            uses, report = self._conversation.uses, self.report
            while uses and report is not None:
                report(uses.popleft())

    def _begin(self) -> None:
        settings = self.settings
        try:
            self._home = Home(cli=settings.cli, env=settings.env, own_home="user" in settings.setting_sources)
        except OSError as error:
            raise PromptEvaluationError(
                f"The temporary folder for Claude Code cannot be created: {error}; free some space, or set TMPDIR.",
                phase="request",
            ) from error
        self._conversation = Conversation(settings, self._home, self._judge)

    async def _judge(self, call_id: str, name: str, given: dict[str, Any]) -> Judgement:
        # Outside of a run, there is nobody to ask.
        return Judgement(WAITS) if self.judge is None else await self.judge(call_id, name, given)

    async def _end(self) -> None:
        # A CLI in mid-turn, whose calls wait for us, does not end by itself: the SDK would wait for that in vain.
        self._cut_if_working()
        try:
            await self._conversation.close()
        finally:
            self._home.remove()

    def _cut_if_working(self) -> None:
        if not self._conversation.idle:
            self._home.cut()

    async def _last(self) -> None:
        try:
            await self._end()
        except Exception as error:
            logger.warning("The Claude Code CLI could not be stopped in order", exc_info=error)


class Conversation:
    """The CLI and our tool server, started by the first request; lives on one event loop."""

    def __init__(self, settings: Settings, home: Home, judge: Judge) -> None:
        self._settings = settings
        self._home = home
        self._gate = Gate(settings.approval | settings.guarded, settings.approval, judge, self._wake)
        self._inbox: asyncio.Queue[Any] = asyncio.Queue()
        self._stderr: deque[str] = deque(maxlen=20)
        self._server: ToolServer | None = None
        self._client: sdk.ClaudeSDKClient | None = None
        self._pump: asyncio.Task[None] | None = None
        self._begun: Turn | None = None
        self._begun_with: ModelRequest | None = None
        self._known_tools: dict[str, str] = {}
        self._known: Sequence[Message] = ()
        self._answered = ""
        self._dropped = False
        self._spent = TokenUsage()
        self._retries = 0
        self._work = CliWork()
        # The results before the message that is being read.
        self._earlier: list[str] | None = None
        self._asked: tuple[str, ...] = ()
        self.uses: deque[ToolInvoked] = deque()
        self.idle = False
        self.cost_usd: float | None = None

    def continues(self, request: ModelRequest) -> bool:
        """True if the request continues this conversation and its CLI is still running."""
        first, known = self._begun_with, self._known
        return first is None or (
            (self._pump is not None and not self._pump.done())
            and (first.output, first.settings) == (request.output, request.settings)
            and first.tools == request.tools[: len(first.tools)]
            and len(known) < len(request.messages)
            # An answer that was taken back or replaced is still in the CLI.
            and (request.messages[len(known)].role, request.messages[len(known)].text) == ("assistant", self._answered)
            and extends(request.messages, known)
        )

    async def turn(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        """Pass on what is new in the request, and wait for the model's next message."""
        self.idle = False
        try:
            if self._client is None:
                await self._start(request)
            else:
                await self._continue(request)
            reply = await self._reply(request, on_delta)
            self._answered = reply.text
            return reply
        except sdk.ClaudeSDKError as error:
            # Not from the SDK's error, whose text may contain a key.
            raise self._failure(request, str(error)) from None

    async def finish_turn(self, seconds: float | None) -> list[str]:
        """Let the CLI run its own calls of the last reply, and stop it before it calls the model; their results."""
        if self._client is None or self._server is None or not self._work.is_open:
            return self._work.items()
        self._gate.stopping = True
        for call_id in self._asked:
            self._server.answer(call_id, ServedResult((Text(WAITS),)))
        try:
            async with asyncio.timeout(seconds):
                while self._work.is_open and not self._ends(message := await self._inbox.get()):
                    self._note(message)
        except TimeoutError:
            logger.warning("The deadline passed while Claude Code ran calls beside one that waits for a person.")
        self._work.cut_off()
        return self._work.items()

    async def probe(self) -> bool:
        """True if the CLI lists the tools again when notified of a change; calls no model."""
        server, _ = await self._connect(ModelRequest("probe", ()), "")
        return await self._while_running(server.add((), RELIST_SECONDS))

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
        """Resume the conversation so far in the CLI and pass on the user's new message."""
        self._begun_with, self._known = request, request.messages
        self._known_tools = {tool.name: tool.definition for tool in request.tools}
        model = self._settings.model or ""
        bound = not model or facts(model).binds_thinking
        spoken = turns(request.messages, thinking=not bound)
        said: Any = [{"type": "text", "text": CONTINUE if spoken else FIRST_USER_TURN}]
        if spoken and spoken[-1]["role"] == "user":
            now = spoken.pop()["content"]
            results = [block for block in now if block["type"] == "tool_result"]
            said = now[len(results) :] or said
            spoken += [{"role": "user", "content": results}] if results else []
        resume = None
        if spoken:
            self._dropped = bound and any(has_thinking(message) for message in request.messages)
            resume = str(self._home.write(f"{uuid4()}.jsonl", transcript(spoken, model)))
        _, client = await self._connect(request, system_text(request.messages), resume)
        await client.query(_message(said))

    async def _connect(
        self, request: ModelRequest, system: str, resume: str | None = None
    ) -> tuple[ToolServer, sdk.ClaudeSDKClient]:
        self._server = server = ToolServer(request.tools)
        await server.start()
        self._client = client = sdk.ClaudeSDKClient(self._options(request, system, server.url, resume))
        try:
            await client.connect()
        except Exception as error:
            raise sdk.CLIConnectionError(str(error)) from error
        self._pump = asyncio.create_task(self._receive(client))
        if not await self._while_running(server.listed(CONNECT_SECONDS)):
            raise sdk.CLIConnectionError(f"it did not list our tools within {CONNECT_SECONDS:.0f} s")
        return server, client

    async def _continue(self, request: ModelRequest) -> None:
        assert self._server is not None and self._client is not None
        added = tuple(tool for tool in request.tools if self._known_tools.get(tool.name) != tool.definition)
        news = request.messages[len(self._known) :]
        self._known = request.messages
        self._known_tools.update((tool.name, tool.definition) for tool in added)
        if added:
            listed = await self._while_running(self._offer(self._server, self._client, added))
            if not listed and self._settings.unlisted:
                raise self._settings.unlisted()
        results = [message for message in news if message.role == "tool"]
        said = [part for message in news if message.role in ("user", "system") for part in words(message)]
        for message in results:
            # As a separate message, this would reach the CLI only after its turn, as a new one.
            meanwhile = (Text(MEANWHILE), *said) if said and message is results[-1] else ()
            answer = ServedResult((*(message.parts or (Text(message.text),)), *meanwhile), message.success)
            self._server.answer(message.call_id, answer)
        if said and not results:
            await self._client.query(_message([content_block(part) for part in said]))

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

    async def _while_running(self, work: Coroutine[Any, Any, T]) -> T:
        """The outcome of what waits for the CLI; raises if that ends in the meantime."""
        assert self._pump is not None
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task, self._pump), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise sdk.CLIConnectionError("it ended before it listed our tools")
        finally:
            task.cancel()

    async def _receive(self, client: sdk.ClaudeSDKClient) -> None:
        try:
            async for message in client.receive_messages():
                self._inbox.put_nowait(message)
            self._inbox.put_nowait(sdk.CLIConnectionError("it ended without a result"))
        except Exception as error:
            self._inbox.put_nowait(error)

    async def _reply(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        turn, self._begun = self._begun, None
        while True:
            message = await self._inbox.get()
            if isinstance(message, Exception):
                raise sdk.CLIConnectionError(str(message)) from message
            if self._gate.error is not None:
                raise self._gate.error
            if isinstance(message, sdk.ResultMessage):
                return self._final(request, message, turn)
            self._note(message)
            if isinstance(message, sdk.StreamEvent) and message.parent_tool_use_id is None:
                if message.event["type"] == "message_start":
                    finished, turn = turn, Turn()
                    if finished is not None and finished.complete:
                        turn.feed(message.event)
                        self._begun = turn
                        return self._count(finished.reply("pause"))
                if turn is None:
                    continue
                if delta := turn.feed(message.event):
                    on_delta(delta)
                if turn.complete:
                    self._earlier = self._work.items()
                    self._work.begin(turn.items)
            if turn is not None and turn.complete and (turn.tool_calls or turn.cli_calls):
                waiting = await self._gate.waiting(turn)
                if waiting is not None:
                    self._work.drop(call.id for call in waiting)
                    self._asked = tuple(call.id for call in turn.tool_calls)
                    pauses = not (waiting or turn.tool_calls)
                    return self._count(turn.reply("pause" if pauses else None, waiting=waiting))

    def _note(self, message: Any) -> None:
        """Keep what a message says beside the model's words."""
        if isinstance(message, sdk.SystemMessage) and message.subtype == "api_retry":
            self._retries += 1
        if isinstance(message, sdk.SystemMessage) and message.subtype == "init":
            self._gate.check(message.data.get("tools", ()))
        if isinstance(message, sdk.UserMessage) and isinstance(message.content, list):
            blocks = [vars(block) for block in message.content]
            self.uses += self._work.results(self._gate.ended(blocks))

    def _ends(self, message: Any) -> bool:
        """True if the CLI has stopped, or has begun another message."""
        if isinstance(message, sdk.StreamEvent):
            return message.parent_tool_use_id is None and message.event["type"] == "message_start"
        return isinstance(message, sdk.ResultMessage | Exception)

    def _wake(self) -> None:
        self._inbox.put_nowait(None)

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
        dropped, self._dropped = self._dropped, False
        earlier, self._earlier = self._earlier, None
        items = (*(self._work.items() if earlier is None else earlier), *reply.items)
        return replace(reply, retries=retries, items=items, reasoning_dropped=dropped)

    def _failure(
        self, request: ModelRequest, message: str, result: sdk.ResultMessage | None = None
    ) -> PromptEvaluationError:
        clean = self._settings.redactor().text
        hint, payload = "", None
        if result is not None:
            payload = {
                "subtype": result.subtype,
                "status": result.api_error_status,
                "terminal_reason": result.terminal_reason,
                "errors": result.errors and [clean(error) for error in result.errors],
            }
        if "/login" in message or (payload and payload["status"] in (401, 403)):
            hint = " (set ANTHROPIC_API_KEY, pass api_key=, or use your own login with setting_sources=('user',))"
        overflow = payload is not None and payload["terminal_reason"] == "prompt_too_long"
        kind = ContextOverflowError if overflow else PromptEvaluationError
        return kind(
            clean("\n".join((f"Claude Code failed on prompt '{request.prompt_name}': {message}{hint}", *self._stderr))),
            prompt_name=request.prompt_name,
            phase="request",
            payload=payload,
        )

    def _options(self, request: ModelRequest, system: str, url: str, resume: str | None) -> sdk.ClaudeAgentOptions:
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
            "resume": resume,
            **_chosen(request, settings.model or "the CLI's default"),
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
        hooks = self._gate.hooks(settings.options.get("hooks") or {}) if settings.options.get("tools") else {}
        return sdk.ClaudeAgentOptions(**(options | settings.options | ({"hooks": hooks} if hooks else {})))


def _seconds(deadline: Deadline | None) -> float | None:
    return None if deadline is None else max(0.0, deadline.remaining().total_seconds())


def _ignore(delta: ModelDelta) -> None:
    """For callers that do not stream."""


def _chosen(request: ModelRequest, model: str) -> dict[str, Any]:
    """The neutral settings as options of the SDK."""
    settings = request.settings
    for name in ("temperature", "parallel_tool_calls"):
        if getattr(settings, name) is not None:
            raise refused(request, name, model, "Claude Code has no such setting")
    chosen: dict[str, Any] = {}
    if settings.effort == "none":
        chosen["thinking"] = {"type": "disabled"}
    elif settings.show_reasoning:
        chosen["thinking"] = {"type": "adaptive", "display": "summarized"}
    if settings.effort not in (None, "none"):
        chosen["effort"] = settings.effort
    if settings.max_output_tokens is not None:
        chosen["env"] = {"CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(settings.max_output_tokens)}
    return chosen


async def _message(blocks: list[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    plain = len(blocks) == 1 and blocks[0]["type"] == "text"
    content = blocks[0]["text"] if plain else blocks
    yield {"type": "user", "message": {"role": "user", "content": content}, "parent_tool_use_id": None}


def _listed(status: sdk.McpStatusResponse) -> set[str]:
    return {
        tool["name"]
        for server in status["mcpServers"]
        if server["name"] == SERVER_NAME
        for tool in server.get("tools", ())
    }
