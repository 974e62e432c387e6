"""Finds the topics: the modules of this package that have `rows()`."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable
from importlib import import_module
from typing import Protocol, cast

import bench
from bench.row import Row


class Topic(Protocol):
    """A module with rows to measure."""

    __name__: str

    def rows(self) -> Iterable[Row]: ...


def topics() -> dict[str, Topic]:
    """Every topic by its name; importing one must be cheap."""
    found = {}
    for info in pkgutil.iter_modules(bench.__path__):
        if info.name not in {"__main__", "measure", "row", "table", "topics"}:
            module = import_module(f"bench.{info.name}")
            if hasattr(module, "rows"):
                found[info.name] = cast(Topic, module)
    return found
