"""What the file tools return, and how the model reads it."""

from __future__ import annotations

from dataclasses import dataclass

from weakincentives.filesystem import Entry, Match


@dataclass(frozen=True, slots=True)
class Listing:
    """The entries of a directory; a directory's name ends with a slash."""

    entries: tuple[Entry, ...]

    def render(self) -> str:
        return "\n".join(_line(entry) for entry in self.entries)


@dataclass(frozen=True, slots=True)
class FileText:
    """Lines of a file, from `offset` on; `complete` is False when more lines follow."""

    path: str
    text: str
    offset: int
    complete: bool

    def render(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Paths:
    """Paths of files."""

    paths: tuple[str, ...]

    def render(self) -> str:
        return "\n".join(self.paths)


@dataclass(frozen=True, slots=True)
class Matches:
    """Lines that matched, as `path:line: text`."""

    matches: tuple[Match, ...]

    def render(self) -> str:
        return "\n".join(f"{match.path}:{match.line_number}: {match.line}" for match in self.matches)


def _line(entry: Entry) -> str:
    if entry.kind == "directory":
        return f"{entry.path}/"
    return f"{entry.path} ({entry.size} bytes)" if entry.kind == "file" else f"{entry.path} ({entry.kind})"
