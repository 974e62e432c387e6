"""A small prompt with every kind of summarized section, shared by the disclosure tests."""

from __future__ import annotations

from typing import Any

from weakincentives.adapters.scripted import ScriptedAdapter
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolResult,
    WorkspaceSection,
)
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
