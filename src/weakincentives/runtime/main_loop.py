"""Run a prompt until it is answered, with the sections open that it needs, and hold a conversation."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import replace
from typing import Any, Generic, Self, TypeVar, Unpack, cast

from weakincentives._base.display import Displayed, Shown, strip
from weakincentives._base.generics import OutputT
from weakincentives.content import Content
from weakincentives.limits import Budget, Deadline, Meter, Spent, TokenUsage
from weakincentives.prompt import BoundPrompt, LoadedSections, Presentation, Prompt, Tool
from weakincentives.runtime.adapter import ProviderAdapter, RunOptions, check_prompt, driver
from weakincentives.runtime.calls.approval import Decisions, PendingCall
from weakincentives.runtime.events import Compacted, ModelCalled, RunEnded, SectionsRanked, ToolInvoked
from weakincentives.runtime.loop.drive import RunDriver
from weakincentives.runtime.loop.streams import AsyncEventStream, EventStream
from weakincentives.runtime.messages import Message, ModelRequest, PromptResponse, user_message
from weakincentives.runtime.model import Model
from weakincentives.runtime.past.rewind import Rewindable
from weakincentives.runtime.providers import prices_for
from weakincentives.runtime.spec import RunSpec
from weakincentives.runtime.state import RunState, conversation_of
from weakincentives.runtime.window.rules import Compaction
from weakincentives.session import Session

T = TypeVar("T")
EventT = TypeVar("EventT", Compacted, ModelCalled, RunEnded, SectionsRanked, ToolInvoked)
_JOIN_SECONDS = 0.01


class MainLoop:
    """Runs a prompt until it is answered, restarting with more sections open if the adapter or strategy needs it.

    Deadline and budget cover all attempts together, and there are at most `max_expansions` restarts. A deadline is a
    point in time, so if a loop serves many requests, pass one for each: `execute(..., deadline=Deadline.after(30))`.
    `execute` and `stream` accept the options of an adapter's `evaluate`.
    """

    def __init__(
        self,
        *,
        max_expansions: int = 10,  #: how often a run may restart to open sections
        deadline: Deadline | None = None,  #: for all attempts together
        budget: Budget | None = None,  #: the most that a run may spend
        recorder: AbstractContextManager[Any] | None = None,  #: such as `record(path)`
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
        return self._run(prompt, session, adapter, options).returned()

    async def execute_async(
        self, prompt: Prompt[T], *, session: Session, adapter: ProviderAdapter, **options: Unpack[RunOptions]
    ) -> PromptResponse[T]:
        """`execute` on an event loop."""
        return await self._run(prompt, session, adapter, options).awaited()

    def stream(
        self, prompt: Prompt[T], *, session: Session, adapter: ProviderAdapter, **options: Unpack[RunOptions]
    ) -> EventStream[T]:
        """`execute` as a stream of events, through restarts."""
        return self._run(prompt, session, adapter, options).streamed()

    def stream_async(
        self, prompt: Prompt[T], *, session: Session, adapter: ProviderAdapter, **options: Unpack[RunOptions]
    ) -> AsyncEventStream[T]:
        """`stream` on an event loop."""
        return self._run(prompt, session, adapter, options).streamed_async()

    def _run(self, prompt: Prompt[T], session: Session, adapter: ProviderAdapter, options: RunOptions) -> RunDriver[T]:
        """A run that may restart, ready to begin."""
        check_prompt(prompt)
        if not isinstance(adapter, ProviderAdapter):
            way_out = f"adapter_for({adapter!r})" if isinstance(adapter, str) else "one, such as OpenAIAdapter(model)"
            raise TypeError(f"adapter must be a ProviderAdapter, got {adapter!r}; pass {way_out}")
        return driver(prompt, session, self.spec(adapter.run_spec(prompt, options)), options, self.recorder)

    def spec(self, spec: RunSpec) -> RunSpec:
        """The run with this loop's limits, unless it has its own; it may restart."""
        return replace(
            spec,
            budget=spec.budget or self.budget,
            deadline=spec.deadline or self.deadline,
            max_expansions=self.max_expansions,
        )


