"""An MCP server: how it is configured, and a connection to it.

For sync and async runs alike, the client lives in one task on an event loop in its own thread, and calls are submitted
to that loop: a client must be exited by the task that entered it, and it cancels that task when an HTTP server dies.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import inspect
import json
import os
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from weakincentives._base.imports import import_extra
from weakincentives._base.loops import LoopThread
from weakincentives.errors import WinkError
from weakincentives.mcp.listing import MAX_LISTING, MAX_PAGES, MAX_TOOLS, ListedSkill, ListedTool, Listing
from weakincentives.telemetry import Redactor

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import CallToolResult

    from weakincentives.prompt import LateContent
T = TypeVar("T")
MAX_STARTS = 2
# A server gets two seconds to exit on its own and two more after SIGTERM before it is killed.
CLOSE_SECONDS = 6.0


class MCPServerError(WinkError):
    """An MCP server could not be started, or has stopped."""


@dataclass(frozen=True, slots=True)
class StdioServer:
    """A server that runs as a child process and communicates over its standard input and output.

    Its environment is `env` plus HOME, LOGNAME, PATH, SHELL, TERM and USER, which it inherits, and nothing else.
    """

    command: str  #: the program
    args: Sequence[str] = ()  #: its arguments
    env: Mapping[str, str] | None = None
    cwd: str | Path | None = None  #: its working directory
    start_timeout: float = field(default=20.0, kw_only=True)  #: seconds until it must answer

    def __post_init__(self) -> None:
        if isinstance(self.args, str):
            raise TypeError(f"StdioServer: args must be a list of strings, got {self.args!r}")
        object.__setattr__(self, "args", tuple(self.args))


@dataclass(frozen=True, slots=True)
class HttpServer:
    """A server reached over streamable HTTP; `headers` are sent with every request."""

    url: str  #: its address
    headers: Mapping[str, str] | None = None
    start_timeout: float = field(default=20.0, kw_only=True)  #: seconds until a connection must stand


Server = StdioServer | HttpServer


@dataclass(frozen=True, slots=True)
class Elicitation:
    """A server's request to the user during a call: values that fit `schema`, or a visit to `url`."""

    server: str  #: the server's name
    message: str  #: what the user reads
    schema: Mapping[str, Any]
    url: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress a server reports for a call; `total` is None if the server does not know it."""

    tool: str  #: the tool's name
    done: float  #: how far it is
    total: float | None
    message: str  #: the server's text


Answer = Mapping[str, Any] | None
OnElicit = Callable[[Elicitation], Answer | Awaitable[Answer]]
OnProgress = Callable[[Progress], object]


class Connection:
    """Starts a server on first use, and once more in each run if it dies; `close` stops it.

    `listed` is what the server listed last, and `loaded` what its section made of a listing.
    """

    def __init__(self, name: str, server: Server | Callable[[], Server], on_elicit: OnElicit | None = None) -> None:
        self.name = name
        self._server = server
        self._on_elicit = on_elicit
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._starts = 0
        self.listed: Listing | None = None
        self.loaded: tuple[Listing, LateContent] | None = None

    def begin_load(self) -> None:
        """Allow the server to be started again if it has ended since it was listed: in an earlier run."""
        if self.listed is not None and (self._process is None or self._process.ended):
            self.listed, self._starts = None, 0

    def begin_run(self) -> bool:
        """Allow the server to be started again; returns whether it is running."""
        running = self._process is not None and not self._process.ended
        self._starts = int(running)
        return running

    @property
    def outdated(self) -> bool:
        """True if the server has announced another list since it was asked for it."""
        process = self._process
        return process is not None and not process.ended and process.outdated

    def listing(self) -> Listing:
        """Everything the server lists, page by page."""
        process = self._started()
        process.outdated = False
        future = process.submit(_list(process.client))
        try:
            self.listed = future.result(process.start_timeout)
            return self.listed
        except TimeoutError:
            future.cancel()
            raise MCPServerError(
                f"MCP server '{self.name}' did not list its tools within {process.start_timeout:g} seconds."
            ) from None
        except Exception as error:
            raise MCPServerError(f"MCP server '{self.name}' cannot list its tools: {first_cause(error)}") from error

    def read_skill(self, skill: ListedSkill, uri: str) -> str:
        """The text of a file of a skill, as the server has it now."""
        from weakincentives.mcp.skills import read_skill

        process = self._started()
        future = process.submit(read_skill(process.client, skill, uri))
        try:
            return future.result(process.start_timeout)
        except Exception as error:
            future.cancel()
            why = "it did not answer in time" if isinstance(error, TimeoutError) else str(first_cause(error))
            raise MCPServerError(f"MCP server '{self.name}' cannot show its skill '{skill.name}': {why}") from error

    async def call(
        self, tool: str, arguments: Mapping[str, Any], timeout: float | None, on_progress: OnProgress | None = None
    ) -> CallToolResult:
        """Call a tool; cancelling this cancels the call on the server."""
        process = self._process
        if process is None or process.ended:
            process = await asyncio.to_thread(self._started)
        try:
            return await asyncio.wrap_future(process.submit(process.call(tool, arguments, timeout, on_progress)))
        except TimeoutError:
            raise MCPServerError(
                f"MCP server '{self.name}' did not answer '{tool}' within {timeout:g} seconds; the call was cancelled."
            ) from None
        except ConnectionError:
            process.stop()
            why = f": {process.failure}" if process.failure else ""
            again = "It is started again for the next call" if self._starts < MAX_STARTS else "It stays stopped"
            raise MCPServerError(
                f"MCP server '{self.name}' stopped while '{tool}' was running{why}. {again}; whether this call had an "
                "effect is not known."
            ) from None

    def stop(self) -> _Process | None:
        """Begin to stop the server; returns what to wait for."""
        with self._lock:
            process, self._process, self._starts = self._process, None, MAX_STARTS
        if process is not None:
            process.stop()
        return process

    def close(self) -> None:
        if (process := self.stop()) is not None:
            process.join()

    def _started(self) -> _Process:
        # Imported here because it takes most of a second, which must not count toward the server's start timeout.
        import_extra("mcp", "mcp", "MCPSection")
        with self._lock:
            process = self._process
            if process is None or process.ended:
                if self._starts >= MAX_STARTS:
                    raise MCPServerError(f"MCP server '{self.name}' has stopped and is not started again in this run.")
                server = self._server() if callable(self._server) else self._server
                self._starts += 1
                process = self._process = _Process(self.name, server, self._on_elicit)
        process.wait()
        return process


class Connections:
    """The connections of one run, by section; a resource of the prompt, closed with it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: dict[object, Connection] = {}

    def get(self, owner: object, make: Callable[[], Connection]) -> Connection:
        with self._lock:
            if owner not in self._connections:
                self._connections[owner] = make()
            return self._connections[owner]

    def close(self) -> None:
        """Stop the servers and wait until they have, unless an event loop would have to wait with us."""
        processes = self._stop()
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            for process in processes:
                process.join()

    async def aclose(self) -> None:
        for process in self._stop():
            await process.joined()

    def _stop(self) -> list[_Process]:
        with self._lock:
            open_ones, self._connections = list(self._connections.values()), {}
        return [process for connection in open_ones if (process := connection.stop()) is not None]


