"""Run a prompt until it is answered, with the sections open that it needs, and hold a conversation."""

from __future__ import annotations

import weakref
from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import replace
from typing import Any, Generic, Self, TypeVar, Unpack

from weakincentives._generics import OutputT
from weakincentives.content import Content
from weakincentives.limits import Budget, Deadline, Meter, Spent, TokenUsage
from weakincentives.prompt import Prompt, VisibilityExpansionRequired
from weakincentives.runtime.adapter import ProviderAdapter, RunOptions
from weakincentives.runtime.approval import Decisions, PendingCall
from weakincentives.runtime.drivers import AsyncEventStream, EventStream, StreamEvent
from weakincentives.runtime.events import ModelCalled, RunEnded, ToolInvoked
from weakincentives.runtime.inner_loop import check_prompt
from weakincentives.runtime.messages import Message, PromptResponse, user_message
from weakincentives.runtime.providers import prices_for
from weakincentives.runtime.runs import Run, RunScope
from weakincentives.session import Session

T = TypeVar("T")
EventT = TypeVar("EventT", ModelCalled, RunEnded, ToolInvoked)


class MainLoop:
    """Runs a prompt until it is answered, restarting with more sections open if the adapter or strategy needs it.

    Deadline and budget cover all attempts together, and there are at most `max_expansions` restarts. A deadline is a
    point in time, so if a loop serves many requests, pass one for each: `execute(..., deadline=Deadline.after(30))`.
    `execute` and `stream` accept the options of an adapter's `evaluate`.
    """

    def __init__(
        self,
        *,
        max_expansions: int = 10,
        deadline: Deadline | None = None,
        budget: Budget | None = None,
        recorder: AbstractContextManager[Any] | None = None,
    ) -> None:
        if recorder is not None and not isinstance(recorder, AbstractContextManager):
            raise TypeError(f"recorder must be a context manager, got {recorder!r}; write record(path)")
        self.max_expansions = max_expansions
        self.deadline = deadline
        self.budget = budget
        self.recorder = recorder

    def execute(
        self, prompt: Prompt[T], *, session: Session, adapter: ProviderAdapter, **options: Unpack[RunOptions]
    ) -> PromptResponse[T]:
        """Evaluate until there is an answer; `deadline` and `budget` replace the loop's own."""
        scope = self._scope(prompt, adapter, options)
        with self.recorder or nullcontext():
            while True:
                try:
                    return adapter.evaluate(prompt, session=session, **options)
                except VisibilityExpansionRequired as signal:
                    # Of an adapter with an `evaluate` of its own: the inner loop restarts by itself.
                    scope.check_expansions(signal, prompt.name)
                    scope.open(signal, session)

    async def execute_async(
        self, prompt: Prompt[T], *, session: Session, adapter: ProviderAdapter, **options: Unpack[RunOptions]
    ) -> PromptResponse[T]:
        """`execute` on an event loop."""
        self._scope(prompt, adapter, options)
        with self.recorder or nullcontext():
            return await adapter.evaluate_async(prompt, session=session, **options)

    def stream(
        self, prompt: Prompt[T], *, session: Session, adapter: ProviderAdapter, **options: Unpack[RunOptions]
    ) -> EventStream[T]:
        """`execute` as a stream of events, through restarts."""
        scope = self._scope(prompt, adapter, options)

        def events() -> Generator[StreamEvent[T], None, None]:
            with self.recorder or nullcontext(), adapter.stream(prompt, session=session, **options) as stream:
                yield from stream

        return EventStream(events(), scope)

    def stream_async(
        self, prompt: Prompt[T], *, session: Session, adapter: ProviderAdapter, **options: Unpack[RunOptions]
    ) -> AsyncEventStream[T]:
        """`stream` on an event loop."""
        scope = self._scope(prompt, adapter, options)

        async def events() -> AsyncGenerator[StreamEvent[T], None]:
            with self.recorder or nullcontext():
                async with adapter.stream_async(prompt, session=session, **options) as stream:
                    async for event in stream:
                        yield event

        return AsyncEventStream(events(), scope)

    def _scope(self, prompt: Prompt[Any], adapter: object, options: RunOptions) -> RunScope:
        """Put the scope of a new run, which may restart, into its options."""
        check_prompt(prompt)
        if not isinstance(adapter, ProviderAdapter):
            way_out = f"adapter_for({adapter!r})" if isinstance(adapter, str) else "one, such as OpenAIAdapter(model)"
            raise TypeError(f"adapter must be a ProviderAdapter, got {adapter!r}; pass {way_out}")
        meter = Meter(options.get("budget") or self.budget, options.get("deadline") or self.deadline)
        scope = options["scope"] = options.get("scope") or RunScope(meter)
        scope.max_expansions = self.max_expansions
        return scope


def run(
    prompt: Prompt[T],
    adapter: ProviderAdapter,
    *,
    session: Session | None = None,
    recorder: AbstractContextManager[Any] | None = None,
    max_expansions: int = 10,
    **options: Unpack[RunOptions],
) -> PromptResponse[T]:
    """Run a prompt until it is answered. Without a session, `response.session` is a new one."""
    session = Session() if session is None else session
    loop = MainLoop(max_expansions=max_expansions, recorder=recorder)
    return replace(loop.execute(prompt, session=session, adapter=adapter, **options), session=session)


async def run_async(
    prompt: Prompt[T],
    adapter: ProviderAdapter,
    *,
    session: Session | None = None,
    recorder: AbstractContextManager[Any] | None = None,
    max_expansions: int = 10,
    **options: Unpack[RunOptions],
) -> PromptResponse[T]:
    """`run` on an event loop."""
    session = Session() if session is None else session
    loop = MainLoop(max_expansions=max_expansions, recorder=recorder)
    return replace(await loop.execute_async(prompt, session=session, adapter=adapter, **options), session=session)


