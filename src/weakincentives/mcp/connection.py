"""An MCP server: how it is configured, what it lists, the lock file with its listing, and a connection to it.

For sync and async runs alike, the client lives in one task on an event loop in its own thread, and calls are submitted
to that loop: a client must be exited by the task that entered it, and it cancels that task when an HTTP server dies.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import json
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO, TypeVar, cast

from weakincentives import serde
from weakincentives._imports import import_extra
from weakincentives.errors import PromptValidationError, SerdeError, WinkError
from weakincentives.redaction import Redactor

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import CallToolResult
T = TypeVar("T")
MAX_STARTS = 2
MAX_PAGES = 100
# A server gets two seconds to exit on its own and two more after SIGTERM before it is killed.
CLOSE_SECONDS = 6.0


class MCPServerError(WinkError):
    """An MCP server could not be started, or has stopped."""


@dataclass(frozen=True, slots=True)
class StdioServer:
    """A server that runs as a child process and communicates over its standard input and output.

    Its environment is `env` plus HOME, LOGNAME, PATH, SHELL, TERM and USER, which it inherits, and nothing else.
    """

    command: str
    args: Sequence[str] = ()
    env: Mapping[str, str] | None = None
    cwd: str | Path | None = None
    start_timeout: float = field(default=20.0, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.args, str):
            raise TypeError(f"StdioServer: args must be a list of strings, got {self.args!r}")
        object.__setattr__(self, "args", tuple(self.args))


@dataclass(frozen=True, slots=True)
class HttpServer:
    """A server reached over streamable HTTP; `headers` are sent with every request."""

    url: str
    headers: Mapping[str, str] | None = None
    start_timeout: float = field(default=20.0, kw_only=True)


Server = StdioServer | HttpServer


@dataclass(frozen=True, slots=True)
class ListedTool:
    """A tool as its server describes it; `read_only` is the server's own claim."""

    name: str
    description: str
    schema: Mapping[str, Any]
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """What a server offers: its name and version, its instructions, and its tools."""

    name: str = ""
    version: str = ""
    instructions: str = ""
    tools: tuple[ListedTool, ...] = ()

    def changed_from(self, before: Listing) -> dict[str, str]:
        """The tools that differ from an earlier listing, and how: added, removed or changed."""
        old, new = ({tool.name: tool for tool in listing.tools} for listing in (before, self))
        differ = [name for name in old | new if old.get(name) != new.get(name)]
        return {name: "removed" if name not in new else "changed" if name in old else "added" for name in differ}


def lock_file(config: str | os.PathLike[str]) -> Path:
    """The file with the listings of a config file's servers: `.mcp.lock.json` beside `.mcp.json`."""
    path = Path(config)
    return path.with_name(f"{path.stem}.lock.json")


