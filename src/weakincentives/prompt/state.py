"""Which sections are open, summarized or absent at one moment, and what decided it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import Any, Literal

from weakincentives.errors import PromptRenderError, UnboundParamsError
from weakincentives.prompt.outline import ABSENT, FULL, PACKED, SUMMARY, Node, Outline, Params
from weakincentives.prompt.section import missing_summary
from weakincentives.prompt.visibility import (
    Overrides,
    SectionVisibility,
    VisibilityOverrides,
    check_visibility,
    with_ancestors,
)
from weakincentives.session import Session

Decider = Literal["declared", "selector", "override", "session", "budget", "rule", "search"]


@dataclass(frozen=True, slots=True)
class VisibilityState:
    """One packed visibility per node of the outline, each as if its ancestors were open.

    `decided` says what decided each visibility that differs from the declared one. `opened` are the nodes that were
    opened on request, by index, in order of opening.
    """

    packed: bytes
    decided: Mapping[int, Decider] = field(default_factory=dict)
    opened: tuple[int, ...] = ()

    def with_visibility(self, node: Node, packed: int, decider: Decider) -> VisibilityState:
        states = bytearray(self.packed)
        states[node.index] = packed
        newly = (node.index,) if packed == FULL and self.packed[node.index] != FULL else ()
        return VisibilityState(bytes(states), {**self.decided, node.index: decider}, self.opened + newly)

    def with_overrides(self, outline: Outline, overrides: Overrides, decider: Decider) -> VisibilityState:
        """The state with overrides applied; paths that are not in the outline are ignored."""
        states, decided, opened = bytearray(self.packed), dict(self.decided), list(self.opened)
        for path, visibility in with_ancestors(overrides).items():
            node = outline.by_path.get(path)
            if node is None or not self.exists(outline, node):
                continue
            if visibility is SectionVisibility.SUMMARY and node.summary is None:
                if decider == "session":  # It had a summary when it was closed.
                    continue
                raise missing_summary(node.key)
            if visibility is SectionVisibility.FULL and states[node.index] != FULL:
                opened.append(node.index)
            states[node.index] = PACKED.index(visibility)
            decided[node.index] = decider
        return VisibilityState(bytes(states), decided, tuple(opened))

    def with_opened(self, outline: Outline, node: Node, decider: Decider) -> VisibilityState:
        """The state with a section open, together with its closed ancestors."""
        state = self
        for up in (*reversed(list(outline.ancestors(node))), node):
            if state.packed[up.index] == SUMMARY:
                state = state.with_visibility(up, FULL, decider)
        return state

    def exists(self, outline: Outline, node: Node) -> bool:
        """Whether the section and all its ancestors are enabled."""
        return all(self.packed[up.index] != ABSENT for up in (node, *outline.ancestors(node)))

    def opened_at(self, outline: Outline, node: Node) -> int:
        """When the section became visible: 0 if it was declared open, else its place in `opened`."""
        return max(
            1 + self.opened.index(up.index) if up.index in self.opened else 0 for up in (node, *outline.ancestors(node))
        )

    def moved(self, before: Outline, after: Outline) -> VisibilityState:
        """The same state in an outline that has additional sections, which show what they declare."""
        packed = bytearray(after.base)
        index = {node.index: after.by_path[node.path].index for node in before.nodes if node.path in after.by_path}
        for old, new in index.items():
            packed[new] = self.packed[old]
        decided = {index[old]: decider for old, decider in self.decided.items() if old in index}
        return VisibilityState(bytes(packed), decided, tuple(index[old] for old in self.opened if old in index))

    def chosen(self, outline: Outline) -> dict[str, SectionVisibility]:
        """What a rule, the user's words or the token budget opened, by key."""
        nodes = (outline.nodes[at] for at, decider in self.decided.items() if decider in ("rule", "search", "budget"))
        return {node.key: PACKED[self.packed[node.index]] for node in nodes}

    def selected(self, outline: Outline) -> dict[str, SectionVisibility]:
        """What sections whose code decides show, or that they are absent, by key."""
        return {node.key: PACKED[self.packed[node.index]] for node in outline.dynamic}


def declared_state(
    outline: Outline,
    params: Params,
    session: Session | None,
    overrides: Overrides,
    selected: Mapping[str, SectionVisibility] = MappingProxyType({}),
) -> VisibilityState:
    """What the author declared, with the caller's overrides applied; sections in `selected` are not asked again."""
    if not outline.dynamic and not overrides:
        return VisibilityState(outline.base)
    unknown = [path for path in overrides if path not in outline.by_path]
    if unknown:
        raise PromptRenderError(
            f"visibility_overrides names {unknown[0]!r}, which is not a section path of this prompt; "
            f"paths are tuples of keys: {', '.join(map(repr, islice(outline.by_path, 10)))}"
            f"{' and others' if len(outline.by_path) > 10 else ''}."
        )
    chosen = with_ancestors({path: check_visibility(visibility) for path, visibility in overrides.items()})
    states = bytearray(outline.base)
    decided: dict[int, Decider] = {}
    for node in outline.dynamic:
        if any(states[up.index] == ABSENT for up in outline.ancestors(node)):
            continue
        if node.key in selected:
            states[node.index] = PACKED.index(selected[node.key])
        elif node.may_be_disabled and not _is_enabled(node, params, session):
            states[node.index] = ABSENT
        elif node.selects:
            visibility = _asked(node, "declared_visibility", params[node.source], session=session)
            states[node.index] = PACKED.index(_checked(node, visibility))
            decided[node.index] = "selector"
    return VisibilityState(bytes(states), decided).with_overrides(outline, chosen, "override")


def session_state(outline: Outline, base: VisibilityState, params: Params, session: Session | None) -> VisibilityState:
    """The base with the session's overrides on top; paths of other prompts in the session are ignored.

    Sections that decide their visibility themselves are asked last.
    """
    state = base
    current = None if session is None else session[VisibilityOverrides].latest()
    if current is not None and current.overrides:
        state = base.with_overrides(outline, current.overrides, "session")
    for node in outline.deciding:
        if not state.exists(outline, node):
            continue
        override = PACKED[base.packed[node.index]] if base.decided.get(node.index) == "override" else None
        visibility = _asked(
            node, "effective_visibility", override, params[node.source], session=session, path=node.path
        )
        packed = PACKED.index(_checked(node, visibility))
        if packed != state.packed[node.index]:
            state = state.with_visibility(node, packed, "selector")
    return state


def _is_enabled(node: Node, params: Params, session: Session | None) -> bool:
    """Ask the section; unbound params are only an error if it needs them to answer, or is enabled."""
    try:
        given = params[node.source]
    except UnboundParamsError as unbound:
        if node.section.enabled_needs_params:
            raise
        try:
            return bool(_asked(node, "is_enabled", None, session=session))
        except PromptRenderError:
            raise unbound from None
    return bool(_asked(node, "is_enabled", given, session=session))


def _asked(node: Node, method: str, *given: Any, **named: Any) -> Any:
    try:
        return getattr(node.section, method)(*given, **named)
    except PromptRenderError:
        raise
    except Exception as error:
        raise PromptRenderError(f"Section '{node.key}': {method}() raised {type(error).__name__}: {error}") from error


def _checked(node: Node, visibility: Any) -> SectionVisibility:
    """Reject what is neither FULL nor SUMMARY."""
    if isinstance(visibility, SectionVisibility) and visibility in (SectionVisibility.FULL, SectionVisibility.SUMMARY):
        return visibility
    raise PromptRenderError(
        f"Section '{node.key}': visibility= must return SectionVisibility.FULL or SUMMARY, got {visibility!r}."
    )
