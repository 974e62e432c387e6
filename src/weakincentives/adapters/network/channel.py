"""A run's line to a vendor's model: does what an exchange asks for, blocking or awaiting."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

from weakincentives.adapters.network.line import Line
from weakincentives.adapters.network.redact import Redactor
from weakincentives.adapters.network.response import AsyncStream, Failure, Response, Stream
from weakincentives.adapters.network.retry import Answer, Exchange, Read, Retries, Sleep
from weakincentives.adapters.network.wire import Wire
from weakincentives.clock import Clock
from weakincentives.runtime.messages import ModelReply, ModelRequest


class NetworkChannel:
    """The `Channel` of every adapter that speaks to a vendor over the network."""

    def __init__(
        self,
        wire: Wire,
        line: Line,
        *,
        retries: Retries,
        redact: Redactor,
        clock: Clock,
        sleep_async: Callable[[float], Awaitable[object]],
    ) -> None:
        self._wire = wire
        self._line = line
        self._retries = retries
        self._redact = redact
        self._clock = clock
        self._sleep_async = sleep_async

    def call(self, request: ModelRequest) -> ModelReply:
        steps = self._exchange(request).ask()
        answer: Answer = None
        try:
            while True:
                step = steps.send(answer)
                if isinstance(step, Sleep):
                    self._clock.sleep(step.seconds)
                    answer = None
                    continue
                try:
                    answer = self._line.send(step.outgoing, step.timeout)
                except Failure as failure:
                    answer = failure
        except StopIteration as done:
            reply: ModelReply = done.value
            return reply

    async def call_async(self, request: ModelRequest) -> ModelReply:
        steps = self._exchange(request).ask()
        answer: Answer = None
        while True:
            # A coroutine may not let StopIteration out, so the end is caught around the one call that can raise it.
            try:
                step = steps.send(answer)
            except StopIteration as done:
                reply: ModelReply = done.value
                return reply
            if isinstance(step, Sleep):
                await self._sleep_async(step.seconds)
                answer = None
                continue
            try:
                answer = await self._line.send_async(step.outgoing, step.timeout)
            except Failure as failure:
                answer = failure

    def stream(self, request: ModelRequest) -> Iterator[str | ModelReply]:
        steps = self._exchange(request).listen()
        answer: Answer = None
        stream: Stream | None = None
        try:
            while True:
                try:
                    step = steps.send(answer)
                except StopIteration as done:
                    yield done.value
                    return
                answer = None
                if isinstance(step, str):
                    yield step
                elif isinstance(step, Sleep):
                    self._clock.sleep(step.seconds)
                else:
                    try:
                        if isinstance(step, Read):
                            answer = stream.read(step.timeout) if stream else None
                        else:
                            if stream:
                                stream.close()
                            opened = self._line.open(step.outgoing, step.timeout)
                            stream, answer = (None, opened) if isinstance(opened, Response) else (opened, None)
                    except Failure as failure:
                        answer = failure
        finally:
            if stream:
                stream.close()

    async def stream_async(self, request: ModelRequest) -> AsyncIterator[str | ModelReply]:
        steps = self._exchange(request).listen()
        answer: Answer = None
        stream: AsyncStream | None = None
        try:
            while True:
                try:
                    step = steps.send(answer)
                except StopIteration as done:
                    yield done.value
                    return
                answer = None
                if isinstance(step, str):
                    yield step
                elif isinstance(step, Sleep):
                    await self._sleep_async(step.seconds)
                else:
                    try:
                        if isinstance(step, Read):
                            answer = await stream.read(step.timeout) if stream else None
                        else:
                            if stream:
                                await stream.close()
                            opened = await self._line.open_async(step.outgoing, step.timeout)
                            stream, answer = (None, opened) if isinstance(opened, Response) else (opened, None)
                    except Failure as failure:
                        answer = failure
        finally:
            if stream:
                await stream.close()

    def _exchange(self, request: ModelRequest) -> Exchange:
        return Exchange(self._wire, request, self._retries, self._redact, self._clock)
