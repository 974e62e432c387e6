"""Translation between our messages and the CLI's events; pure, so it is tested against recorded events."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weakincentives.adapters.network import FIRST_USER_TURN, ToolCache
from weakincentives.limits import TokenUsage
from weakincentives.prompt import Tool, portable_name
from weakincentives.runtime import Message, ModelReply, StopReason, ToolCall
from weakincentives.session import LogEntry

PROVIDER = "claude_agent_sdk"
SERVER_NAME = "wink"
PREFIX = f"mcp__{SERVER_NAME}__"
STRUCTURED_OUTPUT = "StructuredOutput"
WRONG_OUTPUT = "error_max_structured_output_retries"
CONTINUED = "This conversation was interrupted. This is what was said and done so far, in order. Continue from here:"

_STOP_REASONS: Mapping[str, StopReason] = {
    "end_turn": "end",
    "stop_sequence": "end",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
    "pause_turn": "pause",
}


@dataclass(frozen=True, slots=True)
class CliRunEnded(LogEntry):
    """The CLI was stopped. `cost_usd` is the cost it reported, None if it reported none."""

    run_id: str
    cli_version: str
    cost_usd: float | None
    timestamp: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True)
class CliToolUse:
    """A call of one of the CLI's own tools."""

    call_id: str
    name: str
    arguments: str
    output: str
    success: bool
    duration: float


def declare_tool(tool: Tool[Any, Any]) -> dict[str, Any]:
    """A tool as MCP lists it; `_meta` asks the CLI to show it at once and to pass on large results whole."""
    return {
        "name": portable_name(tool.name),
        "description": tool.description,
        "input_schema": tool.schema,
        "_meta": {"anthropic/alwaysLoad": True, "anthropic/maxResultSizeChars": 500_000},
    }


TOOLS = ToolCache(declare_tool)


def first_turn(messages: Sequence[Message]) -> tuple[str, str]:
    """The system prompt and the first user turn, which the CLI requires; earlier turns are retold as text."""
    system = "\n\n".join(message.text for message in messages if message.role == "system")
    if any(message.role == "assistant" for message in messages):
        return system, f"{CONTINUED}\n\n{_transcript(messages)}"
    user = "\n\n".join(message.text for message in messages if message.role == "user")
    return system, user or FIRST_USER_TURN


