"""An adapter around another one: a limit of the rate, a cache, a log, a choice among models."""

from __future__ import annotations

import copy
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from weakincentives.runtime import Channel, ModelReply, ModelRequest, ProviderAdapter
from weakincentives.runtime.spi import MODEL_FACTS, Cursor, Model, ModelDelta, Workers, reply_deltas, run_steps

_workers = Workers("wink-wrapped-adapters")


@dataclass(frozen=True, slots=True)
class SendTo:
    """Send a request to one of the other adapters that were passed to a `WrappedAdapter`."""

    adapter: ProviderAdapter  #: one of those that were passed to the `WrappedAdapter`
    request: ModelRequest  #: the request that it gets


Exchange = Generator[ModelRequest | SendTo | Callable[[], Any], Any, ModelReply]
"""The work on one request: it yields the requests to send, or functions to call, and returns the reply."""


class WrappedAdapter(ProviderAdapter):
    """Everything that the adapter inside is, with its requests going through `respond`; derive from it.

        class Logged(WrappedAdapter):
            def respond(self, request):
                reply = yield request
                print(request.prompt_name, reply.usage.total_tokens)
                return reply

        adapter = Logged(OpenAIAdapter("gpt-5.6"))

    `respond` is written once for blocking, async and streamed runs: it yields a request to send it, or a function to
    have it called, for example one that waits; an async one works on event loops only. A reply that it returns without
    sending anything, such as one from a cache, is streamed line by line. Several runs may use it at once. `others` are
    adapters to which it may send a request instead: `yield SendTo(other, request)`.
    """

    def __init__(self, adapter: ProviderAdapter, *others: ProviderAdapter) -> None:
        for given in (adapter, *others):
            if not isinstance(given, ProviderAdapter):
                raise TypeError(f"{type(self).__name__} wraps adapters, got {given!r}")
            without_channel = [model for model in given.models if not model.has_channel]
            if without_channel:
                name = type(without_channel[0]).__name__
                raise TypeError(f"{type(self).__name__} wraps the requests of a model, and {name} has no channel()")
        self.adapter: Model = adapter
        self.others = others

    def respond(self, request: ModelRequest) -> Exchange:
        """Answer one request; by default, the adapter inside does."""
        reply: ModelReply = yield request
        return reply

    @property
    def models(self) -> tuple[Model, ...]:
        """Each model of the adapter inside, with this around it."""
        inner = getattr(self.adapter, "models", (self.adapter,))
        if inner == (self.adapter,):
            return (self,)
        return tuple(self._around(model) for model in inner)

    def _around(self, model: Model) -> WrappedAdapter:
        other = copy.copy(self)
        other.adapter = model
        return other

    @property
    def has_channel(self) -> bool:
        return True

    @property
    def identity(self) -> tuple[Any, ...]:
        return (type(self).__qualname__, self.adapter.identity, *(adapter.identity for adapter in self.others))

    def channel(self) -> Channel:
        channels = {id(model): model.channel() for model in (self.adapter, *self.others)}
        return _WrappedChannel(self, channels)

    @contextmanager
    def open_channel(self, loop: Any) -> Iterator[Channel]:
        with ExitStack() as stack:
            channels: dict[int, Channel] = {}
            # The adapter inside is the last, so that it is its channel that is interrupted.
            for model in (*self.others, self.adapter):
                channels[id(model)] = stack.enter_context(model.open_channel(loop))
            yield _WrappedChannel(self, channels)

    @asynccontextmanager
    async def open_channel_async(self, loop: Any) -> AsyncIterator[Channel]:
        async with AsyncExitStack() as stack:
            channels: dict[int, Channel] = {}
            for model in (*self.others, self.adapter):
                channels[id(model)] = await stack.enter_async_context(model.open_channel_async(loop))
            yield _WrappedChannel(self, channels)

    @contextmanager
    def open_spare_channel(self) -> Iterator[Channel]:
        with ExitStack() as stack:
            models = (self.adapter, *self.others)
            yield _WrappedChannel(
                self, {id(model): stack.enter_context(model.open_spare_channel()) for model in models}
            )

    @asynccontextmanager
    async def open_spare_channel_async(self) -> AsyncIterator[Channel]:
        async with AsyncExitStack() as stack:
            channels: dict[int, Channel] = {}
            for model in (self.adapter, *self.others):
                channels[id(model)] = await stack.enter_async_context(model.open_spare_channel_async())
            yield _WrappedChannel(self, channels)

    def close(self) -> None:
        """Close every adapter inside."""
        for model in (self.adapter, *self.others):
            model.close()


