"""The loop between model and tools, without any I/O.

`run_loop` is a generator: it yields what it needs done (call the model, run these tools) and receives the outcome. All
that it knows between two effects is in the session, so a run can be resumed from a snapshot.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
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
from weakincentives.prompt import OpenSectionsResult, VisibilityExpansionRequired
from weakincentives.runtime import events
from weakincentives.runtime.calls.approval import DecisionError, Undecided, is_waiting, waiting_calls
from weakincentives.runtime.calls.call import CallOutcome, ToolExecutionOutcome
from weakincentives.runtime.calls.executor import ToolExecutor
from weakincentives.runtime.calls.ids import CallIds
from weakincentives.runtime.known import notices, offers
from weakincentives.runtime.live import LiveRun
from weakincentives.runtime.loop import answers, start
from weakincentives.runtime.loop.bridge import contained
from weakincentives.runtime.loop.effects import CallModel, Effect, Evaluate, RunTools, UseModel
from weakincentives.runtime.loop.inquiry import check_guarded_tools, warn_of_unmatched
from weakincentives.runtime.loop.words import pass_words, refuses_decision
from weakincentives.runtime.messages import (
    Message,
    ModelReply,
    ModelRequest,
    PromptResponse,
    ToolCall,
    failed_results,
)
from weakincentives.runtime.past.misses import possible_misses
from weakincentives.runtime.past.points import Points
from weakincentives.runtime.state import RunState
from weakincentives.runtime.window import compaction, transcript

logger = logging.getLogger("weakincentives.runtime")

_STOPPED = {
    "refusal": "refused to answer",
    "content_filter": "was stopped by a content filter",
    "length": "was cut off at its length limit",
    "overflow": "was cut off at the end of its context window",
}
NOT_RUN = "Not run: the turn ended to open sections. Call the tool again if it is still needed."


def run_loop(live: LiveRun) -> Generator[Effect, Any, PromptResponse[Any]]:
    """Yield effects, receive their outcomes, return the response.

    The run begins a `new` conversation, continues the one in the session (`resume`), or begins the next `exchange` of a
    conversation, with the user's message. If its spec allows it, a run that has to open sections before it can go on
    restarts: the next attempt has the same conversation with a new system text.
    """
    live.abandon = lambda: abandon(live)
    if live.in_conversation and not live.spec.parents and not live.evaluates_itself:
        live.points = Points.before(live.prompt, live.session)
    try:
        response = yield from contained(_attempts(live), live.name, "render")
    except VisibilityExpansionRequired as signal:
        # A tool that runs another prompt must not pass the signal off as its own run's.
        signal.prompt_name = live.name
        _end(live, "halted", section_keys=tuple(signal.section_keys), reason=signal.reason)
        raise
    except AbandonedCallError:
        raise
    except DecisionError:
        _end_waiting(live)
        raise
    except Exception as error:
        if refuses_decision(error):
            _end_waiting(live)
        else:
            _fail(live, error)
        raise
    except BaseException:
        _stop(live)
        raise
    finally:
        live.abandon = None
    if live.evaluates_itself:
        return response
    if response.pending and response.halt is None:
        _end_waiting(live)
        return response
    if response.halt is not None:
        keys = tuple(map(".".join, response.halt.requested_overrides))
        _end(live, "halted", section_keys=keys, reason=response.halt.reason)
        return response
    for miss in possible_misses(live, response.text):
        live.emit(events.PossibleMiss, **miss._asdict())
    live.pay_rankings()
    warn_of_unmatched(live)
    _end(live, "completed", text=response.text, output=response.output)
    return response


def next_request(live: LiveRun) -> ModelRequest:
    """The first request of this run, with nothing loaded, no guard asked and nobody called."""
    start.skip_loading(live)
    for generator in (start.begin(live), _prepare_request(live)):
        for _ in generator:
            raise AssertionError("nothing is left to do before a request")
    return _request(live)


def abandon(live: LiveRun) -> None:
    """Stop the run from another thread while its own is busy, and free the session before this returns."""
    live.abandon = None
    live.fence.close()
    live.abandon_children()
    ToolExecutor(live).abandon()
    _stop(live)
    live.session.release(live.owner)
    live.interrupt()


def end_event(live: LiveRun, status: events.RunStatus, **facts: Any) -> events.RunEnded:
    """The event that says how this attempt ended."""
    return events.RunEnded(
        prompt_name=live.name,
        status=status,
        prompt_ns=live.prompt.ns,
        prompt_key=live.prompt.key,
        adapter=live.model.name,
        model=live.model.model,
        usage=live.meter.usage,
        turns=live.meter.turns,
        duration=live.session.clock.monotonic() - live.attempt.started,
        **live.stamp,
        **facts,
    )


def received(live: LiveRun, reply: ModelReply) -> ModelReply:
    """The reply as the rest of the loop knows it: with our own names of tools, and each call with its own id."""
    if reply.tool_calls:
        reply = call_ids(live).unique(live.toolbox.with_names(reply), live.model)
    return reply


def call_ids(live: LiveRun) -> CallIds:
    """The ids that the calls of the reply under way have."""
    ids = live.attempt.call_ids
    if ids is None:
        waiting = waiting_calls(live.session).values()
        ids = live.attempt.call_ids = CallIds(live.session[Message].view(), waiting)
    return ids


def _end(live: LiveRun, status: events.RunStatus, **facts: Any) -> None:
    """Record how this attempt ended."""
    live.session.dispatch(end_event(live, status, **facts))


def _end_waiting(live: LiveRun) -> None:
    _end(live, "waiting", reason=", ".join(call.tool for call in waiting_calls(live.session).values()))


def _stop(live: LiveRun) -> None:
    """Leave a conversation that can be continued: the text so far stays, and every open call gets a result."""
    with live.session.together():
        _save_rest(live, stopped=True)
        _end(live, "stopped")


def _fail(live: LiveRun, error: Exception) -> None:
    """Record the failure of the run, and how the models before the last have failed."""
    with live.session.together():
        _save_rest(live, stopped=isinstance(error, GuardRefusedError) and error.hook != "before_run")
        if isinstance(error, GuardRefusedError):
            warn_of_unmatched(live)
        _end(live, "failed", reason=str(error), error=type(error).__name__, phase=phase_of(error))
        stored = live.session[RunState].latest()
        if live.failures and stored is not None and stored.run_id == live.run_id:
            # None of them works: if the run is resumed, they are tried from the first again.
            live.save(model=0)
    if isinstance(error, PromptEvaluationError):
        failures = [failure for failure in live.failures if not failure.endswith(shortened(str(error), 200))]
        if failures:
            error.args = (f"{error} (before that, {'; '.join(failures)})",)


def _save_rest(live: LiveRun, *, stopped: bool) -> None:
    """Save the state of a run that ends early: the user's message, streamed text and finished tool results."""
    if live.attempt.message is not None:
        transcript.adopt(live)
        transcript.say(live, *start.missing_results(live))
        start.say_message(live)
    partial, live.stream.text = "".join(live.stream.text), []
    if partial:
        live.save(unfinished=True)
        transcript.say(live, Message(role="assistant", text=partial, provider=live.model.name))
    outcomes = list(live.calls.ended.values())
    if outcomes:
        _record_outcomes(live, outcomes)
    if stopped:
        transcript.say(live, *failed_results(start.lost_calls(live), "Not run: the run was stopped."))
        notices.send_read(live)
    transcript.put_in_order(live)


