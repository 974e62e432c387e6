"""Anthropic's server tools on the Messages API."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from weakincentives.tools.web_fetch import DocumentCitation, FetchedDocument, WebFetchConfig, WebFetchResult
from weakincentives.tools.web_search import Citation, WebSearchConfig, WebSearchResult

ResultT = TypeVar("ResultT", bound="_ToolResult")

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


def _name_of(item: Any) -> str:
    """The tool that a `server_tool_use` block calls."""
    name = item.get("name") if isinstance(item, dict) else getattr(item, "name", None)
    return name if isinstance(name, str) else ""


def _result(reader: ItemReader, item: Any, shape: type[ResultT]) -> ResultT | None:
    """The result of a call, or None if it failed (which is recorded as an error) or cannot be read."""
    result = reader.call(item, _ToolResult)
    if result is None:
        return None
    if not type_of(result.content).endswith("_error"):
        return reader.part(item, shape)
    error = reader.part(result.content, _Error)
    if error is not None:
        reader.fail(
            _CODES.get(error.error_code, "failed"),
            error.error_code,
            message=error.error_message or "",
            call_id=result.tool_use_id,
        )
    return None


class _FoundPage(msgspec.Struct):
    url: str


class _PageCitation(msgspec.Struct):
    url: str
    title: str | None = None


class _FoundPages(_ToolResult):
    content: list[Any]


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
        citations: list[Citation] = []
        sources: dict[str, None] = {}
        for item in items:
            match type_of(item):
                case "server_tool_use" if _name_of(item) == "web_search":
                    reader.call(item, _ToolUse)
                case "web_search_tool_result":
                    sources.update(dict.fromkeys(pages(reader, item)))
                case "text":
                    block = reader.part(item, _Text)
                    if block is not None:
                        reader.add_text(block.text)
                        citations += cited_pages(reader, block.citations or ())
        return WebSearchResult(reader.text, tuple(citations), tuple(sources), tuple(reader.errors))


def pages(reader: ItemReader, item: Any) -> list[str]:
    """The pages a search found; a failed search is recorded as an error."""
    answered = _result(reader, item, _FoundPages)
    return [page.url for page in reader.parts(answered.content if answered else (), _FoundPage)]


def cited_pages(reader: ItemReader, notes: Sequence[Any]) -> list[Citation]:
    """The pages that a part of the answer cites."""
    places = reader.parts(notes, _PageCitation, "web_search_result_location")
    return [Citation(place.url, place.title or "") for place in places]


_LANGUAGES = {"code_execution": "python", "bash_code_execution": "bash", "text_editor_code_execution": "editor"}


class _File(msgspec.Struct):
    file_id: str | None = None


class _Run(msgspec.Struct):
    stdout: str | None = None
    stderr: str | None = None
    return_code: int | None = None
    content: list[_File] | None = None


class _RunResult(_ToolResult):
    content: _Run


class _Edit(msgspec.Struct):
    content: str | None = None
    lines: list[str] | None = None


class _EditResult(_ToolResult):
    content: _Edit


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
        for item in items:
            kind = type_of(item)
            if kind == "server_tool_use" and _name_of(item) in _LANGUAGES:
                use = reader.call(item, _ToolUse)
                if use is not None:
                    uses[use.id] = use
            elif kind.endswith("_tool_result") and kind.removesuffix("_tool_result") in _LANGUAGES:
                result = _code_result(reader, item)
                if result is not None:
                    results[result.call_id] = result
            elif kind == "text":
                block = reader.part(item, _Text)
                reader.add_text(block.text if block else "")
        executions = [_code_execution(use, results.pop(use.id, None)) for use in uses.values()]
        executions += results.values()
        files = [file for execution in executions for file in execution.files]
        return CodeInterpreterResult.of(executions, text=reader.text, files=files, errors=reader.errors)


def _code_result(reader: ItemReader, item: Any) -> CodeExecution | None:
    """The outcome of a call; its code is filled in later."""
    language = _LANGUAGES[type_of(item).removesuffix("_tool_result")]
    if language == "editor":
        edited = _result(reader, item, _EditResult)
        if edited is None:
            return None
        shown = edited.content.content or "\n".join(edited.content.lines or ())
        return CodeExecution("", stdout=shown, language=language, call_id=edited.tool_use_id)
    ran = _result(reader, item, _RunResult)
    if ran is None:
        return None
    run = ran.content
    files = tuple(CodeFile(file.file_id) for file in run.content or () if file.file_id)
    return CodeExecution("", run.stdout, run.stderr, run.return_code, language, files, ran.tool_use_id)


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


class _FetchResult(_ToolResult):
    content: _FetchedPage


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
        for item in items:
            match type_of(item):
                case "server_tool_use" if _name_of(item) == "web_fetch":
                    reader.call(item, _ToolUse)
                case "web_fetch_tool_result":
                    documents += _documents(reader, item)
                case "text":
                    citations += _document_citations(reader, item, documents)
        return WebFetchResult(reader.text, tuple(documents), tuple(citations), tuple(reader.errors))


def _documents(reader: ItemReader, item: Any) -> list[FetchedDocument]:
    fetched = _result(reader, item, _FetchResult)
    if fetched is None:
        return []
    page, source = fetched.content, fetched.content.content.source
    text, data = source.data, None
    if source.type == "base64":
        try:
            text, data = "", b64decode(source.data, validate=True)
        except ValueError as error:
            reader.fail("malformed", message=f"web_fetch_tool_result: {error}", call_id=fetched.tool_use_id)
            text = ""
    return [FetchedDocument(page.url, page.content.title or "", text, source.media_type, data, page.retrieved_at)]


def _document_citations(reader: ItemReader, item: Any, documents: list[FetchedDocument]) -> list[DocumentCitation]:
    block = reader.part(item, _Text)
    if block is None:
        return []
    reader.add_text(block.text)
    found = []
    for place in reader.parts(block.citations or (), _DocumentLocation, *_LOCATIONS):
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


CODECS: dict[str, HostedToolCodec[Any, Any]] = {
    codec.kind: codec
    for codec in (AnthropicWebSearchCodec(), AnthropicCodeInterpreterCodec(), AnthropicWebFetchCodec())
}
