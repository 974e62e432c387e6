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

from jsonschema import Draft202012Validator

IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif")
# The sources disagree about claude-sonnet-5; the CLI sends it system messages, and our adapter does not.
SYSTEM_MESSAGES = re.compile(r"claude-(fable-5|mythos-5|opus-4-8|opus-5|sonnet-5|haiku-5-5)")
DEFERRED_TOOLS = re.compile(r"claude-((opus|sonnet|haiku)-(4-[5-9]|[5-9])|fable|mythos)")
BOUND_THINKING = re.compile(r"claude-(fable-5-\d|mythos-5-2|(opus|sonnet|haiku)-5-5)")
SIGNATURE = "bound:"
CIPHER = "enc:"
COUNTED = {
    "input_tokens": {"model", "input", "instructions", "tools", "text", "reasoning", "tool_choice"},
    "count_tokens": {
        "model", "messages", "system", "tools", "thinking", "tool_choice", "output_config", "cache_control"
    },
}  # fmt: skip


def responses_problem(
    body: Mapping[str, Any], issued: Mapping[str, str], compactions: Sequence[Any] = ()
) -> dict[str, Any] | None:
    """What the Responses API finds wrong; `issued` has the reasoning items it made, with what followed each."""
    for item in body["input"]:
        if item.get("type") == "compaction" and item not in compactions:
            problem = "The encrypted content could not be verified."
            return {"error": {"message": problem, "code": "invalid_encrypted_content", "param": "input"}}
    for message, code in _responses(body, issued):
        return {"error": {"message": message, "type": "invalid_request_error", "param": "input", "code": code}}
    return None


def _responses(body: Mapping[str, Any], issued: Mapping[str, str]) -> Iterator[tuple[str, str | None]]:
    items = [item for item in body["input"] if isinstance(item, dict)]
    yield from ((problem, "invalid_value") for problem in (*_namespaces(body, items), *_updates(body, items)))
    loaded = [item["tools"] for item in items if item.get("type") in ("additional_tools", "tool_search_output")]
    later = [tool for tools in loaded for tool in tools if not tool.get("defer_loading")]
    later = [tool for tool in later if not any("defer_loading" in each for each in tool.get("tools", ()))]
    for name in _named_twice([*body.get("tools", ()), *later]):
        yield f"Invalid 'tools': the name '{name}' is used more than once.", "invalid_value"
    called = {item["call_id"] for item in items if item.get("type") == "function_call"}
    answered = [item["call_id"] for item in items if item.get("type") == "function_call_output"]
    for call in called - set(answered):
        yield f"No tool output found for function call {call}.", None
    for call in set(answered) - called:
        yield f"No tool call found for function call output with call_id {call}.", None
    yield from ((problem, "invalid_value") for problem in _repeated_ids(items, "function_call", "call_id"))
    searched = [item["call_id"] for item in items if _is_client_search(item, "tool_search_call")]
    found = [item["call_id"] for item in items if _is_client_search(item, "tool_search_output")]
    for call in set(searched) ^ set(found):
        yield f"No tool search call with its output found for {call}.", None
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


def _repeated_ids(items: Sequence[Mapping[str, Any]], kind: str, key: str) -> list[str]:
    """Anthropic refuses an id that two calls have; which of them a result belongs to would be chance elsewhere."""
    times = Counter(item[key] for item in items if item.get("type") == kind)
    return [f"`{kind}` ids must be unique: {call_id}" for call_id, number in times.items() if number > 1]


def _is_client_search(item: Mapping[str, Any], kind: str) -> bool:
    return item.get("type") == kind and item.get("execution") == "client"