def run(
    prompt: Prompt[T],  #: the prompt, with its params bound
    adapter: ProviderAdapter,  #: the model
    *,
    session: Session | None = None,  #: the state; by default a new session
    recorder: AbstractContextManager[Any] | None = None,  #: such as `record(path)`
    max_expansions: int = 10,  #: how often the run may restart to open sections
    **options: Unpack[RunOptions],
) -> PromptResponse[T]:
    """Run a prompt until it is answered. Without a session, `response.session` is a new one."""
    session = Session() if session is None else session
    loop = MainLoop(max_expansions=max_expansions, recorder=recorder)
    return replace(loop.execute(prompt, session=session, adapter=adapter, **options), session=session)


async def run_async(
    prompt: Prompt[T],  #: the prompt, with its params bound
    adapter: ProviderAdapter,  #: the model
    *,
    session: Session | None = None,  #: the state; by default a new session
    recorder: AbstractContextManager[Any] | None = None,  #: such as `record(path)`
    max_expansions: int = 10,  #: how often the run may restart to open sections
    **options: Unpack[RunOptions],
) -> PromptResponse[T]:
    """`run` on an event loop."""
    session = Session() if session is None else session
    loop = MainLoop(max_expansions=max_expansions, recorder=recorder)
    return replace(await loop.execute_async(prompt, session=session, adapter=adapter, **options), session=session)


class ExchangeOptions(RunOptions, total=False):
    """The options of an exchange; with `output`, its answer has this type instead of the prompt's."""

    output: Any


