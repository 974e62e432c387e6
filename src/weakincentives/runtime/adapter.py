"""What every adapter is: a way to a model, and the same evaluate, stream, resume and explain on top of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Generic, Protocol, TypedDict, TypeVar, Unpack

from weakincentives._generics import AnyOutputT
from weakincentives.limits import Budget, Deadline, Meter
from weakincentives.prompt import AnyTool, Overrides, Prompt, Tokenizer, default_tokenizer
from weakincentives.runtime.drivers import Channel, StreamEvent, drive, drive_async, drive_stream, drive_stream_async
from weakincentives.runtime.explain import Explanation, explain
from weakincentives.runtime.hosted import HostedToolCodec
from weakincentives.runtime.inner_loop import InnerLoop, InnerLoopConfig
from weakincentives.runtime.messages import PromptResponse
from weakincentives.runtime.providers import adapter_spec
from weakincentives.runtime.run import RunScope
from weakincentives.session import Session

OutputT = TypeVar("OutputT")


class EventSink(Protocol):
    """A bus: anything that takes events."""

    def dispatch(self, event: Any) -> None: ...


class RunOptions(TypedDict, total=False):
    """The options of every method that runs a prompt.

    `bus` receives the run's events, as the session does. `visibility_overrides` open or summarize sections for this
    run. `scope` is how a main loop shares one deadline and one budget between restarts; it replaces those two.
    """

    bus: EventSink | None
    deadline: Deadline | None
    budget: Budget | None
    visibility_overrides: Overrides | None
    scope: RunScope | None


class ProviderAdapter(Generic[AnyOutputT]):
    """Evaluates prompts on one model of one provider.

    A subclass declares its capabilities (`supports_dynamic_tools`, `tool_route`, `default_codecs`) and opens a
    `channel` to the model, or implements `evaluate` by itself. The `hosted_tool_codecs` given here add to the
    adapter's own. `ProviderAdapter[Out]` is an adapter for prompts with this output.
    """

    name: ClassVar[str] = "adapter"

    def __init__(
        self,
        model: str,
        *,
        hosted_tool_codecs: Mapping[str, HostedToolCodec[Any, Any]] | None = None,
        output_retries: int = 1,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        if not any(getattr(type(self), name) is not getattr(ProviderAdapter, name) for name in ("channel", "evaluate")):
            raise TypeError(f"{type(self).__name__} cannot reach a model; implement channel(), or evaluate() by itself")
        self.model = model
        self._added_codecs = hosted_tool_codecs or {}
        self.output_retries = output_retries
        self._tokenizer = tokenizer
        self._count_tokens = lru_cache(maxsize=8192)(lambda text: self.tokenizer.count(text))

    @property
    def supports_dynamic_tools(self) -> bool:
        """Whether tools can be added to a conversation; if not, opening a section with tools restarts it."""
        return False

    @property
    def tool_route(self) -> str:
        """By which route tools appear mid-conversation."""
        return "append" if self.supports_dynamic_tools else "restart"

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer or default_tokenizer()

    @cached_property
    def hosted_tool_codecs(self) -> Mapping[str, HostedToolCodec[Any, Any]]:
        """The codecs of the hosted tools this adapter can offer, by kind."""
        return {**self.default_codecs(), **self._added_codecs}

    def default_codecs(self) -> Mapping[str, HostedToolCodec[Any, Any]]:
        """The adapter's own codecs, by kind; called when the first run starts."""
        spec = adapter_spec(self.name)
        return {} if spec is None else spec.codecs()

    def channel(self) -> Channel:
        """A connection to the model for one run."""
        raise NotImplementedError(f"{type(self).__name__} implements evaluate() and not channel()")

    def define_tool(self, tool: AnyTool) -> str:
        """The tool as JSON text, as this adapter sends it to the model."""
        return tool.definition

    @contextmanager
    def open_channel(self, loop: InnerLoop) -> Iterator[Channel]:
        """The channel for one run; override this to close what the channel holds when the run ends."""
        yield self.channel()

    @asynccontextmanager
    async def open_channel_async(self, loop: InnerLoop) -> AsyncIterator[Channel]:
        """`open_channel` on an event loop."""
        with self.open_channel(loop) as channel:
            yield channel

    def evaluate(
        self, prompt: Prompt[OutputT], *, session: Session, **options: Unpack[RunOptions]
    ) -> PromptResponse[OutputT]:
        """Render, ask the model, run its tools, and so on until it answers."""
        with self._running(self.loop(prompt, session, **options), options) as (loop, channel):
            return drive(loop, channel)

    async def evaluate_async(
        self, prompt: Prompt[OutputT], *, session: Session, **options: Unpack[RunOptions]
    ) -> PromptResponse[OutputT]:
        """`evaluate` on an event loop."""
        async with self._running_async(self.loop(prompt, session, **options), options) as (loop, channel):
            return await drive_async(loop, channel)

    def stream(
        self, prompt: Prompt[OutputT], *, session: Session, **options: Unpack[RunOptions]
    ) -> Iterator[StreamEvent[OutputT]]:
        """`evaluate` as a stream of events: text deltas, tool starts and ends, and last the response."""
        with self._running(self.loop(prompt, session, **options), options) as (loop, channel):
            yield from drive_stream(loop, channel)

    async def stream_async(
        self, prompt: Prompt[OutputT], *, session: Session, **options: Unpack[RunOptions]
    ) -> AsyncIterator[StreamEvent[OutputT]]:
        """`stream` on an event loop."""
        async with self._running_async(self.loop(prompt, session, **options), options) as (loop, channel):
            async for event in drive_stream_async(loop, channel):
                yield event

    def resume(
        self, prompt: Prompt[OutputT], *, session: Session, **options: Unpack[RunOptions]
    ) -> PromptResponse[OutputT]:
        """Continue the run that the session holds: the same next request, in this process or another."""
        with self._running(self.loop(prompt, session, resume=True, **options), options) as (loop, channel):
            return drive(loop, channel)

    async def resume_async(
        self, prompt: Prompt[OutputT], *, session: Session, **options: Unpack[RunOptions]
    ) -> PromptResponse[OutputT]:
        """`resume` on an event loop."""
        async with self._running_async(self.loop(prompt, session, resume=True, **options), options) as (loop, channel):
            return await drive_async(loop, channel)

    def explain(
        self, prompt: Prompt[Any], session: Session | None = None, *, visibility_overrides: Overrides | None = None
    ) -> Explanation:
        """What would happen, before any money is spent."""
        return explain(prompt, self.config(), session=session, visibility_overrides=visibility_overrides)

    def loop(
        self, prompt: Prompt[Any], session: Session, *, resume: bool = False, **options: Unpack[RunOptions]
    ) -> InnerLoop:
        """The inner loop of one evaluation, for a driver to run."""
        unknown = options.keys() - RunOptions.__annotations__.keys()
        if unknown:
            raise TypeError(
                f"unexpected keyword argument '{min(unknown)}'; known: {', '.join(RunOptions.__annotations__)}"
            )
        return InnerLoop(
            prompt,
            session,
            options.get("scope") or RunScope(Meter(options.get("budget"), options.get("deadline"))),
            self.config(),
            visibility_overrides=options.get("visibility_overrides"),
            resume=resume,
        )

    def config(self) -> InnerLoopConfig:
        return InnerLoopConfig(
            adapter=self.name,
            model=self.model,
            supports_dynamic_tools=self.supports_dynamic_tools,
            tool_route=self.tool_route,
            output_retries=self.output_retries,
            hosted_tool_codecs=self.hosted_tool_codecs,
            count_tokens=self._count_tokens,
            tokenizer=self.tokenizer.name,
            define_tool=self.define_tool,
        )

    @contextmanager
    def _running(self, loop: InnerLoop, options: RunOptions) -> Iterator[tuple[InnerLoop, Channel]]:
        with _claimed(loop, options.get("bus")), loop.prompt.resources, self.open_channel(loop) as channel:
            yield loop, channel

    @asynccontextmanager
    async def _running_async(self, loop: InnerLoop, options: RunOptions) -> AsyncIterator[tuple[InnerLoop, Channel]]:
        with _claimed(loop, options.get("bus")):
            async with loop.prompt.resources, self.open_channel_async(loop) as channel:
                yield loop, channel


@contextmanager
def _claimed(loop: InnerLoop, bus: EventSink | None) -> Iterator[None]:
    """Claim the session, connect the bus, and stop the async tools' helper thread afterwards."""
    with loop.session.claim(f"{loop.prompt.name} ({loop.scope.run_id})"):
        unsubscribe = None if bus is None else loop.session.observe(bus.dispatch)
        try:
            yield
        finally:
            loop.executor.bridge.close()
            if unsubscribe is not None:
                unsubscribe()
