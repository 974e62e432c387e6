"""Write the support tables of docs/hosted-tools.md from the codecs; `--check` only compares."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from weakincentives.adapters.hosted import capabilities

PAGE = Path(__file__).resolve().parents[1] / "docs" / "hosted-tools.md"
TABLES = re.compile(r"(<!-- capabilities -->\n).*(<!-- end of capabilities -->\n)", re.DOTALL)


def main(argv: list[str]) -> int:
    before = PAGE.read_text(encoding="utf-8")
    after = page(before)
    if argv == ["--check"]:
        if before == after:
            return 0
        print("docs/hosted-tools.md does not match the codecs; run python scripts/hosted_docs.py", file=sys.stderr)
        return 1
    PAGE.write_text(after, encoding="utf-8")
    return 0


def page(text: str) -> str:
    tables = "".join(f"\n**{capability.kind}**\n\n{capability.table()}\n" for capability in capabilities())
    return TABLES.sub(lambda found: f"{found[1]}{tables}\n{found[2]}", text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
