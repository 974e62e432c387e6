"""The viewer's ASGI application: one page, its modules, and the documents as JSON. Only this module imports starlette.

A page from any site can send requests to a loopback address, and through DNS rebinding even under its own name; so can
every user of this machine. So the Host must name this server exactly, a page that sends an Origin must be the viewer's
own, and whoever asks for data must know the token in the address. The page itself and its modules hold no data.
"""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote

import anyio.to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weakincentives.errors import WinkError
from weakincentives.serde import decode
from weakincentives.telemetry import RunFileError, RunNotFoundError, session_at
from weakincentives.viewer.comparison import parting
from weakincentives.viewer.documents import Documents
from weakincentives.viewer.evaluations import comparison, evaluation, evaluations
from weakincentives.viewer.page import ICON, STATIC, served_page
from weakincentives.viewer.playground import Playground, Wanted
from weakincentives.viewer.questions import Decided, StaleDecisionError
from weakincentives.viewer.work import DurableWork

T = TypeVar("T")

POLL_SECONDS = 0.2
QUIET_POLLS = 50
WAIT_SECONDS, WAIT_POLLS = 0.02, 150
PROBLEMS = (ValueError, TypeError, OverflowError, RecursionError, WinkError, ImportError, OSError)
NO_PLAYGROUND = "This server only shows recorded runs; start a playground with wink play module:template."

SHOWN_MEDIA = ("image/png", "image/jpeg", "image/webp", "image/gif", "audio/wav", "audio/mpeg")

HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


