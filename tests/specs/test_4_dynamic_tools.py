"""The examples of the fourth spec: tools that appear in the conversation, or a restart where they cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.adapters.vendors import ANTHROPIC, LITELLM, OPENAI, VENDORS, Vendor
from tests.helpers.endings import endings
from tests.servers.turn import Call, Turn
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, SectionVisibility, tool
from weakincentives.runtime import MainLoop, Message, PromptResponse, ProviderAdapter, ToolsInjected
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
    pytest.importorskip(vendor.package)
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
    assert len(endings(session, "restarted")) == 1


@tool(name="search")
def other_search(query: str) -> str:
    """Search the library."""
    return f"1 book on {query}"


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_tool_whose_name_is_taken_is_skipped_with_a_warning(dynamic: bool, caplog: pytest.LogCaptureFixture) -> None:
    library = MarkdownSection(title="Library", key="library", template="Books.", tools=[other_search])
    clash = PromptTemplate[Answer](ns="example", key="clash", sections=[*template.sections, library])
    script = [call("read_section", section_key="context"), call("search", query="tea"), Answer("one")]
    session, adapter = Session(), ScriptedAdapter(script, supports_dynamic_tools=dynamic)
    MainLoop().execute(Prompt(clash), session=session, adapter=adapter)
    assert [message.text for message in session[Message].all() if message.role == "tool"][-1] == "1 book on tea"
    assert {tool.name for tool in adapter.requests[-1].tools} == {"search", "cite", "read_section"} - (
        set() if dynamic else {"read_section"}
    )
    assert "Skipping duplicate tool 'search' of section 'context': section 'library' has it already." in caplog.messages
    (skipped,) = [record for record in caplog.records if record.msg.startswith("Skipping")]
    assert (skipped.section_key, skipped.tool_name) == ("context", "search")  # type: ignore[attr-defined]


def test_the_record_of_injected_tools_has_their_section_number_and_names(caplog: pytest.LogCaptureFixture) -> None:
    adapter = ScriptedAdapter([call("read_section", section_key="context"), Answer("one")])
    with caplog.at_level("INFO"):
        adapter.evaluate(Prompt(template), session=Session())
    (record,) = [record for record in caplog.records if record.msg.startswith("Injected tools")]
    fields = record.section_key, record.tool_count, record.tool_names  # type: ignore[attr-defined]
    assert fields == ("context", 2, ("search", "cite"))


class Canned(ProviderAdapter[Answer]):
    """An adapter as the spec declares it: with `evaluate` alone."""

    def evaluate(self, prompt: Any, *, session: Session, **options: Any) -> PromptResponse[Any]:
        return PromptResponse(prompt.name, prompt.render(session=session).text, Answer("canned"))


def test_an_adapter_may_define_evaluate_alone() -> None:
    adapter = Canned("canned-1")
    assert not adapter.supports_dynamic_tools
    response = MainLoop().execute(Prompt(template), session=Session(), adapter=adapter)
    assert response.require_output() == Answer("canned")
    with pytest.raises(TypeError, match=r"Canned has no channel\(\); define it, or override the method"):
        adapter.resume(Prompt(template), session=Session())
    with pytest.raises(TypeError, match=r"cannot reach a model; implement channel\(\), or evaluate\(\) by itself"):
        ProviderAdapter[int]("none")


def test_the_support_matrix() -> None:
    for vendor in (OPENAI, ANTHROPIC, LITELLM):
        pytest.importorskip(vendor.package)
        with vendor.server([]) as server, vendor.adapter(server) as adapter:
            assert adapter.supports_dynamic_tools
