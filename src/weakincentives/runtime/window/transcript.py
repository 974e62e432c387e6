"""The conversation as a run writes it; what others add at any time comes after the loop's messages."""

from __future__ import annotations

from collections.abc import Sequence

from weakincentives.runtime.events import ContextWindow
from weakincentives.runtime.live import LiveRun
from weakincentives.runtime.messages import Message, result_place, results_before_user
from weakincentives.runtime.window.excerpt import excerpt_of


def say(live: LiveRun, *messages: Message) -> None:
    """Add messages of the loop to the conversation."""
    for message in messages:
        live.session.dispatch(message)
        live.attempt.written.append(message)
        if message.role == "tool":
            _put_result_in_order(live, message)


def _put_result_in_order(live: LiveRun, result: Message) -> None:
    """Move a result that had to wait for a person before those of the calls after it."""
    conversation, attempt = live.session[Message], live.attempt
    messages = conversation.view()
    place = result_place(messages, result)
    index = len(messages) - 1
    while messages[index] is not result:
        index -= 1
    if place >= index:
        return
    ordered = [*messages[:place], result, *messages[place:index], *messages[index + 1 :]]
    conversation.update(lambda current: [*ordered, *current[len(ordered) :]])
    if place < attempt.ordered:
        # An earlier run has added the results of the other calls.
        attempt.written.pop()
        attempt.ordered += 1


def messages_to_send(live: LiveRun) -> Sequence[Message]:
    """The messages for a request; those that the loop adds from now on come after them."""
    live.attempt.ordered = len(live.session[Message])
    return sent_now(live)


def sent_now(live: LiveRun) -> Sequence[Message]:
    """The messages that a request would have now."""
    session = live.session
    return excerpt_of(session, live.model.name).of(session[Message].view(), session[ContextWindow].latest())


def adopt(live: LiveRun) -> None:
    """Take over the conversation so far, with results before user messages: every provider requires that."""
    conversation = live.session[Message]
    if results_before_user(conversation.view()) is not None:
        conversation.update(lambda messages: results_before_user(messages) or messages)
    live.attempt.ordered = len(conversation)


def put_in_order(live: LiveRun) -> bool:
    """Move messages that others added after those of the loop; return True if the user's is then the last."""
    conversation, attempt = live.session[Message], live.attempt
    start, written, last = attempt.ordered, attempt.written, None
    # A paused reply must stay the last message for its provider to continue it.
    is_paused = bool(written) and written[-1].paused
    if len(conversation) != start + len(written) and not is_paused:
        conversation.update(lambda messages: _with_own_first(messages, start, written))
        last = conversation.latest()
    attempt.ordered, attempt.written = len(conversation), []
    return last is not None and last.role == "user"


def _with_own_first(messages: Sequence[Message], start: int, own: Sequence[Message]) -> list[Message]:
    """The messages with those of the loop, after the first so many, before those that others have added."""
    own_ids = set(map(id, own))
    ordered = list(messages[:start])
    others: list[Message] = []
    for message in messages[start:]:
        (ordered if id(message) in own_ids else others).append(message)
    return [*ordered, *others]
