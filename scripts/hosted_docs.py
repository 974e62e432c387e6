"""Write the support tables of docs/tools/hosted-tools.md from the codecs; `--check` only compares."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weakincentives.adapters.hosted import codecs_by_kind, nested_settings
from weakincentives.runtime.spi import adapter_specs

PAGE = Path(__file__).resolve().parents[1] / "docs" / "tools" / "hosted-tools.md"
TABLES = re.compile(r"(<!-- capabilities -->\n).*(<!-- end of capabilities -->\n)", re.DOTALL)


def main(argv: list[str]) -> int:
    before = PAGE.read_text(encoding="utf-8")
    after = page(before)
    if argv == ["--check"]:
        if before == after:
            return 0
        print(
            "docs/tools/hosted-tools.md does not match the codecs; run python scripts/hosted_docs.py", file=sys.stderr
        )
        return 1
    PAGE.write_text(after, encoding="utf-8")
    return 0


def page(text: str) -> str:
    tables = "".join(f"\n**{kind}**\n\n{table(codecs)}\n" for kind, codecs in codecs_by_kind().items())
    return TABLES.sub(lambda found: f"{found[1]}{tables}\n{found[2]}", text)


def table(codecs: Mapping[str, Any]) -> str:
    """A Markdown table of the settings of one kind of hosted tool, and what each adapter makes of them."""
    names = [spec.name for spec in adapter_specs() if spec.hosted_tools]
    rows = [("setting", *names), ("---",) * (len(names) + 1)]
    rows.append(("(the tool itself)", *("yes" if name in codecs else "no" for name in names)))
    for setting in all_settings(next(iter(codecs.values())).config_type):
        rules = [codecs[name].honours.get(setting) if name in codecs else None for name in names]
        rows.append((f"`{setting}`", *("no" if rule is None else str(rule) for rule in rules)))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def all_settings(config_type: type) -> tuple[str, ...]:
    """Every setting of a config type; settings of nested dataclasses have dotted names."""
    found: list[str] = []
    for name, nested in nested_settings(config_type).items():
        found += [name] if nested is None else [f"{name}.{inner}" for inner in all_settings(nested)]
    return tuple(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