def _fact(name: str) -> property:
    return property(lambda wrapped: getattr(wrapped.adapter, name))


for _name in MODEL_FACTS:
    if _name not in vars(WrappedAdapter):
        setattr(WrappedAdapter, _name, _fact(_name))


class _WrappedChannel(Channel):
    """The channels of a wrapped adapter, by the id of their model."""

    def __init__(self, wrapped: WrappedAdapter, channels: dict[int, Channel]) -> None:
        self._wrapped = wrapped
        self._channels = channels

    def call(self, request: ModelRequest) -> ModelReply:
        return run_steps(self._wrapped.respond(request), self._perform)

    async def call_async(self, request: ModelRequest) -> ModelReply:
        cursor = Cursor(self._wrapped.respond(request))
        while (step := cursor.step) is not None:
            try:
                outcome = await self._perform_async(step)
            except BaseException as error:
                cursor.fail(error)
            else:
                cursor.answer(outcome)
        return cursor.result()

    def stream(self, request: ModelRequest) -> Generator[str | ModelDelta | ModelReply, None, None]:
        cursor, is_shown = Cursor(self._wrapped.respond(request)), False
        while (step := cursor.step) is not None:
            outcome: Any = None
            try:
                target = self._target(step)
                if target is None:
                    outcome = self._perform(step)
                else:
                    channel, to_send = target
                    for part in channel.stream(to_send):
                        if isinstance(part, ModelReply):
                            outcome = self._own(step, part)
                        else:
                            is_shown = True
                            yield part
            except BaseException as error:
                cursor.fail(error)
            else:
                cursor.answer(outcome)
        reply = cursor.result()
        if not is_shown:
            yield from reply_deltas(reply)
        yield reply

    async def stream_async(self, request: ModelRequest) -> AsyncGenerator[str | ModelDelta | ModelReply, None]:
        cursor, is_shown = Cursor(self._wrapped.respond(request)), False
        while (step := cursor.step) is not None:
            outcome: Any = None
            try:
                target = self._target(step)
                if target is None:
                    outcome = await self._perform_async(step)
                else:
                    channel, to_send = target
                    async for part in channel.stream_async(to_send):
                        if isinstance(part, ModelReply):
                            outcome = self._own(step, part)
                        else:
                            is_shown = True
                            yield part
            except BaseException as error:
                cursor.fail(error)
            else:
                cursor.answer(outcome)
        reply = cursor.result()
        if not is_shown:
            for delta in reply_deltas(reply):
                yield delta
        yield reply

    def _perform(self, step: Any) -> Any:
        target = self._target(step)
        if target is not None:
            channel, request = target
            return self._own(step, channel.call(request))
        value = step()
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            self._refuse(step, "an async function, in a run without an event loop")
        return value

    async def _perform_async(self, step: Any) -> Any:
        target = self._target(step)
        if target is not None:
            channel, request = target
            return self._own(step, await channel.call_async(request))
        value = step() if inspect.iscoroutinefunction(step) else await _workers.call(step)
        return await value if inspect.isawaitable(value) else value

    def _target(self, step: Any) -> tuple[Channel, ModelRequest] | None:
        """The channel of a step that sends a request, and the request; None for a function."""
        if isinstance(step, ModelRequest):
            return self._channels[id(self._wrapped.adapter)], step
        if isinstance(step, SendTo):
            if id(step.adapter) not in self._channels:
                self._refuse(step.adapter, "SendTo an adapter that was not passed to it")
            return self._channels[id(step.adapter)], step.request
        if not callable(step):
            self._refuse(step, "neither a request nor a function")
        return None

    def _own(self, step: Any, reply: ModelReply) -> ModelReply:
        """The reply as one of the adapter inside, which cannot take back the items of another provider."""
        is_foreign = isinstance(step, SendTo) and step.adapter.name != self._wrapped.name
        return replace(reply, items=()) if is_foreign else reply

    def _refuse(self, step: Any, what: str) -> NoReturn:
        name = type(self._wrapped).__name__
        raise TypeError(f"{name}.respond() has yielded {what}: {step!r}; yield a ModelRequest, SendTo or a function")
