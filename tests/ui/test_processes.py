"""Two server processes behind one store."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.ui.server import asked, chunks, post

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[str]]:
    command = [sys.executable, "-m", "tests.ui.process", str(tmp_path / "threads.db")]
    started = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        yield [process.stdout.readline().strip() for process in started if process.stdout is not None]
    finally:
        for process in started:
            process.terminate()
            process.communicate()


def history(url: str, thread: str) -> list[str]:
    with urllib.request.urlopen(f"{url}/vercel?id={thread}", timeout=30) as response:
        messages = json.load(response)
    return [part["text"] for message in messages for part in message["parts"] if part["type"] == "text"]


def is_answered(url: str, text: str, thread: str) -> bool:
    status, body = post(f"{url}/vercel", asked(text, thread))
    return status == 200 and chunks(body)[-1]["type"] == "finish"


def test_messages_that_alternate_between_processes_are_all_kept(servers: list[str]) -> None:
    a, b = servers
    for url, text in zip([a, b, a, b, a], "12345", strict=True):
        assert is_answered(url, text, "t1")
    kept = ["1", "1!", "2", "2!", "3", "3!", "4", "4!", "5", "5!"]
    assert (history(a, "t1"), history(b, "t1")) == (kept, kept)


def test_messages_at_once_are_kept_or_told_as_failed(servers: list[str]) -> None:
    asks = [(servers[n % 2], f"q{n}", f"t{n % 3}") for n in range(60)]
    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(lambda ask: is_answered(*ask), asks))
    kept = {text for thread in ("t0", "t1", "t2") for text in history(servers[0], thread)}
    answered = [text for (_, text, _), answer in zip(asks, told, strict=True) if answer]
    assert len(answered) > 6
    assert [text for text in answered if text not in kept or f"{text}!" not in kept] == []
