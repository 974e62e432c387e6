"""A run's connection to a vendor's model: which failures are retried, when, and what error the others raise.

Retries are written once, as a generator that yields the next step; the channel performs it, blocking or async.
"""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeAlias, cast

import msgspec

from weakincentives._display import shortened
from weakincentives.adapters.network.transport import AsyncStream, Response, Stream, Transport, TransportError
from weakincentives.adapters.network.wire import EncodedRequest, Format
from weakincentives.clock import Clock
from weakincentives.errors import AbandonedCallError, ContextOverflowError, DeadlineExceededError, PromptEvaluationError
from weakincentives.redaction import Redactor
from weakincentives.runtime import ModelDelta, ModelReply, ModelRequest

MAX_WAIT = 60.0
"""If a provider requests a longer pause than this, the run fails at once."""

DRAIN_SECONDS = 0.25
"""How long to wait for the end of a stream whose reply is complete, so that its connection can be reused."""

_OVERFLOW = re.compile(
    r"context_length_exceeded|ContextWindowExceeded|prompt is too long|exceeds? (?:the )?context (?:limit|window)"
)

MALFORMED = (msgspec.DecodeError, ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""What parsing a malformed response may raise."""


@dataclass(frozen=True, slots=True)
class Retries:
    """How often to retry, and how long to wait in between."""

    limit: int = 2
    first_pause: float = 0.5
    max_pause: float = 8.0
    jitter: Callable[[], float] = random.random

    def pause(self, failures: int, requested: float | None) -> float:
        """Seconds to wait after this many failures; at least as long as the provider requested."""
        if requested is not None:
            return requested + 0.1 * self.jitter() * min(requested, 1.0)
        return float(min(self.first_pause * 2**failures, self.max_pause) * (1.0 - 0.25 * self.jitter()))


class KeyRedactor:
    """Removes secrets from what an error shows, the client's keys in any encoding.

    `keys` is called only when there is an error.
    """

    def __init__(self, keys: Callable[[], Iterable[str | None]]) -> None:
        self._keys = keys

    def text(self, text: str) -> str:
        return Redactor(values=[key for key in self._keys() if key]).text(text)

    def value(self, value: object) -> object:
        """A payload with every occurrence of the keys replaced."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, (dict, list)):
            plain = msgspec.json.encode(value).decode()
            redacted = self.text(plain)
            try:
                return value if redacted == plain else msgspec.json.decode(redacted)
            except msgspec.DecodeError:
                return redacted
        return value


@dataclass(slots=True)
class Send:
    """Send the request; a streaming exchange expects an open stream, any other exchange the whole response."""

    request: EncodedRequest
    timeout: float | None


@dataclass(slots=True)
class Read:
    """Read the next events of the open stream."""

    timeout: float | None


@dataclass(slots=True)
class Sleep:
    """Wait."""

    seconds: float


Outcome: TypeAlias = "Response | TransportError | list[bytes] | None"
Steps: TypeAlias = Generator["Send | Sleep | Read | ModelDelta", "Outcome", ModelReply]


class Exchange:
    """One request of a run, with its retries."""

    __slots__ = ("_clock", "_dropped", "_failures", "_name", "_redactor", "_request", "_retries", "_wire")

    def __init__(
        self, wire: Format, request: ModelRequest, retries: Retries, redactor: KeyRedactor, clock: Clock
    ) -> None:
        self._wire = wire
        self._clock = clock
        self._request = request
        self._retries = retries
        self._redactor = redactor
        self._name = wire.provider
        self._failures = 0
        self._dropped = False

    def steps(self, *, stream: bool = False) -> Steps:
        """The steps to a whole reply; a streaming exchange also yields deltas as they arrive."""
        encoded = self._wire.encode_request(self._request, stream=stream)
        self._dropped = self._wire.reasoning_dropped
        streamed = refused = False
        while True:
            outcome = yield Send(encoded, self._left())
            received: bytes | bytearray = b""
            try:
                self._check(outcome)
                if isinstance(outcome, Response) and not stream:
                    received = outcome.body
                    return self._finished(self._wire.parse_reply(received))
                parser = self._wire.event_parser()
                while True:
                    for received in filter(None, self._events((yield Read(self._left())))):
                        for piece in parser.feed(received):
                            if isinstance(piece, ModelReply):
                                yield from self._drain()
                                return self._finished(piece)
                            streamed = True
                            yield piece
            except TransportError as error:
                # Tracebacks refer to this frame, and would keep the conversation alive until garbage collection.
                failure = error.with_traceback(None)
                failure.__context__ = None
            except MALFORMED as error:
                failure = self._unreadable(error, received)
            if not refused and not streamed and self._wire.rejects_reasoning(failure.payload):
                # Without the reasoning that the vendor rejects, the request may be sent again, as a retry.
                failure.args = (f"{failure}; a retry, if max_retries allows one, omits the earlier reasoning",)
                failure.retryable, failure.wait, refused = True, 0.0, True
                self._dropped = True
                self._wire.drop_reasoning()
                encoded = self._wire.encode_request(self._request, stream=stream)
            yield Sleep(self._pause(failure, streamed=streamed))

    def _drain(self) -> Generator[Read, Outcome, None]:
        deadline = self._request.deadline
        left = DRAIN_SECONDS if deadline is None else min(DRAIN_SECONDS, deadline.remaining().total_seconds())
        ends = time.monotonic() + left
        while left > 0 and isinstance((yield Read(left)), list):
            left = ends - time.monotonic()

    def _finished(self, reply: ModelReply) -> ModelReply:
        if self._failures or self._dropped:
            return replace(reply, retries=self._failures, reasoning_dropped=self._dropped)
        return reply

    def _left(self) -> float | None:
        deadline = self._request.deadline
        if deadline is None:
            return None
        left = deadline.remaining().total_seconds()
        if left <= 0:
            raise self._late(f"the deadline passed {-left:.3f} s ago")
        return left

    def _check(self, outcome: Outcome) -> None:
        """Raise if a request has failed."""
        if isinstance(outcome, TransportError):
            raise outcome
        if not isinstance(outcome, Response) or 200 <= outcome.status < 300:
            return
        payload = decoded(outcome.body)
        status = outcome.status
        retryable = status in (408, 409, 429) or status >= 500
        hint = outcome.headers.get("x-should-retry")
        if hint in ("true", "false"):
            retryable = hint == "true"
        raise TransportError(
            f"{self._name} answered {status}: {_explanation(payload)}",
            payload=payload,
            retryable=retryable,
            wait=retry_after(outcome.headers, self._clock.now()) if retryable else None,
        )

    def _events(self, outcome: Outcome) -> list[bytes]:
        self._check(outcome)
        if isinstance(outcome, list):
            return outcome
        raise TransportError("the stream ended before the answer was complete", phase="response")

    def _unreadable(self, error: Exception, body: bytes | bytearray) -> TransportError:
        cut = type(error) is msgspec.DecodeError or isinstance(error, UnicodeDecodeError)
        return TransportError(
            f"{self._name} sent a body that is not whole JSON: {error}"
            if cut
            else f"{self._name} sent an answer of an unexpected shape: {error!r}",
            phase="response",
            payload=decoded(body),
            retryable=cut,
        )

    def _pause(self, failure: TransportError, *, streamed: bool = False) -> float:
        """Seconds to wait before the next attempt; raises if there will be none."""
        deadline = self._request.deadline
        left = None if deadline is None else deadline.remaining().total_seconds()
        if left is not None and left <= 0:
            raise self._late(f"the deadline passed during the request ({failure})", failure)
        if streamed:
            raise self._error(failure, phase="response", note=" after part of the answer had been streamed")
        if not failure.retryable or self._failures >= self._retries.limit:
            raise self._error(failure)
        if failure.wait is not None and failure.wait > MAX_WAIT:
            raise self._error(failure, note=f"; it asks to wait {failure.wait:.0f} s, more than {MAX_WAIT:.0f} s")
        seconds = self._retries.pause(self._failures, failure.wait)
        if left is not None and seconds >= left:
            raise self._late(
                f"the deadline leaves {left:.3f} s, the next attempt is due in {seconds:.3f} s ({failure})", failure
            )
        self._failures += 1
        return seconds

    def _error(self, failure: TransportError, *, phase: Any = None, note: str = "") -> PromptEvaluationError:
        tries = f" (after {self._failures + 1} attempts)" if self._failures else ""
        kind = ContextOverflowError if _OVERFLOW.search(_told(failure.payload)) else PromptEvaluationError
        return kind(
            self._redactor.text(f"Prompt '{self._request.prompt_name}': {failure}{note}{tries}"),
            prompt_name=self._request.prompt_name,
            phase=phase or failure.phase,
            payload=self._redactor.value(failure.payload),
        )

    def _late(self, reason: str, failure: TransportError | None = None) -> DeadlineExceededError:
        return DeadlineExceededError(
            self._redactor.text(f"Prompt '{self._request.prompt_name}': {reason}."),
            prompt_name=self._request.prompt_name,
            phase="request",
            payload=self._redactor.value(failure.payload) if failure else None,
        )


class NetworkChannel:
    """The `Channel` of every adapter that speaks to a vendor over the network; performs the steps of exchanges."""

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
        """End the stream that another thread is reading, so that the vendor stops generating."""
        self._interrupted = True
        if self._open is not None:
            self._open.close()

    def call(self, request: ModelRequest) -> ModelReply:
        *_, reply = self._perform(request, whole=True)
        return cast(ModelReply, reply)

    async def call_async(self, request: ModelRequest) -> ModelReply:
        *_, reply = [piece async for piece in self._perform_async(request, whole=True)]
        return cast(ModelReply, reply)

    def stream(self, request: ModelRequest) -> Iterator[ModelDelta | ModelReply]:
        return self._perform(request, whole=False)

    def stream_async(self, request: ModelRequest) -> AsyncIterator[ModelDelta | ModelReply]:
        return self._perform_async(request, whole=False)

    def _perform(self, request: ModelRequest, *, whole: bool) -> Generator[ModelDelta | ModelReply, None, None]:
        """Yield a reply's deltas as they arrive, then the reply."""
        steps = self._exchange(request).steps(stream=not whole)
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
                        opened = self._transport.open(step.request, step.timeout, whole=whole)
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
        self, request: ModelRequest, *, whole: bool
    ) -> AsyncGenerator[ModelDelta | ModelReply, None]:
        steps = self._exchange(request).steps(stream=not whole)
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
                        opened = await self._transport.open_async(step.request, step.timeout, whole=whole)
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


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """The pause a provider requests, in seconds; providers send milliseconds, seconds or an HTTP date."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) * scale
        except ValueError:
            try:
                when = parsedate_to_datetime(value)
                seconds = (when - now if when.tzinfo else when.replace(tzinfo=UTC) - now).total_seconds()
            except (ValueError, TypeError, OverflowError, LookupError):
                continue
        if not math.isnan(seconds):
            return max(seconds, 0.0)
    return None


def decoded(body: bytes | bytearray) -> object:
    """A body as an error's payload: decoded JSON, or else the beginning as text."""
    try:
        return msgspec.json.decode(body)
    except MALFORMED:
        return bytes(body[:2000]).decode("utf-8", "replace")


def _told(payload: object) -> str:
    """The code, type and message in an error's payload."""
    error = payload.get("error", payload) if isinstance(payload, dict) else payload
    if not isinstance(error, dict):
        return ""
    return " ".join(str(error.get(name) or "") for name in ("code", "type", "message"))


def _explanation(payload: object) -> str:
    if isinstance(payload, dict):
        error = payload.get("error", payload)
        message = error.get("message") if isinstance(error, dict) else error
        if isinstance(message, str) and message:
            return message
    return shortened(str(payload), 300) or "no explanation"
