"""Where durable work is kept: one SQLite file, or a Postgres server for many machines."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weakincentives.durable.errors import DatabaseBusyError, DurableError

if TYPE_CHECKING:
    import sqlalchemy as sa

DEFAULT_DATABASE = ".wink/durable.db"
ENVIRONMENT = "WINK_DATABASE_URL"
SCHEMA = "weakincentives"
_SQLITE = "sqlite:///"


def database_url(given: str | None) -> str:
    """The database to use: the one given, else `WINK_DATABASE_URL`, else a file under `.wink/`."""
    url = given or os.environ.get(ENVIRONMENT) or DEFAULT_DATABASE
    scheme, named, rest = url.partition("://")
    if not named or scheme == "sqlite":
        file = rest.removeprefix("/") if named else url
        if file in ("", ":memory:"):
            raise DurableError(f"Durable work cannot be kept in memory ({url!r}); name a file or postgresql://...")
        return f"{_SQLITE}{Path(file).expanduser().absolute()}"
    if scheme.partition("+")[0] not in ("postgres", "postgresql"):
        raise DurableError(
            f"Durable work cannot be kept in {scheme!r}; use a file path, sqlite:///path or postgresql://..."
        )
    return "postgresql+psycopg://" + rest


def require_engine() -> None:
    """Say how to install the engine if it is missing."""
    try:
        import dbos  # noqa: F401
    except ImportError as error:
        raise DurableError("Durable work needs its engine: pip install 'weakincentives[durable]'") from error


def connect(url: str, *, pool_size: int = 5, idle_timeout: float = 5.0) -> sa.Engine:
    """An engine with the settings that durable steps need.

    SQLite: WAL with synchronous=NORMAL, so that a step costs one append instead of two disk flushes; a power cut may
    lose the last steps, which are then repeated, but a killed process loses none. Postgres: a transaction left open by
    a frozen worker is ended after `idle_timeout`, or its row locks would keep others from taking the work over.
    """
    import sqlalchemy as sa

    # A handler of its own keeps the engine from printing; what it logs goes where the program's logging says.
    log = logging.getLogger("dbos")
    if not log.handlers:
        log.addHandler(logging.NullHandler())
        log.setLevel(logging.WARNING)
        log.addFilter(_is_news)

    if not url.startswith("sqlite"):
        return sa.create_engine(
            url,
            pool_size=pool_size,
            max_overflow=pool_size,
            pool_pre_ping=True,
            connect_args={
                "application_name": "weakincentives",
                "options": f"-c idle_in_transaction_session_timeout={int(idle_timeout * 1000)}",
            },
        )
    path = url.removeprefix(_SQLITE)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    # Not parsed as a URL: a path may hold any of its special characters.
    engine = sa.create_engine(sa.URL.create("sqlite", database=path), pool_size=pool_size, max_overflow=-1)

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: Any, record: Any) -> None:
        connection.isolation_level = "IMMEDIATE"
        for pragma in ("busy_timeout=30000", "journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    return engine


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a record of the engine is worth a line: that work was cancelled is no error, let alone a traceback."""
    error = record.exc_info[1] if record.exc_info else None
    return type(error).__name__ != "DBOSAwaitedWorkflowCancelledError"


class FileLock:
    """Says which process runs the work of a SQLite file; the operating system drops it when that process dies."""

    def __init__(self, database: str) -> None:
        self.path = Path(database + ".lock")
        self._file: Any = None

    def acquire(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = open(self.path, "a+", encoding="utf-8")  # noqa: SIM115
        try:
            _lock(file)
        except OSError as error:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            file.close()
            raise DatabaseBusyError(
                f"Process {holder} runs the work of {self.path.with_suffix('')}; hand it yours with submit() and wait "
                "with result(), or use postgresql://... for several workers."
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        self._file = file

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _lock(file: Any) -> None:
    # A record lock and not flock(): a child forked by a tool must not keep it after its parent was killed.
    try:
        import fcntl
    except ImportError:
        import msvcrt

        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    else:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
