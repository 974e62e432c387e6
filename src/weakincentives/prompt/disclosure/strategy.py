"""What a disclosure strategy is: the tools it offers and the words under a summary.

A strategy never sees a prompt's insides: it asks the `OpenView` of the moment, which a tool's context provides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from weakincentives.filesystem import Filesystem
from weakincentives.prompt.hosted import HostedTool
from weakincentives.prompt.tool import Tool, ToolResult
from weakincentives.prompt.visibility import SectionPath, SectionVisibility
from weakincentives.session import Session

MAX_REASON = 256
RESERVED_NAMES = frozenset({"read_section", "open_sections", "collapse_section"})


@dataclass(frozen=True, slots=True)
class ReadSectionParams:
    section_key: str = field(
        metadata={"description": "Key of the section to read, as shown under its summary ('parent.child' if nested)."}
    )


@dataclass(frozen=True, slots=True)
class OpenSectionsParams:
    section_keys: tuple[str, ...] = field(
        metadata={
            "description": "Keys of the sections to open, as shown under their summaries ('parent.child' if nested)."
        }
    )
    reason: str = field(metadata={"description": "Why these sections are needed, in at most 256 characters."})


@dataclass(frozen=True, slots=True)
class ReadSectionResult:
    """The content of a section, and the tools that come with it."""

    content: str
    expanded_tools: tuple[Tool[Any, Any] | HostedTool[Any], ...] = ()
    requested_overrides: Mapping[SectionPath, SectionVisibility] = field(default_factory=dict)

    def render(self) -> str:
        if not self.expanded_tools:
            return self.content
        return f"{self.content}\n\n[Tools now available: {', '.join(tool.name for tool in self.expanded_tools)}.]"


@dataclass(frozen=True, slots=True)
class OpenSectionsResult:
    """Sections to open on the next evaluation, or files that hold their content."""

    requested_overrides: Mapping[SectionPath, SectionVisibility] = field(default_factory=dict)
    written_files: tuple[str, ...] = ()

    def render(self) -> str:
        if self.written_files:
            return "Read these files for the full content:\n" + "\n".join(self.written_files)
        keys = ", ".join("/".join(path) for path in self.requested_overrides)
        return f"Sections requested for expansion: {keys}. Retry prompt with visibility overrides."


@dataclass(frozen=True, slots=True)
class Opening:
    """What opening a section would do: what must be overridden, which tools come, and (when asked) what is shown."""

    overrides: Mapping[SectionPath, SectionVisibility]
    tools: tuple[Tool[Any, Any] | HostedTool[Any], ...]
    show: Callable[[], str]


class OpenView(Protocol):
    """The prompt as it is at one moment, as far as a strategy needs to know."""

    def find(self, key: str) -> SectionPath | None: ...

    def closed_keys(self) -> Sequence[str]: ...

    def is_open(self, path: SectionPath) -> bool: ...

    def has_tools(self, path: SectionPath) -> bool: ...

    def content(self, path: SectionPath, *, everything: bool = False) -> str: ...

    def opening(self, path: SectionPath) -> Opening: ...

    def collapsible(self, path: SectionPath) -> bool: ...


class ViewedPrompt(Protocol):
    def view(self, session: Session | None = None) -> OpenView: ...


class DisclosureContext(Protocol):
    """The part of `ToolContext` that disclosure tools use."""

    @property
    def prompt(self) -> ViewedPrompt: ...

    @property
    def session(self) -> Session: ...

    @property
    def filesystem(self) -> Filesystem | None: ...


class Disclosure(Protocol):
    """How summarized sections are opened."""

    def tools(self, *, with_tools: bool, content_only: bool) -> tuple[Tool[Any, Any], ...]:
        """The tools to offer, given which kinds of summarized sections are shown."""
        ...

    def suffix(self, key: str, *, children: Sequence[str], has_tools: bool) -> str:
        """The words after `---` under a summary."""
        ...


def requested_paths(params: OpenSectionsParams, view: OpenView) -> list[SectionPath] | ToolResult[Any]:
    """The paths that `open_sections` may open, or the failed result that says what is wrong."""

    def failed(message: str) -> ToolResult[Any]:
        return ToolResult(message, success=False)

    if not params.section_keys:
        return failed("At least one section key must be provided.")
    if len(params.reason) > MAX_REASON:
        return failed(f"The reason has {len(params.reason)} characters; at most {MAX_REASON} are allowed.")
    paths: dict[SectionPath, None] = {}
    for key in params.section_keys:
        path = view.find(key)
        if path is None:
            return failed(f"Section '{key}' does not exist in this prompt. {closed_hint(view)}")
        if view.is_open(path):
            return failed(f"Section '{key}' is already expanded.")
        paths[path] = None
    return list(paths)


def closed_hint(view: OpenView) -> str:
    keys = view.closed_keys()
    return f"Keys of summarized sections: {', '.join(keys)}." if keys else "No section is summarized."


def overrides_for(paths: Sequence[SectionPath], view: OpenView) -> dict[SectionPath, SectionVisibility]:
    """What has to be overridden to open all these paths, their closed ancestors included."""
    merged: dict[SectionPath, SectionVisibility] = {}
    for path in paths:
        merged.update(view.opening(path).overrides)
    return merged
