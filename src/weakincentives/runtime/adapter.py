"""The base of every adapter: a model of a provider, with the doors by which a prompt is run on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from typing import Any, ClassVar, Generic, TypedDict, TypeVar, Unpack

from weakincentives._base.annotations import signature_of
from weakincentives._base.fence import Fence
from weakincentives._base.generics import AnyOutputT
from weakincentives.errors import PromptEvaluationError
from weakincentives.limits import Budget, Deadline
from weakincentives.prompt import LoadedSections, Overrides, Prompt, Tokenizer, Tool, default_tokenizer
from weakincentives.runtime.calls.approval import Decisions, by_call, check_decisions, waiting_calls
from weakincentives.runtime.explain import Explanation, explain
from weakincentives.runtime.hosted import HostedToolCodec
from weakincentives.runtime.live import LiveRun
from weakincentives.runtime.loop.bridge import Workers
from weakincentives.runtime.loop.drive import EventSink, RunDriver
from weakincentives.runtime.loop.inner_loop import next_request
from weakincentives.runtime.loop.streams import AsyncEventStream, EventStream
from weakincentives.runtime.messages import Message, ModelRequest, PromptResponse, Settings
from weakincentives.runtime.model import Model
from weakincentives.runtime.spec import RunSpec
from weakincentives.runtime.window.rules import Compaction
from weakincentives.session import Session, check_tags

_workers = Workers("wink-adapters")
OutputT = TypeVar("OutputT")
T = TypeVar("T")


class RunOptions(TypedDict, total=False):
    """The options of every method that runs a prompt.

    `bus` receives the run's events, as the session does. `visibility_overrides` open or summarize sections for this
    run. `settings` override the adapter's, and `tags` are recorded with the run, as are the session's. `decisions`
    about calls that wait, by call id, continue the run of the session; if there are none ({}), the calls are returned
    again. `tools` are offered in this run alone, besides those of the prompt. `compaction` keeps a long run below the
    size of the model's context window. An adapter whose own `evaluate` takes any options gets `within`, the run that it
    is part of, to pass on to the adapter that it calls.
    """

    bus: EventSink | None
    deadline: Deadline | None  #: when the run must have ended
    budget: Budget | None  #: the most that the run may spend
    visibility_overrides: Overrides | None
    settings: Settings | None  #: override the adapter's
    tags: Mapping[str, str] | None  #: recorded with the run, besides the session's
    decisions: Decisions | None
    tools: Sequence[Tool[Any, Any]] | None  #: offered in this run, besides those of the prompt
    compaction: Compaction | None
    within: LiveRun  #: the run that an adapter's own `evaluate` is part of


class ProviderAdapter(Model, Generic[AnyOutputT]):
    """A model of one provider, and the doors by which prompts are run on it.

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
        if not self.has_channel and not self.evaluates_itself:
            raise TypeError(f"{type(self).__name__} cannot reach a model; implement channel(), or evaluate() by itself")
        self.model = model
        self.settings = Settings().merged(settings)
        self._added_codecs = hosted_tool_codecs or {}
        self.output_retries = output_retries
        self._tokenizer = tokenizer
        self._token_counts = lru_cache(maxsize=8192)(lambda text: self.tokenizer.count(text))

    @property
    def models(self) -> tuple[Model, ...]:
        """The models on which a run is tried, one after another until one works."""
        return (self,)

    @property
    def has_channel(self) -> bool:
        """True if the library's own loop can run on this adapter."""
        return self._defines("channel") or self._defines("open_channel")

    @property
    def evaluates_itself(self) -> bool:
        return self._defines("evaluate") or self._defines("evaluate_async")

    def _defines(self, name: str) -> bool:
        return getattr(type(self), name) not in (getattr(ProviderAdapter, name), getattr(Model, name, None))

    @property
    def identity(self) -> tuple[Any, ...]:
        return (*super().identity, sorted(self._added_codecs))

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

    def evaluate(
        self, prompt: Prompt[OutputT], *, session: Session, **options: Unpack[RunOptions]
    ) -> PromptResponse[OutputT]:
        """Render the prompt, then call the model and run its tools until it answers."""
        return self._driver(prompt, session, options).returned()

    async def evaluate_async(
        self, prompt: Prompt[OutputT], *, session: Session, **options: Unpack[RunOptions]
    ) -> PromptResponse[OutputT]:
        """`evaluate` on an event loop."""
        return await self._driver(prompt, session, options).awaited()

    def stream(
        self, prompt: Prompt[OutputT], *, session: Session, **options: Unpack[RunOptions]
    ) -> EventStream[OutputT]:
        """`evaluate` as a stream of events: text deltas, tool starts and ends, and finally the response.

        with adapter.stream(prompt, session=session) as events:
            for event in events: ...
        """
        return self._driver(prompt, session, options).streamed()

    def stream_async(
        self, prompt: Prompt[OutputT], *, session: Session, **options: Unpack[RunOptions]
    ) -> AsyncEventStream[OutputT]:
        """`stream` on an event loop."""
        return self._driver(prompt, session, options).streamed_async()

    def resume(
        self, prompt: Prompt[OutputT], *, session: Session, **options: Unpack[RunOptions]
    ) -> PromptResponse[OutputT]:
        """Continue the session's run with the request it would have sent next, in this process or another."""
        return self._driver(prompt, session, options, resumes=True).returned()

    async def resume_async(
        self, prompt: Prompt[OutputT], *, session: Session, **options: Unpack[RunOptions]
    ) -> PromptResponse[OutputT]:
        """`resume` on an event loop."""
        return await self._driver(prompt, session, options, resumes=True).awaited()

    def explain(
        self, prompt: Prompt[Any], session: Session | None = None, *, visibility_overrides: Overrides | None = None
    ) -> Explanation:
        """Explain what a run would do, before any money is spent."""
        return explain(prompt, self, session=session, visibility_overrides=visibility_overrides)

    def count(self, prompt: Prompt[Any], session: Session | None = None) -> int:
        """The tokens of the next request: the vendor's own count if it offers one, else an estimate."""
        return self.count_request(self.next_request(prompt, session))

    def next_request(
        self, prompt: Prompt[Any], session: Session | None = None, *, loaded: LoadedSections | None = None
    ) -> ModelRequest:
        """The request that begins a run, or continues a session's conversation; nothing is changed.

        `loaded` is what sections have loaded in that conversation; others are left as they are.
        """
        session = Session() if session is None else session.clone()
        session.silent = True
        spec = replace(self.run_spec(prompt, {}), loaded=loaded, asked=self)
        if session[Message].latest() is not None:
            spec = replace(spec, beginning="exchange", in_conversation=True)
        return next_request(LiveRun(spec, session))

    def run_spec(self, prompt: Prompt[Any], options: RunOptions) -> RunSpec:
        """A run of this prompt on this adapter's models, with these options."""
        check_prompt(prompt)
        unknown = options.keys() - RunOptions.__annotations__.keys()
        if unknown:
            names = ", ".join(RunOptions.__annotations__)
            raise TypeError(f"unexpected keyword argument '{min(unknown)}'; known: {names}")
        compaction = options.get("compaction")
        if not isinstance(compaction, Compaction | None):
            raise TypeError(
                f"compaction must be a Compaction or None, got {compaction!r}; write Compaction(window=...)"
            )
        tools = tuple(options.get("tools") or ())
        for tool in tools:
            if not isinstance(tool, Tool):
                raise TypeError(f"tools must be a list of tools, got {tool!r} in it; decorate a function with @tool")
        decisions = options.get("decisions")
        return RunSpec(
            prompt=prompt.bound(),
            models=self.models,
            resources=prompt.resources,
            budget=options.get("budget"),
            deadline=options.get("deadline"),
            settings=self._requested_settings(options),
            compaction=compaction,
            visibility_overrides=options.get("visibility_overrides"),
            tags=check_tags(options.get("tags")),
            tools=tools,
            beginning="new" if decisions is None else "resume",
            decisions=decisions or {},
        )

    def _driver(
        self, prompt: Prompt[OutputT], session: Session, options: RunOptions, *, resumes: bool = False
    ) -> RunDriver[OutputT]:
        """A run on this adapter by the library's loop, also if the adapter has an `evaluate` of its own."""
        if resumes and not any(model.has_channel for model in self.models):
            self.channel()  # Raises: such an adapter may not know how to continue.
        spec = replace(self.run_spec(prompt, options), asked=self)
        if resumes:
            spec = replace(spec, beginning="resume")
        outer = options.get("within")
        if outer is not None:
            return RunDriver(LiveRun.inside(outer, spec.models, self), prompt)
        return driver(prompt, session, spec, options)

    def _requested_settings(self, options: RunOptions) -> Settings:
        """The settings that override those of each model."""
        return Settings().merged(options.get("settings"))

    def evaluate_itself(self, prompt: Prompt[Any], session: Session, options: Mapping[str, Any]) -> PromptResponse[Any]:
        if self._defines("evaluate"):
            return self.evaluate(prompt, session=session, **_accepted(self.evaluate, options))
        work = self.evaluate_async(prompt, session=session, **_accepted(self.evaluate_async, options))
        return _run_alone(type(self).__name__, work)

    async def evaluate_itself_async(
        self, prompt: Prompt[Any], session: Session, options: Mapping[str, Any]
    ) -> PromptResponse[Any]:
        if self._defines("evaluate_async"):
            return await self.evaluate_async(prompt, session=session, **_accepted(self.evaluate_async, options))
        accepted = _accepted(self.evaluate, options)
        return await _in_thread(partial(self.evaluate, prompt, session=session, **accepted), options["within"].fence)


