"""The part of a run that a page may see: the events of a stream, or of stored messages, without anything internal.

The encoders of the protocols get these events alone. Texts of sections and results, errors, and the reasons of restarts
never reach them; of a result they get what `show` lets through.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from weakincentives.content import Part, Text
from weakincentives.errors import OutputParseError, SerdeError
from weakincentives.prompt import StructuredOutputConfig, parse_structured_output
from weakincentives.runtime import (
    ApprovalNeeded,
    ArgumentsDelta,
    Completed,
    Conversation,
    Message,
    PartialOutput,
    ReasoningDelta,
    Restarted,
    SectionOpened,
    SectionsOpened,
    StreamEvent,
    TextDelta,
    ToolEmitted,
    ToolEnded,
    ToolInvoked,
    ToolStarted,
)
from weakincentives.runtime.spi import CORRECTION
from weakincentives.serde import dump

logger = logging.getLogger("weakincentives.ui")

FAILED = "This message could not be answered. Please try again."
CALL_FAILED = "The tool call failed."

Show = Callable[[ToolEnded], object]


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A tool call has ended; `output` is what the page sees of its result, None if nothing."""

    call_id: str
    name: str
    success: bool
    output: Any = None


@dataclass(frozen=True, slots=True)
class WrittenAgain:
    """The text so far is not the answer; the model writes another."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The message is answered."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The exchange failed; the sentence is for anyone to read."""

    sentence: str = FAILED


PageEvent = (
    TextDelta
    | ReasoningDelta
    | ArgumentsDelta
    | ToolStarted
    | ToolEmitted
    | CallEnded
    | SectionOpened
    | PartialOutput
    | WrittenAgain
    | Finished
    | Failed
)


class PageView:
    """Turns the events of a stream into those for a page.

    A typed answer is sent as data. Its text is therefore held back, until a tool call shows that it is no answer.
    """

    def __init__(self, chat: Conversation[Any], show: Show | None) -> None:
        self._typed = typed_output(chat) is not None
        self._show = show
        self._held: list[str] = []

    def events(self, event: StreamEvent[Any] | Failed) -> Iterator[PageEvent]:
        match event:
            case TextDelta(text) if self._typed:
                self._held.append(text)
            case ArgumentsDelta() | ToolStarted():
                if self._held:
                    yield TextDelta("".join(self._held))
                    self._held.clear()
                yield event
            case ApprovalNeeded():
                pass
            case ToolEnded():
                yield CallEnded(event.call_id, event.name, event.success, shown(event, self._show))
            case Restarted():
                self._held.clear()
                yield WrittenAgain()
            case Completed():
                yield Finished()
            case _:
                yield event


def check_show(show: Show | None) -> Show | None:
    if show is None or callable(show):
        return show
    raise TypeError(
        f"show must be a function of a ToolEnded, got {show!r}; write show=lambda ended: True to show every result"
    )


def shown(ended: ToolEnded, show: Show | None) -> Any:
    """The part of a result that a page sees: none of a failed call, else what `show` returns; True is the text."""
    if not ended.success or show is None:
        return None
    try:
        found = show(ended)
        return ended.message if found is True else None if found is False else dump(found)
    except (Exception, SystemExit) as error:
        logger.error("show failed for a result of tool %r, so the page does not get it", ended.name, exc_info=error)
        return None


def typed_output(chat: Conversation[Any]) -> StructuredOutputConfig | None:
    """The type of a conversation's answers, unless they are text."""
    declared = chat.prompt.template.structured_output
    return None if declared is None or declared.container == "text" else declared


@dataclass(frozen=True, slots=True)
class PastExchange:
    """A user message, with the id by which the page knows it, and the events of its answer."""

    key: str
    content: tuple[Part, ...]
    events: tuple[PageEvent, ...]


def exchanges(chat: Conversation[Any], show: Show | None = None) -> list[PastExchange]:
    """The exchanges so far, as a page would have received them, but for data that tools emitted."""
    messages, output = chat.messages, typed_output(chat)
    calls = {event.call_id: event for event in chat.session[ToolInvoked].view() if not event.parent_run_id}
    starts = [at for at, message in enumerate(messages) if message.by_user]
    return [
        PastExchange(
            message_id(chat, number, messages[start]),
            messages[start].parts or (Text(messages[start].text),),
            tuple(_answer_events(messages[start + 1 : end], output, calls, show)),
        )
        for number, (start, end) in enumerate(zip(starts, [*starts[1:], len(messages)], strict=True))
    ]


def message_id(chat: Conversation[Any], number: int, message: Message) -> str:
    """The page's own id of a user message, or one derived from its place for messages that came without."""
    return message.key or f"{chat.conversation_id}-{number}"


def _answer_events(
    answer: Sequence[Message],
    output: StructuredOutputConfig | None,
    calls: Mapping[str, ToolInvoked],
    show: Show | None,
) -> Iterator[PageEvent]:
    last = max((at for at, message in enumerate(answer) if message.role in ("assistant", "tool")), default=-1)
    for at, message in enumerate(answer):
        if message.role == "assistant":
            yield from _reply_events(message, output, last=at == last)
        elif message.role == "tool":
            ended = ToolEnded(message.call_id, message.name, message.success, message.text)
            yield CallEnded(ended.call_id, ended.name, ended.success, shown(ended, show))
            yield from _openings(calls.get(message.call_id), answer[at + 1 :])
        elif message.kind == CORRECTION:
            yield WrittenAgain()
    if last >= 0:
        yield Finished()


def _reply_events(message: Message, output: StructuredOutputConfig | None, *, last: bool) -> Iterator[PageEvent]:
    if message.reasoning:
        yield ReasoningDelta(message.reasoning)
    if output is None or message.tool_calls:
        if message.text:
            yield TextDelta(message.text)
    elif last:
        with suppress(OutputParseError, SerdeError):  # It was stopped, never accepted, or cannot be written.
            yield PartialOutput(dump(parse_structured_output(message.text, output)))
    for call in message.tool_calls:
        yield ToolStarted(call.id, call.name, call.arguments)


def _openings(event: ToolInvoked | None, later: Sequence[Message]) -> Iterator[SectionOpened]:
    disclosure = None if event is None or not event.success else event.disclosure
    if disclosure is None or disclosure.action != "open":
        return
    upto = next((at for at, message in enumerate(later) if message.role == "assistant"), len(later))
    for key in disclosure.keys:
        added = [m for m in later[:upto] if m.role == "tools_added" and f"{m.section_key}.".startswith(f"{key}.")]
        yield SectionOpened(key, tuple(name for message in added for name in message.tools))


def open_sections(chat: Conversation[Any]) -> list[str]:
    """The keys of the sections that were opened or read so far, in order."""
    found: dict[str, None] = {}
    for event in chat.session[SectionsOpened].view():
        found.update(dict.fromkeys(() if event.parent_run_id else event.section_keys))
    for call in chat.session[ToolInvoked].view():
        found.update(dict.fromkeys(() if call.parent_run_id else (each.section_key for each in _openings(call, ()))))
    return list(found)


def arguments(text: str) -> Any:
    """A call's arguments as data, or as text if they are not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
