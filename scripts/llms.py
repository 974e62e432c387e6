"""Write llms.txt (an index of the docs) and llms-full.txt (all their text) for models; `--check` only compares."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INDEX = ROOT / "docs" / "index.md"


def main(argv: list[str]) -> int:
    pages = {"llms.txt": index(), "llms-full.txt": full()}
    if argv == ["--check"]:
        stale = [name for name, text in pages.items() if not is_current(ROOT / name, text)]
        for name in stale:
            print(f"{name} is out of date; run python scripts/llms.py", file=sys.stderr)
        return 1 if stale else 0
    for name, text in pages.items():
        (ROOT / name).write_text(text, encoding="utf-8")
    return 0


def index() -> str:
    lines = ["# weakincentives", "", f"> {tagline()}", "", "## Docs", ""]
    lines += [f"- [{title}](docs/{name}): {about}" for title, name, about in listed()]
    return "\n".join(lines) + "\n"


def full() -> str:
    pages = [ROOT / "README.md", *(INDEX.parent / name for _, name, _ in listed())]
    return "\n\n".join(page.read_text(encoding="utf-8").strip() for page in pages) + "\n"


def listed() -> list[tuple[str, str, str]]:
    """Title, file and purpose of every page, from the tables of docs/index.md."""
    return [page for _, pages in chapters() for page in pages]


def chapters() -> list[tuple[str, list[tuple[str, str, str]]]]:
    """The pages by the heading that their table has in docs/index.md."""
    row = re.compile(r"^\| \[(.+?)\]\((.+?\.md)\) \| (.+?) \|$", re.MULTILINE)
    prose = re.sub(r"^```.*?^```$", "", INDEX.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    _, *parts = re.split(r"^## (.+)$", prose, flags=re.MULTILINE)
    return [(title, row.findall(text)) for title, text in zip(parts[::2], parts[1::2], strict=True)]


def tagline() -> str:
    """The README's first paragraph below its title, on one line."""
    paragraphs = (ROOT / "README.md").read_text(encoding="utf-8").split("\n\n")
    return " ".join(paragraphs[1].split())


def is_current(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
