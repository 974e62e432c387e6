"""Prompt overrides: replace a prompt's wording without touching its code, and store the replacements.

An override applies as long as the text it was written for, identified by its hash, has not changed.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from textwrap import dedent
from typing import Any, Literal, Protocol, TypeVar

from weakincentives import serde
from weakincentives.errors import PromptError, PromptValidationError, SerdeError
from weakincentives.filesystem import HostFilesystem
from weakincentives.prompt.outline import Node, Outline
from weakincentives.prompt.section import split_text
from weakincentives.prompt.toolkit import MAX_DESCRIPTION, Tool, check_description
from weakincentives.prompt.visibility import SectionPath

try:
    import fcntl
except ImportError:  # Not on Windows; between processes, only the atomic rename protects there.
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

Reason = Literal["missing", "closed", "changed", "invalid"]
LATEST = "latest"
FORMAT = "weakincentives.override/1"
_PLAIN = re.compile(r"[a-z0-9_-][a-z0-9._-]*(?<!\.)")
_MAX_LENGTH = 100


@dataclass(frozen=True, slots=True)
class SectionOverride:
    """A replacement body for a section, written when the section's text had `expected_hash`."""

    expected_hash: str
    body: str


@dataclass(frozen=True, slots=True)
class ToolOverride:
    """Replacement descriptions for a tool and its params, written when the originals had `expected_hash`."""

    expected_hash: str
    description: str | None = None
    param_descriptions: Mapping[str, str] = field(default_factory=dict)


AnyOverride = SectionOverride | ToolOverride
OverrideT = TypeVar("OverrideT", SectionOverride, ToolOverride)


@dataclass(frozen=True, slots=True)
class PromptOverride:
    """Every override of one prompt under one tag."""

    ns: str
    key: str
    tag: str = LATEST
    sections: Mapping[SectionPath, SectionOverride] = field(default_factory=dict)
    tools: Mapping[str, ToolOverride] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what in ("ns", "key", "tag"):
            value = getattr(self, what)
            if not isinstance(value, str) or not value.strip():
                raise PromptValidationError(f"A prompt override needs a non-empty {what}; got {value!r}.")

    def with_section(self, path: SectionPath, override: SectionOverride) -> PromptOverride:
        return replace(self, sections={**self.sections, path: override})

    def without_section(self, path: SectionPath) -> PromptOverride:
        return replace(self, sections={other: kept for other, kept in self.sections.items() if other != path})

    def with_tool(self, name: str, override: ToolOverride) -> PromptOverride:
        return replace(self, tools={**self.tools, name: override})

    def without_tool(self, name: str) -> PromptOverride:
        return replace(self, tools={other: kept for other, kept in self.tools.items() if other != name})

    def tagged(self, tag: str) -> PromptOverride:
        """The same under another tag, for example to promote "latest" to "stable"."""
        return replace(self, tag=tag)


@dataclass(frozen=True, slots=True)
class SectionDescriptor:
    """The hash of a section's text; `placeholders` are the names that a body may use, none if it is `literal`."""

    path: SectionPath
    content_hash: str
    accepts_overrides: bool
    placeholders: tuple[str, ...] = ()
    source: str | None = field(default=None, repr=False, compare=False)
    literal: bool = False

    def misfit(self, override: SectionOverride) -> str:
        """Why the section cannot show the body of an override; empty if it can."""
        try:
            names = split_text(override.body, where="its body", literal=self.literal).names
        except PromptValidationError as error:
            return str(error)
        unknown = ", ".join(f"${{{name}}}" for name in dict.fromkeys(names) if name not in self.placeholders)
        known = ", ".join(self.placeholders) or "none"
        return f"its body uses {unknown}, which the section cannot fill; it has: {known}" if unknown else ""


@dataclass(frozen=True, slots=True)
class ToolDescriptor:
    """The hash of a tool's wording: its description and those of its params."""

    name: str
    content_hash: str
    accepts_overrides: bool
    description: str = field(default="", repr=False, compare=False)
    param_descriptions: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def misfit(self, override: ToolOverride) -> str:
        """Why the tool cannot have the words of an override; empty if it can."""
        if override.description is not None:
            try:
                check_description("it", override.description, MAX_DESCRIPTION)
            except PromptValidationError as error:
                return str(error).rstrip(".")
        unknown = ", ".join(repr(name) for name in override.param_descriptions if name not in self.param_descriptions)
        known = ", ".join(self.param_descriptions) or "none"
        return f"it has no param {unknown}; it has: {known}" if unknown else ""


