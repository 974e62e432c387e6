"""Endpoints for the two protocols: a message by POST, answered as server-sent events, and the history by GET."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Literal, TypeAlias

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from weakincentives._base.display import shortened
from weakincentives.runtime import Conversation
from weakincentives.runtime.spi import Workers
from weakincentives.ui.agui import AgUi
from weakincentives.ui.durable import DurableExchange, DurableThreads
from weakincentives.ui.page import PageView, exchanges
from weakincentives.ui.questions import Show, check_show
from weakincentives.ui.requests import Refused, read_body
from weakincentives.ui.threads import UNAVAILABLE, Exchange, Threads
from weakincentives.ui.vercel import Vercel

logger = logging.getLogger("weakincentives.ui")

Endpoint = Callable[[Request], Awaitable[Response]]
# Proxies close connections that are silent for a minute or less.
SILENT_SECONDS = 15
_encoders = Workers("wink-history")
AnyThreads: TypeAlias = Threads | DurableThreads
AnyExchange: TypeAlias = Exchange | DurableExchange
PageProtocol = Vercel | AgUi


def vercel_ai(threads: AnyThreads) -> Endpoint:
    """An endpoint for `useChat` and the other clients of Vercel's AI SDK.

    An opened section is sent as a `data-section` part, data that a tool emits as `data-progress`, and a typed answer as
    `data-output`, replaced as it grows. A call that waits for a decision is a `tool-approval-request`, which the page
    answers by `addToolApprovalResponse`. `GET ?id=...` returns the messages of a thread, and `DELETE ?id=...` stops
    what is being answered. For `DurableThreads`, `GET .../{id}/stream` is what `useChat({resume: true})` reads.
    """
    return _endpoint(threads, Vercel)


def ag_ui(threads: AnyThreads) -> Endpoint:
    """An endpoint for AG-UI's `HttpAgent` and clients built on it.

    The page's state is extended with `openSections` and the typed answer as `output`; data that a tool emits is a
    custom event `progress`. A call that waits for a decision is an interrupt, which the page answers by `resume`; tools
    that the page declares are answered by its tool messages. `GET ?threadId=...` returns the `messages`, `state` and
    open `interrupts` of a thread, and `DELETE ?threadId=...` stops what is being answered.
    """
    return _endpoint(threads, AgUi)


def ui_messages(
    chat: Conversation[Any], protocol: Literal["vercel_ai", "ag_ui"] = "vercel_ai", *, show: Show | None = None
) -> list[dict[str, Any]]:
    """The messages of a conversation for a page that was reloaded, with images and tool calls, but no results.

    Pass `show`, as to `Threads`, to include results that a page may see.
    """
    past = exchanges(chat, check_show(show))
    if protocol == "vercel_ai":
        return Vercel.history(chat, past)
    if protocol != "ag_ui":
        raise ValueError(f"protocol must be 'vercel_ai' or 'ag_ui', got {protocol!r}")
    messages: list[dict[str, Any]] = AgUi.history(chat, past)["messages"]
    return messages


def _endpoint(threads: AnyThreads, protocol: type[PageProtocol]) -> Endpoint:
    if not isinstance(threads, Threads | DurableThreads):
        raise TypeError(f"An endpoint needs the threads that it serves, got {threads!r}; write Threads(make)")

    async def respond(request: Request) -> Response:
        try:
            if request.method == "DELETE":
                await threads.stop(request, _thread(protocol, request))
                return Response(status_code=204)
            if request.method in ("GET", "HEAD"):
                if protocol.thread_parameter in request.path_params:
                    return await _resumed(threads, protocol, request)
                return await _history(threads, protocol, request)
            return await _answer(threads, protocol, request)
        except Refused as error:
            return JSONResponse({"error": error.sentence}, error.status, headers=error.headers)
        except (HTTPException, ClientDisconnect):
            raise
        except (Exception, SystemExit) as error:
            logger.error("A request failed", exc_info=error)
            return JSONResponse({"error": UNAVAILABLE}, 500)

    return respond


def _thread(protocol: type[PageProtocol], request: Request) -> str:
    given = request.path_params | dict(request.query_params)
    return str(given.get(protocol.thread_parameter, ""))


async def _resumed(threads: AnyThreads, protocol: type[PageProtocol], request: Request) -> Response:
    exchange = await threads.resume(request, _thread(protocol, request))
    if exchange is None:
        return Response(status_code=204)
    page = protocol.resumed(_thread(protocol, request))
    return _Stream(exchange, _lines(page, exchange, await exchange.begun(), threads.show), page.headers)


async def _history(threads: AnyThreads, protocol: type[PageProtocol], request: Request) -> Response:
    chat = await threads.read(request, _thread(protocol, request))
    past = [] if chat is None else exchanges(chat, threads.show)
    # With images, it can be many megabytes.
    text = await _encoders.call(lambda: _encoded(protocol.history(chat, past)))
    return Response(text, media_type="application/json", headers={"cache-control": "no-store"})


async def _answer(threads: AnyThreads, protocol: type[PageProtocol], request: Request) -> Response:
    body = await read_body(request, threads.limits.body_bytes)
    try:
        page = protocol(body)
    except (ValueError, RecursionError) as error:
        raise Refused(400, shortened(str(error), 300)) from None
    exchange = await threads.send(request, page.asked)
    try:
        chat = await exchange.begun()
    except BaseException:
        exchange.stop()
        raise
    return _Stream(exchange, _lines(page, exchange, chat, threads.show), page.headers)


async def _lines(
    page: PageProtocol, exchange: AnyExchange, chat: Conversation[Any], show: Show | None
) -> AsyncIterator[str]:
    view = PageView(chat, show, exchange.waiting, exchange.answered)
    for chunk in page.begin(chat):
        yield _event(chunk)
    async for event in exchange.events(SILENT_SECONDS):
        if event is None:
            yield ": still there\n\n"
            continue
        lines = [_event(chunk) for shown in view.events(event) for chunk in page.encode(shown)]
        if lines:
            yield "".join(lines)
    yield page.end


class _Stream(StreamingResponse):
    """A stream of events; the exchange stops when the page is gone, however early."""

    def __init__(self, exchange: AnyExchange, lines: AsyncIterator[str], headers: Mapping[str, str]) -> None:
        # A proxy that buffers would hold the answer back until it is whole.
        unbuffered = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(lines, media_type="text/event-stream", headers={**unbuffered, **headers})
        self._exchange = exchange

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._exchange.stop()


def _event(chunk: dict[str, Any]) -> str:
    return f"data: {_encoded(chunk)}\n\n"


def _encoded(value: Any) -> str:
    """JSON for a page, where NaN and infinities are null."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(json.loads(json.dumps(value), parse_constant=lambda _: None))
