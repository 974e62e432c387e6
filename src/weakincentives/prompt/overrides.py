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
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from weakincentives import serde
from weakincentives.errors import PromptError, PromptValidationError, SerdeError
from weakincentives.filesystem import HostFilesystem
from weakincentives.prompt.outline import Node, Outline, Replacements, tool_key
from weakincentives.prompt.section import Section, TemplateText, format_problem, has_own, split_text
from weakincentives.prompt.tools import MAX_DESCRIPTION, Tool, check_description
from weakincentives.prompt.visibility import SectionPath, SectionVisibility, check_visibility

try:
    import fcntl
except ImportError:  # Not on Windows; between processes, only the atomic rename protects there.
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

Kind = Literal["section", "summary", "visibility", "tool"]
Reason = Literal["missing", "closed", "changed", "invalid"]
LATEST = "latest"
_MAPS: dict[Kind, str] = {
    "section": "sections",
    "summary": "summaries",
    "visibility": "visibility",
    "tool": "tools",
}
FULL, SUMMARY = OVERRIDABLE = (SectionVisibility.FULL, SectionVisibility.SUMMARY)
FORMAT = "weakincentives.override/1"
_PLAIN = re.compile(r"[a-z0-9_-][a-z0-9._-]*(?<!\.)")
_MAX_LENGTH = 100


@dataclass(frozen=True, slots=True)
class SectionOverride:
    """A replacement for a section's text, summary or visibility, written when that had `expected_hash`."""

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

    ns: str  #: the template's namespace
    key: str  #: the template's key
    tag: str = LATEST  #: the tag it is stored under
    sections: Mapping[SectionPath, SectionOverride] = field(default_factory=dict)  #: bodies by section path
    tools: Mapping[str, ToolOverride] = field(default_factory=dict)  #: descriptions by tool name
    summaries: Mapping[SectionPath, SectionOverride] = field(default_factory=dict)  #: summaries by section path
    visibility: Mapping[SectionPath, SectionOverride] = field(default_factory=dict)  #: visibility by section path

    def __post_init__(self) -> None:
        for what in ("ns", "key", "tag"):
            value = getattr(self, what)
            if not isinstance(value, str) or not value.strip():
                raise PromptValidationError(f"A prompt override needs a non-empty {what}; got {value!r}.")

    def with_section(self, path: SectionPath, override: SectionOverride) -> PromptOverride:
        return replace(self, sections={**self.sections, path: override})

    def with_tool(self, name: str, override: ToolOverride) -> PromptOverride:
        return replace(self, tools={**self.tools, name: override})

    def with_summary(self, path: SectionPath, override: SectionOverride) -> PromptOverride:
        return replace(self, summaries={**self.summaries, path: override})

    def with_visibility(self, path: SectionPath, override: SectionOverride) -> PromptOverride:
        return replace(self, visibility={**self.visibility, path: override})

    def without(self, kind: Kind, name: SectionPath | str) -> PromptOverride:
        """The same without the override of a section's text, summary or visibility, or of a tool."""
        field = _MAPS[kind]
        kept: Any = {other: words for other, words in getattr(self, field).items() if other != name}
        return replace(self, **{field: kept})

    def tagged(self, tag: str) -> PromptOverride:
        """The same under another tag, for example to promote "latest" to "stable"."""
        return replace(self, tag=tag)


