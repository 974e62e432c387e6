"""Web fetch, code interpreter, file search: configuration, factory, section."""

from __future__ import annotations

from typing import Any

import pytest

from weakincentives.prompt import HostedTool, PromptTemplate, PromptValidationError, Section
from weakincentives.tools.code_interpreter import (
    CodeExecution,
    CodeInterpreterConfig,
    CodeInterpreterResult,
    CodeInterpreterSection,
    code_interpreter_tool,
)
from weakincentives.tools.file_search import (
    AllOf,
    AnyOf,
    Comparison,
    FileSearchConfig,
    FileSearchSection,
    file_search_tool,
)
from weakincentives.tools.web_fetch import WebFetchConfig, WebFetchSection, web_fetch_tool

FILES = FileSearchConfig(("vs_1",))


@pytest.mark.parametrize(
    ("section", "tool"),
    [
        (WebFetchSection(), web_fetch_tool()),
        (CodeInterpreterSection(), code_interpreter_tool()),
        (FileSearchSection(FILES), file_search_tool(FILES)),
    ],
    ids=lambda value: value.kind if isinstance(value, HostedTool) else "",
)
def test_each_section_offers_its_tool_under_its_kind(section: Section[Any], tool: HostedTool[Any]) -> None:
    rendered = PromptTemplate(ns="t", key="t", sections=[section]).render()
    assert rendered.hosted_tools == (tool,)
    assert section.key == tool.name == tool.kind
    assert rendered.text.startswith(f"## 1. {section.title}\n\nYou can ")


@pytest.mark.parametrize("value", [0, -1, True, 2.5, "3"])
@pytest.mark.parametrize(
    ("config", "field"),
    [
        (WebFetchConfig, "max_uses"),
        (WebFetchConfig, "max_content_tokens"),
        (CodeInterpreterConfig, "memory_gb"),
        (CodeInterpreterConfig, "timeout_seconds"),
        (lambda **limits: FileSearchConfig(("vs_1",), **limits), "max_results"),
    ],
)
def test_a_limit_is_a_whole_number_of_at_least_one(config: Any, field: str, value: object) -> None:
    with pytest.raises(PromptValidationError, match=rf"\.{field} must be a positive integer or None, got {value!r}"):
        config(**{field: value})


def test_an_existing_container_takes_no_settings_of_a_new_one() -> None:
    with pytest.raises(PromptValidationError, match="file_ids, memory_gb, allowed_domains configure a new container"):
        CodeInterpreterConfig(container_id="c", file_ids=("f",), memory_gb=4, allowed_domains=())


def test_the_network_of_code_is_open_to_bare_domains() -> None:
    with pytest.raises(PromptValidationError, match=r"allowed_domains must contain bare domains, got 'http://x\.org'"):
        CodeInterpreterConfig(allowed_domains=("http://x.org",))


@pytest.mark.parametrize(
    ("config", "field"), [(CodeInterpreterConfig, "file_ids"), (FileSearchConfig, "vector_store_ids")]
)
def test_a_text_is_no_tuple_of_ids(config: Any, field: str) -> None:
    with pytest.raises(PromptValidationError, match=rf"{field} must be a tuple of texts, got a text; write \('abc',\)"):
        config(**{field: "abc"})


def test_a_file_search_needs_a_store() -> None:
    with pytest.raises(PromptValidationError, match="must name at least one store"):
        FileSearchConfig(())


@pytest.mark.parametrize(
    ("config", "setting", "message"),
    [
        (
            CodeInterpreterConfig,
            {"file_ids": (5,)},
            "file_ids must contain non-empty texts, got 5",
        ),
        (CodeInterpreterConfig, {"file_ids": 5}, "CodeInterpreterConfig.file_ids must be a tuple of texts, got 5"),
        (CodeInterpreterConfig, {"container_id": ""}, "container_id must not be empty; leave it out for a new"),
        (CodeInterpreterConfig, {"container_id": 5}, "container_id must be the id of a container or None, got 5"),
        (FileSearchConfig, {"vector_store_ids": ("",)}, "vector_store_ids must contain non-empty texts, got ''"),
        (
            FileSearchConfig,
            {"vector_store_ids": ("v",), "score_threshold": "x"},
            "a number from 0 to 1, got 'x'",
        ),
        (
            FileSearchConfig,
            {"vector_store_ids": ("v",), "filters": {"a": 1}},
            "AllOf or AnyOf, got {'a': 1}",
        ),
        (WebFetchConfig, {"domain_filter": ("a.org",)}, "domain_filter must be a DomainFilter, got ('a.org',)"),
        (WebFetchConfig, {"citations": "yes"}, "WebFetchConfig.citations must be True or False, got 'yes'"),
        (WebFetchConfig, {"allow_cache": 0}, "WebFetchConfig.allow_cache must be True or False, got 0"),
    ],
)
def test_a_setting_of_another_kind_is_named(config: Any, setting: dict[str, Any], message: str) -> None:
    with pytest.raises(PromptValidationError) as caught:
        config(**setting)
    assert message in str(caught.value)


@pytest.mark.parametrize("threshold", [-0.1, 1.5])
def test_a_score_is_from_zero_to_one(threshold: float) -> None:
    with pytest.raises(PromptValidationError, match="from 0 to 1"):
        FileSearchConfig(("vs_1",), score_threshold=threshold)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Comparison("", "eq", 1), "key must not be empty"),
        (lambda: Comparison("year", "near", 1), "must be one of eq, ne, gt, .*got 'near'"),
        (lambda: Comparison("year", "in", 2026), "'in' takes a tuple"),
        (lambda: Comparison("year", "eq", (2026,)), "'eq' takes a single value"),
        (lambda: AllOf(()), "AllOf.filters must contain at least one"),
        (lambda: AnyOf(()), "AnyOf.filters must contain at least one"),
        (lambda: AnyOf(Comparison("year", "eq", 1)), "AnyOf.filters must be a tuple"),
        (lambda: AllOf(({"year": 1},)), "AllOf.filters must contain .*got {'year': 1}"),
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(make: Any, message: str) -> None:
    with pytest.raises(PromptValidationError, match=message):
        make()


def test_a_result_sums_up_all_code_that_ran() -> None:
    first = CodeExecution("a", stdout="1\n", stderr="w\n", exit_code=0)
    second = CodeExecution("b", stdout=None, exit_code=2)
    result = CodeInterpreterResult.of([first, second, CodeExecution("c")], text="Done.")
    assert (result.code, result.stdout, result.stderr, result.exit_code) == ("a\nb\nc", "1\n", "w\n", 2)
    assert CodeInterpreterResult.of([], text="Done.") == CodeInterpreterResult(text="Done.")


def test_a_result_can_be_made_of_what_the_spec_lists() -> None:
    result = CodeInterpreterResult(code="print(1)", stdout="1\n", stderr="", exit_code=0)
    assert (result.code, result.stdout, result.stderr, result.exit_code) == ("print(1)", "1\n", "", 0)


def test_languages_and_a_time_limit_can_be_configured() -> None:
    config = CodeInterpreterConfig(allowed_languages=["python"], timeout_seconds=30)  # type: ignore[arg-type]
    assert (config.allowed_languages, config.timeout_seconds) == (("python",), 30)
    with pytest.raises(PromptValidationError, match="allowed_languages must name at least one language"):
        CodeInterpreterConfig(allowed_languages=())
