"""The shop of the guide, as real processes: a web application, a worker and a person who decides."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from tests.waiting import PATIENCE, until
from weakincentives.cli.commands import parser

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = DOCS / "operate" / "deploying.md"

Fetch = Callable[..., tuple[int, str]]


@pytest.fixture
def fetch(tmp_path: Path) -> Iterator[Fetch]:
    """Asks the guide's web application, which runs beside the guide's worker on one SQLite file."""
    for name, text in re.findall(
        r"```python\n# (shop/\w+\.py)\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL
    ):
        (tmp_path / "shop").mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    environment = os.environ | {"WINK_DATABASE_URL": "shop.db"}
    options: dict[str, Any] = {"cwd": tmp_path, "env": environment, "stderr": subprocess.PIPE, "text": True}
    web_command = [sys.executable, "-m", "uvicorn", "shop.web:app", "--port", "0"]
    worker_command = [sys.executable, "-m", "weakincentives.cli", "worker", "shop.agent:loop"]
    with subprocess.Popen(web_command, **options) as web, subprocess.Popen(worker_command, **options) as worker:
        try:
            assert web.stderr is not None
            address = next(found[0] for line in web.stderr if (found := re.search(r"http://[\d.:]+", line)))

            def ask(path: str, data: str | None = None) -> tuple[int, str]:
                try:
                    with urlopen(address + path, data and data.encode(), timeout=PATIENCE) as response:
                        return response.status, response.read().decode()
                except HTTPError as error:
                    return error.code, error.read().decode()

            yield ask
        finally:
            for process in (web, worker):
                process.send_signal(signal.SIGTERM)
                assert process.wait(PATIENCE) in (0, -signal.SIGTERM)
                assert process.stderr is not None
                process.stderr.close()


def test_an_order_is_refunded_after_a_person_has_agreed_on_the_approval_page(fetch: Fetch) -> None:
    order = json.dumps({"number": 7, "complaint": "<b>Broken</b>"})
    assert fetch("/orders", order) == (202, '{"key":"order-7"}')
    until(lambda: "<form" in fetch("/approvals")[1], "the question")
    page = fetch("/approvals")[1]
    assert "refund\n  number: 7\n  amount: 30</pre>" in unescape(page)
    fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]+)"', page))
    answer = urlencode(fields | {"decision": "approve"})
    assert fetch("/approvals", answer) == (200, "<p>Nothing to decide.</p>")
    assert fetch("/orders/order-7") == (200, '{"status":"done","text":"Refunded 30."}')
    status, text = fetch("/approvals", answer)
    assert (status, "has already been answered" in text) == (409, True)


def test_an_order_posted_again_with_another_complaint_is_a_conflict(fetch: Fetch) -> None:
    assert fetch("/orders", '{"number": 8, "complaint": "Broken."}') == (202, '{"key":"order-8"}')
    status, text = fetch("/orders", '{"number": 8, "complaint": "Late."}')
    assert (status, "was used for another request" in text) == (409, True)


def test_the_worker_of_the_manifest_is_one_that_wink_starts() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    (command,) = re.findall(r"command: (\[.*\])", text)
    (grace,) = re.findall(r"terminationGracePeriodSeconds: (\d+)", text)
    wink, name, *words = json.loads(command)
    arguments = parser(name).parse_args(words)
    assert (wink, name, arguments.health) == ("wink", "worker", ("0.0.0.0", 8080))
    assert arguments.drain < int(grace)
