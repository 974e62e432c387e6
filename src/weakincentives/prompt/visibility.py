"""The visibility of sections, requests to change it, and the session slice that stores them.

Two rules are written here alone: opening a path opens its ancestors (`with_ancestors`), and a section that is not open
hides what is inside it (`visible`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Literal, Self, get_args

from weakincentives.errors import PromptError, PromptValidationError
from weakincentives.session import reducer
from weakincentives.session.slices import reducer_methods

SectionPath = tuple[str, ...]
Closer = Literal["code", "model", "compaction"]


class SectionVisibility(StrEnum):
    """The part of a section that the model sees.

    Authors and overrides choose between FULL and SUMMARY. The other two are results of a render: a section is HIDDEN
    inside a summarized one, and ABSENT when it or an ancestor is disabled.
    """

    FULL = "full"
    SUMMARY = "summary"
    HIDDEN = "hidden"
    ABSENT = "absent"


Overrides = Mapping[SectionPath, SectionVisibility]
ToolsBySection = Mapping[str, Container[str]]
"""The names of the tools that may be called once a section is open, by its key."""

# A tree's visibility is packed into one byte per section, so that it can be compared and cached as one value.
PACKED = (SectionVisibility.ABSENT, SectionVisibility.FULL, SectionVisibility.SUMMARY, SectionVisibility.HIDDEN)
ABSENT, FULL, SUMMARY, HIDDEN = range(len(PACKED))


@dataclass(frozen=True, slots=True)
class SetVisibilityOverride:
    """From now on the section at `path` has this visibility."""

    path: SectionPath
    visibility: SectionVisibility  #: the new visibility

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", check_path(self.path))
        object.__setattr__(self, "visibility", check_visibility(self.visibility))


@dataclass(frozen=True, slots=True)
class ClearVisibilityOverride:
    """The section at `path` reverts to what its author declared."""

    path: SectionPath

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", check_path(self.path))


@dataclass(frozen=True, slots=True)
class ClearAllVisibilityOverrides:
    """Every section reverts to what its author declared."""


@dataclass(frozen=True, slots=True)
class CollapseSection:
    """Close an open section: it counts as summarized and its tools may no longer be called.

    What a compaction has closed, a rule or the user's words may open again; what a model or your
    code has closed, only the model or your code.
    """

    path: SectionPath  #: keys from the root to the section
    reason: str = ""  #: why, as recorded
    by: Closer = "code"  #: who closes it

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", check_path(self.path))
        if self.by not in get_args(Closer):
            closers = ", ".join(get_args(Closer))
            raise ValueError(f"CollapseSection by must be one of {closers}, got {self.by!r}")


VisibilityChange = SetVisibilityOverride | ClearVisibilityOverride | ClearAllVisibilityOverrides | CollapseSection
VISIBILITY_CHANGES: tuple[type, ...] = get_args(VisibilityChange)


@dataclass(frozen=True, slots=True)
class VisibilityOverrides:
    """The session's overrides; they take precedence over what was declared and what the caller passed to render.

    They are kept in the order they were made: of two tools with the same name, that of the section opened first stays.
    `compacted` are the sections that a compaction has closed, to save space.
    """

    overrides: Overrides = field(default_factory=lambda: MappingProxyType({}))  #: visibility by section path
    compacted: frozenset[SectionPath] = frozenset()

    def with_override(
        self, path: SectionPath, visibility: SectionVisibility, *, by_compaction: bool = False
    ) -> VisibilityOverrides:
        compacted = self.compacted - {path}
        if by_compaction:
            compacted |= {path}
        if self.overrides.get(path) is visibility:
            unchanged = compacted == self.compacted
            return self if unchanged else VisibilityOverrides(self.overrides, compacted)
        changed = with_ancestors(self.overrides)
        if changed.get(path) is not visibility:
            changed.pop(path, None)
            changed[path] = visibility
        kept = {other: chosen for other, chosen in changed.items() if other in self.overrides or other == path}
        return VisibilityOverrides(MappingProxyType(kept), compacted)

    def without_override(self, *paths: SectionPath) -> VisibilityOverrides:
        remaining = dict(self.overrides)
        for path in paths:
            remaining.pop(path, None)
        return VisibilityOverrides(MappingProxyType(remaining), self.compacted.difference(paths))

    def closed_for_good(self, path: SectionPath) -> bool:
        """True if the model or code has closed this section, or one around it: no rule opens it again."""
        for around in (*ancestors(path), path):
            closed = self.overrides.get(around) is SectionVisibility.SUMMARY
            if closed and around not in self.compacted:
                return True
        return False

    @reducer(on=SetVisibilityOverride)
    def handle_set(self, event: SetVisibilityOverride) -> VisibilityOverrides:
        closed = [up for up in ancestors(event.path) if self.overrides.get(up) is SectionVisibility.SUMMARY]
        if not closed or event.visibility is not SectionVisibility.FULL:
            return self.with_override(event.path, event.visibility)
        # It opens now, with the ancestors that were closed before.
        return self.without_override(*closed, event.path).with_override(event.path, event.visibility)

    @reducer(on=ClearVisibilityOverride)
    def handle_clear(self, event: ClearVisibilityOverride) -> VisibilityOverrides:
        return self.without_override(event.path)

    @reducer(on=ClearAllVisibilityOverrides)
    def handle_clear_all(self, event: ClearAllVisibilityOverrides) -> VisibilityOverrides:
        return VisibilityOverrides()

    @reducer(on=CollapseSection)
    def handle_collapse(self, event: CollapseSection) -> VisibilityOverrides:
        by_compaction = event.by == "compaction"
        return self.with_override(event.path, SectionVisibility.SUMMARY, by_compaction=by_compaction)

    def after(self, event: VisibilityChange) -> VisibilityOverrides:
        """The overrides after the event is reduced; for reading a history without a session."""
        (reduce,) = reducer_methods(VisibilityOverrides)[type(event)]
        changed: VisibilityOverrides = reduce(self, event)
        return changed


class DisclosureValue:
    """Base of the values of disclosure tools, which say as data what the call asks for."""

    __slots__ = ()

    def requested(self) -> DisclosureRequest:
        """The sections and tools that the value names."""
        raise NotImplementedError

    def limited(self, tools: Container[Any], by_section: ToolsBySection) -> Self:
        """The value without tools that cannot be called, and sections that do not exist."""
        return self


@dataclass(frozen=True, slots=True)
class DisclosureRequest:
    """A request to open or close sections, carried by the result of the tool that made it.

    `keys` are the sections as the model named them, and `current_visibility_state` is what was shown at that moment.
    `overrides` open the sections; empty if reading them changes nothing. `content` are the sections whose text is in
    the result, `files` those that it was written to; with `halt`, the caller decides what to open.
    `tools` are those that the result names, and `found` the sections that a search has listed. It
    `quotes` if the value is nothing but the text of sections, which may have the prompt's authority.
    """

    keys: tuple[str, ...]
    reason: str = ""  #: the model's reason
    current_visibility_state: Overrides = field(default_factory=dict)
    overrides: Overrides = field(default_factory=dict)
    content: tuple[SectionPath, ...] = ()
    files: tuple[str, ...] = ()
    halt: bool = False
    action: Literal["open", "close"] = "open"  #: whether to open or to close
    tools: tuple[Any, ...] = ()  #: tools that the result names
    found: tuple[str, ...] = ()  #: keys of the sections that a search has listed
    quotes: bool = False  #: True if the value is the text of sections

    @classmethod
    def of(cls, value: object) -> DisclosureRequest:
        """The request that a tool's value makes; an empty one if it is no disclosure."""
        return value.requested() if isinstance(value, DisclosureValue) else NO_DISCLOSURE

    @property
    def requested_sections(self) -> tuple[str, ...]:
        """`keys`, by the name that the specs use."""
        return self.keys


