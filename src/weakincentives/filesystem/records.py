"""The form in which journals are stored."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import IO, Literal

from msgspec import Struct, field, msgpack

from weakincentives.filesystem.contents import CHUNK, SavedContent, Segment
from weakincentives.filesystem.protocol import Parts
from weakincentives.filesystem.states import (
    SPECIAL,
    DirectoryState,
    FileState,
    LinkState,
    LostState,
    Signature,
    State,
    Status,
)
from weakincentives.filesystem.tree import Place

FORMAT = 1
JournalKind = Literal["apply", "rollback", "program"]


class StoredState(Struct, array_like=True, omit_defaults=True):
    """What is at a path; the content of a file is here, or in a segment beside the journal."""

    kind: Literal["file", "directory", "link", "other"]
    mode: int | None = None
    modified_ns: int | None = None
    data: bytes = b""
    segment: str = ""
    start: int = 0
    length: int = 0
    signature: tuple[int, ...] | None = None


class StoredStep(Struct, array_like=True):
    """A path with slashes, its final state, and digests or keys of what may be replaced by that."""

    path: bytes
    final: StoredState | None
    replaceable: tuple[bytes, ...]


class Record(Struct):
    """A journal: if its process dies, the paths are brought to their final states.

    That is the state before, for changes that are made, and the one after for a rollback. Of a program, the steps are
    the whole tree before it, apart from what is to be ignored; `mark` is in the environment of its processes. `root_id`
    is the device and inode of the root, and `boot` is another one after the machine was started anew.
    """

    kind: JournalKind
    began: float
    root: bytes
    root_id: tuple[int, int]
    temporary: str
    steps: list[StoredStep]
    label: str = ""
    mark: str = ""
    boot: str = ""
    ignore: tuple[str, ...] = ()
    format: int = field(default=FORMAT)


def new_record(kind: JournalKind, root: str, temporary: str = "") -> Record:
    """A journal without steps, which begins now."""
    status = os.stat(root)
    root_id = status.st_dev, status.st_ino
    return Record(kind, time.time(), os.fsencode(root), root_id, temporary, [], boot=boot_id())


def boot_id() -> str:
    """A name for the time since the machine was started; empty where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return ""


class RecordWriter:
    """Adds the steps of a record, and notes which segments in the folder of the journal they refer to."""

    def __init__(self, record: Record, folder: str) -> None:
        self.record = record
        self.segments: set[Segment] = set()
        self._folder = folder

    def add(self, parts: Parts, final: State, replaceable: Iterable[bytes] = ()) -> None:
        """Add a path, its final state, and the digests or keys of what may be replaced by that."""
        self.record.steps.append(StoredStep(os.fsencode("/".join(parts)), self._stored(final), tuple(replaceable)))

    def encode(self) -> bytes:
        return msgpack.encode(self.record)

    def _stored(self, state: State) -> StoredState | None:
        match state:
            case DirectoryState(mode):
                return StoredState("directory", mode)
            case LinkState(target):
                return StoredState("link", data=os.fsencode(target))
            case LostState():
                return StoredState("other")
            case FileState(content, mode, modified_ns, known):
                segment = content.segment
                if segment is None or os.path.dirname(segment.path) != self._folder:
                    return StoredState("file", mode, modified_ns, content.read(), signature=known)
                self.segments.add(segment)
                name = os.path.basename(segment.path)
                return StoredState("file", mode, modified_ns, b"", name, content.start, content.length, known)
        return None


def decode_record(data: bytes) -> Record:
    return msgpack.decode(data, type=Record)


def loaded_state(stored: StoredState | None, folder: str) -> State:
    """The state that was stored; segments are in the folder of the journal."""
    if stored is None:
        return None
    if stored.kind == "directory":
        return DirectoryState(stored.mode)
    if stored.kind == "link":
        return LinkState(os.fsdecode(stored.data))
    if stored.kind == "other":
        return SPECIAL
    content = SavedContent(stored.data)
    if stored.segment:
        segment = Segment(os.path.join(folder, stored.segment))
        content = SavedContent(b"", segment, stored.start, stored.length)
    return FileState(content, stored.mode, stored.modified_ns, stored.signature)


def digest_of_state(state: State) -> bytes:
    """A digest of what a state has at its path, apart from modes and times; of nothing, it is empty."""
    match state:
        case FileState(content):
            with content.open() as stream:
                return _digest_of_file(stream)
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
    with place.open() as stream:
        return _digest_of_file(stream)


def key_of(file: Signature | None) -> bytes:
    """The identity of a file, in the form of a digest; of nothing, it is empty."""
    return b"" if file is None else b"file " + b" ".join(str(number).encode() for number in file)


def _digest_of_file(stream: IO[bytes]) -> bytes:
    digest = blake2b(b"file", digest_size=16)
    while chunk := stream.read(CHUNK):
        digest.update(chunk)
    return digest.digest()
