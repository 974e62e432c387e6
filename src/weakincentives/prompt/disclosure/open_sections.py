"""`open_sections`: the strategies that open sections by a new evaluation, in files, or by asking the caller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weakincentives.errors import WinkError
from weakincentives.prompt.disclosure.strategy import (
    OpenSectionsParams,
    OpenSectionsResult,
    ReadSectionParams,
    ReadSectionResult,
    current_view,
    open_tool,
    overrides_for,
    read_section,
    read_suffix,
    read_tool,
    requested_paths,
)
from weakincentives.prompt.tool import Tool, ToolResult
from weakincentives.prompt.visibility import VisibilityExpansionRequired

CONTEXT_FOLDER = "context"


@dataclass(frozen=True, slots=True)
class OpenAndHalt:
    """The request comes back to the caller, who opens the sections (or not) and evaluates again."""

    def tools(self, *, with_tools: bool, content_only: bool) -> tuple[Tool[Any, Any], ...]:
        return (OPEN_SECTIONS_AND_HALT,) if with_tools or content_only else ()

    def suffix(self, key: str, *, children: Sequence[str], has_tools: bool) -> str:
        if children:
            return (
                f'[This section is summarized. Call `open_sections` with key "{key}" to view full content including '
                f"subsections: {', '.join(children)}.]"
            )
        return open_suffix(key)


@dataclass(frozen=True, slots=True)
class OpenOrRead:
    """Sections with tools are opened for good, by a new evaluation; the others are read without changing state."""

    def tools(self, *, with_tools: bool, content_only: bool) -> tuple[Tool[Any, Any], ...]:
        return ((OPEN_SECTIONS,) if with_tools else ()) + ((READ_CONTENT,) if content_only else ())

    def suffix(self, key: str, *, children: Sequence[str], has_tools: bool) -> str:
        return open_suffix(key) if has_tools else read_suffix(key)


@dataclass(frozen=True, slots=True)
class OpenToFiles:
    """Content goes to `context/<key>.md`, for the model to read with its file tools; tools need a new evaluation."""

    def tools(self, *, with_tools: bool, content_only: bool) -> tuple[Tool[Any, Any], ...]:
        return (OPEN_SECTIONS_TO_FILES,) if with_tools or content_only else ()

    def suffix(self, key: str, *, children: Sequence[str], has_tools: bool) -> str:
        names = ", ".join(children)
        if has_tools and children:
            return (
                f'[This section is summarized. Call `open_sections` with key "{key}" to view full content including '
                f"subsections: {names}. Additional tools may become available.]"
            )
        if has_tools:
            return (
                "[This section is summarized. To view full content and access additional tools, "
                f'call `open_sections` with key "{key}".]'
            )
        if children:
            return (
                f'[This section is summarized. Call `open_sections` with key "{key}" to write content (including '
                f"subsections: {names}) to {context_file(key)}.]"
            )
        return (
            f'[This section is summarized. To view full content, call `open_sections` with key "{key}". '
            f"The content will be written to {context_file(key)} for you to read.]"
        )


def open_suffix(key: str) -> str:
    return f'[This section is summarized. To view full content, call `open_sections` with key "{key}".]'


def context_file(key: str) -> str:
    return f"{CONTEXT_FOLDER}/{key}.md"


def open_and_halt(params: OpenSectionsParams, *, context: Any) -> ToolResult[OpenSectionsResult]:
    view = current_view(context)
    paths = requested_paths(params, view)
    if isinstance(paths, ToolResult):
        return paths
    overrides = overrides_for(paths, view)
    return ToolResult(
        f"Expansion requested: {', '.join(params.section_keys)}.",
        OpenSectionsResult(requested_overrides=overrides, reason=params.reason),
        disclosure=view.request(params.section_keys, params.reason, overrides=overrides),
    )


def open_sections(params: OpenSectionsParams, *, context: Any) -> ToolResult[OpenSectionsResult]:
    view = current_view(context)
    paths = requested_paths(params, view)
    if isinstance(paths, ToolResult):
        return paths
    raise VisibilityExpansionRequired(
        f"The model asked to open: {', '.join(params.section_keys)}.",
        requested_overrides=overrides_for(paths, view),
        reason=params.reason,
        section_keys=tuple(params.section_keys),
    )


def open_to_files(params: OpenSectionsParams, *, context: Any) -> ToolResult[OpenSectionsResult]:
    view = current_view(context)
    paths = requested_paths(params, view)
    if isinstance(paths, ToolResult):
        return paths
    if any(view.has_tools(path) for path in paths):
        return open_sections(params, context=context)
    request = view.request(params.section_keys, params.reason)
    if context.filesystem is None:
        message = "Cannot write context files: no filesystem available. Add a WorkspaceSection to the prompt."
        return ToolResult(message, success=False, disclosure=request)
    written: list[str] = []
    for path in paths:
        key = ".".join(path)
        try:
            content = view.content(path, everything=True)
            context.filesystem.mkdir(CONTEXT_FOLDER, parents=True, exist_ok=True)
            context.filesystem.write(context_file(key), content, mode="overwrite")
        except (WinkError, OSError) as error:
            return ToolResult(f"Failed to write context for '{key}': {error}", success=False, disclosure=request)
        written.append(context_file(key))
    files = tuple(written)
    message = f"Section content written to: {', '.join(files)}"
    return ToolResult(message, OpenSectionsResult(written_files=files), disclosure=request)


def read_content(params: ReadSectionParams, *, context: Any) -> ToolResult[ReadSectionResult]:
    """`read_section`, which leaves sections with tools to `open_sections`."""
    view, key = current_view(context), params.section_key
    path = view.find(key)
    if path is not None and view.has_tools(path) and not view.is_open(path):
        message = f"Section '{key}' has tools; call open_sections with key '{key}' to open it."
        return ToolResult(message, success=False, disclosure=view.request([key]))
    return read_section(params, context=context)


OPEN_SECTIONS_AND_HALT = open_tool(
    open_and_halt, "Open summarized sections. This ends the turn; the prompt comes back with the sections opened."
)
OPEN_SECTIONS = open_tool(
    open_sections, "Open summarized sections: their full content and their tools become available."
)
OPEN_SECTIONS_TO_FILES = open_tool(
    open_to_files, "Open summarized sections: content is written to files under context/; tools become available."
)
READ_CONTENT = read_tool(read_content, "Read the full content of a summarized section that has no tools.")
