"""Serves the viewer on this machine, to whoever has the token in its address."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from weakincentives._base.imports import require_extra
from weakincentives.errors import WinkError
from weakincentives.telemetry import RunStore
from weakincentives.viewer.documents import Documents

if TYPE_CHECKING:
    import uvicorn

    from weakincentives.viewer.playground import Playground
    from weakincentives.viewer.work import DurableWork

LOOPBACK = "127.0.0.1"
PORT = 7410


class ViewerError(WinkError):
    """The viewer cannot be served."""


class Viewer:
    """A server for a run file. `run()` serves until interrupted; as a context manager it serves in a thread.

    `port=None` uses the default port, or any free one if that is taken; 0 uses any free port. The URL contains a
    token, without which no data is served: other users of this machine can reach the port too. With the
    `database_url` of durable work, calls of its runs that wait can be decided on their pages.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        port: int | None = None,
        playground: Playground | None = None,
        database_url: str | None = None,
    ) -> None:
        for package in ("uvicorn", "starlette"):
            require_extra(package, "viewer", "The viewer")
        self._store = RunStore(path)
        self._playground = playground
        self._work: DurableWork | None = None
        self._token = secrets.token_urlsafe(24)
        try:
            if database_url is not None:
                from weakincentives.viewer.work import DurableWork

                self._work = DurableWork(database_url)
            self._socket = _listen(port)
        except BaseException:
            self._close_stores()
            raise
        self.port: int = self._socket.getsockname()[1]
        self._server = self._make_server()
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}/?token={self._token}"

    def run(self, started: Callable[[], object] = lambda: None) -> None:
        """Serve until the process is interrupted; `started` is called once the server responds."""
        with self:
            started()
            assert self._thread is not None
            while self._thread.is_alive():
                self._thread.join(0.5)

    def __enter__(self) -> Viewer:
        # The socket is already listening, so a connection made now is answered once the thread is running.
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="wink-viewer", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join()
        self._socket.close()
        self._close_stores()

    def _close_stores(self) -> None:
        self._store.close()
        if self._work is not None:
            self._work.close()

    def _make_server(self) -> uvicorn.Server:
        import uvicorn

        from weakincentives.viewer.app import viewer_app

        app = viewer_app(
            Documents(self._store),
            port=self.port,
            stopping=lambda: self._server.should_exit,
            token=self._token,
            playground=self._playground,
            work=self._work,
        )
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            proxy_headers=False,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=2,
        )
        return uvicorn.Server(config)


def _listen(port: int | None) -> socket.socket:
    for candidate in (port,) if port is not None else (PORT, 0):
        server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind((LOOPBACK, candidate))
            server.listen(128)
        except OSError as error:
            server.close()
            problem = error
        else:
            return server
    raise ViewerError(
        f"Cannot listen on port {port}: {problem.strerror}; pass another with --port, or 0 for any free one."
    )
