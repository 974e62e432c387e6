"""Translation between our messages and the CLI's events; pure, so it is tested against recorded events."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import dropwhile, takewhile
from typing import Any
from uuid import uuid4

from weakincentives.adapters.anthropic.reply import STOPS, StreamedMessage, parse_usage
from weakincentives.adapters.anthropic.wire import content_block
from weakincentives.adapters.network import FIRST_USER_TURN, ToolCache
from weakincentives.content import Document, Image, Part, Text
from weakincentives.limits import TokenUsage
from weakincentives.prompt import Tool, ToolResult, portable_name
from weakincentives.runtime import (
    ArgumentsDelta,
    Message,
    ModelReply,
    StopReason,
    TextDelta,
    ToolCall,
    ToolInvoked,
)
from weakincentives.runtime.spi import TEXT_TYPES, ModelDelta
from weakincentives.session import LogEntry

PROVIDER = "claude_agent_sdk"
SERVER_NAME = "wink"
PREFIX = f"mcp__{SERVER_NAME}__"
STRUCTURED_OUTPUT = "StructuredOutput"
WRONG_OUTPUT = "error_max_structured_output_retries"
CONTINUE = "Continue."
THINKING = ("thinking", "redacted_thinking")
MEANWHILE = "While this ran, the following was said:"
_CUT_OFF = "This was stopped before it ended, and may have been done in part."


@dataclass(frozen=True, slots=True)
class CliRunEnded(LogEntry):
    """The CLI was stopped. `cost_usd` is the cost it reported, None if it reported none."""

    run_id: str  #: the run
    cli_version: str  #: the version of the CLI
    cost_usd: float | None
    timestamp: float = field(default_factory=time.time)  #: seconds since 1970


def declare_tool(tool: Tool[Any, Any]) -> dict[str, Any]:
    """A tool as MCP lists it."""
    return {
        "name": portable_name(tool.name),
        "description": tool.description,
        "input_schema": tool.schema,
    }


TOOLS = ToolCache(declare_tool)


def system_text(messages: Sequence[Message]) -> str:
    """The system text before the conversation."""
    first = takewhile(lambda message: message.role == "system", messages)
    return "\n\n".join(message.text for message in first)


def words(message: Message) -> tuple[Part, ...]:
    """The content of a user or system message in mid-conversation."""
    if message.role == "system":
        return (Text(f"<system-reminder>\n{message.text}\n</system-reminder>"),)
    return message.parts or (Text(message.text),)


def shown_in_result(part: Part) -> Part:
    """A part of a tool's result as the CLI passes it on: not as a document, a recording or a URL."""
    if isinstance(part, Document) and part.media_type in TEXT_TYPES:
        return Text(part.data.decode("utf-8", "replace"))
    shown = isinstance(part, Text) or (isinstance(part, Image) and part.blob is not None)
    return part if shown else Text(f"{part} cannot be shown in a result.")


def turns(messages: Sequence[Message], *, thinking: bool) -> list[dict[str, Any]]:
    """The conversation so far in the Messages API's format, without the system text.

    Newer models accept their thinking only in the exact conversation it was written in, hence `thinking`. Calls left
    unanswered because their CLI was stopped are omitted.
    """
    shown = {"text", "tool_use", "tool_result", *(THINKING if thinking else ())}
    answered = {message.call_id for message in messages if message.role == "tool"}
    answered |= {block["tool_use_id"] for m in messages for block in _items(m) if block["type"] == "tool_result"}
    found: list[dict[str, Any]] = []
    said = [message for message in messages if message.role in ("user", "assistant")]
    if said and said[0].role == "assistant":
        found.append({"role": "user", "content": [{"type": "text", "text": FIRST_USER_TURN}]})

    def add(role: str, blocks: Iterable[dict[str, Any]]) -> None:
        for block in blocks:
            if not found or found[-1]["role"] != role:
                found.append({"role": role, "content": []})
            found[-1]["content"].append(block)

    for message in dropwhile(lambda message: message.role == "system", messages):
        if message.role == "assistant":
            for block in _spoken(message, answered, shown):
                add("user" if block["type"] == "tool_result" else "assistant", [block])
        elif message.role == "tool":
            result = [content_block(part) for part in message.parts] or message.text
            failed = {} if message.success else {"is_error": True}
            add("user", [{"type": "tool_result", "tool_use_id": message.call_id, "content": result, **failed}])
        elif message.role in ("user", "system"):
            add("user", map(content_block, words(message)))
    return found


