"""The beginning of a run: afresh, as a restart, where another process left it, or with the next message."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from weakincentives.prompt import ClearVisibilityOverride, SectionPath
from weakincentives.runtime import events
from weakincentives.runtime.calls.approval import Edit, Undecided, edited_arguments, is_waiting, waiting_calls
from weakincentives.runtime.calls.executor import ToolExecutor
from weakincentives.runtime.context import RunContext
from weakincentives.runtime.known.notices import Notices
from weakincentives.runtime.known.offers import OfferedTools
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
from weakincentives.runtime.runs import Run

logger = logging.getLogger("weakincentives.runtime")

Beginning = Literal["new", "resume", "exchange"]
Entry = Literal["fresh", "restart", "continue", "next message", "refused"]


def entry(run: Run | None, beginning: Beginning, ns: str, key: str, params: str, attempt: int) -> Entry:
    """The way in which a run begins, by the run that its session holds; `params` is a digest of the prompt's params."""
    if run is None or (run.prompt_ns, run.prompt_key) != (ns, key):
        return "refused" if beginning == "resume" else "fresh"
    if beginning == "resume":
        return "restart" if run.opening else "continue"
    if attempt > 1 or (run.opening and run.params == params):
        return "restart"
    return "next message" if beginning == "exchange" else "fresh"


