"""A run's connection to a vendor's model: performs the steps of an exchange, blocking or awaited."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator
from typing import cast

from weakincentives.adapters.network.retry import (
    Exchange,
    KeyRedactor,
    Outcome,
    Read,
    Retries,
    Send,
    Sleep,
    Steps,
)
from weakincentives.adapters.network.transport import AsyncStream, Response, Stream, Transport, TransportError
from weakincentives.adapters.network.wire import EncodedRequest, Format
from weakincentives.clock import Clock
from weakincentives.errors import AbandonedCallError
from weakincentives.runtime import ModelDelta, ModelReply, ModelRequest


class NetworkChannel:
    """The `Channel` of every adapter that speaks to a vendor over the network."""

    def __init__(
        self,
        wire: Format,
        transport: Transport,
        *,
        retries: Retries,
        redactor: KeyRedactor,
        clock: Clock,
    ) -> None:
        self._wire = wire
        self._transport = transport
        self._retries = retries
        self._redactor = redactor
        self._clock = clock
        self._open: Stream | None = None
        self._interrupted = False

    def interrupt(self) -> None:
        """End the stream that another thread is reading, so that the vendor stops writing."""
        self._interrupted = True
        if self._open is not None:
            self._open.close()

    def call(self, request: ModelRequest) -> ModelReply:
        *_, reply = self._perform(self._exchange(request).steps(), self._transport.send)
        return cast(ModelReply, reply)

    async def call_async(self, request: ModelRequest) -> ModelReply:
        steps = self._exchange(request).steps()
        *_, reply = [piece async for piece in self._perform_async(steps, self._transport.send_async)]
        return cast(ModelReply, reply)

    def stream(self, request: ModelRequest) -> Iterator[ModelDelta | ModelReply]:
        return self._perform(self._exchange(request).steps(stream=True), self._transport.open)

    def stream_async(self, request: ModelRequest) -> AsyncIterator[ModelDelta | ModelReply]:
        return self._perform_async(self._exchange(request).steps(stream=True), self._transport.open_async)

    def _perform(
        self, steps: Steps, send: Callable[[EncodedRequest, float | None], Response | Stream]
    ) -> Generator[ModelDelta | ModelReply, None, None]:
        """Yield what a reply shows as it arrives, and at last the reply."""
        outcome: Outcome = None
        stream: Stream | None = None
        try:
            while True:
                try:
                    step = steps.send(outcome)
                except StopIteration as done:
                    yield done.value
                    return
                outcome = None
                try:
                    if isinstance(step, Send):
                        if stream:
                            stream.close()
                        opened = send(step.request, step.timeout)
                        stream, outcome = (None, opened) if isinstance(opened, Response) else (opened, None)
                        self._open = stream
                    elif isinstance(step, Read):
                        outcome = stream.read(step.timeout) if stream else None
                    elif isinstance(step, Sleep):
                        self._clock.sleep(step.seconds)
                    else:
                        yield step
                except TransportError as error:
                    outcome = error
                if self._interrupted:
                    raise AbandonedCallError("the run was stopped while its stream was read")
        finally:
            if stream:
                stream.close()

    async def _perform_async(
        self, steps: Steps, send: Callable[[EncodedRequest, float | None], Awaitable[Response | AsyncStream]]
    ) -> AsyncGenerator[ModelDelta | ModelReply, None]:
        outcome: Outcome = None
        stream: AsyncStream | None = None
        try:
            while True:
                try:
                    step = steps.send(outcome)
                except StopIteration as done:
                    yield done.value
                    return
                outcome = None
                try:
                    if isinstance(step, Send):
                        if stream:
                            await stream.close()
                        opened = await send(step.request, step.timeout)
                        stream, outcome = (None, opened) if isinstance(opened, Response) else (opened, None)
                    elif isinstance(step, Read):
                        outcome = await stream.read(step.timeout) if stream else None
                    elif isinstance(step, Sleep):
                        await self._clock.sleep_async(step.seconds)
                    else:
                        yield step
                except TransportError as error:
                    outcome = error
        finally:
            if stream:
                await stream.close()

    def _exchange(self, request: ModelRequest) -> Exchange:
        return Exchange(self._wire, request, self._retries, self._redactor, self._clock)