def transcript(spoken: Sequence[Mapping[str, Any]], model: str) -> str:
    """A conversation as the file from which the CLI resumes it."""
    lines: list[str] = []
    parent = None
    session = str(uuid4())
    for turn in spoken:
        entry = {"type": turn["role"], "uuid": str(uuid4()), "parentUuid": parent, "sessionId": session}
        made = {} if turn["role"] == "user" else {"id": f"msg_{entry['uuid']}", "type": "message", "model": model}
        entry |= {"isSidechain": False, "timestamp": "1970-01-01T00:00:00.000Z", "message": {**made, **turn}}
        lines.append(json.dumps(entry))
        parent = entry["uuid"]
    return "\n".join(lines) + "\n"


def _spoken(message: Message, answered: Set[str], shown: Set[str]) -> Iterator[dict[str, Any]]:
    """The blocks of an assistant message, after the results of its CLI's own tools."""
    blocks = [block for block in _items(message) if block["type"] in shown]
    if not blocks:
        calls = [(call.id, PREFIX + portable_name(call.name), _object(call.arguments)) for call in message.tool_calls]
        blocks = [{"type": "tool_use", "id": id_, "name": name, "input": given} for id_, name, given in calls]
    if message.text and not any(block["type"] == "text" for block in blocks):
        before = [block for block in blocks if block["type"] == "tool_result"]
        blocks = [*before, {"type": "text", "text": message.text}, *blocks[len(before) :]]
    for block in blocks:
        if (block["type"] != "tool_use" or block["id"] in answered) and block.get("text") != "":
            yield block


def has_thinking(message: Message) -> bool:
    return any(block["type"] in THINKING for block in _items(message))


def _items(message: Message) -> list[dict[str, Any]]:
    return [json.loads(item) for item in message.items] if message.provider == PROVIDER else []


class Turn(StreamedMessage):
    """One assistant message, assembled from the Messages API events that the CLI passes on."""

    def feed(self, event: Mapping[str, Any]) -> ModelDelta | None:
        delta = super().feed(event)
        if not isinstance(delta, ArgumentsDelta):
            return delta
        if delta.name == STRUCTURED_OUTPUT:
            return TextDelta(delta.text)
        return replace(delta, name=delta.name.removeprefix(PREFIX)) if delta.name.startswith(PREFIX) else None

    @property
    def text(self) -> str:
        return "".join(block["text"] for block, _ in self.blocks() if block["type"] == "text")

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls of our tools, in order."""
        return tuple(
            ToolCall(block["id"], block["name"].removeprefix(PREFIX), arguments or json.dumps(block.get("input") or {}))
            for block, arguments in self._calls()
            if block["name"].startswith(PREFIX)
        )

    @property
    def cli_calls(self) -> tuple[ToolCall, ...]:
        """The calls of the CLI's own tools, in order."""
        return tuple(
            ToolCall(block["id"], block["name"], arguments or json.dumps(block.get("input") or {}))
            for block, arguments in self.blocks()
            if _runs_in_cli(block)
        )

    @property
    def items(self) -> tuple[str, ...]:
        blocks = self.blocks()
        return tuple(json.dumps(block | ({"input": _object(given)} if given else {})) for block, given in blocks)

    @property
    def structured_answer(self) -> str | None:
        """The arguments of the tool through which the CLI accepts a structured answer."""
        return next((arguments for block, arguments in self._calls() if block["name"] == STRUCTURED_OUTPUT), None)

    @property
    def usage(self) -> TokenUsage:
        return parse_usage(self.fields.get("usage") or {})

    def reply(
        self,
        stop_reason: StopReason | None = None,
        *,
        text: str | None = None,
        extra: TokenUsage | None = None,
        waiting: Sequence[ToolCall] = (),
    ) -> ModelReply:
        """The message as a reply; of the CLI's own calls, it has those that are `waiting` for a person."""
        order = [block["id"] for block, _ in self._calls()]
        return ModelReply(
            text=self.text if text is None else text,
            tool_calls=tuple(sorted((*self.tool_calls, *waiting), key=lambda call: order.index(call.id))),
            usage=self.usage + (extra or TokenUsage()),
            stop_reason=stop_reason or STOPS.get(self.fields.get("stop_reason") or "", "end"),
            items=self.items,
            response_id=self.fields.get("id", ""),
            model=self.fields.get("model", ""),
            reasoning="\n\n".join(block["thinking"] for block, _ in self.blocks() if block.get("thinking")),
        )

    def _calls(self) -> Iterator[tuple[dict[str, Any], str]]:
        return ((block, arguments) for block, arguments in self.blocks() if block["type"] == "tool_use")


