"""Bills that a person decides about, whose workers are killed with SIGKILL at random points: every one ends as decided.

The runs go up to three levels deep, also side by side; some calls do not end in time, and now and then the work is
cancelled and goes on. A run that ends otherwise is an error that names its seed.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from bench.row import Row

SLOW = True
RUNS = 200


def rows() -> Iterator[Row]:
    killing = import_module("tests.durable.killing")
    began, deaths = time.perf_counter(), 0
    with killing.worker_factory() as workers, tempfile.TemporaryDirectory() as folder:
        empty = killing.make_database(Path(folder))
        for seed in range(RUNS):
            with tempfile.TemporaryDirectory() as place:
                try:
                    deaths += killing.pay_and_die(seed, Path(place), empty, workers)
                except Exception as error:
                    error.add_note(f"seed {seed}")
                    raise
    yield Row(
        "runs that ended as a person decided, although their workers were killed",
        RUNS,
        "runs",
        goal=200.0,
        better="more",
        note=f"{deaths} deaths; up to three levels deep, some side by side, with late calls and cancelled work",
    )
    yield Row("wall time of one of them", (time.perf_counter() - began) / RUNS, "s")
