"""Two tools, `search_sections` and `read_section`, for prompts with more sections than a menu can list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, get_args

from weakincentives.errors import PromptRenderError, PromptValidationError
from weakincentives.prompt.disclosure.strategy import READ_SECTION, current_view, read_suffix
from weakincentives.prompt.layout import Menu
from weakincentives.prompt.outline import Node
from weakincentives.prompt.ranking import Ranker
from weakincentives.prompt.ranking.finder import CLEAR, Found, SectionFinder, matching_sentence
from weakincentives.prompt.tool import Tool, ToolResult
from weakincentives.prompt.view import View

MAX_FOUND = 20


@dataclass(frozen=True, slots=True)
class SearchSectionsParams:
    query: str = field(metadata={"description": "What is needed, in your own words or the user's."})
    limit: int = field(default=10, metadata={"description": f"How many sections to list, at most {MAX_FOUND}."})


@dataclass(frozen=True, slots=True)
class FoundSection:
    """A closed section that a search found: what matched, what opening it costs, and the tools it brings."""

    key: str
    title: str
    sentence: str
    tokens: int
    tools: tuple[str, ...] = ()

    def render(self) -> str:
        tools = f"; tools: {', '.join(self.tools)}" if self.tools else ""
        return f'- "{self.key}": {self.title} (about {self.tokens:,} tokens{tools})\n  {self.sentence}'


@dataclass(frozen=True, slots=True)
class SearchSectionsResult:
    sections: tuple[FoundSection, ...] = ()

    def render(self) -> str:
        return "\n".join(section.render() for section in self.sections)


# No slots: the finder and the tool are made on first use.
@dataclass(frozen=True)
class SearchSections:
    """`search_sections` beside `read_section`, for prompts with hundreds of sections.

    `ranker` finds sections; the built-in one compares words and needs no package. `preopen` opens, before the first
    turn, at most so many sections that the user's words clearly call for. `menu` says which summaries the prompt
    lists: all of them, those of root sections (`"top"`), or none. What is below an opened section is always listed.
    """

    ranker: Ranker | None = None
    preopen: int = 0
    menu: Menu = "all"

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
        return (READ_SECTION, self._tool) if with_tools or content_only else ()

    def suffix(self, key: str, *, children: Sequence[str], has_tools: bool) -> str:
        return read_suffix(key)

    def preopened(self, view: View, words: str) -> list[Node]:
        """The closed sections that stand out for what the user says, at most `preopen`."""
        found = self.finder.closed(view, words, self.preopen + 1)
        scores = [one.score for one in found] + [0.0]
        clear = [size for size in range(1, len(found[: self.preopen]) + 1) if scores[size - 1] >= CLEAR * scores[size]]
        return [one.node for one in found[: max(clear, default=0)]]

    @cached_property
    def finder(self) -> SectionFinder:
        return SectionFinder(self.ranker)

    @cached_property
    def _tool(self) -> Tool[SearchSectionsParams, SearchSectionsResult]:
        listed = "" if self.menu == "all" else " Most sections are not listed in the prompt: search before you give up."
        return Tool(
            name="search_sections",
            description="Search all closed sections, with their tools, for what is needed. "
            f"Then open what fits with read_section.{listed}",
            handler=self._search,
            params_type=SearchSectionsParams,
            result_type=SearchSectionsResult,
            read_only=True,
            accepts_overrides=False,
        )

    def _search(self, params: SearchSectionsParams, *, context: Any) -> ToolResult[SearchSectionsResult]:
        if not params.query.strip() or not 1 <= params.limit <= MAX_FOUND:
            message = f"query must not be empty, and limit must be between 1 and {MAX_FOUND}."
            return ToolResult(message, success=False)
        view = current_view(context)
        try:
            found = self.finder.closed(view, params.query, params.limit)
        except Exception as error:
            return ToolResult(f"The search failed: {type(error).__name__}: {error}", success=False)
        if not found:
            return ToolResult("No closed section has to do with that; try other words.", SearchSectionsResult())
        count = context.prompt.template.counter.count
        sections = tuple(_described(one, view, params.query, count) for one in found)
        message = "Found, best first. Call read_section with a key to open a section with its tools."
        return ToolResult(message, SearchSectionsResult(sections))


def _described(found: Found, view: View, query: str, count: Any) -> FoundSection:
    node = found.node
    reading = view.reading(node.path)
    try:
        tokens = reading.tokens(count)
    except PromptRenderError:
        # That is an error only for whoever opens it.
        tokens = 0
    return FoundSection(
        key=node.key,
        title=node.section.title,
        sentence=matching_sentence(node, query),
        tokens=tokens,
        tools=tuple(tool.name for tool in reading.tools),
    )
