"""An agent with durable conversations: a clerk books each message in a ledger outside, then answers word by word.

`wink worker bench.clerk:chats` answers them. Every booking is appended to the file `ledger` in the folder
`WINK_CLERK`, with its idempotency key. The file `hold` there names a message whose answer stops after each word until
the file is gone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from weakincentives import MarkdownSection, Prompt, PromptTemplate, ToolContext, tool
from weakincentives.durable import DurableConversations
from weakincentives.runtime import Channel, ModelReply, ModelRequest, ProviderAdapter, TextDelta, ToolCall

CONTROL = Path(os.environ.get("WINK_CLERK", "."))
LATENCY = float(os.environ.get("WINK_CLERK_LATENCY", "0"))


@tool
def book(text: str, *, context: ToolContext) -> str:
    """Book a message."""
    with open(CONTROL / "ledger", "ab", buffering=0) as ledger:
        ledger.write(f"{context.idempotency_key} {text}\n".encode())
    return f"booked {text}"


def answer_to(text: str) -> str:
    return f"I have booked {text} as you asked."


class Clerk(Channel):
    """Calls `book` with the user's message, then answers."""

    def call(self, request: ModelRequest) -> ModelReply:
        last = request.messages[-1]
        if last.role != "tool":
            made = ToolCall(f"call-{len(request.messages)}", "book", f'{{"text": "{last.text}"}}')
            return ModelReply(tool_calls=(made,), stop_reason="tool_calls")
        return ModelReply(answer_to(last.text.removeprefix("booked ")))

    def stream(self, request: ModelRequest) -> Iterator[str | TextDelta | ModelReply]:
        reply = self.call(request)
        for word in reply.text.split():
            yield f"{word} " if not reply.text.endswith(word) else word
            time.sleep(LATENCY)
            with suppress(FileNotFoundError):
                while (CONTROL / "hold").read_text() in reply.text:
                    (CONTROL / "held").write_text(str(os.getpid()))
                    time.sleep(0.01)
        yield reply


class ClerkAdapter(ProviderAdapter):
    name = "clerk"

    def channel(self) -> Channel:
        return Clerk()


DESK = MarkdownSection(title="Desk", key="desk", template="Book every message, then answer.", tools=[book])
TEMPLATE = PromptTemplate[None](ns="tests", key="clerk", sections=[DESK])

ATTEMPTS = int(os.environ.get("WINK_CLERK_ATTEMPTS", "5"))
chats = DurableConversations[None](
    "clerk", lambda conversation: Prompt(TEMPLATE), ClerkAdapter("clerk"), max_attempts=ATTEMPTS
)
