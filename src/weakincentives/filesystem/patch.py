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
        text, hidden = _unified(self.path, old, new)
        if old is None or new is None:
            plain = bool(text) and not (new and new.mode and new.mode & 0o111)
        else:
            plain = bool(text) and old.kind == new.kind and old.mode == new.mode
        if not plain:
            text = f"{self._summary}\n{text}"
        length = len(text) + hidden
        if len(text) > MAX_DIFF:
            # Between words, so that no part of a secret is left that nobody recognises as one.
            ends = [text.rfind(separator, 0, MAX_DIFF) for separator in '\n ",;']
            text = text[: max(ends) + 1]
        if len(text) < length:
            missing = f"{length - len(text):,} more characters of this diff are not shown"
            text = f"{text.rstrip()}\n[{missing}; {self._summary}]\n"
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


def _unified(path: str, old: Node | None, new: Node | None) -> tuple[str, int]:
    """A unified diff between the text files, and how many characters of it are left out for their number.

    It is empty if there are none, if one is not text, or if both are equal.
    """
    texts: list[str] = []
    heading = ""
    files = 0
    for mark, side, node in (("---", "a", old), ("+++", "b", new)):
        if node is None or node.kind != "file":
            texts.append("")
            heading += f"{mark} /dev/null\n"
            continue
        if node.text is None:
            return "", 0
        files += 1
        texts.append(node.text)
        heading += f"{mark} {_printable(f'{side}/{path}')}\n"
    if files == 0 or (files > 1 and texts[0] == texts[1]):
        return "", 0
    hunks, hidden = _hunks(texts[0], texts[1])
    return heading + hunks, hidden


def _hunks(old: str, new: str) -> tuple[str, int]:
    """The hunks of a diff, without those of its characters that would be cut anyway, and the number of these.

    Texts may be long, so lines in common at both ends are found, counted and left out without going through
    them.
    """
    start = _common_start(old, new)
    old_end, new_end = _common_end(old, new, start)
    above, below = _lines_before(old, start), _lines_after(old, old_end)
    first = old.count("\n", 0, above)
    old_part, new_part = old[above:below], new[above : new_end + below - old_end]
    if _count_lines(old_part) * _count_lines(new_part) <= MAX_COMPARED:
        return "".join(_compared(first, _lines(old_part), _lines(new_part))), 0
    # Comparing takes quadratic time, so the whole middle is shown as replaced.
    old_count, new_count = _count_lines(old_part), _count_lines(new_part)
    heading = f"@@ -{_range(first, 0, old_count)} +{_range(first, 0, new_count)} @@\n"
    removed, hidden = _shown("-", old[start:old_end])
    added, hidden_added = _shown("+", new[start:new_end], is_hidden=hidden > 0)
    text = heading + _marked(" ", _lines(old[above:start])) + removed + added
    context = _marked(" ", _lines(old[old_end:below]))
    if hidden + hidden_added:
        return text, hidden + hidden_added + len(context)
    return text + context, 0


def _compared(first: int, old: list[str], new: list[str]) -> Iterator[str]:
    """The hunks between lines, of which the first is line number `first`, from 0."""
    from difflib import SequenceMatcher

    for group in SequenceMatcher(None, old, new).get_grouped_opcodes(CONTEXT):
        yield f"@@ -{_range(first, group[0][1], group[-1][2])} +{_range(first, group[0][3], group[-1][4])} @@\n"
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                yield _marked(" ", old[i1:i2])
            else:
                yield _marked("-", old[i1:i2])
                yield _marked("+", new[j1:j2])


def _marked(mark: str, lines: Iterable[str]) -> str:
    return "".join(f"{mark}{_ended(line)}" for line in lines)


def _shown(mark: str, text: str, *, is_hidden: bool = False) -> tuple[str, int]:
    """The lines of a text, marked, as far as a diff may show them, and how many characters are not."""
    visible = text
    if is_hidden:
        visible = ""
    elif len(text) > MAX_DIFF:
        visible = text[: text.rfind("\n", 0, MAX_DIFF) + 1] or text
    rest = text[len(visible) :]
    return _marked(mark, _lines(visible)), len(rest) + _count_lines(rest)


def _common_start(old: str, new: str) -> int:
    """Where the first line begins that differs."""
    length = _common(old, new, lambda text, size: text[:size])
    return old.rfind("\n", 0, length) + 1


def _common_end(old: str, new: str, start: int) -> tuple[int, int]:
    """Where the lines begin in both that are the same up to the end, after the lines in common at the beginning."""
    length = _common(old[start:], new[start:], lambda text, size: text[len(text) - size :])
    old_end, new_end = len(old) - length, len(new) - length
    begins_lines = True
    for text, end in ((old, old_end), (new, new_end)):
        if end > start and text[end - 1] != "\n":
            begins_lines = False
    if not begins_lines:
        # The first line of what they have in common is only the end of a line in one of them.
        next_line = old.find("\n", old_end) + 1 or len(old)
        length -= next_line - old_end
    return len(old) - length, len(new) - length


def _common(old: str, new: str, part: Callable[[str, int], str]) -> int:
    """The size of the longest part of both that is the same.

    It is found by halving, since slices compare much faster than characters.
    """
    same, too_long = 0, min(len(old), len(new)) + 1
    while too_long - same > 1:
        middle = (same + too_long) // 2
        if part(old, middle) == part(new, middle):
            same = middle
        else:
            too_long = middle
    return same


def _lines_before(text: str, position: int) -> int:
    """Where the context above a position begins."""
    for _ in range(CONTEXT):
        if position:
            position = text.rfind("\n", 0, position - 1) + 1
    return position


def _lines_after(text: str, position: int) -> int:
    """Where the context below a position ends."""
    for _ in range(CONTEXT):
        end = text.find("\n", position) + 1
        position = end or len(text)
    return position


def _count_lines(text: str) -> int:
    return text.count("\n") + (text != "" and not text.endswith("\n"))


def _range(first: int, start: int, end: int) -> str:
    length = end - start
    return f"{first + start + (length > 0)}" + ("" if length == 1 else f",{length}")


def _lines(text: str) -> list[str]:
    """The lines with their ends. Only a newline character ends a line."""
    *lines, last = text.split("\n")
    return [f"{line}\n" for line in lines] + ([last] if last else [])


def _ended(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
