"""The documentation site is built strictly, is complete, and needs no other server."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from html.parser import HTMLParser
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pytest

import weakincentives
from scripts.site import FRONTS, MAIN, repository
from tests.browser import browser as browser
from tests.npm_support import NpmModules
from tests.rounds import rounds
from tests.viewer.axe import faults

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


class Links(HTMLParser):
    """The links of a page, and what can be linked to in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        loads = [given["src"]] if "src" in given else [given["href"]] if tag == "link" and "href" in given else []
        self.loads += loads
        self.links += loads or ([given["href"]] if tag == "a" and "href" in given else [])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("zensical", "mkdocstrings"):
        pytest.importorskip(package, reason="needs the extra [docs]")
    folder = tmp_path_factory.mktemp("site") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "scripts.site", folder], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Links]:
    return {path: Links(path) for path in site.rglob("*.html")}


def test_every_link_and_anchor_leads_somewhere(site: Path, pages: dict[Path, Links]) -> None:
    def broken(path: Path, page: Links) -> Iterator[str]:
        for link in page.links:
            parts = urlsplit(link)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if parts.scheme or path.name == "404.html":
                continue
            if not target.exists() or (
                target in pages and parts.fragment and parts.fragment not in pages[target].anchors
            ):
                yield f"{path.relative_to(site)}: {link}"

    assert [link for path, page in pages.items() for link in broken(path, page)] == []


def test_pages_link_to_the_repository_if_the_project_names_it() -> None:
    home = {"Homepage": "https://example.com"}
    settings = 'repo_url = "https://example.com/git"\nedit_uri = "edit/main/docs/"\n'
    assert repository({**home, "Source": "https://example.com/git"}) == settings
    assert repository(home) == repository({}) == ""


def test_the_header_has_the_version_and_the_repository_and_guides_can_be_edited(site: Path) -> None:
    guide = (site / "start" / "prompts.html").read_text(encoding="utf-8")
    reference = (site / "api" / "prompt.html").read_text(encoding="utf-8")
    for page in (guide, reference):
        assert f'<span class="version">{weakincentives.__version__}</span>' in page
        assert 'class="md-source"' in page
    assert 'weakincentives/edit/main/docs/start/prompts.md"' in guide
    assert "/edit/main/" not in reference


def test_no_page_loads_anything_from_another_server(pages: dict[Path, Links]) -> None:
    assert {link for page in pages.values() for link in page.loads if urlsplit(link).netloc} == set()


def documented(made: type) -> bool:
    """Whether the class has a docstring, and not only the one that a dataclass is given."""
    return bool(made.__doc__) and not str(made.__doc__).startswith(f"{made.__name__}(")


