"""Content besides plain text, from people and tools: images, documents and audio, as values.

    Image.from_path("box.jpg")
    Document.from_url("https://example.com/terms.pdf")
    Audio.from_bytes(data, "audio/wav")

Content is a text, a part, or a sequence of both. A part holds bytes, or refers to something the provider fetches or
already has.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self, TypeAlias

__all__ = ["Audio", "Blob", "Content", "Document", "Image", "Media", "Part", "Text", "parts_of", "text_of"]


class Blob:
    """Bytes identified by their digest: equal bytes are equal blobs, and are stored once."""

    __slots__ = ("data", "digest")

    def __init__(self, data: bytes) -> None:
        self.data = bytes(data)
        self.digest = hashlib.sha256(self.data).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Blob) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __len__(self) -> int:
        return len(self.data)

    def __repr__(self) -> str:
        return f"<{len(self.data):,} bytes, {self.digest[:8]}>"


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text between other parts."""

    text: str  #: the text

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise TypeError(f"Text takes a string, got {self.text!r}")

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Media:
    """The base of `Image`, `Document` and `Audio`: exactly one of bytes, a URL or a file id."""

    media_type: str = ""  #: such as image/png; guessed from the name if empty
    blob: Blob | None = None  #: the bytes
    url: str = ""  #: where the provider fetches it
    file_id: str = ""  #: the id of a file uploaded to the provider
    name: str = ""  #: a file name

    # Media types by file name ending.
    types: ClassVar[dict[str, str]] = {}

    def __post_init__(self) -> None:
        given = [what for what, value in (("data", self.blob), ("url", self.url), ("file_id", self.file_id)) if value]
        if len(given) != 1:
            kind = type(self).__name__
            raise ValueError(
                f"{kind} takes bytes, a URL or a file id, got {' and '.join(given) or 'none of them'}; write "
                f"{kind}.from_bytes(data, media_type), .from_path(path), .from_url(url) or .from_file_id(id)"
            )
        if self.blob is not None:
            if not self.media_type:
                examples = ", ".join(map(repr, dict.fromkeys(self.types.values())))
                raise ValueError(f"{type(self).__name__} of bytes needs a media type, such as {examples}")
            found = _sniff(self.blob.data)
            if found and found != self.media_type and "/" in self.media_type:
                raise ValueError(f"{type(self).__name__} is said to be {self.media_type}, but its bytes are {found}")

    @classmethod
    def from_bytes(cls, data: bytes, media_type: str, *, name: str = "") -> Self:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"{cls.__name__}.from_bytes takes bytes, got {type(data).__name__}; see also from_path")
        if not data:
            raise ValueError(f"{cls.__name__}.from_bytes got no bytes")
        return cls(media_type=media_type.lower(), blob=Blob(bytes(data)), name=name)

    @classmethod
    def from_path(cls, path: str | os.PathLike[str], *, media_type: str = "") -> Self:
        """Read a file; its type is derived from its name unless you pass one."""
        file = Path(path)
        found = media_type or cls.types.get(file.suffix.lower().lstrip("."), "")
        if not found:
            known = ", ".join(f".{ending}" for ending in cls.types)
            raise ValueError(f"{cls.__name__}: the type of '{file.name}' is not known ({known} are); pass media_type=")
        return cls.from_bytes(file.read_bytes(), found, name=file.name)

    @classmethod
    def from_url(cls, url: str, *, media_type: str = "") -> Self:
        """A part that the provider fetches from a URL."""
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"{cls.__name__}.from_url takes an http or https address, got {url!r}")
        return cls(media_type=media_type.lower(), url=url)

    @classmethod
    def from_file_id(cls, file_id: str, *, media_type: str = "") -> Self:
        """A part that was uploaded to the provider before."""
        return cls(media_type=media_type.lower(), file_id=file_id)

    @property
    def data(self) -> bytes:
        """The bytes; empty if there is only a URL or an id."""
        return b"" if self.blob is None else self.blob.data

    def __str__(self) -> str:
        """A short description of the part, for places that allow only text."""
        source = self.name or self.url or self.file_id
        size = f"{len(self.blob):,} bytes" if self.blob is not None else ""
        detail = ", ".join(word for word in (self.media_type, size) if word)
        return f"[{type(self).__name__.lower()}{f' {source}' if source else ''}{f' ({detail})' if detail else ''}]"