class Turn:
    """One assistant message, assembled from the Messages API events that the CLI passes on."""

    def __init__(self) -> None:
        self.complete = False
        self._id = ""
        self._model = ""
        self._stop_reason = ""
        self._usage: dict[str, Any] = {}
        self._blocks: list[dict[str, Any]] = []
        self._arguments: list[str] = []

    def feed(self, event: Mapping[str, Any]) -> str:
        """Process one event; returns the answer text in it, if any."""
        match event["type"]:
            case "message_start":
                message = event["message"]
                self._id, self._model = message["id"], message["model"]
                self._usage = dict(message.get("usage") or {})
            case "content_block_start":
                self._blocks.append(dict(event["content_block"]))
                self._arguments.append("")
            case "content_block_delta":
                return self._extend(event["delta"])
            case "content_block_stop":
                if self._arguments[-1]:
                    self._blocks[-1]["input"] = _object(self._arguments[-1])
            case "message_delta":
                self._stop_reason = event["delta"].get("stop_reason") or ""
                self._usage |= {name: value for name, value in (event.get("usage") or {}).items() if value is not None}
            case "message_stop":
                self.complete = True
        return ""

    @property
    def text(self) -> str:
        return "".join(block["text"] for block in self._blocks if block["type"] == "text")

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls of our tools, in order."""
        return tuple(
            ToolCall(block["id"], block["name"].removeprefix(PREFIX), arguments or json.dumps(block.get("input") or {}))
            for block, arguments in zip(self._blocks, self._arguments, strict=True)
            if block["type"] == "tool_use" and block["name"].startswith(PREFIX)
        )

    @property
    def uses_cli_tools(self) -> bool:
        """Whether the CLI will run tools of its own before it calls the model again."""
        return any(
            block["type"] == "tool_use" and not block["name"].startswith((PREFIX, STRUCTURED_OUTPUT))
            for block in self._blocks
        )

    @property
    def structured_answer(self) -> str | None:
        """The arguments of the tool through which the CLI takes a structured answer."""
        answers = (
            arguments
            for block, arguments in zip(self._blocks, self._arguments, strict=True)
            if block["type"] == "tool_use" and block["name"] == STRUCTURED_OUTPUT
        )
        return next(answers, None)

    @property
    def usage(self) -> TokenUsage:
        return usage(self._usage)

    def reply(
        self, stop_reason: StopReason | None = None, *, text: str | None = None, extra: TokenUsage | None = None
    ) -> ModelReply:
        return ModelReply(
            text=self.text if text is None else text,
            tool_calls=self.tool_calls,
            usage=self.usage + (extra or TokenUsage()),
            stop_reason=stop_reason or _STOP_REASONS.get(self._stop_reason, "end"),
            items=tuple(json.dumps(block) for block in self._blocks),
            response_id=self._id,
            model=self._model,
        )

    def _extend(self, delta: Mapping[str, Any]) -> str:
        block = self._blocks[-1]
        match delta["type"]:
            case "text_delta":
                block["text"] += delta["text"]
                return str(delta["text"])
            case "input_json_delta":
                self._arguments[-1] += delta["partial_json"]
                return str(delta["partial_json"]) if block["name"] == STRUCTURED_OUTPUT else ""
            case "thinking_delta":
                block["thinking"] += delta["thinking"]
            case "signature_delta":
                block["signature"] = delta["signature"]
        return ""


class CliWork:
    """Calls of the CLI's own tools that have no result yet."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[dict[str, Any], float]] = {}
        self._items: list[str] = []

    def begin(self, items: Sequence[str]) -> None:
        """Remember which blocks of a reply are calls that the CLI runs itself."""
        for block in map(json.loads, items):
            if block["type"] == "tool_use" and not block["name"].startswith((PREFIX, STRUCTURED_OUTPUT)):
                self._open[block["id"]] = block, time.perf_counter()

    def results(self, blocks: Iterable[Mapping[str, Any]]) -> list[CliToolUse]:
        """The finished calls of the CLI's tools, from the blocks of a user message."""
        uses = []
        for block in blocks:
            call, started = self._open.pop(block.get("tool_use_id", ""), (None, 0.0))
            if call is not None:
                output, success = _plain(block["content"]), not block["is_error"]
                duration = time.perf_counter() - started
                uses.append(CliToolUse(call["id"], call["name"], json.dumps(call["input"]), output, success, duration))
                item = {"type": "tool_result", "tool_use_id": call["id"], "content": output, "is_error": not success}
                self._items.append(json.dumps(item))
        return uses

    def items(self) -> list[str]:
        """Results that come before the next reply."""
        items, self._items = self._items, []
        return items


def usage(raw: Mapping[str, Any]) -> TokenUsage:
    """The usage of one message; the service reports cached input separately, we include it in the input."""
    cached = raw.get("cache_read_input_tokens") or 0
    fresh = (raw.get("input_tokens") or 0) + (raw.get("cache_creation_input_tokens") or 0)
    details = raw.get("output_tokens_details") or {}
    server = raw.get("server_tool_use") or {}
    return TokenUsage(
        input_tokens=fresh + cached,
        output_tokens=raw.get("output_tokens") or 0,
        cached_tokens=cached,
        reasoning_tokens=details.get("thinking_tokens") or 0,
        hosted_requests=(server.get("web_search_requests") or 0) + (server.get("web_fetch_requests") or 0),
    )


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


def _transcript(messages: Sequence[Message]) -> str:
    lines: list[str] = []
    for message in messages:
        match message.role:
            case "assistant":
                lines += _cli_tool_lines(message)
                if message.text:
                    lines.append(f"You said: {message.text}")
                lines += [f"You called {call.name} with {call.arguments}" for call in message.tool_calls]
            case "tool":
                lines.append(f"{message.name} {'answered' if message.success else 'failed'}: {message.text}")
            case "user":
                lines.append(f"The user said: {message.text}")
    return "\n\n".join(lines)


def _cli_tool_lines(message: Message) -> list[str]:
    lines = []
    for block in map(json.loads, message.items if message.provider == PROVIDER else ()):
        if block["type"] == "tool_result":
            lines.append(f"It gave: {block['content']}")
        elif block["type"] == "tool_use" and not block["name"].startswith((PREFIX, STRUCTURED_OUTPUT)):
            lines.append(f"You used {block['name']} with {json.dumps(block['input'])}")
    return lines


def _plain(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(block.get("text", f"[{block['type']}]")) for block in content)
    return str(content or "")


def _object(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return {}
