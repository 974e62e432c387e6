"""Web search on the Messages API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from weakincentives.adapters.anthropic.codecs.block import Result, Text, Use, failed, name_of
from weakincentives.adapters.hosted.codec import SettingsCodec
from weakincentives.adapters.hosted.domain import domain_lists
from weakincentives.adapters.hosted.location import approximate
from weakincentives.adapters.hosted.reading import Reading, kind_of
from weakincentives.adapters.hosted.setting import HONOURED, Rule
from weakincentives.prompt import HostedTool
from weakincentives.tools.web_search import Citation, WebSearchConfig, WebSearchResult


class _Page(msgspec.Struct):
    url: str


class _Location(msgspec.Struct):
    url: str
    title: str | None = None


class _Pages(Result):
    content: list[Any]


class AnthropicWebSearchCodec(SettingsCodec[WebSearchConfig, WebSearchResult]):
    """`web_search_20260318`; its citations name pages, not ranges of the answer."""

    kind = "web_search"
    adapter = "anthropic"
    config_type = WebSearchConfig
    honours: ClassVar[Mapping[str, Rule]] = {
        "domain_filter.allowed": Rule(without=("domain_filter.blocked",)),
        "domain_filter.blocked": Rule(without=("domain_filter.allowed",)),
        "geo_hint.country_code": HONOURED,
        "geo_hint.city": HONOURED,
        "geo_hint.region": HONOURED,
        "geo_hint.timezone": HONOURED,
    }

    def declare(self, tool: HostedTool[WebSearchConfig]) -> dict[str, Any]:
        config = tool.config
        declared: dict[str, Any] = {"type": "web_search_20260318", "name": "web_search"}
        declared.update(domain_lists(config.domain_filter))
        if config.geo_hint is not None:
            declared["user_location"] = {"type": "approximate", **approximate(config.geo_hint)}
        return declared

    def parse_output(self, response_items: Sequence[Any], tool: HostedTool[WebSearchConfig]) -> WebSearchResult | None:
        reading = Reading(tool, self.adapter)
        citations: list[Citation] = []
        sources: dict[str, None] = {}
        for item in response_items:
            match kind_of(item):
                case "server_tool_use" if name_of(item) == "web_search":
                    reading.call(item, Use)
                case "web_search_tool_result":
                    sources.update(dict.fromkeys(pages(reading, item)))
                case "text":
                    block = reading.part(item, Text)
                    if block is not None:
                        reading.say(block.text)
                        citations += cited_pages(reading, block.citations or ())
        if not reading.used():
            return None
        return WebSearchResult(reading.text, tuple(citations), tuple(sources), tuple(reading.errors))


def pages(reading: Reading, item: Any) -> list[str]:
    """The pages that a search found; a search that failed is noted."""
    result = reading.call(item, Result)
    if result is None or failed(reading, result):
        return []
    answered = reading.part(item, _Pages)
    found = [reading.part(page, _Page) for page in answered.content] if answered else []
    return [page.url for page in found if page is not None]


def cited_pages(reading: Reading, notes: Sequence[Any]) -> list[Citation]:
    """The pages that a piece of the answer rests on."""
    cited = [note for note in notes if kind_of(note) == "web_search_result_location"]
    found = [reading.part(note, _Location) for note in cited]
    return [Citation(place.url, place.title or "") for place in found if place is not None]