@dataclass(frozen=True, slots=True)
class SectionDescriptor:
    """The hash of a section's text, summary or declared visibility; `source` is that itself, unless code decides it.

    `misfit` says why it cannot be replaced by the body of an override, and is empty if it can.
    """

    path: SectionPath
    content_hash: str
    accepts_overrides: bool
    source: str | None = field(default=None, repr=False, compare=False)
    placeholders: tuple[str, ...] = ()
    misfit: Callable[[SectionOverride], str] = field(default=lambda override: "", repr=False, compare=False)


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
    """The content hashes of a template's sections, with their summaries and visibility, and of its tools."""

    ns: str  #: the template's namespace
    key: str  #: the template's key
    sections: Mapping[SectionPath, SectionDescriptor]  #: hashes of bodies, by section path
    tools: Mapping[str, ToolDescriptor]  #: hashes of descriptions and params, by tool name
    summaries: Mapping[SectionPath, SectionDescriptor] = field(default_factory=dict)  #: hashes, by section path
    visibility: Mapping[SectionPath, SectionDescriptor] = field(default_factory=dict)  #: hashes, by section path

    @classmethod
    def of(cls, ns: str, key: str, outline: Outline) -> PromptDescriptor:
        """The descriptor of a template's own text, without any override."""
        tools: dict[str, ToolDescriptor] = {}
        for tool in (tool for node in outline.nodes for tool in node.tools):
            tools[tool.name] = _describe_tool(tool, twin=tool.name in tools)
        nodes = outline.nodes
        return cls(
            ns,
            key,
            {node.path: _describe_section(node) for node in nodes},
            tools,
            {node.path: _describe_summary(node) for node in nodes},
            {node.path: _describe_visibility(node) for node in nodes},
        )

    def override_section(self, path: SectionPath, body: str) -> SectionOverride:
        """An override for the section's text as it is today; raises if it cannot be applied."""
        return self._override_section("Section", self.sections, path, body)

    def override_summary(self, path: SectionPath, summary: str) -> SectionOverride:
        """An override for the section's summary as it is today, if it has one; raises if it cannot be applied."""
        return self._override_section("The summary of section", self.summaries, path, summary)

    def override_visibility(self, path: SectionPath, visibility: SectionVisibility) -> SectionOverride:
        """An override for the section's visibility as declared today; raises if it cannot be applied."""
        value = check_visibility(visibility).value
        return self._override_section("The visibility of section", self.visibility, path, value)

    def _override_section(
        self, what: str, known: Mapping[SectionPath, SectionDescriptor], path: SectionPath, body: str
    ) -> SectionOverride:
        described = known.get(path)
        if described is None:
            if isinstance(path, str):
                example = tuple(str(path).split("."))
                raise PromptValidationError(f"A section's path is a tuple of keys, such as {example!r}, not {path!r}.")
            names = ", ".join(".".join(other) for other in known)
            raise PromptValidationError(f"Prompt '{self.key}' has no section '{'.'.join(path)}'; it has: {names}.")
        return _applicable(f"{what} '{'.'.join(path)}'", described, SectionOverride(described.content_hash, body))

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

    kind: Kind
    name: str
    reason: Reason
    detail: str

    def __str__(self) -> str:
        return f"{self.kind} '{self.name}': {self.detail}"


class Applied(NamedTuple):
    """The part of an override that applies; `stale` lists the rest."""

    override: PromptOverride
    stale: tuple[StaleOverride, ...] = ()


def apply_override(outline: Outline, descriptor: PromptDescriptor, override: PromptOverride) -> Outline:
    """A template's outline with the part of an override that applies to it today; logs a warning for the rest."""
    applied, left_out = check_override(descriptor, override)
    for stale in left_out:
        logger.warning("Override %s/%s@%s not applied to %s", override.ns, override.key, override.tag, stale)

    def text(path: SectionPath, words: SectionOverride, *, strict: bool = True) -> TemplateText:
        literal = outline.by_path[path].section.literal
        return split_text(words.body, where=".".join(path), strict=strict, literal=literal)

    replaced = Replacements(
        {path: text(path, words) for path, words in applied.sections.items()},
        {path: text(path, words, strict=False) for path, words in applied.summaries.items()},
        {path: SectionVisibility(chosen.body) for path, chosen in applied.visibility.items()},
    )
    tools = {
        tool_key(node.key, tool): tool.with_descriptions(words.description, words.param_descriptions)
        for node in outline.nodes
        for tool in node.tools
        if (words := applied.tools.get(tool.name)) is not None
    }
    return outline.overridden(replaced, tools) if tools or replaced != Replacements() else outline


