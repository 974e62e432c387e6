"""Many runs in one process leave nothing behind; bench/soak.py is the long version."""

from __future__ import annotations

import pytest

from bench.adapters import ADAPTERS
from bench.model_server import serving
from bench.soak import measured, run_async, run_stream, run_sync


@pytest.mark.slow
@pytest.mark.parametrize("run", [run_sync, run_async, run_stream])
@pytest.mark.parametrize("name", ADAPTERS)
def test_runs_leave_no_objects_threads_or_sockets(name: str, run: object) -> None:
    with serving() as url:
        rows = list(measured(name, lambda: ADAPTERS[name](f"{url}/k2"), run, 200))  # type: ignore[arg-type]
    assert [row.name for row in rows[1:] if not row.ok] == []
