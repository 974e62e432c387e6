"""A scripted server that speaks OpenAI's chat format, directly and through LiteLLM."""

from __future__ import annotations

import json
from typing import Any

from tests.servers.loopback import Answer, Loopback, Received
from tests.servers.rules import chat_problem
from tests.servers.turn import Turn, words

_STOPS = {"length": "length", "content_filter": "content_filter"}


class ChatServer(Loopback):
    """Answers `POST /chat/completions`; the items of a turn are the annotations of its text."""

    def render(self, turn: Turn, received: Received) -> Answer:
        refusal = chat_problem(received.json)
        if self.window is not None and self.size(received) > self.window:
            problem = f"This model's maximum context length is {self.window} tokens. Please reduce the messages."
            refusal = {
                "error": {"message": problem, "type": "invalid_request_error", "code": "context_length_exceeded"}
            }
        if refusal:
            return self.refuse(refusal)
        number = len(self.requests)
        usage = {
            "prompt_tokens": turn.input_tokens,
            "completion_tokens": turn.output_tokens,
            "total_tokens": turn.input_tokens + turn.output_tokens,
            "prompt_tokens_details": {"cached_tokens": turn.cached_tokens},
        }
        head = {"id": f"chatcmpl-{number}", "created": 1_790_000_000, "model": "scripted"}
        finish = _STOPS.get(turn.stop, "tool_calls" if turn.calls else "stop")
        calls = [
            {
                "id": call.id or f"call_{number}_{index}",
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments),
                },
            }
            for index, call in enumerate(turn.calls)
        ]
        if not received.json.get("stream"):
            message: dict[str, Any] = {"role": "assistant", "content": turn.text or None}
            if turn.stop == "refusal":
                message = {"role": "assistant", "content": None, "refusal": turn.text}
            if turn.reasoning:
                message["reasoning_content"] = turn.reasoning
            if calls:
                message["tool_calls"] = calls
            if turn.items:
                message["annotations"] = list(turn.items)
            choices = [] if turn.stop == "empty" else [{"index": 0, "message": message, "finish_reason": finish}]
            body = {**head, "object": "chat.completion", "choices": choices, "usage": usage}
            return Answer(body=json.dumps(body).encode(), delay=turn.delay, cut=turn.cut_after is not None)
        field = "refusal" if turn.stop == "refusal" else "content"
        deltas: list[dict[str, Any]] = [{"role": "assistant", field: piece} for piece in words(turn.text) if piece]
        if turn.reasoning:
            deltas[:0] = [{"role": "assistant", "reasoning_content": piece} for piece in words(turn.reasoning)]
        for index, call in enumerate(calls):
            function: dict[str, Any] = call["function"]  # type: ignore[assignment]
            deltas.append({"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]})
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": function["arguments"]}}]})
        if turn.items:
            deltas.append({"annotations": list(turn.items)})
        chunk = {**head, "object": "chat.completion.chunk"}
        chunks = [{**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        chunks.append({**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        chunks.append({**chunk, "choices": [], "usage": usage})
        events = [f"data: {json.dumps(one)}\n\n".encode() for one in chunks] + [b"data: [DONE]\n\n"]
        return Answer(events=tuple(events), delay=turn.delay, cut_after=turn.cut_after)
