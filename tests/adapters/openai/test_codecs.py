"""OpenAI's hosted tools: declared on the wire, and read out of stored answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.hosted_tools import parsed
from weakincentives.adapters.openai.codecs import CODECS
from weakincentives.errors import PromptEvaluationError
from weakincentives.tools.code_interpreter import (
    CodeExecution,
    CodeFile,
    CodeInterpreterConfig,
    CodeInterpreterResult,
    HostedToolFailure,
    code_interpreter_tool,
)
from weakincentives.tools.file_search import (
    AllOf,
    AnyOf,
    Comparison,
    FileCitation,
    FilePassage,
    FileSearchConfig,
    FileSearchResult,
    file_search_tool,
)
from weakincentives.tools.web_search import (
    Citation,
    DomainFilter,
    GeoHint,
    WebSearchConfig,
    WebSearchResult,
    web_search_tool,
)

SEARCH, CODE, FILES = web_search_tool(), code_interpreter_tool(), file_search_tool(FileSearchConfig(("vs_1",)))
WHO, CDC = "https://www.who.int/news/flu", "https://www.cdc.gov/flu/weekly"


def declared(tool: Any) -> dict[str, Any]:
    return CODECS[tool.kind].serialize(tool)


def read(tool: Any, *cases: str) -> Any:
    return parsed(CODECS[tool.kind], tool, "openai", *cases)


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        (WebSearchConfig(), {}),
        (WebSearchConfig(DomainFilter()), {}),
        (WebSearchConfig(DomainFilter(("who.int",))), {"filters": {"allowed_domains": ["who.int"]}}),
        (
            WebSearchConfig(DomainFilter(("who.int",), ("ads.who.int",))),
            {"filters": {"allowed_domains": ["who.int"], "blocked_domains": ["ads.who.int"]}},
        ),
        (WebSearchConfig(geo_hint=GeoHint()), {"user_location": {"type": "approximate"}}),
        (
            WebSearchConfig(geo_hint=GeoHint("GB", "London", "England", "Europe/London")),
            {
                "user_location": {
                    "type": "approximate",
                    "country": "GB",
                    "city": "London",
                    "region": "England",
                    "timezone": "Europe/London",
                }
            },
        ),
        (WebSearchConfig(allow_live_access=False), {"external_web_access": False}),
    ],
)
def test_a_web_search_is_declared_with_its_settings(config: WebSearchConfig, fields: dict[str, Any]) -> None:
    assert declared(web_search_tool(config, name="other")) == {"type": "web_search", **fields}


def test_a_web_search_has_cited_ranges_and_every_page_consulted() -> None:
    assert read(SEARCH, "normal") == WebSearchResult(
        text="Flu activity is rising in Europe (who.int).",
        citations=(Citation(WHO, "Influenza update", (33, 42)),),
        source_urls=(WHO, CDC),
    )


def test_many_searches_are_one_result_whose_ranges_fit_its_text() -> None:
    result = read(SEARCH, "many_calls")
    assert [result.text[slice(*citation.span)] for citation in result.citations] == ["(who.int)", "(cdc.gov)"]
    assert result.source_urls == (WHO, "https://www.ecdc.europa.eu/flu", CDC)


def test_the_searches_of_several_answers_are_one_result_too() -> None:
    result = read(SEARCH, "normal", "no_call", "many_calls")
    assert result.text.startswith("Flu activity is rising in Europe (who.int).Four.Let me check")
    assert [result.text[slice(*citation.span)] for citation in result.citations] == [
        "(who.int)",
        "(who.int)",
        "(cdc.gov)",
    ]


def test_a_failed_search_is_an_error_beside_what_was_found() -> None:
    result = read(SEARCH, "error_inside")
    assert result.errors == (HostedToolFailure("failed", "failed", call_id="ws_1"),)
    assert result.source_urls == (WHO,)


@pytest.mark.parametrize("tool", [SEARCH, CODE, FILES], ids=lambda tool: tool.kind)
def test_an_answer_without_a_call_has_no_output(tool: Any) -> None:
    assert read(tool, "no_call") is None
    assert CODECS[tool.kind].parse_output([], tool) is None


def test_what_of_a_search_cannot_be_read_is_left_out_and_noted() -> None:
    assert read(SEARCH, "malformed_item") == WebSearchResult(
        text="Flu is rising (who.int).",
        citations=(Citation(WHO, "Influenza update", (14, 23)), Citation(CDC, "Out of range")),
        source_urls=(WHO,),
        errors=(
            HostedToolFailure(
                "malformed", message="web_search_call: Expected `object | null`, got `str` - at `$.action`"
            ),
            HostedToolFailure("malformed", message="url_citation: Object missing required field `url`"),
        ),
    )


@pytest.mark.parametrize(
    ("tool", "item"),
    [
        (SEARCH, {"type": "web_search_call", "action": 7}),
        (CODE, {"type": "code_interpreter_call", "outputs": "none"}),
        (FILES, {"type": "file_search_call", "queries": 7}),
    ],
    ids=["web_search", "code_interpreter", "file_search"],
)
def test_when_no_call_at_all_can_be_read_that_is_an_error(tool: Any, item: dict[str, Any]) -> None:
    with pytest.raises(PromptEvaluationError, match=f"'{tool.name}'.*cannot be read.*{item['type']}") as caught:
        CODECS[tool.kind].parse_output([item], tool)
    assert (caught.value.phase, caught.value.payload) == ("parse", item)


@pytest.mark.parametrize("tool", [SEARCH, CODE, FILES], ids=lambda tool: tool.kind)
def test_items_of_unknown_types_are_ignored(tool: Any) -> None:
    result = read(tool, "unknown_item_type")
    assert result.text
    assert result.errors == ()


def test_objects_of_the_sdk_are_read_as_well_as_json() -> None:
    note = SimpleNamespace(type="url_citation", url=WHO, title="Influenza update", start_index=0, end_index=3)
    part = SimpleNamespace(type="output_text", text="Flu is rising.", annotations=[note])
    items = [
        SimpleNamespace(type="web_search_call", id="ws_1", status="completed"),
        SimpleNamespace(type="message", content=[part]),
    ]
    assert CODECS["web_search"].parse_output(items, SEARCH) == WebSearchResult(
        "Flu is rising.", (Citation(WHO, "Influenza update", (0, 3)),)
    )


@pytest.mark.parametrize(
    ("config", "container"),
    [
        (CodeInterpreterConfig(), {"type": "auto"}),
        (CodeInterpreterConfig(container_id="cntr_1"), "cntr_1"),
        (
            CodeInterpreterConfig(file_ids=("f1",), memory_gb=4),
            {"type": "auto", "file_ids": ["f1"], "memory_limit": "4g"},
        ),
        (
            CodeInterpreterConfig(allowed_domains=("example.com",)),
            {"type": "auto", "network_policy": {"type": "allowlist", "allowed_domains": ["example.com"]}},
        ),
        (CodeInterpreterConfig(allowed_domains=()), {"type": "auto", "network_policy": {"type": "disabled"}}),
    ],
)
def test_a_code_interpreter_is_declared_with_its_container(config: CodeInterpreterConfig, container: Any) -> None:
    assert declared(code_interpreter_tool(config)) == {"type": "code_interpreter", "container": container}


def test_python_is_the_one_language_that_can_be_asked_for() -> None:
    assert declared(code_interpreter_tool(CodeInterpreterConfig(allowed_languages=("python",)))) == declared(
        code_interpreter_tool()
    )
    with pytest.raises(PromptEvaluationError, match=r"allowed_languages=\('bash',\) \(it accepts \('python',\)\)"):
        declared(code_interpreter_tool(CodeInterpreterConfig(allowed_languages=("bash",))))


def test_memory_comes_in_the_sizes_that_there_are() -> None:
    with pytest.raises(PromptEvaluationError, match=r"memory_gb=8 \(it accepts 1, 4, 16, 64\); no adapter can"):
        declared(code_interpreter_tool(CodeInterpreterConfig(memory_gb=8)))


def test_code_has_its_output_and_neither_stderr_nor_exit_code() -> None:
    execution = CodeExecution("print(6 * 7)", stdout="42\n", call_id="ci_1")
    result = read(CODE, "normal")
    assert result == CodeInterpreterResult.of([execution], text="It is 42.")
    assert (result.code, result.stdout, result.stderr, result.exit_code) == ("print(6 * 7)", "42\n", "", None)


def test_all_code_of_a_run_is_one_result_with_images_and_files() -> None:
    result = read(CODE, "many_calls")
    assert [execution.stdout for execution in result.executions] == [None, "4.5\n", "saved\n"]
    assert result.executions[2].files == (CodeFile(url="https://files.example.com/plot.png", container_id="cntr_1"),)
    assert result.files == (CodeFile("cfile_1", "plot.png", container_id="cntr_1"),)


def test_code_that_failed_or_never_ended_says_so() -> None:
    assert read(CODE, "error_inside").errors == (
        HostedToolFailure("failed", "failed", call_id="ci_1"),
        HostedToolFailure("incomplete", "incomplete", call_id="ci_2"),
    )


def test_code_that_cannot_be_read_is_left_out_and_noted() -> None:
    result = read(CODE, "malformed_item")
    assert ([execution.code for execution in result.executions], result.errors[0].code) == (["print(1)"], "malformed")


def test_a_file_search_is_declared_with_its_filters() -> None:
    old = Comparison("year", "lt", 2020)
    either = AnyOf((Comparison("region", "in", ("eu", "uk")), old))
    config = FileSearchConfig(("vs_1", "vs_2"), 50, 0.5, AllOf((either, Comparison("draft", "eq", False))))
    assert declared(file_search_tool(config)) == {
        "type": "file_search",
        "vector_store_ids": ["vs_1", "vs_2"],
        "max_num_results": 50,
        "ranking_options": {"score_threshold": 0.5},
        "filters": {
            "type": "and",
            "filters": [
                {
                    "type": "or",
                    "filters": [
                        {"type": "in", "key": "region", "value": ["eu", "uk"]},
                        {"type": "lt", "key": "year", "value": 2020},
                    ],
                },
                {"type": "eq", "key": "draft", "value": False},
            ],
        },
    }


def test_more_results_than_the_provider_gives_are_refused() -> None:
    with pytest.raises(PromptEvaluationError, match=r"max_results=51 \(it accepts 1 to 50\)"):
        declared(file_search_tool(FileSearchConfig(("vs_1",), 51)))


def test_a_file_search_has_passages_and_citations() -> None:
    passage = FilePassage("file_1", "refunds.md", "Refunds take five days.", 0.91, {"region": "eu", "year": 2026.0})
    assert read(FILES, "normal") == FileSearchResult(
        "Refunds take five days.", ("refund time",), (passage,), (FileCitation("file_1", "refunds.md", 22),)
    )


def test_many_file_searches_are_one_result_whose_positions_fit_its_text() -> None:
    result = read(FILES, "many_calls")
    assert result.queries == ("refund time", "money back", "return label")
    assert [passage.file_id for passage in result.passages] == ["file_1", "file_2", "file_1"]
    assert [result.text[: citation.position].split()[-1] for citation in result.citations] == ["days", "label"]


def test_a_failed_file_search_says_so() -> None:
    result = read(FILES, "error_inside")
    assert (result.passages, result.errors) == ((), (HostedToolFailure("failed", "failed", call_id="fs_1"),))


def test_what_of_a_file_search_cannot_be_read_is_left_out_and_noted() -> None:
    result = read(FILES, "malformed_item")
    assert result.citations == (FileCitation("file_1", "refunds.md"),)
    assert [error.message.partition(":")[0] for error in result.errors] == ["file_search_call", "file_citation"]
