"""File search on the Responses API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from weakincentives.adapters.hosted.codec import SettingsCodec
from weakincentives.adapters.hosted.reading import Reading, kind_of
from weakincentives.adapters.hosted.setting import HONOURED, Rule
from weakincentives.adapters.openai.codecs.message import check_status, read_message
from weakincentives.prompt import HostedTool
from weakincentives.tools.file_search import (
    AllOf,
    Comparison,
    FileCitation,
    FileFilter,
    FilePassage,
    FileSearchConfig,
    FileSearchResult,
)


class _Result(msgspec.Struct):
    file_id: str | None = None
    filename: str | None = None
    text: str | None = None
    score: float | None = None
    attributes: dict[str, str | float | bool] | None = None


class _Call(msgspec.Struct):
    id: str = ""
    queries: list[str] | None = None
    results: list[_Result] | None = None
    status: str | None = None


class _FileCitation(msgspec.Struct):
    file_id: str
    filename: str | None = None
    index: int | None = None


class OpenAIFileSearchCodec(SettingsCodec[FileSearchConfig, FileSearchResult]):
    """`file_search`; the passages are asked for, not only the citations."""

    kind = "file_search"
    adapter = "openai"
    config_type = FileSearchConfig
    include: ClassVar[tuple[str, ...]] = ("file_search_call.results",)
    honours: ClassVar[Mapping[str, Rule]] = {
        "vector_store_ids": HONOURED,
        "max_results": Rule(values=range(1, 51)),
        "score_threshold": HONOURED,
        "filters": HONOURED,
    }

    def declare(self, tool: HostedTool[FileSearchConfig]) -> dict[str, Any]:
        config = tool.config
        declared: dict[str, Any] = {"type": self.kind, "vector_store_ids": list(config.vector_store_ids)}
        if config.max_results is not None:
            declared["max_num_results"] = config.max_results
        if config.score_threshold is not None:
            declared["ranking_options"] = {"score_threshold": config.score_threshold}
        if config.filters is not None:
            declared["filters"] = _filter(config.filters)
        return declared

    def parse_output(
        self, response_items: Sequence[Any], tool: HostedTool[FileSearchConfig]
    ) -> FileSearchResult | None:
        reading = Reading(tool, self.adapter)
        queries: list[str] = []
        passages: list[FilePassage] = []
        citations: list[FileCitation] = []

        def cite(note: Any, length: int) -> None:
            found = reading.part(note, _FileCitation)
            if found is not None:
                span = reading.span(found.index, found.index, of=length)
                citations.append(FileCitation(found.file_id, found.filename or "", None if span is None else span[0]))

        for item in response_items:
            match kind_of(item):
                case "file_search_call":
                    call = reading.call(item, _Call)
                    if call is not None:
                        queries += call.queries or ()
                        passages += [_passage(result) for result in call.results or ()]
                        check_status(reading, call.status, call.id)
                case "message":
                    read_message(reading, item, "file_citation", cite)
        if not reading.used():
            return None
        return FileSearchResult(reading.text, tuple(queries), tuple(passages), tuple(citations), tuple(reading.errors))


def _filter(chosen: FileFilter) -> dict[str, Any]:
    if isinstance(chosen, Comparison):
        value = list(chosen.value) if isinstance(chosen.value, tuple) else chosen.value
        return {"type": chosen.op, "key": chosen.key, "value": value}
    word = "and" if isinstance(chosen, AllOf) else "or"
    return {"type": word, "filters": [_filter(one) for one in chosen.filters]}


def _passage(result: _Result) -> FilePassage:
    return FilePassage(
        file_id=result.file_id or "",
        filename=result.filename or "",
        text=result.text or "",
        score=result.score,
        attributes=result.attributes or {},
    )
