"""A scripted server that speaks OpenAI's Responses API."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.servers.loopback import Answer, Loopback, Received, Script, event
from tests.servers.rules import CIPHER, counting_problem, responses_problem
from tests.servers.turn import Turn, words


class ResponsesServer(Loopback):
    """Answers `POST /v1/responses` and its counting of tokens; refuses what the vendor refuses."""

    def __init__(self, script: Script = (), **options: Any) -> None:
        super().__init__(script, **options)
        self._issued: dict[str, str] = {}

    def render(self, turn: Turn, received: Received) -> Answer:
        if "input_tokens" in received.target:
            refusal = counting_problem(received.target, received.json)
            body = refusal or {"object": "response.input_tokens", "input_tokens": turn.input_tokens}
            return Answer(400 if refusal else 200, json.dumps(body).encode())
        if refusal := responses_problem(received.json, self._issued):
            return Answer(400, json.dumps(refusal).encode())
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
        made = [item for item in response["output"] if item["type"] in ("function_call", "reasoning")]
        told = [*turn.items, *(item for item in made if item not in turn.items and item["type"] == "reasoning")]
        events[1:1] = [event(kind, {"type": kind, **fields}) for item in told for kind, fields in _told(item)]
        calls = [item for item in made if item["type"] == "function_call" and item not in turn.items]
        events += [event(kind, {"type": kind, **fields}) for item in calls for kind, fields in _told(item)]
        closing = f"response.{response['status']}"
        events.append(event(closing, {"type": closing, "response": response}))
        return Answer(events=tuple(events), delay=turn.delay, cut_after=turn.cut_after)

    def _response(self, turn: Turn, number: int) -> dict[str, Any]:
        output: list[Any] = list(turn.items)
        if turn.reasoning:
            cipher, summary = f"{CIPHER}{id(self)}:{number}", [{"type": "summary_text", "text": turn.reasoning}]
            thought = {"type": "reasoning", "id": f"rs_{number}", "summary": summary, "encrypted_content": cipher}
            output.append(thought)
            self._issued[cipher] = f"rs_{number}>" + (f"msg_{number}" if turn.text else f"fc_{number}_0")
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
    for piece in words(item["arguments"]) if kind == "function_call" else ():
        yield "response.function_call_arguments.delta", {"output_index": 0, "item_id": item["id"], "delta": piece}
    for index, part in enumerate(item["summary"] if kind == "reasoning" else ()):
        for piece in words(part["text"]):
            shown = {"item_id": item["id"], "summary_index": index, "delta": piece}
            yield "response.reasoning_summary_text.delta", {"output_index": 0, **shown}
    yield "response.output_item.done", {"output_index": 0, "item": item}
