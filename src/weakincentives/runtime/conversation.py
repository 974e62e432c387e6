"""Reading a conversation from its end."""

from __future__ import annotations

from collections.abc import Sequence

from weakincentives.runtime.messages import Message, ToolCall


def unanswered_calls(messages: Sequence[Message]) -> tuple[ToolCall, ...]:
    """Calls of the last turn whose results are not in the conversation yet."""
    answered: set[str] = set()
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if message.role == "assistant":
            return tuple(call for call in message.tool_calls if call.id not in answered)
        answered.add(message.call_id)
    return ()


def text_before_pauses(messages: Sequence[Message]) -> str:
    """What the model had said of its answer (the last message) when the provider paused it."""
    texts: list[str] = []
    for index in range(len(messages) - 2, -1, -1):
        if not messages[index].paused:
            break
        texts.append(messages[index].text)
    return "".join(reversed(texts))
