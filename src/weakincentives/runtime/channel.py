"""One run's line to a model: what an adapter has to provide."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator
from typing import Protocol

from weakincentives.runtime.messages import ModelReply, ModelRequest


class Channel(Protocol):
    """Sends requests of one run; it may keep what it has encoded, since a conversation only grows at its end.

    Failures are `PromptEvaluationError` with a phase. Streams yield text deltas and, last, the reply. A class that
    derives from this one needs `call` alone: awaited it runs in a thread, and a stream is its reply in one piece.
    """

    @abstractmethod
    def call(self, request: ModelRequest) -> ModelReply: ...

    async def call_async(self, request: ModelRequest) -> ModelReply:
        return await asyncio.to_thread(self.call, request)

    def stream(self, request: ModelRequest) -> Iterator[str | ModelReply]:
        reply = self.call(request)
        if reply.text:
            yield reply.text
        yield reply

    async def stream_async(self, request: ModelRequest) -> AsyncIterator[str | ModelReply]:
        reply = await self.call_async(request)
        if reply.text:
            yield reply.text
        yield reply
