"""The database of durable work: its URL, its connections and its tables.

SQLite keeps the work of one machine in a file; Postgres lets many machines share it.
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import time
import traceback
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from dbos._schemas.system_database import SystemSchema

from weakincentives.durable.work import DatabaseUnavailableError, DurableError

DEFAULT_DATABASE = ".wink/durable.db"
DATABASE_VARIABLE = "WINK_DATABASE_URL"
SCHEMA = "weakincentives"
APPLICATION = "weakincentives"
# Followed by its id, the partition of work without a tenant: limits per tenant do not apply to it.
NO_TENANT = "-"
# Work started without a queue continues in the queue with this suffix; every process that runs the loop serves it.
DIRECT = ".direct"
_SQLITE = "sqlite:///"
_CANNOT_USE = "Cannot use "
_GIVEN_UP = re.compile(r"Error executing workflow (.+?): DBOS Error 6: .* maximum of (\d+)", re.DOTALL)
# The modules that log the failures of work themselves.
_LOGGING = ("weakincentives.durable.driver", "weakincentives.durable.exchange")
# Serialization failure, lock not available, statement timeout.
_HANDLED_BY_ENGINE = frozenset({"40001", "55P03", "57014"})

# The one table of the engine that we use ourselves; ARCHITECTURE.md says for what.
status_table = SystemSchema.workflow_status

own_tables = sa.MetaData(schema=SystemSchema.metadata_obj.schema)
worker_table = sa.Table(
    "wink_worker",
    own_tables,
    sa.Column("executor_id", sa.Text, primary_key=True),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("lease_until_ms", sa.BigInteger, nullable=False),
)
question_table = sa.Table(
    "wink_question",
    own_tables,
    sa.Column("workflow_uuid", sa.Text, primary_key=True),
    sa.Column("step", sa.Integer, primary_key=True),
    sa.Column("call_id", sa.Text, primary_key=True),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("asked_ms", sa.BigInteger, nullable=False),
    sa.Column("expires_ms", sa.BigInteger),
    sa.Column("answer", sa.Text),
    # The key of the answer, which names exactly what is asked.
    sa.Column("id", sa.Text, nullable=False),
    # As JSON: the tool of the call, its arguments and their schema.
    sa.Column("call", sa.Text, nullable=False),
    # As tagged JSON: the question as every surface draws it, if the tool declares approval=.
    sa.Column("asked", sa.Text),
)
# A conversation between its runs: the state that its last run left.
conversation_table = sa.Table(
    "wink_conversation",
    own_tables,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("last_number", sa.Integer, nullable=False),
    sa.Column("state", sa.LargeBinary),
    sa.Column("created_ms", sa.BigInteger, nullable=False),
    sa.Column("updated_ms", sa.BigInteger, nullable=False),
)
# What was sent to a conversation. Each message is a run, unless it `joined` one that was under way.
run_table = sa.Table(
    "wink_run",
    own_tables,
    sa.Column("conversation", sa.Text, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("key", sa.Text),
    sa.Column("request", sa.Text, nullable=False),
    sa.Column("loop", sa.Text, nullable=False),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("tenant", sa.Text),
    sa.Column("joined", sa.Integer),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("stopped", sa.Boolean, nullable=False),
    sa.Column("created_ms", sa.BigInteger, nullable=False),
    sa.Column("queued_ms", sa.BigInteger),
    sa.Column("began_ms", sa.BigInteger),
    sa.Column("ended_ms", sa.BigInteger),
    sa.Column("outcome", sa.Text),
)
sa.Index("wink_run_key", run_table.c.conversation, run_table.c.key, unique=True)
sa.Index(
    "wink_run_open",
    run_table.c.queued_ms,
    postgresql_where=run_table.c.ended_ms.is_(None),
    sqlite_where=run_table.c.ended_ms.is_(None),
)
# The events of the newest run of a conversation, in batches; only those of its last attempt count.
stream_table = sa.Table(
    "wink_stream",
    own_tables,
    sa.Column("conversation", sa.Text, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True),
    sa.Column("sequence", sa.Integer, primary_key=True),
    sa.Column("events", sa.Text, nullable=False),
)
blob_table = sa.Table(
    "wink_blob",
    own_tables,
    sa.Column("conversation", sa.Text, primary_key=True),
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("data", sa.LargeBinary, nullable=False),
)


def database_url(given: str | None) -> str:
    """The given database, else `WINK_DATABASE_URL`, else `.wink/durable.db`, as a SQLAlchemy URL."""
    url = given or os.environ.get(DATABASE_VARIABLE) or DEFAULT_DATABASE
    scheme, separator, rest = url.partition("://")
    if not separator or scheme == "sqlite":
        file = rest.removeprefix("/") if separator else url
        if file in ("", ":memory:"):
            raise DurableError(
                f"Durable work does not support databases in memory, got {url!r}; pass a file or postgresql://..."
            )
        return f"{_SQLITE}{Path(file).expanduser().absolute()}"
    if scheme.partition("+")[0] not in ("postgres", "postgresql"):
        raise DurableError(
            f"Durable work does not support {scheme!r} databases; pass a file, sqlite:///path or postgresql://..."
        )
    return "postgresql+psycopg://" + rest


def sqlite_path(url: str) -> Path | None:
    """The file of a resolved URL, or None for Postgres."""
    return Path(url.removeprefix(_SQLITE)) if url.startswith(_SQLITE) else None


def connect(url: str, *, pool_size: int = 5, idle_timeout: float = 5.0, exclusive: bool = False) -> sa.Engine:
    """Create an engine for a resolved URL, configured for many small commits; it raises our errors.

    SQLite: WAL with synchronous=NORMAL, so that a step costs one append instead of two disk flushes. A power failure
    may lose the last steps, which are then repeated; a killed process loses none. Postgres: a transaction left open by
    a frozen worker ends after `idle_timeout`, so that its row locks cannot stop others from taking over its work.
    `exclusive` transactions hold the write lock of a SQLite file from the start.
    """
    _quieten_engine_log()
    path = sqlite_path(url)
    if path is None:
        engine = _connect_postgres(url, pool_size, idle_timeout)
    else:
        engine = _connect_sqlite(path, pool_size, exclusive)
    sa.event.listen(engine, "handle_error", _translate_error, retval=True)
    return engine


def holds_work(url: str) -> bool:
    """True if the database at a resolved URL has the tables. Unlike `connect()`, this leaves a SQLite file as it is."""
    path = sqlite_path(url)
    engine = connect(url) if path is None else sa.create_engine(sa.URL.create("sqlite", database=str(path)))
    if path is not None:
        sa.event.listen(engine, "handle_error", _translate_error, retval=True)
    try:
        return sa.inspect(engine).has_table(question_table.name, schema=SCHEMA if path is None else None)
    finally:
        engine.dispose()


def describe(url: sa.URL) -> str:
    """The URL without its secrets; a password may also be a query parameter."""
    known = {name: value for name, value in url.query.items() if name in ("host", "port")}
    return url.set(query=known).render_as_string(hide_password=True)


def unavailable(place: str, error: BaseException) -> DatabaseUnavailableError:
    reason = str(getattr(error, "orig", error)).partition("\n")[0]
    return DatabaseUnavailableError(f"{_CANNOT_USE}{place}: {reason}")


def _connect_postgres(url: str, pool_size: int, idle_timeout: float) -> sa.Engine:
    milliseconds = int(idle_timeout * 1000)
    # These timeouts detect a server that silently disappeared; the kernel would take a quarter of an hour.
    defaults = {"connect_timeout": max(2, int(idle_timeout)), "tcp_user_timeout": max(10_000, 2 * milliseconds)}
    given = sa.make_url(url).query
    return sa.create_engine(
        url,
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_pre_ping=True,
        connect_args={
            **{name: value for name, value in defaults.items() if name not in given},
            "application_name": "weakincentives",
            "options": f"-c idle_in_transaction_session_timeout={milliseconds}",
        },
    )


def _connect_sqlite(path: Path, pool_size: int, exclusive: bool) -> sa.Engine:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unavailable(str(path), error) from error
    # Not parsed as a URL: a path may contain any of a URL's special characters.
    engine = sa.create_engine(sa.URL.create("sqlite", database=str(path)), pool_size=pool_size, max_overflow=-1)

    @sa.event.listens_for(engine, "connect")
    def configure(connection: Any, record: Any) -> None:
        connection.isolation_level = "IMMEDIATE"
        for pragma in ("busy_timeout=30000", "journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")
        if sqlite3.sqlite_version_info < (3, 42):
            # The engine's tables call unixepoch('subsec'), which is NULL in these versions (Debian 12 has 3.40).
            connection.create_function("unixepoch", 1, lambda modifier: int(time.time() * 1000) / 1000)

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        # The driver begins a transaction before the first INSERT or UPDATE, not before CREATE TABLE.
        if exclusive:
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _translate_error(context: sa.engine.ExceptionContext) -> DurableError | None:
    """Replace the driver's errors with ours, except those the engine handles itself."""
    error = context.sqlalchemy_exception
    if error is None or context.is_pre_ping or isinstance(error, sa.exc.IntegrityError):
        return None
    if getattr(context.original_exception, "sqlstate", None) in _HANDLED_BY_ENGINE:
        return None
    place = describe(context.engine.url) if context.engine else "the database"
    if isinstance(error, (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.InternalError)):
        return unavailable(place, error)
    reason = str(context.original_exception).partition("\n")[0]
    return DurableError(f"{_CANNOT_USE}{place} for durable work: {reason}")


def _quieten_engine_log() -> None:
    """Keep the engine from printing; its warnings go through the program's logging."""
    log = logging.getLogger("dbos")
    if not log.handlers:
        log.addHandler(logging.NullHandler())
        log.setLevel(logging.WARNING)
        log.addFilter(_is_worth_logging)


def _is_worth_logging(record: logging.LogRecord) -> bool:
    if given_up := _GIVEN_UP.match(record.getMessage()):
        # The engine counts only the attempts after the first.
        attempts = int(given_up[2]) + 1
        record.msg, record.args = f"{given_up[1]} was given up after {attempts} attempts without progress.", ()
    # The engine logs cancelled and failed work as errors with a traceback, and a lost database several times a second;
    # the worker itself logs that once.
    error = record.exc_info[1] if record.exc_info else None
    cancelled = type(error).__name__ == "DBOSAwaitedWorkflowCancelledError"
    frames = traceback.walk_tb(error.__traceback__ if error else None)
    failed = any(frame.f_globals.get("__name__") in _LOGGING for frame, _ in frames)
    lost = isinstance(error, DatabaseUnavailableError) or _CANNOT_USE in record.getMessage()
    return not (cancelled or failed or lost)
