"""A conversation as plain chat messages, which any model understands whatever its template knows of tools."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from weakincentives.prompt import Tool
from weakincentives.runtime import Message, ModelRequest

_RULES = (
    "You work with tools. What you do not know from this conversation you look up before you answer: summarized "
    'sections are opened by their key. Reply with JSON only: {"tool": name, "arguments": {...}} to call a tool, or '
    '{"answer": ...} to answer.'
)
_MAX_REPEATED = 600
_MAX_SUMMARY = 80
_PLAIN = "You are a helpful assistant. Answer briefly."


def chat(request: ModelRequest) -> list[dict[str, str]]:
    """The messages to send; it only grows at its end while a run goes on, so the model's state is kept."""
    initial = request.tools[: request.initial_tools]
    known = {tool.name: tool for tool in request.tools}
    system = f"{_RULES}\n\nTools:\n{_listed(initial)}" if request.tools else _PLAIN
    messages = [{"role": "system", "content": system}]
    for message in request.messages:
        role, text = _said(message, known)
        if messages[-1]["role"] == role:
            messages[-1]["content"] += f"\n\n{text}"
        else:
            messages.append({"role": role, "content": text})
    return messages


def _said(message: Message, known: dict[str, Tool[Any, Any]]) -> tuple[str, str]:
    if message.role == "assistant":
        if not message.tool_calls:
            return "assistant", message.text
        calls = (f'{{"tool": {json.dumps(call.name)}, "arguments": {call.arguments}}}' for call in message.tool_calls)
        return "assistant", "\n".join(calls)
    if message.role == "tool":
        return "user", f"{message.name} {'returned' if message.success else 'failed'}:\n{message.text}"
    if message.role == "tools_added":
        return "user", f"New tools:\n{_listed([known[name] for name in message.tools if name in known])}"
    if message.role == "tools_removed":
        return "user", f"No longer available: {', '.join(message.tools)}."
    return "user", message.text


def _listed(tools: Sequence[Tool[Any, Any]]) -> str:
    return "\n".join(f"- {tool.name}: {tool.description} Arguments: {_arguments(tool)}" for tool in tools)


def _arguments(tool: Tool[Any, Any]) -> str:
    properties = tool.schema["properties"]
    names = (f"{name} ({node['description']})" if "description" in node else name for name, node in properties.items())
    return ", ".join(names) or "none"
