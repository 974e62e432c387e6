"""The serious faults that axe-core finds on a page."""

from __future__ import annotations

from typing import Any

from tests.npm_support import NpmModules

CHECK = """async () => {
    const { violations } = await axe.run(document, { resultTypes: ["violations"] });
    return violations
        .filter(({ impact }) => ["serious", "critical"].includes(impact))
        .map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(" | ")}`);
}"""


def faults(page: Any, npm_modules: NpmModules) -> list[str]:
    source = (npm_modules.folder / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
    # As a debugger does: the page's own policy allows no such script.
    page.evaluate(source)
    found: list[str] = page.evaluate(CHECK)
    return found