class Conversation(Displayed, Rewindable, Generic[OutputT]):
    """A conversation with a model, in several exchanges.

        chat = Conversation(prompt, adapter=OpenAIAdapter("gpt-5.6"))
        print(chat.send("Where is order 7?").text)
        with chat.stream([Image.from_path("box.jpg"), "It arrived like this."]) as events:
            for event in events: ...

    All state is in the session: opened sections stay open, and a conversation whose session was restored from a
    snapshot continues from there. Each exchange is a separate run; `budget` limits each of them unless `send` receives
    another. `total` limits the conversation as a whole, in turns only if it sets `max_turns`. A run can be stopped at
    any time: by closing its stream, cancelling its task, or Ctrl-C. Used as a context manager, the conversation keeps
    the prompt's resources open in between. `prompt` is its own copy of the prompt. `compaction` keeps the conversation
    below the size of the model's context window; None turns it off. It can go back: `checkpoints()` lists where to, and
    `rewind(point)` takes messages, state and files there.
    """

    def __init__(
        self,
        prompt: Prompt[OutputT],  #: the prompt of each exchange
        *,
        adapter: ProviderAdapter,  #: the model
        session: Session | None = None,  #: the state; by default a new session
        budget: Budget | None = None,
        total: Budget | None = None,
        max_expansions: int = 10,  #: how often a run may restart to open sections
        compaction: Compaction | None = Compaction(),
    ) -> None:
        if not isinstance(compaction, Compaction | None):
            raise TypeError(
                f"compaction must be a Compaction or None, got {compaction!r}; write Compaction(window=...)"
            )
        Meter(budget, total=total)  # Rejects what is not a budget now, not in the first exchange.
        self.prompt = copy(prompt)
        self._loaded = LoadedSections()
        self.adapter = adapter
        self.session = Session() if session is None else session
        self.total = total
        self.compaction = compaction
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

    def twin(self, prompt: Prompt[OutputT], session: Session) -> Self:
        """A conversation with the same settings on another session, whose sections have what these have loaded."""
        loop = self._loop
        twin = type(self)(
            prompt,
            adapter=self.adapter,
            session=session,
            budget=loop.budget,
            total=self.total,
            max_expansions=loop.max_expansions,
            compaction=self.compaction,
        )
        twin._loaded = self._loaded.copy()
        return twin

    @property
    def conversation_id(self) -> str:
        """The id shared by all runs of this conversation."""
        return conversation_of(self.session)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages so far, from the user, the model and the tools."""
        return self.session[Message].all()

    def __repr__(self) -> str:
        usage, calls = self.usage, len(self._of_mine(ModelCalled))
        spent = f"{calls} model calls, {usage.input_tokens:,} tokens in, {usage.output_tokens:,} out"
        return f"<Conversation of {self.prompt.name!r} on {self.adapter.name}: {len(self.messages)} messages, {spent}>"

    def _display(self) -> Iterator[Shown]:
        yield repr(self).strip("<>")
        yield strip([(call.usage.input_tokens, call.usage.cached_tokens) for call in self._of_mine(ModelCalled)])
        yield from self.session[Message]._display()
        if (run := self.session[RunState].latest()) is not None:
            yield f"If it was recorded: wink view --run {run.run_id}"

    @property
    def usage(self) -> TokenUsage:
        """The tokens used in all exchanges, including those in earlier processes."""
        kinds: tuple[type[Any], ...] = (ModelCalled, Compacted, SectionsRanked)
        return sum((event.usage for kind in kinds for event in self._of_mine(kind)), TokenUsage())

    def bind(self, *params: Any) -> None:
        """Replace bound params; the next exchange begins with a notice of what changed."""
        self.prompt.bind(*params)

    def send(
        self, content: Content | Message | None = None, *, join: bool = False, **options: Unpack[ExchangeOptions]
    ) -> PromptResponse[OutputT]:
        """Send a message and wait for the answer. Without content, the model answers the prompt's user sections.

        With `decisions`, pending calls are settled first; those without one count as not decided. With `join=True`, a
        message that comes while another thread's run is under way is added to that run before its next model call, and
        its answer is that of the run; a prompt with guards, which pass a message before a run, takes it as the next.
        """
        joined = join and content is not None and self._join(content)
        while join and self.session.busy:
            time.sleep(_JOIN_SECONDS)
        if joined and (answered := self._last_response()) is not None:
            return answered
        return self.driver(None if joined else content, options).returned()

    async def send_async(
        self, content: Content | Message | None = None, *, join: bool = False, **options: Unpack[ExchangeOptions]
    ) -> PromptResponse[OutputT]:
        """`send` on an event loop."""
        joined = join and content is not None and self._join(content)
        while join and self.session.busy:
            await asyncio.sleep(_JOIN_SECONDS)
        if joined and (answered := self._last_response()) is not None:
            return answered
        return await self.driver(None if joined else content, options).awaited()

    def _join(self, content: Content | Message) -> bool:
        """Add a message to the run under way, if there is one that may take it."""
        template = self.prompt.template
        guarded = template.guards or template.outline.guarded or self._loaded.has_guards
        if guarded or not self.session.busy:
            return False
        message = _message(content)
        assert message is not None
        self._model_in_use().check_parts(message.parts, self.messages)
        self.session.dispatch(message)
        return True

    def _model_in_use(self) -> Model:
        """The model of the run under way, or that of the next."""
        state, models = self.session[RunState].latest(), self.adapter.models
        return models[0 if state is None or state.model >= len(models) else state.model]

    def _last_response(self) -> PromptResponse[OutputT] | None:
        """The response of the last run, unless a message came after it, or it failed."""
        runs, last = [each for each in self._of_mine(RunEnded) if not each.parent_run_id], self.messages[-1]
        if last.by_user or not runs or runs[-1].status not in ("completed", "waiting"):
            return None
        run = runs[-1]
        return PromptResponse(
            run.prompt_name,
            run.text,
            run.output,
            usage=run.usage,
            turns=run.turns,
            run_id=run.run_id,
            conversation_id=run.conversation_id,
            pending=self.pending,
        )

    @property
    def pending(self) -> tuple[PendingCall, ...]:
        """The calls that wait for a person's decision."""
        return self.session[PendingCall].all()

    def decide(self, decisions: Decisions, /, **options: Unpack[ExchangeOptions]) -> PromptResponse[OutputT]:
        """Decide about pending calls, and continue the exchange once all are decided."""
        options["decisions"] = decisions
        return self.send(None, **options)

    async def decide_async(
        self, decisions: Decisions, /, **options: Unpack[ExchangeOptions]
    ) -> PromptResponse[OutputT]:
        """`decide` on an event loop."""
        options["decisions"] = decisions
        return await self.send_async(None, **options)

    def stream(
        self, content: Content | Message | None = None, **options: Unpack[ExchangeOptions]
    ) -> EventStream[OutputT]:
        """`send` as a stream of events; leaving it stops the run."""
        return self.driver(content, options).streamed()

    def stream_async(
        self, content: Content | Message | None = None, **options: Unpack[ExchangeOptions]
    ) -> AsyncEventStream[OutputT]:
        """`stream` on an event loop."""
        return self.driver(content, options).streamed_async()

    def driver(
        self,
        content: Content | Message | None,
        options: ExchangeOptions,
        *,
        handler_of: Callable[[Tool[Any, Any]], Callable[..., Any]] | None = None,
    ) -> RunDriver[OutputT]:
        """The next exchange, ready to begin; `handler_of` replaces the handlers of tools, for a replay."""
        run_options: dict[str, Any] = {"compaction": self.compaction, **options}
        prompt = self.prompt
        if "output" in run_options:
            prompt = prompt.with_template(prompt.template.with_(output=run_options.pop("output")))
        spec = self._loop.spec(self.adapter.run_spec(prompt, cast(RunOptions, run_options)))
        message = _message(content)
        spec = replace(
            spec,
            resources=self.prompt.resources,
            loaded=self._loaded_with(spec.prompt),
            total=self.total,
            spent_before=None if self.total is None else self.spent(self.total),
            beginning="resume" if spec.beginning == "resume" and message is None else "exchange",
            in_conversation=True,
            message=message,
            handler_of=handler_of,
        )
        return driver(prompt, self.session, spec, cast(RunOptions, run_options))

    def _loaded_with(self, prompt: BoundPrompt[Any]) -> LoadedSections:
        """What sections have loaded in this conversation; nothing if it was loaded with other resources."""
        if self._loaded.bound_resources is not prompt.bound_resources:
            self._loaded = LoadedSections(prompt.bound_resources)
        return self._loaded

    def presentation(self) -> Presentation:
        """The prompt as the next exchange shows it, with what sections have loaded."""
        prompt = self.prompt.bound()
        return prompt.present(self.session, self._loaded_with(prompt))

    def next_request(self) -> ModelRequest:
        """The request that the next exchange begins with, without its message; nothing is changed."""
        loaded = self._loaded_with(self.prompt.bound()).copy()
        return self.adapter.next_request(self.prompt, self.session, loaded=loaded)

    def count(self) -> int:
        """The tokens of that request: the vendor's own count if it offers one, else an estimate."""
        return self.adapter.count_request(self.next_request())

    def spent(self, total: Budget) -> Spent:
        """The expenses of all exchanges so far, which the session's events know in every process."""
        calls, cost = self._of_mine(ModelCalled), 0.0
        if total.max_cost is not None and total.prices is None:
            default = prices_for(self.adapter.model)
            known = ((prices_for(call.model) or default, call.usage) for call in calls)
            cost = sum(prices.cost(usage) for prices, usage in known if prices is not None)
            cost += sum(default.cost(each.usage) for each in self._of_mine(Compacted)) if default is not None else 0.0
            cost += sum(each.cost for each in self._of_mine(SectionsRanked))
        # A call that was stopped is no event, but has cost something; whoever stops in time must not pass the limit.
        stopped = sum(event.status == "stopped" for event in self._of_mine(RunEnded))
        return Spent(self.usage, len(calls) + stopped, len(self._of_mine(ToolInvoked)), cost)

    def _of_mine(self, kind: type[EventT]) -> list[EventT]:
        """The session's events of this conversation."""
        mine = self.conversation_id
        return [event for event in self.session[kind].view() if event.conversation_id == mine]


def _message(content: Content | Message | None) -> Message | None:
    """A message of the user with this content."""
    if content is None or isinstance(content, Message):
        return content
    return user_message(content)
