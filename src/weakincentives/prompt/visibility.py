"""What a section shows, and the session slice in which requests to change it land."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from weakincentives.errors import PromptError, PromptValidationError
from weakincentives.session import reducer

SectionPath = tuple[str, ...]


class SectionVisibility(StrEnum):
    """Whether a section shows its whole content or only its summary."""

    FULL = "full"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class SetVisibilityOverride:
    """From now on the section at `path` has this visibility."""

    path: SectionPath
    visibility: SectionVisibility

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", checked_path(self.path))
        object.__setattr__(self, "visibility", checked_visibility(self.visibility))


@dataclass(frozen=True, slots=True)
class ClearVisibilityOverride:
    """The section at `path` goes back to what its author declared."""

    path: SectionPath

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", checked_path(self.path))


@dataclass(frozen=True, slots=True)
class ClearAllVisibilityOverrides:
    """Every section goes back to what its author declared."""


@dataclass(frozen=True, slots=True)
class CollapseSection:
    """An open section closes again: it counts as summarized and its tools may no longer be called."""

    path: SectionPath
    reason: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", checked_path(self.path))


@dataclass(frozen=True, slots=True)
class VisibilityOverrides:
    """The session's say on visibility; it wins over what was declared and over what the caller passed to render."""

    overrides: Mapping[SectionPath, SectionVisibility] = field(default_factory=lambda: MappingProxyType({}))

    def with_override(self, path: SectionPath, visibility: SectionVisibility) -> VisibilityOverrides:
        return VisibilityOverrides(MappingProxyType({**self.overrides, path: visibility}))

    def without_override(self, path: SectionPath) -> VisibilityOverrides:
        return VisibilityOverrides(MappingProxyType({p: v for p, v in self.overrides.items() if p != path}))

    @reducer(on=SetVisibilityOverride)
    def handle_set(self, event: SetVisibilityOverride) -> VisibilityOverrides:
        result = self
        if event.visibility is SectionVisibility.FULL:
            # Opening a path opens what is above it, also what was closed before.
            for length in range(1, len(event.path)):
                if result.overrides.get(event.path[:length]) is SectionVisibility.SUMMARY:
                    result = result.without_override(event.path[:length])
        return result.with_override(event.path, event.visibility)

    @reducer(on=ClearVisibilityOverride)
    def handle_clear(self, event: ClearVisibilityOverride) -> VisibilityOverrides:
        return self.without_override(event.path)

    @reducer(on=ClearAllVisibilityOverrides)
    def handle_clear_all(self, event: ClearAllVisibilityOverrides) -> VisibilityOverrides:
        return VisibilityOverrides()

    @reducer(on=CollapseSection)
    def handle_collapse(self, event: CollapseSection) -> VisibilityOverrides:
        return self.with_override(event.path, SectionVisibility.SUMMARY)


class VisibilityExpansionRequired(PromptError):
    """A signal to the caller: apply `requested_overrides` to the session and evaluate again."""

    def __init__(
        self,
        message: str = "Section expansion requires a new evaluation.",
        *,
        requested_overrides: Mapping[SectionPath, SectionVisibility],
        reason: str = "",
        section_keys: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.requested_overrides = requested_overrides
        self.reason = reason
        self.section_keys = section_keys


def checked_path(path: SectionPath) -> SectionPath:
    """A path is a tuple of keys; a bare string is refused, since a dotted key would be read as one."""
    if isinstance(path, str) or not all(isinstance(key, str) for key in path):
        raise PromptValidationError(f"{path!r} is no section path; write a tuple of keys, such as ('parent', 'child').")
    return tuple(path)


def checked_visibility(visibility: SectionVisibility) -> SectionVisibility:
    """The words 'full' and 'summary' are taken, too."""
    try:
        return SectionVisibility(visibility)
    except ValueError:
        raise PromptValidationError(
            f"{visibility!r} is no visibility; use SectionVisibility.FULL or SectionVisibility.SUMMARY."
        ) from None
