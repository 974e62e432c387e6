"""Which overrides hold for the prompt as it is today, and which do not and why."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from weakincentives.prompt.overrides.descriptor import MISSING, PromptDescriptor
from weakincentives.prompt.overrides.override import PromptOverride, ToolOverride
from weakincentives.prompt.visibility import SectionPath

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StaleOverride:
    """An override that was left out: the text changed since, is gone, is closed, or the override does not fit it."""

    kind: Literal["section", "tool"]
    name: str
    reason: Literal["missing", "closed", "changed", "invalid"]
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
        if problem := section.problem_with(body) if section else MISSING:
            stale.append(StaleOverride("section", ".".join(path), *problem))
        else:
            bodies[path] = body.body
    for name, words in override.tools.items():
        tool = descriptor.tools.get(name)
        if problem := tool.problem_with(words) if tool else MISSING:
            stale.append(StaleOverride("tool", name, *problem))
        else:
            tools[name] = words
    return Applied(bodies, tools, tuple(stale))
