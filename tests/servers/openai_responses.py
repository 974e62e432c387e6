"""A scripted server that speaks OpenAI's Responses API."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.servers.loopback import Answer, Loopback, Received, event
from tests.servers.turn import Turn, words


class ResponsesServer(Loopback):
    """Answers `POST /v1/responses`."""

    def render(self, turn: Turn, received: Received) -> Answer:
        number = len(self.requests)
        response = self._response(turn, number)
        if not received.json.get("stream"):
            return Answer(body=json.dumps(response).encode(), delay=turn.delay, cut=turn.cut_after is not None)
        events = [event("response.created", {"type": "response.created", "response": {**response, "output": []}})]
        events += [
            event(
                "response.output_text.delta",
                {"type": "response.output_text.delta", "item_id": "msg", "output_index": 0, "delta": piece},
            )
            for piece in (words(turn.text) if turn.text and turn.stop != "refusal" else ())
        ]
        events[1:1] = [event(kind, {"type": kind, **fields}) for item in turn.items for kind, fields in _told(item)]
        closing = f"response.{response['status']}"
        events.append(event(closing, {"type": closing, "response": response}))
        return Answer(events=tuple(events), delay=turn.delay, cut_after=turn.cut_after)

    def _response(self, turn: Turn, number: int) -> dict[str, Any]:
        output: list[Any] = list(turn.items)
        if turn.text:
            part: dict[str, Any] = {"type": "output_text", "text": turn.text, "annotations": []}
            if turn.stop == "refusal":
                part = {"type": "refusal", "refusal": turn.text}
            output.append(
                {
                    "type": "message",
                    "id": f"msg_{number}",
                    "role": "assistant",
                    "status": "completed",
                    "content": [part],
                }
            )
        for index, call in enumerate(turn.calls):
            output.append(
                {
                    "type": "function_call",
                    "id": f"fc_{number}_{index}",
                    "call_id": call.id or f"call_{number}_{index}",
                    "name": call.name,
                    "arguments": call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments),
                    "status": "completed",
                }
            )
        reasons = {"length": "max_output_tokens", "content_filter": "content_filter"}
        return {
            "id": f"resp_{number}",
            "object": "response",
            "created_at": 1_790_000_000,
            "model": "gpt-5.6",
            "status": "incomplete" if turn.stop in reasons else "completed",
            "incomplete_details": {"reason": reasons[turn.stop]} if turn.stop in reasons else None,
            "error": None,
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": {
                "input_tokens": turn.input_tokens,
                "input_tokens_details": {"cached_tokens": turn.cached_tokens},
                "output_tokens": turn.output_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": turn.input_tokens + turn.output_tokens,
            },
        }


def _told(item: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What a stream tells of an item before the response is whole: a call's progress, a text and what it cites."""
    kind = item["type"]
    yield "response.output_item.added", {"output_index": 0, "item": item}
    if kind.endswith("_call") and kind != "function_call":
        yield f"response.{kind}.in_progress", {"output_index": 0, "item_id": item.get("id", "")}
        yield f"response.{kind}.completed", {"output_index": 0, "item_id": item.get("id", "")}
    for part in item.get("content", ()) if kind == "message" else ():
        if part.get("type") == "output_text":
            for piece in words(part["text"]):
                yield "response.output_text.delta", {"output_index": 0, "delta": piece}
            for number, note in enumerate(part.get("annotations", ())):
                yield "response.output_text.annotation.added", {"annotation_index": number, "annotation": note}
    yield "response.output_item.done", {"output_index": 0, "item": item}
