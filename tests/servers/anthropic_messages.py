"""A scripted server that speaks Anthropic's Messages API."""

from __future__ import annotations

import json
from typing import Any

from tests.servers.loopback import Answer, Loopback, Received, Script, event
from tests.servers.rules import Compactions, counting_problem, messages_problem, sign, unseen_call
from tests.servers.turn import Turn, words

_STOPS = {"length": "max_tokens", "refusal": "refusal", "content_filter": "refusal", "pause": "pause_turn"}


class MessagesServer(Loopback):
    """Answers `POST /v1/messages` and its counting of tokens; refuses what the vendor refuses."""

    def __init__(self, script: Script = (), **options: Any) -> None:
        super().__init__(script, **options)
        self.compactions = Compactions()

    def render(self, turn: Turn, received: Received) -> Answer:
        if "count_tokens" in received.target:
            refusal = counting_problem(received.target, received.json)
            body = refusal or {"input_tokens": turn.input_tokens}
            return Answer(400 if refusal else 200, json.dumps(body).encode())
        betas = received.headers.get("anthropic-beta", "")
        refusal = self.compactions.problem(received.json, betas) or messages_problem(received.json, self.compactions)
        if self.window is not None and self.size(received) > self.window:
            problem = f"prompt is too long: {self.size(received)} tokens > {self.window} maximum"
            refusal = {"type": "error", "error": {"type": "invalid_request_error", "message": problem}}
        if refusal:
            return self.refuse(refusal)
        if "compaction" in received.json:
            return Answer(body=json.dumps(self._compaction(turn, received, betas)).encode())
        whole = self.compactions.whole(received.json)
        if name := unseen_call(whole, [call.name for call in turn.calls], turn.items):
            error = {"type": "error", "error": {"message": f"the script calls '{name}', which the model cannot see"}}
            return Answer(400, json.dumps(error).encode())
        message = self._message(turn, len(self.requests), whole)
        if not received.json.get("stream"):
            return Answer(body=json.dumps(message).encode(), delay=turn.delay, cut=turn.cut_after is not None)
        return Answer(events=tuple(_events(message)), delay=turn.delay, cut_after=turn.cut_after)

    def _compaction(self, turn: Turn, received: Received, betas: str) -> dict[str, Any]:
        """A summary in place of an answer, with its costs beside the usual ones."""
        spent = {"type": "compaction", "input_tokens": self.size(received), "output_tokens": turn.output_tokens}
        empty = turn.stop == "empty"
        return {
            "id": f"msg_{len(self.requests)}",
            "type": "message",
            "role": "assistant",
            "model": "claude-opus-5",
            "content": [] if empty else [self.compactions.make(turn.text, received.json, betas)],
            "stop_reason": "max_tokens" if empty else "compaction",
            "usage": {"input_tokens": 0, "output_tokens": 0, "iterations": [spent]},
        }

    def _message(self, turn: Turn, number: int, asked: dict[str, Any]) -> dict[str, Any]:
        content: list[Any] = list(turn.items)
        if turn.reasoning:
            content.append({"type": "thinking", "thinking": turn.reasoning, "signature": sign(asked)})
        if turn.text:
            content.append({"type": "text", "text": turn.text})
        for index, call in enumerate(turn.calls):
            arguments = json.loads(call.arguments) if isinstance(call.arguments, str) else call.arguments
            identity = call.id or f"toolu_{number}_{index}"
            content.append({"type": "tool_use", "id": identity, "name": call.name, "input": arguments})
        return {
            "id": f"msg_{number}",
            "type": "message",
            "role": "assistant",
            "model": "claude-opus-5",
            "content": content,
            "stop_reason": _STOPS.get(turn.stop, "tool_use" if turn.calls else "end_turn"),
            "stop_sequence": None,
            "usage": {
                "input_tokens": turn.input_tokens - turn.cached_tokens,
                "cache_read_input_tokens": turn.cached_tokens,
                "cache_creation_input_tokens": 0,
                "output_tokens": turn.output_tokens,
            },
        }


def _events(message: dict[str, Any]) -> list[bytes]:
    opened = {**message, "content": [], "stop_reason": None, "usage": {**message["usage"], "output_tokens": 1}}
    events = [event("message_start", {"type": "message_start", "message": opened})]
    for index, block in enumerate(message["content"]):
        start, deltas = block, []
        if block["type"] == "text":
            start = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in words(block["text"])]
            deltas += [{"type": "citations_delta", "citation": one} for one in block.get("citations") or ()]
        elif block["type"] in ("tool_use", "server_tool_use"):
            start = {**block, "input": {}}
            text = json.dumps(block["input"])
            halves = (text[: len(text) // 2], text[len(text) // 2 :])
            deltas = [{"type": "input_json_delta", "partial_json": half} for half in halves]
        elif block["type"] == "thinking":
            start = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [
                {"type": "thinking_delta", "thinking": block["thinking"]},
                {"type": "signature_delta", "signature": block["signature"]},
            ]
        events.append(
            event("content_block_start", {"type": "content_block_start", "index": index, "content_block": start})
        )
        events += [
            event("content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta})
            for delta in deltas
        ]
        events.append(event("content_block_stop", {"type": "content_block_stop", "index": index}))
    ended = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    usage = {"output_tokens": message["usage"]["output_tokens"]}
    events.append(event("message_delta", {"type": "message_delta", "delta": ended, "usage": usage}))
    events.append(event("message_stop", {"type": "message_stop"}))
    return events
