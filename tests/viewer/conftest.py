"""A file of recorded runs, the viewer on it, and a real browser that must not complain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from scripts.viewer_runs import record_runs
from tests.browser import browser as browser
from weakincentives.telemetry import RunStore

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from weakincentives.viewer import Viewer


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Newest first: two runs of nine turns with injected tools and a rollback, one with restarts, one that failed."""
    path = tmp_path_factory.mktemp("recorded") / "runs.db"
    record_runs(path)
    return path


@pytest.fixture(scope="session")
def run_ids(runs: Path) -> tuple[str, ...]:
    with RunStore(runs) as store:
        return tuple(run.run_id for run in store.list_runs())


@pytest.fixture(scope="session")
def viewer(runs: Path) -> Iterator[Viewer]:
    pytest.importorskip("uvicorn", reason="needs the viewer: pip install 'weakincentives[viewer]'")
    pytest.importorskip("starlette", reason="needs the viewer: pip install 'weakincentives[viewer]'")
    from weakincentives.viewer import Viewer

    with Viewer(runs, port=0) as serving:
        yield serving


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens addresses; at the end of the test no page may have complained, but of a status that the test expects."""
    complaints: list[str] = []
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(10_000)

    def heard(dialog: Any) -> None:
        # A page with drafts asks before it is left.
        if dialog.type != "beforeunload":
            complaints.append(f"dialog: {dialog.message}")
        dialog.accept()

    def opened(url: str, *, refused_with: int | None = None, **options: Any) -> Page:
        def heard_on_console(message: Any) -> None:
            if refused_with is None or f"status of {refused_with}" not in message.text:
                complaints.append(f"{message.type}: {message.text}")

        page = context.new_page()
        page.on("console", heard_on_console)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", heard)
        page.goto(url, **options)
        return page

    yield opened
    context.close()
    assert complaints == []
