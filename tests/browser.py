"""The real browser of the tests that need one: Chromium, without a window.

Debian's `chromium-headless-shell` does the same for half of the processor time, and is taken where it is installed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NEEDED = "needs playwright: pip install 'weakincentives[test-full]'"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def chromium(*names: str) -> str:
    """The first of these programs that is installed; the test is skipped if none is."""
    for name in names:
        program = shutil.which(name)
        if program is not None:
            return program
    pytest.skip(f"needs Chromium: apt-get install {names[0]}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Playwright's event loop runs in this thread for as long as it is open, and async tests need one of their own."""
    playwright = pytest.importorskip("playwright.sync_api", reason=NEEDED)
    program = chromium("chromium-headless-shell", "chromium")
    playwright.expect.set_options(timeout=10_000)
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=program, args=FLAGS)
        yield launched
        launched.close()
