"""Overrides as files: one readable JSON document per namespace, key and tag."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from weakincentives import serde
from weakincentives.errors import PromptValidationError, SerdeError
from weakincentives.prompt.overrides.descriptor import (
    LATEST,
    PromptDescriptor,
    PromptOverride,
    PromptOverridesError,
    SectionOverride,
    ToolOverride,
)

try:
    import fcntl
except ImportError:  # Not on Windows; between processes, only the atomic rename protects there.
    fcntl = None  # type: ignore[assignment]

FORMAT = "weakincentives.override/1"


class JsonPromptOverridesStore:
    """Keeps overrides under a directory, as `<ns>/<key>/<tag>.json`.

    A file is replaced whole, by rename, so that a reader sees the old or the new one and a crash leaves no partial
    file. `update` reads, changes and writes under a lock, so that concurrent edits of different sections both survive.
    """

    def __init__(self, root_dir: str | os.PathLike[str]) -> None:
        self.root_dir = Path(root_dir)
        self._lock = threading.Lock()

    def resolve(self, descriptor: PromptDescriptor, tag: str = LATEST) -> PromptOverride | None:
        return self.get(ns=descriptor.ns, key=descriptor.key, tag=tag)

    def get(self, *, ns: str, key: str, tag: str = LATEST) -> PromptOverride | None:
        path = self.path_of(ns=ns, key=key, tag=tag)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise PromptOverridesError(f"Override file {path} cannot be read: {error}") from error
        override = _decode(path, data)
        if (override.ns, override.key, override.tag) != (ns, key, tag):
            raise PromptOverridesError(
                f"Override file {path} holds {override.ns}/{override.key}@{override.tag}, not {ns}/{key}@{tag}; "
                "its location and its content must agree"
            )
        return override

    def upsert(self, override: PromptOverride) -> None:
        with self._locked():
            self._write(override)

    def update(
        self, *, ns: str, key: str, tag: str = LATEST, change: Callable[[PromptOverride], PromptOverride]
    ) -> PromptOverride:
        """Change the stored override, or an empty one if there is none, and store the result."""
        with self._locked():
            changed = change(self.get(ns=ns, key=key, tag=tag) or PromptOverride(ns, key, tag))
            if (changed.ns, changed.key, changed.tag) != (ns, key, tag):
                raise PromptOverridesError(f"The change moved {ns}/{key}@{tag} elsewhere; use upsert for a copy")
            self._write(changed)
            return changed

    def delete(self, *, ns: str, key: str, tag: str = LATEST) -> bool:
        with self._locked():
            try:
                self.path_of(ns=ns, key=key, tag=tag).unlink()
            except FileNotFoundError:
                return False
            return True

    def list(self, *, ns: str | None = None, key: str | None = None) -> tuple[PromptOverride, ...]:
        found = [_decode(path, path.read_bytes()) for path in sorted(self.root_dir.glob("*/*/*.json"))]
        wanted = [override for override in found if ns in (None, override.ns) and key in (None, override.key)]
        return tuple(sorted(wanted, key=lambda override: (override.ns, override.key, override.tag)))

    def path_of(self, *, ns: str, key: str, tag: str = LATEST) -> Path:
        """The file of an override, whether it exists or not."""
        return self.root_dir / _file_name(ns) / _file_name(key) / f"{_file_name(tag)}.json"

    def _write(self, override: PromptOverride) -> None:
        path = self.path_of(ns=override.ns, key=override.key, tag=override.tag)
        data = _encode(override)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{os.urandom(8).hex()}.tmp")
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_directory(path.parent)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock:
            if fcntl is None:
                yield
                return
            self.root_dir.mkdir(parents=True, exist_ok=True)
            with open(self.root_dir / ".lock", "w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield


@dataclass(frozen=True, slots=True)
class _Section:
    path: tuple[str, ...]
    expected_hash: str
    body: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Tool:
    name: str
    expected_hash: str
    description: str | None = None
    param_descriptions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Document:
    format: str
    ns: str
    key: str
    tag: str
    sections: tuple[_Section, ...] = ()
    tools: tuple[_Tool, ...] = ()


def _encode(override: PromptOverride) -> bytes:
    """Write bodies as lists of lines, so that the file and its diffs are readable."""
    document = _Document(
        FORMAT,
        override.ns,
        override.key,
        override.tag,
        tuple(_Section(path, s.expected_hash, tuple(s.body.split("\n"))) for path, s in override.sections.items()),
        tuple(_Tool(name, t.expected_hash, t.description, t.param_descriptions) for name, t in override.tools.items()),
    )
    return (json.dumps(serde.dump(document), indent=2, ensure_ascii=False) + "\n").encode()


def _decode(path: Path, data: bytes) -> PromptOverride:
    try:
        document = serde.decode(_Document, data)
        if document.format != FORMAT:
            raise PromptOverridesError(f"Override file {path} has format {document.format!r}; expected {FORMAT!r}")
        return PromptOverride(
            document.ns,
            document.key,
            document.tag,
            {
                section.path: SectionOverride(section.expected_hash, "\n".join(section.body))
                for section in document.sections
            },
            {
                tool.name: ToolOverride(tool.expected_hash, tool.description, tool.param_descriptions)
                for tool in document.tools
            },
        )
    except (SerdeError, PromptValidationError) as error:
        raise PromptOverridesError(f"Override file {path} is damaged: {error}") from error


_PLAIN = re.compile(r"[a-z0-9_-][a-z0-9._-]*(?<!\.)")
_MAX_LENGTH = 100


def _file_name(name: str) -> str:
    """A file name for any text, distinct for distinct text even if the file system ignores case."""
    if not name.strip():
        raise PromptOverridesError(f"{name!r} cannot name a prompt override; ns, key and tag must not be empty")
    if _PLAIN.fullmatch(name) and len(name) <= _MAX_LENGTH:
        return name
    data = name.encode("utf-8", "surrogatepass")
    kept = b"abcdefghijklmnopqrstuvwxyz0123456789_-"
    escaped = "".join(chr(byte) if byte in kept else f"%{byte:02x}" for byte in data)
    if len(escaped) <= _MAX_LENGTH:
        return escaped
    return f"{escaped[:60]}%-{sha256(data).hexdigest()[:32]}"


def _sync_directory(directory: Path) -> None:
    if os.name != "posix":
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
