"""Text in and out of files: UTF-8, newlines as they are, lines that end at `\\n` alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import IO

from weakincentives.filesystem.errors import FilesystemError, NotTextError
from weakincentives.filesystem.protocol import Match

SNIFF = 8192
"""How much of a file is looked at for NUL bytes, which say that it is not meant to be read."""


def encode(content: str | bytes, path: str) -> bytes:
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    if not isinstance(content, str):
        raise TypeError(f"Content of {path!r} must be str or bytes, not {type(content).__name__}")
    try:
        return content.encode()
    except UnicodeEncodeError as error:
        raise NotTextError(f"Content of {path!r} cannot be written as UTF-8: {error}", path=path) from None


def read_lines(stream: IO[bytes], path: str, *, offset: int, limit: int | None) -> str:
    """The asked-for lines, without reading past them."""
    if offset < 0 or (limit is not None and limit < 0):
        raise FilesystemError(f"Reading {path!r}: offset and limit are 0 or more, not {offset} and {limit}", path=path)
    if offset == 0 and limit is None:
        data = stream.read()
    else:
        data = b"".join(islice(stream, offset, None if limit is None else offset + limit))
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise NotTextError(
            f"{path!r} is not UTF-8 text (byte 0x{data[error.start]:02x}); use read_bytes for binary files", path=path
        ) from None


def grep_lines(data: bytes, path: str, expression: re.Pattern[str]) -> Iterator[Match]:
    """The matching lines of a file; none if it is binary."""
    if is_binary(data):
        return
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    for number, line in enumerate(lines, start=1):
        line = line.removesuffix("\r")
        if expression.search(line):
            yield Match(path, number, line)


def is_binary(data: bytes) -> bool:
    return b"\0" in data[:SNIFF]
