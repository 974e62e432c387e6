"""The front imports nothing of the engine."""

import subprocess
import sys


def test_the_front_loads_no_engine() -> None:
    script = "import sys, weakincentives.durable; print(*sys.modules)"
    modules = subprocess.check_output([sys.executable, "-c", script], text=True).split()
    assert not {name.partition(".")[0] for name in modules} & {"dbos", "sqlalchemy", "psycopg"}
