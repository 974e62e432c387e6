"""Anthropic's hosted tools: declared on the wire, and read out of stored answers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.hosted_tools import parsed
from weakincentives.adapters.anthropic.codecs import CODECS
from weakincentives.errors import PromptEvaluationError
from weakincentives.tools.code_interpreter import (
    CodeExecution,
    CodeFile,
    CodeInterpreterResult,
    HostedToolFailure,
    code_interpreter_tool,
)
from weakincentives.tools.web_fetch import (
    DocumentCitation,
    FetchedDocument,
    WebFetchConfig,
    WebFetchResult,
    web_fetch_tool,
)
from weakincentives.tools.web_search import (
    Citation,
    DomainFilter,
    GeoHint,
    WebSearchConfig,
    WebSearchResult,
    web_search_tool,
)

SEARCH, FETCH, CODE = web_search_tool(), web_fetch_tool(), code_interpreter_tool()
TOOLS = (SEARCH, FETCH, CODE)
WHO, CDC = "https://www.who.int/news/flu", "https://www.cdc.gov/flu/weekly"
PAGE = FetchedDocument(
    WHO, "Influenza update", "Activity continues to rise in Europe.", retrieved_at="2026-11-15T09:00:00Z"
)


def declared(tool: Any) -> dict[str, Any]:
    return CODECS[tool.kind].serialize(tool)


def read(tool: Any, *cases: str) -> Any:
    return parsed(CODECS[tool.kind], tool, "anthropic", *cases)


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        (WebSearchConfig(), {}),
        (WebSearchConfig(DomainFilter(("who.int",))), {"allowed_domains": ["who.int"]}),
        (WebSearchConfig(DomainFilter(blocked=("who.int",))), {"blocked_domains": ["who.int"]}),
        (
            WebSearchConfig(geo_hint=GeoHint("GB", timezone="Europe/London")),
            {"user_location": {"type": "approximate", "country": "GB", "timezone": "Europe/London"}},
        ),
    ],
)
def test_a_web_search_is_declared_under_the_vendors_name(config: WebSearchConfig, fields: dict[str, Any]) -> None:
    assert declared(web_search_tool(config, name="other")) == {
        "type": "web_search_20260318",
        "name": "web_search",
        **fields,
    }


def test_a_page_fetch_is_declared_with_its_settings() -> None:
    config = WebFetchConfig(DomainFilter(("who.int",)), 3, 9_000, citations=True, allow_cache=False)
    assert declared(web_fetch_tool()) == {"type": "web_fetch_20260318", "name": "web_fetch"}
    assert declared(web_fetch_tool(config)) == {
        "type": "web_fetch_20260318",
        "name": "web_fetch",
        "allowed_domains": ["who.int"],
        "max_uses": 3,
        "max_content_tokens": 9_000,
        "citations": {"enabled": True},
        "use_cache": False,
    }


def test_a_code_interpreter_is_declared_under_the_vendors_name() -> None:
    assert declared(CODE) == {"type": "code_execution_20260521", "name": "code_execution"}


@pytest.mark.parametrize("tool", [web_search_tool, web_fetch_tool])
def test_domains_are_allowed_or_blocked_but_not_both(tool: Any) -> None:
    both = DomainFilter(("who.int",), ("ads.who.int",))
    config = WebSearchConfig(both) if tool is web_search_tool else WebFetchConfig(both)
    with pytest.raises(PromptEvaluationError, match=r"domain_filter.allowed together with domain_filter.blocked; "):
        declared(tool(config))


def test_a_web_search_has_citations_without_ranges() -> None:
    assert read(SEARCH, "normal") == WebSearchResult(
        text="I'll look that up. Flu activity is rising in Europe.",
        citations=(Citation(WHO, "Influenza update", None),),
        source_urls=(WHO, CDC),
    )


def test_many_searches_are_one_result_in_order() -> None:
    assert read(SEARCH, "many_calls") == WebSearchResult(
        text="Rising in Europe, stable in the US.",
        citations=(Citation(WHO, "Influenza update"), Citation(CDC, "FluView"), Citation(WHO, "")),
        source_urls=(WHO, CDC),
    )


def test_search_errors_are_typed() -> None:
    assert read(SEARCH, "error_inside").errors == (
        HostedToolFailure("limit_reached", "max_uses_exceeded", call_id="srvtoolu_1"),
        HostedToolFailure("rate_limited", "too_many_requests", call_id="srvtoolu_2"),
    )


def test_an_error_code_that_nobody_knows_yet_is_kept() -> None:
    error = {"type": "web_search_tool_result_error", "error_code": "bad_weather"}
    item = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": error}
    result = CODECS["web_search"].parse_output([item], SEARCH)
    assert result is not None
    assert result.errors == (HostedToolFailure("failed", "bad_weather", call_id="s1"),)


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.kind)
def test_an_answer_without_a_call_has_no_output(tool: Any) -> None:
    assert read(tool, "no_call") is None


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.kind)
def test_blocks_of_unknown_types_are_ignored(tool: Any) -> None:
    result = read(tool, "unknown_item_type")
    assert (bool(result.text), result.errors) == (True, ())


def test_what_of_a_search_cannot_be_read_is_left_out_and_noted() -> None:
    result = read(SEARCH, "malformed_item")
    assert (result.citations, result.source_urls) == ((Citation(WHO, "Influenza update"),), (WHO,))
    assert [error.message.partition(":")[0] for error in result.errors] == [
        "web_search_result",
        "web_search_tool_result",
        "web_search_result_location",
    ]


@pytest.mark.parametrize(
    ("tool", "item"),
    [
        (SEARCH, {"type": "server_tool_use", "name": "web_search"}),
        (FETCH, {"type": "web_fetch_tool_result", "tool_use_id": "s1"}),
        (CODE, {"type": "bash_code_execution_tool_result"}),
    ],
    ids=["web_search", "web_fetch", "code_interpreter"],
)
def test_when_no_block_at_all_can_be_read_that_is_an_error(tool: Any, item: dict[str, Any]) -> None:
    with pytest.raises(PromptEvaluationError, match=f"'{tool.name}'.*cannot be read.*{item['type']}") as caught:
        CODECS[tool.kind].parse_output([item], tool)
    assert (caught.value.phase, caught.value.payload) == ("parse", item)


def test_a_fetched_page_has_its_text_and_what_was_cited_of_it() -> None:
    cited = DocumentCitation(WHO, "Influenza update", "Activity continues to rise", (0, 26))
    assert read(FETCH, "normal") == WebFetchResult("It is rising.", (PAGE,), (cited,))
    assert PAGE.text[slice(0, 26)] == cited.cited_text


def test_many_pages_are_one_result_and_a_pdf_has_bytes() -> None:
    result = read(FETCH, "many_calls")
    report = result.documents[1]
    assert (report.title, report.text, report.media_type, report.data) == ("Report", "", "application/pdf", b"%PDF-1.4")
    assert [(citation.url, citation.document_span) for citation in result.citations] == [
        (WHO, (0, 26)),
        ("https://www.who.int/report.pdf", None),
        ("", (0, 3)),
    ]


def test_a_page_that_is_gone_is_an_error_beside_the_others() -> None:
    result = read(FETCH, "error_inside")
    assert result.documents == (PAGE,)
    assert result.errors == (HostedToolFailure("not_found", "url_not_accessible", call_id="srvtoolu_1"),)


def test_what_of_a_page_cannot_be_read_is_left_out_and_noted() -> None:
    result = read(FETCH, "malformed_item")
    assert [document.data for document in result.documents] == [None]
    assert [error.code for error in result.errors] == ["malformed", "malformed"]


def test_code_has_output_and_exit_code() -> None:
    execution = CodeExecution("print(6 * 7)", "42\n", "", 0, call_id="srvtoolu_1")
    assert read(CODE, "normal") == CodeInterpreterResult.of([execution], text="It is 42.")


def test_python_bash_and_editor_are_one_result_in_order() -> None:
    result = read(CODE, "many_calls")
    assert [(one.language, one.code, one.stdout) for one in result.executions] == [
        ("bash", "ls data", "a.csv\n"),
        ("editor", '{"command":"view","path":"data/a.csv"}', "1,2\n"),
        ("python", "plot()", "saved\n"),
        ("python", "search()", None),
    ]
    assert (result.files, result.stderr, result.exit_code) == ((CodeFile("file_011"),), "warning\n", 0)


def test_code_errors_are_typed_and_a_failing_program_is_none() -> None:
    result = read(CODE, "error_inside")
    assert result.executions[1].exit_code == 1
    assert result.errors == (
        HostedToolFailure("timeout", "execution_time_exceeded", call_id="srvtoolu_1"),
        HostedToolFailure("not_found", "file_not_found", "gone does not exist", "srvtoolu_3"),
    )


def test_a_result_that_cannot_be_read_leaves_its_code() -> None:
    result = read(CODE, "malformed_item")
    assert [(one.code, one.stdout) for one in result.executions] == [("print(1)", "1\n"), ("print(2)", None)]
    assert [error.code for error in result.errors] == ["malformed"]
