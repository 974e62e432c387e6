"""The tool with which a model reads what a compaction has left out of its requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from weakincentives.prompt import Tool, ToolContext, ToolResult
from weakincentives.prompt.tool_names import RECALL_TOOL
from weakincentives.runtime.events import ContextWindow, Cut
from weakincentives.runtime.messages import Message
from weakincentives.runtime.window.excerpt import unit_starts
from weakincentives.runtime.window.quotation import quote

MAX_CHARACTERS = 20_000


@dataclass(frozen=True, slots=True)
class RecallParams:
    """The part of the conversation to return."""

    what: str = field(metadata={"description": "The id of a call, for its result, or the number of an exchange."})
    start: int = field(default=0, metadata={"description": "The character to begin with, if there was more."})


def labelled(messages: Iterable[Message]) -> Iterator[tuple[str, str]]:
    """Each message that says something, under who wrote it, ready to be quoted."""
    for message in messages:
        if message.role == "tool":
            yield f"result of {message.name} ({message.call_id})", message.text
            continue
        if message.text:
            # What the library says as the user, such as an earlier summary, is not the user's own.
            yield message.role if message.by_user or message.role != "user" else message.kind, message.text
        for call in message.tool_calls:
            yield f"{message.role} calls {call.name} ({call.id})", call.arguments


def _recall(params: RecallParams, *, context: ToolContext) -> ToolResult[str]:
    messages = context.session[Message].view()
    what = params.what.strip()
    start = max(params.start, 0)
    results = [message for message in messages if message.role == "tool" and message.call_id == what]
    if results:
        return ToolResult(_page(results[-1].text, what, start))
    exchange = _exchange(messages, what, context)
    if not exchange:
        problem = f"There is no call and no exchange {what!r}; pass an id or a number that the conversation names."
        return ToolResult(problem, success=False)
    # A result may hold what looks like another message, so each stands between tags that it cannot contain.
    tag, text = quote(labelled(exchange))
    heading = f"[Exchange {what}. Only lines with the tag {tag} begin and end a message, and say who wrote it.]"
    return ToolResult(f"{heading}\n\n{_page(text, what, start)}")


def _exchange(messages: Sequence[Message], number: str, context: ToolContext) -> list[Message]:
    """The messages of the exchange with this number; empty if there is none."""
    window = context.session[ContextWindow].latest() or ContextWindow()
    starts = unit_starts(messages, by_turns=(window.cut or Cut()).by_turns)
    if not number.isdecimal() or not 1 <= int(number) <= len(starts):
        return []
    ends = [*starts[1:], len(messages)]
    part = messages[starts[int(number) - 1] : ends[int(number) - 1]]
    return [message for message in part if not message.kind]


def _page(text: str, what: str, start: int) -> str:
    """As much of a text as one result may hold, and how to read on."""
    end = start + MAX_CHARACTERS
    if len(text) <= end:
        return text[start:]
    return f"{text[start:end]}\n\n[There is more: recall({what!r}, start={end}).]"


RECALL = Tool(
    name=RECALL_TOOL,
    description="Return a part of this conversation that was left out to save space, in full.",
    handler=_recall,
    params_type=RecallParams,
    read_only=True,
)
