"""Paths below a root, as tuples of names."""

from __future__ import annotations

from weakincentives.filesystem.errors import InvalidPathError

Parts = tuple[str, ...]

MAX_DEPTH = 200


def split(path: str) -> Parts:
    """The names of a relative path; the root (`.` or an empty path) has none."""
    text = str(path)
    if "\0" in text:
        raise InvalidPathError(f"Path {text!r} contains a NUL byte", path=text)
    if text.startswith("/"):
        raise InvalidPathError(
            f"Path {text!r} is absolute; use a path relative to the root, such as {text.strip('/') or '.'!r}", path=text
        )
    parts = tuple(part for part in text.split("/") if part not in ("", "."))
    if ".." in parts:
        raise InvalidPathError(f"Path {text!r} contains '..'; use a path relative to the root", path=text)
    if len(parts) > MAX_DEPTH:
        raise InvalidPathError(f"Path {text[:60]!r}... is more than {MAX_DEPTH} directories deep", path=text)
    return parts


def join(parts: Parts) -> str:
    return "/".join(parts) or "."
