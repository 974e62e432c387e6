"""Strategies for letting a model open sections, and the tools they offer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal, get_args

from weakincentives.content import Part
from weakincentives.errors import PromptRenderError, PromptValidationError, WinkError
from weakincentives.filesystem import Filesystem
from weakincentives.prompt.disclosure.ranking import Ranker
from weakincentives.prompt.disclosure.ranking.finder import (
    CLEAR,
    WORD_FINDER,
    Found,
    SectionFinder,
    collecting,
    matching_sentence,
)
from weakincentives.prompt.layout import media_in
from weakincentives.prompt.outline import Node
from weakincentives.prompt.tool_names import RECALL_TOOL
from weakincentives.prompt.tools import AnyTool, Handler, Tool, ToolResult
from weakincentives.prompt.view import Disclosure, Menu, Suffix, View, Voice
from weakincentives.prompt.visibility import (
    CollapseSection,
    DisclosureRequest,
    DisclosureValue,
    Overrides,
    SectionPath,
    SectionVisibility,
    ToolsBySection,
    VisibilityExpansionRequired,
)

logger = logging.getLogger("weakincentives.prompt")
MAX_REASON = 256
MAX_FOUND = 20
CONTEXT_FOLDER = "context"
SEARCH_TOOL = "search_sections"
RESERVED_NAMES = frozenset({"read_section", "open_sections", "collapse_section", SEARCH_TOOL})
BUILT_IN_TOOLS = RESERVED_NAMES | {RECALL_TOOL}


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
class ReadSectionResult(DisclosureValue):
    """A section's content and the tools it adds."""

    content: str  #: the rendered text
    expanded_tools: tuple[AnyTool, ...] = ()  #: the tools that may now be called

    def requested(self) -> DisclosureRequest:
        return DisclosureRequest((), tools=self.expanded_tools, quotes=True)

    def limited(self, tools: Container[Any], by_section: ToolsBySection) -> ReadSectionResult:
        remaining = tuple(tool for tool in self.expanded_tools if tool in tools)
        return ReadSectionResult(self.content, remaining)

    def render(self) -> str:
        if not self.expanded_tools:
            return self.content
        return f"{self.content}\n\n[Tools now available: {', '.join(tool.name for tool in self.expanded_tools)}.]"


@dataclass(frozen=True, slots=True)
class OpenSectionsResult(DisclosureValue):
    """Sections to open on the next evaluation, or files that hold their content."""

    requested_overrides: Overrides = field(default_factory=dict)  #: visibility by section path
    written_files: tuple[str, ...] = ()  #: paths of the files
    reason: str = ""  #: the model's reason

    def requested(self) -> DisclosureRequest:
        overrides = self.requested_overrides
        keys = tuple(".".join(path) for path in overrides)
        request = DisclosureRequest(keys, self.reason, files=self.written_files)
        return replace(request, overrides=overrides, halt=bool(overrides))

    def render(self) -> str:
        if self.written_files:
            return "Read these files for the full content:\n" + "\n".join(self.written_files)
        keys = ", ".join("/".join(path) for path in self.requested_overrides)
        return f"Sections requested for expansion: {keys}. Retry prompt with visibility overrides."


@dataclass(frozen=True, slots=True)
class SearchSectionsParams:
    query: str = field(metadata={"description": "What is needed, in your own words or the user's."})
    limit: int = field(default=10, metadata={"description": f"How many sections to list, at most {MAX_FOUND}."})


@dataclass(frozen=True, slots=True)
class FoundSection:
    """A closed section that a search found: what matched, what opening it costs, and the tools it adds."""

    key: str  #: the key to read it by
    title: str  #: its title
    sentence: str  #: the text that matches best
    tokens: int | None  #: tokens that opening it adds; None if they are not known
    tools: tuple[str, ...] = ()  #: names of the tools it adds

    def render(self) -> str:
        cost = "size not known" if self.tokens is None else f"about {self.tokens:,} tokens"
        tools = f"; tools: {', '.join(self.tools)}" if self.tools else ""
        return f'- "{self.key}": {self.title} ({cost}{tools})\n  {self.sentence}'


