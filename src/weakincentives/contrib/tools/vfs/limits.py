"""How much one call of a file tool may return or write."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class VfsLimits:
    """Limits that keep one answer within what a model can use; what is cut off is said, with the way to the rest."""

    read_lines: int = 2_000
    read_characters: int = 60_000
    entries: int = 500
    matches: int = 100
    line_characters: int = 500
    write_characters: int = 1_000_000

    def __post_init__(self) -> None:
        for item in fields(self):
            if getattr(self, item.name) < 1:
                raise ValueError(f"{item.name} is 1 or more, not {getattr(self, item.name)}")
