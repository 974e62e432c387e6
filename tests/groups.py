"""Which tests stay together, when `./test` spreads them over processes with `--dist loadgroup`.

A file is spread in pieces, so that no process waits at the end for another one's long file. Tests stay together that
share something costly (a database server, a browser, a model, the built documentation), or build upon each other (the
examples of a page). What takes longest begins first.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import pytest

# Fixtures that are made once for all tests, and those that are made once for each file.
SHARED_BY_ALL = ("postgres", "local")
SHARED_BY_A_FILE = ("browser", "site")
PIECE = 20
SEPARATOR = "@"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    if not getattr(config.option, "loadgroup", False):
        return (yield)
    arrange(items)
    result = yield
    for item in items:
        # xdist 3.8 appends the group to what pytest 9.1 has as the name of a test; 9.2 has it elsewhere.
        if hasattr(item, "_id") and hasattr(item, "_nodeid"):
            item._id = type(item._id).parse(item._nodeid)
    return result


def arrange(items: list[pytest.Item]) -> None:
    """Name the group of each test, and let those with groups of their own begin."""
    together: list[pytest.Item] = []
    long: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        shared = shared_by(item)
        if shared is not None:
            put(item, shared)
            together.append(item)
        elif item.get_closest_marker("limit"):
            # It may take more than a minute.
            put(item, f"long {len(long)}")
            long.append(item)
        else:
            others.append(item)
    for path, of_the_file in groupby(others, lambda item: item.path):
        for number, item in enumerate(of_the_file):
            put(item, f"{path.name} {number // PIECE} of {path.parent.name}")
    items[:] = [*together, *long, *others]


def shared_by(item: pytest.Item) -> str | None:
    """What a test shares with others that it must stay with; None if it may run anywhere."""
    if item.path.suffix == ".md":
        return item.path.name
    fixtures = set(getattr(item, "fixturenames", ()))
    if hasattr(item, "callspec"):
        # A database of each kind in turn: one of them needs the server.
        fixtures.update(value for value in item.callspec.params.values() if isinstance(value, str))
    if not fixtures.isdisjoint(SHARED_BY_A_FILE):
        return f"{item.path.name} of {item.path.parent.name}"
    for fixture in SHARED_BY_ALL:
        if fixture in fixtures:
            return fixture
    return None


def put(item: pytest.Item, group: str) -> None:
    item.add_marker(pytest.mark.xdist_group(group))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name a test without its group, which xdist has appended to the name."""
    if hasattr(report, "node"):
        name, separator, group = report.nodeid.rpartition(SEPARATOR)
        if separator and "]" not in group:
            report.nodeid = name
