"""Tests agents without a provider: a model that follows a script, a list of replies or a function of the request."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from weakincentives import serde
from weakincentives.content import Audio, Document, Image, Part
from weakincentives.errors import UnboundParamsError, UnshownChangeError
from weakincentives.limits import TokenUsage
from weakincentives.resources import ResourceError
from weakincentives.runtime import (
    Channel,
    MediaSupport,
    Message,
    ModelReply,
    ModelRequest,
    ProviderAdapter,
    StopReason,
    ToolCall,
)
from weakincentives.runtime.spi import CORRECTION
from weakincentives.session import extends

__all__ = ["ScriptedAdapter", "call"]

Line = str | ToolCall | Sequence[ToolCall] | ModelReply | Exception | Any
Script = Iterable[Line] | Callable[[ModelRequest], Line]

PROGRAMMING_ERRORS = (
    AttributeError,
    NameError,
    TypeError,
    AssertionError,
    UnboundParamsError,
    ResourceError,
    UnshownChangeError,
)


class ScriptedAdapter(ProviderAdapter):
    """Answers each request with the next line of its script.

        adapter = ScriptedAdapter([call("read_section", section_key="docs"), "All done."])

    A line is text, one or more tool calls, a dataclass (sent as JSON), a `ModelReply`, or an exception to raise.
    `requests` records every request. As a context manager, the adapter checks on exit that the script was used up.

    A programming error in a tool (`AttributeError`, `NameError`, `TypeError`, `ResourceError`, `UnboundParamsError`,
    `UnshownChangeError` or a failed assertion) is raised, so that the test fails; with `tool_errors="tell"` the
    model reads it, as with other adapters.
    """

    name = "scripted"

    def __init__(
        self,
        script: Script = (),  #: one line for each request, or a function of the request
        *,
        model: str = "scripted",  #: the name in records
        supports_dynamic_tools: bool = True,  #: False restarts the run to open sections
        tool_route: str | None = None,  #: the route to imitate
        tool_errors: Literal["raise", "tell"] = "raise",
        **options: Any,
    ) -> None:
        super().__init__(model, **options)
        if tool_errors not in ("raise", "tell"):
            raise ValueError(f"tool_errors must be 'raise' or 'tell', got {tool_errors!r}")
        self.raised_errors = PROGRAMMING_ERRORS if tool_errors == "raise" else ()
        if isinstance(script, str):
            raise TypeError(
                f"script must be a list of replies, got the string {script!r}; write ScriptedAdapter([...])"
            )
        self.requests: list[ModelRequest] = []
        self._supports_dynamic_tools = supports_dynamic_tools
        self._tool_route = tool_route
        self._function = script if callable(script) else None
        self._lines: list[Line] = [] if callable(script) else list(script)
        self._position = 0
        self._ids = itertools.count(1)
        self._counted: tuple[Sequence[Message], int] = ((), 0)

    @property
    def supports_dynamic_tools(self) -> bool:
        return self._supports_dynamic_tools

    @property
    def tool_route(self) -> str:
        return self._tool_route or super().tool_route

    def channel(self) -> Channel:
        return _ScriptedChannel(self)

    @property
    def media(self) -> MediaSupport:
        images, documents, audio = (tuple(dict.fromkeys(kind.types.values())) for kind in (Image, Document, Audio))
        return MediaSupport(images, documents, audio)

    def check_content(self, parts: Sequence[Part]) -> None:
        """A script accepts all content."""

    def with_call_ids(self, items: Sequence[str], ids: Sequence[str]) -> tuple[str, ...]:
        """The items as they are: the calls of a script are not among them."""
        return tuple(items)

    def assert_used_up(self) -> None:
        """Raise AssertionError unless every reply of the script was requested."""
        left = len(self._lines) - self._position
        if left:
            raise AssertionError(f"{left} of {len(self._lines)} scripted replies were never requested.")

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.assert_used_up()

    def reply(self, request: ModelRequest) -> ModelReply:
        """The next line as a reply; its usage is estimated from the texts."""
        self.requests.append(request)
        if self._function is not None:
            line = self._function(request)
        elif self._position < len(self._lines):
            line = self._lines[self._position]
            self._position += 1
        else:
            last = request.messages[-1] if request.messages else None
            reason = f" because the last was rejected: {last.text}" if last and last.kind == CORRECTION else "."
            raise AssertionError(
                f"All {len(self._lines)} scripted replies are used; '{request.prompt_name}' requested one more{reason}"
            )
        return self._as_reply(line, request)

    def _as_reply(self, line: Line, request: ModelRequest) -> ModelReply:
        if isinstance(line, Exception):
            raise line
        if isinstance(line, ModelReply):
            return line
        stop: StopReason
        if isinstance(line, ToolCall):
            line = [line]
        if isinstance(line, list | tuple) and line and all(isinstance(item, ToolCall) for item in line):
            calls = tuple(ToolCall(item.id or f"call_{next(self._ids)}", item.name, item.arguments) for item in line)
            text, stop = "", "tool_calls"
            spent = sum(len(item.arguments) for item in calls)
        else:
            calls, stop = (), "end"
            structured = isinstance(line, list | tuple | dict) or serde.is_record(type(line))
            text = serde.encode(line, as_input=True).decode() if structured else str(line)
            spent = len(text)
        usage = TokenUsage(input_tokens=self._characters(request) // 4, output_tokens=spent // 4)
        return ModelReply(text=text, tool_calls=calls, usage=usage, stop_reason=stop)

    def _characters(self, request: ModelRequest) -> int:
        """The length of tools and conversation; messages already counted are not counted again."""
        counted, characters = self._counted
        if not extends(request.messages, counted):
            counted, characters = (), 0
        for message in request.messages[len(counted) :]:
            characters += len(message.text) + sum(len(each.arguments) for each in message.tool_calls)
        self._counted = request.messages, characters
        return characters + sum(len(tool.definition) for tool in request.tools if tool.name not in request.revoked)


class _ScriptedChannel(Channel):
    def __init__(self, adapter: ScriptedAdapter) -> None:
        self._adapter = adapter

    def call(self, request: ModelRequest) -> ModelReply:
        return self._adapter.reply(request)

    async def call_async(self, request: ModelRequest) -> ModelReply:
        return self._adapter.reply(request)


def call(name: str, /, *, call_id: str = "", **arguments: Any) -> ToolCall:
    """A tool call as a model would make it; the id is filled in when the script runs."""
    return ToolCall(id=call_id, name=name, arguments=json.dumps(arguments))
