"""A run's connection to a vendor's model: which failures are retried, when, and what error the others raise."""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar, cast

import msgspec

from weakincentives._base.display import shortened
from weakincentives.adapters.network.transport import Response, Stream, Transport, TransportError, finished
from weakincentives.adapters.network.wire import EncodedRequest, Wire, encode
from weakincentives.clock import Clock
from weakincentives.errors import AbandonedCallError, ContextOverflowError, DeadlineExceededError, PromptEvaluationError
from weakincentives.limits import TokenUsage
from weakincentives.redaction import KnownSecrets
from weakincentives.runtime import ModelReply, ModelRequest
from weakincentives.runtime.spi import ModelDelta

ResultT = TypeVar("ResultT")

Preparation = Callable[[Wire, float | None, bool], Awaitable[None]]

CUT_OFF = "the stream ended before the answer was complete"
MAX_WAIT = 60.0
"""If a provider requests a longer pause than this, the run fails at once."""

DRAIN_SECONDS = 0.25
"""How long to wait for the end of a stream whose reply is complete, so that its connection can be reused."""

_OVERFLOW = re.compile(
    r"context_length_exceeded|ContextWindowExceeded|prompt is too long|exceeds? (?:the )?context (?:limit|window)"
    r"|maximum context length|exceed_context_size"
)

