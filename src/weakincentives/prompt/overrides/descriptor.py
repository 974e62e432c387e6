"""What a prompt says today, by content hash: the side that overrides are checked against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from hashlib import sha256
from textwrap import dedent
from typing import Any, Literal, NamedTuple, cast

from weakincentives.errors import PromptValidationError
from weakincentives.prompt.outline import Node, Outline
from weakincentives.prompt.overrides.override import PromptOverride, SectionOverride, ToolOverride
from weakincentives.prompt.text import split_text
from weakincentives.prompt.tool import MAX_DESCRIPTION, Tool
from weakincentives.prompt.visibility import SectionPath


class Problem(NamedTuple):
    """Why an override does not hold."""

    reason: Literal["missing", "closed", "changed", "invalid"]
    detail: str


MISSING = Problem("missing", "the prompt has none of this name")
CLOSED = Problem("closed", "it accepts no overrides")
CHANGED = Problem("changed", "it was written for other text than today's; write it again or delete it")


@dataclass(frozen=True, slots=True)
class SectionDescriptor:
    """A section's text by hash; `placeholders` are the names that a body may use."""

    path: SectionPath
    content_hash: str
    accepts_overrides: bool
    placeholders: tuple[str, ...] = ()
    source: str | None = field(default=None, repr=False, compare=False)

    def problem_with(self, override: SectionOverride) -> Problem | None:
        if not self.accepts_overrides:
            return CLOSED
        if override.expected_hash != self.content_hash:
            return CHANGED
        try:
            names = split_text(override.body, where="its body").names
        except PromptValidationError as error:
            return Problem("invalid", str(error))
        unknown = ", ".join(f"${{{name}}}" for name in dict.fromkeys(names) if name not in self.placeholders)
        if unknown:
            known = ", ".join(self.placeholders) or "none"
            return Problem("invalid", f"its body uses {unknown}, which the section cannot fill; it has: {known}")
        return None


@dataclass(frozen=True, slots=True)
class ToolDescriptor:
    """A tool's words by hash: its description and those of its params."""

    name: str
    content_hash: str
    accepts_overrides: bool
    description: str = field(default="", repr=False, compare=False)
    param_descriptions: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def problem_with(self, override: ToolOverride) -> Problem | None:
        if not self.accepts_overrides:
            return CLOSED
        if override.expected_hash != self.content_hash:
            return CHANGED
        if override.description is not None and not 1 <= len(override.description) <= MAX_DESCRIPTION:
            length = len(override.description)
            return Problem("invalid", f"its description must be 1 to {MAX_DESCRIPTION} characters, got {length}")
        unknown = ", ".join(repr(name) for name in override.param_descriptions if name not in self.param_descriptions)
        if unknown:
            known = ", ".join(self.param_descriptions) or "none"
            return Problem("invalid", f"it has no param {unknown}; it has: {known}")
        return None


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
        """An override for the section as it is today; one that could not be applied is refused."""
        section = self.sections.get(path)
        if section is None:
            known = ", ".join(".".join(other) for other in self.sections)
            if isinstance(path, str):
                example = tuple(str(path).split("."))
                raise PromptValidationError(f"A section's path is a tuple of keys, such as {example!r}, not {path!r}.")
            raise PromptValidationError(f"Prompt '{self.key}' has no section '{'.'.join(path)}'; it has: {known}.")
        override = SectionOverride(section.content_hash, body)
        if problem := section.problem_with(override):
            raise PromptValidationError(f"Section '{'.'.join(path)}' cannot be overridden so: {problem.detail}.")
        return override

    def override_tool(
        self, name: str, *, description: str | None = None, param_descriptions: Mapping[str, str] | None = None
    ) -> ToolOverride:
        """An override for the tool as it is today; one that could not be applied is refused."""
        tool = self.tools.get(name)
        if tool is None:
            raise PromptValidationError(f"Prompt '{self.key}' has no tool '{name}'; it has: {', '.join(self.tools)}.")
        override = ToolOverride(tool.content_hash, description, param_descriptions or {})
        if problem := tool.problem_with(override):
            raise PromptValidationError(f"Tool '{name}' cannot be overridden so: {problem.detail}.")
        return override

    def new_override(self, tag: str) -> PromptOverride:
        """An override of this prompt with nothing in it yet."""
        return PromptOverride(self.ns, self.key, tag)


def _describe_section(node: Node) -> SectionDescriptor:
    section = node.section
    params_type = section.params_type
    names = () if params_type is None else tuple(column.name for column in fields(cast(Any, params_type)))
    if section.source is None:
        made_by = f"{type(section).__module__}.{type(section).__qualname__}"
        return SectionDescriptor(node.path, _hash("code", made_by), accepts_overrides=False, placeholders=names)
    source = dedent(section.source).strip()
    return SectionDescriptor(node.path, _hash("text", source), section.accepts_overrides, names, source)


def _describe_tool(tool: Tool[Any, Any], *, twin: bool) -> ToolDescriptor:
    """A name that two tools share in different sections is closed: an override could not say which one it means."""
    described = tool.param_descriptions
    columns = () if tool.params_type is None else fields(cast(Any, tool.params_type))
    params = {column.name: described.get(column.name, "") for column in columns}
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
