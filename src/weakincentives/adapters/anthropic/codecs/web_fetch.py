"""Fetching of pages on the Messages API."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from weakincentives.adapters.anthropic.codecs.block import Result, Text, Use, failed, name_of
from weakincentives.adapters.hosted.codec import SettingsCodec
from weakincentives.adapters.hosted.domain import domain_lists
from weakincentives.adapters.hosted.reading import Reading, kind_of
from weakincentives.adapters.hosted.setting import HONOURED, Rule
from weakincentives.prompt import HostedTool
from weakincentives.tools.web_fetch import DocumentCitation, FetchedDocument, WebFetchConfig, WebFetchResult

_LOCATIONS = ("char_location", "page_location", "content_block_location")


class _Source(msgspec.Struct):
    data: str = ""
    type: str = "text"
    media_type: str = "text/plain"


class _Document(msgspec.Struct):
    source: _Source
    title: str | None = None


class _Page(msgspec.Struct):
    url: str
    content: _Document
    retrieved_at: str | None = None


class _Fetched(Result):
    content: _Page


class _Location(msgspec.Struct):
    document_index: int
    document_title: str | None = None
    cited_text: str = ""
    start_char_index: int | None = None
    end_char_index: int | None = None


class AnthropicWebFetchCodec(SettingsCodec[WebFetchConfig, WebFetchResult]):
    """`web_fetch_20260318`."""

    kind = "web_fetch"
    adapter = "anthropic"
    config_type = WebFetchConfig
    honours: ClassVar[Mapping[str, Rule]] = {
        "domain_filter.allowed": Rule(without=("domain_filter.blocked",)),
        "domain_filter.blocked": Rule(without=("domain_filter.allowed",)),
        "max_uses": HONOURED,
        "max_content_tokens": HONOURED,
        "citations": HONOURED,
        "allow_cache": HONOURED,
    }

    def declare(self, tool: HostedTool[WebFetchConfig]) -> dict[str, Any]:
        config = tool.config
        declared: dict[str, Any] = {"type": "web_fetch_20260318", "name": "web_fetch"}
        declared.update(domain_lists(config.domain_filter))
        if config.max_uses is not None:
            declared["max_uses"] = config.max_uses
        if config.max_content_tokens is not None:
            declared["max_content_tokens"] = config.max_content_tokens
        if config.citations:
            declared["citations"] = {"enabled": True}
        if not config.allow_cache:
            declared["use_cache"] = False
        return declared

    def parse_output(self, response_items: Sequence[Any], tool: HostedTool[WebFetchConfig]) -> WebFetchResult | None:
        reading = Reading(tool, self.adapter)
        documents: list[FetchedDocument] = []
        citations: list[DocumentCitation] = []
        for item in response_items:
            match kind_of(item):
                case "server_tool_use" if name_of(item) == "web_fetch":
                    reading.call(item, Use)
                case "web_fetch_tool_result":
                    documents += _documents(reading, item)
                case "text":
                    citations += _citations(reading, item, documents)
        if not reading.used():
            return None
        return WebFetchResult(reading.text, tuple(documents), tuple(citations), tuple(reading.errors))


def _documents(reading: Reading, item: Any) -> list[FetchedDocument]:
    result = reading.call(item, Result)
    if result is None or failed(reading, result):
        return []
    fetched = reading.part(item, _Fetched)
    if fetched is None:
        return []
    page, source = fetched.content, fetched.content.content.source
    text, data = source.data, None
    if source.type == "base64":
        try:
            text, data = "", b64decode(source.data, validate=True)
        except ValueError as error:
            reading.fail("malformed", message=f"web_fetch_tool_result: {error}", call_id=result.tool_use_id)
            text = ""
    return [FetchedDocument(page.url, page.content.title or "", text, source.media_type, data, page.retrieved_at)]


def _citations(reading: Reading, item: Any, documents: list[FetchedDocument]) -> list[DocumentCitation]:
    block = reading.part(item, Text)
    if block is None:
        return []
    reading.say(block.text)
    found = []
    for note in block.citations or ():
        place = reading.part(note, _Location) if kind_of(note) in _LOCATIONS else None
        if place is not None:
            known = 0 <= place.document_index < len(documents)
            start, end = place.start_char_index, place.end_char_index
            found.append(
                DocumentCitation(
                    url=documents[place.document_index].url if known else "",
                    title=place.document_title or "",
                    cited_text=place.cited_text,
                    document_span=None if start is None or end is None else (start, end),
                )
            )
    return found