def _attempts(live: LiveRun) -> Generator[Effect, Any, PromptResponse[Any]]:
    """Evaluate until there is an answer; what an attempt asks for is open in the next one."""
    in_use = -1
    failure: BaseException | None = None
    while True:
        try:
            if in_use != live.state.model:
                in_use = live.state.model
                yield UseModel(live.model, failure, live.evaluates_itself)
                failure = None
            evaluation = _evaluate_itself(live) if live.evaluates_itself else _evaluate(live)
            return (yield from evaluation)
        except VisibilityExpansionRequired as signal:
            if not live.restarts_itself:
                raise
            live.check_expansions(signal)
            _restart(live, signal)
        except PromptEvaluationError as error:
            if not _may_recover(live, error):
                raise
            failure = error
            _recover(live, error)


def _restart(live: LiveRun, signal: VisibilityExpansionRequired) -> None:
    """Record that this attempt has ended, and begin the next, which opens what this one has asked for."""
    attempt, stored = live.attempt, live.session[RunState].latest()
    with live.session.together():
        _end(live, "restarted", section_keys=tuple(signal.section_keys), reason=signal.reason)
        is_stored = stored is not None and stored.run_id == live.run_id
        if is_stored and not live.evaluates_itself:
            live.save(opening=signal.requested_overrides)
        else:
            # The loop renders nothing in the next attempt, or has rendered nothing that it could render again.
            live.open(signal.requested_overrides)
            following = live.state.updated({"attempt": live.state.attempt + 1})
            if is_stored:
                live.begin(following)
            else:
                live.state = following
    live.stream.restarted = signal.reason
    dynamic = attempt.dynamic and attempt.model.supports_dynamic_tools
    live.attempt = live.new_attempt("exchange" if live.in_conversation else "new", dynamic=dynamic)