@dataclass(frozen=True, slots=True)
class SearchSectionsResult(DisclosureValue):
    sections: tuple[FoundSection, ...] = ()  #: best match first

    def requested(self) -> DisclosureRequest:
        return DisclosureRequest((), found=tuple(section.key for section in self.sections))

    def limited(self, tools: Container[Any], by_section: ToolsBySection) -> SearchSectionsResult:
        sections: list[FoundSection] = []
        for section in self.sections:
            if section.key in by_section:
                names = by_section[section.key]
                remaining = tuple(name for name in section.tools if name in names)
                sections.append(replace(section, tools=remaining))
        return SearchSectionsResult(tuple(sections))

    def render(self) -> str:
        return "\n".join(section.render() for section in self.sections)


@dataclass(frozen=True, slots=True)
class ReadSections(Disclosure):
    """The default strategy: reading a section shows it and adds its tools to the same conversation.

    Its text is returned as the tool's result. With `voice="system"` it is sent as a system message if the model accepts
    those mid-conversation and the text is entirely the author's; text with params never gets that authority.
    """

    voice: Voice = "result"
    suffix: Suffix = "sentence"  #: a sentence below each summary that names its key, or only the key

    def tools(self, *, with_tools: bool, content_only: bool) -> tuple[Tool[Any, Any], ...]:
        return (READ_SECTION,) if with_tools or content_only else ()

    def hint(self, key: str, *, children: Sequence[str], has_tools: bool) -> str:
        return _call_hint("read_section", key)


@dataclass(frozen=True, slots=True)
class OpenAndHalt(Disclosure):
    """Return the request to the caller of `evaluate`, who decides what to open and evaluates again."""

    suffix: Suffix = "sentence"  #: a sentence below each summary that names its key, or only the key

    def tools(self, *, with_tools: bool, content_only: bool) -> tuple[Tool[Any, Any], ...]:
        return (OPEN_SECTIONS_AND_HALT,) if with_tools or content_only else ()

    def hint(self, key: str, *, children: Sequence[str], has_tools: bool) -> str:
        return _open_hint(key, children) if children else _call_hint("open_sections", key)


@dataclass(frozen=True, slots=True)
class OpenOrRead(Disclosure):
    """Open sections with tools permanently, by a new evaluation; other sections are read without changing state."""

    suffix: Suffix = "sentence"  #: a sentence below each summary that names its key, or only the key

    def tools(self, *, with_tools: bool, content_only: bool) -> tuple[Tool[Any, Any], ...]:
        return ((OPEN_SECTIONS,) if with_tools else ()) + ((READ_CONTENT,) if content_only else ())

    def hint(self, key: str, *, children: Sequence[str], has_tools: bool) -> str:
        return _call_hint("open_sections" if has_tools else "read_section", key)

    def instruction(self, *, with_tools: bool, content_only: bool) -> str:
        if not (with_tools and content_only):
            return Disclosure.instruction(self, with_tools=with_tools, content_only=content_only)
        return "To view full content, call `read_section` with its key, or `open_sections` if it has tools."


@dataclass(frozen=True, slots=True)
class OpenToFiles(Disclosure):
    """Write content to `context/<key>.md`, for the model to read with its file tools; tools need a new evaluation.

    Runs that share a filesystem share these files, so sections with params need a filesystem for each run.
    """

    suffix: Suffix = "sentence"  #: a sentence below each summary that names its key, or only the key

    def tools(self, *, with_tools: bool, content_only: bool) -> tuple[Tool[Any, Any], ...]:
        return (OPEN_SECTIONS_TO_FILES,) if with_tools or content_only else ()

    def hint(self, key: str, *, children: Sequence[str], has_tools: bool) -> str:
        names = ", ".join(children)
        if has_tools and children:
            return _open_hint(key, children, more=" Additional tools may become available.")
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

    def instruction(self, *, with_tools: bool, content_only: bool) -> str:
        return (
            "To view full content, call `open_sections` with its key. Content without tools will be written to "
            f"{context_file('<key>')} for you to read."
        )


