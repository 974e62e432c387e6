"""One run's line to a model: what an adapter has to provide."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Protocol

from weakincentives.runtime.messages import ModelReply, ModelRequest


class Channel(Protocol):
    """Sends requests of one run; it may keep what it has encoded, since a conversation only grows at its end.

    Failures are `PromptEvaluationError` with a phase. Streams yield text deltas and, last, the reply.
    """

    def call(self, request: ModelRequest) -> ModelReply: ...

    async def call_async(self, request: ModelRequest) -> ModelReply: ...

    def stream(self, request: ModelRequest) -> Iterator[str | ModelReply]: ...

    def stream_async(self, request: ModelRequest) -> AsyncIterator[str | ModelReply]: ...
