"""Finds the topics: the modules of this package that have `rows()`."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable
from importlib import import_module
from typing import Protocol, cast

import bench
from bench.row import Row

OURS = {"__main__", "measure", "row", "table", "topics"}


class Topic(Protocol):
    """A module with rows to measure."""

    def rows(self) -> Iterable[Row]: ...


def names() -> list[str]:
    return [info.name for info in pkgutil.iter_modules(bench.__path__) if info.name not in OURS]


def load(name: str) -> Topic | None:
    """The topic, or None where the module only helps another one."""
    module = import_module(f"bench.{name}")
    return cast(Topic, module) if hasattr(module, "rows") else None


def is_slow(topic: Topic) -> bool:
    """Whether the topic runs only when it is named."""
    return bool(getattr(topic, "SLOW", False))
