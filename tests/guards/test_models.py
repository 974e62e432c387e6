"""Nothing that a user may copy names a model that its vendor shuts down."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from weakincentives.runtime.spi import adapter_specs

ROOT = Path(__file__).parents[2]
PLACES = ("README.md", "ARCHITECTURE.md", "docs", "examples", "tests", "bench", "scripts", "src")
SHUT_DOWN = {name: date for spec in adapter_specs() for name, date in spec.shut_down.items()}
NAME = re.compile(r"(?<![\w./-])(?:gpt-\d[\w.-]*|claude-[a-z][\w.-]*|o[1-4](?:-mini)?)(?![\w-])")
DATED = re.compile(r"-\d{8}$|-\d{4}-\d{2}-\d{2}$")


def pages() -> Iterator[Path]:
    for place in PLACES:
        for path in [ROOT / place] if place.endswith(".md") else sorted((ROOT / place).rglob("*")):
            # The tables themselves, packages of others, and measurements of the past.
            exempt = path.name in ("models.py", "RESULTS.md") or "node_modules" in path.parts
            if path.suffix in (".md", ".py", ".json", ".toml") and not exempt:
                yield path


def named(text: str) -> list[str]:
    """The models in a text that have a date."""
    found = (DATED.sub("", match[0].rstrip(".-")) for match in NAME.finditer(text))
    return [name for name in found if name in SHUT_DOWN]


def test_no_page_example_or_test_offers_a_model_that_is_shut_down() -> None:
    found = {str(path.relative_to(ROOT)): names for path in pages() if (names := named(path.read_text("utf-8")))}
    assert not found, "use a model without a date in SHUT_DOWN"


def test_the_guard_finds_names_with_dates_and_prefixes_and_no_others() -> None:
    first = next(iter(SHUT_DOWN))
    assert named(f"Use '{first}', ft:{first}:acme, {first}-2025-01-01 or {first}.") == [first] * 4
    assert named(f"my{first} {first}-turbo {first}.99 gpt-5.6") == []


def test_models_are_listed_until_they_are_gone() -> None:
    for spec in adapter_specs():
        assert spec.shut_down.keys() <= spec.prices.keys() or not spec.shut_down
