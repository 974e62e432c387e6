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
    PromptRenderError,
    PromptTemplate,
    PromptValidationError,
    ReadSectionParams,
    Section,
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
from weakincentives.runtime import Message
from weakincentives.session import Bus, Session


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


def test_a_prompt_is_a_context_manager() -> None:
    with Prompt(template).bind(TaskParams(objective="Refactor auth module")) as prompt:
        client = prompt.resources.get(HTTPClient)
        assert not client.closed
    assert client.closed


def test_a_type_that_is_given_twice_in_one_bind_is_rejected_whatever_is_bound_later() -> None:
    prompt = Prompt(template).bind(TaskParams("one"), TaskParams("two")).bind(TaskResult("", []))
    with pytest.raises(PromptValidationError, match="TaskParams was bound twice"):
        prompt.render()


def test_an_output_given_to_the_prompt_is_that_of_its_template() -> None:
    plain = PromptTemplate(ns="demo", key="plain", sections=[])
    rendered = Prompt[TaskResult](plain).render()
    answer = '{"note": 1} and {"summary": "Plan.", "steps": ["read"]}'
    assert parse_structured_output(answer, rendered) == TaskResult("Plan.", ["read"])


def test_json_in_prose_is_the_first_value_that_fits() -> None:
    rendered = PromptTemplate[list[TaskParams]](ns="demo", key="list", sections=[]).render()
    assert parse_structured_output('see [1] and [{"objective": "q"}]', rendered) == [TaskParams("q")]


class Clocked(Section[TaskParams]):
    """A section that renders itself whole."""

    def render(self, params: TaskParams | None = None, **place: Any) -> str:
        return f"{place['number']}) {params.objective if params else ''}"


class Shouting(MarkdownSection[TaskParams]):
    def render_body(self, params: TaskParams | None) -> str:
        return super().render_body(params).upper()

    def is_enabled(self, params: TaskParams | None = None, *, session: Session | None = None) -> bool:
        return params is not None and params.objective != "nothing"


def test_overridden_methods_are_asked_and_render_alone_is_enough() -> None:
    shouting = Shouting(title="Task", key="task", template="Plan: ${objective}")
    prompt = PromptTemplate(ns="demo", key="own", sections=[Clocked(title="Clock", key="clock"), shouting])
    assert prompt.render(TaskParams("tea")).text == "1) tea\n\n## 2. Task\n\nPLAN: TEA"
    assert prompt.render(TaskParams("nothing")).text == "1) nothing"


def test_annotations_with_any_are_allowed() -> None:
    assert all((list[MarkdownSection[Any]], Section[Any], Section[TaskParams] | None))


class Notebook(MarkdownSection[None]):
    """A tool-backed section: its tool writes to a session and keeps a list."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.notes: list[str] = []
        tool = Tool(name="note", description="Take a note.", handler=self.note)
        super().__init__(title="Notes", key="notes", template="Take notes.", tools=[tool])

    def note(self, params: None, *, context: ToolContext) -> ToolResult[None]:
        self.notes.append("noted")
        self.session.dispatch(TaskParams("noted"))
        return ToolResult("ok")


def test_a_clone_is_decoupled_and_acts_for_the_session_that_it_is_given() -> None:
    old, new = Session(), Session()
    section = Notebook(old)
    cloned = section.clone(session=new, bus=Bus())
    prompt, session = Prompt(PromptTemplate(ns="demo", key="notes", sections=[cloned])), Session()
    ScriptedAdapter([call("note"), "Done."]).evaluate(prompt, session=session)
    assert (section.notes, cloned.notes) == ([], ["noted"])
    assert (old[TaskParams].all(), new[TaskParams].all()) == ((), (TaskParams("noted"),))
    with pytest.raises(TypeError, match="sesion"):
        section.clone(sesion=new)


def test_bind_time_resources_join_the_sections_own() -> None:
    files = InMemoryFilesystem()
    with_files = PromptTemplate(ns="demo", key="files", sections=[*template.sections, WorkspaceSection(files)])
    prompt = Prompt(with_files).bind(
        TaskParams(objective="Review code"), resources=ResourceRegistry.build({Clock: SystemClock()})
    )
    with prompt.resources:
        assert prompt.resources.get(Filesystem) is files
        assert isinstance(prompt.resources.get(Clock), SystemClock)
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


def test_read_section_leaves_a_section_with_tools_to_open_sections() -> None:
    session = Session()
    adapter = ScriptedAdapter([call("read_section", section_key="tools"), "Done."])
    adapter.evaluate(Prompt(DOCS), session=session)
    (message,) = (message for message in session[Message].all() if message.role == "tool")
    assert message.text == "Section 'tools' has tools; call open_sections with key 'tools' to open it."
    assert "use" not in [tool.name for tool in adapter.requests[1].tools]


def test_params_of_a_summarized_section_are_needed_and_those_of_a_disabled_one_are_not() -> None:
    def section(**options: Any) -> MarkdownSection[TaskParams]:
        return MarkdownSection[TaskParams](title="T", key="t", template="${objective}", summary="A task.", **options)

    with pytest.raises(PromptRenderError, match="No TaskParams was bound"):
        PromptTemplate(ns="demo", key="a", sections=[section(visibility=SectionVisibility.SUMMARY)]).render()
    assert PromptTemplate(ns="demo", key="b", sections=[section(enabled=lambda: False)]).render().text == ""


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
