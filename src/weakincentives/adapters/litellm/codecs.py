"""Web search as LiteLLM's `web_search_options`, the only hosted tool that LiteLLM supports for every provider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from weakincentives.adapters.anthropic.codecs import cited_pages, searched_pages
from weakincentives.adapters.hosted import LOCATION, ItemReader, Rule, SettingsCodec, location_fields, type_of
from weakincentives.adapters.litellm.models import vendor_of
from weakincentives.prompt import HostedTool
from weakincentives.runtime import HostedToolCodec
from weakincentives.tools.web_search import Citation, WebSearchConfig, WebSearchResult


class _Message(msgspec.Struct):
    content: str | None = None


class _Grounding(msgspec.Struct):
    annotations: list[Any] | None = None
    citations: list[list[Any]] | None = None
    results: list[Any] | None = None


class _Place(msgspec.Struct):
    url: str
    title: str | None = None
    start_index: int | None = None
    end_index: int | None = None


class _UrlCitation(msgspec.Struct):
    url_citation: _Place


class LiteLLMWebSearchCodec(SettingsCodec[WebSearchConfig, WebSearchResult]):
    """`web_search_options`, for the model's provider where it is known.

    The chat format has no items for searches: the tool counts as used when the answer cites pages, or when the
    provider behind LiteLLM (Anthropic) lists what it searched.
    """

    kind = "web_search"
    adapter = "litellm"
    config_type = WebSearchConfig
    honours: ClassVar[Mapping[str, Rule]] = LOCATION

    def __init__(self, model: str = "") -> None:
        self._vendor = vendor_of(model)
        self.sent_names = ("web_search",) if "claude" in model else ()

    def objection(self, setting: str, settings: Mapping[str, object]) -> str | None:
        if setting.startswith("geo_hint.") and not self._vendor.location:
            return f"the litellm adapter cannot honour {setting}: LiteLLM drops it for {self._vendor.name}"
        return super().objection(setting, settings)

    def declare(self, tool: HostedTool[WebSearchConfig]) -> dict[str, Any]:
        if not self._vendor.search:
            name = self._vendor.name
            raise self._refusal(tool, f"LiteLLM drops a web search for {name}; openai and anthropic have one")
        options: dict[str, Any] = {}
        if tool.config.geo_hint is not None:
            place = location_fields(tool.config.geo_hint)
            options["user_location"] = {"type": "approximate", "approximate": place}
        beside = {"include_server_side_tool_invocations": True} if self._vendor.asks_for_both else {}
        return {"web_search_options": options, **beside}

    def read(self, reader: ItemReader, items: Sequence[Any]) -> WebSearchResult:
        citations: list[Citation] = []
        sources: dict[str, None] = {}
        length = 0
        for item in items:
            if type_of(item) == "grounding":
                found = reader.call(item, _Grounding) or _Grounding()
                citations += _citations(reader, found.annotations or (), length)
                citations += [place for group in found.citations or () for place in cited_pages(reader, group)]
                sources.update(searched_pages(reader, found.results or ())[1])
            else:
                message = reader.part(item, _Message)
                text = (message.content if message else None) or ""
                reader.text += text
                length = len(text)
        sources.update(dict.fromkeys(citation.url for citation in citations))
        return WebSearchResult(reader.text, tuple(citations), tuple(sources), tuple(reader.errors))


def _citations(reader: ItemReader, notes: Sequence[Any], length: int) -> list[Citation]:
    found = []
    for note in reader.parts(notes, _UrlCitation, "url_citation"):
        place = note.url_citation
        span = reader.span(place.start_index, place.end_index, of=length)
        found.append(Citation(place.url, place.title or "", span))
    return found


CODECS: dict[str, HostedToolCodec[Any, Any]] = {"web_search": LiteLLMWebSearchCodec()}
