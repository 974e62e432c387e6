"""A scripted server that speaks OpenAI's Responses API."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.servers.loopback import Answer, Loopback, Received, Script, event
from tests.servers.rules import CIPHER, compact_problem, counting_problem, namespaces_of, responses_problem
from tests.servers.turn import Call, Turn, words


class ResponsesServer(Loopback):
    """Answers `POST /v1/responses` and its counting of tokens; refuses what the vendor refuses."""

    def __init__(self, script: Script = (), **options: Any) -> None:
        super().__init__(script, **options)
        self._issued: dict[str, str] = {}
        self.compactions: list[dict[str, Any]] = []

    def render(self, turn: Turn, received: Received) -> Answer:
        if "input_tokens" in received.target:
            refusal = counting_problem(received.target, received.json)
            body = refusal or {"object": "response.input_tokens", "input_tokens": turn.input_tokens}
            return Answer(400 if refusal else 200, json.dumps(body).encode())
        refusal = responses_problem(received.json, self._issued, self.compactions)
        if received.target.endswith("/compact"):
            refusal = compact_problem(received.json) or refusal
        if self.window is not None and self.size(received) > self.window:
            problem = "Your input exceeds the context window of this model. Please adjust your input and try again."
            refusal = {"error": {"message": problem, "type": "invalid_request_error", "param": "input"}}
            refusal["error"]["code"] = "context_length_exceeded"
        if refusal:
            return self.refuse(refusal)
        if received.target.endswith("/compact"):
            return Answer(body=json.dumps(self._compaction(turn, received)).encode())
        number = len(self.requests)
        response = self._response(turn, number, received.json)
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

    def _compaction(self, turn: Turn, received: Received) -> dict[str, Any]:
        """The window after a compaction: the user's last messages, and an item that only the vendor can read."""
        number = len(self.requests)
        said = [item for item in received.json["input"] if item.get("role") == "user"][-2:]
        texts = [item["content"] if isinstance(item["content"], str) else item["content"][0]["text"] for item in said]
        kept = [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]} for text in texts
        ]
        item = {"type": "compaction", "id": f"cmp_{number}", "encrypted_content": f"compacted:{id(self)}:{number}"}
        output = [*kept, item] if turn.stop != "empty" else kept
        self.compactions.append(item)
        usage = {"input_tokens": self.size(received), "output_tokens": 60, "total_tokens": self.size(received) + 60}
        return {"id": f"cmp_{number}", "object": "response.compaction", "output": output, "usage": usage}

    def _response(self, turn: Turn, number: int, asked: Mapping[str, Any]) -> dict[str, Any]:
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
        spaces, searches = namespaces_of(asked), any(tool.get("execution") for tool in asked.get("tools", ()))
        for index, call in enumerate(turn.calls):
            if call.name == "search_sections" and searches:
                output.append(_search(call, number, index))
                continue
            output.append(
                {
                    "type": "function_call",
                    "id": f"fc_{number}_{index}",
                    "call_id": call.id or f"call_{number}_{index}",
                    "name": call.name,
                    **({"namespace": spaces[call.name]} if call.name in spaces else {}),
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


def _search(call: Call, number: int, index: int) -> dict[str, Any]:
    """A search that the client is to execute."""
    return {
        "type": "tool_search_call",
        "id": f"tsc_{number}_{index}",
        "call_id": call.id or f"call_{number}_{index}",
        "execution": "client",
        "status": "completed",
        "arguments": json.loads(call.arguments) if isinstance(call.arguments, str) else call.arguments,
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
