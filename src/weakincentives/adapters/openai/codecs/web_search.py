"""Web search on the Responses API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from weakincentives.adapters.hosted.codec import SettingsCodec
from weakincentives.adapters.hosted.domain import domain_lists
from weakincentives.adapters.hosted.location import approximate
from weakincentives.adapters.hosted.reading import Reading, kind_of
from weakincentives.adapters.hosted.setting import HONOURED, Rule
from weakincentives.adapters.openai.codecs.message import check_status, read_message
from weakincentives.prompt import HostedTool
from weakincentives.tools.web_search import Citation, WebSearchConfig, WebSearchResult


class _Source(msgspec.Struct):
    url: str | None = None


class _Action(msgspec.Struct):
    sources: list[_Source] | None = None
    url: str | None = None


class _Call(msgspec.Struct):
    id: str = ""
    status: str | None = None
    action: _Action | None = None


class _UrlCitation(msgspec.Struct):
    url: str
    title: str | None = None
    start_index: int | None = None
    end_index: int | None = None


class OpenAIWebSearchCodec(SettingsCodec[WebSearchConfig, WebSearchResult]):
    """`web_search`; sources are asked for, so that every page consulted is known."""

    kind = "web_search"
    adapter = "openai"
    config_type = WebSearchConfig
    include: ClassVar[tuple[str, ...]] = ("web_search_call.action.sources",)
    honours: ClassVar[Mapping[str, Rule]] = dict.fromkeys(
        (
            "domain_filter.allowed",
            "domain_filter.blocked",
            "geo_hint.country_code",
            "geo_hint.city",
            "geo_hint.region",
            "geo_hint.timezone",
            "allow_live_access",
        ),
        HONOURED,
    )

    def declare(self, tool: HostedTool[WebSearchConfig]) -> dict[str, Any]:
        config = tool.config
        declared: dict[str, Any] = {"type": "web_search"}
        if filters := domain_lists(config.domain_filter):
            declared["filters"] = filters
        if config.geo_hint is not None:
            declared["user_location"] = {"type": "approximate", **approximate(config.geo_hint)}
        if not config.allow_live_access:
            declared["external_web_access"] = False
        return declared

    def parse_output(self, response_items: Sequence[Any], tool: HostedTool[WebSearchConfig]) -> WebSearchResult | None:
        reading = Reading(tool, self.adapter)
        citations: list[Citation] = []
        sources: dict[str, None] = {}

        def cite(note: Any, length: int) -> None:
            found = reading.part(note, _UrlCitation)
            if found is not None:
                span = reading.span(found.start_index, found.end_index, of=length)
                citations.append(Citation(found.url, found.title or "", span))

        for item in response_items:
            match kind_of(item):
                case "web_search_call":
                    call = reading.call(item, _Call)
                    if call is not None:
                        sources.update(dict.fromkeys(_consulted(call.action)))
                        check_status(reading, call.status, call.id)
                case "message":
                    read_message(reading, item, "url_citation", cite)
        if not reading.used():
            return None
        return WebSearchResult(reading.text, tuple(citations), tuple(sources), tuple(reading.errors))


def _consulted(action: _Action | None) -> list[str]:
    """The pages of a search, or the one that was opened or searched through."""
    if action is None:
        return []
    urls = [source.url for source in action.sources or ()]
    return [url for url in (*urls, action.url) if url]
