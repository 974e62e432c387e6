"""The Messages server as the Claude Code CLI meets it: our tools by their MCP names, and what each request offered."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.servers.anthropic_messages import MessagesServer
from tests.servers.loopback import Answer, Received, Script
from tests.servers.turn import Call, Raw, Turn

STRUCTURED_OUTPUT = "StructuredOutput"
HANG = Turn("Too late.", delay=3600)


def say(text: str, **usage: int) -> Turn:
    """An answer that is only text."""
    return Turn(text, **usage)


def call(name: str, **arguments: Any) -> Turn:
    """An answer that calls one tool."""
    return Turn(calls=(Call(name, arguments),))


def refuse(status: int, kind: str = "api_error") -> Raw:
    """An error of the service."""
    return Raw(status, json.dumps({"type": "error", "error": {"type": kind, "message": "scripted"}}).encode())


class CliServer(MessagesServer):
    """Serves a script to the CLI. A name in small letters is one of our tools; others are the CLI's own.

    A text where the CLI wants a structured answer is given as one, as a model would.
    """

    def __init__(self, script: Script = ()) -> None:
        super().__init__(script)
        self._arrived = threading.Condition()

    def answer(self, received: Received) -> Answer:
        with self._arrived:
            answer = super().answer(received)
            self._arrived.notify_all()
        return answer

    def render(self, turn: Turn, received: Received) -> Answer:
        calls = tuple(replace(call, name=mcp_name(call.name)) for call in turn.calls)
        if not calls and STRUCTURED_OUTPUT in offered(received.json) and turn.text.startswith("{"):
            turn, calls = replace(turn, text=""), (Call(STRUCTURED_OUTPUT, turn.text),)
        return super().render(replace(turn, calls=calls), received)

    @property
    def offers(self) -> list[set[str]]:
        """The tools that each request offered, ours without their prefix."""
        return [{name.removeprefix("mcp__wink__") for name in offered(request.json)} for request in self.requests]

    def results(self, index: int = -1) -> list[dict[str, Any]]:
        """The tool results of the last turn of one request."""
        for message in reversed(self.requests[index].json["messages"]):
            blocks = message["content"] if isinstance(message["content"], list) else []
            if found := [block for block in blocks if block["type"] == "tool_result"]:
                return found
        return []

    def wait_for_requests(self, count: int, timeout: float = 60) -> bool:
        """Block until so many requests have arrived."""
        with self._arrived:
            return self._arrived.wait_for(lambda: len(self.requests) >= count, timeout)


def mcp_name(name: str) -> str:
    return f"mcp__wink__{name}" if name.islower() else name


def offered(body: Mapping[str, Any]) -> tuple[str, ...]:
    """The tools of a request: declared ones, then those added by a message in mid-conversation."""
    names = [tool["name"] for tool in body.get("tools", ()) if not tool.get("defer_loading")]
    for message in body["messages"]:
        for block in message["content"] if isinstance(message["content"], list) else ():
            if block["type"] == "tool_addition":
                names.append(block["tool"].get("name") or block["tool"]["definition"]["name"])
    return tuple(names)