def check_override(descriptor: PromptDescriptor, override: PromptOverride) -> Applied:
    """The part of an override that applies, and what does not."""
    applied, stale = override, list[StaleOverride]()
    for kind, known, given in _parts(descriptor, override):
        for name, words in given.items():
            problem = _problem(known.get(name), words)
            closes = problem is None and kind == "visibility" and words.body == SUMMARY.value
            if closes and descriptor.summaries[name].source is None and name not in applied.summaries:
                problem = "invalid", "it has no summary to show; override that too"
            if problem is not None:
                stale.append(StaleOverride(kind, name if kind == "tool" else ".".join(name), *problem))
                applied = applied.without(kind, name)
    return Applied(applied, tuple(stale))


def _parts(
    descriptor: PromptDescriptor, override: PromptOverride
) -> Iterator[tuple[Kind, Mapping[Any, Any], Mapping[Any, Any]]]:
    """The prompt's texts and their replacements, of each kind, by path or name."""
    for kind, name in _MAPS.items():
        yield kind, getattr(descriptor, name), getattr(override, name)


def _problem(known: Any, override: AnyOverride) -> tuple[Reason, str] | None:
    """Why an override does not apply to what the prompt has under its name now."""
    if known is None:
        return "missing", "the prompt has nothing of this name"
    if not known.accepts_overrides:
        by_code = known.content_hash == _hash("visibility")
        return "closed", "a function decides it" if by_code else "it does not accept overrides"
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
    for kind, known, given in _parts(descriptor, override):
        for name, words in given.items():
            key, described = name if kind == "tool" else ".".join(name), known.get(name)
            parts.append(stale.get((kind, key), ""))
            before = {"": described.description, **described.param_descriptions} if kind == "tool" and described else {}
            if kind != "tool":
                parts += _unified(f"{kind} {key}", (described and described.source) or "", words.body, override.tag)
                continue
            texts = {"": words.description} if words.description is not None else {}
            for param, text in {**texts, **words.param_descriptions}.items():
                label = f"tool {key} param {param}" if param else f"tool {key}"
                parts += _unified(label, before.get(param, ""), text, override.tag)
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class Experiment:
    """Tries an override on a share of the traffic: the same key, such as a conversation's id, always gets the same."""

    name: str  #: seeds the assignment, so that experiments are independent
    share: float  #: the part of the traffic that gets the override, from 0 to 1
    tag: str  #: the tag of the override to try

    def __post_init__(self) -> None:
        if not self.name or not self.tag or not 0 <= self.share <= 1:
            raise PromptValidationError(f"An experiment needs a name, a tag and a share from 0 to 1, got {self}.")

    def assign(self, key: str) -> str | None:
        """The tag of the override for this key; None if it is not part of the share."""
        place = int.from_bytes(sha256(f"{self.name}\0{key}".encode()).digest()[:8], "big") / 2**64
        return self.tag if place < self.share else None


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
    if section.source is None:
        made_by = f"{type(section).__module__}.{type(section).__qualname__}"
        names = _placeholders(section)
        return SectionDescriptor(node.path, _hash("code", made_by), accepts_overrides=False, placeholders=names)
    kind = "literal" if section.literal else "text"
    return _describe_text(node, kind, section.source, is_open=section.accepts_overrides, strict=True)


def _describe_summary(node: Node) -> SectionDescriptor:
    """A section without a summary may be given one; code that writes its own summary is closed to overrides."""
    is_open = node.section.accepts_overrides and not has_own(node.section, "render", "summary_text")
    return _describe_text(node, "summary", node.section.summary, is_open=is_open, strict=False)