_running: weakref.WeakSet[_Process] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """Stop what no one has closed, or has not waited for: the threads end with the program."""
    processes = list(_running)
    for process in processes:
        process.stop()
    for process in processes:
        process.join()


def _forget_all() -> None:
    """The servers are the parent's: a forked child has none of the threads of their clients, and starts its own."""
    for process in list(_running):
        process.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


class _Process:
    """One start of a server: the thread and event loop on which its client lives."""

    def __init__(self, name: str, server: Server, on_elicit: OnElicit | None) -> None:
        self.start_timeout = server.start_timeout
        self.ended = self.outdated = False
        self.failure = ""
        self._name = name
        self._server = server
        self._on_elicit = on_elicit
        self._ready: concurrent.futures.Future[Client] = concurrent.futures.Future()
        self._stop = asyncio.Event()
        self._owner: asyncio.Task[Any] | None = None
        self._errors = bytearray()
        _running.add(self)
        self._thread = LoopThread(f"mcp-{name}")
        self.submit(self._main())

    @property
    def client(self) -> Client:
        return self._ready.result()

    def forget(self) -> None:
        """Count as stopped, in a process that does not have the thread."""
        self.ended = True
        if not self._thread.ended.done():
            self._thread.ended.set_result(None)

    def wait(self) -> None:
        """Block until the server is ready. A late server is stopped without waiting for it to exit."""
        try:
            self._ready.result(self.start_timeout)
        except TimeoutError:
            self.stop()
            raise MCPServerError(
                f"MCP server '{self._name}' did not start within {self.start_timeout:g} seconds; "
                "check its command, or raise start_timeout."
            ) from None

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        try:
            return self._thread.submit(work)
        except RuntimeError:
            work.close()
            raise MCPServerError(f"MCP server '{self._name}' has stopped.") from None

    async def call(
        self, tool: str, arguments: Mapping[str, Any], timeout: float | None, on_progress: OnProgress | None
    ) -> CallToolResult:
        """Runs on the server's loop; raises TimeoutError for a late answer, ConnectionError if the server is gone."""
        from mcp.shared.exceptions import MCPError
        from mcp_types import CONNECTION_CLOSED, PARSE_ERROR, REQUEST_TIMEOUT

        async def report(progress: float, total: float | None, message: str | None) -> None:
            if on_progress is not None:
                await asyncio.to_thread(on_progress, Progress(tool, progress, total, message or ""))

        try:
            return await self.client.call_tool(
                tool, dict(arguments), read_timeout_seconds=timeout, progress_callback=report
            )
        except MCPError as error:
            if error.code == REQUEST_TIMEOUT:
                raise TimeoutError from None
            if error.code == CONNECTION_CLOSED:
                raise ConnectionError from None
            if error.code == PARSE_ERROR and self.failure:
                raise MCPServerError(
                    f"The answer of MCP server '{self._name}' to '{tool}' cannot be read: {self.failure}. Whether this "
                    "call had an effect is not known."
                ) from None
            raise
        except asyncio.CancelledError:
            if self.ended:
                raise ConnectionError from None
            raise

    def stop(self) -> None:
        """Tell the client to exit; does not wait for it."""
        self.ended = True
        with contextlib.suppress(RuntimeError):
            self._thread.loop.call_soon_threadsafe(self._cancel)

    def join(self) -> None:
        self._thread.join(CLOSE_SECONDS)

    async def joined(self) -> None:
        await asyncio.wait([asyncio.wrap_future(self._thread.ended)], timeout=CLOSE_SECONDS)

    def _cancel(self) -> None:
        # Once only: a second cancellation would interrupt the transport while it ends the server's processes.
        if not self._stop.is_set() and self._owner is not None and not self._ready.done():
            self._owner.cancel()
        self._stop.set()

    async def _main(self) -> None:
        try:
            await self._own()
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(self._start_error(error))
        finally:
            self.ended = True
            self._thread.stop()

    async def _own(self) -> None:
        if self._stop.is_set():
            return
        self._owner = asyncio.current_task()
        async with self._connected() as client:
            self._ready.set_result(client)
            try:
                await self._stop.wait()
            finally:
                self.ended = True

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[Client]:
        from mcp import Client

        from weakincentives.mcp.transport import http_transport, stdio_transport

        server = self._server
        if isinstance(server, HttpServer):
            transport = http_transport(server.url, server.headers or {}, self._note_failure)
        else:
            command = [server.command, *server.args]
            transport = stdio_transport(command, server.env or {}, server.cwd, self._errors, self._note_failure)
        async with Client(transport, elicitation_callback=self._elicit, message_handler=self._hear) as client:
            client.session.validate_tool_result = _accept_result  # type: ignore[method-assign]
            listening = asyncio.create_task(self._listen(client))
            try:
                yield client
            finally:
                listening.cancel()

    async def _hear(self, message: Any) -> None:
        """Note that a list has changed; servers of either protocol announce it here."""
        if type(message).__name__ in ("ToolListChangedNotification", "ResourceListChangedNotification"):
            self.outdated = True

    async def _listen(self, client: Client) -> None:
        """Ask a server of the newer protocol to announce changes; one that does not is asked again in the next run."""
        from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
        from mcp.shared.exceptions import MCPError

        with contextlib.suppress(ListenNotSupportedError, SubscriptionLost, MCPError):
            async with client.listen(tools_list_changed=True, resources_list_changed=True) as changes:
                async for _ in changes:
                    self.outdated = True

    def _note_failure(self, why: str) -> None:
        self.failure = why

    async def _elicit(self, context: Any, params: Any) -> Any:
        from mcp_types import ElicitResult

        if self._on_elicit is None:
            return ElicitResult(action="decline")
        asked = Elicitation(
            self._name, params.message, getattr(params, "requested_schema", {}), getattr(params, "url", "")
        )
        if inspect.iscoroutinefunction(self._on_elicit):
            answer = await self._on_elicit(asked)
        else:
            answer = await asyncio.to_thread(self._on_elicit, asked)
        if answer is None:
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content=None if asked.url else dict(answer))

    def _start_error(self, error: BaseException) -> MCPServerError:
        server, cause = self._server, first_cause(error)
        what, env = (server.command, server.env) if isinstance(server, StdioServer) else (server.url, None)
        said = self._errors.decode(errors="replace")[-500:].strip()
        detail = f"; it wrote: {said}" if said else ""
        why = self.failure or str(cause) or type(cause).__name__
        words = f"MCP server '{self._name}' ({what}) cannot be started: {why}{detail}"
        return MCPServerError(Redactor(variables={**os.environ, **(env or {})}).text(words))


