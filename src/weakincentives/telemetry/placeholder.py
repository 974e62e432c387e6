"""What stands in a record for a value that could not be written, or cannot be read in this process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Unserialisable:
    """A value that has no serialised form; `text` is the beginning of its repr."""

    type: str
    text: str


@dataclass(frozen=True, slots=True)
class UnknownType:
    """A value of a class that this process has not imported; `value` is what was recorded of it.

    For a dataclass that is the mapping of its fields.
    """

    type: str
    value: Any
