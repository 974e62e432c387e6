"""Take the pictures of the viewer that the README and the documentation show, from recorded runs.

Needs the extras [viewer] and [test-full], and Chromium; with the fonts Inter and JetBrains Mono they look as published:

    apt-get install chromium fonts-inter fonts-jetbrains-mono
    python scripts/screenshots.py [folder]
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Locator, Page, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.viewer_runs import on_call_template, record_runs
from weakincentives.adapters.scripted import ScriptedAdapter
from weakincentives.prompt.overrides import JsonPromptOverridesStore
from weakincentives.telemetry import RunStore
from weakincentives.viewer import AdapterChoice, Playground, Viewer

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")
WINDOW = (1280, 800)
NARROW = (470, 900)
"""At this width, the letters are still legible where a page shows the picture on a phone."""


@dataclass(frozen=True)
class Picture:
    """A place in the viewer, what to click there, and what has to be there before it is taken."""

    name: str
    place: str
    wait_for: str
    dark: bool = False
    click: str = ""
    window: tuple[int, int] = WINDOW


PICTURES = [
    Picture("list", "", ".run-row .openings"),
    Picture("turn", "run/{newest}/turn/4", ".message.tools_added"),
    Picture("narrow", "run/{newest}/turn/4", ".message.tools_added", window=NARROW),
    Picture("rollback", "run/{newest}/turn/5?section=deployments", ".call.failed", dark=True),
    Picture("disclosure", "run/{newest}/disclosure", ".steps-list li >> nth=3"),
    Picture("ledger", "run/{newest}/ledger", ".chart .area"),
    Picture("play", "play", ".fresh-piece", click='.node[data-section="logs"] .switch label:last-child'),
]


def main(argv: list[str]) -> int:
    folder = Path(argv[0]) if argv else IMAGES
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as driver:
        path = Path(temporary) / "runs.db"
        record_runs(path)
        with RunStore(path) as store:
            newest = store.list_runs(1)[0].run_id
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=[*FLAGS])
        playground = Playground(
            on_call_template(),
            adapters=[AdapterChoice("scripted")],
            make_adapter=lambda name: ScriptedAdapter(["Done."], model="gpt-5.2", tool_route="additional_tools"),
            overrides=JsonPromptOverridesStore(Path(temporary) / "overrides"),
        )
        with Viewer(path, port=0, playground=playground) as viewer:
            for picture in PICTURES:
                context = browser.new_context(
                    viewport={"width": picture.window[0], "height": picture.window[1]},
                    color_scheme="dark" if picture.dark else "light",
                    device_scale_factor=2 if picture.window == NARROW else 1,
                )
                page = context.new_page()
                page.goto(f"{viewer.url}#/{picture.place.format(newest=newest)}")
                take(page, picture, folder / f"viewer-{picture.name}.png")
                context.close()
        browser.close()
    return 0


def take(page: Page, picture: Picture, target: Path) -> None:
    if picture.click:
        page.locator(picture.click).click()
    page.locator(picture.wait_for).first.wait_for()
    page.evaluate("document.fonts.ready")
    shown: Page | Locator = page.locator("main") if picture.window == NARROW else page
    shown.screenshot(path=target, animations="disabled")
    print(f"{target} ({target.stat().st_size // 1000} KB)")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
