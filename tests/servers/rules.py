"""What the vendors refuse, with the words and bodies of their errors.

Each server checks a request before it answers, so that every test of an adapter tests its order of messages too.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif")
# The sources disagree about claude-sonnet-5; the CLI sends it system messages, and our adapter does not.
SYSTEM_MESSAGES = re.compile(r"claude-(fable-5|mythos-5|opus-4-8|opus-5|sonnet-5|haiku-5-5)")
BOUND_THINKING = re.compile(r"claude-((fable|mythos)-5-\d|(opus|sonnet|haiku)-5-5)")
SIGNATURE = "bound:"
CIPHER = "enc:"
COUNTED = {
    "input_tokens": {"model", "input", "instructions", "tools", "text", "reasoning", "tool_choice"},
    "count_tokens": {
        "model", "messages", "system", "tools", "thinking", "tool_choice", "output_config", "cache_control"
    },
}  # fmt: skip


def responses_problem(body: Mapping[str, Any], issued: Mapping[str, str]) -> dict[str, Any] | None:
    """What the Responses API finds wrong; `issued` has the reasoning items it made, with what followed each."""
    for message, code in _responses(body, issued):
        return {"error": {"message": message, "type": "invalid_request_error", "param": "input", "code": code}}
    return None


def _responses(body: Mapping[str, Any], issued: Mapping[str, str]) -> Iterator[tuple[str, str | None]]:
    items = [item for item in body["input"] if isinstance(item, dict)]
    later = [tool for item in items if item.get("type") == "additional_tools" for tool in item["tools"]]
    for name in _named_twice([*body.get("tools", ()), *later]):
        yield f"Invalid 'tools': the name '{name}' is used more than once.", "invalid_value"
    called = {item["call_id"] for item in items if item.get("type") == "function_call"}
    answered = [item["call_id"] for item in items if item.get("type") == "function_call_output"]
    for call in called - set(answered):
        yield f"No tool output found for function call {call}.", None
    for call in set(answered) - called:
        yield f"No tool call found for function call output with call_id {call}.", None
    known = {item["id"] for item in items if item.get("type") == "reasoning"}
    for index, item in enumerate(items):
        if item.get("type") == "reasoning":
            cipher = item.get("encrypted_content") or ""
            if cipher.startswith(CIPHER) and cipher not in issued:
                yield "The encrypted content could not be verified.", "invalid_encrypted_content"
            following = items[index + 1] if index + 1 < len(items) else {}
            if following.get("type") not in ("message", "function_call", "reasoning") and "_call" not in str(following):
                yield f"Item '{item['id']}' of type 'reasoning' was provided without its required following item.", None
        for needed in (thought for thought in issued.values() if thought and item.get("id") == thought.split(">")[1]):
            if needed.split(">")[0] not in known:
                yield f"Item '{item['id']}' was provided without its required 'reasoning' item.", None
        content = item.get("content") if item.get("role") == "user" else item.get("output")
        for part in content if isinstance(content, list) else ():
            if part["type"] == "input_image" and item.get("role") == "user" and "detail" not in part:
                yield "Missing required parameter: 'detail'.", "missing_required_parameter"
            kind = part.get("image_url", "")[5:].partition(";")[0]
            if (
                part["type"] == "input_image"
                and part.get("image_url", "").startswith("data:")
                and kind not in IMAGE_TYPES
            ):
                yield f"The image has the unsupported type {kind}.", "invalid_image_format"
            if part["type"] not in ("input_text", "input_image", "input_file"):
                yield f"Invalid value: '{part['type']}'.", "invalid_value"


def messages_problem(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the Messages API finds wrong."""
    for message in _messages(body):
        return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
    return None


def _messages(body: Mapping[str, Any]) -> Iterator[str]:
    messages = body["messages"]
    if _named_twice(body.get("tools", ())):
        yield "tools: Tool names must be unique."
    if "temperature" in body:
        yield "temperature: Extra inputs are not permitted"
    if not messages or messages[0]["role"] != "user":
        yield "messages: first message must use the user role"
    for index, message in enumerate(messages):
        if "output_config" in message:
            continue  # A change of the effort, which says nothing and may stand anywhere.
        blocks = (
            message["content"]
            if isinstance(message["content"], list)
            else [{"type": "text", "text": message["content"]}]
        )
        before = messages[index - 1] if index else {"role": "", "content": []}
        following = messages[index + 1]["role"] if index + 1 < len(messages) else ""
        if not blocks:
            yield f"messages.{index}: all messages must have non-empty content"
        if any(block["type"] == "text" and not block["text"] for block in blocks):
            yield f"messages.{index}: text content blocks must be non-empty"
        yield from _pairs(index, before, message["role"], blocks)
        if message["role"] == "system":
            if not SYSTEM_MESSAGES.match(body["model"]):
                yield "role 'system' is not supported on this model"
            if before["role"] != "user" and not _paused(before):
                yield f"messages.{index}: a system message must follow a user turn"
            if following not in ("", "assistant"):
                yield f"messages.{index}: a system message must be followed by an assistant turn or end the messages"
        if message["role"] == "assistant":
            yield from _thoughts(body, index, blocks)
        yield from (f"messages.{index}: {problem}" for block in blocks for problem in _media(block))
    last = messages[-1] if messages else {"role": ""}
    if last["role"] == "assistant" and not _paused(last):
        yield "This model does not support assistant message prefill. The conversation must end with a user message."


