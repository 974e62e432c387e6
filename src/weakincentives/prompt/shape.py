"""Which sections are open, summarized or absent right now, and who decided it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from weakincentives.errors import PromptRenderError
from weakincentives.prompt.outline import ABSENT, STATES, Node, Outline
from weakincentives.prompt.params import Params
from weakincentives.prompt.section import missing_summary
from weakincentives.prompt.visibility import (
    SectionPath,
    SectionVisibility,
    VisibilityOverrides,
    checked_visibility,
)
from weakincentives.session import Session

Decider = Literal["declared", "selector", "override", "session", "budget"]
Overrides = Mapping[SectionPath, SectionVisibility]


@dataclass(frozen=True, slots=True)
class Shape:
    """One state per node of the outline (as if its ancestors were open), and what decided the unusual ones."""

    states: bytes
    decided: Mapping[int, Decider] = field(default_factory=dict)

    def with_state(self, node: Node, state: int, decider: Decider) -> Shape:
        states = bytearray(self.states)
        states[node.index] = state
        return Shape(bytes(states), {**self.decided, node.index: decider})


def declared_shape(outline: Outline, params: Params, session: Session | None, overrides: Overrides) -> Shape:
    """What the author declared, with the caller's overrides applied."""
    if not outline.dynamic and not overrides:
        return Shape(outline.base)
    unknown = [path for path in overrides if path not in outline.by_path]
    if unknown:
        raise PromptRenderError(
            f"visibility_overrides names {unknown[0]!r}, which is no section path of this prompt; "
            f"paths are tuples of keys, such as {next(iter(outline.by_path), ('key',))!r}."
        )
    states = bytearray(outline.base)
    decided: dict[int, Decider] = {}
    chosen = _with_ancestors({path: checked_visibility(visibility) for path, visibility in overrides.items()})
    for node in outline.dynamic:
        section = node.section
        if any(states[up.index] == ABSENT for up in outline.ancestors(node)):
            continue
        if not section.is_enabled(params[node.source], session=session):
            states[node.index] = ABSENT
        elif node.path not in chosen and not isinstance(section.visibility, SectionVisibility):
            visibility = section.declared_visibility(params[node.source], session=session)
            states[node.index] = STATES[visibility]
            decided[node.index] = "selector"
    _apply(outline, states, decided, chosen, "override")
    return Shape(bytes(states), decided)


def session_shape(outline: Outline, base: Shape, session: Session | None) -> Shape:
    """The base with the session's overrides on top; paths of other prompts in the session do not matter here."""
    if session is None:
        return base
    slice_ = session[VisibilityOverrides].latest()
    if slice_ is None or not slice_.overrides:
        return base
    return opened_shape(outline, base, slice_.overrides)


def opened_shape(outline: Outline, base: Shape, overrides: Overrides) -> Shape:
    """The base as it would be with these overrides in the session."""
    states, decided = bytearray(base.states), dict(base.decided)
    known = {path: visibility for path, visibility in overrides.items() if path in outline.by_path}
    _apply(outline, states, decided, _with_ancestors(known), "session")
    return Shape(bytes(states), decided)


def _with_ancestors(overrides: Overrides) -> dict[SectionPath, SectionVisibility]:
    """Opening a path opens its ancestors too, unless they are named themselves."""
    result: dict[SectionPath, SectionVisibility] = {}
    for path, visibility in overrides.items():
        if visibility is SectionVisibility.FULL:
            for length in range(1, len(path)):
                result[path[:length]] = SectionVisibility.FULL
    result.update(overrides)
    return result


def _apply(
    outline: Outline,
    states: bytearray,
    decided: dict[int, Decider],
    overrides: Overrides,
    decider: Decider,
) -> None:
    for path, visibility in overrides.items():
        node = outline.by_path.get(path)
        if node is None or states[node.index] == ABSENT:
            continue
        if visibility is SectionVisibility.SUMMARY and node.summary is None:
            raise missing_summary(node.key)
        states[node.index] = STATES[visibility]
        decided[node.index] = decider
