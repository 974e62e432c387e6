"""Anthropic's server tools on the Messages API."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import msgspec

from weakincentives.adapters.hosted import (
    HONOURED,
    LOCATION,
    ItemReader,
    Rule,
    SettingsCodec,
    domain_fields,
    location_fields,
    string_of,
    type_of,
)
from weakincentives.prompt import HostedTool
from weakincentives.runtime import HostedToolCodec
from weakincentives.tools import FailureCode
from weakincentives.tools.advisor import Advice, AdvisorConfig, AdvisorResult
from weakincentives.tools.code_interpreter import (
    CodeExecution,
    CodeFile,
    CodeInterpreterConfig,
    CodeInterpreterResult,
)
from weakincentives.tools.web_fetch import DocumentCitation, FetchedDocument, WebFetchConfig, WebFetchResult
from weakincentives.tools.web_search import Citation, WebSearchConfig, WebSearchResult

_DOMAINS = {
    "domain_filter.allowed": Rule(without=("domain_filter.blocked",)),
    "domain_filter.blocked": Rule(without=("domain_filter.allowed",)),
}
_CODES: dict[str, FailureCode] = {
    "invalid_tool_input": "invalid_input",
    "query_too_long": "too_large",
    "url_too_long": "too_large",
    "request_too_large": "too_large",
    "content_too_large": "too_large",
    "output_file_too_large": "too_large",
    "max_uses_exceeded": "limit_reached",
    "too_many_requests": "rate_limited",
    "execution_time_exceeded": "timeout",
    "unavailable": "unavailable",
    "overloaded": "unavailable",
    "prompt_too_long": "too_large",
    "model_not_found": "not_found",
    "url_not_allowed": "not_allowed",
    "url_not_in_prior_context": "not_allowed",
    "url_not_accessible": "not_found",
    "file_not_found": "not_found",
    "unsupported_content_type": "unsupported",
}


class _ToolUse(msgspec.Struct):
    """A call the model makes to a server tool."""

    id: str
    name: str
    input: dict[str, Any] = {}


class _ToolResult(msgspec.Struct):
    """The server's answer to a call; `content` is an error or the tool's result."""

    content: Any
    tool_use_id: str = ""


class _Text(msgspec.Struct):
    """A part of the answer, with its citations."""

    text: str = ""
    citations: list[Any] | None = None


class _Error(msgspec.Struct):
    error_code: str = ""
    error_message: str | None = None


@dataclass(slots=True)
class _Answer:
    """The result of a call that succeeded."""

    tool: str
    call_id: str
    content: Any


def _read(reader: ItemReader, items: Iterable[Any], tools: Mapping[str, Any]) -> Iterator[_ToolUse | _Answer | _Text]:
    """The calls of these server tools, their answers as these types, and the text; failures are recorded as errors."""
    for item in items:
        kind = type_of(item)
        name = kind.removesuffix("_tool_result")
        if kind == "server_tool_use" and string_of(item, "name") in tools:
            use = reader.call(item, _ToolUse)
            if use is not None:
                yield use
        elif name != kind and name in tools:
            result = reader.call(item, _ToolResult)
            if result is None:
                continue
            if type_of(result.content).endswith("_error"):
                _fail(reader, result)
                continue
            content = reader.part(result.content, tools[name], kind)
            if content is not None:
                yield _Answer(name, result.tool_use_id, content)
        elif kind == "text":
            block = reader.part(item, _Text)
            if block is not None:
                reader.text += block.text
                yield block


def _fail(reader: ItemReader, result: _ToolResult) -> None:
    error = reader.part(result.content, _Error)
    if error is not None:
        code, message = error.error_code, error.error_message or ""
        reader.fail(_CODES.get(code, "failed"), code, message=message, call_id=result.tool_use_id)


class _FoundPage(msgspec.Struct):
    url: str


class _PageCitation(msgspec.Struct):
    url: str
    title: str | None = None


class AnthropicWebSearchCodec(SettingsCodec[WebSearchConfig, WebSearchResult]):
    """`web_search_20260318`; its citations name pages, not ranges of the answer."""

    kind = "web_search"
    sent_names = ("web_search",)
    adapter = "anthropic"
    config_type = WebSearchConfig
    honours: ClassVar[Mapping[str, Rule]] = _DOMAINS | LOCATION

    def declare(self, tool: HostedTool[WebSearchConfig]) -> dict[str, Any]:
        config = tool.config
        declared: dict[str, Any] = {"type": "web_search_20260318", "name": "web_search"}
        declared.update(domain_fields(config.domain_filter))
        if config.geo_hint is not None:
            declared["user_location"] = {"type": "approximate", **location_fields(config.geo_hint)}
        return declared

    def read(self, reader: ItemReader, items: Sequence[Any]) -> WebSearchResult:
        citations, sources = searched_pages(reader, items)
        return WebSearchResult(reader.text, tuple(citations), tuple(sources), tuple(reader.errors))


def searched_pages(reader: ItemReader, items: Iterable[Any]) -> tuple[list[Citation], dict[str, None]]:
    """The pages that an answer cites, and those that its searches found."""
    citations: list[Citation] = []
    sources: dict[str, None] = {}
    for seen in _read(reader, items, {"web_search": list[Any]}):
        if isinstance(seen, _Answer):
            sources.update(dict.fromkeys(page.url for page in reader.parts(seen.content, _FoundPage)))
        elif isinstance(seen, _Text):
            citations += cited_pages(reader, seen.citations or ())
    return citations, sources


def cited_pages(reader: ItemReader, notes: Sequence[Any]) -> list[Citation]:
    """The pages that a part of the answer cites."""
    places = reader.parts(notes, _PageCitation, "web_search_result_location")
    return [Citation(place.url, place.title or "") for place in places]


class _File(msgspec.Struct):
    file_id: str | None = None


class _Run(msgspec.Struct):
    stdout: str | None = None
    stderr: str | None = None
    return_code: int | None = None
    content: list[_File] | None = None


class _Edit(msgspec.Struct):
    content: str | None = None
    lines: list[str] | None = None


_LANGUAGES = {"code_execution": "python", "bash_code_execution": "bash", "text_editor_code_execution": "editor"}
_CODE_TOOLS = {name: _Edit if language == "editor" else _Run for name, language in _LANGUAGES.items()}


class AnthropicCodeInterpreterCodec(SettingsCodec[CodeInterpreterConfig, CodeInterpreterResult]):
    """`code_execution_20260521`: Python, bash and an editor in a container run by the provider."""

    kind = "code_interpreter"
    sent_names = tuple(_LANGUAGES)
    adapter = "anthropic"
    config_type = CodeInterpreterConfig
    honours: ClassVar[Mapping[str, Rule]] = {}

    def declare(self, tool: HostedTool[CodeInterpreterConfig]) -> dict[str, Any]:
        return {"type": "code_execution_20260521", "name": "code_execution"}

    def read(self, reader: ItemReader, items: Sequence[Any]) -> CodeInterpreterResult:
        uses: dict[str, _ToolUse] = {}
        results: dict[str, CodeExecution] = {}
        for seen in _read(reader, items, _CODE_TOOLS):
            if isinstance(seen, _ToolUse):
                uses[seen.id] = seen
            elif isinstance(seen, _Answer):
                results[seen.call_id] = _code_result(seen)
        executions = [_code_execution(use, results.pop(use.id, None)) for use in uses.values()]
        executions += results.values()
        files = [file for execution in executions for file in execution.files]
        return CodeInterpreterResult.of(executions, text=reader.text, files=files, errors=reader.errors)


def _code_result(answer: _Answer) -> CodeExecution:
    """The outcome of a call; its code is filled in later."""
    language, found = _LANGUAGES[answer.tool], answer.content
    if isinstance(found, _Edit):
        shown = found.content or "\n".join(found.lines or ())
        return CodeExecution("", stdout=shown, language=language, call_id=answer.call_id)
    files = tuple(CodeFile(file.file_id) for file in found.content or () if file.file_id)
    return CodeExecution("", found.stdout, found.stderr, found.return_code, language, files, answer.call_id)


def _code_execution(use: _ToolUse, result: CodeExecution | None) -> CodeExecution:
    language = _LANGUAGES[use.name]
    written = use.input.get("code", use.input.get("command", ""))
    if language == "editor":
        written = msgspec.json.encode(use.input).decode()
    return replace(result or CodeExecution(""), code=str(written), language=language, call_id=use.id)


_LOCATIONS = ("char_location", "page_location", "content_block_location")


class _Source(msgspec.Struct):
    data: str = ""
    type: str = "text"
    media_type: str = "text/plain"


class _Document(msgspec.Struct):
    source: _Source
    title: str | None = None


class _FetchedPage(msgspec.Struct):
    url: str
    content: _Document
    retrieved_at: str | None = None


class _DocumentLocation(msgspec.Struct):
    document_index: int
    document_title: str | None = None
    cited_text: str = ""
    start_char_index: int | None = None
    end_char_index: int | None = None


class AnthropicWebFetchCodec(SettingsCodec[WebFetchConfig, WebFetchResult]):
    """`web_fetch_20260318`."""

    kind = "web_fetch"
    sent_names = ("web_fetch",)
    adapter = "anthropic"
    config_type = WebFetchConfig
    honours: ClassVar[Mapping[str, Rule]] = {
        **_DOMAINS,
        "max_uses": HONOURED,
        "max_content_tokens": HONOURED,
        "citations": HONOURED,
        "allow_cache": HONOURED,
    }

    def declare(self, tool: HostedTool[WebFetchConfig]) -> dict[str, Any]:
        config = tool.config
        declared: dict[str, Any] = {"type": "web_fetch_20260318", "name": "web_fetch"}
        declared.update(domain_fields(config.domain_filter))
        for limit in ("max_uses", "max_content_tokens"):
            if (value := getattr(config, limit)) is not None:
                declared[limit] = value
        if config.citations:
            declared["citations"] = {"enabled": True}
        if not config.allow_cache:
            declared["use_cache"] = False
        return declared

    def read(self, reader: ItemReader, items: Sequence[Any]) -> WebFetchResult:
        documents: list[FetchedDocument] = []
        citations: list[DocumentCitation] = []
        for seen in _read(reader, items, {"web_fetch": _FetchedPage}):
            if isinstance(seen, _Answer):
                documents.append(_document(reader, seen))
            elif isinstance(seen, _Text):
                places = reader.parts(seen.citations or (), _DocumentLocation, *_LOCATIONS)
                citations += [_citation(place, documents) for place in places]
        return WebFetchResult(reader.text, tuple(documents), tuple(citations), tuple(reader.errors))


def _document(reader: ItemReader, answer: _Answer) -> FetchedDocument:
    page: _FetchedPage = answer.content
    source = page.content.source
    text, data = source.data, None
    if source.type == "base64":
        text = ""
        try:
            data = b64decode(source.data, validate=True)
        except ValueError as error:
            reader.fail("malformed", message=f"web_fetch_tool_result: {error}", call_id=answer.call_id)
    return FetchedDocument(page.url, page.content.title or "", text, source.media_type, data, page.retrieved_at)


def _citation(place: _DocumentLocation, documents: Sequence[FetchedDocument]) -> DocumentCitation:
    known = 0 <= place.document_index < len(documents)
    start, end = place.start_char_index, place.end_char_index
    return DocumentCitation(
        url=documents[place.document_index].url if known else "",
        title=place.document_title or "",
        cited_text=place.cited_text,
        document_span=None if start is None or end is None else (start, end),
    )


class _Advice(msgspec.Struct):
    text: str = ""
    stop_reason: str | None = None


class AnthropicAdvisorCodec(SettingsCodec[AdvisorConfig, AdvisorResult]):
    """`advisor_20260301`, a beta."""

    kind = "advisor"
    sent_names = ("advisor",)
    betas = ("advisor-tool-2026-03-01",)
    adapter = "anthropic"
    config_type = AdvisorConfig
    honours: ClassVar[Mapping[str, Rule]] = dict.fromkeys(("model", "max_uses", "max_tokens", "use_cache"), HONOURED)

    def declare(self, tool: HostedTool[AdvisorConfig]) -> dict[str, Any]:
        config = tool.config
        declared: dict[str, Any] = {"type": "advisor_20260301", "name": "advisor", "model": config.model}
        limits = {"max_uses": config.max_uses, "max_tokens": config.max_tokens}
        declared.update((limit, value) for limit, value in limits.items() if value is not None)
        return {**declared, "caching": {"type": "ephemeral"}} if config.use_cache else declared

    def read(self, reader: ItemReader, items: Sequence[Any]) -> AdvisorResult:
        seen = [each.content for each in _read(reader, items, {"advisor": _Advice}) if isinstance(each, _Answer)]
        advice = tuple(Advice(each.text, each.stop_reason != "max_tokens") for each in seen)
        return AdvisorResult(reader.text, advice, tuple(reader.errors))


CODECS: dict[str, HostedToolCodec[Any, Any]] = {
    codec.kind: codec
    for codec in (
        AnthropicWebSearchCodec(),
        AnthropicCodeInterpreterCodec(),
        AnthropicWebFetchCodec(),
        AnthropicAdvisorCodec(),
    )
}
