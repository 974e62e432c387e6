"""Content blocks of the Messages API that hosted tools have in common."""

from __future__ import annotations

from typing import Any

import msgspec

from weakincentives.adapters.hosted.reading import Reading, kind_of
from weakincentives.tools import FailureCode

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


class Use(msgspec.Struct):
    """The model's call of a server tool."""

    id: str
    name: str
    input: dict[str, Any] = {}


class Result(msgspec.Struct):
    """What the server answered to a call; `content` is an error, or what the tool gives."""

    content: Any
    tool_use_id: str = ""


class Text(msgspec.Struct):
    """A piece of the answer with what it cites."""

    text: str = ""
    citations: list[Any] | None = None


class _Error(msgspec.Struct):
    error_code: str = ""
    error_message: str | None = None


def name_of(item: Any) -> str:
    """The tool that a `server_tool_use` block calls."""
    name = item.get("name") if isinstance(item, dict) else getattr(item, "name", None)
    return name if isinstance(name, str) else ""


def failed(reading: Reading, result: Result) -> bool:
    """Whether the content of a result is an error; it is noted as one."""
    if not kind_of(result.content).endswith("_error"):
        return False
    error = reading.part(result.content, _Error)
    if error is not None:
        reading.fail(
            _CODES.get(error.error_code, "failed"),
            error.error_code,
            message=error.error_message or "",
            call_id=result.tool_use_id,
        )
    return True
