"""The part of a conversation that is sent.

All messages stay in the session. A `Cut`, which a compaction makes, says which of them a request leaves out, and what
stands for them; so the request is a function of the messages and the cut, and going back restores both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from weakref import WeakKeyDictionary

from weakincentives.runtime.events import ContextWindow, Cut
from weakincentives.runtime.messages import (
    INSTRUCTIONS,
    PROMPT_TEXT,
    READ_TEXT,
    Message,
    outlasts_restart,
)
from weakincentives.session import Session, SliceView, extends

_LEFT_OUT = "[The text of this section is left out; read it again if you need it.]"


def lasts(message: Message) -> bool:
    """True for the messages that a cut counts: neither a restart nor a changed prompt writes them again."""
    return outlasts_restart(message) and (message.role, message.kind) != ("user", PROMPT_TEXT)


def lead(messages: Sequence[Message], provider: str = "") -> int:
    """The number of messages at the beginning that are always sent: the prompt's own.

    What a provider has made of a conversation must stand first, after the system text alone.
    """
    kinds = {("system", PROMPT_TEXT), ("user", INSTRUCTIONS), *(() if provider else [("user", PROMPT_TEXT)])}
    return next((at for at, each in enumerate(messages) if (each.role, each.kind) not in kinds), len(messages))


def count_lasting(messages: Sequence[Message], stop: int) -> int:
    """The number of messages before an index that a cut counts."""
    return sum(map(lasts, messages[:stop]))


def position(messages: Sequence[Message], count: int) -> int | None:
    """The index at which the rest begins after the first `count` messages that last; None if there are fewer.

    Notices after them belong to the turn that they precede, unless the model's reply follows directly.
    """
    seen, start = 0, 0 if not count else None
    for at, message in enumerate(messages):
        if not lasts(message):
            continue
        if start is not None:
            return at if message.role == "assistant" else start
        seen += 1
        start = at + 1 if seen == count else None
    return start


def unit_starts(messages: Sequence[Message], *, by_turns: bool) -> list[int]:
    """Where exchanges begin, each with the notices before it, or where turns begin."""
    starts: list[int] = []
    notices, last = 0, None
    for at, message in enumerate(messages):
        if by_turns:
            begins = message.role == "assistant" and (last is None or last.role != "assistant")
        else:
            begins = message.asks and (last is None or (last.role == "assistant" and not last.tool_calls))
        if begins:
            starts.append(at if by_turns else notices)
        if lasts(message):
            notices, last = at + 1, message
    return starts


def digest(messages: Sequence[Message], stop: int) -> str:
    """A digest of what was said before an index, which a restart leaves as it is."""
    said = blake2b(digest_size=8)
    for message in messages[:stop]:
        if lasts(message):
            calls = "".join(call.id + call.arguments for call in message.tool_calls)
            said.update(f"{message.role}:{message.call_id}:{message.text}{calls};".encode("utf-8", "surrogatepass"))
    return said.hexdigest()


def holds(messages: Sequence[Message], cut: Cut) -> bool:
    """True unless the messages that a cut is about have changed since it was made."""
    stop = position(messages, max(cut.cleared, cut.summarized))
    return stop is not None and digest(messages, stop) == cut.digest


def cut_position(messages: Sequence[Message], count: int) -> int:
    """The index at which the rest begins after what a cut counts; the end if there are not as many messages."""
    index = position(messages, count)
    return len(messages) if index is None else index


def summarized_end(messages: Sequence[Message], cut: Cut, provider: str) -> int:
    """The index after the messages that a summary stands for, in a request to this provider."""
    if cut.head is None or cut.head.provider not in ("", provider):
        # There is no summary, or another provider made it: the conversation is sent from its beginning.
        return 0
    return cut_position(messages, cut.summarized)


def excerpt(messages: Sequence[Message], cut: Cut, provider: str) -> list[Message]:
    """The messages of a request after a cut: the prompt, what stands for the summarized part, and the rest."""
    return [message for _, message in placed_excerpt(messages, cut, provider)]


def placed_excerpt(messages: Sequence[Message], cut: Cut, provider: str) -> Iterator[tuple[int, Message]]:
    """The messages of a request after a cut, each with the index that it has in the conversation.

    What stands for the summarized part has the index -1.
    """
    start = summarized_end(messages, cut, provider)
    inserted: dict[int, list[Message]] = {}
    if start:
        for message in _beginning(messages, cut, start):
            yield -1, message
        inserted = _inserted(messages, cut, start)
    cleared_end = cut_position(messages, cut.cleared)
    replies = sum(message.role == "assistant" for message in messages[:start])
    for index in range(start, len(messages)):
        for message in inserted.get(index, ()):
            yield index, message
        message = messages[index]
        is_cleared = index < cleared_end
        if message.role == "assistant":
            replies += 1
            if replies <= cut.rebased:
                message = replace(message, rebased=True)
            yield index, message
        elif message.role == "tool":
            section_closed = message.call_id in cut.closed
            if is_cleared or section_closed:
                message = _shortened(message, closed=section_closed)
            yield index, message
        elif message.kind == READ_TEXT and is_cleared:
            continue  # The result that this text belongs to is left out, too.
        else:
            yield index, message


def _beginning(messages: Sequence[Message], cut: Cut, summarized_end: int) -> Iterator[Message]:
    """The prompt, and what stands for the messages before an index: their summary, and the tools added in them."""
    assert cut.head is not None
    prompt_end = lead(messages, cut.head.provider)
    yield from messages[:prompt_end]
    yield cut.head
    if not cut.keeps_tools:
        yield from _tool_changes(messages[prompt_end:summarized_end])


def _inserted(messages: Sequence[Message], cut: Cut, start: int) -> dict[int, list[Message]]:
    """The messages that only requests have, by the index that they stand before."""
    inserted: dict[int, list[Message]] = {}
    for count, message in cut.inserts:
        repeated = prompt_messages(messages, cut, start) if message is None else [message]
        inserted.setdefault(cut_position(messages, count), []).extend(repeated)
    return inserted


def prompt_messages(messages: Sequence[Message], cut: Cut, end: int) -> list[Message]:
    """The prompt's user messages before an index, without those that a request begins with."""
    assert cut.head is not None
    prompt_end = lead(messages, cut.head.provider)
    repeated: list[Message] = []
    for message in messages[prompt_end:end]:
        if (message.role, message.kind) == ("user", PROMPT_TEXT):
            repeated.append(message)
    return repeated