MALFORMED = (msgspec.DecodeError, ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""The errors that parsing a malformed response may raise."""


class Exchange:
    """One request of a run, with its retries; if some fields are `counted`, the vendor only counts their tokens."""

    def __init__(
        self, channel: NetworkChannel, request: ModelRequest, *, awaits: bool, counted: Iterable[str] = ()
    ) -> None:
        self._channel = channel
        self._request = request
        self._awaits = awaits
        self._counted = tuple(counted)
        self._failures = 0
        self._dropped = False

    async def pieces(self, *, stream: bool) -> AsyncGenerator[ModelDelta | ModelReply, None]:
        """The reply, after its deltas as they arrive if it is streamed."""
        channel, wire = self._channel, self._channel.wire
        if channel.prepare is not None:
            await channel.prepare(wire, self._left(), self._awaits)
        encoded = self._encode(stream=stream)
        self._dropped = wire.reasoning_dropped
        streamed = refused = False
        while True:
            source: Stream | None = None
            try:
                transport = channel.transport_for(self._request)
                answer = await transport.open(encoded, self._left(), whole=not stream, awaits=self._awaits)
                if isinstance(answer, Response):
                    self._check(answer, stream=stream)
                    yield self._finished(self._parsed(self._parse, answer.body))
                    return
                source = answer
                channel.source = None if self._awaits else source
                parser = wire.event_parser()
                while True:
                    for event in filter(None, await self._read(source)):
                        for piece in self._parsed(parser.feed, event):
                            if isinstance(piece, ModelReply):
                                await self._drain(source)
                                yield self._finished(piece)
                                return
                            streamed = True
                            yield piece
                            self._check_running()
            except TransportError as error:
                # Tracebacks refer to this frame, and would keep the conversation alive until garbage collection.
                failure = error.with_traceback(None)
                failure.__context__ = None
            finally:
                if source is not None:
                    await source.aclose()
            if not refused and not streamed and wire.rejects_reasoning(failure.payload):
                # Without the reasoning that the vendor rejects, the request may be sent again, as a retry.
                failure.args = (f"{failure}; a retry, if max_retries allows one, omits the earlier reasoning",)
                failure.retryable, failure.wait, refused = True, 0.0, True
                self._dropped = True
                wire.drop_reasoning()
                encoded = self._encode(stream=stream)
            elif not failure.retryable and not streamed and wire.adapt(failure.payload):
                failure.args = (f"{failure}; a retry, if max_retries allows one, is written without it",)
                failure.retryable, failure.wait = True, 0.0
                encoded = self._encode(stream=stream)
            await self._pause(failure, streamed=streamed)

    def _encode(self, *, stream: bool) -> EncodedRequest:
        encoded = self._channel.wire.encode_request(self._request, stream=stream)
        if not self._counted:
            return encoded
        body = msgspec.json.decode(encoded.body(), type=dict[str, Any])
        return EncodedRequest((encode({name: body[name] for name in self._counted if name in body}),), encoded.headers)

    def _parse(self, body: bytes | bytearray) -> ModelReply:
        if self._counted:
            return ModelReply(usage=TokenUsage(int(msgspec.json.decode(body)["input_tokens"])))
        wire = self._channel.wire
        return wire.parse_compaction(body) if self._request.compaction else wire.parse_reply(body)

    async def _read(self, source: Stream) -> list[bytes]:
        events = await source.read(self._left())
        self._check_running()
        if events is None:
            raise TransportError(CUT_OFF, phase="response")
        return events

    async def _drain(self, source: Stream) -> None:
        deadline = self._request.deadline
        left = DRAIN_SECONDS if deadline is None else min(DRAIN_SECONDS, deadline.remaining().total_seconds())
        ends = time.monotonic() + left
        with suppress(TransportError):
            while left > 0 and await source.read(left) is not None:
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

    def _check_running(self) -> None:
        if self._channel.interrupted and not self._awaits:
            raise AbandonedCallError("the run was stopped while its stream was read")

    def _check(self, response: Response, *, stream: bool) -> None:
        """Raise if the vendor reports a failure, or does not stream."""
        self._check_running()
        status = response.status
        if 200 <= status < 300:
            if stream:
                raise TransportError(CUT_OFF, phase="response")
            return
        payload = decoded(response.body)
        retryable = status in (408, 409, 429) or status >= 500
        hint = response.headers.get("x-should-retry")
        if hint in ("true", "false"):
            retryable = hint == "true"
        key_hint = f"; {self._channel.key_hint}" if status == 401 and self._channel.key_hint else ""
        raise TransportError(
            f"{self._channel.wire.provider} answered {status}: {_explanation(payload)}{key_hint}",
            payload=payload,
            retryable=retryable,
            wait=retry_after(response.headers, self._channel.clock.now()) if retryable else None,
        )

    def _parsed(self, parse: Callable[[Any], ResultT], body: bytes | bytearray) -> ResultT:
        try:
            return parse(body)
        except MALFORMED as error:
            cut = type(error) is msgspec.DecodeError or isinstance(error, UnicodeDecodeError)
            name = self._channel.wire.provider
            raise TransportError(
                f"{name} sent a body that is not whole JSON: {error}"
                if cut
                else f"{name} sent an answer of an unexpected shape: {error!r}",
                phase="response",
                payload=decoded(body),
                retryable=cut,
            ) from None

    async def _pause(self, failure: TransportError, *, streamed: bool) -> None:
        """Wait until the next attempt; raises if there will be none."""
        self._check_running()
        deadline = self._request.deadline
        left = None if deadline is None else deadline.remaining().total_seconds()
        if left is not None and left <= 0:
            raise self._late(f"the deadline passed during the request ({failure})", failure)
        if streamed:
            raise self._error(failure, phase="response", note=" after part of the answer had been streamed")
        if not failure.retryable or self._failures >= self._channel.max_retries:
            raise self._error(failure)
        if failure.wait is not None and failure.wait > MAX_WAIT:
            raise self._error(failure, note=f"; it asks to wait {failure.wait:.0f} s, more than {MAX_WAIT:.0f} s")
        seconds = _pause(self._failures, failure.wait)
        if left is not None and seconds >= left:
            raise self._late(
                f"the deadline leaves {left:.3f} s, the next attempt is due in {seconds:.3f} s ({failure})", failure
            )
        self._failures += 1
        if self._awaits:
            await self._channel.clock.sleep_async(seconds)
        else:
            self._channel.clock.sleep(seconds)
            self._check_running()

    def _error(self, failure: TransportError, *, phase: Any = None, note: str = "") -> PromptEvaluationError:
        tries = f" (after {self._failures + 1} attempts)" if self._failures else ""
        report = _report(failure.payload)
        described = " ".join(str(report.get(name) or "") for name in ("code", "type", "message"))
        kind = ContextOverflowError if _OVERFLOW.search(described) else PromptEvaluationError
        return self._raised(kind, f"{failure}{note}{tries}", failure, phase or failure.phase)

    def _late(self, reason: str, failure: TransportError | None = None) -> PromptEvaluationError:
        return self._raised(DeadlineExceededError, f"{reason}.", failure, "request")

    def _raised(
        self, kind: type[PromptEvaluationError], message: str, failure: TransportError | None, phase: Any
    ) -> PromptEvaluationError:
        name = self._request.prompt_name
        payload = self._redacted(failure.payload) if failure else None
        return kind(self._redacted(f"Prompt '{name}': {message}"), prompt_name=name, phase=phase, payload=payload)

    def _redacted(self, value: object) -> Any:
        """A message or payload without the client's keys and the secrets of the environment, in any encoding."""
        if isinstance(value, str):
            return KnownSecrets(key for key in self._channel.secrets() if key).text(value)
        if isinstance(value, (dict, list)):
            plain = msgspec.json.encode(value).decode()
            redacted = self._redacted(plain)
            try:
                return value if redacted == plain else msgspec.json.decode(redacted)
            except msgspec.DecodeError:
                return redacted
        return value


@dataclass(eq=False, repr=False)
class NetworkChannel:
    """The `Channel` of every adapter that speaks to a vendor over the network.

    No error shows `secrets`, which are read only when there is one. `key_hint` says where the key comes from, and
    `compaction` gives the transport for requests to compact a conversation, if they go elsewhere. `prepare` is awaited
    before a request with the time that is left, and must not fail.
    """

    wire: Wire
    transport: Transport
    _: KW_ONLY
    max_retries: int
    secrets: Callable[[], Iterable[str | None]]
    clock: Clock
    key_hint: str = ""
    compaction: Callable[[], Transport] | None = None
    prepare: Preparation | None = None
    source: Stream | None = field(default=None, init=False)
    interrupted: bool = field(default=False, init=False)

    def transport_for(self, request: ModelRequest) -> Transport:
        """The transport of a request; a vendor may compact conversations at another address."""
        return self.compaction() if request.compaction and self.compaction is not None else self.transport

    def interrupt(self) -> None:
        """End the stream that another thread is reading, so that the vendor stops generating."""
        self.interrupted = True
        if self.source is not None:
            finished(self.source.aclose())

    def call(self, request: ModelRequest) -> ModelReply:
        return finished(_reply(Exchange(self, request, awaits=False)))

    async def call_async(self, request: ModelRequest) -> ModelReply:
        return await _reply(Exchange(self, request, awaits=True))

    def stream(self, request: ModelRequest) -> Iterator[ModelDelta | ModelReply]:
        pieces = Exchange(self, request, awaits=False).pieces(stream=True)
        try:
            while True:
                yield finished(pieces.__anext__())
        except StopAsyncIteration:
            return
        finally:
            finished(pieces.aclose())

    def stream_async(self, request: ModelRequest) -> AsyncIterator[ModelDelta | ModelReply]:
        return Exchange(self, request, awaits=True).pieces(stream=True)

    def count(self, request: ModelRequest, fields: Iterable[str]) -> int:
        """The tokens of a request, of which the vendor counts these fields."""
        return finished(_reply(Exchange(self, request, awaits=False, counted=fields))).usage.input_tokens


async def _reply(exchange: Exchange) -> ModelReply:
    (reply,) = [piece async for piece in exchange.pieces(stream=False)]
    return cast(ModelReply, reply)


def _pause(failures: int, requested: float | None) -> float:
    """Seconds to wait after this many failures; at least as long as the provider requested."""
    if requested is not None:
        return requested + 0.1 * random.random() * min(requested, 1.0)
    return float(min(0.5 * 2**failures, 8.0) * (1.0 - 0.25 * random.random()))


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


def _report(payload: object) -> Mapping[str, Any]:
    """The error in a payload, as far as it has fields."""
    error = payload.get("error", payload) if isinstance(payload, dict) else None
    return error if isinstance(error, dict) else {"message": error}


def _explanation(payload: object) -> str:
    message = _report(payload).get("message")
    return message if isinstance(message, str) and message else shortened(str(payload), 300) or "no explanation"
