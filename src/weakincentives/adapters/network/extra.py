"""Optional packages, and the words when one is missing."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType


def require(package: str, extra: str) -> None:
    """Raise unless the package is installed; it is not imported yet."""
    if importlib.util.find_spec(package) is None:
        raise ModuleNotFoundError(
            f"This adapter needs the package '{package}'; pip install 'weakincentives[{extra}]'", name=package
        )


def load(package: str, extra: str) -> ModuleType:
    """Import the package, now that it is needed."""
    require(package, extra)
    return importlib.import_module(package)
