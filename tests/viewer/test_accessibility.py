"""Every page at 1440, 720 and 390 pixels and at 200%: nothing reaches beyond the window, no number is cut, axe agrees.

At 200% the zoom is the browser's own, as if a person had chosen it in the menu.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from scripts.viewer_runs import INVESTIGATION, investigate, line, record_runs
from scripts.viewer_talk import record_talk
from tests.browser import FLAGS, chromium
from tests.evals.shop import CASES, adapter, shop as refunds
from tests.npm_support import NpmModules
from tests.rounds import rounds
from tests.viewer.axe import faults
from tests.viewer.playground import paying, shop
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.evals import contains, evaluate
from weakincentives.telemetry import RunStore, record
from weakincentives.viewer import Viewer
from weakincentives.viewer.evaluations import evaluations

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

pytestmark = pytest.mark.limit(180)
expect = pytest.importorskip(
    "playwright.sync_api", reason="needs playwright: pip install 'weakincentives[test-full]'"
).expect

# Width, height, colours and zoom.
WINDOWS: dict[str, tuple[int, int, Any, int]] = {
    "1440": (1440, 900, "light", 1),
    "720": (720, 900, "dark", 1),
    "390": (390, 844, "dark", 1),
    "200%": (1440, 900, "light", 2),
}


Look = Callable[[], list[str]]
# Where axe looks: at each colour scheme once, and under --long everywhere. What fits is measured in each window.
LOOKED_AT = rounds(["1440", "390"], [*WINDOWS])


@pytest.fixture(params=WINDOWS)
def window(request: pytest.FixtureRequest, browser: Browser, tmp_path: Path) -> Iterator[Page]:
    """A page in a window of one of the sizes."""
    width, height, scheme, zoom = WINDOWS[request.param]
    with closing(zoomed(browser, zoom, tmp_path) if zoom > 1 else browser.new_context()) as context:
        context.set_default_timeout(10_000)
        page = context.pages[0] if context.pages else context.new_page()
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme)
        page.goto("about:blank")
        assert page.evaluate("[devicePixelRatio, innerWidth, innerHeight]") == [zoom, width // zoom, height // zoom]
        yield page


def zoomed(browser: Browser, zoom: int, folder: Path) -> BrowserContext:
    """A browser whose settings enlarge every page."""
    profile = folder / "profile" / "Default"
    profile.mkdir(parents=True)
    # The default zoom of Chromium's settings; each step is 20%.
    level = math.log(zoom) / math.log(1.2)
    (profile / "Preferences").write_text(json.dumps({"partition": {"default_zoom_level": {"x": level}}}))
    # Without a window there are no such settings: chromium-headless-shell does not do.
    program = chromium("chromium")
    return browser.browser_type.launch_persistent_context(profile.parent, executable_path=program, args=FLAGS)


@pytest.fixture
def look(request: pytest.FixtureRequest, window: Page, npm_modules: NpmModules) -> Look:
    """The faults of the page: what is cut, and what axe finds."""
    is_looked_at = request.node.callspec.params["window"] in LOOKED_AT

    def faults_of_the_page() -> list[str]:
        return [*window.evaluate(CUT), *(faults(window, npm_modules) if is_looked_at else ())]

    return faults_of_the_page


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of all kinds, a conversation with its fork, and two evaluations."""
    path = tmp_path_factory.mktemp("recorded") / "runs.db"
    record_runs(path)
    other = [*INVESTIGATION[:4], line("Roll it back.", call("roll_back", service="checkout", version="2026.11.14-3"))]
    investigate(path, [*other, *INVESTIGATION[6:]], ago=300, model="gpt-5.4-mini")
    record_talk(path)
    evaluate(CASES, refunds(), adapter(), [contains()], name="before", file=path)
    lost = ScriptedAdapter(lambda request: "I do not know.")
    evaluate(CASES, refunds("Refunds take a week."), lost, [contains()], name="after", file=path)
    return path


def places(path: Path) -> dict[str, str]:
    """The address of every page, with an element that says that it is there."""
    with RunStore(path) as store:
        one, other, *_ = (run.run_id for run in store.list_runs(prompt="on-call"))
        asked = {run.question.split(" ")[0]: run for run in store.list_runs(100)}
        after, before = (each["id"] for each in evaluations(store)["evaluations"])
    lid = asked["The"].run_id
    return {
        "#/": ".run-row:not(.head)",
        "#/?group=prompt": ".group-row:not(.head)",
        "#/?group=conversation": ".group-row:not(.head)",
        f"#/conversation?id={asked['The'].conversation_id}": ".exchange",
        f"#/run/{one}/turn/5?section=logs": ".message",
        f"#/run/{one}/turn/1?part=prompt": ".piece",
        f"#/run/{one}/turn/4?part=tools": ".offered",
        f"#/run/{lid}/turn/2": ".message",
        f"#/run/{asked['Tell'].run_id}": ".message",
        f"#/run/{asked['I'].run_id}": ".waiting-calls .line.new",
        f"#/run/{one}/disclosure": ".lane",
        f"#/run/{lid}/disclosure": ".lane",
        f"#/run/{one}/ledger": ".stroke",
        f"#/run/{lid}/events": ".undone-event",
        f"#/run/{one}/events?event=3": ".json-key",
        f"#/compare?a={one}&b={other}": ".two-runs",
        f"#/compare?a={one}:3&b={one}:4": ".diff",
        "#/search?q=coupons": ".hit",
        "#/report": ".advice",
        "#/evals": ".sheet.evals a",
        f"#/evals?b={after}": ".sheet.cases a",
        f"#/evals?a={before}&b={after}": ".sheet.pairs a",
    }