# No slots: the finder and the tool are created on first use.
@dataclass(frozen=True)
class SearchSections(Disclosure):
    """Offer `search_sections` beside `read_section`, for prompts with hundreds of sections.

    `ranker` finds sections; the built-in one compares words and needs no package. `preopen` is how many sections to
    open at most for the user's words, if these clearly call for them. `menu` selects the summaries that the
    prompt lists: all of them, those of root sections (`"top"`), or none. What is below an opened section is always
    listed.
    """

    ranker: Ranker | None = None
    preopen: int = 0
    menu: Menu = "all"
    suffix: Suffix = "sentence"  #: a sentence below each summary that names its key, or only the key

    def __post_init__(self) -> None:
        if self.menu not in get_args(Menu):
            raise PromptValidationError(
                f"SearchSections: menu must be one of {', '.join(get_args(Menu))}; got {self.menu!r}."
            )
        if not isinstance(self.preopen, int) or self.preopen < 0:
            raise PromptValidationError(f"SearchSections: preopen must be a number from 0, got {self.preopen!r}.")
        if isinstance(self.ranker, type) or (self.ranker and not callable(getattr(self.ranker, "index", None))):
            raise PromptValidationError(
                f"SearchSections: ranker must have index(texts), got {self.ranker!r}; pass one such as LexicalRanker()."
            )

    def tools(self, *, with_tools: bool, content_only: bool) -> tuple[Tool[Any, Any], ...]:
        return (READ_SECTION, self._search_tool) if with_tools or content_only else ()

    def hint(self, key: str, *, children: Sequence[str], has_tools: bool) -> str:
        return _call_hint("read_section", key)

    def preopened(self, view: View, words: str) -> list[Node]:
        """The closed sections that clearly match the user's words, at most `preopen`."""
        found = self.finder.closed(view, words, self.preopen + 1)
        scores = [one.score for one in found] + [0.0]
        clear = [size for size in range(1, len(found[: self.preopen]) + 1) if scores[size - 1] >= CLEAR * scores[size]]
        return [one.node for one in found[: max(clear, default=0)]]

    @cached_property
    def finder(self) -> SectionFinder:
        return WORD_FINDER if self.ranker is None else SectionFinder(self.ranker)

    @cached_property
    def _search_tool(self) -> Tool[Any, Any]:
        words = (
            "Search all closed sections, with their tools, for what is needed. Then open what fits with read_section."
        )
        if self.menu != "all":
            words += " Most sections are not listed in the prompt: search before you give up."
        options = {"result_type": SearchSectionsResult, "read_only": True}
        return _tool(SEARCH_TOOL, words, self._search, SearchSectionsParams, **options)

    def _search(self, params: SearchSectionsParams, *, context: Any) -> ToolResult[SearchSectionsResult]:
        if not params.query.strip() or not 1 <= params.limit <= MAX_FOUND:
            message = f"query must not be empty, and limit must be between 1 and {MAX_FOUND}."
            return ToolResult(message, success=False)
        view: View = context.view
        try:
            with collecting([] if context.presentation is None else context.presentation.rankings):
                found = self.finder.closed(view, params.query, params.limit)
        except Exception as error:
            logger.warning("The search for sections failed.", exc_info=error)
            return ToolResult("The search is not available now; go on without it.", success=False)
        if not found:
            return ToolResult("No closed section matches; try different words.", SearchSectionsResult())
        count = context.prompt.template.counter.count
        sections = tuple(_described(one, view, params.query, count) for one in found)
        message = "Found, best first. Call read_section with a key to open a section with its tools."
        return ToolResult(message, SearchSectionsResult(sections))


def _call_hint(tool: str, key: str) -> str:
    return f'[This section is summarized. To view full content, call `{tool}` with key "{key}".]'


def _open_hint(key: str, children: Sequence[str], more: str = "") -> str:
    call = f'[This section is summarized. Call `open_sections` with key "{key}"'
    return f"{call} to view full content including subsections: {', '.join(children)}.{more}]"


def context_file(key: str) -> str:
    return f"{CONTEXT_FOLDER}/{key}.md"


