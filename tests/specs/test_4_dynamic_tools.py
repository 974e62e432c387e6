"""The examples of the fourth spec: tools that appear in the conversation, or a restart where they cannot."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.adapters.vendors import ANTHROPIC, LITELLM, OPENAI, VENDORS, Vendor
from tests.servers.turn import Call, Turn
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, SectionVisibility, tool
from weakincentives.runtime import MainLoop, RunRestarted, ToolsInjected
from weakincentives.session import Session

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


@dataclass
class Answer:
    text: str


@tool(name="search", read_only=True)
def search_tool(query: str) -> str:
    """Search the archive."""
    return f"3 papers on {query}"


@tool(name="cite", read_only=True)
def cite_tool(paper: int) -> str:
    """Cite a paper."""
    return f"[{paper}]"


template = PromptTemplate[Answer](
    ns="example",
    key="research",
    sections=[
        MarkdownSection(
            title="Context",
            key="context",
            template="Detailed research context...",
            summary="Research context available.",
            visibility=SectionVisibility.SUMMARY,
            tools=(search_tool, cite_tool),
        ),
    ],
)


def test_the_suffix_says_nothing_of_tools() -> None:
    assert template.render().text.endswith(
        '---\n[This section is summarized. To view full content, call `read_section` with key "context".]'
    )


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
def test_tools_are_injected_mid_conversation_and_no_restart_is_needed(vendor: Vendor) -> None:
    pytest.importorskip(vendor.name)
    script = [
        Turn(calls=(Call("read_section", {"section_key": "context"}),)),
        Turn(calls=(Call("search", {"query": "tea"}),)),
        Turn('{"text": "three"}'),
    ]
    session = Session()
    with vendor.server(script) as server, vendor.adapter(server) as adapter:
        assert adapter.supports_dynamic_tools
        response = MainLoop().execute(Prompt(template), session=session, adapter=adapter)
        assert len(server.requests) == 3
    assert response.output == Answer("three")
    (injected,) = session[ToolsInjected].all()
    assert (injected.tool_names, injected.section_key) == (("search", "cite"), "context")
    assert injected.timestamp > 0


def test_an_adapter_without_dynamic_tools_restarts() -> None:
    adapter = ScriptedAdapter(
        [call("read_section", section_key="context"), call("cite", paper=1), Answer("[1]")],
        supports_dynamic_tools=False,
    )
    session = Session()
    response = MainLoop().execute(Prompt(template), session=session, adapter=adapter)
    assert response.output == Answer("[1]")
    assert len(session[RunRestarted].all()) == 1


def test_the_support_matrix() -> None:
    for vendor in (OPENAI, ANTHROPIC, LITELLM):
        pytest.importorskip(vendor.name)
        with vendor.server([]) as server, vendor.adapter(server) as adapter:
            assert adapter.supports_dynamic_tools