def test_every_page_fits_and_has_no_serious_fault(window: Page, recorded: Path, look: Look) -> None:
    found = []
    with Viewer(recorded, port=0) as viewer:
        for place, content in places(recorded).items():
            window.goto(viewer.url + place)
            expect(window.locator(content).first).to_be_attached()
            for folded in window.get_by_role("button", name="to keep as they are").all():
                folded.click()
            found += [f"{place}: {fault}" for fault in look()]
    assert found == [], "\n".join(found)


def test_the_playground_fits_and_has_no_serious_fault(window: Page, tmp_path: Path, look: Look) -> None:
    path, found = tmp_path / "runs.db", []
    with record(path), Viewer(path, port=0, playground=shop(tmp_path)) as playing:
        window.goto(f"{playing.url}#/play")
        expect(window.locator(".play-tree .node").first).to_be_attached()
        run = window.get_by_role("button", name="Run", exact=True)
        for side in ("Params and run", "Sections", "Text"):
            if (tab := window.get_by_role("button", name=side, exact=True)).is_visible():
                tab.click()
            if (add := window.get_by_label("Add to orders")).is_visible():
                run.scroll_into_view_if_needed()
                expect(run).to_be_in_viewport()
                add.click()
                window.get_by_label("address").check()
            if (edit := window.get_by_label("Edit Question")).is_visible():
                window.locator('.node[data-section="stock"]').get_by_role("radio", name="in full").check()
                edit.click()
                window.get_by_label("Text", exact=True).fill("Be brief.")
                found += look()
                window.get_by_label("Close the editor").click()
            found += [f"{side}: {fault}" for fault in look()]
    assert found == [], "\n".join(found)


def test_a_decision_fits_and_has_no_serious_fault(window: Page, tmp_path: Path, look: Look) -> None:
    path = tmp_path / "runs.db"
    with record(path), Viewer(path, port=0, playground=paying(tmp_path)) as playing:
        window.goto(f"{playing.url}#/play")
        expect(window.locator(".play-tree .node").first).to_be_attached()
        if (tab := window.get_by_role("button", name="Params and run")).is_visible():
            tab.click()
        window.get_by_role("button", name="Run", exact=True).click()
        window.get_by_role("button", name="Deny", exact=True).click()
        expect(window.locator(".decide textarea")).to_be_visible()
        found = look()
    assert found == [], "\n".join(found)


@pytest.mark.parametrize("window", ["200%"], indirect=True)
def test_a_page_at_200_percent_scrolls_as_a_whole(window: Page, recorded: Path) -> None:
    with RunStore(recorded) as store:
        run_id = store.list_runs(prompt="on-call")[0].run_id
    with Viewer(recorded, port=0) as viewer:
        window.goto(f"{viewer.url}#/run/{run_id}/turn/2")
        expect(window.locator(".message").first).to_be_visible()
        tall = window.evaluate("document.querySelector('.request .panel-body').clientHeight")
        scrolls = window.locator("main").evaluate("main => main.scrollHeight - main.clientHeight")
    assert tall > 200 and scrolls > 200


# What reaches beyond the window, and short texts with a number of which a part is hidden by a box around them.
CUT = r"""() => {
    const out = new Set();
    const { scrollWidth } = document.documentElement;
    if (scrollWidth > innerWidth) out.add(`the page is ${scrollWidth} wide`);
    for (const main of document.querySelectorAll("main, .page, .playing, .scroll")) {
        const { className, scrollWidth, clientWidth } = main;
        if (scrollWidth > clientWidth + 1) out.add(`${className || "main"} has ${scrollWidth} in ${clientWidth}`);
    }
    const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
    const range = document.createRange();
    for (let text = texts.nextNode(); text; text = texts.nextNode()) {
        if (text.data.length > 24 || !/\d/.test(text.data)) continue;
        const holder = text.parentElement;
        if (!holder.checkVisibility() || holder.closest("svg, pre, .text, .hush, option, .ellipsis")) continue;
        range.selectNode(text);
        const { left, right } = range.getBoundingClientRect();
        for (let box = holder; box && box !== document.body; box = box.parentElement) {
            const around = box.getBoundingClientRect();
            const { clipPath, overflowX } = getComputedStyle(box);
            if (clipPath !== "none") break;
            const cut = overflowX !== "visible" && (left < around.left - 1 || right > around.right + 1);
            if (cut) out.add(`“${text.data.trim()}” is cut by .${box.className}`);
        }
    }
    return [...out].slice(0, 5);
}"""
