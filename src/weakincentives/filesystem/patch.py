"""The changes of a tool call as data: shown as a diff, stored, and applied where their base is unchanged."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

from weakincentives.filesystem.protocol import (
    Entry,
    InvalidPathError,
    Parts,
    SnapshotError,
    StaleFilesError,
    is_binary,
    join,
    split,
)

FileKind = Literal["file", "directory", "link"]

CONTEXT = 3
MAX_DIFF = 100_000
"""The number of characters after which a diff is cut."""
MAX_COMPARED = 1_000_000
"""The lines before times the lines after up to which common lines in the middle are looked for."""


@dataclass(frozen=True, slots=True)
class Node:
    """The content of a path; `kind` is "other" if it can be neither stored nor compared."""

    kind: FileKind | Literal["other"]
    content: bytes = b""
    mode: int | None = None

    def __str__(self) -> str:
        if self.kind == "link":
            return f"link to {os.fsdecode(self.content)!r}"
        digest = hashlib.sha256(self.content).hexdigest()[:12]
        text = f"{len(self.content):,} bytes, sha256 {digest}" if self.kind == "file" else self.kind
        return text if self.mode is None else f"{text}, mode {self.mode:o}"

    @property
    def text(self) -> str | None:
        """The text of a file; None if this is no text file."""
        if self.kind != "file" or is_binary(self.content):
            return None
        try:
            return self.content.decode()
        except UnicodeDecodeError:
            return None


@dataclass(frozen=True, slots=True, repr=False)
class FileChange:
    """A path that a tool call changed: its content before and after, None where there was nothing.

    A directory has empty content, a link its target. `kind` is that of what is there after, or was there before if it
    was deleted; `kind_before` is given if it was another. `mode` and `mode_before` are the permission bits, None where
    the filesystem has none.
    """

    path: str  #: relative to the root
    before: bytes | None  #: the content before
    after: bytes | None  #: the content after
    kind: FileKind = "file"
    mode: int | None = None
    kind_before: FileKind | None = None
    mode_before: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("before", self.before), ("after", self.after)):
            if not isinstance(value, bytes | None):
                raise TypeError(f"{name} of {self.path!r} must be bytes or None, got {type(value).__name__}")
        if self.kind not in get_args(FileKind) or self.kind_before not in (None, *get_args(FileKind)):
            raise ValueError(f"kind of {self.path!r} must be 'file', 'directory' or 'link', got {self.kind!r}")

    def __repr__(self) -> str:
        return f"<FileChange {self._summary}>"

    @property
    def size(self) -> int:
        """The bytes before and after."""
        return len(self.before or b"") + len(self.after or b"")

    @property
    def digest(self) -> str:
        """The SHA-256 of the whole change: equal digests mean that the same bytes take the place of the same bytes."""
        found = hashlib.sha256(repr((self.path, self.kind, self.mode, self.kind_before, self.mode_before)).encode())
        for content in (self.before, self.after):
            found.update(b"-" if content is None else f"{len(content)}:".encode() + content)
        return found.hexdigest()

    @property
    def diff(self) -> str:
        """A unified diff of text; anything else in one line, with sizes and digests. Long diffs are cut and say so."""
        old, new = sides(self)
        lines = _unified(self.path, old, new)
        if old is None or new is None:
            plain = bool(lines) and not (new and new.mode and new.mode & 0o111)
        else:
            plain = bool(lines) and old.kind == new.kind and old.mode == new.mode
        text = "".join(lines if plain else [f"{self._summary}\n", *lines])
        if len(text) > MAX_DIFF:
            # Between words, so that no part of a secret is left that nobody recognises as one.
            shown = text[: max(text.rfind(each, 0, MAX_DIFF) for each in '\n ",;') + 1]
            missing = f"{len(text) - len(shown):,} more characters of this diff are not shown"
            text = f"{shown.rstrip()}\n[{missing}; {self._summary}]\n"
        return text

    @property
    def _summary(self) -> str:
        old, new = sides(self)
        return f"{_printable(self.path)}: {old or 'absent'} -> {new or 'absent'}"


def change(path: str, old: Node | None, new: Node | None) -> FileChange:
    """The change from one node to another."""
    kind, kind_before = (new or old or Node("other")).kind, (old or new or Node("other")).kind
    if kind == "other" or kind_before == "other":
        raise SnapshotError(f"{path!r} is no file, directory or link, or cannot be read; it was not stored", path=path)
    return FileChange(
        path,
        before=None if old is None else old.content,
        after=None if new is None else new.content,
        kind=kind,
        mode=None if new is None else new.mode,
        kind_before=None if kind_before == kind else kind_before,
        mode_before=None if old is None else old.mode,
    )


def sides(change: FileChange) -> tuple[Node | None, Node | None]:
    """The nodes before and after a change."""
    before, after = change.before, change.after
    return (
        None if before is None else Node(change.kind_before or change.kind, before, change.mode_before),
        None if after is None else Node(change.kind, after, change.mode),
    )


def is_same(one: Node | None, other: Node | None) -> bool:
    """True if nothing differs that both filesystems know of."""
    if one is None or other is None:
        return one is other
    modes = {one.mode, other.mode} - {None}
    return (one.kind, one.content) == (other.kind, other.content) and one.kind != "other" and len(modes) < 2


def plan(
    changes: Iterable[FileChange], now: Callable[[Parts], Node | None], entries: Callable[[str], Iterable[Entry]]
) -> dict[Parts, Node | None]:
    """The nodes to put on a filesystem, with missing parents, if every path is as it was before the changes.

    A directory to be created may be there already: others may have needed it too. `now` returns what is at a path,
    `entries` what is in a directory.
    """
    now = cache(now)
    steps: dict[Parts, tuple[Node | None, Node | None]] = {}
    for each in changes:
        if not isinstance(each, FileChange):
            raise TypeError(f"apply takes FileChange values, got {type(each).__name__}")
        parts = split(each.path)
        if not parts or parts in steps:
            problem = "changed twice; pass one change of it" if parts else "the root, which cannot be changed"
            raise InvalidPathError(f"{each.path!r} is {problem}", path=each.path)
        steps[parts] = sides(each)
    nodes = {parts: new for parts, (_, new) in steps.items()}
    stale = [
        parts
        for parts, (old, new) in steps.items()
        if not is_same(now(parts), old)
        and not (old is None and new is not None and new.kind == "directory" and is_same(now(parts), new))
    ]
    for parts, (old, new) in steps.items():
        if old and old.kind == "directory" and (new is None or new.kind != "directory") and parts not in stale:
            inside = [(*parts, entry.name) for entry in entries(join(parts))]
            stale += [inner for inner in inside if nodes.get(inner, old) is not None]
        for above in (parts[:depth] for depth in range(1, len(parts)) if new is not None):
            if above not in nodes and now(above) is None:
                nodes[above] = Node("directory")
            parent = nodes[above] if above in nodes else now(above)
            if parent is None or parent.kind != "directory":
                stale.append(above)
    if stale:
        raise StaleFilesError(sorted({*map(join, stale)}))
    return nodes


def _printable(path: str) -> str:
    return path if path.isprintable() else repr(path)


def _unified(path: str, old: Node | None, new: Node | None) -> list[str]:
    """A unified diff between the text files; empty if there are none, if one is not text, or if both are equal."""
    texts = [node.text if node and node.kind == "file" else "" for node in (old, new)]
    is_file = [node is not None and node.kind == "file" for node in (old, new)]
    if None in texts or not any(is_file) or (all(is_file) and texts[0] == texts[1]):
        return []
    names = [f"{side}/{path}" if there else "/dev/null" for side, there in zip("ab", is_file, strict=True)]
    head = [f"--- {_printable(names[0])}\n", f"+++ {_printable(names[1])}\n"]
    return [*head, *_hunks(_lines(texts[0] or ""), _lines(texts[1] or ""))]


def _hunks(old: list[str], new: list[str]) -> Iterator[str]:
    from difflib import SequenceMatcher

    shortest = min(len(old), len(new))
    head = next((i for i in range(shortest) if old[i] != new[i]), shortest)
    tail = next((i for i in range(shortest - head) if old[-1 - i] != new[-1 - i]), shortest - head)
    first, last = max(0, head - CONTEXT), max(0, tail - CONTEXT)
    old, new = old[first : len(old) - last], new[first : len(new) - last]
    if len(old) * len(new) <= MAX_COMPARED:
        groups = list(SequenceMatcher(None, old, new).get_grouped_opcodes(CONTEXT))
    else:
        # Comparing takes quadratic time, so the whole middle is shown as replaced.
        above, i, j = head - first, len(old) - tail + last, len(new) - tail + last
        groups = [
            [
                ("equal", 0, above, 0, above),
                ("replace", above, i, above, j),
                ("equal", i, len(old), j, len(new)),
            ]
        ]
    for group in groups:
        yield f"@@ -{_range(first, group[0][1], group[-1][2])} +{_range(first, group[0][3], group[-1][4])} @@\n"
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                yield from (f" {_ended(line)}" for line in old[i1:i2])
            else:
                yield from (f"-{_ended(line)}" for line in old[i1:i2])
                yield from (f"+{_ended(line)}" for line in new[j1:j2])


def _range(first: int, start: int, end: int) -> str:
    length = end - start
    return f"{first + start + (length > 0)}" + ("" if length == 1 else f",{length}")


def _lines(text: str) -> list[str]:
    """The lines with their ends. Only a newline character ends a line."""
    *lines, last = text.split("\n")
    return [f"{line}\n" for line in lines] + ([last] if last else [])


def _ended(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
