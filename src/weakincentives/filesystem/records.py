"""The form in which journals are stored."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable
from hashlib import blake2b
from typing import Literal

from msgspec import Struct, field, msgpack

from weakincentives.filesystem.contents import CHUNK, SavedContent, Segment
from weakincentives.filesystem.protocol import Parts
from weakincentives.filesystem.states import DirectoryState, FileState, LinkState, Signature, State, Status
from weakincentives.filesystem.tree import Place

FORMAT = 1
JournalKind = Literal["apply", "rollback"]


class StoredState(Struct, array_like=True, omit_defaults=True):
    """A file, directory or link; the content of a file is here, or in a segment beside the journal."""

    kind: Literal["file", "directory", "link"]
    mode: int | None = None
    modified_ns: int | None = None
    data: bytes = b""
    segment: str = ""
    start: int = 0
    length: int = 0


class StoredStep(Struct, array_like=True):
    """A path with slashes, its final state, and digests or keys of what may be replaced by that."""

    path: bytes
    final: StoredState | None
    replaceable: tuple[bytes, ...]


class Record(Struct):
    """A journal: if its process dies, the paths are brought to their final states.

    That is the state before, for changes that are made, and the one after for a rollback. `root_id` is the device and
    inode of the root.
    """

    kind: JournalKind
    began: float
    root: bytes
    root_id: tuple[int, int]
    temporary: str
    steps: list[StoredStep]
    format: int = field(default=FORMAT)


def encode_record(
    kind: JournalKind, root: str, temporary: str, steps: Iterable[tuple[Parts, State, Iterable[bytes]]], folder: str
) -> tuple[bytes, set[Segment]]:
    """A journal, and the segments in `folder` that it refers to; steps are paths, final states, and `replaceable`."""
    segments: set[Segment] = set()
    stored: list[StoredStep] = []
    for parts, final, replaceable in steps:
        stored.append(StoredStep(os.fsencode("/".join(parts)), _stored(final, folder, segments), tuple(replaceable)))
    status = os.stat(root)
    record = Record(kind, time.time(), os.fsencode(root), (status.st_dev, status.st_ino), temporary, stored)
    return msgpack.encode(record), segments


def decode_record(data: bytes) -> Record:
    return msgpack.decode(data, type=Record)


def _stored(state: State, folder: str, segments: set[Segment]) -> StoredState | None:
    match state:
        case DirectoryState(mode):
            return StoredState("directory", mode)
        case LinkState(target):
            return StoredState("link", data=os.fsencode(target))
        case FileState(content, mode, modified_ns):
            segment = content.segment
            if segment is None or os.path.dirname(segment.path) != folder:
                return StoredState("file", mode, modified_ns, content.read())
            segments.add(segment)
            name = os.path.basename(segment.path)
            return StoredState("file", mode, modified_ns, b"", name, content.start, content.length)
    return None


def loaded_state(stored: StoredState | None, folder: str) -> State:
    """The state that was stored; segments are in the folder of the journal."""
    if stored is None:
        return None
    if stored.kind == "directory":
        return DirectoryState(stored.mode)
    if stored.kind == "link":
        return LinkState(os.fsdecode(stored.data))
    content = SavedContent(stored.data)
    if stored.segment:
        segment = Segment(os.path.join(folder, stored.segment))
        content = SavedContent(b"", segment, stored.start, stored.length)
    return FileState(content, stored.mode, stored.modified_ns)


def digest_of_state(state: State) -> bytes:
    """A digest of what a state has at its path, apart from modes and times; of nothing, it is empty."""
    match state:
        case FileState(content):
            digest = blake2b(b"file", digest_size=16)
            with content.open() as stream:
                while chunk := stream.read(CHUNK):
                    digest.update(chunk)
            return digest.digest()
        case LinkState(target):
            return blake2b(b"link" + os.fsencode(target), digest_size=16).digest()
        case DirectoryState():
            return b"directory"
        case None:
            return b""
    return b"?"


def digest_of_place(place: Place, status: Status | None) -> bytes:
    """The same digest of what is at a place."""
    if status is None:
        return b""
    if stat.S_ISDIR(status.st_mode):
        return b"directory"
    if stat.S_ISLNK(status.st_mode):
        return digest_of_state(LinkState(place.readlink()))
    if not stat.S_ISREG(status.st_mode):
        return b"?"
    digest = blake2b(b"file", digest_size=16)
    with place.open() as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.digest()


def key_of(file: Signature | None) -> bytes:
    """The identity of a file, in the form of a digest; of nothing, it is empty."""
    return b"" if file is None else b"file " + b" ".join(str(number).encode() for number in file)
