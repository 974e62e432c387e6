"""The folder of derived files, files that the user names, and published files that are known by their hash."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from weakincentives.errors import WinkError


class ModelError(WinkError):
    """A model could not be fetched, or its file is not the published one."""


def cache_folder() -> Path:
    """Where derived files are kept between runs; they can be deleted at any time."""
    folder = os.environ.get("WINK_CACHE")
    if folder:
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weakincentives"


def is_published(file: Path, sha256: str) -> bool:
    """True if the file has this hash; an unchanged file is hashed once, since a gigabyte takes seconds."""
    status = file.stat()
    facts = f"{sha256} {status.st_size} {status.st_mtime_ns}"
    stamp = stamp_file(sha256)
    with suppress(OSError):
        if stamp.read_text(encoding="utf-8") == facts:
            return True
    if digest(file) != sha256:
        return False
    with suppress(OSError):
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(facts, encoding="utf-8")
    return True


def stamp_file(sha256: str) -> Path:
    """The note that a file with this hash was verified."""
    return cache_folder() / f"{sha256[:12]}.verified"


def digest(file: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def existing_file(path: str | os.PathLike[str], source: str) -> Path:
    """The file with this path; `source` says where the path comes from."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise FileNotFoundError(f"{source} is '{file}', and there is no such file; give the path of a GGUF file.")
    return file
