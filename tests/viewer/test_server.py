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
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.telemetry.agents import record_durable_run

if TYPE_CHECKING:
    from weakincentives.viewer import Viewer


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Message
    body: bytes


def token_of(viewer: Viewer) -> str:
    (token,) = parse_qs(urlsplit(viewer.url).query)["token"]
    return token


def ask(viewer: Viewer, path: str, method: str = "GET", *, admitted: bool = True, **headers: str) -> Answer:
    """Send a request, with the viewer's token unless it is not to be admitted."""
    with closing(http.client.HTTPConnection("127.0.0.1", viewer.port, timeout=5)) as connection:
        connection.putrequest(method, path, skip_host=True)
        known = {"X-Wink-Token": token_of(viewer)} if admitted else {}
        for name, value in {"Host": f"127.0.0.1:{viewer.port}", **known, **headers}.items():
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


DATA = (
    "/api/runs",
    "/api/groups?by=prompt",
    "/api/conversations/0",
    "/api/blobs/0",
    "/api/runs/{run}",
    "/api/runs/{run}/script",
    "/api/runs/{run}/turns/1",
    "/api/runs/{run}/prompts/1",
    "/api/runs/{run}/messages",
    "/api/runs/{run}/events",
    "/api/runs/{run}/events/1",
    "/api/search?q=a",
    "/api/parting?a=a&b=b",
    "/api/report",
    "/api/evals",
    "/api/evals/one?id=a",
    "/api/evals/compare?a=a&b=b",
    "/api/changes",
    "/api/play",
    "/api/work",
)


@pytest.mark.parametrize("path", DATA)
def test_data_is_only_for_whoever_has_the_token(viewer: Viewer, run_ids: tuple[str, ...], path: str) -> None:
    path = path.format(run=run_ids[0])
    joined = "&" if "?" in path else "?"
    for given, headers in (
        ("", {}),
        (f"{joined}token=", {}),
        (f"{joined}token=wrong", {}),
        ("", {"X-Wink-Token": "x"}),
    ):
        answer = ask(viewer, path + given, admitted=False, **headers)
        assert (answer.status, answer.body[:28]) == (403, b"The address has no token, or")
    if path != "/api/changes":
        assert ask(viewer, path).status in (200, 400, 404)
        assert ask(viewer, f"{path}{joined}token={token_of(viewer)}", admitted=False).status in (200, 400, 404)


def test_the_table_of_data_is_whole() -> None:
    from weakincentives.viewer import app

    served = re.findall(r'Route\("(/api/[^"]*)"', Path(app.__file__).read_text(encoding="utf-8"))
    named = {re.sub(r"\{[^}]*\}|(?<=/)(0|1)$|\?.*", "*", path).rstrip("*") for path in DATA}
    assert {re.sub(r"\{[^}]*\}", "*", path).rstrip("*") for path in served if "play/" not in path} == named


SPELLINGS = (
    "/%61pi/runs",
    "//api/runs",
    "/./api/runs",
    "/x/../api/runs",
    "/static/../api/runs",
    "/api/runs/",
    "/api//runs",
)
SPELLINGS += ("/API/runs", "/api%2Fruns", "/%2e/api/runs", "/;/api/runs", "\\api\\runs", "http://127.0.0.1/api/runs")


@pytest.mark.parametrize("path", SPELLINGS)
def test_no_other_spelling_of_a_path_leads_past_the_token(viewer: Viewer, path: str) -> None:
    answer = ask(viewer, path, admitted=False)
    assert answer.status in (307, 400, 403, 404) and b"run_id" not in answer.body


def test_each_server_has_its_own_token(viewer: Viewer, runs: Path) -> None:
    from weakincentives.viewer import Viewer

    with Viewer(runs, port=0) as other:
        assert ask(other, "/api/runs", **{"X-Wink-Token": token_of(viewer)}).status == 403
        assert ask(other, "/api/runs").status == 200


def test_numbers_that_are_too_large_are_refused(viewer: Viewer, run_ids: tuple[str, ...]) -> None:
    large = 10**30
    for path in (
        "?offset={}",
        "?limit={}",
        "/{run}/turns/{}",
        "/{run}/prompts/{}",
        "/{run}/events/{}",
        "/{run}/messages?start={}&stop={}",
        "/{run}/messages?stop={}",
        "/{run}/events?offset={}",
    ):
        place = path.replace("{run}", run_ids[0]).replace("{}", str(large))
        assert ask(viewer, f"/api/runs{place}").status in (200, 400, 404, 422)


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
