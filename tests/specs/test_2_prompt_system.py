"""The examples of the second spec: templates, resources, structured output, disclosure with two tools.

Adjusted: bare sections take no params, and the strategy with two tools is named (`OpenOrRead`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.clock import Clock, SystemClock
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import (
    MarkdownSection,
    OpenOrRead,
    Prompt,
    PromptTemplate,
    ReadSectionParams,
    SectionVisibility,
    SetVisibilityOverride,
    Tool,
    ToolContext,
    ToolResult,
    VisibilityExpansionRequired,
    VisibilityOverrides,
    WorkspaceSection,
    parse_structured_output,
)
from weakincentives.resources import Binding, ResourceRegistry
from weakincentives.session import Session


@dataclass
class TaskParams:
    objective: str


@dataclass
class TaskResult:
    summary: str
    steps: list[str]


class HTTPClient:
    def __init__(self, timeout: int) -> None:
        self.timeout = timeout
        self.closed = False

    def close(self) -> None:
        self.closed = True


template = PromptTemplate[TaskResult](
    ns="agents/assistant",
    key="task-planner",
    sections=[MarkdownSection[TaskParams](title="Task", key="task", template="Plan the following: ${objective}")],
    resources=ResourceRegistry.of(Binding(HTTPClient, lambda r: HTTPClient(timeout=30))),
)


def test_the_usage_example() -> None:
    prompt = Prompt(template).bind(TaskParams(objective="Refactor auth module"))
    adapter = ScriptedAdapter([TaskResult("Plan.", ["read", "write"])])
    session = Session()
    with prompt.resources:
        rendered = prompt.render()
        response = adapter.evaluate(prompt, session=session)
        result: TaskResult = parse_structured_output(response.output, rendered)
        client = prompt.resources.get(HTTPClient)
        assert client.timeout == 30
    assert rendered.text == "## 1. Task\n\nPlan the following: Refactor auth module"
    assert result == TaskResult("Plan.", ["read", "write"])
    assert client.closed


def test_bind_time_resources_join_the_sections_own() -> None:
    files = InMemoryFilesystem()
    with_files = PromptTemplate(ns="demo", key="files", sections=[*template.sections, WorkspaceSection(files)])
    prompt = Prompt(with_files).bind(
        TaskParams(objective="Review code"), resources=ResourceRegistry.build({Clock: SystemClock()})
    )
    with prompt.resources:
        assert prompt.resources.get(Filesystem) is files  # type: ignore[type-abstract]
        assert isinstance(prompt.resources.get(Clock), SystemClock)  # type: ignore[type-abstract]
    with pytest.raises(RuntimeError):
        prompt.resources.get(HTTPClient)


def test_snapshots_by_hand_as_the_spec_shows_them() -> None:
    files = InMemoryFilesystem({"a.txt": "before"})
    prompt, session = Prompt(PromptTemplate(ns="demo", key="tx", sections=[WorkspaceSection(files)])), Session()
    with prompt.resources:
        session_snapshot = session.snapshot()
        resource_snapshot = prompt.resources.context.snapshot()
        session.dispatch(TaskParams("changed"))
        files.write("a.txt", "after", mode="overwrite")
        session.restore(session_snapshot)
        prompt.resources.context.restore(resource_snapshot)
    assert (session[TaskParams].all(), files.read("a.txt")) == ((), "before")


def use(params: None, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult("used")


DOCS = PromptTemplate(
    ns="demo",
    key="docs",
    disclosure=OpenOrRead(),
    sections=[
        MarkdownSection(
            title="Context",
            key="context",
            template="Full detailed content...",
            summary="Brief overview available.",
            visibility=SectionVisibility.SUMMARY,
        ),
        MarkdownSection(
            title="Tools",
            key="tools",
            template="Use it.",
            summary="Tools available.",
            visibility=SectionVisibility.SUMMARY,
            tools=[Tool(name="use", description="Use.", handler=use)],
        ),
    ],
)


def test_the_suffix_names_the_right_tool() -> None:
    assert DOCS.render().text == (
        "## 1. Context\n\nBrief overview available.\n\n---\n"
        '[This section is summarized. To view full content, call `read_section` with key "context".]\n\n'
        "## 2. Tools\n\nTools available.\n\n---\n"
        '[This section is summarized. To view full content, call `open_sections` with key "tools".]'
    )


def test_read_section_is_read_only_access() -> None:
    prompt, session = Prompt(DOCS), Session()
    read_section_tool = next(tool for tool in prompt.render().tools if tool.name == "read_section")
    with prompt.resources:
        context = ToolContext(session=session, resources=prompt.resources.context, prompt=prompt)
        result: Any = read_section_tool.handler(ReadSectionParams(section_key="context"), context=context)
    assert result.success
    assert "Full detailed content..." in result.value.content
    assert [tool.name for tool in prompt.render(session=session).tools] == ["open_sections", "read_section"]


def test_the_caller_pattern() -> None:
    prompt, session = Prompt(DOCS), Session()
    adapter = ScriptedAdapter([call("open_sections", section_keys=["tools"], reason="to use it"), call("use"), "Done."])
    with prompt.resources:
        while True:
            try:
                response = adapter.evaluate(prompt, session=session)
                break
            except VisibilityExpansionRequired as e:
                for path, visibility in e.requested_overrides.items():
                    session[VisibilityOverrides].apply(SetVisibilityOverride(path=path, visibility=visibility))
    assert response.text == "Done."
