from __future__ import annotations

import http.client
import json
import re
import socket
from contextlib import closing
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.telemetry.agents import record_durable_run

if TYPE_CHECKING:
    from weakincentives.viewer import Viewer


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Message
    body: bytes


def ask(viewer: Viewer, path: str, method: str = "GET", **headers: str) -> Answer:
    with closing(http.client.HTTPConnection("127.0.0.1", viewer.port, timeout=5)) as connection:
        connection.putrequest(method, path, skip_host=True)
        for name, value in {"Host": f"127.0.0.1:{viewer.port}", **headers}.items():
            connection.putheader(name, value)
        connection.endheaders()
        with connection.getresponse() as response:
            return Answer(response.status, response.headers, response.read())


@pytest.mark.parametrize("host", ["example.com", "127.0.0.1", "localhost:1", "127.0.0.1.example.com:{port}", ""])
def test_a_request_to_another_name_is_refused(viewer: Viewer, host: str) -> None:
    answer = ask(viewer, "/api/runs", Host=host.format(port=viewer.port))
    assert answer.status == 421
    assert b"run_id" not in answer.body


@pytest.mark.parametrize("origin", ["http://example.com", "null", "http://127.0.0.1", "https://127.0.0.1:{port}"])
def test_a_request_from_another_page_is_refused(viewer: Viewer, origin: str) -> None:
    assert ask(viewer, "/api/runs", Origin=origin.format(port=viewer.port)).status == 403


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_its_own_page_is_answered(viewer: Viewer, name: str) -> None:
    host = f"{name}:{viewer.port}"
    answer = ask(viewer, "/api/runs", Host=host, Origin=f"http://{host}")
    assert answer.status == 200
    assert json.loads(answer.body)["total"] == 4


def test_nothing_can_be_sent_to_it(viewer: Viewer) -> None:
    assert ask(viewer, "/api/runs", method="POST").status == 405


def test_it_listens_on_loopback_only(viewer: Viewer) -> None:
    with socket.socket() as elsewhere:
        elsewhere.bind(("127.0.0.2", viewer.port))


def test_every_answer_forbids_what_the_page_does_not_need(viewer: Viewer) -> None:
    for path in ("/", "/api/runs", "/static/main.js", "/nowhere"):
        headers = ask(viewer, path).headers
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self' 'sha256-")
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


def test_the_page_and_all_its_modules_are_there(viewer: Viewer) -> None:
    page = ask(viewer, "/").body.decode()
    files = re.findall(r'"(/static/[^"]+)"', page)
    assert len(files) > 20
    assert {ask(viewer, file).status for file in files} == {200}
    assert ask(viewer, "/favicon.ico").headers["Content-Type"] == "image/svg+xml"


@pytest.mark.parametrize("path", ["/static/../documents.py", "/static/%2e%2e/documents.py", "/static//etc/passwd"])
def test_files_beside_the_page_are_not_served(viewer: Viewer, path: str) -> None:
    assert ask(viewer, path).status == 404


def test_what_is_not_recorded_is_not_found(viewer: Viewer, run_ids: tuple[str, ...]) -> None:
    answer = ask(viewer, f"/api/runs/{run_ids[0]}/turns/99")
    assert answer.status == 404
    assert "turns 1 to 9" in json.loads(answer.body)["error"]
    assert ask(viewer, f"/api/runs/{run_ids[0]}/messages?start=x").status == 400


def test_a_taken_port_is_said_so(viewer: Viewer, runs: Path) -> None:
    from weakincentives.viewer import Viewer, ViewerError

    with pytest.raises(ViewerError, match=f"Cannot listen on port {viewer.port}: .*--port"):
        Viewer(runs, port=viewer.port)


def test_a_durable_run_is_found_by_its_escaped_id_whatever_its_key(tmp_path: Path) -> None:
    from weakincentives.viewer import Viewer

    assert record_durable_run(tmp_path / "runs.db", "a/script") == "desk/a/script"
    with Viewer(tmp_path / "runs.db", port=0) as viewer:
        run = json.loads(ask(viewer, "/api/runs/desk%2Fa%2Fscript").body)
        turn = json.loads(ask(viewer, "/api/runs/desk%2Fa%2Fscript/turns/4").body)
        script = json.loads(ask(viewer, "/api/runs/desk%2Fa%2Fscript/script").body)
    assert run["run"]["run_id"] == turn["run_id"] == "desk/a/script"
    assert "'Three.'" in script["text"]
