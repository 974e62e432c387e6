"""A conversation as plain chat messages, which any model understands whatever its template knows of tools."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from typing import Any

from weakincentives.adapters.local.outlook import OPENING_TOOLS, Choice, Outlook
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


def with_hint(messages: list[dict[str, str]], outlook: Outlook, closest: Sequence[Choice]) -> list[dict[str, str]]:
    """The messages with the next step at their end, where small models heed it most: what is asked, what to open."""
    asked = outlook.question if len(outlook.question) <= _MAX_REPEATED else "Do what is asked above."
    if closest and not outlook.opened:
        closed = ", ".join(f"{choice.key} ({_short(choice)})" for choice in closest)
        hint = f"{asked}\n\nSections, the closest first: {closed}. Which one do you read to answer this?"
    else:
        fresh = [
            tool for tool in outlook.tools if tool.name not in (*OPENING_TOOLS, *(name for name, _ in outlook.calls))
        ]
        tools = ", ".join(f"{tool.name} ({tool.description})" for tool in fresh)
        look = f"Tools: {tools}. Call one if it finds what is asked; else answer" if tools else "Answer this"
        hint = f"{asked}\n\n{look} from what you have read."
    last = messages[-1]
    return [*messages[:-1], {**last, "content": f"{last['content']}\n\n{hint}"}]


def _short(choice: Choice) -> str:
    return textwrap.shorten(f"{choice.title}: {choice.summary}", _MAX_SUMMARY, placeholder="")


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
    properties = tool.strict_schema["properties"]
    names = (f"{name} ({node['description']})" if "description" in node else name for name, node in properties.items())
    return ", ".join(names) or "none"
