"""`python examples/web_fleet.py` as a person at a terminal uses it."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.error import URLError
from urllib.request import HTTPCookieProcessor, Request, build_opener

import pytest

from tests.waiting import PATIENCE, until

pytest.importorskip("dbos", reason="needs the extra [durable]")
pytest.importorskip("uvicorn", reason="needs the extra [viewer]")

PROGRAM = Path(__file__).parents[2] / "examples" / "web_fleet.py"


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def test_ctrl_c_ends_the_example_fleet_although_a_page_waits_for_an_answer(tmp_path: Path) -> None:
    port, page = free_port(), build_opener(HTTPCookieProcessor(CookieJar()))
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-u", str(PROGRAM), str(tmp_path / "fleet.db"), str(port)]
    fleet = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert fleet.stdout is not None

    def is_served() -> bool:
        try:
            return page.open(address, timeout=PATIENCE).status == 200
        except URLError:
            return False

    try:
        worker = int(fleet.stdout.readline().rpartition("[")[2].rstrip("]\n"))
        until(is_served, "the page")
        os.kill(worker, signal.SIGKILL)
        question = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Where is order 7?"}]}
        body = json.dumps({"id": "t", "messages": [question]}).encode()
        sent = Request(f"{address}/api/chat", body, {"content-type": "application/json"})
        with page.open(sent, timeout=PATIENCE) as answer:
            assert b"start" in answer.readline()
            os.killpg(fleet.pid, signal.SIGINT)
            # All of its processes write to these pipes: they end with the last one.
            _, errors = fleet.communicate(timeout=PATIENCE)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(fleet.pid, signal.SIGKILL)
    assert fleet.returncode == 0
    assert "Traceback" not in errors
