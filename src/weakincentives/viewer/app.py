"""The viewer's server: one page, its modules, and the documents as JSON. The only module that imports starlette."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio.to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from weakincentives.telemetry import RunNotFoundError
from weakincentives.viewer.documents import Documents
from weakincentives.viewer.guard import Guard
from weakincentives.viewer.page import ICON, STATIC, served_page

LOOK_SECONDS = 0.2
QUIET_LOOKS = 50


def viewer_app(documents: Documents, *, port: int, stopping: Callable[[], bool]) -> Guard:
    """The application for a server on this port; `stopping` ends the streams that would keep it alive."""
    page, policy = served_page()
    changes = _Changes(documents, stopping)
    app = Starlette(
        routes=[
            Route("/", lambda request: HTMLResponse(page)),
            Route("/favicon.ico", lambda request: FileResponse(STATIC / ICON, media_type="image/svg+xml")),
            Route("/api/runs", _json(lambda r: _runs(documents, r))),
            Route("/api/runs/{run}", _json(lambda r: documents.run(r.path_params["run"]))),
            Route(
                "/api/runs/{run}/turns/{n:int}",
                _json(lambda r: documents.turn(r.path_params["run"], r.path_params["n"])),
            ),
            Route(
                "/api/runs/{run}/prompts/{seq:int}",
                _json(lambda r: documents.prompt(r.path_params["run"], r.path_params["seq"])),
            ),
            Route(
                "/api/runs/{run}/messages",
                _json(lambda r: documents.messages(r.path_params["run"], _number(r, "start"), _number(r, "stop"))),
            ),
            Route("/api/runs/{run}/events", _json(lambda r: _events(documents, r))),
            Route(
                "/api/runs/{run}/events/{seq:int}",
                _json(lambda r: documents.event(r.path_params["run"], r.path_params["seq"])),
            ),
            Route(
                "/api/search",
                _json(lambda r: documents.search(r.query_params.get("q", ""), r.query_params.get("run", ""))),
            ),
            Route("/api/report", _json(lambda r: documents.report())),
            Route("/api/changes", changes),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
    )
    return Guard(app, port=port, policy=policy)


def _runs(documents: Documents, request: Request) -> Any:
    query = request.query_params
    return documents.runs(
        search=query.get("q", ""),
        status=query.get("status", ""),
        offset=_number(request, "offset"),
        limit=min(_number(request, "limit", 100), 500),
    )


def _events(documents: Documents, request: Request) -> Any:
    return documents.events(
        request.path_params["run"],
        offset=_number(request, "offset"),
        limit=min(_number(request, "limit", 200), 500),
        kinds=request.query_params.getlist("kind"),
    )


def _number(request: Request, name: str, default: int = 0) -> int:
    return max(0, int(request.query_params.get(name, default)))


def _json(make: Callable[[Request], Any]) -> Callable[[Request], Response]:
    """An endpoint that answers with a document; it is not async, so it runs in a thread."""

    def endpoint(request: Request) -> Response:
        status = 200
        try:
            document = make(request)
        except RunNotFoundError as error:
            document, status = {"error": str(error)}, 404
        except ValueError as error:
            document, status = {"error": str(error)}, 400
        # ASCII with escapes: also half a surrogate pair reaches the page, which shows it as a replacement character.
        return Response(json.dumps(document, separators=(",", ":")), status, media_type="application/json")

    return endpoint


class _Changes:
    """Tells the page, as server-sent events, when something was recorded."""

    def __init__(self, documents: Documents, stopping: Callable[[], bool]) -> None:
        self._documents = documents
        self._stopping = stopping

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await StreamingResponse(self._events(), media_type="text/event-stream")(scope, receive, send)

    async def _events(self) -> AsyncIterator[str]:
        seen, quiet = -1, 0
        while not self._stopping():
            last = await anyio.to_thread.run_sync(self._documents.store.last_event_id)
            if last != seen:
                seen, quiet = last, 0
                yield f"data: {last}\n\n"
            quiet += 1
            if quiet % QUIET_LOOKS == 0:
                # Runs whose process died end without an event.
                yield "data: beat\n\n"
            await anyio.sleep(LOOK_SECONDS)