def _may_recover(live: LiveRun, error: PromptEvaluationError) -> bool:
    """True if there is another model, and it might succeed where this one failed."""
    is_last = live.state.model + 1 == len(live.spec.models)
    if is_last or isinstance(error, DeadlineExceededError | BudgetExceededError):
        return False
    called = next((call for call in live.events(events.ModelCalled) if call.run_id == live.run_id), None)
    is_answered = called is not None and called.stop_reason in _STOPPED
    # What was shown of an unfinished reply cannot be taken back. A model that cannot offer a hosted tool fails in the
    # phase "render".
    return not is_answered and not live.stream.shown and error.phase in ("request", "response", "render")


def _recover(live: LiveRun, error: PromptEvaluationError) -> None:
    """Record the failure of the model in use, and go on with the next."""
    failed = f"{live.model.name}:{live.model.model} failed"
    is_rendered = any(event.run_id == live.run_id for event in live.events(events.PromptRendered))
    # All at once: a snapshot has the next model and what the one before has left, or neither.
    with live.session.together():
        _save_rest(live, stopped=False)
        _end(live, "recovered", reason=str(error), error=type(error).__name__, phase=phase_of(error))
        following = live.state.updated({"model": live.state.model + 1, "estimated": None})
        if is_rendered:
            live.begin(following)
        else:
            live.state = following
    live.interrupt = _nothing
    live.failures.append(f"{failed}: {shortened(str(error), 200)}")
    beginning = "resume" if is_rendered else live.attempt.beginning
    live.attempt = live.new_attempt(beginning, message=live.spec.message)
    logger.warning("%s, going on with %s: %s", failed, live.model.name, error)


def _nothing() -> None:
    """Interrupts nothing."""


def _evaluate_itself(live: LiveRun) -> Generator[Effect, Any, PromptResponse[Any]]:
    """Have the model evaluate the prompt; the user's message stands in the session."""
    message = live.attempt.message
    if message is not None:
        if live.has_guards:
            (message,) = yield from pass_words(live, [message], always=True)
            assert message is not None
        live.attempt.message = None
        live.given[message.kind] = message
        live.session.dispatch(message)
    ended_before = len(live.session[events.RunEnded])
    response: PromptResponse[Any] = yield Evaluate(live.model)
    if len(live.session[events.RunEnded]) == ended_before:
        # It has not run the library's loop, which would have said so.
        _end(live, "completed", text=response.text, output=response.output)
    return replace(
        response,
        run_id=response.run_id or live.run_id,
        conversation_id=response.conversation_id or live.conversation_id,
    )


def _evaluate(live: LiveRun) -> Generator[Effect, Any, PromptResponse[Any]]:
    start.refresh_sections(live)
    is_first = live.state.attempt == 1 and live.state.opening is None
    if live.attempt.beginning == "exchange" and is_first and waiting_calls(live.session):
        yield from start.pass_message(live)
        yield from _settle(live)
    # The user went on while calls of this run, inside another, waited.
    gone_on = any(isinstance(decision, Undecided) for decision in live.decisions.values())
    pending = yield from start.open_calls(live)
    if not pending:
        answer = yield from _earlier_answer(live)
        if answer is not None:
            return _response(live, *answer)
    while True:
        while pending:
            outcomes = yield RunTools(ToolExecutor(live).next_group(pending))
            pending = pending[len(outcomes) :]
            # All at once: a snapshot has the results with what follows from them, or neither.
            with live.session.together():
                ended = _record_outcomes(live, outcomes)
                if ended:
                    return _stop_to_open(live, ended, pending)
            if pending:
                if live.attempt.dynamic:
                    yield from start.load_sections(live)
                offers.register(live, mid_turn=True)
        if gone_on or waiting_calls(live.session):
            return _response(live, "")
        reply = yield from _reply(live)
        if reply is None:
            continue
        pending = reply.tool_calls
        # If the user has sent another message since, the model answers that too.
        if pending or reply.stop_reason == "pause" or transcript.put_in_order(live):
            continue
        answer = yield from answers.check(live, reply)
        if answer is not None:
            return _response(live, *answer)


