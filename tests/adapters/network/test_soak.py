"""Many runs in one process leave nothing behind; bench/soak.py is the long version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bench.adapters import ADAPTERS, through_client
from bench.model_server import serving
from bench.soak import measured, run_async, run_mixed, run_stream, run_sync
from tests.rounds import rounds

pytestmark = [pytest.mark.slow, pytest.mark.limit(300)]


def left_behind(make: Callable[[str], Any], path: str, run: Callable[[Any, int], None], runs: int) -> list[str]:
    """What grew although it must not; memory is left to the long version."""
    with serving() as url:
        rows = list(measured("soak", lambda: make(f"{url}{path}"), run, runs))
    return [f"{row.name}: {row.figure}" for row in rows[1:] if not row.ok]


@pytest.mark.parametrize("run", [run_sync, run_async, run_stream])
@pytest.mark.parametrize("name", ADAPTERS)
def test_runs_leave_no_objects_threads_or_descriptors(name: str, run: Any) -> None:
    assert left_behind(ADAPTERS[name], "/k2", run, rounds(100, 200)) == []


@pytest.mark.parametrize("name", ADAPTERS)
def test_runs_that_end_in_every_way_leave_nothing_behind(name: str) -> None:
    assert left_behind(ADAPTERS[name], "/k1/d5", run_mixed, rounds(150, 1000)) == []


def test_runs_through_a_client_that_end_in_every_way_leave_nothing_behind() -> None:
    assert left_behind(through_client, "/k1/d5", run_mixed, rounds(90, 300)) == []