class Image(Media):
    """A picture: png, jpeg, webp or gif."""

    __slots__ = ()
    types: ClassVar[dict[str, str]] = {
        "png": "image/png",
        "jpg": "image/jpeg",
        "jpeg": "image/jpeg",
        "webp": "image/webp",
        "gif": "image/gif",
    }

    @property
    def dimensions(self) -> tuple[int, int] | None:
        """Width and height in pixels, read from the bytes; None if there are none or they cannot be read."""
        data = self.data
        if data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) >= 24:
            return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
        if data[:6] in (b"GIF87a", b"GIF89a") and len(data) >= 10:
            return int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
        if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            return _webp_dimensions(data)
        return _jpeg_dimensions(data) if data[:2] == b"\xff\xd8" else None


class Document(Media):
    """A file to read: a PDF, plain text, or anything else a provider accepts."""

    __slots__ = ()
    types: ClassVar[dict[str, str]] = {
        "pdf": "application/pdf",
        "txt": "text/plain",
        "md": "text/markdown",
        "csv": "text/csv",
        "html": "text/html",
        "json": "application/json",
        "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    }


class Audio(Media):
    """A recording: wav or mp3."""

    __slots__ = ()
    types: ClassVar[dict[str, str]] = {"wav": "audio/wav", "mp3": "audio/mpeg"}


Part: TypeAlias = Text | Image | Document | Audio
Content: TypeAlias = str | Part | Sequence[str | Part]


def parts_of(content: Content) -> tuple[Part, ...]:
    """The parts of content, with neighbouring texts kept apart and empty ones left out."""
    if isinstance(content, str | Text | Media):
        content = [content]
    elif not isinstance(content, Sequence) or isinstance(content, bytes | bytearray):
        raise _not_content(content)
    parts: list[Part] = []
    for item in content:
        if isinstance(item, str):
            item = Text(item)
        if not isinstance(item, Text | Image | Document | Audio):
            raise _not_content(item)
        if not isinstance(item, Text) or item.text:
            parts.append(item)
    return tuple(parts)


def text_of(parts: Iterable[Part]) -> str:
    """The parts as plain text, with a short description in place of what is not text."""
    return "\n".join(str(part) for part in parts)


def _not_content(item: object) -> TypeError:
    hint = "; write Image.from_bytes(data, media_type)" if isinstance(item, bytes | bytearray) else ""
    return TypeError(
        f"Content must be text, an Image, a Document, an Audio, or a list of these, got {type(item).__name__}{hint}"
    )


def _sniff(data: bytes) -> str:
    """The media type according to the first bytes, for types with a signature."""
    if data[:4] == b"RIFF":
        return {b"WEBP": "image/webp", b"WAVE": "audio/wav"}.get(data[8:12], "")
    marks = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"%PDF-": "application/pdf"}
    return next((kind for mark, kind in marks.items() if data.startswith(mark)), "")


def _webp_dimensions(data: bytes) -> tuple[int, int] | None:
    kind = data[12:16]
    if kind == b"VP8X" and len(data) >= 30:
        return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    if kind == b"VP8 " and len(data) >= 30:
        width, height = int.from_bytes(data[26:28], "little"), int.from_bytes(data[28:30], "little")
        return width & 0x3FFF, height & 0x3FFF
    if kind == b"VP8L" and len(data) >= 25:
        bits = int.from_bytes(data[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return None


def _jpeg_dimensions(data: bytes) -> tuple[int, int] | None:
    """Walk the segments up to the frame header, which holds the size."""
    position = 2
    while position + 9 <= len(data) and data[position] == 0xFF:
        marker, length = data[position + 1], int.from_bytes(data[position + 2 : position + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height = int.from_bytes(data[position + 5 : position + 7], "big")
            return int.from_bytes(data[position + 7 : position + 9], "big"), height
        position += 2 + length
    return None