class Conversation(Generic[OutputT]):
    """A conversation with a model, in several exchanges.

        chat = Conversation(prompt, adapter=OpenAIAdapter("gpt-5.6"))
        print(chat.send("Where is order 7?").text)
        with chat.stream([Image.from_path("box.jpg"), "It arrived like this."]) as events:
            for event in events: ...

    All state is in the session: opened sections stay open, and a conversation whose session was restored from a
    snapshot continues from there. Each exchange is a separate run; `budget` limits each of them unless `send` receives
    another. `total` limits the conversation as a whole, in turns only if it sets `max_turns`. A run can be stopped at
    any time: by closing its stream, cancelling its task, or Ctrl-C. Used as a context manager, the conversation keeps
    the prompt's resources open in between. `prompt` is its own copy of the prompt.
    """

    def __init__(
        self,
        prompt: Prompt[OutputT],
        *,
        adapter: ProviderAdapter,
        session: Session | None = None,
        budget: Budget | None = None,
        total: Budget | None = None,
        max_expansions: int = 10,
    ) -> None:
        Meter(budget, total=total)  # Rejects what is not a budget now, not in the first exchange.
        self.prompt = copy(prompt)
        self.adapter = adapter
        self.session = Session() if session is None else session
        self.total = total
        self._loop = MainLoop(max_expansions=max_expansions, budget=budget)
        self.prompt.resources.keep_loop()
        weakref.finalize(self, self.prompt.resources.close_loop).atexit = False

    def __enter__(self) -> Self:
        self.prompt.resources.enter(self.session)
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            self.prompt.resources.__exit__(*error)
        finally:
            self.prompt.resources.close_loop()

    async def __aenter__(self) -> Self:
        await self.prompt.resources.enter_async(self.session)
        return self

    async def __aexit__(self, *error: Any) -> None:
        try:
            await self.prompt.resources.__aexit__(*error)
        finally:
            self.prompt.resources.close_loop()

    @property
    def conversation_id(self) -> str:
        """The id shared by all runs of this conversation."""
        run = self.session[Run].latest()
        return self.session.session_id if run is None else run.conversation_id

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages so far, from the user, the model and the tools."""
        return self.session[Message].all()

    @property
    def usage(self) -> TokenUsage:
        """The tokens used in all exchanges, including those in earlier processes."""
        return sum((call.usage for call in self._of_mine(ModelCalled)), TokenUsage())

    def bind(self, *params: Any) -> None:
        """Replace bound params; the next exchange begins with a notice of what changed."""
        self.prompt.bind(*params)

    def send(self, content: Content | None = None, **options: Unpack[RunOptions]) -> PromptResponse[OutputT]:
        """Send a message and wait for the answer. Without content, the model answers the prompt's user sections.

        With `decisions`, pending calls are settled first; those without one count as not decided.
        """
        return self._loop.execute(self.prompt, **self._exchange(content, options))

    async def send_async(
        self, content: Content | None = None, **options: Unpack[RunOptions]
    ) -> PromptResponse[OutputT]:
        """`send` on an event loop."""
        return await self._loop.execute_async(self.prompt, **self._exchange(content, options))

    @property
    def pending(self) -> tuple[PendingCall, ...]:
        """The calls that wait for a person's decision."""
        return self.session[PendingCall].all()

    def decide(self, decisions: Decisions, /, **options: Unpack[RunOptions]) -> PromptResponse[OutputT]:
        """Decide about pending calls, and continue the exchange once all are decided."""
        options["decisions"] = decisions
        return self.send(None, **options)

    async def decide_async(self, decisions: Decisions, /, **options: Unpack[RunOptions]) -> PromptResponse[OutputT]:
        """`decide` on an event loop."""
        options["decisions"] = decisions
        return await self.send_async(None, **options)

    def stream(self, content: Content | None = None, **options: Unpack[RunOptions]) -> EventStream[OutputT]:
        """`send` as a stream of events; leaving it stops the run."""
        return self._loop.stream(self.prompt, **self._exchange(content, options))

    def stream_async(self, content: Content | None = None, **options: Unpack[RunOptions]) -> AsyncEventStream[OutputT]:
        """`stream` on an event loop."""
        return self._loop.stream_async(self.prompt, **self._exchange(content, options))

    def _exchange(self, content: Content | None, options: RunOptions) -> dict[str, Any]:
        message = options.get("message") if content is None else user_message(content)
        whose: dict[str, Any] = {"session": self.session, "adapter": self.adapter}
        if self.total is not None:
            budget, before = options.get("budget") or self._loop.budget, self._spent(self.total)
            whose["scope"] = RunScope(Meter(budget, options.get("deadline"), total=self.total, before=before))
        return {**options, **whose, "beginning": "exchange", "message": message}

    def _spent(self, total: Budget) -> Spent:
        """The expenses of all exchanges so far, which the session's events know in every process."""
        calls, cost = self._of_mine(ModelCalled), 0.0
        if total.max_cost is not None and total.prices is None:
            default = prices_for(self.adapter.model)
            known = ((prices_for(call.model) or default, call.usage) for call in calls)
            cost = sum(prices.cost(usage) for prices, usage in known if prices is not None)
        # A call that was stopped is no event, but has cost something; whoever stops in time must not pass the limit.
        stopped = sum(event.status == "stopped" for event in self._of_mine(RunEnded))
        return Spent(self.usage, len(calls) + stopped, len(self._of_mine(ToolInvoked)), cost)

    def _of_mine(self, kind: type[EventT]) -> list[EventT]:
        """The session's events of this conversation."""
        mine = self.conversation_id
        return [event for event in self.session[kind].view() if event.conversation_id == mine]
