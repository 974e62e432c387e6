"""A request that is given up while it is being sent, or fails, leaves nothing behind."""

from __future__ import annotations

import contextlib
import gc
import threading
import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.adapters.tools import SYSTEM, ask
from tests.attacks.reach import DIRECT, Way
from tests.servers.hostile import Connection, HostileServer, response
from weakincentives.errors import PromptEvaluationError
from weakincentives.limits import Deadline
from weakincentives.runtime import Message

LARGE = ask([SYSTEM, Message("user", "x" * 20_000_000)])
ended = threading.Event()


def refuse_early(connection: Connection) -> None:
    connection.send(response(b"{}", status="400 Bad Request"))
    ended.wait(20)


def never_read(connection: Connection) -> None:
    ended.wait(20)


@pytest.mark.parametrize("serve", [refuse_early, never_read])
@pytest.mark.parametrize("way", [way for way in DIRECT if way.awaited], ids=str)
def test_a_request_that_is_given_up_closes_its_connection(way: Way, serve: Callable[[Connection], None]) -> None:
    ended.clear()
    with HostileServer(serve) as server:
        with pytest.raises(PromptEvaluationError):
            way.ask(server.url, replace(LARGE, deadline=Deadline.after(1)), max_retries=0)
        # A transport that is still open warns when it is collected, and warnings are errors.
        gc.collect()
        ended.set()


@pytest.mark.parametrize("way", [way for way in DIRECT if not way.awaited], ids=str)
def test_a_request_that_failed_is_freed_at_once(way: Way) -> None:
    with HostileServer(lambda connection: None) as server:
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            with contextlib.suppress(PromptEvaluationError):
                way.ask(server.url, LARGE, max_retries=0)
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.enable()
    assert kept < 10_000_000
