"""Which overrides hold for the prompt as it is today, and which do not and why."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from weakincentives.prompt.overrides.descriptor import PromptDescriptor, SectionDescriptor, ToolDescriptor
from weakincentives.prompt.overrides.override import LATEST, PromptOverride, ToolOverride
from weakincentives.prompt.overrides.store import PromptOverridesStore
from weakincentives.prompt.text import TemplateText, split_text
from weakincentives.prompt.tool import Tool
from weakincentives.prompt.visibility import SectionPath

logger = logging.getLogger(__name__)

Reason = Literal["changed", "missing", "closed", "invalid"]


@dataclass(frozen=True, slots=True)
class StaleOverride:
    """An override that was left out: the text changed since, is gone, is closed, or the override does not fit it."""

    kind: Literal["section", "tool"]
    name: str
    reason: Reason
    detail: str

    def __str__(self) -> str:
        return f"{self.kind} '{self.name}': {self.detail}"


@dataclass(frozen=True, slots=True)
class Applied:
    """What holds: bodies by section, words by tool; `stale` lists what was left out."""

    section_bodies: Mapping[SectionPath, str] = field(default_factory=dict)
    tool_overrides: Mapping[str, ToolOverride] = field(default_factory=dict)
    stale: tuple[StaleOverride, ...] = ()

    @property
    def texts(self) -> dict[SectionPath, TemplateText]:
        """The bodies, split at their placeholders."""
        return {path: split_text(body, where=".".join(path)) for path, body in self.section_bodies.items()}

    def tool(self, tool: Tool[Any, Any]) -> Tool[Any, Any]:
        """The tool with the words that hold for it."""
        override = self.tool_overrides.get(tool.name)
        return tool if override is None else tool.with_descriptions(override.description, override.params)


def apply(descriptor: PromptDescriptor, override: PromptOverride | None) -> Applied:
    """Sort an override into what holds for the prompt as described and what does not."""
    if override is None:
        return Applied()
    bodies: dict[SectionPath, str] = {}
    tools: dict[str, ToolOverride] = {}
    stale: list[StaleOverride] = []
    for path, body in override.sections.items():
        section = descriptor.sections.get(path)
        problem = _problem(section, body.expected_hash)
        if problem is None and section is not None and (misfit := section.problem_with(body.body)):
            problem = "invalid", misfit
        if problem is None:
            bodies[path] = body.body
        else:
            stale.append(StaleOverride("section", ".".join(path), *problem))
    for name, words in override.tools.items():
        tool = descriptor.tools.get(name)
        problem = _problem(tool, words.expected_hash)
        if problem is None and tool is not None and (misfit := tool.problem_with(words.description, words.params)):
            problem = "invalid", misfit
        if problem is None:
            tools[name] = words
        else:
            stale.append(StaleOverride("tool", name, *problem))
    return Applied(bodies, tools, tuple(stale))


def applied_from(store: PromptOverridesStore, descriptor: PromptDescriptor, tag: str = LATEST) -> Applied:
    """What the store's override does to the prompt today; everything left out is logged as a warning."""
    applied = apply(descriptor, store.resolve(descriptor, tag))
    for stale in applied.stale:
        logger.warning("Override %s/%s@%s not applied to %s", descriptor.ns, descriptor.key, tag, stale)
    return applied


def _problem(described: SectionDescriptor | ToolDescriptor | None, expected_hash: str) -> tuple[Reason, str] | None:
    if described is None:
        return "missing", "the prompt has none of this name"
    if not described.accepts_overrides:
        return "closed", "it accepts no overrides"
    if described.content_hash != expected_hash:
        return "changed", "it was written for other text than today's; write it again or delete it"
    return None
