"""A conversation as plain chat messages, which any model understands whatever its template knows of tools."""

from __future__ import annotations

from weakincentives.runtime import Message, ModelRequest

_SYSTEM = "You are a helpful assistant. Answer briefly."


def chat(request: ModelRequest) -> list[dict[str, str]]:
    """The messages of a run; what one side says in a row is one message, since chat templates insist on turns."""
    messages = [{"role": "system", "content": _SYSTEM}]
    for message in request.messages:
        role, text = ("assistant" if message.role == "assistant" else "user"), _text(message)
        if messages[-1]["role"] == role:
            messages[-1]["content"] += f"\n\n{text}"
        elif text:
            messages.append({"role": role, "content": text})
    return messages


def _text(message: Message) -> str:
    if message.role == "tool":
        return f"{message.name} {'returned' if message.success else 'failed'}:\n{message.text}"
    return "\n".join([message.text, *(f"{call.name}({call.arguments})" for call in message.tool_calls)]).strip()
