"""The events of a run on their way through the database: written in batches, read by anyone, from the start or later.

A batch has the number of the execution that wrote it. When a run begins again in another worker, it writes its events
from the start: readers drop what they have, which they announce as `Restarted`, and read each word once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

from weakincentives.durable.archive import Archive, Batch, ConversationRun, Posted, RunRow
from weakincentives.durable.journal import TaggedSerializer
from weakincentives.durable.signals import Signals
from weakincentives.durable.wait import Wait
from weakincentives.durable.work import DatabaseUnavailableError, NoSuchWorkError, WorkCancelledError
from weakincentives.runtime import (
    ArgumentsDelta,
    Completed,
    PartialOutput,
    ReasoningDelta,
    Restarted,
    StreamEvent,
    TextDelta,
)

OutputT = TypeVar("OutputT")
_log = logging.getLogger(__name__)

# How long events wait for others, and how soon a run notices that it was asked to stop.
_FLUSH_SECONDS = 0.1
_BEGUN_AGAIN = "The run continues in another worker."
_READ_TOO_LATE = "The run ended a while ago; this is its answer."


class EventWriter:
    """The stream of one execution of a run; any thread may add events, which the publisher writes."""

    def __init__(self, run: ConversationRun, attempt: int, serializer: TaggedSerializer) -> None:
        self.run = run
        self.attempt = attempt
        # Called by the publisher if the run was asked to stop.
        self.on_stop: Callable[[], None] = lambda: None
        self.stopped = False
        self._serializer = serializer
        self._lock = threading.Lock()
        self._events: list[StreamEvent[Any]] = []
        # Held while batches are written, so that none is written before an earlier one.
        self._writing = threading.Lock()
        self._batches: list[Batch] = []
        self._count = 0

    def put(self, event: StreamEvent[Any]) -> None:
        with self._lock:
            if self._events and (longer := _merged(self._events[-1], event)) is not None:
                self._events[-1] = longer
            else:
                self._events.append(event)

    @contextmanager
    def writing(self, *, wait: bool = True) -> Iterator[Sequence[Batch]]:
        """The events to write in the block, in batches; none if another thread writes them and this does not wait."""
        if not self._writing.acquire(blocking=wait):
            yield ()
            return
        try:
            with self._lock:
                events, self._events = self._events, []
            if events:
                self._count += 1
                self._batches.append((self.run, self.attempt, self._count, self._serializer.serialize(events)))
            yield self._batches
            self._batches = []
        finally:
            self._writing.release()

    def stop(self) -> None:
        self.stopped = True
        self.on_stop()


def _merged(last: StreamEvent[Any], event: StreamEvent[Any]) -> StreamEvent[Any] | None:
    """Two events as one, if they continue the same text or value."""
    match last, event:
        case TextDelta(begun), TextDelta(more):
            return TextDelta(begun + more)
        case ReasoningDelta(begun), ReasoningDelta(more):
            return ReasoningDelta(begun + more)
        case ArgumentsDelta(call_id, name, begun), ArgumentsDelta(same_id, same_name, more):
            same = (call_id, name) == (same_id, same_name)
            return ArgumentsDelta(call_id, name, begun + more) if same else None
        case PartialOutput(), PartialOutput():
            return event
    return None


class Publisher:
    """Writes the events of all runs in this process, and tells those that were asked to stop."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._lock = threading.Lock()
        self._writers: set[EventWriter] = set()
        self._thread: threading.Thread | None = None

    def add(self, writer: EventWriter) -> None:
        with self._lock:
            self._writers.add(writer)
            if self._thread is None:
                self._thread = threading.Thread(target=self._publish, name="wink-streams", daemon=True)
                self._thread.start()

    def remove(self, writer: EventWriter) -> None:
        with self._lock:
            self._writers.discard(writer)

    def _flush(self) -> None:
        with self._lock:
            writers = list(self._writers)
        with ExitStack() as stack:
            batches = [each for writer in writers for each in stack.enter_context(writer.writing(wait=False))]
            if batches:
                self._archive.write(batches)

    def _publish(self) -> None:
        while True:
            time.sleep(_FLUSH_SECONDS)
            with self._lock:
                writers = {writer.run: writer for writer in self._writers if not writer.stopped}
                if not self._writers:
                    self._thread = None
                    return
            try:
                self._flush()
                for run in self._archive.stopped(writers) if writers else ():
                    writers[run].stop()
            except DatabaseUnavailableError:
                pass  # The worker logs it; the events are written later.
            except Exception as error:
                _log.warning("The events of %d runs could not be written: %s", len(writers), error)


