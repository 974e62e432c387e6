"""OpenAI's hosted tools on the Responses API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import msgspec

from weakincentives.adapters.hosted import (
    HONOURED,
    LOCATION,
    ItemReader,
    Rule,
    SettingsCodec,
    domain_fields,
    location_fields,
    type_of,
)
from weakincentives.prompt import HostedTool
from weakincentives.runtime import HostedToolCodec
from weakincentives.tools import FailureCode
from weakincentives.tools.code_interpreter import (
    CodeExecution,
    CodeFile,
    CodeInterpreterConfig,
    CodeInterpreterResult,
)
from weakincentives.tools.file_search import (
    AllOf,
    Comparison,
    FileCitation,
    FileFilter,
    FilePassage,
    FileSearchConfig,
    FileSearchResult,
)
from weakincentives.tools.web_search import Citation, WebSearchConfig, WebSearchResult

CallT = TypeVar("CallT", bound="_Call")
NoteT = TypeVar("NoteT", bound=msgspec.Struct)


class _Call(msgspec.Struct):
    id: str = ""
    status: str | None = None


class _Message(msgspec.Struct):
    content: list[Any] | None = None


class _Text(msgspec.Struct):
    text: str = ""
    annotations: list[Any] | None = None


def _read(
    reader: ItemReader, items: Sequence[Any], kind: str, shape: type[CallT], annotation: str, note: type[NoteT]
) -> Iterator[CallT | tuple[NoteT, int]]:
    """The calls of a tool, and the annotations of this type, each with the length of its text, which the reader keeps.

    A failed or incomplete call is also recorded as an error.
    """
    codes: dict[str | None, FailureCode] = {"failed": "failed", "incomplete": "incomplete"}
    for item in items:
        if type_of(item) == f"{kind}_call":
            call = reader.call(item, shape)
            if call is not None:
                yield call
                if call.status in codes:
                    reader.fail(codes[call.status], call.status or "", call_id=call.id)
        elif type_of(item) == "message":
            message = reader.part(item, _Message)
            for part in reader.parts((message.content or ()) if message else (), _Text, "output_text"):
                reader.text += part.text
                for found in reader.parts(part.annotations or (), note, annotation):
                    yield found, len(part.text)


class _Source(msgspec.Struct):
    url: str | None = None


class _SearchAction(msgspec.Struct):
    sources: list[_Source] | None = None
    url: str | None = None


class _SearchCall(_Call):
    action: _SearchAction | None = None


class _UrlCitation(msgspec.Struct):
    url: str
    title: str | None = None
    start_index: int | None = None
    end_index: int | None = None


class OpenAIWebSearchCodec(SettingsCodec[WebSearchConfig, WebSearchResult]):
    """`web_search`; it asks for sources, so that every consulted page is known."""

    kind = "web_search"
    adapter = "openai"
    config_type = WebSearchConfig
    include: ClassVar[tuple[str, ...]] = ("web_search_call.action.sources",)
    honours: ClassVar[Mapping[str, Rule]] = dict.fromkeys(
        ("domain_filter.allowed", "domain_filter.blocked", *LOCATION, "allow_live_access"), HONOURED
    )

    def declare(self, tool: HostedTool[WebSearchConfig]) -> dict[str, Any]:
        config = tool.config
        declared: dict[str, Any] = {"type": "web_search"}
        if filters := domain_fields(config.domain_filter):
            declared["filters"] = filters
        if config.geo_hint is not None:
            declared["user_location"] = {"type": "approximate", **location_fields(config.geo_hint)}
        if not config.allow_live_access:
            declared["external_web_access"] = False
        return declared

    def read(self, reader: ItemReader, items: Sequence[Any]) -> WebSearchResult:
        citations: list[Citation] = []
        sources: dict[str, None] = {}
        for seen in _read(reader, items, self.kind, _SearchCall, "url_citation", _UrlCitation):
            if isinstance(seen, tuple):
                note, length = seen
                span = reader.span(note.start_index, note.end_index, of=length)
                citations.append(Citation(note.url, note.title or "", span))
            elif seen.action is not None:
                # The pages a search returned, or the page that was opened or searched.
                urls = (*(source.url for source in seen.action.sources or ()), seen.action.url)
                sources.update(dict.fromkeys(url for url in urls if url))
        return WebSearchResult(reader.text, tuple(citations), tuple(sources), tuple(reader.errors))


class _CodeOutput(msgspec.Struct):
    type: str = ""
    logs: str | None = None
    url: str | None = None


class _CodeCall(_Call):
    code: str | None = None
    container_id: str = ""
    outputs: list[_CodeOutput] | None = None


class _ContainerFile(msgspec.Struct):
    file_id: str
    filename: str | None = None
    container_id: str | None = None


class OpenAICodeInterpreterCodec(SettingsCodec[CodeInterpreterConfig, CodeInterpreterResult]):
    """`code_interpreter`: Python only. Its logs are standard output; there is neither stderr nor an exit code."""

    kind = "code_interpreter"
    adapter = "openai"
    config_type = CodeInterpreterConfig
    include: ClassVar[tuple[str, ...]] = ("code_interpreter_call.outputs",)
    honours: ClassVar[Mapping[str, Rule]] = {
        "allowed_languages": Rule(values=(("python",),)),
        "container_id": HONOURED,
        "file_ids": HONOURED,
        "memory_gb": Rule(values=(1, 4, 16, 64)),
        "allowed_domains": HONOURED,
    }

    def declare(self, tool: HostedTool[CodeInterpreterConfig]) -> dict[str, Any]:
        return {"type": self.kind, "container": tool.config.container_id or _container(tool.config)}

    def read(self, reader: ItemReader, items: Sequence[Any]) -> CodeInterpreterResult:
        files: list[CodeFile] = []
        executions: list[CodeExecution] = []
        for seen in _read(reader, items, self.kind, _CodeCall, "container_file_citation", _ContainerFile):
            if isinstance(seen, tuple):
                note = seen[0]
                files.append(CodeFile(note.file_id, note.filename or "", container_id=note.container_id or ""))
            else:
                executions.append(_code_execution(seen))
        return CodeInterpreterResult.of(executions, text=reader.text, files=files, errors=reader.errors)


def _container(config: CodeInterpreterConfig) -> dict[str, Any]:
    container: dict[str, Any] = {"type": "auto"}
    if config.file_ids:
        container["file_ids"] = list(config.file_ids)
    if config.memory_gb is not None:
        container["memory_limit"] = f"{config.memory_gb}g"
    if config.allowed_domains:
        container["network_policy"] = {"type": "allowlist", "allowed_domains": list(config.allowed_domains)}
    elif config.allowed_domains is not None:
        container["network_policy"] = {"type": "disabled"}
    return container


def _code_execution(call: _CodeCall) -> CodeExecution:
    logs = None if call.outputs is None else "".join(output.logs or "" for output in call.outputs)
    images = [output.url for output in call.outputs or () if output.type == "image" and output.url]
    return CodeExecution(
        code=call.code or "",
        stdout=logs,
        files=tuple(CodeFile(url=url, container_id=call.container_id) for url in images),
        call_id=call.id,
    )


class _FileResult(msgspec.Struct):
    file_id: str | None = None
    filename: str | None = None
    text: str | None = None
    score: float | None = None
    attributes: dict[str, str | float | bool] | None = None


class _FileCall(_Call):
    queries: list[str] | None = None
    results: list[_FileResult] | None = None


class _FileCitation(msgspec.Struct):
    file_id: str
    filename: str | None = None
    index: int | None = None


class OpenAIFileSearchCodec(SettingsCodec[FileSearchConfig, FileSearchResult]):
    """`file_search`; it asks for passages as well as citations."""

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

    def read(self, reader: ItemReader, items: Sequence[Any]) -> FileSearchResult:
        queries: list[str] = []
        passages: list[FilePassage] = []
        citations: list[FileCitation] = []
        for seen in _read(reader, items, self.kind, _FileCall, "file_citation", _FileCitation):
            if isinstance(seen, tuple):
                note, length = seen
                span = reader.span(note.index, note.index, of=length)
                citations.append(FileCitation(note.file_id, note.filename or "", None if span is None else span[0]))
                continue
            queries += seen.queries or ()
            passages += [
                FilePassage(one.file_id or "", one.filename or "", one.text or "", one.score, one.attributes or {})
                for one in seen.results or ()
            ]
        return FileSearchResult(reader.text, tuple(queries), tuple(passages), tuple(citations), tuple(reader.errors))


def _filter(chosen: FileFilter) -> dict[str, Any]:
    if isinstance(chosen, Comparison):
        value = list(chosen.value) if isinstance(chosen.value, tuple) else chosen.value
        return {"type": chosen.op, "key": chosen.key, "value": value}
    word = "and" if isinstance(chosen, AllOf) else "or"
    return {"type": word, "filters": [_filter(one) for one in chosen.filters]}


CODECS: dict[str, HostedToolCodec[Any, Any]] = {
    codec.kind: codec for codec in (OpenAIWebSearchCodec(), OpenAICodeInterpreterCodec(), OpenAIFileSearchCodec())
}