def _namespaces(body: Mapping[str, Any], items: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    tools = body.get("tools", ())
    members = [member for tool in tools for member in tool.get("tools", ())]
    search = [tool for tool in tools if tool["type"] == "tool_search"]
    if any(tool.get("defer_loading") for tool in (*tools, *members)) and not search:
        yield "Tools with defer_loading require tool_search."
    if len(search) > 1:
        yield "Only one tool_search tool is allowed."
    if search and re.match(r"gpt-(5\.4-nano|5\.[0-3]|4|5$|5-)", body["model"]):
        yield f"Tool of type 'tool_search' is not supported with {body['model']}."
    for tool in tools:
        if tool["type"] == "namespace" and not (tool.get("description") and tool.get("tools")):
            yield f"Namespace '{tool['name']}' needs a description and tools."
    if any(member["type"] != "function" for member in members):
        yield "Namespaces cannot be nested."
    spaces = {member["name"]: tool["name"] for tool in tools for member in tool.get("tools", ())}
    for item in items:
        if item.get("type") == "function_call" and item.get("namespace") != spaces.get(
            item["name"], item.get("namespace")
        ):
            yield f"Function call '{item['name']}' must name its namespace '{spaces[item['name']]}'."


def _updates(body: Mapping[str, Any], items: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for item in items:
        if item.get("type") != "configuration_update":
            continue
        if not body["model"].startswith("gpt-6"):
            yield f"Item of type 'configuration_update' is not supported with {body['model']}."
        if item.keys() - {"type", "id", "reasoning", "text"} or not item.keys() & {"reasoning", "text"}:
            yield "Invalid configuration_update: supply reasoning, text, or both."
        if "text" in item and item["text"].get("format", {}).get("type") not in ("text", "json_schema"):
            yield "Invalid configuration_update: text.format must be a JSON schema or text."


def output_form(body: Mapping[str, Any]) -> dict[str, Any]:
    """The form of the answer that applies: that of the last update, else that of the request."""
    updates = [item["text"]["format"] for item in body["input"] if item.get("type") == "configuration_update"]
    form = updates[-1] if updates else body.get("text", {}).get("format", {"type": "text"})
    return dict(form)


def namespaces_of(body: Mapping[str, Any]) -> dict[str, str]:
    """The namespace of each function that the model may call in one, as listed or as found."""
    found = [
        item["tools"] for item in body["input"] if isinstance(item, dict) and item.get("type") == "tool_search_output"
    ]
    listed = [tool for tools in (body.get("tools", ()), *found) for tool in tools]
    return {member["name"]: tool["name"] for tool in listed for member in tool.get("tools", ())}


COMPACT_FIELDS = {
    "model", "input", "instructions", "previous_response_id", "prompt_cache_key", "prompt_cache_options", "service_tier"
}  # fmt: skip


def compact_problem(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the Responses API finds wrong with a request to compact: it takes neither tools nor most fields."""
    problems = [f"Unknown parameter: '{name}'." for name in sorted(body.keys() - COMPACT_FIELDS)]
    kinds = ("additional_tools", "configuration_update")
    problems += [f"Invalid value: '{item['type']}'." for item in body["input"] if item.get("type") in kinds]
    return {"error": {"message": problems[0], "type": "invalid_request_error"}} if problems else None


class Compactions:
    """What the Messages API knows of the blocks it has made, and finds wrong with requests that have one."""

    BETA, TOOLS_BETA = "compact-2026-09-04", "inline-tools-2026-09-15"

    def __init__(self) -> None:
        self._made: dict[str, tuple[dict[str, Any], list[Any]]] = {}

    def make(self, summary: str, body: Mapping[str, Any], betas: str) -> dict[str, Any]:
        signature = f"compacted:{id(self)}:{len(self._made)}"
        block: dict[str, Any] = {"type": "compaction", "content": summary, "signature": signature}
        messages = self.whole(body)["messages"]
        if self.TOOLS_BETA in betas:
            changes = [each for message in messages for each in message["content"] if message["role"] == "system"]
            block["tool_changes"] = [each for each in changes if each["type"] in ("tool_addition", "tool_removal")]
        self._made[signature] = block, messages
        return block

    def whole(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """A request with what was summarized in place of its block: what thinking after it is bound to."""
        first, *rest = body["messages"]
        signatures = [block.get("signature") for block in _compactions(first)]
        if not signatures or signatures[0] not in self._made:
            return dict(body)
        return {**body, "messages": [*self._made[signatures[0]][1], *rest]}

    def problem(self, body: Mapping[str, Any], betas: str) -> dict[str, Any] | None:
        for code, message in self._problems(body, betas):
            error = {"type": "invalid_request_error", "message": message, "details": {"error_code": code}}
            return {"type": "error", "error": error}
        return None

    def _problems(self, body: Mapping[str, Any], betas: str) -> Iterator[tuple[str, str]]:
        messages = body["messages"]
        blocks = [(at, block) for at, message in enumerate(messages) for block in _compactions(message)]
        if (blocks or "compaction" in body) and self.BETA not in betas:
            yield "", "compaction: Extra inputs are not permitted"
        if len(blocks) > 1:
            yield "compaction_block_ambiguous", "a request may have one compaction block"
        for at, block in blocks:
            made, said = self._made.get(block.get("signature", ""), ({}, []))
            if at or len(messages[0]["content"]) > 1:
                yield "compaction_block_misplaced", "the compaction block must be alone in the first message"
            elif not made:
                yield "compaction_signature_invalid", "the block was not made here"
            elif made != block:
                yield "compaction_content_mismatch", "the block was changed"
            elif len(messages) > 1 and messages[1]["role"] in ("system", said[-1]["role"].replace("system", "user")):
                yield (
                    "compaction_block_misplaced",
                    "the first kept message must not have the role of the last summarized",
                )
            edits = (body.get("context_management") or {}).get("edits", ())
            if any(edit["type"].startswith("compact") for edit in edits):
                yield "", "context_management: not with a signed compaction block"
        if "compaction" not in body:
            return
        for name in ("stop_sequences", "context_management"):
            if name in body:
                yield "", f"{name}: not allowed with compaction"
        if "format" in body.get("output_config", {}) or body.get("tool_choice", {}).get("type") in ("any", "tool"):
            yield "", "output_config.format: not allowed with compaction"
        if body["max_tokens"] < 4_000:
            yield "", "max_tokens: too small for a summary"
        last = messages[-1]["content"]
        if isinstance(last, list) and any(block["type"] == "tool_use" for block in last):
            yield "compaction_incomplete_turn", "the last turn has calls without results"


def _compactions(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = message["content"] if isinstance(message["content"], list) else []
    return [block for block in content if block["type"] == "compaction" and "signature" in block]


def messages_problem(body: Mapping[str, Any], compactions: Compactions | None = None) -> dict[str, Any] | None:
    """What the Messages API finds wrong."""
    for message in _messages(body, body if compactions is None else compactions.whole(body)):
        return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
    return None


def _messages(body: Mapping[str, Any], whole: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a request; `whole` has what was summarized in place of its compaction block."""
    messages = body["messages"]
    more = len(whole["messages"]) - len(messages)
    blocks = [block for message in messages if isinstance(message["content"], list) for block in message["content"]]
    yield from (f"messages: {problem}" for problem in _repeated_ids(blocks, "tool_use", "id"))
    if _named_twice(body.get("tools", ())):
        yield "tools: Tool names must be unique."
    yield from _deferral(body)
    if '"advisor_tool_result"' in json.dumps(messages) and not any(
        tool.get("name") == "advisor" for tool in body.get("tools", ())
    ):
        yield "messages: advisor blocks require the advisor tool in the request"
    for tool in body.get("tools", ()):
        for example in tool.get("input_examples", ()):
            if problems := list(Draft202012Validator(tool["input_schema"]).iter_errors(example)):
                yield f"tools: an input example of '{tool['name']}' does not match input_schema: {problems[0].message}"
    if "temperature" in body:
        yield "temperature: Extra inputs are not permitted"
    if not messages or (messages[0]["role"] != "user" and not _compactions(messages[0])):
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
            yield from _thoughts(whole, index + more, blocks)
        yield from (f"messages.{index}: {problem}" for block in blocks for problem in _media(block))
    last = messages[-1] if messages else {"role": ""}
    if last["role"] == "assistant" and not _paused(last) and "compaction" not in body:
        yield "This model does not support assistant message prefill. The conversation must end with a user message."


def _deferral(body: Mapping[str, Any]) -> Iterator[str]:
    tools = body.get("tools", ())
    deferred = [tool for tool in tools if tool.get("defer_loading")]
    if deferred and not DEFERRED_TOOLS.match(body["model"]):
        yield "tools: defer_loading is not supported on this model"
    if deferred and len(deferred) == len(tools):
        yield "All tools have defer_loading set. At least one tool must be non-deferred."
    if any("cache_control" in tool for tool in deferred):
        yield "Tools with defer_loading cannot use prompt caching"
    names = {tool["name"] for tool in deferred}
    for name in referenced(body["messages"]):
        if name not in names:
            yield f"Tool reference '{name}' has no corresponding deferred tool definition"


def referenced(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """The tools that blocks of a conversation reveal, in the results of searches or of any other tool."""
    blocks = [block for message in messages if isinstance(message["content"], list) for block in message["content"]]
    results = [block["content"] for block in blocks if block["type"] in ("tool_result", "tool_search_tool_result")]
    found = [result.get("tool_references", ()) if isinstance(result, dict) else result for result in results]
    return [
        each["tool_name"]
        for result in found
        for each in (result if not isinstance(result, str) else ())
        if each["type"] == "tool_reference"
    ]


def unseen_call(body: Mapping[str, Any], names: Sequence[str], items: Sequence[Any] = ()) -> str | None:
    """A tool that the script calls although the model of this request cannot see it: deferred, and never revealed."""
    deferred = {tool["name"] for tool in body.get("tools", ()) if tool.get("defer_loading")}
    seen = {*referenced([*body["messages"], {"content": list(items)}])}
    for message in body["messages"]:
        for block in message["content"] if message["role"] == "system" and isinstance(message["content"], list) else ():
            if block["type"] == "tool_addition":
                seen.add(block["tool"].get("name") or block["tool"]["definition"]["name"])
    return next((name for name in names if name in deferred - seen), None)


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
    calls = [call for message in body["messages"] for call in message.get("tool_calls") or ()]
    yield from _repeated_ids(calls, "function", "id")
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
    grouped = [f"{tool['name']}:{each['name']}" for tool in tools for each in tool.get("tools", ())]
    names = Counter([*grouped, *(tool["name"] for tool in tools if "name" in tool and "tools" not in tool)])
    return [name for name, times in names.items() if times > 1]


def counting_problem(target: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a counting endpoint finds wrong: it takes a few of the fields alone."""
    extra = sorted(body.keys() - COUNTED[target.rpartition("/")[2].partition("?")[0]])
    return (
        {"error": {"type": "invalid_request_error", "message": f"unknown fields: {', '.join(extra)}"}}
        if extra
        else None
    )
