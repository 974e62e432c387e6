"""Build the documentation site from docs/ and the docstrings: `python -m scripts.site [FOLDER]`, by default into site/.

The reference has a page for each package front, made from its docstrings. The search ranks guides before the reference
(site_assets/search.js) and works without a server, from a folder on disk as well. A link or anchor that leads nowhere
fails the build.

The generator is pinned exactly, because its worker for searching and one template of its reference are exchanged.
"""

from __future__ import annotations

import inspect
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import weakincentives
from scripts.diagrams import drawn
from scripts.llms import INDEX, ROOT, chapters, tagline

REMOTE = "https://unpkg.com/iframe-worker/shim"
NAME_IN_HEADER = re.compile(r'(<div class="md-header__topic">\s*<span class="md-ellipsis">\s*weakincentives)')
EDIT_LINK = re.compile(r'<a href="[^"]*/edit/[^"]*"[^>]*>.*?</a>', re.DOTALL)
ASSETS = Path(__file__).parent / "site_assets"  # the style of our pages, and iframe-worker 1.0.4 from npm

# The package fronts in the order in which a reader meets them.
FRONTS = (
    "prompt",
    "session",
    "resources",
    "filesystem",
    "limits",
    "content",
    "runtime",
    "adapters",
    "adapters.local",
    "adapters.openai",
    "adapters.anthropic",
    "adapters.openai_chat",
    "adapters.litellm",
    "adapters.claude_agent_sdk",
    "adapters.scripted",
    "guards",
    "tools",
    "contrib.tools",
    "skills",
    "mcp",
    "ui",
    "telemetry",
    "evals",
    "durable",
    "viewer",
    "clock",
    "serde",
    "errors",
)

# The names that most programs use; they come first on their package's page.
MAIN = (
    "MarkdownSection",
    "PromptTemplate",
    "Prompt",
    "SectionVisibility",
    "tool",
    "Tool",
    "ToolContext",
    "ToolResult",
    "run",
    "Conversation",
    "MainLoop",
    "PromptResponse",
    "Session",
    "Snapshot",
    "Budget",
    "Deadline",
)


def main(argv: list[str]) -> int:
    target = Path(argv[0] if argv else ROOT / "site").resolve()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        shutil.copytree(INDEX.parent, work / "docs")
        for page in (work / "docs").rglob("*.md"):
            page.write_text(drawn(page.read_text(encoding="utf-8")), encoding="utf-8")
        shutil.copytree(ASSETS, work / "docs" / "assets", ignore=shutil.ignore_patterns("search*"))
        templates = work / "templates" / "python" / "material"
        templates.mkdir(parents=True)
        (templates / "signature.html.jinja").write_text(signature_template(), encoding="utf-8")
        api = work / "docs" / "api"
        api.mkdir()
        (api / "weakincentives.md").write_text(front_door(), encoding="utf-8")
        for front in FRONTS:
            (api / f"{front}.md").write_text(reference(front), encoding="utf-8")
        (work / "zensical.toml").write_text(configuration(), encoding="utf-8")
        built = subprocess.run([sys.executable, "-m", "zensical", "build", "--strict"], cwd=work, check=False)
        if built.returncode == 0:
            localize(work / "site")
            exchange_search(work / "site")
            index_glossary(work / "site")
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(work / "site", target)
            print(f"wrote {target}")
    return built.returncode


def reference(front: str) -> str:
    """The page of a package: what it is, then its public names: the main ones, the front door's, others, and errors."""
    name = f"weakincentives.{front}"
    package = import_module(name)
    at_the_front = _exported(weakincentives)

    def place(exported: str) -> tuple[bool, int, bool]:
        main = MAIN.index(exported) if exported in MAIN else len(MAIN)
        return _is_error(getattr(package, exported)), main, exported not in at_the_front

    hidden = ("members", "show_root_heading", "show_root_toc_entry")
    about = "\n".join([f"::: {name}", "    options:", *(f"      {option}: false" for option in hidden)])
    public = sorted(_exported(package), key=place)
    return "\n\n".join([f"# {name}", about, *(f"::: {name}.{exported}" for exported in public)]) + "\n"