NO_DISCLOSURE = DisclosureRequest(())


class VisibilityExpansionRequired(PromptError):
    """A signal to the caller: apply `requested_overrides` to the session and evaluate again.

    `prompt_name` is the prompt whose evaluation it ended; empty while it is still in the handler that raised it.
    """

    prompt_name = ""

    def __init__(
        self,
        message: str = "Section expansion requires a new evaluation.",
        *,
        requested_overrides: Overrides,
        reason: str = "",
        section_keys: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.requested_overrides = requested_overrides
        self.reason = reason
        self.section_keys = section_keys


def ancestors(path: SectionPath) -> list[SectionPath]:
    """The paths above this one, outermost first."""
    return [path[:length] for length in range(1, len(path))]


def inside(path: SectionPath, other: SectionPath) -> bool:
    """True if a path is another one or below it."""
    return path[: len(other)] == other


def with_ancestors(
    overrides: Overrides, base: Overrides = MappingProxyType({})
) -> dict[SectionPath, SectionVisibility]:
    """Opening a path opens its ancestors too, just before it, unless they are listed explicitly or open in `base`."""
    result: dict[SectionPath, SectionVisibility] = {}
    for path, visibility in overrides.items():
        if len(path) > 1 and visibility is SectionVisibility.FULL:
            closed = (up for up in ancestors(path) if up not in overrides and base.get(up) is not visibility)
            result.update(dict.fromkeys(closed, visibility))
        result[path] = visibility
    return result


def visible(own: bytes, parents: Iterable[tuple[int, int]]) -> bytes:
    """The visibility of each section among the others, packed, given what each would show by itself.

    `parents` has pairs of a section and its parent, outermost first.
    """
    result = bytearray(own)
    for index, parent in parents:
        if (above := result[parent]) != FULL and result[index] != ABSENT:
            result[index] = ABSENT if above == ABSENT else HIDDEN
    return bytes(result)


def effective(base: Overrides, overrides: Overrides) -> dict[SectionPath, SectionVisibility]:
    """The visibility of each section, given what it would show by itself, and overrides with the ancestors they open.

    Parents come first in `base`.
    """
    own = bytes(PACKED.index(overrides.get(path, visibility)) for path, visibility in base.items())
    place = {path: index for index, path in enumerate(base)}
    parents = [(index, place[path[:-1]]) for path, index in place.items() if path[:-1] in place]
    return dict(zip(base, map(PACKED.__getitem__, visible(own, parents)), strict=True))


def check_path(path: SectionPath) -> SectionPath:
    """Reject anything but a tuple of keys; a bare string would be mistaken for a dotted key."""
    if isinstance(path, str) or not all(isinstance(key, str) for key in path):
        raise PromptValidationError(
            f"A section path must be a tuple of keys, such as ('parent', 'child'), got {path!r}."
        )
    return tuple(path)


def check_visibility(visibility: SectionVisibility) -> SectionVisibility:
    """Accept FULL and SUMMARY, or their string values."""
    if visibility in (SectionVisibility.FULL, SectionVisibility.SUMMARY):
        return SectionVisibility(visibility)
    raise PromptValidationError(
        f"A visibility must be SectionVisibility.FULL or SectionVisibility.SUMMARY, got {visibility!r}."
    )
