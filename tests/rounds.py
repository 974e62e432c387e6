"""How often repeated chance is tried: a few rounds in `./test`, many in `./test --long`.

Seeds, generated examples, soaks, storms and kills find more the longer they run, and say the same in each round.
`rounds(3, 20)` is 3 in a usual run and 20 in a long one, wherever a test counts; `rounds(FEW, ALL)` chooses cases. A
test that says nothing in a short run is marked `@pytest.mark.long` and left out of it.
"""

from __future__ import annotations

from typing import TypeVar

import pytest

Chosen = TypeVar("Chosen")
_is_long = False


def rounds(short: Chosen, long: Chosen) -> Chosen:
    """The first in a usual run of the tests, the second under `--long`."""
    return long if _is_long else short


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="repeat chance often: every seed, soak, storm and kill")


def pytest_configure(config: pytest.Config) -> None:
    global _is_long
    config.addinivalue_line("markers", "long: says nothing that a short run could; left out without --long")
    _is_long = config.getoption("--long")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _is_long:
        return
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason="only in ./test --long"))
