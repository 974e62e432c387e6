"""Signals: those who wait are woken by changes in this process and in others, on both databases."""

import time
from typing import Any

import pytest
import sqlalchemy as sa

from tests.waiting import PATIENCE, until
from weakincentives.durable.database import connect, database_url as resolved
from weakincentives.durable.signals import Signals


@pytest.fixture
def two_processes(database_url: str) -> Any:
    """The signals of two processes; the first has somebody who waits for 'ann'."""
    engines = [connect(resolved(database_url)) for _ in range(2)]
    with engines[0].begin() as connection:
        connection.execute(sa.text("CREATE TABLE t (n INTEGER)"))
    signals = [Signals(engine) for engine in engines]
    yield signals
    for each in signals:
        each.close()
    for engine in engines:
        engine.dispose()


def change(signals: Signals, name: str) -> None:
    with signals.transaction() as connection:
        connection.execute(sa.text("INSERT INTO t VALUES (1)"))
        signals.add(connection, name)


def test_a_change_wakes_who_waits_in_this_process_and_in_another(two_processes: Any) -> None:
    here, there = two_processes
    waiter, other = here.waiter("ann"), there.waiter("ann")
    # Until both listen, a signal can be lost.
    until(lambda: (change(there, "ann"), waiter.is_signalled())[1], "the first signal from there")
    until(lambda: (change(here, "ann"), other.is_signalled())[1], "the first signal from here")
    waiter.is_signalled()
    change(here, "ann")
    assert waiter.is_signalled()
    began = time.monotonic()
    other.wait(PATIENCE)
    assert time.monotonic() - began < PATIENCE


async def test_a_signal_wakes_who_waits_on_an_event_loop(tmp_path: Any) -> None:
    import asyncio

    engine = connect(resolved(str(tmp_path / "durable.db")))
    signals = Signals(engine)
    waiter = signals.waiter("ann")
    waiting = asyncio.ensure_future(waiter.wait_async(PATIENCE))
    await asyncio.sleep(0)
    await asyncio.to_thread(waiter.signal)
    await asyncio.wait_for(waiting, PATIENCE / 2)
    await waiter.wait_async(0)
    signals.close()
    engine.dispose()
