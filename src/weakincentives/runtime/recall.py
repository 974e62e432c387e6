"""The tool with which a model reads what a compaction has left out of its requests."""

from __future__ import annotations

from dataclasses import dataclass, field

from weakincentives.prompt import Tool, ToolContext, ToolResult
from weakincentives.runtime.events import ContextWindow, Cut
from weakincentives.runtime.messages import Message
from weakincentives.runtime.transcript import unit_starts

MAX_CHARACTERS = 20_000


@dataclass(frozen=True, slots=True)
class RecallParams:
    """The part of the conversation to return."""

    what: str = field(metadata={"description": "The id of a call, for its result, or the number of an exchange."})
    start: int = field(default=0, metadata={"description": "The character to begin with, if there was more."})


def described(message: Message) -> str:
    """A message as plain text."""
    if message.role == "tool":
        return f"result of {message.name} ({message.call_id}): {message.text}"
    calls = [f"{call.name}({call.arguments}) ({call.id})" for call in message.tool_calls]
    said = [message.text] if message.text else []
    return f"{message.role}: {', '.join(said + calls)}" if said or calls else ""


def _recall(params: RecallParams, *, context: ToolContext) -> ToolResult[str]:
    session = context.session
    messages, what = session[Message].view(), params.what.strip()
    results = [each for each in messages if each.role == "tool" and each.call_id == what]
    text = results[-1].text if results else ""
    if not results and what.isdecimal():
        cut = (session[ContextWindow].latest() or ContextWindow()).cut or Cut()
        starts = unit_starts(messages, by_turns=cut.by_turns)
        number = int(what)
        if 1 <= number <= len(starts):
            stop = starts[number] if number < len(starts) else len(messages)
            said = (each for each in messages[starts[number - 1] : stop] if not each.kind)
            text = "\n\n".join(filter(None, map(described, said)))
    if not text:
        problem = f"There is no call and no exchange {what!r}; pass an id or a number that the conversation names."
        return ToolResult(problem, success=False)
    rest = text[max(params.start, 0) :]
    if len(rest) <= MAX_CHARACTERS:
        return ToolResult(rest)
    more = f"[There is more: recall({what!r}, start={max(params.start, 0) + MAX_CHARACTERS}).]"
    return ToolResult(f"{rest[:MAX_CHARACTERS]}\n\n{more}")


RECALL = Tool(
    name="recall",
    description="Return a part of this conversation that was left out to save space, in full.",
    handler=_recall,
    params_type=RecallParams,
    read_only=True,
)