def driver(
    prompt: Prompt[OutputT],
    session: Session,
    spec: RunSpec,
    options: RunOptions,
    recorder: AbstractContextManager[Any] | None = None,
) -> RunDriver[OutputT]:
    """The run that a spec asks for, ready to begin; its decisions must be about calls that wait."""
    waiting = waiting_calls(session) if isinstance(session, Session) else {}
    if spec.beginning == "new" and waiting:
        calls = ", ".join(f"'{call.call_id}' ({call.tool})" for call in waiting.values())
        raise PromptEvaluationError(
            f"The session has calls that wait for a decision: {calls}; pass decisions={{...}}, or {{}} to see them "
            "again, or run on another session.",
            prompt_name=prompt.name,
            phase="tool",
        )
    check_decisions(spec.decisions, waiting, prompt.name)
    live = LiveRun(replace(spec, decisions=by_call(spec.decisions, waiting)), session)
    bus = options.get("bus")
    own_options = {name: value for name, value in options.items() if name not in ("bus", "within")}
    return RunDriver(
        live,
        prompt,
        None if bus is None else bus.dispatch,
        recorder,
        {**own_options, "within": live},
    )


def check_prompt(prompt: object) -> None:
    """Reject a template or string passed as the prompt."""
    if not isinstance(prompt, Prompt):
        raise TypeError(f"prompt must be a Prompt, got {prompt!r}; write Prompt(template).bind(...)")


def _accepted(method: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """The options that a method declares; all, if it takes any."""
    parameters = signature_of(method).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(options)
    return {name: value for name, value in options.items() if name in parameters}


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
