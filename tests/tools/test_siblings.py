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
        (lambda **limits: FileSearchConfig(("vs_1",), **limits), "max_results"),
    ],
)
def test_a_limit_is_a_whole_number_of_at_least_one(config: Any, field: str, value: object) -> None:
    with pytest.raises(PromptValidationError, match=rf"\.{field} is {value!r}; give a whole number"):
        config(**{field: value})


def test_an_existing_container_takes_no_settings_of_a_new_one() -> None:
    with pytest.raises(PromptValidationError, match="file_ids, memory_gb, allowed_domains belong to a new container"):
        CodeInterpreterConfig(container_id="c", file_ids=("f",), memory_gb=4, allowed_domains=())


def test_the_network_of_code_is_open_to_bare_domains() -> None:
    with pytest.raises(PromptValidationError, match=r"allowed_domains: 'http://x\.org' is no bare domain"):
        CodeInterpreterConfig(allowed_domains=("http://x.org",))


@pytest.mark.parametrize(
    ("config", "field"), [(CodeInterpreterConfig, "file_ids"), (FileSearchConfig, "vector_store_ids")]
)
def test_a_text_is_no_tuple_of_ids(config: Any, field: str) -> None:
    with pytest.raises(PromptValidationError, match=rf"{field} is a tuple; write \('abc',\)"):
        config(**{field: "abc"})


def test_a_file_search_needs_a_store() -> None:
    with pytest.raises(PromptValidationError, match="names no store"):
        FileSearchConfig(())


@pytest.mark.parametrize(
    ("config", "setting", "message"),
    [
        (CodeInterpreterConfig, {"file_ids": (5,)}, "CodeInterpreterConfig.file_ids has 5 in it; give texts"),
        (CodeInterpreterConfig, {"file_ids": 5}, "CodeInterpreterConfig.file_ids is 5; give a tuple of texts"),
        (CodeInterpreterConfig, {"container_id": ""}, "container_id is empty; leave it out for a new one"),
        (CodeInterpreterConfig, {"container_id": 5}, "container_id is 5; give the id of a container"),
        (FileSearchConfig, {"vector_store_ids": ("",)}, "vector_store_ids has '' in it; give texts that are not empty"),
        (FileSearchConfig, {"vector_store_ids": ("v",), "score_threshold": "x"}, "'x'; give a number from 0 to 1"),
        (FileSearchConfig, {"vector_store_ids": ("v",), "filters": {"a": 1}}, "filters is {'a': 1}; give a Comparison"),
        (WebFetchConfig, {"domain_filter": ("a.org",)}, "domain_filter is ('a.org',); give a DomainFilter"),
        (WebFetchConfig, {"citations": "yes"}, "WebFetchConfig.citations is 'yes'; give True or False"),
        (WebFetchConfig, {"allow_cache": 0}, "WebFetchConfig.allow_cache is 0; give True or False"),
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
        (lambda: Comparison("", "eq", 1), "has no key"),
        (lambda: Comparison("year", "near", 1), "'near' is unknown; use eq, ne, gt"),
        (lambda: Comparison("year", "in", 2026), "'in' takes a tuple"),
        (lambda: Comparison("year", "eq", (2026,)), "'eq' takes a single value"),
        (lambda: AllOf(()), "AllOf has no filters"),
        (lambda: AnyOf(()), "AnyOf has no filters"),
        (lambda: AnyOf(Comparison("year", "eq", 1)), "AnyOf.filters is a tuple"),
        (lambda: AllOf(({"year": 1},)), "AllOf has {'year': 1} in it"),
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(make: Any, message: str) -> None:
    with pytest.raises(PromptValidationError, match=message):
        make()


def test_a_result_sums_up_all_code_that_ran() -> None:
    first = CodeExecution("a", stdout="1\n", stderr="w\n", exit_code=0)
    second = CodeExecution("b", stdout=None, exit_code=2)
    result = CodeInterpreterResult("Done.", (first, second, CodeExecution("c")))
    assert (result.code, result.stdout, result.stderr, result.exit_code) == ("a\nb\nc", "1\n", "w\n", 2)
    assert CodeInterpreterResult("Done.").exit_code is None
