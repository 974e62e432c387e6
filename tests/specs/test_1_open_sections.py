"""The example flow of the first spec: open_sections as a terminal tool, and the caller that retries.

Adjusted: the strategy is named (`OpenAndHalt`), and headings carry a period.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.adapters.vendors import ANTHROPIC, OPENAI, Vendor
from tests.servers.turn import Call, Turn
from weakincentives.prompt import MarkdownSection, OpenAndHalt, Prompt, PromptTemplate, SectionVisibility
from weakincentives.runtime import ToolInvoked
from weakincentives.session import Session


@dataclass
class TaskParams:
    objective: str


@dataclass
class ContextParams:
    project_name: str


prompt = PromptTemplate(
    ns="agents/assistant",
    key="task-executor",
    name="task_executor",
    disclosure=OpenAndHalt(),
    sections=[
        MarkdownSection[TaskParams](title="Task", template="Complete the following: ${objective}", key="task"),
        MarkdownSection[ContextParams](
            title="Project Context",
            template="""
            Detailed documentation for ${project_name}:
            - Architecture overview
            - API reference
            - Code conventions
            - Historical decisions
            """,
            summary="Documentation for ${project_name} is available.",
            key="context",
            visibility=SectionVisibility.SUMMARY,
        ),
    ],
)
PARAMS = (TaskParams(objective="Refactor the authentication module"), ContextParams(project_name="WeakIncentives"))

SUMMARIZED = """\
## 1. Task

Complete the following: Refactor the authentication module

## 2. Project Context

Documentation for WeakIncentives is available.

---
[This section is summarized. To view full content, call `open_sections` with key "context".]"""

OPENED = """\
## 1. Task

Complete the following: Refactor the authentication module

## 2. Project Context

Detailed documentation for WeakIncentives:
- Architecture overview
- API reference
- Code conventions
- Historical decisions"""


def test_the_initial_render_is_summarized_and_the_retry_is_not() -> None:
    assert prompt.render(*PARAMS).text == SUMMARIZED
    retried = prompt.render(*PARAMS, visibility_overrides={("context",): SectionVisibility.FULL})
    assert (retried.text, retried.tools) == (OPENED, ())


def test_a_suffix_may_be_written_by_the_author() -> None:
    section = MarkdownSection(
        title="Reference Documentation",
        template="...",
        summary="Overview of available APIs and their purposes.",
        summary_suffix=(
            "Call `open_sections` with key '${section_key}' to see detailed API signatures and usage examples."
        ),
        key="reference",
        visibility=SectionVisibility.SUMMARY,
    )
    text = PromptTemplate(ns="a", key="b", sections=[section]).render().text
    assert text.endswith(
        "---\nCall `open_sections` with key 'reference' to see detailed API signatures and usage examples."
    )


def test_the_keys_of_the_children_are_appended_to_a_suffix_of_the_authors_own() -> None:
    children = [MarkdownSection(title=key, template="...", key=key) for key in ("examples", "constraints", "history")]
    section = MarkdownSection(
        title="Context",
        template="...",
        summary="What is known.",
        summary_suffix="Open '${section_key}' for more.",
        key="context",
        visibility=SectionVisibility.SUMMARY,
        children=children,
    )
    text = PromptTemplate(ns="a", key="b", sections=[section], disclosure=OpenAndHalt()).render().text
    assert text.endswith("---\nOpen 'context' for more.\nSubsections: examples, constraints, history.")


@pytest.mark.parametrize("vendor", [OPENAI, ANTHROPIC], ids=str)
def test_the_flow_runs_on_a_real_sdk(vendor: Vendor) -> None:
    pytest.importorskip(vendor.package)
    reason = "Need architecture details for refactoring"
    asked = Turn(calls=(Call("open_sections", {"section_keys": ["context"], "reason": reason}),))
    session = Session()
    with vendor.server([asked, Turn("Refactored.")]) as server, vendor.adapter(server) as adapter:
        halted = adapter.evaluate(Prompt(prompt).bind(*PARAMS), session=session)
        assert halted.halt is not None
        merged = {**halted.halt.requested_overrides}
        answer = adapter.evaluate(Prompt(prompt).bind(*PARAMS), session=session, visibility_overrides=merged)
        assert "- Architecture overview" in server.requests[1].body.decode()
    assert answer.text == "Refactored."
    disclosure = session[ToolInvoked].all()[0].disclosure
    assert disclosure is not None
    assert (disclosure.requested_sections, disclosure.reason) == (("context",), reason)
    assert disclosure.current_visibility_state == {
        ("task",): SectionVisibility.FULL,
        ("context",): SectionVisibility.SUMMARY,
    }