@dataclass(slots=True)
class StreamReader(Generic[OutputT]):
    """Reads the stream of a run, from its start."""

    archive: Archive
    serializer: TaggedSerializer
    conversation: str
    posted: Posted
    done: bool = False
    failure: BaseException | None = None
    _attempt: int = 0
    _place: int = 0
    _shown: bool = False
    _run: Posted | None = None
    _unread: list[StreamEvent[OutputT]] = field(default_factory=list)

    def poll(self) -> list[StreamEvent[OutputT]]:
        """The events since the last call; `done` and `failure` are set with the last of them."""
        row = self.archive.find(self.conversation, self._run or self.posted)
        if row is None:
            number = self.posted.number
            raise NoSuchWorkError(f"Conversation {self.conversation!r} has no run {number}; it was deleted.")
        if self._run is None:
            # A message that joins a run is answered by that; one that came too late has a run of its own.
            if row.joined:
                row = self.archive.find(self.conversation, row.joined) or row
            self._run = row.posted
        if row.attempt != self._attempt:
            if self._shown:
                self._unread.append(Restarted(_BEGUN_AGAIN))
            self._attempt, self._place, self._shown = row.attempt, 0, False
        # From the last batch that was read: if that is gone, so may others be that were not.
        batches = self.archive.read(self.conversation, self._run.number, self._attempt, self._place)
        gone = self._place > 0 and not batches
        for place, text in batches:
            if place > self._place:
                self._place = place
                self._unread += self.serializer.deserialize(text)
        self._shown = self._shown or bool(self._place)
        if row.ended:
            self._unread += self._end(row, gone)
        # Kept until here: the database may become unavailable in between.
        events, self._unread = self._unread, []
        return events

    def _end(self, row: RunRow, gone: bool) -> list[StreamEvent[OutputT]]:
        own = self.archive.find(self.conversation, self.posted)
        if own is not None and own.posted != row.posted and own.joined is None:
            self._run, self._attempt, self._place, self._shown = own.posted, 0, 0, False
            return []
        self.done = True
        outcome = outcome_of(row, self.serializer)
        if isinstance(outcome, WorkCancelledError):
            return []
        if isinstance(outcome, BaseException):
            self.failure = outcome
            return []
        # The stream of an earlier run is deleted some time after its end.
        restarted = [Restarted(_READ_TOO_LATE)] if gone else []
        text = [TextDelta(outcome.text)] if outcome.text and (gone or not self._place) else []
        return [*restarted, *text, Completed(outcome)]


def outcome_of(row: RunRow, serializer: TaggedSerializer) -> Any:
    """The response of a run that has ended, or its error."""
    return serializer.deserialize(row.outcome or "null")


class DurableStream(Iterator[StreamEvent[OutputT]]):
    """The events of a run, which goes on whether anybody reads them or not.

    `number` is that of the run. Iterating raises what the run has raised; the stream of a run that was stopped ends
    without `Completed`.
    """

    def __init__(self, reader: StreamReader[OutputT], signals: Signals) -> None:
        self._reader = reader
        self._events: deque[StreamEvent[OutputT]] = deque()
        self._wait = Wait(None, signals.waiter(reader.conversation))
        self._closed = False

    @property
    def number(self) -> int:
        return self._reader.posted.number

    def __next__(self) -> StreamEvent[OutputT]:
        while not self.poll():
            self._wait.pause()
        return self.take()

    async def pause_async(self) -> None:
        """Wait for more events."""
        await self._wait.pause_async()

    def poll(self) -> bool:
        """Read more events if none is left; True if `take` has something: an event, or the end."""
        if self._events or self._closed or self._reader.done:
            return True
        # It keeps waiting while the database is unavailable.
        with suppress(DatabaseUnavailableError):
            self._events.extend(self._reader.poll())
        if self._events:
            self._wait.reset()
        return bool(self._events) or self._reader.done

    def take(self) -> StreamEvent[OutputT]:
        """The next event; raises the failure of the run after the last one, or `StopIteration`."""
        if self._events and not self._closed:
            return self._events.popleft()
        failure, self._reader.failure = self._reader.failure, None
        if failure is not None and not self._closed:
            raise failure
        raise StopIteration

    def close(self) -> None:
        """Stop reading; the run goes on."""
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncDurableStream(AsyncIterator[StreamEvent[OutputT]]):
    """`DurableStream` on an event loop, with `aclose`; it holds no thread while it waits."""

    def __init__(self, begin: Callable[[], DurableStream[OutputT]]) -> None:
        self._begin = begin
        self._stream: DurableStream[OutputT] | None = None

    async def number(self) -> int:
        """The number of the run, once its message is stored."""
        return (await self._begun()).number

    async def __anext__(self) -> StreamEvent[OutputT]:
        stream = await self._begun()
        while not await asyncio.to_thread(stream.poll):
            await stream.pause_async()
        try:
            return stream.take()
        except StopIteration:
            raise StopAsyncIteration from None

    async def _begun(self) -> DurableStream[OutputT]:
        if self._stream is None:
            self._stream = await asyncio.to_thread(self._begin)
        return self._stream

    async def aclose(self) -> None:
        """Stop reading; the run goes on."""
        if self._stream is not None:
            self._stream.close()

    async def __aenter__(self) -> Self:
        await self._begun()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