def closed_hint(context: Any) -> str:
    """The keys of the closed sections that the model was shown, in the prompt or in a result."""
    view: View = context.view
    listed = () if context.presentation is None else context.presentation.listed()
    shown = {*view.closed_keys(), *map(".".join, listed)}
    closed = [node.key for node in view.existing() if not view.is_open(node.path)]
    keys = [key for key in closed if key in shown]
    hints = [f"Keys of summarized sections: {', '.join(keys)}."] if keys else []
    if any(node.key not in shown for node in view.closed()):
        hints.append(f"{len(closed) - len(keys):,} closed sections are not listed; call search_sections to find them.")
    return " ".join(hints) or "No section is summarized."


def read_section(params: ReadSectionParams, *, context: Any, with_tools: bool = True) -> ToolResult[ReadSectionResult]:
    """Return a section's content; unless `with_tools`, sections with tools are left to `open_sections`."""
    view: View = context.view
    key = _bare(params.section_key)
    path = view.find(key)
    if path is None:
        return _failed(f"Unknown section key: '{key}'. {closed_hint(context)}", view.request([key]))
    is_open = view.is_open(path)
    if not with_tools and not is_open and view.has_tools(path):
        message = f"Section '{key}' has tools; call open_sections with key '{key}' to open it."
        return _failed(message, view.request([key]))
    try:
        if not is_open and context.presentation is not None:
            context.presentation.load(path, context.resources, context.deadline)
        view = context.view
        if view.find(key) is None:
            return _failed(f"Section '{key}' no longer exists. {closed_hint(context)}", view.request([key]))
        reading = view.reading(path)
        return ToolResult(
            "Section is already expanded." if is_open else f"Content of section '{key}':",
            ReadSectionResult(reading.render(), reading.tools),
            attachments=reading.media(),
            disclosure=view.request([key], overrides=reading.overrides),
        )
    except Exception as error:
        if isinstance(error, WinkError) and error.ends_run:
            raise
        return _unavailable(key, error, view.request([key]))


def collapse_section(params: CollapseSectionParams, *, context: Any) -> ToolResult[None]:
    view: View = context.view
    key = _bare(params.section_key)
    path = view.find(key)
    problem = ""
    if path is None:
        problem = f"Unknown section key: '{key}'."
    elif not view.is_open(path):
        problem = f"Section '{key}' is not expanded."
    elif view.outline.by_path[path].summary is None:
        problem = f"Section '{key}' has no summary, so it stays open."
    else:
        context.session.dispatch(CollapseSection(path, by="model"))
    message = problem or f"Section '{key}' is closed; its tools are no longer available."
    return ToolResult(message, success=not problem, disclosure=view.request([key], action="close"))


def open_sections(
    params: OpenSectionsParams, *, context: Any, way: Literal["halt", "restart", "files"]
) -> ToolResult[OpenSectionsResult]:
    """Return to the caller, restart the evaluation, or write to files what needs neither."""
    view: View = context.view
    section_keys = tuple(map(_bare, params.section_keys))
    request = partial(view.request, section_keys, params.reason)
    if problem := _problem_with(section_keys, params.reason, context):
        return _failed(problem, request())
    paths = list(dict.fromkeys(view.outline.by_key[key].path for key in section_keys))
    if way == "files" and not any(map(view.has_tools, paths)):
        return _write(paths, view, context.filesystem, partial(request, overrides={}))
    overrides = {opened: SectionVisibility.FULL for path in paths for opened in view.opening(path).overrides}
    keys = ", ".join(section_keys)
    if way == "halt":
        result = OpenSectionsResult(requested_overrides=overrides, reason=params.reason)
        return ToolResult(f"Expansion requested: {keys}.", result, disclosure=request(overrides=overrides, halt=True))
    raise VisibilityExpansionRequired(
        f"The model asked to open: {keys}.",
        requested_overrides=overrides,
        reason=params.reason,
        section_keys=section_keys,
    )


