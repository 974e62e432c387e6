"""Web search: configuration, factory, section."""

from __future__ import annotations

import sys
import zoneinfo
from collections.abc import Iterator
from typing import Any

import pytest

from weakincentives.prompt import HostedTool, PromptTemplate, PromptValidationError, SectionVisibility
from weakincentives.tools.web_search import (
    Citation,
    DomainFilter,
    GeoHint,
    WebSearchConfig,
    WebSearchResult,
    WebSearchSection,
    web_search_tool,
)


@pytest.mark.parametrize("domain", ["cdc.gov", "pubmed.ncbi.nlm.nih.gov", "münchen.de", "a-b.co.uk", "CDC.gov"])
def test_bare_domains_are_taken(domain: str) -> None:
    assert DomainFilter(allowed=(domain,)).allowed == (domain,)


@pytest.mark.parametrize(
    ("domain", "way_out"),
    [
        ("https://cdc.gov", "write 'cdc.gov'"),
        ("http://www.who.int/news?x=1", "write 'www.who.int'"),
        ("cdc.gov/flu", "write 'cdc.gov'"),
        ("cdc.gov:443", "write 'cdc.gov'"),
        ("", "write it like 'cdc.gov'"),
        ("gov", "write it like 'cdc.gov'"),
        ("-cdc.gov", "write it like 'cdc.gov'"),
        ("cdc-.gov", "write it like 'cdc.gov'"),
        ("cdc .gov", "write it like 'cdc.gov'"),
        ("*.gov", "write it like 'cdc.gov'"),
    ],
)
def test_anything_else_is_refused_with_the_way_out(domain: str, way_out: str) -> None:
    with pytest.raises(PromptValidationError) as caught:
        DomainFilter(blocked=(domain,))
    assert str(caught.value) == f"DomainFilter.blocked must contain bare domains, got {domain!r}; {way_out}."


def test_a_text_is_no_tuple_of_domains() -> None:
    with pytest.raises(PromptValidationError, match=r"write \('cdc.gov',\)"):
        DomainFilter(allowed="cdc.gov")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DomainFilter(5), "DomainFilter.allowed must be a tuple of domains, got 5"),
        (lambda: DomainFilter(blocked=None), "DomainFilter.blocked must be a tuple of domains, got None"),
        (lambda: GeoHint(country_code=["GB"]), "GeoHint.country_code must be text or None, got ['GB']"),
        (lambda: GeoHint(timezone=1), "GeoHint.timezone must be text or None, got 1"),
        (lambda: GeoHint(city=1), "GeoHint.city must be text or None, got 1"),
        (
            lambda: WebSearchConfig(("cdc.gov",)),
            "domain_filter must be a DomainFilter, got ('cdc.gov',)",
        ),
        (lambda: WebSearchConfig(geo_hint="GB"), "WebSearchConfig.geo_hint must be a GeoHint, got 'GB'"),
        (lambda: WebSearchConfig(allow_live_access="no"), "allow_live_access must be True or False, got 'no'"),
    ],
)
def test_a_setting_of_another_kind_is_named(make: Any, message: str) -> None:
    with pytest.raises(PromptValidationError) as caught:
        make()
    assert message in str(caught.value)


def test_a_list_of_domains_becomes_a_tuple() -> None:
    domains: Any = ["cdc.gov"]
    assert hash(DomainFilter(allowed=domains)) == hash(DomainFilter(allowed=("cdc.gov",)))


def test_allowing_and_blocking_other_domains_is_valid_by_itself() -> None:
    assert DomainFilter(allowed=("who.int",), blocked=("ads.who.int",)).blocked == ("ads.who.int",)


def test_a_domain_cannot_be_allowed_and_blocked() -> None:
    with pytest.raises(PromptValidationError, match=r"both allows and blocks cdc\.gov"):
        DomainFilter(allowed=("who.int", "cdc.gov"), blocked=("CDC.gov",))


@pytest.mark.parametrize("code", ["GB", "US", "DE", "XK", "UK", "gb", "GBR", ""])
def test_a_country_is_one_of_iso_3166(code: str) -> None:
    if code in ("GB", "US", "DE"):
        assert GeoHint(country_code=code).country_code == code
    else:
        with pytest.raises(PromptValidationError, match=f"an ISO 3166-1 alpha-2 code, got '{code}'"):
            GeoHint(country_code=code)


@pytest.mark.parametrize("zone", ["Europe/London", "America/Argentina/Buenos_Aires", "UTC", "Etc/GMT+1"])
def test_a_time_zone_of_the_machine_is_taken(zone: str) -> None:
    assert GeoHint(timezone=zone).timezone == zone


@pytest.mark.parametrize("zone", ["Europe/Atlantis", "Europe", "../etc/passwd", "/etc/localtime", "London time", ""])
def test_any_other_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(PromptValidationError, match="must be an IANA time zone such as 'Europe/London'"):
        GeoHint(timezone=zone)


@pytest.fixture
def no_zone_data(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in sys.modules if name.partition(".")[0] == "tzdata"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tzdata", None)
    zoneinfo.reset_tzpath(to=[])
    zoneinfo.ZoneInfo.clear_cache()
    yield
    zoneinfo.reset_tzpath()


def test_without_zone_data_only_the_form_counts(no_zone_data: None) -> None:
    assert GeoHint(timezone="Europe/Atlantis").timezone == "Europe/Atlantis"
    with pytest.raises(PromptValidationError):
        GeoHint(timezone="London time")


@pytest.mark.parametrize("field", ["city", "region"])
def test_a_place_is_named_or_left_out(field: str) -> None:
    with pytest.raises(PromptValidationError, match=f"GeoHint.{field} must not be empty"):
        GeoHint(**{field: " "})


def test_the_factory_makes_a_hosted_tool() -> None:
    config = WebSearchConfig(allow_live_access=False)
    assert web_search_tool(config, name="cached_search") == HostedTool(
        kind="web_search",
        name="cached_search",
        description="Search the web for current information and cite sources.",
        config=config,
    )


def test_outputs_default_to_no_citations() -> None:
    assert WebSearchResult("hi") == WebSearchResult(text="hi", citations=(), source_urls=(), errors=())
    assert Citation("https://a.example", "A").span is None


def test_a_prompt_with_the_section_offers_the_tool() -> None:
    config = WebSearchConfig(geo_hint=GeoHint(city="London"))
    template = PromptTemplate(ns="t", key="t", sections=[WebSearchSection(config)])
    rendered = template.render()
    assert rendered.hosted_tools == (web_search_tool(config),)
    assert rendered.text.startswith("## 1. Web Search\n\nYou can search the web.")


def test_a_summarized_section_keeps_its_tool_to_itself() -> None:
    section = WebSearchSection(summary="Search the web.", visibility=SectionVisibility.SUMMARY)
    rendered = PromptTemplate(ns="t", key="t", sections=[section]).render()
    assert (rendered.hosted_tools, [tool.name for tool in rendered.tools]) == ((), ["read_section"])


def test_a_section_can_be_named_and_written_anew() -> None:
    section = WebSearchSection(key="news", title="News", template="Search for news.", name="news_search")
    rendered = PromptTemplate(ns="t", key="t", sections=[section]).render()
    assert rendered.text == "## 1. News\n\nSearch for news."
    assert rendered.hosted_tools[0].name == "news_search"


def test_a_clone_offers_the_same_tool() -> None:
    section = WebSearchSection()
    assert section.clone().hosted_tools() == section.hosted_tools()
