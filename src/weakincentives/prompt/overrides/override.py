"""Overrides as values: which text replaces which, and what it was written for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from weakincentives.errors import PromptValidationError
from weakincentives.prompt.visibility import SectionPath

LATEST = "latest"


@dataclass(frozen=True, slots=True)
class SectionOverride:
    """Another body for a section, written when the section's text had `expected_hash`."""

    expected_hash: str
    body: str


@dataclass(frozen=True, slots=True)
class ToolOverride:
    """Other words for a tool and its params, written when its words had `expected_hash`."""

    expected_hash: str
    description: str | None = None
    param_descriptions: Mapping[str, str] = field(default_factory=dict)


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
