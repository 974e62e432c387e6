"""A run's connection to a vendor's model: performs the steps of an exchange, blocking or awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from weakincentives.adapters.network.retry import Exchange, KeyRedactor, Outcome, Read, Retries, Send, Sleep
from weakincentives.adapters.network.transport import AsyncStream, Response, Stream, Transport, TransportError
from weakincentives.adapters.network.wire import Format
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
        steps = self._exchange(request).steps()
        outcome: Outcome = None
        try:
            while True:
                step = steps.send(outcome)
                if isinstance(step, Sleep):
                    self._clock.sleep(step.seconds)
                    outcome = None
                    continue
                try:
                    outcome = self._transport.send(step.request, step.timeout)
                except TransportError as error:
                    outcome = error
        except StopIteration as done:
            reply: ModelReply = done.value
            return reply

    async def call_async(self, request: ModelRequest) -> ModelReply:
        steps = self._exchange(request).steps()
        outcome: Outcome = None
        while True:
            # A coroutine may not let StopIteration out, so the end is caught around the one call that can raise it.
            try:
                step = steps.send(outcome)
            except StopIteration as done:
                reply: ModelReply = done.value
                return reply
            if isinstance(step, Sleep):
                await self._clock.sleep_async(step.seconds)
                outcome = None
                continue
            try:
                outcome = await self._transport.send_async(step.request, step.timeout)
            except TransportError as failure:
                outcome = failure

    def stream(self, request: ModelRequest) -> Iterator[ModelDelta | ModelReply]:
        steps = self._exchange(request).stream_steps()
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
                if isinstance(step, Sleep):
                    self._clock.sleep(step.seconds)
                elif not isinstance(step, Send | Read):
                    yield step
                else:
                    try:
                        if isinstance(step, Read):
                            outcome = stream.read(step.timeout) if stream else None
                        else:
                            if stream:
                                stream.close()
                            opened = self._transport.open(step.request, step.timeout)
                            stream, outcome = (None, opened) if isinstance(opened, Response) else (opened, None)
                            self._open = stream
                    except TransportError as error:
                        outcome = error
                    if self._interrupted:
                        raise AbandonedCallError("the run was stopped while its stream was read")
        finally:
            if stream:
                stream.close()

    async def stream_async(self, request: ModelRequest) -> AsyncIterator[ModelDelta | ModelReply]:
        steps = self._exchange(request).stream_steps()
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
                if isinstance(step, Sleep):
                    await self._clock.sleep_async(step.seconds)
                elif not isinstance(step, Send | Read):
                    yield step
                else:
                    try:
                        if isinstance(step, Read):
                            outcome = await stream.read(step.timeout) if stream else None
                        else:
                            if stream:
                                await stream.close()
                            opened = await self._transport.open_async(step.request, step.timeout)
                            stream, outcome = (None, opened) if isinstance(opened, Response) else (opened, None)
                    except TransportError as error:
                        outcome = error
        finally:
            if stream:
                await stream.close()

    def _exchange(self, request: ModelRequest) -> Exchange:
        return Exchange(self._wire, request, self._retries, self._redactor, self._clock)
