"""The beginning of a run: afresh, as a restart, where another process left it, or with the next message."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Sequence
from typing import Any, Literal

from weakincentives.prompt import ClearVisibilityOverride, SectionPath
from weakincentives.runtime import events
from weakincentives.runtime.calls.approval import Edit, Undecided, edited_arguments, is_waiting, waiting_calls
from weakincentives.runtime.calls.results import Results
from weakincentives.runtime.known import notices, offers
from weakincentives.runtime.live import LiveRun
from weakincentives.runtime.loop.effects import Effect, LoadSections, RunTools
from weakincentives.runtime.loop.words import pass_decisions, pass_words
from weakincentives.runtime.messages import (
    INSTRUCTIONS,
    PROMPT_TEXT,
    Message,
    ToolCall,
    assistant_messages,
    failed_results,
    rebased,
    unanswered_calls,
    unanswered_words,
    user_message,
    user_words,
    with_prompt_message,
    with_results,
)
from weakincentives.runtime.spec import Beginning
from weakincentives.runtime.state import RunState
from weakincentives.runtime.window import transcript

logger = logging.getLogger("weakincentives.runtime")

Entry = Literal["fresh", "restart", "continue", "next message", "refused"]


def entry(stored: RunState | None, new: RunState, beginning: Beginning, params: str) -> Entry:
    """The way in which a run begins, by the state that its session holds; `params` is a digest of the prompt's."""
    if stored is None or not stored.is_of(new.prompt_ns, new.prompt_key):
        return "refused" if beginning == "resume" else "fresh"
    is_opening = stored.opening is not None
    if beginning == "resume":
        return "restart" if is_opening else "continue"
    if is_opening and (stored.run_id == new.run_id or stored.params == params):
        return "restart"
    return "next message" if beginning == "exchange" else "fresh"


def begin(live: LiveRun) -> Generator[Effect, Any, tuple[ToolCall, ...]]:
    """Put the session into the state of the first request; return the calls that are still to be made."""
    stored, beginning = live.session[RunState].latest(), live.attempt.beginning
    if stored is not None and stored.unfinished and live.attempt.message is None:
        # The model writes that reply again.
        live.session[Message].update(_without_reply)
    _check_given(live)
    way = entry(stored, live.state, beginning, live.prompt.params_digest)
    if way == "refused":
        name = f"{live.prompt.ns}/{live.prompt.key}"
        held = "no run" if stored is None else f"a run of '{stored.prompt_ns}/{stored.prompt_key}'"
        raise live.error(
            f"Cannot resume '{name}': the session holds {held}; "
            "restore a snapshot that was taken during a run of this prompt."
        )
    if stored is None or way == "fresh":
        yield from _render(live, None)
        return ()
    live.presentation.keep_names(stored.used_names)
    if way == "continue":
        return (yield from _continue(live, stored))
    if way == "next message":
        yield from _next_message(live, stored)
        return ()
    if beginning == "resume":
        live.adopt_state(stored)
        live.meter.spent = stored.spent
        _resume_presentation(live, stored)
    yield from _render(live, stored)
    return ()