def _write(
    paths: Iterable[SectionPath], view: View, files: Filesystem | None, request: Callable[..., DisclosureRequest]
) -> ToolResult[OpenSectionsResult]:
    if files is None:
        logger.warning("There is no filesystem for context files; add a WorkspaceSection to the prompt.")
        return _failed("Cannot write context files: no filesystem available.", request())
    written: list[str] = []
    media: list[Part] = []
    for path in paths:
        key = ".".join(path)
        try:
            pieces = view.pieces_of(path, everything=True)
            files.mkdir(CONTEXT_FOLDER, parents=True, exist_ok=True)
            files.write(context_file(key), "".join(pieces), mode="overwrite")
        except Exception as error:
            if isinstance(error, WinkError) and error.ends_run:
                raise
            logger.warning("Section '%s' cannot be written to a file.", key, exc_info=error)
            return _failed(f"Failed to write context for '{key}': {error}", request())
        written.append(context_file(key))
        media += media_in(pieces)
    message = f"Section content written to: {', '.join(written)}"
    result = OpenSectionsResult(written_files=tuple(written))
    return ToolResult(message, result, attachments=tuple(media), disclosure=request(files=written))


def _bare(key: str) -> str:
    """A key without the brackets in which `suffix="key"` shows it."""
    return key.strip().removeprefix("[").removesuffix("]")


def _problem_with(section_keys: Sequence[str], reason: str, context: Any) -> str:
    """Why `open_sections` cannot open what was requested; empty if it can."""
    if not section_keys:
        return "At least one section key must be provided."
    if len(reason) > MAX_REASON:
        return f"The reason has {len(reason)} characters; at most {MAX_REASON} are allowed."
    view: View = context.view
    for key in section_keys:
        path = view.find(key)
        if path is None:
            return f"Section '{key}' does not exist in this prompt. {closed_hint(context)}"
        if view.is_open(path):
            return f"Section '{key}' is already expanded."
    return ""


def _described(found: Found, view: View, query: str, count: Any) -> FoundSection:
    node = found.node
    reading = view.reading(node.path)
    try:
        tokens = reading.tokens(count)
    except PromptRenderError:
        # That is an error only for whoever opens it.
        tokens = None
    return FoundSection(
        key=node.key,
        title=node.section.title,
        sentence=matching_sentence(node, query),
        tokens=tokens,
        tools=tuple(tool.name for tool in reading.tools),
    )


def _unavailable(key: str, error: Exception, request: DisclosureRequest) -> ToolResult[Any]:
    """The failure to open a section: the developer reads why in the log; the model could do nothing about it."""
    logger.warning("Section '%s' cannot be opened.", key, exc_info=error)
    return _failed(f"Section '{key}' cannot be opened now; go on without it.", request)


def _failed(message: str, request: DisclosureRequest) -> ToolResult[Any]:
    return ToolResult(message, success=False, disclosure=request)


def _tool(name: str, description: str, handler: Handler[Any, Any], params_type: type, **options: Any) -> Tool[Any, Any]:
    options |= {"params_type": params_type, "accepts_overrides": False}
    return Tool(name=name, description=description, handler=handler, **options)


def _open_tool(description: str, way: Literal["halt", "restart", "files"]) -> Tool[Any, Any]:
    handler = partial(open_sections, way=way)
    return _tool("open_sections", description, handler, OpenSectionsParams, result_type=OpenSectionsResult)


def _read_tool(description: str, handler: Handler[Any, Any]) -> Tool[Any, Any]:
    return _tool("read_section", description, handler, ReadSectionParams, result_type=ReadSectionResult)


_WORDS = "Read the full content of a summarized section. Tools that belong to the section become available."
READ_SECTION = _read_tool(_WORDS, read_section)
READ_CONTENT = _read_tool(
    "Read the full content of a summarized section that has no tools.", partial(read_section, with_tools=False)
)
OPEN_SECTIONS_AND_HALT = _open_tool(
    "Open summarized sections. This ends the turn; the prompt comes back with the sections opened.", "halt"
)
OPEN_SECTIONS = _open_tool("Open summarized sections: their full content and their tools become available.", "restart")
OPEN_SECTIONS_TO_FILES = _open_tool(
    "Open summarized sections: content is written to files under context/; tools become available.", "files"
)
COLLAPSE_SECTION = _tool(
    "collapse_section",
    "Close an open section that is no longer needed; its tools stop being available.",
    collapse_section,
    CollapseSectionParams,
)