def _earlier_answer(live: LiveRun) -> Generator[Effect, Any, tuple[str, Any] | None]:
    """The answer that the conversation ends with already, if it is one."""
    last = live.session[Message].latest()
    if last is None or last.role != "assistant" or last.paused:
        return None
    if not live.meter.turns:
        raise live.error(f"'{live.name}' has nothing to answer: its user sections have been answered; pass content.")
    if _has_failed(live):
        # Asking again on resume is not one of the retries.
        live.save(output_retries=-1)
    return (yield from answers.check(live, ModelReply(text=last.text, tool_calls=last.tool_calls)))


def _has_failed(live: LiveRun) -> bool:
    """True if the run has ended with an error since its last reply."""
    end = next(live.events(events.RunEnded), None)
    called = next(live.events(events.ModelCalled), None)
    return end is not None and bool(end.error) and (called is None or end.timestamp > called.timestamp)


def _reply(live: LiveRun) -> Generator[Effect, Any, ModelReply | None]:
    """The next reply of the model; None if the conversation was too long for it, and was shortened."""
    yield from _prepare_request(live)
    request = _request(live)
    if live.points is not None:
        live.points.turn(live.run_id, live.meter.own_turns + 1)
    answers.hold(live)
    overrides = offers.overrides_now(live)
    requested = live.session.clock.monotonic()
    live.attempt.call_ids = None
    try:
        reply = received(live, (yield CallModel(request)))
        with live.session.together():
            _record_reply(live, request, reply, live.session.clock.monotonic() - requested, overrides=overrides)
            compaction.replied(live)
    except ContextOverflowError as error:
        if not (yield from compaction.overflowed(live, error)):
            raise
        return None
    return reply


def _settle(live: LiveRun) -> Generator[Effect, Any, None]:
    """Before the next exchange, settle the calls of the last that wait: as decided, else as not decided."""
    state, spent, message = live.state, live.meter.spent, live.attempt.message
    live.attempt = live.new_attempt("resume")
    pending = yield from start.open_calls(live)
    while pending:
        for call_id in waiting_calls(live.session):
            live.decisions.setdefault(call_id, Undecided())
        outcomes = yield RunTools(pending)
        with live.session.together():
            _record_outcomes(live, outcomes)
        # A call that ran again has asked again.
        waiting = waiting_calls(live.session)
        pending = tuple(call for call in pending if is_waiting(call.id, waiting))
    transcript.put_in_order(live)
    _end(live, "stopped")
    live.state, live.meter.spent = state, spent
    live.attempt = live.new_attempt("exchange")
    live.attempt.message = message


def _prepare_request(live: LiveRun) -> Generator[Effect, Any, None]:
    """Bring sections, notices and tools up to date for the next request."""
    attempt = live.attempt
    notices.send_read(live)
    if live.follows_sections and attempt.dynamic and (yield from start.follow_sections(live)):
        attempt.removed = None
        notices.announce(live, offers.reload(live))
    start.open_by_rule(live)
    yield from start.load_sections(live)
    yield from compaction.prepare(live)
    if attempt.removed is None:
        notices.announce_opened(live)
    else:
        # Here, and not as the run was taken up, so that its messages stand as in a run that was never stopped.
        removed, attempt.removed = attempt.removed, None
        notices.announce(live, removed)
    offers.update(live)
    if live.has_guards:
        check_guarded_tools(live)
    transcript.put_in_order(live)
    live.pay_rankings()
    if live.meter.needs_prices and live.model.model:
        live.prices(live.model.model)
    live.meter.check_model_call(live.name)