def _pairs(index: int, before: Mapping[str, Any], role: str, blocks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    content = before["content"] if isinstance(before["content"], list) else []
    asked = [block["id"] for block in content if block["type"] == "tool_use"]
    answered = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
    opening = [block.get("tool_use_id") for block in blocks[: len(asked)]]
    if asked and (role != "user" or sorted(map(str, opening)) != sorted(asked)):
        yield (
            f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after: "
            f"{', '.join(asked)}. Did not find {len(asked)} tool_result block(s) at the beginning of this message."
        )
    if set(answered) - set(asked):
        yield f"messages.{index}: unexpected `tool_use_id` found in `tool_result` blocks: {', '.join(answered)}"


def _paused(message: Mapping[str, Any]) -> bool:
    content = message["content"] if isinstance(message["content"], list) else []
    return message["role"] == "assistant" and any(
        block["type"].startswith(("server_tool_use", "compaction")) for block in content
    )


def _thoughts(body: Mapping[str, Any], index: int, blocks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for position, block in enumerate(blocks):
        signature = block.get("signature") or ""
        bound = block["type"] == "thinking" and signature.startswith(SIGNATURE) and BOUND_THINKING.match(body["model"])
        if bound and signature != sign({**body, "messages": body["messages"][:index]}, blocks[:position]):
            yield (
                f"messages.{index}.content.{position}: Invalid signature in thinking block. The block is bound to a "
                "different conversation."
            )


def _media(block: Mapping[str, Any]) -> Iterator[str]:
    inner = block.get("content") if block["type"] == "tool_result" else [block]
    for part in inner if isinstance(inner, list) else ():
        source = part.get("source") or {}
        if source.get("type") == "base64":
            allowed = IMAGE_TYPES if part["type"] == "image" else ("application/pdf",)
            if source["media_type"] not in allowed:
                yield f"source.base64.media_type: Input should be {' or '.join(allowed)}"


def sign(body: Mapping[str, Any], blocks: Sequence[Any] = ()) -> str:
    """The signature of thinking that follows all of this request and these blocks."""
    text = json.dumps(
        _unmarked([body.get("system"), body.get("tools"), body["messages"], list(blocks)]), sort_keys=True
    )
    return SIGNATURE + hashlib.sha256(text.encode()).hexdigest()[:16]


def _unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unmarked(item) for key, item in value.items() if key != "cache_control"}
    return [_unmarked(item) for item in value] if isinstance(value, list) else value


def chat_problem(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the Chat Completions API finds wrong."""
    for message in _chat(body):
        return {"error": {"message": message, "type": "invalid_request_error", "param": "messages", "code": None}}
    return None


def _chat(body: Mapping[str, Any]) -> Iterator[str]:
    waiting: set[str] = set()
    for name in _named_twice([tool.get("function", tool) for tool in body.get("tools", ())]):
        yield f"Invalid 'tools': the name '{name}' is used more than once."
    for message in body["messages"]:
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                yield "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
            waiting.discard(message["tool_call_id"])
            continue
        if waiting:
            break
        waiting = {call["id"] for call in message.get("tool_calls") or ()}
    if waiting:
        yield (
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            "'tool_call_id'. "
            f"The following tool_call_ids did not have response messages: {', '.join(sorted(waiting))}"
        )


def _named_twice(tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of several tools; whether OpenAI refuses them is not known, and which one is called would be chance."""
    names = Counter(tool["name"] for tool in tools if "name" in tool)
    return [name for name, times in names.items() if times > 1]


def counting_problem(target: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a counting endpoint finds wrong: it takes a few of the fields alone."""
    extra = sorted(body.keys() - COUNTED[target.rpartition("/")[2].partition("?")[0]])
    return (
        {"error": {"type": "invalid_request_error", "message": f"unknown fields: {', '.join(extra)}"}}
        if extra
        else None
    )