def _describe_text(node: Node, kind: str, text: str | None, *, is_open: bool, strict: bool) -> SectionDescriptor:
    """A text with placeholders; unless `strict`, a `$` that starts none is a dollar sign."""
    section, source = node.section, None if text is None else dedent(text).strip()

    def misfit(override: SectionOverride) -> str:
        try:
            text = split_text(override.body, where="its body", strict=strict, literal=section.literal)
        except PromptValidationError as error:
            return str(error)
        known = _placeholders(section)
        unknown = ", ".join(f"${{{name}}}" for name in dict.fromkeys(text.names) if name not in known)
        if unknown:
            return f"its body uses {unknown}, which the section cannot fill; it has: {', '.join(known) or 'none'}"
        problem = format_problem(section.params_type, text)
        return f"its body has {problem}" if problem else ""

    content_hash = _hash(kind) if source is None else _hash(kind, source)
    return SectionDescriptor(node.path, content_hash, is_open, source, _placeholders(section), misfit)


def _placeholders(section: Section[Any]) -> tuple[str, ...]:
    """The names that a section can fill in."""
    return () if section.params_type is None else tuple(column.name for column in serde.columns(section.params_type))


def _describe_visibility(node: Node) -> SectionDescriptor:
    """The declared visibility; it is closed to overrides if code decides it."""
    declared = node.section.visibility
    if node.selects or not isinstance(declared, SectionVisibility):
        return SectionDescriptor(node.path, _hash("visibility"), accepts_overrides=False)

    def misfit(override: SectionOverride) -> str:
        known = [each.value for each in OVERRIDABLE]
        return "" if override.body in known else f"it must be one of {', '.join(known)}, got {override.body!r}"

    content_hash, is_open = _hash("visibility", declared.value), node.section.accepts_overrides
    return SectionDescriptor(node.path, content_hash, is_open, declared.value, misfit=misfit)


def _describe_tool(tool: Tool[Any, Any], *, twin: bool) -> ToolDescriptor:
    """A name shared by tools of two sections cannot be overridden: an override would not identify one of them."""
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
class _Visibility:
    path: tuple[str, ...]
    expected_hash: str
    visibility: str


@dataclass(frozen=True, slots=True)
class _Document:
    format: str
    ns: str
    key: str
    tag: str
    sections: tuple[_Section, ...] = ()
    tools: tuple[_Tool, ...] = ()
    summaries: tuple[_Section, ...] = ()
    visibility: tuple[_Visibility, ...] = ()


def _encode(override: PromptOverride) -> bytes:
    """Write bodies as lists of lines, so that the file and its diffs are readable."""

    def lines(given: Mapping[SectionPath, SectionOverride]) -> tuple[_Section, ...]:
        return tuple(_Section(path, each.expected_hash, tuple(each.body.split("\n"))) for path, each in given.items())

    document = _Document(
        FORMAT,
        override.ns,
        override.key,
        override.tag,
        lines(override.sections),
        tuple(_Tool(name, t.expected_hash, t.description, t.param_descriptions) for name, t in override.tools.items()),
        lines(override.summaries),
        tuple(_Visibility(path, each.expected_hash, each.body) for path, each in override.visibility.items()),
    )
    return (json.dumps(serde.dump(document), indent=2, ensure_ascii=False) + "\n").encode()


def _decode(path: Path, data: bytes) -> PromptOverride:
    try:
        if (found := serde.decode(dict[str, Any], data).get("format", FORMAT)) != FORMAT:
            raise PromptOverridesError(
                f"Override file {path} has format {found!r} and this release reads {FORMAT!r}; "
                "use the release that wrote it, or delete the file and write the override again."
            )
        document = serde.decode(_Document, data)
        sections, summaries = (
            {each.path: SectionOverride(each.expected_hash, "\n".join(each.body)) for each in given}
            for given in (document.sections, document.summaries)
        )
        visibility = {each.path: SectionOverride(each.expected_hash, each.visibility) for each in document.visibility}
        tools = {
            each.name: ToolOverride(each.expected_hash, each.description, each.param_descriptions)
            for each in document.tools
        }
        return PromptOverride(document.ns, document.key, document.tag, sections, tools, summaries, visibility)
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