@dataclass(frozen=True, slots=True)
class PromptDescriptor:
    """The content hashes of a template's sections and tools."""

    ns: str
    key: str
    sections: Mapping[SectionPath, SectionDescriptor]
    tools: Mapping[str, ToolDescriptor]

    @classmethod
    def of(cls, ns: str, key: str, outline: Outline) -> PromptDescriptor:
        """The descriptor of a template's own text, without any override."""
        tools: dict[str, ToolDescriptor] = {}
        for tool in (tool for node in outline.nodes for tool in node.tools):
            tools[tool.name] = _describe_tool(tool, twin=tool.name in tools)
        return cls(ns, key, {node.path: _describe_section(node) for node in outline.nodes}, tools)

    def override_section(self, path: SectionPath, body: str) -> SectionOverride:
        """An override for the section as it is today; raises if it cannot be applied."""
        section = self.sections.get(path)
        if section is None:
            known = ", ".join(".".join(other) for other in self.sections)
            if isinstance(path, str):
                example = tuple(str(path).split("."))
                raise PromptValidationError(f"A section's path is a tuple of keys, such as {example!r}, not {path!r}.")
            raise PromptValidationError(f"Prompt '{self.key}' has no section '{'.'.join(path)}'; it has: {known}.")
        return _applicable(f"Section '{'.'.join(path)}'", section, SectionOverride(section.content_hash, body))

    def override_tool(
        self, name: str, *, description: str | None = None, param_descriptions: Mapping[str, str] | None = None
    ) -> ToolOverride:
        """An override for the tool as it is today; raises if it cannot be applied."""
        tool = self.tools.get(name)
        if tool is None:
            raise PromptValidationError(f"Prompt '{self.key}' has no tool '{name}'; it has: {', '.join(self.tools)}.")
        override = ToolOverride(tool.content_hash, description, param_descriptions or {})
        return _applicable(f"Tool '{name}'", tool, override)

    def new_override(self, tag: str) -> PromptOverride:
        """An override of this prompt with nothing in it yet."""
        return PromptOverride(self.ns, self.key, tag)


@dataclass(frozen=True, slots=True)
class StaleOverride:
    """An override that was not applied: its target has changed, is gone or closed, or the override does not fit it."""

    kind: Literal["section", "tool"]
    name: str
    reason: Reason
    detail: str

    def __str__(self) -> str:
        return f"{self.kind} '{self.name}': {self.detail}"


@dataclass(frozen=True, slots=True)
class Applied:
    """What applies: bodies by section, descriptions by tool; `stale` lists what does not."""

    section_bodies: Mapping[SectionPath, str] = field(default_factory=dict)
    tools: Mapping[str, ToolOverride] = field(default_factory=dict)
    stale: tuple[StaleOverride, ...] = ()


def apply_override(descriptor: PromptDescriptor, override: PromptOverride) -> Applied:
    """What the override changes in the prompt as it is today; logs a warning for what does not apply."""
    applied = check_override(descriptor, override)
    for stale in applied.stale:
        logger.warning("Override %s/%s@%s not applied to %s", override.ns, override.key, override.tag, stale)
    return applied


def check_override(descriptor: PromptDescriptor, override: PromptOverride) -> Applied:
    """`apply_override` without logging."""
    sections = {path: _problem(descriptor.sections.get(path), body) for path, body in override.sections.items()}
    tools = {name: _problem(descriptor.tools.get(name), words) for name, words in override.tools.items()}
    return Applied(
        {path: override.sections[path].body for path, problem in sections.items() if problem is None},
        {name: override.tools[name] for name, problem in tools.items() if problem is None},
        (
            *(StaleOverride("section", ".".join(path), *problem) for path, problem in sections.items() if problem),
            *(StaleOverride("tool", name, *problem) for name, problem in tools.items() if problem),
        ),
    )


