"""Which sections are open, summarized or absent at one moment, and what decided it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from types import MappingProxyType
from typing import Any, Literal

from weakincentives.errors import PromptRenderError, UnboundParamsError
from weakincentives.prompt.outline import Node, Outline, Params
from weakincentives.prompt.section import missing_summary
from weakincentives.prompt.visibility import (
    ABSENT,
    FULL,
    PACKED,
    Overrides,
    SectionVisibility,
    VisibilityOverrides,
    check_visibility,
    visible,
    with_ancestors,
)
from weakincentives.session import Session

Decider = Literal["declared", "selector", "override", "session", "budget", "rule", "search"]


@dataclass(frozen=True)
class VisibilityState:
    """The visibility of each section of an outline, packed: `own` as if its ancestors were open, `seen` with them.

    `decided` says what decided each visibility that differs from the declared one. `opened` are the nodes that were
    opened on request, by index, in order of opening.
    """

    outline: Outline
    own: bytes
    decided: Mapping[int, Decider] = field(default_factory=dict)
    opened: tuple[int, ...] = ()

    @cached_property
    def seen(self) -> bytes:
        return self.outline.cached(("seen", self.own), lambda: visible(self.own, self.outline.parents))

    @cached_property
    def _moments(self) -> dict[int, int]:
        return {index: moment for moment, index in enumerate(self.opened, start=1)}

    def opened_at(self, node: Node) -> int:
        """When the section became visible: 0 if it was declared open, else its place in `opened`."""
        return max(self._moments.get(up.index, 0) for up in (node, *self.outline.ancestors(node)))

    def with_overrides(self, overrides: Overrides, decider: Decider, *, alone: bool = False) -> VisibilityState:
        """The state with overrides applied, unless `alone` also to ancestors; paths not in the outline are ignored."""
        own, decided, opened = bytearray(self.own), dict(self.decided), list(self.opened)
        for path, visibility in (overrides if alone else with_ancestors(overrides)).items():
            node = self.outline.by_path.get(path)
            if node is None or self.seen[node.index] == ABSENT:
                continue
            if visibility is SectionVisibility.SUMMARY and node.summary is None:
                if decider == "session":  # It had a summary when it was closed.
                    continue
                raise missing_summary(node.key)
            if visibility is SectionVisibility.FULL and own[node.index] != FULL:
                opened.append(node.index)
            elif path not in overrides:
                continue
            own[node.index] = PACKED.index(visibility)
            decided[node.index] = decider
        return VisibilityState(self.outline, bytes(own), decided, tuple(opened))

    def moved(self, after: Outline) -> VisibilityState:
        """The same state in an outline that has additional sections, which show what they declare."""
        own, before = bytearray(after.base), self.outline.nodes
        index = {node.index: after.by_path[node.path].index for node in before if node.path in after.by_path}
        for old, new in index.items():
            own[new] = self.own[old]
        decided = {index[old]: decider for old, decider in self.decided.items() if old in index}
        return VisibilityState(after, bytes(own), decided, tuple(index[old] for old in self.opened if old in index))

    def chosen(self) -> dict[str, SectionVisibility]:
        """The visibility of sections that a rule, the user's words or the token budget opened, by key."""
        nodes = self.outline.nodes
        found = (nodes[at] for at, decider in self.decided.items() if decider in ("rule", "search", "budget"))
        return {node.key: PACKED[self.own[node.index]] for node in found}

    def selected(self) -> dict[str, SectionVisibility]:
        """The visibility of dynamic sections by key; ABSENT if disabled."""
        return {node.key: PACKED[self.own[node.index]] for node in self.outline.dynamic}


def declared_state(
    outline: Outline,
    params: Params,
    session: Session | None,
    overrides: Overrides,
    selected: Mapping[str, SectionVisibility] = MappingProxyType({}),
) -> VisibilityState:
    """What the author declared, with the caller's overrides applied; sections in `selected` do not decide again."""
    if not outline.dynamic and not overrides:
        return VisibilityState(outline, outline.base)
    unknown = [path for path in overrides if path not in outline.by_path]
    if unknown:
        raise PromptRenderError(
            f"visibility_overrides names {unknown[0]!r}, which is not a section path of this prompt; "
            f"paths are tuples of keys: {', '.join(map(repr, islice(outline.by_path, 10)))}"
            f"{' and others' if len(outline.by_path) > 10 else ''}."
        )
    given = {path: check_visibility(visibility) for path, visibility in overrides.items()}
    own = bytearray(outline.base)
    decided: dict[int, Decider] = {}
    for node in outline.dynamic:
        if any(own[up.index] == ABSENT for up in outline.ancestors(node)):
            continue
        if node.key in selected:
            own[node.index] = PACKED.index(selected[node.key])
        elif node.may_be_disabled and not _is_enabled(node, params, session):
            own[node.index] = ABSENT
        elif node.selects:
            visibility = _decided(node, "declared_visibility", params[node.source], session=session)
            own[node.index] = PACKED.index(visibility)
            decided[node.index] = "selector"
    return VisibilityState(outline, bytes(own), decided).with_overrides(given, "override")


def session_state(base: VisibilityState, params: Params, session: Session | None) -> VisibilityState:
    """The base with the session's overrides on top; paths of other prompts in the session are ignored.

    Sections that decide their visibility themselves do so last.
    """
    state = base
    current = None if session is None else session[VisibilityOverrides].latest()
    if current is not None and current.overrides:
        state = base.with_overrides(current.overrides, "session")
    for node in base.outline.deciding:
        if state.seen[node.index] == ABSENT:
            continue
        override = PACKED[base.own[node.index]] if base.decided.get(node.index) == "override" else None
        visibility = _decided(
            node, "effective_visibility", override, params[node.source], session=session, path=node.path
        )
        if visibility is not PACKED[state.own[node.index]]:
            state = state.with_overrides({node.path: visibility}, "selector", alone=True)
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


def _decided(node: Node, method: str, *given: Any, **named: Any) -> SectionVisibility:
    """The visibility that the section's code decides; rejects anything but FULL and SUMMARY."""
    visibility = _asked(node, method, *given, **named)
    if isinstance(visibility, SectionVisibility) and visibility in (SectionVisibility.FULL, SectionVisibility.SUMMARY):
        return visibility
    raise PromptRenderError(
        f"Section '{node.key}': visibility= must return SectionVisibility.FULL or SUMMARY, got {visibility!r}."
    )
