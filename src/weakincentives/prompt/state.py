"""Which sections are open, summarized or absent at one moment, and what decided it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from weakincentives.errors import PromptRenderError
from weakincentives.prompt.outline import ABSENT, PACKED, Node, Outline, Params
from weakincentives.prompt.section import missing_summary
from weakincentives.prompt.visibility import (
    Overrides,
    SectionVisibility,
    VisibilityOverrides,
    check_visibility,
    with_ancestors,
)
from weakincentives.session import Session

Decider = Literal["declared", "selector", "override", "session", "budget"]


@dataclass(frozen=True, slots=True)
class VisibilityState:
    """One packed visibility per node of the outline, each as if its ancestors were open.

    `decided` says what decided those that differ from what was declared.
    """

    packed: bytes
    decided: Mapping[int, Decider] = field(default_factory=dict)

    def with_visibility(self, node: Node, packed: int, decider: Decider) -> VisibilityState:
        states = bytearray(self.packed)
        states[node.index] = packed
        return VisibilityState(bytes(states), {**self.decided, node.index: decider})

    def with_overrides(self, outline: Outline, overrides: Overrides, decider: Decider) -> VisibilityState:
        """The state with overrides applied; paths that the outline does not have are left out."""
        states, decided = bytearray(self.packed), dict(self.decided)
        for path, visibility in with_ancestors(overrides).items():
            node = outline.by_path.get(path)
            if node is None or states[node.index] == ABSENT:
                continue
            if visibility is SectionVisibility.SUMMARY and node.summary is None:
                raise missing_summary(node.key)
            states[node.index] = PACKED.index(visibility)
            decided[node.index] = decider
        return VisibilityState(bytes(states), decided)

    def by_key(self, outline: Outline) -> dict[str, SectionVisibility]:
        return {node.key: PACKED[self.packed[node.index]] for node in outline.nodes}


def state_from_keys(outline: Outline, visibility: Mapping[str, SectionVisibility]) -> VisibilityState:
    """The state that `by_key` described; a section that it does not name is absent."""
    absent = SectionVisibility.ABSENT
    return VisibilityState(bytes(PACKED.index(visibility.get(node.key, absent)) for node in outline.nodes))


def declared_state(outline: Outline, params: Params, session: Session | None, overrides: Overrides) -> VisibilityState:
    """What the author declared, with the caller's overrides applied."""
    if not outline.dynamic and not overrides:
        return VisibilityState(outline.base)
    unknown = [path for path in overrides if path not in outline.by_path]
    if unknown:
        raise PromptRenderError(
            f"visibility_overrides names {unknown[0]!r}, which is no section path of this prompt; "
            f"paths are tuples of keys, such as {next(iter(outline.by_path), ('key',))!r}."
        )
    chosen = with_ancestors({path: check_visibility(visibility) for path, visibility in overrides.items()})
    states = bytearray(outline.base)
    decided: dict[int, Decider] = {}
    for node in outline.dynamic:
        section = node.section
        if any(states[ancestor.index] == ABSENT for ancestor in outline.ancestors(node)):
            continue
        if not section.is_enabled(params[node.source], session=session):
            states[node.index] = ABSENT
        elif node.path not in chosen and not isinstance(section.visibility, SectionVisibility):
            visibility = section.declared_visibility(params[node.source], session=session)
            states[node.index] = PACKED.index(visibility)
            decided[node.index] = "selector"
    return VisibilityState(bytes(states), decided).with_overrides(outline, chosen, "override")


def session_state(outline: Outline, base: VisibilityState, session: Session | None) -> VisibilityState:
    """The base with the session's overrides on top; paths of other prompts in the session are ignored."""
    if session is None:
        return base
    current = session[VisibilityOverrides].latest()
    if current is None or not current.overrides:
        return base
    return base.with_overrides(outline, current.overrides, "session")
