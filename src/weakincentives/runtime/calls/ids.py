"""The ids of tool calls, each of which is used once in a conversation.

Decisions, results, records and idempotency keys go by the id of a call, and a call of a run inside another has that
one's id before its own. But ids are the model's, and those of some servers are the same in each reply.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import replace

from weakincentives.runtime.calls.approval import PendingCall, is_inside, is_waiting
from weakincentives.runtime.messages import Message, ModelReply
from weakincentives.runtime.model import Model


class CallIds:
    """The ids of the calls in the next reply of a conversation.

    A call that waits for a person keeps its id: it is made again with the decision about it.
    """

    def __init__(self, messages: Iterable[Message], waiting: Iterable[PendingCall]) -> None:
        self._waiting = [call.call_id for call in waiting]
        self._taken: set[str] = set()
        self._replies = 0
        for message in messages:
            self._replies += message.role == "assistant"
            self._taken.update(call.id for call in message.tool_calls)

    def shown(self, call_id: str) -> str:
        """The id that a call will have whose arguments a stream shows."""
        return self._new_id(call_id, self._taken) if self._is_repeated(call_id) else call_id

    def unique(self, reply: ModelReply, adapter: Model) -> ModelReply:
        """The reply with a new id for each call whose id is taken, by a call before it or of an earlier reply.

        An id that stands for a call inside another of the reply is replaced too.
        """
        given_ids = [call.id for call in reply.tool_calls]
        taken = set(self._taken)
        ids: list[str] = []
        for call_id in given_ids:
            nested = "/" in call_id and any(is_inside(call_id, outer_id) for outer_id in given_ids)
            if call_id in ids or nested or self._is_repeated(call_id):
                call_id = self._new_id(call_id, taken)
            taken.add(call_id)
            ids.append(call_id)
        if ids == given_ids:
            return reply
        calls = [replace(call, id=call_id) for call, call_id in zip(reply.tool_calls, ids, strict=True)]
        return replace(reply, tool_calls=tuple(calls), items=adapter.with_call_ids(reply.items, ids))

    def _is_repeated(self, call_id: str) -> bool:
        return call_id in self._taken and not is_waiting(call_id, self._waiting)

    def _new_id(self, call_id: str, taken: Collection[str]) -> str:
        """An id that is not taken: nine letters and digits, which every server accepts back.

        It is always the same for the same conversation, so that a durable run that is repeated finds its records.
        """
        number = self._replies
        while True:
            new_id = hashlib.blake2b(f"{number}:{call_id}".encode()).hexdigest()[:9]
            if new_id not in taken:
                return new_id
            number += 1
