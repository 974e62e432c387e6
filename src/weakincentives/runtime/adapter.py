"""The base of every adapter: a channel to a model, with the same evaluate, stream, resume and explain on top."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from functools import cached_property, lru_cache, partial
from typing import Any, ClassVar, Generic, Protocol, Self, TypedDict, TypeVar, Unpack

from weakincentives._base.fence import Fence
from weakincentives._base.generics import AnyOutputT
from weakincentives.errors import PromptEvaluationError
from weakincentives.limits import Budget, Deadline, Meter
from weakincentives.prompt import Overrides, Prompt, Tokenizer, Tool, default_tokenizer
from weakincentives.resources import ResourceCloseError, ResourceRegistry
from weakincentives.runtime.calls.approval import Decisions, PendingCall, by_call, check_decisions, waiting_calls
from weakincentives.runtime.context import Compaction, InnerLoopConfig, LoopAdapter
from weakincentives.runtime.events import ResourcesNotClosed
from weakincentives.runtime.explain import Explanation, explain
from weakincentives.runtime.hosted import HostedToolCodec
from weakincentives.runtime.loop.bridge import Workers
from weakincentives.runtime.loop.drivers import (
    AsyncEventStream,
    Channel,
    EventStream,
    StreamEvent,
    drive,
    drive_async,
    drive_stream,
    drive_stream_async,
)
from weakincentives.runtime.loop.inner_loop import InnerLoop
from weakincentives.runtime.loop.start import Beginning
from weakincentives.runtime.messages import Message, ModelRequest, PromptResponse, Settings
from weakincentives.runtime.runs import RunScope
from weakincentives.session import Session, check_tags

logger = logging.getLogger("weakincentives.runtime")
_workers = Workers("wink-adapters")
OutputT = TypeVar("OutputT")
T = TypeVar("T")


class EventSink(Protocol):
    """A bus: anything that accepts events."""

    def dispatch(self, event: Any) -> None: ...


class RunOptions(TypedDict, total=False):
    """The options of every method that runs a prompt.

    `bus` receives the run's events, as the session does. `visibility_overrides` open or summarize sections for this
    run. `settings` override the adapter's, and `tags` are recorded with the run, as are the session's. A main loop
    passes `scope` to share one deadline and one budget between restarts; it replaces those two. A conversation passes
    `beginning` and `message` to take its next turn. `decisions` about calls that wait, by call id, continue the run of
    the session; if there are none ({}), the calls are returned again. `tools` are offered in this run alone, besides
    those of the prompt. `compaction` keeps a long run below the size of the model's context window.
    """

    bus: EventSink | None
    deadline: Deadline | None  #: when the run must have ended
    budget: Budget | None  #: the most that the run may spend
    visibility_overrides: Overrides | None
    settings: Settings | None  #: override the adapter's
    tags: Mapping[str, str] | None  #: recorded with the run, besides the session's
    scope: RunScope | None  #: shares one deadline and budget between restarts, and replaces those two
    beginning: Beginning  #: set by a conversation, for its next turn
    message: Message | None  #: set by a conversation, for its next turn
    decisions: Decisions | None
    tools: Sequence[Tool[Any, Any]] | None  #: offered in this run, besides those of the prompt
    compaction: Compaction | None


class ProviderAdapter(LoopAdapter, Generic[AnyOutputT]):
    """Evaluates prompts on one model of one provider.

    A subclass declares its capabilities (`supports_dynamic_tools`, `tool_route`, `default_codecs`) and opens a
    `channel` to the model, or overrides `evaluate` entirely. `hosted_tool_codecs` are added to the adapter's own.
    `ProviderAdapter[Out]` is an adapter for prompts with this output.
    """

    name: ClassVar[str] = "adapter"

    def __init__(
        self,
        model: str,
        *,
        hosted_tool_codecs: Mapping[str, HostedToolCodec[Any, Any]] | None = None,
        output_retries: int = 1,
        tokenizer: Tokenizer | None = None,
        settings: Settings | None = None,
    ) -> None:
        if not self.has_channel and self.own_method("evaluate") is None:
            raise TypeError(f"{type(self).__name__} cannot reach a model; implement channel(), or evaluate() by itself")
        self.model = model
        self.settings = Settings().merged(settings)
        self._added_codecs = hosted_tool_codecs or {}
        self.output_retries = output_retries
        self._tokenizer = tokenizer
        self._token_counts = lru_cache(maxsize=8192)(lambda text: self.tokenizer.count(text))

    @property
    def has_channel(self) -> bool:
        """True if the library's own loop can run on this adapter."""
        return self._defines("channel") or self._defines("open_channel")

    def own_method(self, name: str) -> Callable[..., Any] | None:
        """The adapter's own `evaluate` or `evaluate_async` behind the method of this name, if it has no channel.

        It is complete with one of them, from which the other is made.
        """
        if self.has_channel:
            return None
        names = (name, "evaluate", "evaluate_async")
        return next((getattr(self, own) for own in names if self._defines(own)), None)

    def in_use(self, scope: RunScope) -> ProviderAdapter:
        """The adapter that a run is using, for one that chooses among several."""
        return self

    def _defines(self, name: str) -> bool:
        return getattr(type(self), name) is not getattr(ProviderAdapter, name)

    @property
    def identity(self) -> tuple[Any, ...]:
        """What decides about replies besides the request: evaluations of another identity are run again.

        An adapter adds its own options, without keys and other secrets, which change without changing replies.
        """
        route = self.tool_route, self.supports_dynamic_tools, self.defers_tools, self.carries_search
        return (self.name, self.model, self.settings, self.output_retries, route, sorted(self._added_codecs))

    def count_tokens(self, text: str) -> int:
        return self._token_counts(text)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer or default_tokenizer()

    @cached_property
    def hosted_tool_codecs(self) -> Mapping[str, HostedToolCodec[Any, Any]]:
        """The codecs of the hosted tools this adapter can offer, by kind."""
        return {**self.default_codecs(), **self._added_codecs}

    def default_codecs(self) -> Mapping[str, HostedToolCodec[Any, Any]]:
        """The adapter's own codecs, by kind; called when the first run starts."""
        return {}

    def channel(self) -> Channel:
        """A connection to the model for one run."""
        raise TypeError(f"{type(self).__name__} has no channel(); define it, or override the method that was called")

    @contextmanager
    def open_channel(self, loop: InnerLoop) -> Iterator[Channel]:
        """The channel for one run; override this to close what the channel holds when the run ends."""
        yield self.channel()

    @asynccontextmanager
    async def open_channel_async(self, loop: InnerLoop) -> AsyncIterator[Channel]:
        """`open_channel` on an event loop."""
        with self.open_channel(loop) as channel:
            yield channel

    @contextmanager
    def open_spare_channel(self) -> Iterator[Channel]:
        """A channel for one request outside of a run, such as a summary; override this to close what it holds."""
        yield self.channel()

    @asynccontextmanager
    async def open_spare_channel_async(self) -> AsyncIterator[Channel]:
        """`open_spare_channel` on an event loop."""
        with self.open_spare_channel() as channel:
            yield channel

    def attempt(self, run: Callable[[ProviderAdapter, RunOptions], T], session: Session, options: RunOptions) -> T:
        """Call `run` with this adapter; `FallbackAdapter` calls it with one adapter after another until one works."""
        return run(self, options)

    def close(self) -> None:
        """Release what is kept between runs; the adapter may be used again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()

    def evaluate(
        self, prompt: Prompt[OutputT], *, session: Session, **options: Unpack[RunOptions]
    ) -> PromptResponse[OutputT]:
        """Render the prompt, then call the model and run its tools until it answers."""
        if not self.has_channel and self._defines("evaluate_async"):
            return _run_alone(type(self).__name__, self.evaluate_async(prompt, session=session, **options))
        with self._running(self.loop(prompt, session, **options), options) as (loop, channel):
            return drive(loop, channel)

    async def evaluate_async(
        self, prompt: Prompt[OutputT], *, session: Session, **options: Unpack[RunOptions]
    ) -> PromptResponse[OutputT]:
        """`evaluate` on an event loop."""
        if not self.has_channel and self._defines("evaluate"):
            scope = options.get("scope")
            fence = Fence() if scope is None else scope.fence
            return await _in_thread(partial(self.evaluate, prompt, session=session, **options), fence)
        async with self._running_async(self.loop(prompt, session, **options), options) as (loop, channel):
            return await drive_async(loop, channel)

    def stream(
        self, prompt: Prompt[OutputT], *, session: Session, **options: Unpack[RunOptions]
    ) -> EventStream[OutputT]:
        """`evaluate` as a stream of events: text deltas, tool starts and ends, and finally the response.

        with adapter.stream(prompt, session=session) as events:
            for event in events: ...
        """
        loop = self.loop(prompt, session, **options)
        return EventStream(self._stream(loop, options), loop.scope)

    def stream_async(
        self, prompt: Prompt[OutputT], *, session: Session, **options: Unpack[RunOptions]
    ) -> AsyncEventStream[OutputT]:
        """`stream` on an event loop."""
        loop = self.loop(prompt, session, **options)
        return AsyncEventStream(self._stream_async(loop, options), loop.scope)

    def resume(
        self, prompt: Prompt[OutputT], *, session: Session, **options: Unpack[RunOptions]
    ) -> PromptResponse[OutputT]:
        """Continue the session's run with the request it would have sent next, in this process or another."""
        # Not by `evaluate`: an adapter that defines that alone may not know how to continue.
        options["beginning"] = "resume"
        with self._running(self.loop(prompt, session, **options), options) as (loop, channel):
            return drive(loop, channel)

    async def resume_async(
        self, prompt: Prompt[OutputT], *, session: Session, **options: Unpack[RunOptions]
    ) -> PromptResponse[OutputT]:
        """`resume` on an event loop."""
        options["beginning"] = "resume"
        return await self.evaluate_async(prompt, session=session, **options)

    def explain(
        self, prompt: Prompt[Any], session: Session | None = None, *, visibility_overrides: Overrides | None = None
    ) -> Explanation:
        """Explain what a run would do, before any money is spent."""
        return explain(prompt, self, session=session, visibility_overrides=visibility_overrides)

    def count(self, prompt: Prompt[Any], session: Session | None = None) -> int:
        """The tokens of the next request: the vendor's own count if it offers one, else an estimate."""
        request = self.next_request(prompt, session)
        return self.count_request(request.messages, [*request.tools, *request.hosted_tools])

    def next_request(self, prompt: Prompt[Any], session: Session | None = None) -> ModelRequest:
        """The request that begins a run, or continues a session's conversation; nothing is changed."""
        session = Session() if session is None else session.clone()
        session.silent = True
        beginning: Beginning = "new" if session[Message].latest() is None else "exchange"
        return self.loop(prompt, session, beginning=beginning).next_request()

    def loop(self, prompt: Prompt[Any], session: Session, **options: Unpack[RunOptions]) -> InnerLoop:
        """The inner loop of one run, for a driver to run."""
        unknown = options.keys() - RunOptions.__annotations__.keys()
        if unknown:
            raise TypeError(
                f"unexpected keyword argument '{min(unknown)}'; known: {', '.join(RunOptions.__annotations__)}"
            )
        scope = options.get("scope") or RunScope(Meter(options.get("budget"), options.get("deadline")))
        scope.tags, scope.tools = check_tags(options.get("tags")), tuple(options.get("tools") or ())
        for each in scope.tools:
            if not isinstance(each, Tool):
                raise TypeError(f"tools must be a list of tools, got {each!r} in it; decorate a function with @tool")
        if options.get("beginning") == "exchange":
            scope.in_conversation = True
        if not isinstance(compaction := options.get("compaction"), Compaction | None):
            raise TypeError(
                f"compaction must be a Compaction or None, got {compaction!r}; write Compaction(window=...)"
            )
        if isinstance(session, Session):
            self._decide(scope, waiting_calls(session), prompt, options)
        loop = InnerLoop(
            prompt,
            session,
            scope,
            self,
            InnerLoopConfig(self.supports_dynamic_tools, self.settings.merged(options.get("settings")), compaction),
            visibility_overrides=options.get("visibility_overrides"),
            beginning=options.get("beginning", "new"),
            message=options.get("message"),
        )
        # Decisions, and the next adapter, continue an exchange, which is still one of a conversation.
        loop.in_conversation = scope.in_conversation
        return loop

    def _decide(
        self, scope: RunScope, waiting: Mapping[str, PendingCall], prompt: Prompt[Any], options: RunOptions
    ) -> None:
        """Take the decisions about calls that wait, once; another adapter of the same run finds those that are left."""
        decisions = options.get("decisions")
        if decisions is not None and options.get("message") is None:
            options["beginning"] = "resume"
        elif waiting and options.get("beginning", "new") == "new" and scope.decisions is None:
            calls = ", ".join(f"'{call.call_id}' ({call.tool})" for call in waiting.values())
            raise PromptEvaluationError(
                f"The session has calls that wait for a decision: {calls}; pass decisions={{...}}, or {{}} to see them "
                "again, or run on another session.",
                prompt_name=prompt.name,
                phase="tool",
            )
        if scope.decisions is None:
            check_decisions(decisions or {}, waiting, prompt.name)
            scope.decisions = by_call(decisions or {}, waiting)

    def _stream(self, loop: InnerLoop, options: RunOptions) -> Generator[StreamEvent[Any], None, None]:
        with self._running(loop, options) as (loop, channel):
            yield from drive_stream(loop, channel)

    async def _stream_async(self, loop: InnerLoop, options: RunOptions) -> AsyncGenerator[StreamEvent[Any], None]:
        async with (
            self._running_async(loop, options) as (loop, channel),
            aclosing(drive_stream_async(loop, channel)) as events,
        ):
            async for event in events:
                yield event

    @contextmanager
    def _running(self, loop: InnerLoop, options: RunOptions) -> Iterator[tuple[InnerLoop, Channel]]:
        with (
            _claimed(loop, options.get("bus")),
            closing_resources(loop.prompt, loop.session, loop.scope),
            self.open_channel(loop) as channel,
        ):
            yield loop, channel

    @asynccontextmanager
    async def _running_async(self, loop: InnerLoop, options: RunOptions) -> AsyncIterator[tuple[InnerLoop, Channel]]:
        with _claimed(loop, options.get("bus")):
            async with (
                closing_resources_async(loop.prompt, loop.session, loop.scope),
                self.open_channel_async(loop) as channel,
            ):
                yield loop, channel


