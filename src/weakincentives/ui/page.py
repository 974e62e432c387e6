"""The part of a run that a page may see: the events of a stream, or of stored messages, without anything internal.

The encoders of the protocols get these events alone. Texts of sections and results, errors, and the reasons of restarts
never reach them; of a result, and of the effects of a call that waits, they get what `show` lets through, and of
errors the messages of guards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from weakincentives.content import Part, Text
from weakincentives.errors import GuardRefusedError, OutputParseError, SerdeError
from weakincentives.prompt import StructuredOutputConfig, parse_structured_output
from weakincentives.runtime import (
    ApprovalNeeded,
    ArgumentsDelta,
    CallDecided,
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
from weakincentives.ui.questions import Show, Waiting, from_show, page_name, waiting

FAILED = "This message could not be answered. Please try again."
CALL_FAILED = "The tool call failed."
CALL_DENIED = "The tool call was denied."


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A tool call has ended; `output` is what the page sees of its result, None if nothing.

    A call that was `denied` did not happen: a person denied it, or the user went on before anybody decided.
    """

    call_id: str
    name: str
    success: bool
    output: Any = None
    denied: bool = False


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


def failure(error: BaseException) -> Failed:
    """The end of an exchange that failed: a guard's own message is for the user, no other error is."""
    return Failed(error.message or FAILED) if isinstance(error, GuardRefusedError) else Failed()


PageEvent = (
    TextDelta
    | ReasoningDelta
    | ArgumentsDelta
    | ToolStarted
    | ToolEmitted
    | CallEnded
    | Waiting
    | SectionOpened
    | PartialOutput
    | WrittenAgain
    | Finished
    | Failed
)


class PageView:
    """Turns the events of a stream into those for a page.

    A typed answer is sent as data. Its text is therefore held back, until a tool call shows that it is no answer.
    The page has the calls that are `waiting` as the exchange begins, and the results of those that it has `answered`.
    """

    def __init__(
        self,
        chat: Conversation[Any],
        show: Show | None,
        waiting: Collection[str] = (),
        answered: Collection[str] = (),
    ) -> None:
        self._chat = chat
        self._typed = typed_output(chat) is not None
        self._show = show
        self._waiting, self._answered = set(waiting), answered
        self._begun: set[str] = set()
        self._held: list[str] = []

    def events(self, event: StreamEvent[Any] | Failed) -> Iterator[PageEvent]:
        match event:
            case TextDelta(text) if self._typed:
                self._held.append(text)
            case ArgumentsDelta() | ToolStarted():
                if self._held:
                    yield TextDelta("".join(self._held))
                    self._held.clear()
                # A call that waits is begun again when it is decided, and after a restart.
                if event.call_id not in self._waiting | self._begun:
                    yield replace(event, name=page_name(event.name))
                if isinstance(event, ToolStarted):
                    self._begun.add(event.call_id)
            case ApprovalNeeded(call):
                yield waiting(call, self._show, self._waiting | self._begun)
            case ToolEnded():
                waited = event.call_id in self._waiting
                self._waiting.discard(event.call_id)  # Some providers give an id again.
                self._begun.discard(event.call_id)
                if not waited or event.call_id not in self._answered:
                    yield call_ended(event, decided(self._chat) if waited else {}, self._show)
            case Restarted():
                self._held.clear()
                yield WrittenAgain()
            case Completed():
                yield Finished()
            case _:
                yield event


def call_ended(ended: ToolEnded, decisions: Mapping[str, str], show: Show | None) -> CallEnded:
    """The end of a call as the page sees it; `decisions` are those about calls that have waited."""
    denied = not ended.success and decisions.get(ended.call_id) in ("deny", "undecided")
    return CallEnded(ended.call_id, page_name(ended.name), ended.success, shown(ended, show), denied)


def shown(ended: ToolEnded, show: Show | None) -> Any:
    """The part of a result that a page sees: none of a failed call, else what `show` returns; True is the text."""
    found = from_show(show, ended) if ended.success else False
    return ended.message if found is True else None if found is False else found


def decided(chat: Conversation[Any]) -> dict[str, str]:
    """The last decision about each call that has waited, by call id."""
    return {event.call_id: event.decision for event in chat.session[CallDecided].view()}


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
    messages, output, decisions = chat.messages, typed_output(chat), decided(chat)
    calls = {event.call_id: event for event in chat.session[ToolInvoked].view() if not event.parent_run_id}
    made = {call.id for message in messages for call in message.tool_calls} if chat.pending else set()
    questions = [waiting(call, show, made) for call in chat.pending]
    starts = [at for at, message in enumerate(messages) if message.by_user]
    return [
        PastExchange(
            message_id(chat, number, messages[start]),
            messages[start].parts or (Text(messages[start].text),),
            tuple(_answer_events(messages[start + 1 : end], output, calls, questions, decisions, show)),
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
    questions: Sequence[Waiting],
    decisions: Mapping[str, str],
    show: Show | None,
) -> Iterator[PageEvent]:
    last = max((at for at, message in enumerate(answer) if message.role in ("assistant", "tool")), default=-1)
    for at, message in enumerate(answer):
        if message.role == "assistant":
            yield from _reply_events(message, output, last=at == last)
        elif message.role == "tool":
            ended = ToolEnded(message.call_id, message.name, message.success, message.text)
            yield call_ended(ended, decisions, show)
            yield from _openings(calls.get(message.call_id), answer[at + 1 :])
        elif message.kind == CORRECTION:
            yield WrittenAgain()
    ended_ids = {message.call_id for message in answer if message.role == "tool"}
    made = [call.id for message in answer for call in message.tool_calls if call.id not in ended_ids]
    yield from (question for question in questions if question.call_id in made)
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
        yield ToolStarted(call.id, page_name(call.name), call.arguments)


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
