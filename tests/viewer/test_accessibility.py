"""No page has a serious fault for people who use a keyboard or a screen reader, by axe-core in a real browser."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.npm_support import NpmModules
from tests.viewer.axe import faults
from tests.viewer.playground import paying, shop
from weakincentives.telemetry import record
from weakincentives.viewer import Viewer

expect = pytest.importorskip(
    "playwright.sync_api", reason="needs playwright: pip install 'weakincentives[test-full]'"
).expect


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 390)])
def test_pages_have_no_serious_fault(
    viewer: Viewer,
    run_ids: Sequence[str],
    open_page: Callable[..., Any],
    npm_modules: NpmModules,
    scheme: str,
    width: int,
) -> None:
    run = f"#/run/{run_ids[0]}"
    places = {
        "#/": ".run-row:not(.head)",
        "#/?group=prompt": ".group-row:not(.head)",
        f"{run}/turn/5?section=logs": ".message",
        f"{run}/turn/1?part=prompt": ".piece",
        f"{run}/turn/4?part=tools": ".offered",
        f"{run}/disclosure": ".lane",
        f"{run}/ledger": ".stroke",
        f"{run}/events?event=3": ".json-key",
        f"#/compare?a={run_ids[0]}:4&b={run_ids[2]}:4": ".diff",
        "#/search?q=coupons": ".hit",
        "#/report": ".advice",
    }
    page = open_page(viewer.url)
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    found = []
    for place, content in places.items():
        page.goto(viewer.url + place)
        expect(page.locator(content).first).to_be_visible()
        found += [f"{place} {fault}" for fault in faults(page, npm_modules)]
    assert found == [], "\n".join(found)


SIZES = {"wide": (1440, 900), "half": (720, 900), "zoomed to 200%": (720, 450), "phone": (390, 844)}


def test_the_playground_fits_every_size_and_has_no_fault(
    open_page: Callable[..., Any], npm_modules: NpmModules, tmp_path: Path
) -> None:
    path = tmp_path / "runs.db"
    with record(path), Viewer(path, port=0, playground=shop(tmp_path)) as playing:
        page = open_page(f"{playing.url}#/play")
        page.get_by_label("Add to orders").click()
        page.get_by_label("address").check()
        page.locator('.node[data-section="stock"]').get_by_role("radio", name="in full").check()
        expect(page.locator(".unknown")).to_be_visible()
        expect(page.get_by_role("button", name="Run", exact=True)).to_be_in_viewport()
        found = []
        for (name, (width, height)), scheme in zip(SIZES.items(), ("light", "dark", "light", "dark"), strict=True):
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": height})
            for side in ("Sections", "Text", "Params and run"):
                if (tab := page.get_by_role("button", name=side, exact=True)).is_visible():
                    tab.click()
                found += [f"{name}, {side}: {fault}" for fault in faults(page, npm_modules)]
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                if width > 1180:
                    break
            page.get_by_role("button", name="Run", exact=True).scroll_into_view_if_needed()
            expect(page.get_by_role("button", name="Run", exact=True)).to_be_in_viewport()
        page.set_viewport_size({"width": 1440, "height": 900})
        page.get_by_label("Edit Question").click()
        page.get_by_label("Text", exact=True).fill("Be brief.")
        found += faults(page, npm_modules)
        assert found == [], "\n".join(found)
        page.close()


@pytest.mark.parametrize("width", [1440, 390])
def test_a_question_has_no_serious_fault(
    open_page: Callable[..., Any], npm_modules: NpmModules, tmp_path: Path, width: int
) -> None:
    path = tmp_path / "runs.db"
    with record(path), Viewer(path, port=0, playground=paying(tmp_path)) as playing:
        page = open_page(f"{playing.url}#/play")
        page.set_viewport_size({"width": width, "height": 900})
        if width < 700:
            page.get_by_role("button", name="Params and run").click()
        page.get_by_role("button", name="Run", exact=True).click()
        page.get_by_role("button", name="Deny", exact=True).click()
        expect(page.locator(".decide textarea")).to_be_visible()
        found = faults(page, npm_modules)
    assert found == [], "\n".join(found)
