"""The default strategy, and what all share: params and results of their tools, the checks, and `collapse_section`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from weakincentives.prompt.tool import AnyTool, Handler, Tool, ToolResult
from weakincentives.prompt.view import View
from weakincentives.prompt.visibility import CollapseSection, Overrides, SectionPath, SectionVisibility

Voice = Literal["result", "system"]
MAX_REASON = 256
RESERVED_NAMES = frozenset({"read_section", "open_sections", "collapse_section", "search_sections"})


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
class CollapseSectionParams:
    section_key: str = field(metadata={"description": "Key of the open section to close."})


@dataclass(frozen=True, slots=True)
class ReadSectionResult:
    """The content of a section, and the tools that come with it.

    With `voice="system"` the content is said as the operator, where the model takes that in mid-conversation.
    """

    content: str
    expanded_tools: tuple[AnyTool, ...] = ()
    requested_overrides: Overrides = field(default_factory=dict)
    voice: Voice = "result"

    def render(self) -> str:
        if not self.expanded_tools:
            return self.content
        return f"{self.content}\n\n[Tools now available: {', '.join(tool.name for tool in self.expanded_tools)}.]"


@dataclass(frozen=True, slots=True)
class OpenSectionsResult:
    """Sections to open on the next evaluation, or files that hold their content."""

    requested_overrides: Overrides = field(default_factory=dict)
    written_files: tuple[str, ...] = ()
    reason: str = ""

    def render(self) -> str:
        if self.written_files:
            return "Read these files for the full content:\n" + "\n".join(self.written_files)
        keys = ", ".join("/".join(path) for path in self.requested_overrides)
        return f"Sections requested for expansion: {keys}. Retry prompt with visibility overrides."


@dataclass(frozen=True, slots=True)
class ReadSections:
    """The default strategy: reading a section shows it and brings its tools into the same conversation.

    Its text comes back as the tool's result. With `voice="system"` it comes as an operator's message, where the model
    takes one in mid-conversation and the text is the author's alone; text with params never gets that authority.
    """

    voice: Voice = "result"

    def tools(self, *, with_tools: bool, content_only: bool) -> tuple[Tool[Any, Any], ...]:
        tool = READ_SECTION if self.voice == "result" else READ_SECTION_AS_SYSTEM
        return (tool,) if with_tools or content_only else ()

    def suffix(self, key: str, *, children: Sequence[str], has_tools: bool) -> str:
        return read_suffix(key)


def current_view(context: Any) -> View:
    """The prompt as it is now; `context` is a `ToolContext`, which this package's prompts are built before."""
    view: View = context.prompt.view(context.session)
    return view


def requested_paths(params: OpenSectionsParams, view: View) -> list[SectionPath] | ToolResult[Any]:
    """The paths that `open_sections` may open, or the failed result that says what is wrong."""

    def failed(message: str) -> ToolResult[Any]:
        return ToolResult(message, success=False, disclosure=view.request(params.section_keys, params.reason))

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


def closed_hint(view: View) -> str:
    keys = view.closed_keys()
    unlisted = len(view.layout.summarized) - len(keys)
    hints = [f"Keys of summarized sections: {', '.join(keys)}."] if keys else []
    hints += [f"{unlisted:,} closed sections are not listed; call search_sections to find them."] if unlisted else []
    return " ".join(hints) or "No section is summarized."


def overrides_for(paths: Sequence[SectionPath], view: View) -> dict[SectionPath, SectionVisibility]:
    """The overrides that open all these paths, their closed ancestors included."""
    merged: dict[SectionPath, SectionVisibility] = {}
    for path in paths:
        merged.update(view.opening(path).overrides)
    return merged


def open_tool(
    handler: Handler[OpenSectionsParams, OpenSectionsResult], description: str
) -> Tool[OpenSectionsParams, OpenSectionsResult]:
    return Tool(
        name="open_sections",
        description=description,
        handler=handler,
        params_type=OpenSectionsParams,
        result_type=OpenSectionsResult,
        accepts_overrides=False,
    )


def read_tool(
    handler: Handler[ReadSectionParams, ReadSectionResult], description: str
) -> Tool[ReadSectionParams, ReadSectionResult]:
    return Tool(
        name="read_section",
        description=description,
        handler=handler,
        params_type=ReadSectionParams,
        result_type=ReadSectionResult,
        accepts_overrides=False,
    )


def read_suffix(key: str) -> str:
    return f'[This section is summarized. To view full content, call `read_section` with key "{key}".]'


def read_section(params: ReadSectionParams, *, context: Any, voice: Voice = "result") -> ToolResult[ReadSectionResult]:
    view, key = current_view(context), params.section_key
    path = view.find(key)
    if path is None:
        message = f"Unknown section key: '{key}'. {closed_hint(view)}"
        return ToolResult(message, success=False, disclosure=view.request([key]))
    if view.is_open(path):
        result = ReadSectionResult(view.content(path))
        return ToolResult("Section is already expanded.", result, disclosure=view.request([key]))
    try:
        context.prompt.load(path, context.deadline)
    except Exception as error:
        message = f"Section '{key}' cannot be opened: {error}"
        return ToolResult(message, success=False, disclosure=view.request([key]))
    view = current_view(context)
    if view.find(key) is None:
        return ToolResult(
            f"Section '{key}' is no longer there. {closed_hint(view)}", success=False, disclosure=view.request([key])
        )
    reading = view.reading(path)
    voice = voice if view.is_literal(path) else "result"
    return ToolResult(
        f"Content of section '{key}':",
        ReadSectionResult(reading.render(), reading.tools, reading.overrides, voice),
        disclosure=view.request([key], overrides=reading.overrides),
    )


def collapse_section(params: CollapseSectionParams, *, context: Any) -> ToolResult[None]:
    view = current_view(context)
    key = params.section_key
    path = view.find(key)
    problem = ""
    if path is None:
        problem = f"Unknown section key: '{key}'."
    elif not view.is_open(path):
        problem = f"Section '{key}' is not expanded."
    elif not view.collapsible(path):
        problem = f"Section '{key}' has no summary, so it stays open."
    else:
        context.session.dispatch(CollapseSection(path=path))
    message = problem or f"Section '{key}' is closed; its tools are no longer available."
    return ToolResult(message, success=not problem, disclosure=view.request([key], action="close"))


COLLAPSE_SECTION: Tool[CollapseSectionParams, None] = Tool(
    name="collapse_section",
    description="Close an open section that is no longer needed; its tools stop being available.",
    handler=collapse_section,
    params_type=CollapseSectionParams,
    accepts_overrides=False,
)
_WORDS = "Read the full content of a summarized section. Tools that belong to the section become available."
READ_SECTION = read_tool(read_section, _WORDS)
READ_SECTION_AS_SYSTEM = read_tool(partial(read_section, voice="system"), _WORDS)