def front_door() -> str:
    """The page of `from weakincentives import ...`: each name in one line, with a link to its package's page."""
    public = sorted(_exported(weakincentives), key=str.lower)
    errors = [name for name in public if _is_error(getattr(weakincentives, name))]
    rest = [name for name in public if name not in MAIN and name not in errors]
    homes = {name: front for front in FRONTS[::-1] for name in _exported(import_module(f"weakincentives.{front}"))}
    lines = ["# weakincentives", "", "The names that `from weakincentives import ...` offers.", ""]
    for title, names in (("Main names", MAIN), ("More", rest), ("Errors", errors)):
        lines += [f"## {title}", "", "| name | |", "|---|---|"]
        for name in names:
            home = homes.get(name)
            linked = f"[`{name}`]({home}.md#weakincentives.{home}.{name})" if home else f"`{name}`"
            lines.append(f"| {linked} | {_first_line(getattr(weakincentives, name))} |")
        lines.append("")
    return "\n".join(lines)


def repository(urls: Mapping[str, str]) -> str:
    """The settings for links to the repository and for editing a page, if the project's URLs name one."""
    for name, url in urls.items():
        if name.lower() in ("repository", "source", "source code"):
            return f'repo_url = {json.dumps(url)}\nedit_uri = "edit/main/docs/"\n'
    return ""


def project_urls() -> Mapping[str, str]:
    """The URLs in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    urls: Mapping[str, str] = project.get("urls", {})
    return urls


def signature_template() -> str:
    """The theme's template of a signature, with a comma behind the last of several parameters.

    A formatter then writes each parameter on its own line.
    """
    spec = find_spec("mkdocstrings_handlers.python")
    folder = Path(str(spec.origin)).parent if spec is not None else Path()
    text = (folder / "templates" / "material" / "_base" / "signature.html.jinja").read_text(encoding="utf-8")
    before = "{%- if not loop.last %}, {% endif -%}"
    own = "function.parameters|map(attribute='name')|reject('in', ['self', 'cls'])|list|length"
    if text.count(before) != 1:
        raise SystemExit("The template of signatures has changed: adapt signature_template() in scripts/site.py.")
    return text.replace(before, f"{{%- if not loop.last or {own} > 1 %}}, {{% endif -%}}")


def _entries(pages: list[tuple[str, str, str]]) -> str:
    return ", ".join(f"{{ {json.dumps(title)} = {json.dumps(name)} }}" for title, name, _ in pages)


def _exported(package: ModuleType) -> list[str]:
    """The public names of a package front, or the classes of a module without one."""
    own = (name for name, each in vars(package).items() if getattr(each, "__module__", "") == package.__name__)
    return list(getattr(package, "__all__", None) or (name for name in own if not name.startswith("_")))


def _is_error(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, BaseException)


def _first_line(found: object) -> str:
    described = isinstance(found, type) or callable(found)
    return (inspect.getdoc(found) or "").partition("\n")[0].replace("|", "\\|") if described else ""


def localize(site: Path) -> None:
    """Bring the one script that the pages would load from a server: it lets the search work from a folder on disk.

    Empty links before lines of code and empty headings of tables go, which a screen reader would read out. Pages of the
    reference are made from the code, so they have no link to edit them. The header says which version they describe.
    """
    version = f'<span class="version">{weakincentives.__version__}</span>'
    for page in site.rglob("*.html"):
        parts = page.relative_to(site).parent.parts
        text = page.read_text(encoding="utf-8").replace(REMOTE, f"{'../' * len(parts)}assets/iframe-worker.js")
        text = re.sub(r'<a id="__codelineno-[^>]*></a>', "", text).replace("<th></th>", "<td></td>")
        text = NAME_IN_HEADER.sub(rf"\1 {version}", text, count=1)
        # The theme would ask GitHub how popular the repository is.
        text = text.replace(' data-md-component="source"', "")
        if parts[:1] == ("api",):
            text = EDIT_LINK.sub("", text)
        page.write_text(text, encoding="utf-8")


def exchange_search(site: Path) -> None:
    """Put our search in the place of the theme's, with the words that have one meaning."""
    workers = list((site / "assets" / "javascripts" / "workers").glob("search.*.min.js"))
    if len(workers) != 1:
        raise SystemExit(f"There should be one worker for searching, got {workers}: adapt scripts/site.py.")
    words = json.loads((ASSETS / "search_words.json").read_text(encoding="utf-8"))
    script = (ASSETS / "search.js").read_text(encoding="utf-8")
    place = "/* words */ { stop: [], synonyms: [] }"
    if place not in script:
        raise SystemExit(f"search.js has no {place!r}")
    workers[0].write_text(script.replace(place, json.dumps(words)), encoding="utf-8")


