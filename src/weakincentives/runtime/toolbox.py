"""The tools that a run has offered so far, and which of them may be called."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from weakincentives.prompt import HostedTool, Tool
from weakincentives.prompt.outline import AnyTool, Node
from weakincentives.prompt.view import tool_text
from weakincentives.runtime.run import ToolRef

logger = logging.getLogger("weakincentives.runtime")


@dataclass(frozen=True, slots=True)
class Difference:
    """What has to change for the model to have exactly the tools of the sections that are shown in full."""

    new: Sequence[tuple[ToolRef, AnyTool]]
    back: Sequence[ToolRef]
    gone: Sequence[ToolRef]


@dataclass(slots=True)
class Toolbox:
    """Tools in order of appearance: they are added at the end and revoked, never removed.

    `sections` says to which section each name belongs ('' for the built-in ones).
    """

    tools: list[Tool[Any, Any]] = field(default_factory=list)
    hosted_tools: list[HostedTool[Any]] = field(default_factory=list)
    refs: list[ToolRef] = field(default_factory=list)
    hosted_refs: list[ToolRef] = field(default_factory=list)
    registry: dict[str, Tool[Any, Any]] = field(default_factory=dict)
    sections: dict[str, str] = field(default_factory=dict)
    revoked: frozenset[str] = frozenset()
    _names: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Every name offered so far: ours, then hosted ones."""
        if len(self._names) != len(self.sections):
            self._names = tuple(ref.name for ref in (*self.refs, *self.hosted_refs))
        return self._names

    def definitions(self, names: Sequence[str]) -> tuple[str, ...]:
        """These tools about as a provider shows them to the model."""
        hosted = {tool.name: tool for tool in self.hosted_tools}
        return tuple(tool_text(self.registry.get(name) or hosted[name]) for name in names)

    def add(self, ref: ToolRef, tool: AnyTool) -> None:
        self.sections[ref.name] = ref.section_key
        if isinstance(tool, HostedTool):
            self.hosted_tools.append(tool)
            self.hosted_refs.append(ref)
        else:
            self.tools.append(tool)
            self.refs.append(ref)
            self.registry[ref.name] = tool

    def difference(self, offered: Iterable[tuple[Node | None, AnyTool]]) -> Difference:
        """Compare with what the sections of this moment offer; a name that is taken is skipped with a warning."""
        wanted = {tool.name: (ToolRef("" if owner is None else owner.key, tool.name), tool) for owner, tool in offered}
        new, back = [], []
        for name, (ref, tool) in wanted.items():
            known = self.sections.get(name)
            if known is None:
                new.append((ref, tool))
            elif known != ref.section_key:
                logger.warning("Skipping duplicate tool '%s' of section '%s' during injection.", name, ref.section_key)
            elif name in self.revoked:
                back.append(ref)
        gone = [
            ToolRef(key, name)
            for name, key in self.sections.items()
            if key and name not in self.revoked and (name not in wanted or wanted[name][0].section_key != key)
        ]
        return Difference(new, back, gone)
