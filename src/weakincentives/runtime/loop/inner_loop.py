"""The loop between model and tools, without any I/O.

`InnerLoop.run()` is a generator: it yields what it needs done (call the model, run these tools) and receives the
outcome. Everything it knows between two effects is in the session, so a run can be resumed from a snapshot.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

from weakincentives._base.display import shortened
from weakincentives.errors import (
    AbandonedCallError,
    BudgetExceededError,
    ContextOverflowError,
    DeadlineExceededError,
    GuardRefusedError,
    OutputParseError,
    PromptError,
    PromptEvaluationError,
)
from weakincentives.prompt import (
    BoundPrompt,
    OpenSectionsResult,
    Overrides,
    Prompt,
    VisibilityExpansionRequired,
)
from weakincentives.runtime import events
from weakincentives.runtime.calls.approval import (
    DecisionError,
    Undecided,
    is_waiting,
    waiting_calls,
)
from weakincentives.runtime.calls.call import CallOutcome, ToolExecutionOutcome
from weakincentives.runtime.calls.executor import ToolExecutor
from weakincentives.runtime.calls.ids import CallIds
from weakincentives.runtime.context import InnerLoopConfig, RunContext
from weakincentives.runtime.known.notices import Notices
from weakincentives.runtime.known.offers import OfferedTools
from weakincentives.runtime.loop.answers import Answers, StreamState
from weakincentives.runtime.loop.bridge import contained
from weakincentives.runtime.loop.effects import CallModel, Effect, Evaluate, RunTools, UseModel
from weakincentives.runtime.loop.inquiry import check_guarded_tools, warn_of_unmatched
from weakincentives.runtime.loop.start import Beginning, RunStart
from weakincentives.runtime.loop.words import pass_words, refuses_decision
from weakincentives.runtime.messages import Message, ModelReply, ModelRequest, PromptResponse, ToolCall, failed_results
from weakincentives.runtime.model import Model
from weakincentives.runtime.past.misses import possible_misses
from weakincentives.runtime.past.points import Points
from weakincentives.runtime.runs import Run, RunScope
from weakincentives.runtime.window.compaction import Compactor
from weakincentives.session import Session

logger = logging.getLogger("weakincentives.runtime")

_STOPPED = {
    "refusal": "refused to answer",
    "content_filter": "was stopped by a content filter",
    "length": "was cut off at its length limit",
    "overflow": "was cut off at the end of its context window",
}


def check_prompt(prompt: object) -> None:
    """Reject a template or string passed as the prompt."""
    if not isinstance(prompt, Prompt):
        raise TypeError(f"prompt must be a Prompt, got {prompt!r}; write Prompt(template).bind(...)")


class InnerLoop:
    """A run of one prompt on one session, in one or more attempts.

    It begins a `new` conversation, continues the run in the session (`resume`), or begins the next `exchange` of a
    conversation, with the user's message. If its scope allows it, a run that has to open sections before it can go on
    restarts: the next attempt has the same conversation with a new system text.
    """

    def __init__(
        self,
        prompt: BoundPrompt[Any],
        session: Session,
        scope: RunScope,
        models: Sequence[Model],
        config: InnerLoopConfig | None = None,
        *,
        visibility_overrides: Overrides | None = None,
        beginning: Beginning = "new",
        message: Message | None = None,
        asked: Model | None = None,
    ) -> None:
        if not isinstance(session, Session):
            raise TypeError(f"session must be a Session, got {session!r}; pass session=Session()")
        self.prompt, self.session, self.scope = prompt, session, scope
        # Ends a stream that the run's own thread is reading; set by channels that can do so.
        self.interrupt: Callable[[], None] = lambda: None
        self.stream = StreamState()
        self.in_conversation = beginning == "exchange"
        self._call_ids: CallIds | None = None
        # False if a replay must not depend on when a section says that it is out of date.
        self.follows_sections = True
        self._emitted: Callable[[ToolCall, Any], None] | None = None
        self._models = tuple(models)
        if scope.models != self._models:
            scope.models, scope.adapter = self._models, 0
        # The number of the model in use; a model that evaluates the prompt by itself may change that of the scope.
        self._in_use = scope.adapter
        self._asked = asked
        self._failures: list[str] = []
        self._decisions = scope.decisions = {} if scope.decisions is None else scope.decisions
        self._message = message
        self._config = InnerLoopConfig() if config is None else config
        self._prepare(self._context(visibility_overrides), beginning)

    def _context(self, visibility_overrides: Overrides | None, points: Points | None = None) -> RunContext:
        """The context of an attempt on the model in use."""
        scope, message = self.scope, self._message
        model = self._models[self._in_use]
        scope.codecs[model.name] = model.hosted_tool_codecs
        pending = None if message is None or message.kind in scope.given else message
        config = replace(
            self._config,
            supports_dynamic_tools=model.supports_dynamic_tools,
            settings=model.settings.merged(self._config.settings),
        )
        context = RunContext(self.prompt, self.session, scope, model, config, visibility_overrides, pending)
        context.points = points
        return context

    def _prepare(self, context: RunContext, beginning: Beginning) -> None:
        """Prepare an attempt: nothing of it but the session is there for the next one."""
        self.context = context
        self._tools = OfferedTools(context)
        self.toolbox = self._tools.toolbox
        self.notices = Notices(context, self._tools)
        self.executor = ToolExecutor(context, self.toolbox)
        self.executor.calls.emitted = self._emitted
        self._start = RunStart(context, self._tools, self.notices, self.executor, beginning)
        self._answers = Answers(context, self.stream)
        self.stream.text = []
        self._compactor = Compactor(context, self._tools, self.notices)
        self._started = self.session.clock.monotonic()

    def on_emission(self, receive: Callable[[ToolCall, Any], None]) -> None:
        """Have what tool calls emit received, in this attempt and in those that follow."""
        self._emitted = self.executor.calls.emitted = receive

    @property
    def owner(self) -> str:
        """The name under which the run claims its session."""
        return f"{self.prompt.name} ({self.scope.run_id})"

    def run(self) -> Generator[Effect, Any, PromptResponse[Any]]:
        """Yield effects, receive their outcomes, return the response."""
        self.scope.abandon = self.abandon
        if self.in_conversation and not self.scope.parents and not self.evaluates_itself:
            self.context.points = Points(self.prompt, self.session)
        try:
            response = yield from contained(self._attempts(), self.prompt.name, "render")
        except VisibilityExpansionRequired as signal:
            # A tool that runs another prompt must not pass the signal off as its own run's.
            signal.prompt_name = self.prompt.name
            self._end("halted", section_keys=tuple(signal.section_keys), reason=signal.reason)
            raise
        except AbandonedCallError:
            raise
        except DecisionError:
            self._end_waiting()
            raise
        except Exception as error:
            if refuses_decision(error):
                self._end_waiting()
                raise
            self._save_rest(stopped=isinstance(error, GuardRefusedError) and error.hook != "before_run")
            if isinstance(error, GuardRefusedError):
                warn_of_unmatched(self.context, self.toolbox)
            self._end("failed", reason=str(error), error=type(error).__name__, phase=phase_of(error))
            self._name_failures(error)
            raise
        except BaseException:
            self._stop()
            raise
        finally:
            self.scope.abandon = None
        if self.evaluates_itself:
            return self._ended_itself(response)
        if response.pending and response.halt is None:
            self._end_waiting()
            return response
        if response.halt is not None:
            keys = tuple(map(".".join, response.halt.requested_overrides))
            self._end("halted", section_keys=keys, reason=response.halt.reason)
            return response
        for miss in possible_misses(self.context, response.text):
            self.context.emit(events.PossibleMiss, **miss._asdict())
        self.context.pay_rankings()
        warn_of_unmatched(self.context, self.toolbox)
        self._end("completed", text=response.text, output=response.output)
        return response

    def next_request(self) -> ModelRequest:
        """The first request of this run, with nothing loaded, no guard asked and nobody called."""
        self._start.skip_loading()
        for generator in (self._start.begin(), self._prepare_request()):
            for _ in generator:
                raise AssertionError("nothing is left to do before a request")
        return self._request()

    def abandon(self) -> None:
        """Stop the run from another thread while its own is busy, and free the session before this returns."""
        self.scope.abandon = None
        self.scope.fence.close()
        self.scope.abandon_children()
        self.executor.abandon()
        self._stop()
        self.session.release(self.owner)
        self.interrupt()

    def _stop(self) -> None:
        """Leave a conversation that can be continued: the text so far stays, and every open call gets a result."""
        self._save_rest(stopped=True)
        self._end("stopped")

    def _end_waiting(self) -> None:
        self._end("waiting", reason=", ".join(call.tool for call in waiting_calls(self.session).values()))

    def _end(self, status: events.RunStatus, **facts: Any) -> None:
        """Record how this attempt ended."""
        self.session.dispatch(self.ended(status, **facts))

    def ended(self, status: events.RunStatus, **facts: Any) -> events.RunEnded:
        """The event that says how this attempt ended."""
        return events.RunEnded(
            prompt_name=self.prompt.name,
            status=status,
            prompt_ns=self.prompt.ns,
            prompt_key=self.prompt.key,
            adapter=self.context.adapter.name,
            model=self.context.adapter.model,
            usage=self.scope.meter.usage,
            turns=self.scope.meter.turns,
            duration=self.session.clock.monotonic() - self._started,
            **self.context.stamp,
            **facts,
        )

    def _save_rest(self, *, stopped: bool) -> None:
        """Save the state of a run that ends early: the user's message, streamed text and finished tool results."""
        context, transcript = self.context, self.context.transcript
        if context.message is not None:
            transcript.adopt()
            transcript.say(*self._start.missing_results())
            context.add_message()
        partial, self.stream.text = "".join(self.stream.text), []
        if partial:
            context.save(unfinished=True)
            transcript.say(Message(role="assistant", text=partial, provider=context.adapter.name))
        if made := list(self.executor.results.ended.values()):
            self._record_outcomes(made)
        if stopped:
            transcript.say(*failed_results(self._start.lost_calls(), "Not run: the run was stopped."))
            self.notices.send_read()
        transcript.put_in_order()

    @property
    def evaluates_itself(self) -> bool:
        """True if the model in use evaluates the prompt by itself, unless it is that which has asked for this run."""
        model = self.context.adapter
        return model.evaluates_itself and (model is not self._asked or not model.has_channel)

    def _evaluate_itself(self) -> Generator[Effect, Any, PromptResponse[Any]]:
        """Have the model evaluate the prompt; the user's message stands in the session."""
        context, message = self.context, self.context.message
        if message is not None:
            if context.has_guards:
                (message,) = yield from pass_words(context, [message], always=True)
                assert message is not None
            context.message = None
            self.scope.given[message.kind] = message
            self.session.dispatch(message)
        self._ended_before = len(self.session[events.RunEnded])
        response: PromptResponse[Any] = yield Evaluate(context.adapter)
        return response

    def _ended_itself(self, response: PromptResponse[Any]) -> PromptResponse[Any]:
        """Record the end of a run that a model has evaluated by itself, unless it has."""
        if len(self.session[events.RunEnded]) == self._ended_before:
            self._end("completed", text=response.text, output=response.output)
        run_id = response.run_id or self.scope.run_id
        return replace(response, run_id=run_id, conversation_id=response.conversation_id or self.scope.conversation_id)

    def _attempts(self) -> Generator[Effect, Any, PromptResponse[Any]]:
        """Evaluate until there is an answer; what an attempt asks for is open in the next one."""
        run = self.session[Run].latest()
        if not self.scope.conversation_id:
            self.scope.conversation_id = self.session.session_id if run is None else run.conversation_id
        failure: BaseException | None = None
        in_use = -1
        while True:
            try:
                if in_use != self._in_use:
                    in_use = self._in_use
                    yield UseModel(self.context.adapter, failure, self.evaluates_itself)
                    failure = None
                evaluation = self._evaluate_itself() if self.evaluates_itself else self._evaluate()
                return (yield from evaluation)
            except VisibilityExpansionRequired as signal:
                if self.scope.max_expansions is None:
                    raise
                self.scope.check_expansions(signal, self.prompt.name)
                self._end("restarted", section_keys=tuple(signal.section_keys), reason=signal.reason)
                self.scope.open(signal, self.session)
                self.stream.restarted, before = signal.reason, self.context
                dynamic = before.config.supports_dynamic_tools and before.adapter.supports_dynamic_tools
                config = replace(before.config, supports_dynamic_tools=dynamic)
                context = replace(before, config=config, message=None, run=Run("", "", ""))
                self._prepare(context, "exchange" if self.in_conversation else "new")
            except PromptEvaluationError as error:
                if not self._may_recover(error):
                    raise
                failure = error
                self._recover(error)

    def _may_recover(self, error: PromptEvaluationError) -> bool:
        """True if there is another model, and it might succeed where this one failed."""
        if self._in_use + 1 == len(self._models) or isinstance(error, DeadlineExceededError | BudgetExceededError):
            return False
        run_id = self.scope.run_id
        called = next((call for call in self.context.own(events.ModelCalled) if call.run_id == run_id), None)
        is_answered = called is not None and called.stop_reason in _STOPPED
        # What was shown of an unfinished reply cannot be taken back. A model that cannot offer a hosted tool fails in
        # the phase "render".
        return not is_answered and not self.stream.shown and error.phase in ("request", "response", "render")

    def _recover(self, error: PromptEvaluationError) -> None:
        """Record the failure of the model in use, and go on with the next."""
        self._save_rest(stopped=False)
        self._end("recovered", reason=str(error), error=type(error).__name__, phase=phase_of(error))
        context, scope = self.context, self.scope
        self.interrupt = lambda: None
        failed = f"{context.adapter.name}:{context.adapter.model} failed"
        self._failures.append(f"{failed}: {shortened(str(error), 200)}")
        self._in_use += 1
        scope.models, scope.adapter = self._models, self._in_use
        following = self._models[self._in_use]
        logger.warning("%s, going on with %s: %s", failed, following.name, error)
        is_rendered = any(event.run_id == scope.run_id for event in context.own(events.PromptRendered))
        beginning = "resume" if is_rendered else self._start.beginning
        self._prepare(self._context(context.visibility_overrides, context.points), beginning)

    def _name_failures(self, error: Exception) -> None:
        """Add to the error of the last model how those before it have failed."""
        if isinstance(error, PromptEvaluationError):
            others = [failure for failure in self._failures if not failure.endswith(shortened(str(error), 200))]
            if others:
                error.args = (f"{error} (before that, {'; '.join(others)})",)

    def _evaluate(self) -> Generator[Effect, Any, PromptResponse[Any]]:
        self._start.refresh_sections()
        if self._start.beginning == "exchange" and self.scope.attempt == 1 and waiting_calls(self.session):
            yield from self._start.pass_message()
            yield from self._settle()
        # The user went on while calls of this run, inside another, waited.
        gone_on = any(isinstance(decision, Undecided) for decision in self._decisions.values())
        pending = yield from self._start.open_calls()
        last = self.session[Message].latest()
        if not pending and last is not None and last.role == "assistant" and not last.paused:
            if not self.scope.meter.turns:
                raise self.context.error(
                    f"'{self.prompt.name}' has nothing to answer: its user sections have been answered; pass content."
                )
            # Asking again on resume is not one of the retries.
            self.context.save(output_retries=-1)
            answer = yield from self._answers.check(ModelReply(text=last.text, tool_calls=last.tool_calls))
            if answer is not None:
                return self._response(*answer)
        while True:
            while pending:
                outcomes = yield RunTools(self.executor.next_group(pending))
                pending = pending[len(outcomes) :]
                if ended := self._record_outcomes(outcomes):
                    return self._stop_to_open(ended, pending)
                if pending:
                    if self.context.config.supports_dynamic_tools:
                        yield from self._start.load_sections()
                    self._tools.register(mid_turn=True)
            if gone_on or waiting_calls(self.session):
                return self._response("")
            yield from self._prepare_request()
            request = self._request()
            if self.context.points is not None:
                self.context.points.turn(self.scope.run_id, self.scope.meter.own_turns + 1)
            self._answers.hold()
            asked = self.session.clock.monotonic()
            self._call_ids = None
            try:
                reply = self._received((yield CallModel(request)))
                self._record_reply(request, reply, self.session.clock.monotonic() - asked)
            except ContextOverflowError as error:
                if not (yield from self._compactor.overflowed(error, self.stream, by_turns=not self.in_conversation)):
                    raise
                continue
            self._compactor.replied()
            pending = reply.tool_calls
            # If the user has sent another message since, the model answers that too.
            if pending or reply.stop_reason == "pause" or self.context.transcript.put_in_order():
                continue
            if (answer := (yield from self._answers.check(reply))) is not None:
                return self._response(*answer)

    def _settle(self) -> Generator[Effect, Any, None]:
        """Before the next exchange, settle the calls of the last that wait: as decided, else as not decided."""
        context, scope = self.context, self.scope
        own = scope.run_id, scope.meter.spent
        again = replace(context, run=Run("", "", ""))
        self._prepare(replace(again, message=None), "resume")
        pending = yield from self._start.open_calls()
        while pending:
            for call_id in waiting_calls(self.session):
                self._decisions.setdefault(call_id, Undecided())
            self._record_outcomes((yield RunTools(pending)))
            # A call that ran again has asked again.
            waiting = waiting_calls(self.session)
            pending = tuple(call for call in pending if is_waiting(call.id, waiting))
        self.context.transcript.put_in_order()
        self._end("stopped")
        scope.run_id, scope.meter.spent = own
        self._prepare(again, "exchange")

    def _prepare_request(self) -> Generator[Effect, Any, None]:
        """Bring sections, notices and tools up to date for the next request."""
        self.notices.send_read()
        dynamic = self.context.config.supports_dynamic_tools
        if self.follows_sections and dynamic and (yield from self._start.follow_sections()):
            self._start.removed = None
            self.notices.announce(self._tools.reload())
        self._start.open_by_rule()
        yield from self._start.load_sections()
        yield from self._compactor.prepare(by_turns=not self.in_conversation)
        if self._start.removed is None:
            self.notices.announce_opened()
        else:
            # Here, and not as the run was taken up, so that its messages stand as in a run that was never stopped.
            removed, self._start.removed = self._start.removed, None
            self.notices.announce(removed)
        self._tools.update()
        if self.context.has_guards:
            check_guarded_tools(self.context)
        self.context.transcript.put_in_order()
        self.context.pay_rankings()
        if self.scope.meter.needs_prices and self.context.adapter.model:
            self.context.prices(self.context.adapter.model)
        self.scope.meter.check_model_call(self.prompt.name)

    def _stop_to_open(self, ended: list[ToolExecutionOutcome], pending: tuple[ToolCall, ...]) -> PromptResponse[Any]:
        """End the turn at calls that open sections: return to the caller, or raise for a new attempt."""
        text = "Not run: the turn ended to open sections. Call the tool again if it is still needed."
        self.context.transcript.say(*failed_results(pending, text))
        self.context.save(opening=True)
        asked = [outcome.disclosure for outcome in ended if outcome.disclosure is not None]
        overrides = {path: each for request in asked for path, each in request.overrides.items()}
        reason = "; ".join(dict.fromkeys(request.reason for request in asked if request.reason))
        if self.scope.max_expansions is None and any(outcome.halts for outcome in ended):
            return self._response("", halt=OpenSectionsResult(overrides, reason=reason))
        keys = tuple(key for request in asked for key in request.keys)
        raise VisibilityExpansionRequired(
            f"Section expansion requires restart: opening {', '.join(keys)} needs a new evaluation; "
            "MainLoop starts one.",
            requested_overrides=overrides,
            reason=reason,
            section_keys=keys,
        )

    def _request(self) -> ModelRequest:
        output = self.prompt.template.structured_output
        return ModelRequest(
            prompt_name=self.prompt.name,
            messages=self.context.transcript.sent(),
            output=None if output is None or output.container == "text" else output,
            deadline=self.scope.meter.deadline,
            settings=self.context.config.settings,
            **self.toolbox.offered,
        )

    @property
    def call_ids(self) -> CallIds:
        """The ids that the calls of the reply under way have."""
        if self._call_ids is None:
            waiting = waiting_calls(self.session).values()
            self._call_ids = CallIds(self.session[Message].view(), waiting)
        return self._call_ids

    def _received(self, reply: ModelReply) -> ModelReply:
        """The reply as the rest of the loop knows it: with our own names of tools, and each call with its own id."""
        if reply.tool_calls:
            reply = self.call_ids.unique(self.toolbox.with_names(reply), self.context.adapter)
        return reply

    def _record_reply(self, request: ModelRequest, reply: ModelReply, latency: float) -> None:
        context, meter = self.context, self.scope.meter
        self.stream.text = []
        self.stream.shown = self.stream.shown and reply.stop_reason == "pause"
        meter.add_usage(reply.usage, context.prices(reply.model) if meter.needs_prices else None)
        context.save(spent=meter.spent, unfinished=False)
        context.emit(
            events.ModelCalled,
            prompt_name=self.prompt.name,
            adapter=context.adapter.name,
            model=reply.model or context.adapter.model,
            turn=meter.own_turns,
            usage=reply.usage,
            stop_reason=reply.stop_reason,
            latency=latency,
            retries=reply.retries,
            response_id=reply.response_id,
            messages=context.transcript.length,
            tools=self.toolbox.callable_names,
            overrides=self._tools.overrides,
        )
        if reply.reasoning_dropped:
            context.emit(events.ReasoningDropped, reason="the provider no longer accepts it")
        # An incomplete reply stays out of the conversation: none of its calls may run, now or on resume.
        _check_stop(reply, self.prompt.name)
        context.transcript.say(
            Message(
                role="assistant",
                text=reply.text,
                tool_calls=reply.tool_calls,
                items=reply.items,
                provider=context.adapter.name,
                paused=reply.stop_reason == "pause",
                reasoning=reply.reasoning,
            )
        )
        self.notices.open_found(self._tools.find(reply))

    def _record_outcomes(self, outcomes: Sequence[CallOutcome]) -> list[ToolExecutionOutcome]:
        """Add the results to the conversation; return the outcomes that end the turn."""
        self.context.save(spent=self.scope.meter.spent)
        ended = [outcome for outcome in outcomes if isinstance(outcome, ToolExecutionOutcome)]
        self.notices.disclosed(ended)
        for outcome in ended:
            if outcome.operator_text:
                self.context.save(unsent=(*self.context.run.unsent, outcome.operator_text))
            self.context.transcript.say(outcome.as_message(self._tools.bring(outcome.found)))
            # Only now: a thread that stops this run records the others.
            self.executor.results.ended.pop(outcome.tool_call_id, None)
        return [outcome for outcome in ended if outcome.ends_turn]

    def _response(self, text: str, output: Any = None, halt: OpenSectionsResult | None = None) -> PromptResponse[Any]:
        return PromptResponse(
            prompt_name=self.prompt.name,
            text=text,
            output=output,
            halt=halt,
            hosted_outputs=self._tools.hosted_outputs(self.scope.codecs),
            usage=self.scope.meter.usage,
            turns=self.scope.meter.turns,
            run_id=self.scope.run_id,
            conversation_id=self.scope.conversation_id,
            pending=tuple(waiting_calls(self.session).values()),
        )


def _check_stop(reply: ModelReply, prompt_name: str) -> None:
    problem = _STOPPED.get(reply.stop_reason)
    if problem is not None:
        kind = ContextOverflowError if reply.stop_reason == "overflow" else PromptEvaluationError
        text = f"The model {problem} in '{prompt_name}': {reply.text[:200]!r}"
        raise kind(text, prompt_name=prompt_name, phase="response", payload=reply.text)


def phase_of(error: Exception) -> str:
    """The phase in which a run failed, if the error records it."""
    if isinstance(error, PromptError):
        return "parse" if isinstance(error, OutputParseError) else "render"
    return getattr(error, "phase", "")
