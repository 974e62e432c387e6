"""Chat servers that differ from OpenAI's in the ways that their documentation and their bug trackers describe."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tests.servers.chat_completions import ChatServer
from tests.servers.loopback import Answer, Received, Script
from tests.servers.turn import Turn

Body = dict[str, Any]


@dataclass(frozen=True)
class Quirks:
    """How a server differs: what it refuses, and how it writes messages, calls, ends and usage.

    `reasoning` are the fields that contain reasoning. `combines` is "no" if a request with tools and a schema is
    refused, "schema" if the schema then rules out calls. `usage` is where a stream has it.
    """

    name: str
    reasoning: tuple[str, ...] = ("reasoning",)
    call_id: Callable[[int, int], str | None] | None = None
    index: Callable[[int], int | None] = lambda number: number
    arguments: Callable[[str], Any] = str
    finish: Mapping[str, str | None] | None = None
    usage: str = "last"
    combines: str = "yes"
    refuses: tuple[tuple[str, str], ...] = ()
    unknown_fields: tuple[str, ...] = ()
    wants_reasoning: bool = False
    one_call: bool = False
    whole_calls: bool = False
    comment: bytes = b""
    ends: bool = True

    def __str__(self) -> str:
        return self.name


def _fields(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"{key}={item}" if isinstance(item, str) else key
            yield from _fields(item)
    elif isinstance(value, list):
        for item in value:
            yield from _fields(item)


class QuirkyServer(ChatServer):
    """A scripted chat server with these quirks."""

    def __init__(self, quirks: Quirks, script: Script) -> None:
        super().__init__(script)
        self._quirks = quirks
        self.refused = 0

    def answer(self, received: Received) -> Answer:
        if problem := self._problem(received.json):
            self.requests.append(received)
            self.refused += 1
            return Answer(400, json.dumps({"error": {"message": problem, "type": "invalid_request_error"}}).encode())
        return super().answer(received)

    def _problem(self, body: Body) -> str:
        quirks, present = self._quirks, set(_fields(body))
        for field, message in quirks.refuses:
            if field in present:
                return message
        if quirks.combines == "no" and body.get("tools") and body.get("response_format"):
            return "json mode cannot be combined with tool/function calling"
        for number, message in enumerate(body["messages"]):
            for field in quirks.unknown_fields:
                if field in message:
                    return f"'messages.{number}' : property '{field}' is unsupported"
            if quirks.wants_reasoning and message.get("tool_calls") and "reasoning_content" not in message:
                return "The `reasoning_content` in the thinking mode must be passed back to the API."
            for call in message.get("tool_calls") or ():
                json.loads(call["function"]["arguments"])
        return ""

    def render(self, turn: Turn, received: Received) -> Answer:
        quirks, body = self._quirks, received.json
        if quirks.combines == "schema" and body.get("tools") and body.get("response_format"):
            turn = replace(turn, text='{"score": 0, "why": ""}', calls=())
        if quirks.one_call:
            turn = replace(turn, calls=turn.calls[:1])
        answer = super().render(turn, received)
        if answer.status != 200:
            return answer
        if answer.events is None:
            whole = json.loads(answer.body)
            for choice in whole["choices"]:
                self._change(choice["message"])
                choice["finish_reason"] = self._finish(choice["finish_reason"])
            if quirks.usage == "none":
                del whole["usage"]
            elif quirks.usage == "groq":
                whole["x_groq"] = {"id": "req_1"}
            return replace(answer, body=json.dumps(whole).encode())
        chunks = [json.loads(event[6:]) for event in answer.events[:-1]]
        events = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in self._chunks(chunks)]
        end = (b"data: [DONE]\n\n",) if quirks.ends else ()
        return replace(answer, events=(*((quirks.comment, *events) if quirks.comment else events), *end))

    def _chunks(self, chunks: list[Body]) -> Iterator[Body]:
        quirks, usage = self._quirks, chunks[-1]["usage"]
        if quirks.whole_calls:
            chunks = _joined(chunks)
        for chunk in chunks[:-1]:
            for choice in chunk["choices"]:
                self._change(choice["delta"])
                choice["finish_reason"] = self._finish(choice["finish_reason"])
            if quirks.usage == "every":
                chunk["usage"] = usage
            yield chunk
        if quirks.usage in ("last", "every"):
            yield chunks[-1]
        elif quirks.usage == "groq":
            yield {**chunks[-1], "usage": None, "x_groq": {"usage": usage}}

    def _finish(self, reason: str | None) -> str | None:
        return (self._quirks.finish or {}).get(reason or "", reason)

    def _change(self, message: Body) -> None:
        quirks = self._quirks
        if thought := message.pop("reasoning_content", None):
            for field in quirks.reasoning:
                detail = [{"type": "reasoning.text", "text": thought, "index": 0, "format": "unknown"}]
                message[field] = detail if field == "reasoning_details" else thought
        for number, call in enumerate(message.get("tool_calls") or ()):
            place = call.get("index", number)
            if quirks.call_id is not None and "id" in call:
                given = quirks.call_id(len(self.requests), place)
                call.pop("id")
                call |= {} if given is None else {"id": given}
            if "index" in call:
                shown = quirks.index(place)
                call.pop("index")
                call |= {} if shown is None else {"index": shown}
            if call["function"].get("arguments"):
                call["function"]["arguments"] = quirks.arguments(call["function"]["arguments"])


def _joined(chunks: list[Body]) -> list[Body]:
    """Chunks in which each call is whole, instead of a name and then its arguments."""
    joined: list[Body] = []
    for chunk in chunks:
        calls = chunk["choices"][0]["delta"].get("tool_calls") if chunk["choices"] else None
        if calls and "id" not in calls[0]:
            joined[-1]["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"] = calls[0]["function"][
                "arguments"
            ]
        else:
            joined.append(chunk)
    return joined


VLLM = Quirks(
    "vllm",
    finish={"tool_calls": "stop"},
    usage="every",
    combines="schema",
    refuses=(("role=developer", "unexpected role"),),
)
OLLAMA = Quirks(
    "ollama", index=lambda number: 0, whole_calls=True, finish={"tool_calls": "stop"}, usage="none", combines="schema"
)
OLD_OLLAMA = Quirks(
    "old ollama",
    call_id=lambda request, number: None,
    index=lambda number: None,
    arguments=json.loads,
    whole_calls=True,
    usage="none",
    combines="schema",
)
OPENROUTER = Quirks("openrouter", reasoning=("reasoning", "reasoning_details"), comment=b": OPENROUTER PROCESSING\n\n")
DEEPSEEK = Quirks(
    "deepseek",
    reasoning=("reasoning_content",),
    refuses=(("type=json_schema", "This response_format type is unavailable now"),),
    wants_reasoning=True,
    comment=b": keep-alive\n\n",
)
GROQ = Quirks(
    "groq",
    usage="groq",
    combines="no",
    unknown_fields=("reasoning_content", "reasoning_details", "annotations"),
    call_id=lambda request, number: "call_same",
)
LLAMA_CPP = Quirks("llama.cpp", reasoning=("reasoning_content",), combines="schema")
BARE = Quirks(
    "bare",
    reasoning=("reasoning_content",),
    call_id=lambda request, number: "",
    arguments=json.loads,
    whole_calls=True,
    finish={"stop": None, "tool_calls": None},
    usage="none",
    one_call=True,
    refuses=(
        ("stream_options", "extra_forbidden: stream_options: Extra inputs are not permitted"),
        ("strict", "unknown field `strict`"),
        ("response_format", "response_format is not supported"),
    ),
    unknown_fields=("reasoning_content", "reasoning", "reasoning_details"),
)
ENDLESS = Quirks("no end mark", ends=False, finish={"tool_calls": "function_call", "stop": "eos"})
SERVERS = (VLLM, OLLAMA, OLD_OLLAMA, OPENROUTER, DEEPSEEK, GROQ, LLAMA_CPP, BARE, ENDLESS)
