"""Who may see the page's data, in a real browser: reloads, other tabs, bookmarks, a server started anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.telemetry.agents import record_durable_run
from weakincentives.viewer import Viewer, export_run

expect = pytest.importorskip(
    "playwright.sync_api", reason="needs playwright: pip install 'weakincentives[test-full]'"
).expect

REFUSED = "The address has no token, or an old one; open the address that was printed at the start."


@pytest.fixture
def context(browser: Any) -> Iterator[Any]:
    """A browser of its own, whose console may complain about requests that are refused."""
    opened = browser.new_context()
    opened.set_default_timeout(10_000)
    yield opened
    opened.close()


def base(viewer: Viewer) -> str:
    return viewer.url.partition("?")[0]


def test_the_token_leaves_the_address_and_is_kept_for_reloads_tabs_and_bookmarks(
    viewer: Viewer, run_ids: tuple[str, ...], open_page: Callable[..., Any]
) -> None:
    page = open_page(f"{viewer.url}#/run/{run_ids[0]}/turn/2")
    expect(page.locator(".tree .node").first).to_be_visible()
    assert page.url == f"{base(viewer)}#/run/{run_ids[0]}/turn/2"
    page.reload()
    expect(page.locator(".tree .node").first).to_be_visible()
    bookmarked = open_page(page.url)
    expect(bookmarked.locator(".tree .node").first).to_be_visible()
    bookmarked.goto(base(viewer))
    with bookmarked.context.expect_page() as tab:
        bookmarked.locator(".run-row:not(.head) a").first.click(modifiers=["ControlOrMeta"])
    expect(tab.value.locator(".tree .node").first).to_be_visible()
    assert page.context.cookies() == []
    for each in (page, bookmarked, tab.value):
        each.close()


@pytest.mark.parametrize("place", ["", "#/run/{run}", "#/report", "#/search?q=a", "#/play"])
def test_a_browser_without_the_token_is_told_what_to_do(
    viewer: Viewer, run_ids: tuple[str, ...], context: Any, place: str
) -> None:
    page = context.new_page()
    page.goto(base(viewer) + place.format(run=run_ids[0]))
    expect(page.locator("main")).to_contain_text(REFUSED)
    expect(page.locator("header")).to_contain_text("no access")


def test_a_page_of_a_server_that_was_started_anew_says_so_and_works_again_at_the_new_address(
    tmp_path: Path, context: Any
) -> None:
    path = tmp_path / "runs.db"
    record_durable_run(path, "first")
    page = context.new_page()
    with Viewer(path, port=0) as before:
        page.goto(before.url)
        expect(page.locator(".run-row:not(.head)")).to_have_count(1)
    with Viewer(path, port=before.port) as after:
        # The browser waits some seconds before it connects again.
        expect(page.locator("header")).to_contain_text("no access", timeout=30_000)
        page.reload()
        expect(page.locator("main")).to_contain_text(REFUSED)
        context.new_page().goto(after.url)
        page.reload()
        expect(page.locator(".run-row:not(.head)")).to_have_count(1)


def test_a_viewer_without_a_playground_says_how_to_get_one(viewer: Viewer, open_page: Callable[..., Any]) -> None:
    page = open_page(f"{viewer.url}#/play")
    expect(page.locator("main")).to_contain_text("start a playground with wink play module:template")
    page.close()


def test_an_exported_page_needs_no_token_and_keeps_none(
    runs: Path, run_ids: tuple[str, ...], open_page: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "run.html"
    file.write_text(export_run(runs, run_ids[0]), encoding="utf-8")
    page = open_page(f"{file.as_uri()}?token=abc")
    expect(page.locator(".tree .node").first).to_be_visible()
    assert page.evaluate("localStorage.getItem('wink-token')") is None
    page.close()