def read_lock(path: str | os.PathLike[str]) -> dict[str, Listing]:
    """The listings in a lock file, by section key; empty if there is no such file."""
    try:
        return serde.decode(dict[str, Listing], Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except SerdeError as error:
        raise PromptValidationError(f"'{path}' is not a lock file of MCP servers: {error}; delete it.") from None


def write_lock(path: str | os.PathLike[str], listings: Mapping[str, Listing]) -> None:
    """Write the listings, in an order and layout that make diffs easy to read."""
    text = json.dumps(serde.dump(dict(sorted(listings.items()))), indent=2, ensure_ascii=False)
    Path(path).write_text(f"{text}\n", encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Elicitation:
    """What a server asks the user for during a call: values that fit `schema`, or a visit to `url`."""

    server: str
    message: str
    schema: Mapping[str, Any]
    url: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress a server reports for a call; `total` is None if the server does not know it."""

    tool: str
    done: float
    total: float | None
    message: str


Answer = Mapping[str, Any] | None
OnElicit = Callable[[Elicitation], Answer | Awaitable[Answer]]
OnProgress = Callable[[Progress], object]


class Connection:
    """Starts a server on first use, and once more in each run if it dies; `close` stops it.

    `listed` is what the server listed last.
    """

    def __init__(self, name: str, server: Server | Callable[[], Server], on_elicit: OnElicit | None = None) -> None:
        self.name = name
        self._server = server
        self._on_elicit = on_elicit
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._starts = 0
        self.listed: Listing | None = None

    def begin_run(self) -> bool:
        """Allow the server to be started again; returns whether it is running."""
        running = self._process is not None and not self._process.ended
        self._starts = int(running)
        return running

    def listing(self) -> Listing:
        """Everything the server lists, page by page."""
        process = self._started()
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

    async def call(
        self, tool: str, arguments: Mapping[str, Any], timeout: float, on_progress: OnProgress | None = None
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
            again = "It is started again for the next call" if self._starts < MAX_STARTS else "It stays stopped"
            raise MCPServerError(
                f"MCP server '{self.name}' stopped while '{tool}' was running. {again}; whether this call had an "
                "effect is not known."
            ) from None

    def close(self) -> None:
        with self._lock:
            process, self._process, self._starts = self._process, None, MAX_STARTS
        if process is not None:
            process.stop()
            process.join()

    def _started(self) -> _Process:
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
        with self._lock:
            open_ones, self._connections = list(self._connections.values()), {}
        for connection in open_ones:
            connection.close()


class _Process:
    """One start of a server: the thread and event loop on which its client lives."""

    def __init__(self, name: str, server: Server, on_elicit: OnElicit | None) -> None:
        # Imported here because it takes most of a second, which must not count toward the server's start timeout.
        import_extra("mcp", "mcp", "MCPSection")
        self.start_timeout = server.start_timeout
        self.ended = False
        self._name = name
        self._server = server
        self._on_elicit = on_elicit
        self._ready: concurrent.futures.Future[Client] = concurrent.futures.Future()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._owner: asyncio.Task[Any] | None = None
        self._thread = threading.Thread(target=self._run, name=f"mcp-{name}", daemon=True)
        self._thread.start()

    @property
    def client(self) -> Client:
        return self._ready.result()

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
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise MCPServerError(f"MCP server '{self._name}' has stopped.") from None

    async def call(
        self, tool: str, arguments: Mapping[str, Any], timeout: float, on_progress: OnProgress | None
    ) -> CallToolResult:
        """Runs on the server's loop; raises TimeoutError for a late answer, ConnectionError if the server is gone."""
        from mcp.shared.exceptions import MCPError
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

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
            raise
        except asyncio.CancelledError:
            if self.ended:
                raise ConnectionError from None
            raise

    def stop(self) -> None:
        """Tell the client to exit; does not wait for it."""
        self.ended = True
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._cancel)

    def join(self) -> None:
        self._thread.join(CLOSE_SECONDS)

    def _cancel(self) -> None:
        self._stop.set()
        if self._owner is not None and not self._ready.done():
            self._owner.cancel()

    def _run(self) -> None:
        with (
            asyncio.Runner(loop_factory=lambda: self._loop) as runner,
            tempfile.TemporaryFile("w+", errors="replace") as errors,
        ):
            try:
                runner.run(self._own(errors))
            except BaseException as error:
                if not self._ready.done():
                    self._ready.set_exception(self._start_error(error, errors))
            finally:
                self.ended = True

    async def _own(self, errors: IO[str]) -> None:
        if self._stop.is_set():
            return
        self._owner = asyncio.current_task()
        async with self._connected(errors) as client:
            self._ready.set_result(client)
            try:
                await self._stop.wait()
            finally:
                self.ended = True

    @contextlib.asynccontextmanager
    async def _connected(self, errors: IO[str]) -> AsyncIterator[Client]:
        from mcp import Client, StdioServerParameters
        from mcp.client.stdio import stdio_client
        from mcp.client.streamable_http import streamable_http_client
        from mcp.shared._httpx_utils import create_mcp_http_client

        server = self._server
        async with contextlib.AsyncExitStack() as stack:
            transport: Any
            if isinstance(server, HttpServer):
                http = await stack.enter_async_context(create_mcp_http_client(headers=dict(server.headers or {})))
                transport = streamable_http_client(server.url, http_client=http)
            else:
                parameters = StdioServerParameters(
                    command=server.command, args=list(server.args), env=dict(server.env or {}), cwd=server.cwd
                )
                transport = stdio_client(parameters, errlog=cast(TextIO, errors))
            yield await stack.enter_async_context(Client(transport, elicitation_callback=self._elicit))

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

    def _start_error(self, error: BaseException, errors: IO[str]) -> MCPServerError:
        server, cause = self._server, first_cause(error)
        what, env = (server.command, server.env) if isinstance(server, StdioServer) else (server.url, None)
        errors.seek(0)
        said = errors.read()[-500:].strip()
        detail = f"; it wrote: {said}" if said else ""
        words = f"MCP server '{self._name}' ({what}) cannot be started: {str(cause) or type(cause).__name__}{detail}"
        return MCPServerError(Redactor(variables={**os.environ, **(env or {})}).text(words))


async def _list(client: Client) -> Listing:
    tools: list[ListedTool] = []
    cursor = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor, cache_mode="refresh")
        tools += (
            ListedTool(
                tool.name,
                tool.description or tool.title or tool.name,
                {name: value for name, value in tool.input_schema.items() if name != "$schema"},
                bool(tool.annotations and tool.annotations.read_only_hint),
            )
            for tool in page.tools
        )
        cursor = page.next_cursor
        if cursor is None:
            break
    info = client.server_info
    name, version = ("", "") if info is None else (info.title or info.name, info.version)
    return Listing(name, version, client.instructions or "", tuple(tools))


def first_cause(error: BaseException) -> BaseException:
    """The error inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