def _shortened(message: Message, *, closed: bool) -> Message:
    """A result with one line in place of its text, if that is shorter."""
    if closed:
        line = _LEFT_OUT
    else:
        line = f'[The result of {message.name} is left out; recall("{message.call_id}") returns it.]'
    if len(message.text) <= len(line) and not message.parts:
        return message
    return replace(message, text=line, parts=())


def _tool_changes(messages: Sequence[Message]) -> Iterator[Message]:
    """The tools that were added in these messages and are still there after them, and those removed."""
    last_change: dict[str, int] = {}
    added: set[str] = set()
    for index, message in enumerate(messages):
        last_change.update(dict.fromkeys(message.tools, index))
        if message.role == "tools_added":
            added.update(message.tools)
    for index, message in enumerate(messages):
        names: list[str] = []
        for name in message.tools:
            # A tool that was added and removed again needs neither.
            is_undone = message.role == "tools_removed" and name in added
            if last_change[name] == index and not is_undone:
                names.append(name)
        if names:
            unchanged = tuple(names) == message.tools
            yield message if unchanged else replace(message, tools=tuple(names))


class Excerpt:
    """The part of a growing conversation that is sent, made once for each cut."""

    def __init__(self, provider: str) -> None:
        self.provider = provider
        self._cut: Cut | None = None
        self._messages: Sequence[Message] = ()
        self._sent: list[Message] | None = None

    def of(self, messages: Sequence[Message], window: ContextWindow | None) -> Sequence[Message]:
        """The messages to send of this conversation: all of them if there is no cut that holds."""
        cut = None if window is None else window.cut
        if cut is None:
            return messages
        if cut is not self._cut or not extends(messages, self._messages):
            self._sent = excerpt(messages, cut, self.provider) if holds(messages, cut) else None
        elif self._sent is not None:
            self._sent += messages[len(self._messages) :]
        self._cut, self._messages = cut, messages
        return messages if self._sent is None else SliceView(self._sent, len(self._sent))


_excerpts: WeakKeyDictionary[Session, Excerpt] = WeakKeyDictionary()
"""The excerpt of each session's conversation, so that an exchange need not go through all the earlier ones."""


def excerpt_of(session: Session, provider: str) -> Excerpt:
    known = _excerpts.get(session)
    if known is None or known.provider != provider:
        known = _excerpts[session] = Excerpt(provider)
    return known


def sent_messages(session: Session, count: int, provider: str) -> Sequence[Message]:
    """The first `count` messages as the adapter of this name sent them."""
    return Excerpt(provider).of(session[Message].view()[:count], session[ContextWindow].latest())