@dataclass(slots=True)
class RunStart:
    """Puts the session into the state of the first request.

    `removed` are the tools that are gone since the run stopped, until the next request announces that; sections that
    can no longer be loaded have lost their tools.
    """

    context: RunContext
    tools: OfferedTools
    notices: Notices
    executor: ToolExecutor
    beginning: Beginning
    removed: Sequence[str] | None = None
    _unloadable: dict[SectionPath, Exception] = field(default_factory=dict)
    _dry_run: bool = False

    def begin(self) -> Generator[Effect, Any, tuple[ToolCall, ...]]:
        """Begin, and return the calls that are still to be made."""
        context, scope, session = self.context, self.context.scope, self.context.session
        run = session[Run].latest()
        scope.conversation_id = scope.conversation_id or session.session_id if run is None else run.conversation_id
        if run is not None and run.unfinished and context.message is None:
            # The model writes that reply again.
            session[Message].update(lambda said: said[:-1] if said and said[-1].role == "assistant" else said)
        self._check_given()
        prompt = context.prompt
        way = entry(run, self.beginning, prompt.ns, prompt.key, prompt.params_digest, scope.attempt)
        if way == "refused":
            found = "no run" if run is None else f"a run of '{run.prompt_ns}/{run.prompt_key}'"
            raise context.error(
                f"Cannot resume '{prompt.ns}/{prompt.key}': the session holds {found}; "
                "restore a snapshot that was taken during a run of this prompt."
            )
        if run is None or way == "fresh":
            yield from self._render(None)
            return ()
        context.presentation.keep_names(run.used_names)
        if self.beginning == "resume":
            scope.run_id = run.run_id
        if way == "continue":
            return (yield from self._continue(run))
        if way == "next message":
            return (yield from self._next_message(run))
        if self.beginning == "resume":
            scope.attempt = max(scope.attempt, run.attempt + 1)
            scope.meter.spent = run.spent
            self._resume_presentation(run)
        yield from self._render(run)
        return ()

    def open_calls(self) -> Generator[Effect, Any, tuple[ToolCall, ...]]:
        """Begin, check the decisions before any acts, and return the calls to make, among them those that wait."""
        pending = yield from self.begin()
        context, decisions = self.context, self.context.scope.decisions
        assert decisions is not None
        waiting = waiting_calls(context.session)
        calls = pending or unanswered_calls(context.session[Message].view())
        own = {call.id for call in calls}
        for call_id, decision in decisions.items():
            # The run inside a call checks its own: it may have another tool of that name.
            tool = self.tools.toolbox.asked_about(waiting[call_id]) if call_id in own else None
            if isinstance(decision, Edit) and tool is not None:
                edited_arguments(tool, waiting[call_id], decision, context.name)
        if decisions and context.has_guards:
            decisions.update((yield from pass_decisions(context, decisions, waiting)))
        # The user spoke over these, so they have results.
        over = [call for call in waiting.values() if not any(is_waiting(each.id, [call.call_id]) for each in calls)]
        lost = tuple(ToolCall(call.call_id, call.tool, call.arguments) for call in over)
        if lost:
            decisions.update((call.id, Undecided()) for call in lost)
            yield RunTools(lost)
            self.executor.results.ended.clear()
        return pending or tuple(call for call in calls if is_waiting(call.id, waiting))

    def refresh_sections(self) -> None:
        """Have sections loaded again that ask for it, once per run."""
        run, presentation = self.context.session[Run].latest(), self.context.presentation
        if presentation.loaded and (run is None or run.run_id != self.context.scope.run_id):
            presentation.keep_loaded(self.context.resources)

    def follow_sections(self) -> Generator[Effect, Any, bool]:
        """Load sections again that are out of date; one that cannot be loaded stays as it is. True if there are any."""
        presentation = self.context.presentation
        follows = bool(presentation.loaded) and not self._dry_run
        old = presentation.forget_outdated(self.context.resources) if follows else []
        if not old:
            return False
        presentation.keep_names(self.context.run.used_names)
        self.notices.loads_again()
        for path, error in (yield LoadSections(tuple(old))).items():
            presentation.loaded += (path,)
            logger.warning("Section '%s' stays as it was: %s", ".".join(path), error)
        return True

    def skip_loading(self) -> None:
        """Leave sections that are not loaded yet as they are, and ask no guard."""
        self._dry_run = True
        self._unloadable = {node.path: LookupError() for node in self.context.presentation.outline.late}

    def pass_message(self) -> Generator[Effect, Any, None]:
        """Have the guards pass the next message of a conversation, before anything else happens."""
        context, run = self.context, self.context.session[Run].latest()
        if run is None or self._dry_run:
            return
        context.scope.conversation_id = run.conversation_id
        self._resume_presentation(run.as_new(context.scope.run_id))
        # They may bring guards.
        yield from self._load_open_sections()
        if context.has_guards:
            (context.message,) = yield from pass_words(context, [context.message], always=True)

    def load_sections(self) -> Generator[Effect, Any, None]:
        """Load open sections whose tools are not known yet; what they add may include more such sections."""
        while paths := self._unloaded():
            errors = yield LoadSections(paths)
            for path, error in errors.items():
                where = f"Section '{'.'.join(path)}' of '{self.context.name}'"
                raise self.context.error(f"{where} cannot be opened: {error}") from error
        self.notices.record_loaded()

    def open_by_rule(self) -> None:
        """Open the sections whose rules now apply."""
        session = self.context.session
        opened = self.context.presentation.opened_by_rule(lambda: user_words(session[Message].view()))
        self.notices.open(opened, "rule")

    def missing_results(self) -> list[Message]:
        """Results for the calls that were left open: never made if the run failed, else perhaps running elsewhere."""
        ended = next(self.context.own(events.RunEnded), None)
        called = next(self.context.own(events.ModelCalled), None)
        text = "Not finished: the conversation went on without it. Whether this call had an effect is not known."
        if ended is not None and ended.error and called is not None and ended.timestamp > called.timestamp:
            text = "Not run: the turn ended before this call was made."
        return failed_results(self.lost_calls(), text)

    def lost_calls(self) -> list[ToolCall]:
        """The calls without a result that wait for nobody."""
        session = self.context.session
        waiting = waiting_calls(session)
        return [call for call in unanswered_calls(session[Message].view()) if not is_waiting(call.id, waiting)]

    def _load_open_sections(self) -> Generator[Effect, Any, None]:
        """Load the sections that the conversation has open; one that cannot be loaded has lost its tools."""
        while paths := self._unloaded():
            for path, error in (yield LoadSections(paths)).items():
                logger.warning("Section '%s' cannot be opened: %s", ".".join(path), error)
                self._unloadable[path] = error

    def _unloaded(self) -> tuple[SectionPath, ...]:
        return tuple(path for path in self.context.presentation.unloaded() if path not in self._unloadable)

    def _resume_presentation(self, run: Run) -> None:
        chosen = {**run.chosen, **run.overrides}
        self.context.presentation.resume(chosen, run.selected, self.context.visibility_overrides)

    def _check_given(self) -> None:
        """Check the content that the user gave to this run; a rejected message is never added to the conversation."""
        context = self.context
        message, context.message = context.message, None
        given = [*context.scope.given.values(), *([] if message is None else [message])]
        said = () if self.beginning == "new" else context.session[Message].view()
        earlier = (each for each in said if all(each is not own for own in given))
        context.adapter.check_parts([part for each in given for part in each.parts], earlier)
        context.message = message

    def _render(self, before: Run | None) -> Generator[Effect, Any, None]:
        """Render and offer the first tools; as a restart of the run `before`, which keeps the conversation."""
        context, messages = self.context, self.context.session[Message].all()
        goes_on = before is not None or self.beginning == "exchange"
        kept = rebased(with_results(messages, self.missing_results())) if goes_on else unanswered_words(messages)
        spoken = [message for message in (*kept, context.message) if message is not None]
        words = next((message.text for message in spoken if message.by_user), "")
        same_run = before is not None and before.run_id == context.scope.run_id
        if same_run:
            self.open_by_rule()
        else:
            self._begin_presentation(words)
        if context.presentation.unloaded():
            yield from self.load_sections()
            if not same_run:
                self._begin_presentation(words)
        view = context.view
        rendered = context.prompt.rendered(view)
        self.tools.check_hosted(view)
        said = [m for m in spoken if (m.role, m.kind) != ("user", PROMPT_TEXT)]
        context.adapter.check_parts(rendered.user_parts, said)
        turn = user_message(rendered.user_parts, kind=PROMPT_TEXT) if rendered.user_text else None
        if not self._dry_run and context.has_guards:
            given = [turn, context.message, *([] if goes_on else kept)]
            turn, context.message, *others = yield from pass_words(context, given, always=not same_run)
            kept = kept if goes_on else [message for message in others if message is not None]
        context.run = self._run_after(before, kept, same_run=same_run)
        self.tools.begin(view)
        # Messages that were added since are put after those of the loop.
        context.session[Message].update(lambda said: said[len(messages) :])
        self.notices.record_rendered(rendered, view, restarts=before is not None)
        if goes_on and any(context.adapter.binds_reasoning(message) for message in messages if not message.rebased):
            context.emit(events.ReasoningDropped, reason="it is bound to the text of the prompt, which has changed")
        if before is None:
            self.notices.record_first_opened(view)
        self._add_prompt(rendered.system_text)
        if turn is not None:
            context.scope.given[turn.kind] = turn
        context.transcript.say(*with_prompt_message(kept, turn, restarts=before is not None))
        if before is not None:
            self.notices.announce(restarted=True)
        context.add_message()

    def _begin_presentation(self, words: str) -> None:
        presentation = self.context.presentation
        presentation.begin(self.context.visibility_overrides, words)
        for path in presentation.reopened():
            self.context.session.dispatch(ClearVisibilityOverride(path))

    def _add_prompt(self, system_text: str) -> None:
        offered = self.tools.toolbox.offered
        known = [tool for tool in offered["tools"] if tool.name not in offered["deferred"]]
        if system_text:
            self.context.transcript.say(Message("system", system_text, kind=PROMPT_TEXT))
        if descriptions := self.tools.long_descriptions(known):
            # Only tools from outside have long descriptions, which must not speak for the operator.
            self.context.transcript.say(Message("user", descriptions, kind=INSTRUCTIONS))

    def _run_after(self, before: Run | None, kept: Iterable[Message], *, same_run: bool) -> Run:
        """The state of the run that is rendered now, as a restart of `before` if that is a run."""
        context, prompt = self.context, self.context.prompt
        scope = context.scope
        run = Run(scope.run_id, prompt.ns, prompt.key, conversation_id=scope.conversation_id)
        if before is not None:
            run = before if same_run else before.as_new(scope.run_id)
        chosen, selected = context.presentation.decisions()
        return replace(
            run,
            chosen=run.chosen if same_run else chosen,
            selected=selected,
            overrides={**run.overrides, **context.overrides_by_key},
            answers=self._answers_before(kept),
            opening=False,
            unfinished=False,
            spent=scope.meter.spent,
            params=prompt.params_digest,
            attempt=scope.attempt,
        )

    def _answers_before(self, messages: Iterable[Message]) -> int:
        """The number of assistant messages before this run; only hosted tools need to know."""
        if not self.context.prompt.outline.may_have_hosted:
            return 0
        run = self.context.session[Run].latest()
        if run is not None and run.run_id == self.context.scope.run_id:
            return run.answers
        return len(assistant_messages(messages))

    def _next_message(self, run: Run) -> Generator[Effect, Any, tuple[ToolCall, ...]]:
        """Continue the conversation of an earlier run, under a new run id."""
        context = self.context
        yield from self.pass_message()
        answers = self._answers_before(context.session[Message].view())
        yield from self._continue(run.as_new(context.scope.run_id, answers), continues=run)
        context.add_message()
        said = context.scope.given.get("")
        self.notices.open(() if said is None else context.presentation.opened_by_words(said.text), "search")
        return ()

    def _continue(self, run: Run, continues: Run | None = None) -> Generator[Effect, Any, tuple[ToolCall, ...]]:
        """Take over the state of a run; return its open calls."""
        context = self.context
        self._resume_presentation(run)
        context.run = run
        yield from self._load_open_sections()
        removed = self.tools.take_over(new_exchange=self.beginning == "exchange")
        # Messages from here on belong to this run, for observers too.
        overrides = {**run.overrides, **context.overrides_by_key}
        selected = context.presentation.decisions()[1]
        context.save(selected=selected, overrides=overrides, params=context.prompt.params_digest)
        context.scope.meter.spent = run.spent
        context.transcript.adopt()
        pending = unanswered_calls(context.session[Message].view())
        if pending:
            self.executor.results.take_over(pending)
            self.tools.register(mid_turn=True)
        if continues is None:
            self.notices.record_resumed()
        else:
            self.notices.record_continued(continues)
        self.notices.record_loaded()
        if self.beginning == "exchange":
            context.transcript.say(*self.missing_results())
        else:
            # The results of the open calls come first, and the texts that calls have read.
            self.removed = removed
            return pending
        self.notices.announce(removed)
        return pending