def _stop_to_open(
    live: LiveRun, ended: Sequence[ToolExecutionOutcome], pending: Sequence[ToolCall]
) -> PromptResponse[Any]:
    """End the turn at calls that open sections: return to the caller, or raise for a new attempt."""
    requests = [outcome.disclosure for outcome in ended if outcome.disclosure is not None]
    overrides = {path: visibility for request in requests for path, visibility in request.overrides.items()}
    transcript.say(live, *failed_results(pending, NOT_RUN))
    live.save(opening=overrides if live.restarts_itself else {})
    reason = "; ".join(dict.fromkeys(request.reason for request in requests if request.reason))
    if not live.restarts_itself and any(outcome.halts for outcome in ended):
        return _response(live, "", halt=OpenSectionsResult(overrides, reason=reason))
    keys = tuple(key for request in requests for key in request.keys)
    raise VisibilityExpansionRequired(
        f"Section expansion requires restart: opening {', '.join(keys)} needs a new evaluation; MainLoop starts one.",
        requested_overrides=overrides,
        reason=reason,
        section_keys=keys,
    )


def _request(live: LiveRun) -> ModelRequest:
    output = live.prompt.template.structured_output
    return ModelRequest(
        prompt_name=live.name,
        messages=transcript.messages_to_send(live),
        output=None if output is None or output.container == "text" else output,
        deadline=live.meter.deadline,
        settings=live.attempt.settings,
        **live.toolbox.offered,
    )


def _record_reply(live: LiveRun, request: ModelRequest, reply: ModelReply, latency: float, *, overrides: Any) -> None:
    meter, model = live.meter, live.model
    live.stream.text = []
    live.stream.shown = live.stream.shown and reply.stop_reason == "pause"
    meter.add_usage(reply.usage, live.prices(reply.model) if meter.needs_prices else None)
    live.save(spent=meter.spent, unfinished=False)
    live.emit(
        events.ModelCalled,
        prompt_name=live.name,
        adapter=model.name,
        model=reply.model or model.model,
        turn=meter.own_turns,
        usage=reply.usage,
        stop_reason=reply.stop_reason,
        latency=latency,
        retries=reply.retries,
        response_id=reply.response_id,
        messages=live.attempt.ordered,
        tools=live.toolbox.callable_names,
        overrides=overrides,
    )
    if reply.reasoning_dropped:
        live.emit(events.ReasoningDropped, reason="the provider no longer accepts it")
    # An incomplete reply stays out of the conversation: none of its calls may run, now or on resume.
    _check_stop(reply, live.name)
    transcript.say(
        live,
        Message(
            role="assistant",
            text=reply.text,
            tool_calls=reply.tool_calls,
            items=reply.items,
            provider=model.name,
            paused=reply.stop_reason == "pause",
            reasoning=reply.reasoning,
        ),
    )
    notices.open_found(live, offers.find(live, reply))


def _record_outcomes(live: LiveRun, outcomes: Sequence[CallOutcome]) -> list[ToolExecutionOutcome]:
    """Add the results to the conversation; return the outcomes that end the turn."""
    live.save(spent=live.meter.spent)
    ended = [outcome for outcome in outcomes if isinstance(outcome, ToolExecutionOutcome)]
    notices.disclosed(live, ended)
    for outcome in ended:
        if outcome.operator_text:
            live.save(unsent=(*live.state.unsent, outcome.operator_text))
        transcript.say(live, outcome.as_message(offers.bring(live, outcome.found)))
        # Only now: a thread that stops this run records the others.
        live.calls.ended.pop(outcome.tool_call_id, None)
    return [outcome for outcome in ended if outcome.ends_turn]


def _response(
    live: LiveRun, text: str, output: Any = None, halt: OpenSectionsResult | None = None
) -> PromptResponse[Any]:
    return PromptResponse(
        prompt_name=live.name,
        text=text,
        output=output,
        halt=halt,
        hosted_outputs=offers.outputs_of_hosted(live),
        usage=live.meter.usage,
        turns=live.meter.turns,
        run_id=live.run_id,
        conversation_id=live.conversation_id,
        pending=tuple(waiting_calls(live.session).values()),
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