def _run_alone(name: str, work: Coroutine[Any, Any, T]) -> T:
    """Run what an adapter has for event loops alone to its end, in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    work.close()
    raise RuntimeError(f"{name}.evaluate cannot run while this thread runs an event loop; await evaluate_async")


async def _in_thread(work: Callable[[], T], fence: Fence) -> T:
    """Run what an adapter has for blocking callers alone in a thread; after a cancellation, it writes no more."""

    def fenced() -> T:
        with fence:
            return work()

    try:
        return await _workers.call(fenced)
    except asyncio.CancelledError:
        fence.close()
        raise


@contextmanager
def _claimed(loop: InnerLoop, bus: EventSink | None) -> Iterator[None]:
    """Claim the session and connect the bus."""
    with loop.scope.meter.on_errors(), loop.session.claim(loop.owner):
        unsubscribe = None if bus is None else loop.session.observe(bus.dispatch)
        try:
            yield
        finally:
            if unsubscribe is not None:
                unsubscribe()


@contextmanager
def closing_resources(prompt: Prompt[Any], session: Session, scope: RunScope) -> Iterator[None]:
    """The resources of a run, as bound when it began; a failure to close them after a success is only recorded."""
    finished = False
    try:
        with prompt.resources.for_run(session, _bound_resources(prompt, scope)):
            yield
            finished = True
    except ResourceCloseError as error:
        if not finished:
            raise
        _record_not_closed(error, session, scope.run_id)


@asynccontextmanager
async def closing_resources_async(prompt: Prompt[Any], session: Session, scope: RunScope) -> AsyncIterator[None]:
    """`closing_resources` on an event loop."""
    finished = False
    try:
        async with prompt.resources.for_run_async(session, _bound_resources(prompt, scope)):
            yield
            finished = True
    except ResourceCloseError as error:
        if not finished:
            raise
        _record_not_closed(error, session, scope.run_id)


def _bound_resources(prompt: Prompt[Any], scope: RunScope) -> ResourceRegistry:
    return prompt.bound_resources if scope.presentation is None else scope.presentation.bound_resources


def _record_not_closed(error: ResourceCloseError, session: Session, run_id: str) -> None:
    logger.error("%s", error, exc_info=error)
    session.dispatch(ResourcesNotClosed(error.message, run_id=run_id, timestamp=session.timestamp()))
