"""The examples of the third spec: content to files, tools by a new evaluation.

Adjusted: placeholders have params, and the strategy is named (`OpenToFiles`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.adapters.vendors import ANTHROPIC, OPENAI, Vendor
from tests.servers.turn import Call, Turn
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.contrib.tools import VfsToolsSection
from weakincentives.prompt import (
    MarkdownSection,
    OpenSectionsResult,
    OpenToFiles,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    SetVisibilityOverride,
    Tool,
    ToolContext,
    ToolResult,
    VisibilityExpansionRequired,
)
from weakincentives.runtime import Message, ToolInvoked
from weakincentives.session import Session


@dataclass
class Output:
    done: bool


@dataclass
class TaskParams:
    task: str


@dataclass
class DocsParams:
    api_docs: str = "GET /teapots"


def test_basic_progressive_disclosure() -> None:
    template = PromptTemplate[Output](
        ns="agents/assistant",
        key="task-handler",
        disclosure=OpenToFiles(),
        sections=[
            MarkdownSection[TaskParams](
                title="Instructions", key="instructions", template="Complete the following task: ${task}"
            ),
            MarkdownSection[DocsParams](
                title="Reference Documentation",
                key="reference-docs",
                template="Detailed API documentation...\n\n${api_docs}",
                summary="API documentation available on request.",
                visibility=SectionVisibility.SUMMARY,
            ),
        ],
    )
    text = template.render(TaskParams("brew")).text
    assert text.endswith(
        "API documentation available on request.\n\n---\n[This section is summarized. To view full content, call "
        '`open_sections` with key "reference-docs". The content will be written to context/reference-docs.md for you '
        "to read.]"
    )


CODER = PromptTemplate[Output](
    ns="agents/coder",
    key="edit-files",
    disclosure=OpenToFiles(),
    sections=[
        MarkdownSection[None](title="Instructions", key="instructions", template="Edit files as requested."),
        VfsToolsSection(),
        MarkdownSection[None](
            title="Code Style Guide",
            key="style-guide",
            template="Comprehensive style guide content...",
            summary="Code style guide available.",
            visibility=SectionVisibility.SUMMARY,
        ),
    ],
)


@pytest.mark.parametrize("vendor", [OPENAI, ANTHROPIC], ids=str)
def test_a_content_only_section_goes_to_a_file_that_the_model_reads(vendor: Vendor) -> None:
    pytest.importorskip(vendor.package)
    script = [
        Turn(calls=(Call("open_sections", {"section_keys": ["style-guide"], "reason": "Need formatting rules"}),)),
        Turn(calls=(Call("read", {"path": "context/style-guide.md"}),)),
        Turn('{"done": true}'),
    ]
    session = Session()
    with vendor.server(script) as server, vendor.adapter(server) as adapter:
        response = adapter.evaluate(Prompt(CODER), session=session)
    assert response.output == Output(done=True)
    assert session[ToolInvoked].all()[0].result.value == OpenSectionsResult(written_files=("context/style-guide.md",))
    read = [message.text for message in session[Message].all() if message.role == "tool"][1]
    assert "Comprehensive style guide content..." in read


@dataclass
class VerifyParams:
    result: int


@dataclass(frozen=True)
class VerifyResult:
    correct: bool


def verify_handler(params: VerifyParams, *, context: ToolContext) -> ToolResult[VerifyResult]:
    return ToolResult("Verified.", VerifyResult(params.result == 4))


verify_tool: Tool[Any, Any] = Tool[VerifyParams, VerifyResult](
    name="verify_result", description="Verify computation result.", handler=verify_handler
)


def test_a_tool_bearing_section_asks_for_a_new_evaluation() -> None:
    template = PromptTemplate[Output](
        ns="agents/calculator",
        key="compute",
        disclosure=OpenToFiles(),
        sections=[
            MarkdownSection[None](title="Instructions", key="instructions", template="Perform calculations."),
            MarkdownSection[None](
                title="Verification Tools",
                key="verification",
                template="Use verify_result to check your work.",
                summary="Verification tools available.",
                visibility=SectionVisibility.SUMMARY,
                tools=[verify_tool],
            ),
        ],
    )
    session, expansion_count, max_expansions = Session(), 0, 5
    asked = call("open_sections", section_keys=["verification"], reason="Need to verify")
    adapter = ScriptedAdapter([asked, call("verify_result", result=4), Output(done=True)])
    prompt = Prompt(template)
    while expansion_count < max_expansions:
        try:
            response = adapter.evaluate(prompt, session=session)
            break
        except VisibilityExpansionRequired as e:
            assert (e.reason, e.section_keys) == ("Need to verify", ("verification",))
            for path, visibility in e.requested_overrides.items():
                session.broadcast(SetVisibilityOverride(path=path, visibility=visibility))
            expansion_count += 1
    assert (expansion_count, response.output) == (1, Output(done=True))
    assert [tool.name for tool in adapter.requests[1].tools] == ["verify_result"]


def test_tools_are_looked_for_in_the_whole_subtree() -> None:
    def plain(key: str, **kwargs: Any) -> MarkdownSection[None]:
        return MarkdownSection(title=key, key=key, template=key, **kwargs)

    tree = plain(
        "parent", children=[plain("child-a", tools=[verify_tool], children=[plain("grandchild")]), plain("child-b")]
    )
    view = Prompt(PromptTemplate(ns="a", key="b", sections=[tree])).view(Session())
    found = {
        key: view.has_tools(tuple(key.split(".")))
        for key in ("parent", "parent.child-a", "parent.child-b", "parent.child-a.grandchild")
    }
    assert found == {
        "parent": True,
        "parent.child-a": True,
        "parent.child-b": False,
        "parent.child-a.grandchild": False,
    }


def handbook(*extra: Any) -> PromptTemplate[None]:
    """A closed section with a tool, and in it a closed one without."""
    style = MarkdownSection[DocsParams](
        title="Style",
        key="style",
        template="Write like this: ${api_docs}",
        summary="How to write.",
        visibility=SectionVisibility.SUMMARY,
    )
    guide = MarkdownSection[None](
        title="Guide",
        key="guide",
        template="All of it.",
        summary="A guide.",
        visibility=SectionVisibility.SUMMARY,
        tools=[verify_tool],
        children=[style],
    )
    return PromptTemplate(ns="a", key="b", sections=[guide, VfsToolsSection(), *extra], disclosure=OpenToFiles())


def test_a_content_only_section_inside_a_closed_one_with_tools_goes_to_its_own_file() -> None:
    session = Session()
    opened = call("open_sections", section_keys=["guide.style"], reason="to write")
    read = call("read", path="context/guide.style.md")
    ScriptedAdapter([opened, read, "Done."]).evaluate(Prompt(handbook()), session=session)
    answers = [message.text for message in session[Message].all() if message.role == "tool"]
    assert answers[0].startswith("Section content written to: context/guide.style.md")
    assert "Write like this: GET /teapots" in answers[1]


def test_two_sessions_of_one_template_share_no_file() -> None:
    template = handbook()
    opened = call("open_sections", section_keys=["guide.style"], reason="to write")
    secret = Prompt(template).bind(DocsParams(api_docs="the first customer's secret"))
    ScriptedAdapter([opened, "Done."]).evaluate(secret, session=Session())
    session = Session()
    ScriptedAdapter([call("read", path="context/guide.style.md"), "Done."]).evaluate(Prompt(template), session=session)
    (answer,) = (message for message in session[Message].all() if message.role == "tool")
    assert (answer.success, answer.text) == (False, "'context/guide.style.md' does not exist")


class Forced(MarkdownSection[None]):
    def effective_visibility(self, *given: Any, **named: Any) -> SectionVisibility:
        return SectionVisibility.FULL


def test_an_overridden_effective_visibility_is_asked() -> None:
    section = Forced(title="T", key="t", template="Shown.", summary="s", visibility=SectionVisibility.SUMMARY)
    assert handbook(section).render().text.endswith("## 3. T\n\nShown.")


def test_an_override_inside_a_disabled_section_is_ignored() -> None:
    child = MarkdownSection[None](title="C", key="c", template="c")
    off = MarkdownSection[None](title="Off", key="off", template="x", enabled=lambda: False, children=[child])
    rendered = handbook(off).render(visibility_overrides={("off", "c"): SectionVisibility.SUMMARY})
    assert "Off" not in rendered.text