class CliWork:
    """Calls of the CLI's own tools that have no result yet."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[dict[str, Any], float]] = {}
        self._items: list[str] = []

    def begin(self, items: Sequence[str]) -> None:
        """Remember which blocks of a reply are calls that the CLI runs itself."""
        for block in map(json.loads, items):
            if _runs_in_cli(block):
                self._open[block["id"]] = block, time.perf_counter()

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    def drop(self, call_ids: Iterable[str]) -> None:
        """Forget calls that the CLI will not run."""
        for call_id in call_ids:
            self._open.pop(call_id, None)

    def cut_off(self) -> None:
        """Give the calls that have not ended a result that says so."""
        for call_id in self._open:
            item = {"type": "tool_result", "tool_use_id": call_id, "content": _CUT_OFF, "is_error": True}
            self._items.append(json.dumps(item))
        self._open.clear()

    def results(self, blocks: Iterable[Mapping[str, Any]]) -> list[ToolInvoked]:
        """The finished calls of the CLI's tools, from the blocks of a user message."""
        uses = []
        for block in blocks:
            call, started = self._open.pop(block.get("tool_use_id", ""), (None, 0.0))
            if call is not None:
                output, success = _plain(block["content"]), not block["is_error"]
                uses.append(
                    ToolInvoked(
                        name=call["name"],
                        params=call["input"],
                        result=ToolResult(output, success=success),
                        call_id=call["id"],
                        arguments=json.dumps(call["input"]),
                        duration=time.perf_counter() - started,
                        text=output,
                    )
                )
                item = {"type": "tool_result", "tool_use_id": call["id"], "content": output, "is_error": not success}
                self._items.append(json.dumps(item))
        return uses

    def items(self) -> list[str]:
        """Results that come before the next reply."""
        items, self._items = self._items, []
        return items


def unreported_usage(model_usage: Mapping[str, Mapping[str, Any]] | None, seen: TokenUsage) -> TokenUsage:
    """Tokens the CLI spent beyond the messages it passed on, such as on subagents or on compacting."""
    total = TokenUsage()
    for spent in (model_usage or {}).values():
        cached = spent.get("cacheReadInputTokens", 0)
        fresh = spent.get("inputTokens", 0) + spent.get("cacheCreationInputTokens", 0)
        total += TokenUsage(
            input_tokens=fresh + cached, output_tokens=spent.get("outputTokens", 0), cached_tokens=cached
        )
    return TokenUsage(
        input_tokens=max(0, total.input_tokens - seen.input_tokens),
        output_tokens=max(0, total.output_tokens - seen.output_tokens),
        cached_tokens=max(0, total.cached_tokens - seen.cached_tokens),
    )


def _runs_in_cli(block: Mapping[str, Any]) -> bool:
    return block["type"] == "tool_use" and not block["name"].startswith((PREFIX, STRUCTURED_OUTPUT))


def _plain(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(block.get("text", f"[{block['type']}]")) for block in content)
    return str(content or "")


def _object(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return {}
