"""Asking until there is an answer: what is tried again, when, and what is given up as which error.

Written once, as generators that say what to do next; the channel does it, blocking or awaiting.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeAlias

import msgspec

from weakincentives.adapters.network.redact import Redactor
from weakincentives.adapters.network.response import Failure, Response
from weakincentives.adapters.network.wire import Outgoing, Wire
from weakincentives.clock import Clock
from weakincentives.errors import DeadlineExceededError, PromptEvaluationError
from weakincentives.runtime.messages import ModelReply, ModelRequest

LONGEST_WAIT = 60.0
"""A provider that asks for a longer pause than this gets none: the run fails and says so."""

DRAIN_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Retries:
    """How often to ask again, and how long to wait in between."""

    limit: int = 2
    first: float = 0.5
    longest: float = 8.0
    jitter: Callable[[], float] = random.random

    def pause(self, attempt: int, asked: float | None) -> float:
        """Seconds to wait after this many failures; what the provider asked for comes first."""
        if asked is not None:
            return asked + 0.1 * self.jitter() * min(asked, 1.0)
        return float(min(self.first * 2**attempt, self.longest) * (1.0 - 0.25 * self.jitter()))


@dataclass(slots=True)
class Send:
    """Send this; an exchange that asks wants the whole answer, one that listens wants it open."""

    outgoing: Outgoing
    timeout: float | None


@dataclass(slots=True)
class Read:
    """Read the next events of the open stream."""

    timeout: float | None


@dataclass(slots=True)
class Sleep:
    """Wait."""

    seconds: float


Answer: TypeAlias = "Response | Failure | list[bytes] | None"
Asking: TypeAlias = Generator["Send | Sleep", "Answer", ModelReply]
Listening: TypeAlias = Generator["Send | Sleep | Read | str", "Answer", ModelReply]


class Exchange:
    """One request of a run and everything that may go wrong with it."""

    __slots__ = ("_clock", "_failures", "_name", "_redact", "_request", "_retries", "_wire")

    def __init__(self, wire: Wire, request: ModelRequest, retries: Retries, redact: Redactor, clock: Clock) -> None:
        self._wire = wire
        self._clock = clock
        self._request = request
        self._retries = retries
        self._redact = redact
        self._name = wire.provider
        self._failures = 0

    def ask(self) -> Asking:
        """Steps until the whole reply is there."""
        outgoing = self._wire.outgoing(self._request)
        while True:
            answer = yield Send(outgoing, self._left())
            failure = self._failed(answer)
            if failure is None:
                assert isinstance(answer, Response)
                try:
                    return self._finished(self._wire.reply(answer.body))
                except Failure as error:
                    failure = error
                except msgspec.DecodeError as error:
                    failure = self._unreadable(error, answer.body)
            yield Sleep(self._pause(failure))

    def listen(self) -> Listening:
        """Steps until the reply is there, with its text as it arrives."""
        outgoing = self._wire.outgoing(self._request, stream=True)
        heard = False
        while True:
            answer = yield Send(outgoing, self._left())
            failure = self._failed(answer)
            events = self._wire.events()
            while failure is None:
                batch = yield Read(self._left())
                if isinstance(batch, Failure):
                    failure = batch
                    break
                if not isinstance(batch, list):
                    failure = Failure("the stream ended before the answer was complete", phase="response")
                    break
                for event in batch:
                    try:
                        pieces = events.feed(event)
                    except Failure as error:
                        failure = error
                        break
                    except msgspec.DecodeError as error:
                        failure = self._unreadable(error, event)
                        break
                    for piece in pieces:
                        if isinstance(piece, ModelReply):
                            yield from self._drain()
                            return self._finished(piece)
                        heard = True
                        yield piece
            yield Sleep(self._pause(failure, heard=heard))

    def _drain(self) -> Generator[Read, Answer, None]:
        # Read to the end, so that the connection can be used again; one that stays open is dropped instead.
        while isinstance((yield Read(DRAIN_SECONDS)), list):
            pass

    def _finished(self, reply: ModelReply) -> ModelReply:
        return replace(reply, retries=self._failures) if self._failures else reply

    def _left(self) -> float | None:
        deadline = self._request.deadline
        if deadline is None:
            return None
        left = deadline.remaining().total_seconds()
        if left <= 0:
            raise self._late(f"the deadline passed {-left:.3f} s ago")
        return left

    def _failed(self, answer: Answer) -> Failure | None:
        if isinstance(answer, Failure):
            return answer
        if not isinstance(answer, Response) or 200 <= answer.status < 300:
            return None
        payload = decoded(answer.body)
        status = answer.status
        retryable = status in (408, 409, 429) or status >= 500
        hint = answer.headers.get("x-should-retry")
        if hint in ("true", "false"):
            retryable = hint == "true"
        return Failure(
            f"{self._name} answered {status}: {_explanation(payload)}",
            payload=payload,
            retryable=retryable,
            wait=retry_after(answer.headers, self._clock.now()) if retryable else None,
        )

    def _unreadable(self, error: msgspec.DecodeError, body: bytes | bytearray) -> Failure:
        shape = isinstance(error, msgspec.ValidationError)
        return Failure(
            f"{self._name} sent an answer of an unexpected shape: {error}"
            if shape
            else f"{self._name} sent a body that is not whole JSON: {error}",
            phase="response",
            payload=decoded(body),
            retryable=not shape,
        )

    def _pause(self, failure: Failure, *, heard: bool = False) -> float:
        """How long to wait before the next attempt, or the error that ends the run."""
        deadline = self._request.deadline
        left = None if deadline is None else deadline.remaining().total_seconds()
        if left is not None and left <= 0:
            raise self._late(f"the deadline passed while asking ({failure})", failure)
        if heard:
            raise self._error(failure, phase="response", note=" after part of the answer had been streamed")
        if not failure.retryable or self._failures >= self._retries.limit:
            raise self._error(failure)
        if failure.wait is not None and failure.wait > LONGEST_WAIT:
            raise self._error(failure, note=f"; it asks to wait {failure.wait:.0f} s, longer than we do")
        seconds = self._retries.pause(self._failures, failure.wait)
        if left is not None and seconds >= left:
            raise self._late(
                f"the deadline leaves {left:.3f} s, the next attempt is due in {seconds:.3f} s ({failure})", failure
            )
        self._failures += 1
        return seconds

    def _error(self, failure: Failure, *, phase: Any = None, note: str = "") -> PromptEvaluationError:
        tries = f" (after {self._failures + 1} attempts)" if self._failures else ""
        return PromptEvaluationError(
            self._redact.text(f"Prompt '{self._request.prompt_name}': {failure}{note}{tries}"),
            prompt_name=self._request.prompt_name,
            phase=phase or failure.phase,
            payload=self._redact.value(failure.payload),
        )

    def _late(self, reason: str, failure: Failure | None = None) -> DeadlineExceededError:
        return DeadlineExceededError(
            self._redact.text(f"Prompt '{self._request.prompt_name}': {reason}."),
            prompt_name=self._request.prompt_name,
            phase="request",
            payload=self._redact.value(failure.payload) if failure else None,
        )


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """The pause that a provider asks for, in seconds: milliseconds, seconds or an HTTP date."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) * scale
        except ValueError:
            try:
                when = parsedate_to_datetime(value)
            except ValueError:
                continue
            seconds = (when - now).total_seconds()
        if seconds == seconds:
            return max(seconds, 0.0)
    return None


def decoded(body: bytes | bytearray) -> object:
    """A body as an error's payload: JSON where it is JSON, else its beginning as text."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return bytes(body[:2000]).decode("utf-8", "replace")


def _explanation(payload: object) -> str:
    if isinstance(payload, dict):
        error = payload.get("error", payload)
        message = error.get("message") if isinstance(error, dict) else error
        if isinstance(message, str) and message:
            return message
    return str(payload)[:300] or "no explanation"
