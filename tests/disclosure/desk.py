"""Prompts, sections and a strategy that the tests of disclosure share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weakincentives.adapters.scripted import ScriptedAdapter
from weakincentives.prompt import (
    Disclosure,
    EstimatedTokens,
    LateContent,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    ReadSectionResult,
    SearchSections,
    Section,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
    VisibilityChange,
    WorkspaceSection,
    tool,
)
from weakincentives.resources import ScopedResourceContext
from weakincentives.runtime import Message
from weakincentives.session import Session

FULL, SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY


def a_tool(name: str) -> Tool[None, None]:
    return Tool(name=name, description=f"Does {name}.", handler=lambda params, *, context: ToolResult(f"{name} done"))


def section(key: str, *, closed: bool = True, tools: tuple[str, ...] = (), **kwargs: Any) -> MarkdownSection[None]:
    return MarkdownSection(
        title=key.title(),
        key=key,
        template=f"All of {key}.",
        summary=f"About {key}.",
        visibility=SUMMARY if closed else FULL,
        tools=[a_tool(name) for name in tools],
        **kwargs,
    )


def desk(**kwargs: Any) -> PromptTemplate[None]:
    """An open task; docs (content), orders (tools, and a closed child with tools), guide (content with children)."""
    return PromptTemplate(
        ns="tests",
        key="desk",
        sections=[
            MarkdownSection(title="Task", key="task", template="Help."),
            section("docs"),
            section("orders", tools=("lookup",), children=[section("refunds", tools=("refund",))]),
            section("guide", children=[section("style", closed=False), section("tone")]),
        ],
        **kwargs,
    )


def desk_with_files(**kwargs: Any) -> PromptTemplate[None]:
    template = desk(**kwargs)
    return PromptTemplate(ns="tests", key="desk", sections=[*template.sections, WorkspaceSection()], **kwargs)


def tool_names(tools: Any) -> list[str]:
    return [tool.name for tool in tools]


def answers(session: Session) -> list[tuple[bool, str]]:
    return [(m.success, m.text) for m in session[Message].all() if m.role == "tool"]


def play(template: PromptTemplate[Any], *lines: Any, session: Session | None = None, **options: Any) -> ScriptedAdapter:
    adapter = ScriptedAdapter([*lines], **options)
    adapter.evaluate(Prompt(template), session=session or Session())
    adapter.assert_used_up()
    return adapter


def changing(*changes: VisibilityChange, fail: bool = False) -> MarkdownSection[None]:
    """A section with a tool that changes what is shown."""

    @tool
    def change(*, context: ToolContext) -> ToolResult[None]:
        """Change visibility."""
        for event in changes:
            context.session.dispatch(event)
        return ToolResult("done", success=not fail)

    return MarkdownSection(key="task", title="Task", template="Go.", tools=[change])


def closed(key: str, text: str, *tools: str, summary: str = "More.", **options: Any) -> MarkdownSection[None]:
    found = [a_tool(name) for name in tools]
    return MarkdownSection(
        title=key.title(), key=key, template=text, summary=summary, visibility=SUMMARY, tools=found, **options
    )


def shop(*extra: Any, **options: Any) -> PromptTemplate[None]:
    late = closed("late", "After thirty days a manager must approve the refund.")
    sections = [
        MarkdownSection(title="Task", key="task", template="Help customers."),
        closed("refunds", "A refund takes five days. Damaged goods are refunded at once.", "refund", children=[late]),
        closed("shipping", "Parcels leave the warehouse at noon. Couriers deliver on Saturdays.", "track"),
        closed("vouchers", "A voucher is valid for two years."),
        *extra,
    ]
    strategy = SearchSections(**options)
    return PromptTemplate(ns="t", key="shop", sections=sections, disclosure=strategy, tokenizer=EstimatedTokens())


class Server(Section[None]):
    """A section that asks something for its tools when it is opened."""

    def __init__(self, *tools: str, children: tuple[Section[Any], ...] = (), error: str = "", **options: Any) -> None:
        self._names, self._found, self._error = tools, children, error
        self.loads = 0
        super().__init__(title="Server", key="server", summary="Does much.", **options)

    def render_body(self, params: None) -> str:
        return "Use it well."

    def load(self, resources: ScopedResourceContext) -> LateContent | None:
        self.loads += 1
        if self._error:
            raise OSError(self._error)
        return LateContent(tuple(a_tool(name) for name in self._names), self._found)

    def clone(self, **given: Any) -> Server:
        raise NotImplementedError


@dataclass(frozen=True)
class Query:
    words: str


def look_up(params: Query, *, context: ToolContext) -> ToolResult[ReadSectionResult]:
    view = context.view
    for key in view.closed_keys():
        path = view.find(key)
        if path is not None and params.words in view.content(path):
            reading = view.reading(path)
            found = ReadSectionResult(reading.render(), reading.tools)
            return ToolResult(f"Found in {key}:", found, disclosure=view.request([key]))
    return ToolResult("No section has these words.", success=False)


LOOK_UP = Tool[Query, ReadSectionResult](name="look_up", description="Find a section by its words.", handler=look_up)


class LookUp(Disclosure):
    def tools(self, *, with_tools: bool, content_only: bool) -> tuple[Tool[Any, Any], ...]:
        return (LOOK_UP,) if with_tools or content_only else ()

    def hint(self, key: str, *, children: Sequence[str], has_tools: bool) -> str:
        return "[In short; `look_up` finds the rest by its words.]"
