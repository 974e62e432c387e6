"""The ids of tool calls, each of which is used once in a conversation.

Decisions, results, records and idempotency keys go by the id of a call, and a call of a run inside another has that
one's id before its own. But ids are the model's, and those of some servers are the same in each reply.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import replace

from weakincentives.runtime.approval import PendingCall, is_inside, is_waiting
from weakincentives.runtime.context import LoopAdapter
from weakincentives.runtime.messages import Message, ModelReply


def with_unique_ids(
    reply: ModelReply, messages: Iterable[Message], waiting: Collection[PendingCall], adapter: LoopAdapter
) -> ModelReply:
    """The reply with a new id for each call whose id is taken, by a call before it or of an earlier reply.

    An id that stands for a call inside another of the reply is replaced too. A call that waits for a person keeps its
    id: it is made again with the decision about it.
    """
    if not reply.tool_calls:
        return reply
    taken: set[str] = set()
    for message in messages:
        taken.update(call.id for call in message.tool_calls)
    waiting_ids = [call.call_id for call in waiting]
    own_ids = {call.id for call in reply.tool_calls}
    ids: list[str] = []
    for call in reply.tool_calls:
        call_id = call.id
        repeated = not is_waiting(call_id, waiting_ids) and call_id in taken
        nested = "/" in call_id and any(is_inside(call_id, outer_id) for outer_id in own_ids)
        if call_id in ids or repeated or nested:
            call_id = _new_id(call_id, {*taken, *own_ids})
        taken.add(call_id)
        ids.append(call_id)
    if ids == [call.id for call in reply.tool_calls]:
        return reply
    calls = tuple(replace(call, id=call_id) for call, call_id in zip(reply.tool_calls, ids, strict=True))
    return replace(reply, tool_calls=calls, items=adapter.with_call_ids(reply.items, ids))


def _new_id(call_id: str, taken: Collection[str]) -> str:
    """An id that is not taken: nine letters and digits, which every server accepts back.

    It is always the same for the same conversation, so that a durable run that is repeated finds its records.
    """
    number = len(taken)
    while True:
        new_id = hashlib.blake2b(f"{number}:{call_id}".encode()).hexdigest()[:9]
        if new_id not in taken:
            return new_id
        number += 1
