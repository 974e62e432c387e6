"""Texts that try to become something else, in the browser and in an exported file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.viewer.hostile import END, IMAGE, NESTED, SCRIPT, record_hostile_run, record_nested_run
from weakincentives.telemetry import RunStore
from weakincentives.viewer import Viewer, export_run

if TYPE_CHECKING:
    from playwright.sync_api import Page

playwright = pytest.importorskip(
    "playwright.sync_api", reason="needs playwright: pip install 'weakincentives[test-full]'"
)
expect = playwright.expect


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    path = tmp_path_factory.mktemp("hostile") / "runs.db"
    record_hostile_run(path)
    with RunStore(path) as store:
        return path, store.list_runs()[0].run_id


def look_at_everything(page: Page, base: str, run_id: str) -> None:
    expect(page.locator(".piece").first).to_contain_text(SCRIPT)
    expect(page.locator(".piece").first).to_contain_text(IMAGE)
    expect(page.locator(".piece").first).to_contain_text("␛[31mred␛[0m␇␀")
    expect(page.locator(".piece").first).to_contain_text("user⟨U+202E⟩gnp.exe")
    expect(page.locator(".reply")).to_contain_text("half a pair: ⟨U+D83D⟩")
    expect(page.locator(".call")).to_contain_text(SCRIPT)
    assert len(page.locator(".piece").nth(1).inner_text()) < 10_000
    page.locator(".piece").nth(1).locator(".more").click()
    expect(page.locator(".piece").nth(1)).to_contain_text("more)")
    for place in (f"run/{run_id}/turn/2", f"run/{run_id}/events?event=1", f"compare?a={run_id}:1&b={run_id}:2"):
        page.goto(f"{base}#/{place}")
        expect(page.locator("main .page")).to_be_visible()
        expect(page.locator("main .text").first).to_be_visible()
    page.goto(f"{base}#/search?q=onerror")
    expect(page.locator(".hit").first).to_contain_text("onerror")
    assert page.evaluate("window.pwned") is None
    assert page.locator("main img, main script, main b, main iframe").count() == 0


def test_hostile_texts_stay_texts(hostile: tuple[Path, str], open_page: Callable[..., Any]) -> None:
    path, run_id = hostile
    with Viewer(path, port=0) as viewer:
        page = open_page(f"{viewer.url}#/run/{run_id}/turn/1")
        look_at_everything(page, viewer.url, run_id)
        page.goto(viewer.url)
        expect(page.locator(".run-row:not(.head)")).to_contain_text(SCRIPT)
        with RunStore(path) as store:
            conversation = store.run(run_id).conversation_id
        page.goto(f"{viewer.url}#/conversation?id={conversation}")
        page.locator(".exchange-foot button").click()
        expect(page.locator(".exchange")).to_contain_text(SCRIPT)
        expect(page.locator(".chat-turns li").first).to_contain_text("tokens sent")
        assert page.evaluate("window.pwned") is None
        assert page.locator("main img, main script, main b, main iframe").count() == 0
        page.close()


def test_hostile_texts_stay_texts_in_an_exported_file(
    hostile: tuple[Path, str], open_page: Callable[..., Any], tmp_path: Path
) -> None:
    path, run_id = hostile
    file = tmp_path / "run.html"
    file.write_text(export_run(path, run_id), encoding="utf-8")
    page = open_page(f"{file.as_uri()}#/run/{run_id}/turn/1")
    look_at_everything(page, file.as_uri(), run_id)


@pytest.fixture(scope="module", params=["served", "exported"])
def nested(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a run whose turns say and return nested texts."""
    folder = tmp_path_factory.mktemp("nested")
    record_nested_run(folder / "runs.db")
    with RunStore(folder / "runs.db") as store:
        run_id = store.list_runs()[0].run_id
    if request.param == "exported":
        file = folder / "run.html"
        file.write_text(export_run(folder / "runs.db", run_id), encoding="utf-8")
        yield f"{file.as_uri()}#/run/{run_id}"
    else:
        with Viewer(folder / "runs.db", port=0) as viewer:
            yield f"{viewer.url}#/run/{run_id}"


def test_texts_nested_in_themselves_are_shown_to_their_end(nested: str, open_page: Callable[..., Any]) -> None:
    page = open_page(f"{nested}/turn/1")
    for turn, name in enumerate(NESTED, start=1):
        page.evaluate("hash => (location.hash = hash)", f"{nested.partition('#')[2]}/turn/{turn}")
        for place in (".outcome .reply", ".outcome .call > .code >> nth=-1"):
            shown = page.locator(place)
            expect(shown.locator(".more").or_(shown.get_by_text(f"{END} {turn}.")).first, name).to_be_visible(
                timeout=30_000
            )
            while shown.locator(".more").count():
                shown.locator(".more").first.click()
            expect(shown, name).to_contain_text(f"{END} {turn}.", timeout=30_000)
    page.close()
