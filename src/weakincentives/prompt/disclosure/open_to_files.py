"""`open_sections` that writes content-only sections to files of the workspace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weakincentives.errors import WinkError
from weakincentives.prompt.disclosure.open_or_read import open_sections as open_by_signal
from weakincentives.prompt.disclosure.strategy import (
    OpenSectionsParams,
    OpenSectionsResult,
    current_view,
    requested_paths,
)
from weakincentives.prompt.tool import Tool, ToolResult

CONTEXT_FOLDER = "context"


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


def context_file(key: str) -> str:
    return f"{CONTEXT_FOLDER}/{key}.md"


def open_to_files(params: OpenSectionsParams, *, context: Any) -> ToolResult[OpenSectionsResult]:
    view = current_view(context)
    paths = requested_paths(params, view)
    if isinstance(paths, ToolResult):
        return paths
    if any(view.has_tools(path) for path in paths):
        return open_by_signal(params, context=context)
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


OPEN_SECTIONS_TO_FILES: Tool[OpenSectionsParams, OpenSectionsResult] = Tool(
    name="open_sections",
    description="Open summarized sections: content is written to files under context/; tools become available.",
    handler=open_to_files,
    params_type=OpenSectionsParams,
    result_type=OpenSectionsResult,
    accepts_overrides=False,
)
