"""Web search through LiteLLM: declared as options, and read out of stored answers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.hosted_tools import parsed
from weakincentives.adapters.litellm.codecs import CODECS, LiteLLMWebSearchCodec
from weakincentives.errors import PromptEvaluationError
from weakincentives.tools.web_search import (
    Citation,
    DomainFilter,
    GeoHint,
    WebSearchConfig,
    WebSearchResult,
    web_search_tool,
)

SEARCH = web_search_tool()
LONDON = web_search_tool(WebSearchConfig(geo_hint=GeoHint("GB", "London")))
WHO, CDC = "https://www.who.int/news/flu", "https://www.cdc.gov/flu/weekly"


def read(*cases: str) -> Any:
    return parsed(CODECS["web_search"], SEARCH, "litellm", *cases)


def test_a_web_search_is_an_option_of_the_request() -> None:
    codec = CODECS["web_search"]
    place = {"type": "approximate", "approximate": {"country": "GB", "city": "London"}}
    assert codec.serialize(SEARCH) == {"web_search_options": {}}
    assert codec.serialize(LONDON) == {"web_search_options": {"user_location": place}}


@pytest.mark.parametrize(
    ("config", "named", "can"),
    [
        (WebSearchConfig(DomainFilter(("who.int",))), "domain_filter.allowed", "anthropic and openai can"),
        (WebSearchConfig(DomainFilter(blocked=("who.int",))), "domain_filter.blocked", "anthropic and openai can"),
        (WebSearchConfig(allow_live_access=False), "allow_live_access=False", "openai can"),
    ],
)
def test_other_settings_are_refused_with_the_adapters_that_have_them(
    config: WebSearchConfig, named: str, can: str
) -> None:
    with pytest.raises(PromptEvaluationError) as caught:
        CODECS["web_search"].serialize(web_search_tool(config))
    assert f"the litellm adapter cannot honour {named}" in str(caught.value)
    assert str(caught.value).endswith(f"; {can}.")


@pytest.mark.parametrize("model", ["groq/compound", "gemini/gemini-3-pro", "bedrock/amazon.nova-pro-v1:0"])
def test_a_place_is_refused_where_litellm_would_drop_it(model: str) -> None:
    codec = LiteLLMWebSearchCodec(model)
    assert codec.serialize(SEARCH)["web_search_options"] == {}
    with pytest.raises(PromptEvaluationError, match=r"geo_hint.country_code: LiteLLM drops it for \w+; anthropic and"):
        codec.serialize(LONDON)


def test_a_search_is_refused_where_litellm_would_drop_it() -> None:
    with pytest.raises(PromptEvaluationError, match="LiteLLM drops a web search for xai") as caught:
        LiteLLMWebSearchCodec("xai/grok-5").serialize(SEARCH)
    assert caught.value.phase == "render"


def test_what_an_answer_cites_is_the_result() -> None:
    assert read("normal") == WebSearchResult(
        "Flu activity is rising in Europe (who.int).", (Citation(WHO, "Influenza update", (33, 42)),), (WHO,)
    )


def test_many_citations_are_one_result_and_ranges_fit_across_answers() -> None:
    result = read("normal", "no_call", "many_calls")
    assert [result.text[slice(*citation.span)] for citation in result.citations] == [
        "(who.int)",
        "(who.int)",
        "(cdc.gov)",
        "who.int.",
    ]
    assert result.source_urls == (WHO, CDC)


@pytest.mark.parametrize("case", ["no_call", "error_inside"])
def test_an_answer_that_cites_nothing_has_no_output(case: str) -> None:
    assert read(case) is None


def test_what_cannot_be_read_is_left_out_and_noted() -> None:
    result = read("malformed_item")
    assert result.citations == (Citation(WHO, "Influenza update", (14, 23)), Citation(CDC, "Out of range"))
    assert [error.code for error in result.errors] == ["malformed"]


def test_annotations_that_are_none_are_an_error() -> None:
    item = {"type": "grounding", "annotations": "(who.int)"}
    with pytest.raises(PromptEvaluationError, match="cannot be read") as caught:
        CODECS["web_search"].parse_output([item], SEARCH)
    assert (caught.value.phase, caught.value.payload) == ("parse", item)


def test_annotations_of_unknown_types_are_ignored() -> None:
    result = read("unknown_item_type")
    assert (len(result.citations), result.errors) == (1, ())