def _without_reply(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages without the last, if that is the model's."""
    return messages[:-1] if messages and messages[-1].role == "assistant" else messages


def open_calls(live: LiveRun) -> Generator[Effect, Any, tuple[ToolCall, ...]]:
    """Begin, check the decisions before any acts, and return the calls to make, among them those that wait."""
    pending = yield from begin(live)
    decisions, waiting = live.decisions, waiting_calls(live.session)
    calls = pending or unanswered_calls(live.session[Message].view())
    own_ids = {call.id for call in calls}
    for call_id, decision in decisions.items():
        # The run inside a call checks its own: it may have another tool of that name.
        tool = live.toolbox.asked_about(waiting[call_id]) if call_id in own_ids else None
        if isinstance(decision, Edit) and tool is not None:
            edited_arguments(tool, waiting[call_id], decision, live.name)
    if decisions and live.has_guards:
        decisions.update((yield from pass_decisions(live, decisions, waiting)))
    # The user spoke over these, so they have results.
    lost: list[ToolCall] = []
    for call in waiting.values():
        if not any(is_waiting(open_call.id, [call.call_id]) for open_call in calls):
            lost.append(ToolCall(call.call_id, call.tool, call.arguments))
    if lost:
        decisions.update((call.id, Undecided()) for call in lost)
        yield RunTools(tuple(lost))
        live.calls.ended.clear()
    return pending or tuple(call for call in calls if is_waiting(call.id, waiting))


def refresh_sections(live: LiveRun) -> None:
    """Have sections loaded again that ask for it, once per run."""
    stored = live.session[RunState].latest()
    if live.presentation.loaded and (stored is None or stored.run_id != live.run_id):
        live.presentation.keep_loaded(live.resources)


def follow_sections(live: LiveRun) -> Generator[Effect, Any, bool]:
    """Load sections again that are out of date; one that cannot be loaded stays as it is. True if there are any."""
    presentation = live.presentation
    if not presentation.loaded or live.dry_run:
        return False
    outdated = presentation.forget_outdated(live.resources)
    if not outdated:
        return False
    presentation.keep_names(live.state.used_names)
    live.attempt.recorded_loads = len(presentation.loaded)
    for path, error in (yield LoadSections(tuple(outdated))).items():
        presentation.count_as_loaded(path)
        logger.warning("Section '%s' stays as it was: %s", ".".join(path), error)
    return True


def skip_loading(live: LiveRun) -> None:
    """Leave sections that are not loaded yet as they are, and ask no guard."""
    live.dry_run = True
    live.attempt.unloadable = {node.path: LookupError() for node in live.presentation.outline.late}


def pass_message(live: LiveRun) -> Generator[Effect, Any, None]:
    """Have the guards pass the next message of a conversation, before anything else happens."""
    stored = live.session[RunState].latest()
    if stored is None or live.dry_run:
        return
    if live.presentation.outline.late:
        # What they bring may have guards.
        yield from _take_up(live, stored.as_new(live.run_id))
    elif live.has_guards:
        _resume_presentation(live, stored.as_new(live.run_id))
    if live.has_guards:
        (live.attempt.message,) = yield from pass_words(live, [live.attempt.message], always=True)


def load_sections(live: LiveRun) -> Generator[Effect, Any, None]:
    """Load open sections whose tools are not known yet; what they add may include more such sections."""
    while paths := _unloaded(live):
        errors = yield LoadSections(paths)
        for path, error in errors.items():
            raise live.error(f"Section '{'.'.join(path)}' of '{live.name}' cannot be opened: {error}") from error
    notices.record_loaded(live)


def open_by_rule(live: LiveRun) -> None:
    """Open the sections whose rules now apply."""
    paths = live.presentation.opened_by_rule(lambda: user_words(live.session[Message].view()))
    notices.open_sections(live, paths, "rule")


def missing_results(live: LiveRun) -> list[Message]:
    """Results for the calls that were left open: never made if the run failed, else perhaps running elsewhere."""
    end = next(live.events(events.RunEnded), None)
    called = next(live.events(events.ModelCalled), None)
    text = "Not finished: the conversation went on without it. Whether this call had an effect is not known."
    if end is not None and end.error and called is not None and end.timestamp > called.timestamp:
        text = "Not run: the turn ended before this call was made."
    return failed_results(lost_calls(live), text)


def lost_calls(live: LiveRun) -> list[ToolCall]:
    """The calls without a result that wait for nobody."""
    waiting = waiting_calls(live.session)
    open_now = unanswered_calls(live.session[Message].view())
    return [call for call in open_now if not is_waiting(call.id, waiting)]


def say_message(live: LiveRun) -> None:
    """Add the user's message to the conversation, once."""
    live.add_message(lambda message: transcript.say(live, message))


def _unloaded(live: LiveRun) -> tuple[SectionPath, ...]:
    return tuple(path for path in live.presentation.unloaded() if path not in live.attempt.unloadable)


def _load_again(live: LiveRun, state: RunState, *, and_open: bool) -> Generator[Effect, Any, None]:
    """Load the sections that were loaded when the run or its conversation stopped, and if asked those that are open."""
    presentation, unloadable = live.presentation, live.attempt.unloadable
    while True:
        paths = [path for path in presentation.not_loaded(state.loaded) if path not in unloadable]
        if and_open:
            paths += _unloaded(live)
        if not paths or live.dry_run:
            return
        for path, error in (yield LoadSections(tuple(dict.fromkeys(paths)))).items():
            logger.warning("Section '%s' cannot be opened: %s", ".".join(path), error)
            unloadable[path] = error


def _resume_presentation(live: LiveRun, state: RunState) -> None:
    chosen = {**state.chosen, **state.overrides}
    live.presentation.resume(chosen, state.selected, live.spec.visibility_overrides)


def _check_given(live: LiveRun) -> None:
    """Check the content that the user gave to this run; a rejected message is never added to the conversation."""
    message, live.attempt.message = live.attempt.message, None
    given = [*live.given.values(), *([] if message is None else [message])]
    messages = () if live.attempt.beginning == "new" else live.session[Message].view()
    earlier = (other for other in messages if all(other is not own for own in given))
    live.model.check_parts([part for own in given for part in own.parts], earlier)
    live.attempt.message = message


def _render(live: LiveRun, before: RunState | None) -> Generator[Effect, Any, None]:
    """Render and offer the first tools; as a restart of the run `before`, which keeps the conversation."""
    session, attempt = live.session, live.attempt
    messages = session[Message].all()
    goes_on = before is not None or attempt.beginning == "exchange"
    kept = rebased(with_results(messages, missing_results(live))) if goes_on else unanswered_words(messages)
    spoken = [message for message in (*kept, attempt.message) if message is not None]
    words = next((message.text for message in spoken if message.by_user), "")
    same_run = before is not None and before.run_id == live.run_id
    if before is not None:
        live.open(before.opening or {})
        yield from _load_again(live, before, and_open=False)
    if same_run:
        open_by_rule(live)
    else:
        _begin_presentation(live, words)
    if live.presentation.unloaded():
        yield from load_sections(live)
        if not same_run:
            _begin_presentation(live, words)
    view = live.view
    rendered = live.prompt.rendered(view)
    offers.check_hosted(live, view)
    said = [message for message in spoken if (message.role, message.kind) != ("user", PROMPT_TEXT)]
    live.model.check_parts(rendered.user_parts, said)
    turn = user_message(rendered.user_parts, kind=PROMPT_TEXT) if rendered.user_text else None
    if not live.dry_run and live.has_guards:
        given = [turn, attempt.message, *([] if goes_on else kept)]
        turn, attempt.message, *others = yield from pass_words(live, given, always=not same_run)
        kept = kept if goes_on else [message for message in others if message is not None]
    # All at once: a snapshot has the prompt with what the user said, or what there was before.
    with session.together():
        live.state = _state_after(live, before, kept, same_run=same_run)
        offers.begin(live, view)
        # Messages that were added since are put after those of the loop.
        session[Message].update(lambda current: current[len(messages) :])
        notices.record_rendered(live, rendered, view, restarts=before is not None)
        if goes_on and any(live.model.binds_reasoning(message) for message in messages if not message.rebased):
            reason = "it is bound to the text of the prompt, which has changed"
            live.emit(events.ReasoningDropped, reason=reason)
        if before is None:
            notices.record_first_opened(live, view)
        _add_prompt(live, rendered.system_text)
        if turn is not None:
            live.given[turn.kind] = turn
        transcript.say(live, *with_prompt_message(kept, turn, restarts=before is not None))
        if before is not None:
            notices.announce(live, restarted=True)
        say_message(live)


def _begin_presentation(live: LiveRun, words: str) -> None:
    live.presentation.begin(live.spec.visibility_overrides, words)
    for path in live.presentation.reopened():
        live.session.dispatch(ClearVisibilityOverride(path))


def _add_prompt(live: LiveRun, system_text: str) -> None:
    offered = live.toolbox.offered
    listed = [tool for tool in offered["tools"] if tool.name not in offered["deferred"]]
    if system_text:
        transcript.say(live, Message("system", system_text, kind=PROMPT_TEXT))
    if descriptions := offers.long_descriptions(live, listed):
        # Only tools from outside have long descriptions, which must not speak for the operator.
        transcript.say(live, Message("user", descriptions, kind=INSTRUCTIONS))


def _state_after(live: LiveRun, before: RunState | None, kept: Iterable[Message], *, same_run: bool) -> RunState:
    """The state of the run that is rendered now, as a restart of `before` if that is a run."""
    state = live.state
    if before is not None:
        state = before if same_run else before.as_new(live.run_id)
    chosen, selected = live.presentation.decisions()
    return state.updated(
        {
            "chosen": state.chosen if same_run else chosen,
            "selected": selected,
            "overrides": {**state.overrides, **live.overrides_by_key},
            "answers": _answers_before(live, kept),
            "opening": None,
            "unfinished": False,
            "spent": live.meter.spent,
            "params": live.prompt.params_digest,
            "attempt": state.attempt + 1 if same_run else 1,
            "model": live.state.model,
            "loaded": live.presentation.loaded,
        }
    )


def _answers_before(live: LiveRun, messages: Iterable[Message]) -> int:
    """The number of assistant messages before this run; only hosted tools need to know."""
    if not live.prompt.outline.may_have_hosted:
        return 0
    stored = live.session[RunState].latest()
    if stored is not None and stored.run_id == live.run_id:
        return stored.answers
    return len(assistant_messages(messages))


def _next_message(live: LiveRun, earlier: RunState) -> Generator[Effect, Any, None]:
    """Continue the conversation of an earlier run, under a new run id."""
    yield from pass_message(live)
    answers = _answers_before(live, live.session[Message].view())
    state = earlier.as_new(live.run_id, answers).updated({"model": live.state.model})
    yield from _take_up(live, state)
    # All at once: a snapshot has the new run with the user's message, or the earlier run.
    with live.session.together():
        _, removed = _take_over(live, state, continues=earlier)
        transcript.say(live, *missing_results(live))
        notices.announce(live, removed)
        say_message(live)
        message = live.given.get("")
        if message is not None:
            paths = live.presentation.opened_by_words(message.text)
            notices.open_sections(live, paths, "search")


def _continue(live: LiveRun, state: RunState) -> Generator[Effect, Any, tuple[ToolCall, ...]]:
    """Take over the state of a run; return its open calls."""
    yield from _take_up(live, state)
    with live.session.together():
        pending, live.attempt.removed = _take_over(live, state)
    # The results of the open calls come first, and the texts that calls have read.
    return pending


def _take_up(live: LiveRun, state: RunState) -> Generator[Effect, Any, None]:
    """Show the prompt as it was shown, with all that was loaded then."""
    _resume_presentation(live, state)
    yield from _load_again(live, state, and_open=True)


def _take_over(
    live: LiveRun, state: RunState, *, continues: RunState | None = None
) -> tuple[tuple[ToolCall, ...], list[str]]:
    """Take over a state with its tools and messages; return the open calls, and the tools that are gone."""
    live.adopt_state(state)
    removed = offers.take_over(live, new_exchange=continues is not None)
    # Messages from here on belong to this run, for observers too.
    live.save(
        selected=live.presentation.decisions()[1],
        overrides={**state.overrides, **live.overrides_by_key},
        params=live.prompt.params_digest,
    )
    live.meter.spent = state.spent
    transcript.adopt(live)
    pending = unanswered_calls(live.session[Message].view())
    if pending:
        Results(live).take_over(pending)
        offers.register(live, mid_turn=True)
    if continues is None:
        notices.record_resumed(live)
    else:
        notices.record_continued(live, continues)
    notices.record_loaded(live)
    return pending, removed