def _problem(known: Any, override: AnyOverride) -> tuple[Reason, str] | None:
    """Why an override does not apply to what the prompt has under its name now."""
    if known is None:
        return "missing", "the prompt has nothing of this name"
    if not known.accepts_overrides:
        return "closed", "it does not accept overrides"
    if override.expected_hash != known.content_hash:
        return "changed", "it was written for text that has changed since; rewrite it or delete it"
    misfit: str = known.misfit(override)
    return ("invalid", misfit) if misfit else None


def _applicable(what: str, known: SectionDescriptor | ToolDescriptor, override: OverrideT) -> OverrideT:
    if problem := _problem(known, override):
        raise PromptValidationError(f"{what} cannot be overridden like this: {problem[1]}.")
    return override


def diff(descriptor: PromptDescriptor, override: PromptOverride) -> str:
    """A unified diff from the prompt's own text to the override's; it notes what is not applied, and why."""
    stale = {(item.kind, item.name): f"# not applied: {item}\n" for item in check_override(descriptor, override).stale}
    parts: list[str] = []
    for path, body in override.sections.items():
        section, name = descriptor.sections.get(path), ".".join(path)
        parts.append(stale.get(("section", name), ""))
        parts += _unified(f"section {name}", (section and section.source) or "", body.body, override.tag)
    for name, words in override.tools.items():
        tool = descriptor.tools.get(name)
        parts.append(stale.get(("tool", name), ""))
        if words.description is not None:
            parts += _unified(f"tool {name}", tool.description if tool else "", words.description, override.tag)
        for param, text in words.param_descriptions.items():
            before = tool.param_descriptions.get(param, "") if tool else ""
            parts += _unified(f"tool {name} param {param}", before, text, override.tag)
    return "".join(parts)


class PromptOverridesError(PromptError):
    """Stored overrides cannot be read or written."""


class PromptOverridesStore(Protocol):
    """Keeps one `PromptOverride` per prompt and tag."""

    def resolve(self, descriptor: PromptDescriptor, tag: str) -> PromptOverride | None:
        """The override stored for this prompt, stale or not; None if there is none."""
        ...

    def upsert(self, override: PromptOverride) -> None:
        """Store the override, replacing any that was there."""
        ...

    def delete(self, *, ns: str, key: str, tag: str) -> bool:
        """Delete the override; returns whether there was one."""
        ...

    def list(self, *, ns: str | None = None, key: str | None = None) -> tuple[PromptOverride, ...]:
        """Everything stored, by namespace, key and tag."""
        ...


class JsonPromptOverridesStore:
    """Keeps overrides under a directory, as `<ns>/<key>/<tag>.json`.

    A file is replaced atomically, by rename, so that a reader sees the old or the new one and a crash leaves no partial
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
        path, data = self.path_of(ns=override.ns, key=override.key, tag=override.tag), _encode(override)
        self.root_dir.mkdir(parents=True, exist_ok=True)
        HostFilesystem(self.root_dir).write(path.relative_to(self.root_dir).as_posix(), data)

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


def _unified(label: str, before: str, after: str, tag: str) -> Iterator[str]:
    from difflib import unified_diff

    return unified_diff(_lines(before), _lines(after), f"{label} (prompt)", f"{label} ({tag})")


def _lines(text: str) -> list[str]:
    return [f"{line}\n" for line in text.strip().splitlines()]


def _describe_section(node: Node) -> SectionDescriptor:
    section = node.section
    params_type = section.params_type
    names = () if params_type is None else tuple(column.name for column in serde.columns(params_type))
    if section.source is None:
        made_by = f"{type(section).__module__}.{type(section).__qualname__}"
        return SectionDescriptor(node.path, _hash("code", made_by), accepts_overrides=False, placeholders=names)
    source = dedent(section.source).strip()
    kind = "literal" if section.literal else "text"
    return SectionDescriptor(
        node.path, _hash(kind, source), section.accepts_overrides, names, source, literal=section.literal
    )


def _describe_tool(tool: Tool[Any, Any], *, twin: bool) -> ToolDescriptor:
    """A name shared by tools of two sections cannot be overridden: an override could not say which one it means."""
    params = tool.params
    words = [part for name, text in params.items() for part in (name, text)]
    return ToolDescriptor(
        tool.name,
        _hash("tool", tool.description, *words),
        tool.accepts_overrides and not twin,
        tool.description,
        params,
    )


def _hash(*parts: str) -> str:
    digest = sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


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
