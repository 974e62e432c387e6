"""Build the documentation site from docs/ and the docstrings: `python -m scripts.site [FOLDER]`, by default into site/.

The reference has a page for each package front, made from its docstrings. Search works without a server, from a folder
on disk as well. A link or anchor that leads nowhere fails the build.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.llms import INDEX, ROOT, listed, tagline

REMOTE = "https://unpkg.com/iframe-worker/shim"
ASSETS = Path(__file__).parent / "site_assets"  # iframe-worker 1.0.4 from npm

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
    "ui",
    "telemetry",
    "durable",
    "viewer",
    "errors",
)


def main(argv: list[str]) -> int:
    target = Path(argv[0] if argv else ROOT / "site").resolve()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        shutil.copytree(INDEX.parent, work / "docs")
        api = work / "docs" / "api"
        api.mkdir()
        for front in FRONTS:
            name = f"weakincentives.{front}"
            (api / f"{front}.md").write_text(f"# {name}\n\n::: {name}\n", encoding="utf-8")
        (work / "zensical.toml").write_text(configuration(), encoding="utf-8")
        built = subprocess.run([sys.executable, "-m", "zensical", "build", "--strict"], cwd=work, check=False)
        if built.returncode == 0:
            localize(work / "site")
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(work / "site", target)
            print(f"wrote {target}")
    return built.returncode


def localize(site: Path) -> None:
    """Bring the one script that the pages would load from a server: it lets the search work from a folder on disk."""
    shutil.copytree(ASSETS, site / "assets" / "javascripts", dirs_exist_ok=True)
    for page in site.rglob("*.html"):
        up = "../" * len(page.relative_to(site).parent.parts)
        text = page.read_text(encoding="utf-8").replace(REMOTE, f"{up}assets/javascripts/iframe-worker.js")
        page.write_text(text, encoding="utf-8")


def configuration() -> str:
    """The generator's settings; JSON strings and lists are TOML too."""
    pages = ", ".join(f"{{ {json.dumps(title)} = {json.dumps(name)} }}" for title, name, _ in listed())
    reference = ", ".join(f"{{ {json.dumps(front)} = {json.dumps(f'api/{front}.md')} }}" for front in FRONTS)
    return f"""\
[project]
site_name = "weakincentives"
site_description = {json.dumps(tagline())}
nav = [{{ "Documentation" = ["index.md", {pages}] }}, {{ "API reference" = [{reference}] }}]

[project.theme]
font = false
features = ["navigation.tabs", "navigation.top", "content.code.copy", "search.highlight", "toc.follow"]

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"

[project.plugins.offline]

[project.plugins.mkdocstrings.handlers.python]
paths = [{json.dumps(str(ROOT / "src"))}]

[project.plugins.mkdocstrings.handlers.python.options]
show_source = false
show_root_heading = false
show_root_toc_entry = false
heading_level = 2
members_order = "source"
separate_signature = true
show_signature_annotations = true
"""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
