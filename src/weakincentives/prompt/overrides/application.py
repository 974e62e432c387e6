"""Which overrides hold for the prompt as it is today, and which do not and why."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from weakincentives.prompt.overrides.descriptor import PromptDescriptor, SectionDescriptor, ToolDescriptor
from weakincentives.prompt.overrides.override import PromptOverride, ToolOverride
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
    tools: Mapping[str, ToolOverride] = field(default_factory=dict)
    stale: tuple[StaleOverride, ...] = ()


def apply_override(descriptor: PromptDescriptor, override: PromptOverride) -> Applied:
    """What the override does to the prompt as it is today; everything left out is logged as a warning."""
    applied = check_override(descriptor, override)
    for stale in applied.stale:
        logger.warning("Override %s/%s@%s not applied to %s", override.ns, override.key, override.tag, stale)
    return applied


def check_override(descriptor: PromptDescriptor, override: PromptOverride) -> Applied:
    """The same, without a word in the log."""
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
        if (
            problem is None
            and tool is not None
            and (misfit := tool.problem_with(words.description, words.param_descriptions))
        ):
            problem = "invalid", misfit
        if problem is None:
            tools[name] = words
        else:
            stale.append(StaleOverride("tool", name, *problem))
    return Applied(bodies, tools, tuple(stale))


def _problem(described: SectionDescriptor | ToolDescriptor | None, expected_hash: str) -> tuple[Reason, str] | None:
    if described is None:
        return "missing", "the prompt has none of this name"
    if not described.accepts_overrides:
        return "closed", "it accepts no overrides"
    if described.content_hash != expected_hash:
        return "changed", "it was written for other text than today's; write it again or delete it"
    return None