async def _accept_result(name: str, result: CallToolResult) -> None:
    """Replaces the SDK's check of a result against the output schema, whose patterns and references have no bound.

    The result is text for the model, which needs no such check; and a call that has happened should not fail by it.
    """


async def _list(client: Client) -> Listing:
    instructions, info = client.instructions or "", client.server_info
    name, version = ("", "") if info is None else (info.title or info.name, info.version)
    tools: list[ListedTool] = []
    size = len(instructions) + len(name) + len(version)
    cursor = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor, cache_mode="refresh")
        for tool in page.tools:
            listed = ListedTool(
                tool.name,
                tool.description or tool.title or tool.name,
                {name: value for name, value in tool.input_schema.items() if name != "$schema"},
                bool(tool.annotations and tool.annotations.read_only_hint),
            )
            tools.append(listed)
            size += len(listed.name) + len(listed.description) + len(json.dumps(listed.schema))
            if len(tools) > MAX_TOOLS or size > MAX_LISTING:
                limit = f"{MAX_TOOLS:,} tools" if len(tools) > MAX_TOOLS else f"{MAX_LISTING >> 20} MB of text"
                raise ValueError(f"it lists more than {limit}, the most that is accepted")
        cursor = page.next_cursor
        if cursor is None:
            break
    skills: tuple[ListedSkill, ...] = ()
    if client.server_capabilities.extensions:
        from weakincentives.mcp.skills import list_skills

        skills = await list_skills(client)
    return Listing(name, version, instructions, tuple(tools), skills)


def first_cause(error: BaseException) -> BaseException:
    """The error inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