def viewer_app(
    documents: Documents,
    *,
    port: int,
    stopping: Callable[[], bool],
    token: str,
    playground: Playground | None = None,
    work: DurableWork | None = None,
) -> Guard:
    """The application for a server on this port; once `stopping()` is true, open streams end so that it can stop.

    Every request for data must carry the token. With a playground, some may also write and spend; with durable work,
    they may decide about its calls.
    """
    page, policy = served_page()

    def changes(request: Request) -> Response:
        return StreamingResponse(_changes(documents, stopping), media_type="text/event-stream")

    app = Starlette(
        routes=[
            Route("/", lambda request: HTMLResponse(page)),
            Route("/favicon.ico", lambda request: FileResponse(STATIC / ICON, media_type="image/svg+xml")),
            Route("/api/runs", _json(lambda r: _runs(documents, r))),
            Route("/api/groups", _json(lambda r: _groups(documents, r))),
            Route("/api/conversations/{name}", _json(lambda r: _conversation(documents, r))),
            Route("/api/blobs/{digest}", lambda r: _blob(documents, r)),
            Route("/api/runs/{run_id}/script", _json(lambda r: documents.script(**_named(r)))),
            Route("/api/runs/{run_id}", _json(lambda r: documents.run(**_named(r)))),
            Route("/api/runs/{run_id}/turns/{n:int}", _json(lambda r: documents.turn(**_named(r)))),
            Route("/api/runs/{run_id}/prompts/{seq:int}", _json(lambda r: documents.prompt(**_named(r)))),
            Route("/api/runs/{run_id}/messages", _json(lambda r: _messages(documents, r))),
            Route("/api/runs/{run_id}/events", _json(lambda r: _events(documents, r))),
            Route("/api/runs/{run_id}/events/{seq:int}", _json(lambda r: documents.event(**_named(r)))),
            Route("/api/search", _json(lambda r: _search(documents, r))),
            Route("/api/parting", _json(lambda r: parting(documents.store, *_query(r, "a", "b")))),
            Route("/api/report", _json(lambda r: documents.report())),
            Route("/api/evals", _json(lambda r: evaluations(documents.store))),
            Route("/api/evals/compare", _json(lambda r: comparison(documents.store, *_query(r, "a", "b")))),
            Route("/api/evals/one", _json(lambda r: evaluation(documents.store, *_query(r, "id")))),
            Route("/api/changes", changes),
            Route("/api/play", _json(lambda r: playground.about() if playground else {"error": NO_PLAYGROUND})),
            *(_play_routes(playground, documents) if playground else ()),
            Route("/api/work", _json(lambda r: work.waiting(*_query(r, "run")) if work else {"pending": []})),
            *([_decisions("/api/work/decide", work.decide)] if work else ()),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
    )
    acts = [prefix for prefix, actor in (("/api/play/", playground), ("/api/work/", work)) if actor is not None]
    return Guard(app, port=port, policy=policy, token=token, acts=acts)


def _query(request: Request, *names: str) -> list[str]:
    return [request.query_params.get(name, "") for name in names]


def _play_routes(playground: Playground, documents: Documents) -> Iterator[Route]:
    def run(wanted: Wanted) -> Any:
        """Start a run and wait until it is recorded, so that its page can be opened."""
        session = None
        if wanted.from_run:
            session = session_at(documents.store, wanted.from_run, wanted.from_turn).session
        started = playground.run(wanted, session)
        for _ in range(WAIT_POLLS):
            live = playground.live(started["run_id"])
            if documents.store.query("SELECT 1 FROM runs WHERE run_id = ?", (started["run_id"],)):
                break
            if live["error"]:
                raise ValueError(live["error"])
            time.sleep(WAIT_SECONDS)
        return started

    yield Route("/api/play/live", _json(lambda r: playground.live(r.query_params.get("run", ""))))
    acts = {
        "render": playground.render,
        "load": playground.load,
        "save": playground.save,
        "run": run,
        "stop": playground.stop,
    }
    for name, act in acts.items():
        yield Route(f"/api/play/{name}", _posted(playground.read, act), methods=["POST"])
    yield _decisions("/api/play/decide", playground.decide)


def _decisions(path: str, decide: Callable[[Decided], Any]) -> Route:
    return Route(path, _posted(_decision, decide), methods=["POST"])


def _decision(body: bytes) -> Decided:
    return decode(Decided, body)


def _posted(read: Callable[[bytes], T], act: Callable[[T], Any]) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint that accepts a JSON object and processes it in a thread."""

    def acted(wanted: T) -> Any:
        try:
            return act(wanted)
        except StaleDecisionError:
            raise
        except PROBLEMS as error:
            # The browser would log an error status, but a half-filled form is not an error.
            return {"error": str(error)}

    async def endpoint(request: Request) -> Response:
        body = await request.body()
        return await anyio.to_thread.run_sync(_json(lambda _: acted(read(body))), request)

    return endpoint


def _runs(documents: Documents, request: Request) -> Any:
    query = request.query_params
    return documents.runs(
        **_filters(request),
        order=query.get("order", "-started"),
        newest=query.get("newest", "") == "1",
        offset=_number(request, "offset"),
        limit=min(_number(request, "limit", 100), 500),
    )


def _groups(documents: Documents, request: Request) -> Any:
    by: Any = request.query_params.get("by")
    if by not in ("prompt", "conversation"):
        raise ValueError(f"by must be prompt or conversation, got {by!r}")
    return documents.groups(by, **_filters(request))


def _conversation(documents: Documents, request: Request) -> Any:
    return documents.conversation(**_named(request), offset=_number(request, "offset"))


def _filters(request: Request) -> dict[str, str]:
    query = request.query_params
    names = ("status", "prompt", "conversation")
    return {"search": query.get("q", ""), **{name: query.get(name, "") for name in names}}


def _blob(documents: Documents, request: Request) -> Response:
    """Media by digest; types a browser would run or render as a page are only offered for download."""
    try:
        data = documents.blob(request.path_params["digest"])
    except RunNotFoundError as error:
        return Response(str(error), 404, media_type="text/plain")
    kind = request.query_params.get("type", "")
    if kind in SHOWN_MEDIA:
        return Response(data, media_type=kind)
    return Response(data, media_type="application/octet-stream", headers={"content-disposition": "attachment"})


def _search(documents: Documents, request: Request) -> Any:
    return documents.search(request.query_params.get("q", ""), request.query_params.get("run", ""))


def _messages(documents: Documents, request: Request) -> Any:
    return documents.messages(**_named(request), start=_number(request, "start"), stop=_number(request, "stop"))


def _events(documents: Documents, request: Request) -> Any:
    return documents.events(
        **_named(request),
        offset=_number(request, "offset"),
        limit=min(_number(request, "limit", 200), 500),
        kinds=request.query_params.getlist("kind"),
    )


def _named(request: Request) -> dict[str, Any]:
    """The name in the path; the id of a durable run contains a slash, which is escaped."""
    return {name: unquote(value) if isinstance(value, str) else value for name, value in request.path_params.items()}


def _number(request: Request, name: str, default: int = 0) -> int:
    return max(0, int(request.query_params.get(name, default)))


def _json(make: Callable[[Request], Any]) -> Callable[[Request], Response]:
    """An endpoint that returns a document; it is not async, so that it runs in a thread."""

    def endpoint(request: Request) -> Response:
        status = 200
        try:
            document = make(request)
        except RunNotFoundError as error:
            document, status = {"error": str(error)}, 404
        except RunFileError as error:
            document, status = {"error": str(error)}, 422
        except StaleDecisionError as error:
            document, status = {"error": str(error)}, 409
        except PROBLEMS as error:
            document, status = {"error": str(error)}, 400
        # ASCII with escapes, so that even a lone surrogate reaches the page.
        return Response(json.dumps(document, separators=(",", ":")), status, media_type="application/json")

    return endpoint


async def _changes(documents: Documents, stopping: Callable[[], bool]) -> AsyncIterator[str]:
    """Server-sent events that tell the page when something was recorded."""
    seen, quiet = -1, 0
    while not stopping():
        last = await anyio.to_thread.run_sync(documents.store.last_event_id)
        if last != seen:
            seen, quiet = last, 0
            yield f"data: {last}\n\n"
        quiet += 1
        if quiet % QUIET_POLLS == 0:
            # Lets the page notice runs whose process died, since they end without an event.
            yield "data: beat\n\n"
        await anyio.sleep(POLL_SECONDS)


class Guard:
    """ASGI middleware that checks Host, Origin, method and token, and sets the headers of every response."""

    def __init__(self, app: ASGIApp, *, port: int, policy: str, token: str, acts: Sequence[str]) -> None:
        self._app = app
        self._acts = tuple(acts)
        self._token = token.encode()
        self._hosts = {f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost")}
        self._origins = {b"http://" + host for host in self._hosts}
        self._headers = [*HEADERS, (b"content-security-policy", policy.encode())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._problem(scope)
        if problem is None:
            # In the path as the client sent it, a slash inside a run id is still escaped.
            await self._app({**scope, "path": scope["raw_path"].decode("latin-1")}, receive, self._guarded(send))
        elif scope["type"] == "http":
            status, text = problem
            headers = [*self._headers, (b"content-type", b"text/plain; charset=utf-8")]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": text.encode()})

    def _problem(self, scope: Scope) -> tuple[int, str] | None:
        if scope["type"] != "http":
            return 400, "The viewer speaks only HTTP."
        acts = scope["path"].startswith(self._acts)
        if scope["method"] not in ("GET", "HEAD") and not (acts and scope["method"] == "POST"):
            return 405, "The viewer is read-only."
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return 421, "The Host header names another server; open the address that was printed at the start."
        origins = [value for name, value in scope["headers"] if name == b"origin"]
        if any(origin not in self._origins for origin in origins):
            return 403, "Only the viewer's own page may send requests."
        if scope["path"].startswith("/api/") and not self._has_token(scope):
            return 403, "The address has no token, or an old one; open the address that was printed at the start."
        return None

    def _has_token(self, scope: Scope) -> bool:
        """True if the token is in a header or, for read requests where a browser cannot send headers, in the URL."""
        given = [value for name, value in scope["headers"] if name == b"x-wink-token"]
        if scope["method"] != "POST":
            given += [value.encode() for value in parse_qs(scope["query_string"].decode("latin-1")).get("token", ())]
        return any(hmac.compare_digest(value, self._token) for value in given)

    def _guarded(self, send: Send) -> Send:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *self._headers]}
            await send(message)

        return guarded