def test_diagrams_are_drawn_and_chapters_lead_on(site: Path) -> None:
    texts = {path.stem: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    drawn = {name for name, text in texts.items() if '<figure class="diagram">' in text}
    assert drawn >= {"index", "glossary", "progressive-disclosure", "strategies", "approval", "durable-conversations"}
    for part in ("md-footer__link--prev", "md-footer__link--next", "Switch to dark mode"):
        assert part in texts["first-agent"]


@pytest.mark.parametrize("front", FRONTS)
def test_the_reference_has_every_documented_name_of_a_package(pages: dict[Path, Links], site: Path, front: str) -> None:
    module = import_module(f"weakincentives.{front}")
    public = getattr(module, "__all__", [])
    made = [name for name in public if isinstance(getattr(module, name), type) and documented(getattr(module, name))]
    anchors = pages[site / "api" / f"{front}.html"].anchors
    assert [name for name in made if f"weakincentives.{front}.{name}" not in anchors] == []


@pytest.mark.parametrize("front", FRONTS)
def test_the_reference_describes_every_field_of_a_dataclass(site: Path, front: str) -> None:
    module = import_module(f"weakincentives.{front}")
    text = (site / "api" / f"{front}.html").read_text(encoding="utf-8")
    name, kind = r'title="weakincentives\.[\w.]*?(\w+\.\w+)">\w+</span></code></td>', r"\s*<td>(?:(?!</td>).)*</td>"
    row = name + kind + r"\s*<td>\s*<div [^>]*>\s*<p>\S"
    described = set(re.findall(row, text, re.DOTALL))
    public = {name: getattr(module, name) for name in getattr(module, "__all__", [])}
    made = {name: each for name, each in public.items() if isinstance(each, type) and is_dataclass(each)}
    fields_of = {name: [each.name for each in fields(kind) if each.name[0] != "_"] for name, kind in made.items()}
    wanted = [f"{name}.{each}" for name, names in fields_of.items() for each in names]
    assert [each for each in wanted if each not in described] == []


@pytest.mark.parametrize("name", [name for name in MAIN if name not in ("SectionVisibility", "Snapshot")])
def test_the_reference_describes_every_parameter_of_the_main_names(site: Path, name: str) -> None:
    reference = "".join(path.read_text(encoding="utf-8") for path in (site / "api").glob("*.html"))
    found = re.search(rf'<h2 id="weakincentives\.\w+\.{name}".*?(?=<h[23] )', reference, re.DOTALL)
    assert found is not None
    rows = re.findall(r'<tr class="doc-section-item">(.*?)</tr>', found[0], re.DOTALL)
    texts = [re.sub(r"<[^>]+>", "", " ".join(re.findall(r"<p>(.*?)</p>", row, re.DOTALL))) for row in rows]
    assert texts and [text for text in texts if not text.endswith((".", "?"))] == []
    assert len(set(texts)) == len(texts), "two parameters have one sentence"


def test_the_reference_shows_what_a_constructor_takes(site: Path) -> None:
    def shown(page: str) -> str:
        return re.sub(r"<[^>]+>", "", (site / "api" / page).read_text(encoding="utf-8"))

    assert "max_turns: int | None" in shown("limits.html")
    assert "default_params: ParamsT_co | None" in shown("prompt.html")
    assert "Opens the section without the model" in shown("prompt.html")
    assert "read_only: bool = False," in shown("prompt.html"), "an overload of tool() lists its options"
    assert "at most 20." in shown("prompt.html")
    assert "\n    *,\n    template: str,\n    title: str,\n" in shown("prompt.html"), "one parameter per line"
    assert not re.search(r"Unpack\[|Annotated\[(?!int, \"the second number)|\{MAX_", shown("prompt.html"))
    assert shown("weakincentives.html").index("MarkdownSection") < shown("weakincentives.html").index("PromptTemplate")


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page()
    yield page
    page.close()


# What people typed, and pages of which one has to be the first or second result.
TYPED = {
    "how do I test my agent": ("tasks/test", "evaluate/testing"),
    "test my agent": ("tasks/test", "evaluate/testing"),
    "what does restart mean": ("reference/glossary",),
    "restart": ("reference/glossary",),
    "human in the loop": ("tasks/ask-first", "control/approval"),
    "add approval to a tool": ("tasks/ask-first", "control/approval"),
    "approval": ("control/approval",),
    "use vLLM": ("tasks/providers", "models/adapters"),
    "vLLM": ("tasks/providers", "models/adapters"),
    "keep a long chat cheap": ("conversations/long-conversations",),
    "200 exchanges": ("conversations/long-conversations",),
    "structured output": ("start/structured-output",),
    "undo a message": ("conversations/going-back",),
    "mock the model": ("tasks/test", "evaluate/testing"),
    "limit spending": ("tasks/limits",),
    "deploy with docker": ("operate/deploying",),
    "stream to a web page": ("tasks/web",),
    "save conversation": ("conversations/conversations",),
    "sub agent": ("control/delegation",),
    "compare two prompts": ("evaluate/evals",),
    "close a section": ("tasks/close-sections",),
    "resume after a crash": ("tasks/survive", "operate/durable-agents"),
    "PromptTemplate": ("api/prompt",),
}
# The first results, once they are the wanted ones or after five seconds; they stand in a shadow root.
FIRST_RESULTS = """async pages => {
    const links = [];
    const collect = node => {
        for (const element of node.querySelectorAll("*")) {
            if (element.shadowRoot) collect(element.shadowRoot);
            if (element.matches("a[role=option]")) links.push(element.href.split(/[?#]/)[0]);
        }
    };
    let first = [];
    for (let tries = 0; tries < 100; tries += 1) {
        links.length = 0;
        collect(document);
        first = links.slice(0, 2);
        if (pages === null ? first.length === 0 : pages.some(page => first.includes(page))) break;
        await new Promise(resume => setTimeout(resume, 50));
    }
    return first;
}"""


def test_the_search_finds_first_or_second_what_people_type(site: Path, page: Page) -> None:
    page.goto((site / "index.html").as_uri())
    page.keyboard.press("/")
    missed = {}
    for typed, names in TYPED.items():
        page.keyboard.press("Control+A")
        page.keyboard.press("Backspace")
        assert page.evaluate(FIRST_RESULTS, None) == []
        page.keyboard.type(typed)
        wanted = [(site / f"{name}.html").as_uri() for name in names]
        results = page.evaluate(FIRST_RESULTS, wanted)
        if set(results).isdisjoint(wanted):
            missed[typed] = results
    assert missed == {}


def test_a_page_asks_no_server_for_anything_while_it_is_read(site: Path, page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((site / "start" / "prompts.html").as_uri())
    page.keyboard.press("/")
    page.keyboard.type("section")
    assert page.evaluate(FIRST_RESULTS, [(site / "start" / "prompts.html").as_uri()])
    assert [url for url in asked if url.startswith(("http:", "https:"))] == []


def test_on_a_phone_diagrams_are_legible_and_no_page_scrolls_sideways(site: Path, page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    for name in (
        "evaluate/evals",
        "tools/hosted-tools",
        "models/provider-support",
        "disclosure/strategies",
        "api/prompt",
        "index",
    ):
        page.goto((site / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
    heights = "all => all.map(each => each.getBoundingClientRect().height)"
    assert min(page.locator(".diagram text").evaluate_all(heights)) >= 11


LOOKED_AT = [("start/first-agent", "light"), ("api/prompt", "dark")]
LOOKED_AT_LONG = [*product(["start/first-agent", "api/prompt"], ["light", "dark"])]


@pytest.mark.parametrize(("name", "colours"), rounds(LOOKED_AT, LOOKED_AT_LONG))
def test_pages_are_accessible(site: Path, page: Page, npm_modules: NpmModules, name: str, colours: str) -> None:
    page.emulate_media(color_scheme=colours)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto((site / f"{name}.html").as_uri())
    assert faults(page, npm_modules) == []