def index_glossary(site: Path) -> None:
    """Let the search find each word of the glossary, which stands in the row of a table."""
    file = site / "reference" / "glossary.html"
    page = file.read_text(encoding="utf-8")
    items = []

    def with_anchor(row: re.Match[str]) -> str:
        words = re.findall(r"<strong>(.*?)</strong>", row[1])
        anchor = "word-" + re.sub(r"[^a-z0-9]+", "-", words[0].lower()).strip("-")
        items.append(
            {
                "location": f"reference/glossary.html#{anchor}",
                "level": 2,
                "title": ", ".join(words),
                "text": f"<p>{row[2]}</p>",
                "path": ["Documentation", "Reference", "Glossary"],
                "tags": [],
            }
        )
        return f'<tr id="{anchor}"><td>{row[1]}</td><td>{row[2]}</td></tr>'

    page = re.sub(r"<tr>\s*<td>(<strong>.*?)</td>\s*<td>(.*?)</td>\s*</tr>", with_anchor, page, flags=re.DOTALL)
    file.write_text(page, encoding="utf-8")
    index = json.loads((site / "search.json").read_text(encoding="utf-8"))
    index["items"] += items
    text = json.dumps(index)
    (site / "search.json").write_text(text, encoding="utf-8")
    (site / "search.js").write_text(f"var __index = {text}", encoding="utf-8")


def configuration() -> str:
    """The generator's settings; JSON strings and lists are TOML too."""
    pages = ", ".join(f"{{ {json.dumps(title)} = [{_entries(listed)}] }}" for title, listed in chapters())
    fronts = ", ".join(
        f"{{ {json.dumps(front)} = {json.dumps(f'api/{front}.md')} }}" for front in ("weakincentives", *FRONTS)
    )
    return f"""\
[project]
site_name = "weakincentives"
site_description = {json.dumps(tagline())}
{repository(project_urls())}extra_css = ["assets/site.css"]
nav = [{{ "Documentation" = ["index.md", {pages}] }}, {{ "API reference" = [{fronts}] }}]

[project.theme]
font = false
features = [
    "navigation.tabs", "navigation.top", "navigation.footer", "content.code.copy", "content.action.edit",
    "search.highlight", "toc.follow",
]

[[project.theme.palette]]
media = "(prefers-color-scheme)"
toggle.icon = "lucide/sun-moon"
toggle.name = "Switch to light mode"

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
toggle.icon = "lucide/sun"
toggle.name = "Switch to dark mode"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
toggle.icon = "lucide/moon"
toggle.name = "Follow the system"

[project.plugins.offline]

[project.plugins.mkdocstrings]
custom_templates = "templates"

[project.plugins.mkdocstrings.handlers.python]
paths = [{json.dumps(str(ROOT / "src"))}]

[project.plugins.mkdocstrings.handlers.python.options]
show_source = false
show_root_heading = true
show_root_full_path = false
heading_level = 2
members_order = "source"
merge_init_into_class = true
filters = "public"
show_bases = false
extensions = [{json.dumps(str(Path(__file__).with_name("fields.py")))}]
separate_signature = true
show_signature_annotations = true
line_length = 100
"""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
