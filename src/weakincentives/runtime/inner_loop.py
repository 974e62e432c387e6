"""The loop between model and tools, without any I/O.

`InnerLoop.run()` is a generator: it yields what it needs done (call the model, run these tools) and receives the
outcome. Everything it knows between two effects is in the session, so a run can be resumed from a snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

from weakincentives.content import Part, parts_of, text_of
from weakincentives.errors import (
    AbandonedCallError,
    ContextOverflowError,
    OutputParseError,
    PromptError,
    PromptEvaluationError,
)
from weakincentives.prompt import (
    CollapseSection,
    OpenSectionsResult,
    Overrides,
    Prompt,
    SectionPath,
    SectionVisibility,
    VisibilityExpansionRequired,
    parse_structured_output,
)
from weakincentives.runtime import events
from weakincentives.runtime.bridge import contained
from weakincentives.runtime.config import InnerLoopConfig
from weakincentives.runtime.executor import ToolExecutionOutcome, ToolExecutor
from weakincentives.runtime.messages import (
    CORRECTION,
    INSTRUCTIONS,
    PROMPT_TURN,
    READ_TEXT,
    CallModel,
    Effect,
    LoadSections,
    Message,
    ModelReply,
    ModelRequest,
    PromptResponse,
    RunTools,
    ToolCall,
    Transcript,
    assistant_messages,
    failed_results,
    rebased,
    text_before_pauses,
    unanswered_calls,
    unanswered_words,
    user_message,
    user_words,
    with_prompt_turn,
    with_results,
)
from weakincentives.runtime.misses import possible_misses
from weakincentives.runtime.notices import Notices
from weakincentives.runtime.offering import Offering
from weakincentives.runtime.run import Journal, Run, RunScope
from weakincentives.runtime.sections import sections_to_close
from weakincentives.session import Session

Beginning = Literal["new", "resume", "turn"]
_TOO_LARGE = "context is over"
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
    """One evaluation of one prompt on one session.

    It begins a `new` conversation (or, as a restart, the same one with a new system text), continues the run in the
    session (`resume`), or takes the next `turn` of a conversation, with what the user says.
    """

    def __init__(
        self,
        prompt: Prompt[Any],
        session: Session,
        scope: RunScope,
        config: InnerLoopConfig,
        *,
        visibility_overrides: Overrides | None = None,
        beginning: Beginning = "new",
        message: Message | None = None,
    ) -> None:
        check_prompt(prompt)
        if not isinstance(session, Session):
            raise TypeError(f"session must be a Session, got {session!r}; pass session=Session()")
        self.prompt = prompt
        self.session = session
        self.scope = scope
        self.config = config
        self._journal = Journal(session, scope)
        self._transcript = Transcript(session)
        self._offering = Offering(prompt, session, config, self._journal, self._transcript)
        self.notices = Notices(prompt, session, scope, config, self._journal, self._transcript, self._offering)
        self.toolbox = self._offering.toolbox
        self.executor = ToolExecutor(
            prompt,
            session,
            scope,
            self.toolbox,
            supports_dynamic_tools=config.supports_dynamic_tools,
            supports_operator_text=config.supports_operator_text,
            check_attachments=self._check_attachments,
        )
        # What a streaming driver has shown of the current reply.
        self.partial_text: list[str] = []
        # Ends a stream that the run's own thread is reading; set by channels that can do so.
        self.interrupt: Callable[[], None] = lambda: None
        # Why the last answer was rejected, for a streaming driver to show before the next one.
        self.rejected = ""
        self._beginning = beginning
        self.in_conversation = beginning == "turn"
        # What the user says, until it is in the conversation.
        self._message = None if message is None or message.name in scope.given else message
        self._visibility_overrides = visibility_overrides
        # The tools that are gone since the run stopped, while its open calls have no results yet.
        self._untold: Sequence[str] | None = None
        self._operator_texts: list[str] = []
        self._unloadable: dict[SectionPath, Exception] = {}
        self._context_tokens = 0
        self._conversation = session[Message]
        self._runs = session[Run]
        scope.codecs[config.adapter] = config.hosted_tool_codecs

    @property
    def owner(self) -> str:
        """The name under which the run claims its session."""
        return f"{self.prompt.name} ({self.scope.run_id})"

    def run(self) -> Generator[Effect, Any, PromptResponse[Any]]:
        """Yield effects, receive their outcomes, return the response."""
        started = self.session.clock.monotonic()
        self.scope.abandon = self.abandon
        try:
            response = yield from contained(self._evaluate(), self.prompt.name, "render")
        except VisibilityExpansionRequired as signal:
            # A tool that runs another prompt must not pass the signal off as its own run's.
            signal.prompt_name = self.prompt.name
            raise
        except AbandonedCallError:
            raise
        except Exception as error:
            self._keep_rest(stopped=False)
            self._journal.emit(
                events.EvaluationFailed,
                prompt_name=self.prompt.name,
                error=type(error).__name__,
                message=str(error),
                phase=phase_of(error),
                prompt_ns=self.prompt.ns,
                prompt_key=self.prompt.key,
                adapter=self.config.adapter,
                model=self.config.model,
                recovered=self.scope.recovers is not None and self.scope.recovers(error),
            )
            raise
        except BaseException:
            self._stop()
            raise
        finally:
            self.scope.abandon = self.scope.recovers = None
        if response.halt is None:
            for miss in possible_misses(self.prompt, self.session, self._journal.run, response.text):
                self._journal.emit(events.PossibleMiss, **miss._asdict())
        self._journal.emit(
            events.PromptExecuted,
            prompt_name=self.prompt.name,
            adapter=self.config.adapter,
            model=self.config.model,
            text=response.text,
            output=response.output,
            usage=response.usage,
            turns=response.turns,
            halted=response.halt is not None,
            duration=self.session.clock.monotonic() - started,
        )
        return response

    def _evaluate(self) -> Generator[Effect, Any, PromptResponse[Any]]:
        pending = yield from self._begin()
        return (yield from self._turns(pending))

    def abandon(self) -> None:
        """Stop the run from another thread while its own is busy, and free session and prompt before this returns."""
        self.scope.abandon = None
        self.scope.fence.close()
        self.executor.abandon()
        self._stop()
        self.session.release(self.owner)
        self.prompt.release()
        self.interrupt()

    def _stop(self) -> None:
        """Leave a conversation that can be continued: the text so far stays, and every open call gets an answer."""
        self._keep_rest(stopped=True)
        self._journal.emit(events.EvaluationStopped, prompt_name=self.prompt.name)

    def _keep_rest(self, *, stopped: bool) -> None:
        """Keep what a run had that ends early: the user's message, the text it has shown, the results of its calls."""
        if self._message is not None:
            self._transcript.adopt()
            self._transcript.say(*self._missing_results())
            self._say_message()
        partial, self.partial_text = "".join(self.partial_text), []
        if partial:
            self._journal.save(unfinished=True)
            self._transcript.say(Message(role="assistant", text=partial, provider=self.config.adapter))
        if made := list(self.executor.ended.values()):
            self._record_outcomes(made)
        if stopped:
            calls = unanswered_calls(self._conversation.view())
            self._transcript.say(*failed_results(calls, "Not run: the run was stopped."))
            self._say_operator_texts()
        self._transcript.put_in_order()

    def _turns(self, pending: tuple[ToolCall, ...]) -> Generator[Effect, Any, PromptResponse[Any]]:
        last = self._conversation.latest()
        if not pending and last is not None and last.role == "assistant" and not last.paused:
            if not self.scope.meter.turns:
                raise self._render_error(
                    f"'{self.prompt.name}' has nothing to answer: its user sections have been answered; pass content."
                )
            # Asking again on resume is not one of the retries.
            self._journal.save(output_retries=-1)
            answer = self._answer(ModelReply(text=last.text, tool_calls=last.tool_calls))
            if answer is not None:
                return answer
        while True:
            while pending:
                outcomes = yield RunTools(self._next_group(pending))
                pending = pending[len(outcomes) :]
                if ended := self._record_outcomes(outcomes):
                    return self._stop_to_open(ended, pending)
                if pending:
                    if self.config.supports_dynamic_tools:
                        yield from self._load_sections()
                    self._offering.register(mid_turn=True)
            if self._untold is not None:
                removed, self._untold = self._untold, None
                self.notices.announce(removed)
            self._say_operator_texts()
            self._open_by_rule()
            yield from self._load_sections()
            self._evict()
            self.notices.announce_opened()
            self._offering.update(self.scope.meter.turns)
            self._transcript.put_in_order()
            self.scope.meter.check_model_call(self.prompt.name)
            request = self._request()
            asked = self.session.clock.monotonic()
            reply = self.toolbox.with_names((yield CallModel(request)))
            self._record_reply(request, reply, self.session.clock.monotonic() - asked)
            pending = reply.tool_calls
            # If the user has spoken in the meantime, the model answers that too.
            if pending or reply.stop_reason == "pause" or self._transcript.put_in_order():
                continue
            answer = self._answer(reply)
            if answer is not None:
                return answer

    def _stop_to_open(self, ended: list[ToolExecutionOutcome], pending: tuple[ToolCall, ...]) -> PromptResponse[Any]:
        """End the turn at calls that open sections: return to the caller, or raise for a new evaluation."""
        text = "Not run: the turn ended to open sections. Call the tool again if it is still needed."
        self._transcript.say(*failed_results(pending, text))
        self._journal.save(opening=True)
        asked = [outcome.disclosure for outcome in ended if outcome.disclosure is not None]
        overrides = {path: each for request in asked for path, each in request.overrides.items()}
        reason = "; ".join(dict.fromkeys(request.reason for request in asked if request.reason))
        if any(outcome.halts for outcome in ended):
            return self._response("", None, OpenSectionsResult(overrides, reason=reason))
        keys = tuple(key for request in asked for key in request.keys)
        raise VisibilityExpansionRequired(
            f"Opening {', '.join(keys)} needs a new evaluation; MainLoop starts one.",
            requested_overrides=overrides,
            reason=reason,
            section_keys=keys,
        )

    def _begin(self) -> Generator[Effect, Any, tuple[ToolCall, ...]]:
        """Put the session into the state of the first request; return the calls that are still to be made."""
        run = self._runs.latest()
        self.scope.conversation_id = self.session.session_id if run is None else run.conversation_id
        if run is not None and run.unfinished and self._message is None:
            # The model writes that reply anew.
            self._conversation.update(lambda said: said[:-1] if said and said[-1].role == "assistant" else said)
        self._check_given()
        if run is None or run.run_id != self.scope.run_id:
            self.prompt.refresh()
        same_prompt = run is not None and (run.prompt_ns, run.prompt_key) == (self.prompt.ns, self.prompt.key)
        if self._beginning == "resume":
            if run is None or not same_prompt:
                found = "no run" if run is None else f"a run of '{run.prompt_ns}/{run.prompt_key}'"
                raise self._render_error(
                    f"Cannot resume '{self.prompt.ns}/{self.prompt.key}': the session holds {found}; "
                    "restore a snapshot that was taken during a run of this prompt."
                )
            self.scope.run_id = run.run_id
            self.prompt.first_run = self.prompt.first_run or run.first_run
            if not run.opening:
                return (yield from self._continue(run))
            self.scope.attempt = max(self.scope.attempt, run.attempt + 1)
            self.scope.meter.restore(run.spent)
            self.prompt.resume(self.session, {**run.chosen, **run.overrides}, run.selected, self._visibility_overrides)
        before = run if same_prompt else None
        # Another prompt of the same template does not continue what this one was to open.
        restarts = before is not None and before.opening and before.first_run == self.prompt.first_run
        self.prompt.first_run = self.prompt.first_run or self.scope.run_id
        if self.scope.attempt == 1 and not restarts:
            if self._beginning == "turn" and before is not None:
                return (yield from self._take_turn(before))
            before = None
        yield from self._start(before)
        return ()

    def _load_sections(self) -> Generator[Effect, Any, None]:
        """Load open sections whose tools are not known yet; what they add may include more such sections."""
        while paths := self._unloaded():
            errors = yield LoadSections(paths)
            for path, error in errors.items():
                where = f"Section '{'.'.join(path)}' of '{self.prompt.name}'"
                raise self._render_error(f"{where} cannot be opened: {error}") from error
        self.notices.record_loaded()

    def _open_by_rule(self) -> None:
        """Open the sections whose rules now apply."""
        opened = self.prompt.opened_by_rule(self.session, lambda: user_words(self._conversation.view()))
        self.notices.open(opened, "rule")

    def _open_found(self, reply: ModelReply) -> None:
        """Open the sections whose tools the provider found or the model called."""
        found = self._offering.found(reply)
        if not found:
            return
        view = self.prompt.view(self.session)
        paths = [path for key in found if (path := view.find(key)) is not None and not view.is_open(path)]
        self.notices.open(paths, "provider")
        for key, names in found.items():
            self._journal.emit(events.ToolsInjected, tool_names=names, section_key=key, route="tool_search")

    def _unloaded(self) -> tuple[SectionPath, ...]:
        return tuple(path for path in self.prompt.unloaded(self.session) if path not in self._unloadable)

    def _start(self, before: Run | None) -> Generator[Effect, Any, None]:
        """Render and offer the first tools; as a restart of the run `before`, which keeps the conversation."""
        messages = self._conversation.all()
        goes_on = before is not None or self._beginning == "turn"
        kept = rebased(with_results(messages, self._missing_results())) if goes_on else unanswered_words(messages)
        words = next((m.text for m in (*kept, self._message) if m is not None and m.role == "user" and not m.name), "")
        same_run = before is not None and before.run_id == self.scope.run_id
        if same_run:
            self._open_by_rule()
        rendered = self.prompt.begin(self.session, self._visibility_overrides, words, again=same_run)
        if self.prompt.unloaded(self.session):
            yield from self._load_sections()
            rendered = self.prompt.begin(self.session, self._visibility_overrides, words, again=same_run)
        view = self.prompt.view(self.session)
        self._offering.check_hosted(view)
        others = [m for m in (*kept, self._message) if m is not None and (m.role, m.name) != ("user", PROMPT_TURN)]
        self.config.check_parts(rendered.user_parts, others)
        run = Run(self.scope.run_id, self.prompt.ns, self.prompt.key, conversation_id=self.scope.conversation_id)
        if before is not None:
            run = before if same_run else before.as_new(self.scope.run_id)
        chosen, selected = self.prompt.decisions()
        self._journal.run = replace(
            run,
            chosen=before.chosen if before is not None and same_run else chosen,
            selected=selected,
            overrides={**run.overrides, **self._overrides_by_key},
            answers=self._answers_before(kept),
            opening=False,
            unfinished=False,
            spent=self.scope.meter.spent,
            first_run=self.prompt.first_run,
            attempt=self.scope.attempt,
        )
        self._offering.begin(view)
        # What was said since is put after what the loop says.
        self._conversation.update(lambda said: said[len(messages) :])
        self.notices.record_rendered(rendered, view, restarts=before is not None)
        if goes_on and any(self.config.binds_reasoning(message) for message in messages if not message.rebased):
            self._journal.emit(
                events.ReasoningDropped, reason="it is bound to the text of the prompt, which was rendered anew"
            )
        if before is None:
            self.notices.record_first_opened(view)
        offered = self.toolbox.offered
        known = [tool for tool in offered["tools"] if tool.name not in offered["deferred"]]
        if rendered.system_text:
            self._transcript.say(Message("system", rendered.system_text, name=PROMPT_TURN))
        if descriptions := self._offering.long_descriptions(known):
            # Only tools from outside have long descriptions, which must not speak for the operator.
            self._transcript.say(Message("user", descriptions, name=INSTRUCTIONS))
        turn = user_message(rendered.user_parts, name=PROMPT_TURN) if rendered.user_text else None
        if turn is not None:
            self.scope.given[turn.name] = turn
        self._transcript.say(*with_prompt_turn(kept, turn, restarts=before is not None))
        if before is not None:
            self.notices.announce(restarted=True)
        self._say_message()

    def _answers_before(self, messages: Iterable[Message]) -> int:
        """How many assistant messages there were before this run; only hosted tools need to know."""
        if not self.prompt.template.outline.may_have_hosted:
            return 0
        run = self._runs.latest()
        if run is not None and run.run_id == self.scope.run_id:
            return run.answers
        return len(assistant_messages(messages))

    def _say_message(self) -> None:
        """Add the user's new message, once: a restart, or the next adapter, finds it in the conversation."""
        message, self._message = self._message, None
        if message is not None:
            self._say_given(message)

    def _say_given(self, message: Message) -> None:
        self.scope.given[message.name] = message
        self._transcript.say(message)

    def _check_given(self) -> None:
        """Check the content that the user gave to this run; a message that is rejected is never said."""
        message, self._message = self._message, None
        given = [*self.scope.given.values(), *([] if message is None else [message])]
        said = () if self._beginning == "new" else self._conversation.view()
        earlier = (each for each in said if all(each is not own for own in given))
        self.config.check_parts([part for each in given for part in each.parts], earlier)
        self._message = message

    def _take_turn(self, run: Run) -> Generator[Effect, Any, tuple[ToolCall, ...]]:
        """Continue the conversation of an earlier run, under a new run id."""
        answers = self._answers_before(self._conversation.view())
        yield from self._continue(run.as_new(self.scope.run_id, answers), continues=run)
        self._say_message()
        said = self.scope.given.get("")
        self.notices.open(() if said is None else self.prompt.opened_by_words(self.session, said.text), "search")
        return ()

    def _continue(self, run: Run, continues: Run | None = None) -> Generator[Effect, Any, tuple[ToolCall, ...]]:
        """Take over the state of a run; return its open calls."""
        self.prompt.resume(self.session, {**run.chosen, **run.overrides}, run.selected, self._visibility_overrides)
        self._journal.run = run
        # A section that can no longer be loaded has lost its tools; the model is told so below.
        while paths := self._unloaded():
            self._unloadable.update((yield LoadSections(paths)))
        removed = self._offering.take_over(new_turn=self._beginning == "turn")
        # Messages from here on belong to this run, for observers too.
        overrides = {**run.overrides, **self._overrides_by_key}
        self._journal.save(selected=self.prompt.decisions()[1], overrides=overrides, first_run=self.prompt.first_run)
        self.scope.meter.restore(run.spent)
        self._transcript.adopt()
        pending = unanswered_calls(self._conversation.view())
        if pending:
            self._offering.register(mid_turn=True)
        if continues is not None:
            self.notices.record_continued(continues)
        self.notices.record_loaded()
        if self._beginning == "turn":
            self._transcript.say(*self._missing_results())
        elif pending:
            # The results of the open calls come first.
            self._untold = removed
            return pending
        self.notices.announce(removed)
        return pending

    @property
    def _overrides_by_key(self) -> dict[str, SectionVisibility]:
        return {".".join(path): shown for path, shown in (self._visibility_overrides or {}).items()}

    def _render_error(self, message: str) -> PromptEvaluationError:
        return PromptEvaluationError(message, prompt_name=self.prompt.name, phase="render")

    def _next_group(self, pending: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
        """The next call, or the next few when all of them are read-only."""
        size = 1
        while size < len(pending) and self.executor.all_read_only(pending[: size + 1]):
            size += 1
        return pending[:size]

    def _request(self) -> ModelRequest:
        output = self.prompt.template.structured_output
        return ModelRequest(
            prompt_name=self.prompt.name,
            messages=self._transcript.sent(),
            output=None if output is None or output.container == "text" else output,
            deadline=self.scope.meter.deadline,
            settings=self.config.settings,
            **self.toolbox.offered,
        )

    def _record_reply(self, request: ModelRequest, reply: ModelReply, latency: float) -> None:
        self.partial_text = []
        self.scope.meter.add_usage(reply.usage)
        self._context_tokens = reply.usage.input_tokens
        self._journal.save(spent=self.scope.meter.spent, unfinished=False)
        self._journal.emit(
            events.ModelCalled,
            prompt_name=self.prompt.name,
            adapter=self.config.adapter,
            model=reply.model or self.config.model,
            turn=self.scope.meter.turns,
            usage=reply.usage,
            stop_reason=reply.stop_reason,
            latency=latency,
            retries=reply.retries,
            response_id=reply.response_id,
            messages=len(request.messages),
            tools=self.toolbox.callable_names,
            overrides=self._offering.overrides,
        )
        if reply.reasoning_dropped:
            self._journal.emit(events.ReasoningDropped, reason="the provider no longer accepts it")
        # An incomplete reply stays out of the conversation: none of its calls may run, now or on resume.
        self._check_stop(reply)
        self._transcript.say(
            Message(
                role="assistant",
                text=reply.text,
                tool_calls=reply.tool_calls,
                items=reply.items,
                provider=self.config.adapter,
                paused=reply.stop_reason == "pause",
                reasoning=reply.reasoning,
            )
        )
        self._open_found(reply)

    def _record_outcomes(self, outcomes: list[ToolExecutionOutcome]) -> list[ToolExecutionOutcome]:
        """Add the results to the conversation; return the outcomes that end the turn."""
        meter = self.scope.meter
        used = {key: meter.turns for outcome in outcomes if (key := self.toolbox.section_of(outcome.name))}
        changes: dict[str, Any] = {"last_used": {**self._journal.run.last_used, **used}} if used else {}
        self._journal.save(spent=meter.spent, **changes)
        self.notices.disclosed(outcomes)
        for outcome in outcomes:
            self._transcript.say(self._result_message(outcome))
            # Only now: a thread that stops this run records the others.
            self.executor.ended.pop(outcome.tool_call_id, None)
            if outcome.operator_text:
                self._operator_texts.append(outcome.operator_text)
        return [outcome for outcome in outcomes if outcome.ends_turn]

    def _result_message(self, outcome: ToolExecutionOutcome) -> Message:
        parts = parts_of([outcome.message, *outcome.attachments]) if outcome.attachments else ()
        text = text_of(parts) if parts else outcome.message
        return Message(
            "tool", text, call_id=outcome.tool_call_id, name=outcome.name, success=outcome.success, parts=parts
        )

    def _check_attachments(self, parts: Sequence[Part]) -> None:
        ended = map(self._result_message, list(self.executor.ended.values()))
        self.config.check_parts(parts, (*self._conversation.view(), *ended))

    def _say_operator_texts(self) -> None:
        """Send what was read as system messages, after all results of the turn."""
        texts, self._operator_texts = self._operator_texts, []
        if texts:
            self._transcript.say(Message("system", "\n\n".join(texts), name=READ_TEXT))

    def _missing_results(self) -> list[Message]:
        """Results for the calls that were left open: never made if the run failed, else perhaps running elsewhere."""
        failed, called = self.session[events.EvaluationFailed].latest(), self.session[events.ModelCalled].latest()
        calls = unanswered_calls(self._conversation.view())
        text = "Not finished: the conversation went on without it. Whether this call had an effect is not known."
        if failed is not None and called is not None and failed.timestamp > called.timestamp:
            text = "Not run: the turn ended before this call was made."
        return failed_results(calls, text)

    def _evict(self) -> None:
        """Close the least recently used sections if the context exceeds the budget's limit, each of them once.

        What was sent stays in the context, so the text of a closed section is counted as gone, and one that the model
        opens again stays open. Sections that were opened after the last request have not been told yet.
        """
        budget = self.scope.meter.budget
        limit = None if budget is None else budget.max_context_tokens
        if limit is None or self._context_tokens <= limit:
            return
        closed = {each.path for each in self.session[CollapseSection].view() if each.reason.startswith(_TOO_LARGE)}
        exposure = self.session[events.Exposure].latest() or events.Exposure()
        freed = sum(each.tokens for path, each in exposure.items() if any(path[: len(up)] == up for up in closed))
        excess, self._context_tokens = self._context_tokens - limit - freed, 0
        offered = {ref.section_key for ref in self._journal.run.tools if not ref.revoked}
        last_used = {key: self._journal.run.last_used.get(key, 0) for key in offered - set(map(".".join, closed))}
        closing = sections_to_close(self.prompt.view(self.session), last_used, excess, self.config.count_tokens)
        for path in closing:
            self.session.dispatch(CollapseSection(path, reason=f"{_TOO_LARGE} {limit} tokens"))

    def _check_stop(self, reply: ModelReply) -> None:
        problem = _STOPPED.get(reply.stop_reason)
        if problem is not None:
            kind = ContextOverflowError if reply.stop_reason == "overflow" else PromptEvaluationError
            raise kind(
                f"The model {problem} in '{self.prompt.name}': {reply.text[:200]!r}",
                prompt_name=self.prompt.name,
                phase="response",
                payload=reply.text,
            )

    def _answer(self, reply: ModelReply) -> PromptResponse[Any] | None:
        """The response, or None if the model was asked to correct its answer."""
        output = self.prompt.template.structured_output
        text = text_before_pauses(self._conversation.view()[:-1]) + reply.text
        if output is None:
            return self._response(text, None, None)
        try:
            return self._response(text, parse_structured_output(text, output), None)
        except OutputParseError as error:
            if self._journal.run.output_retries >= self.config.output_retries:
                raise
            self._journal.save(output_retries=self._journal.run.output_retries + 1)
            form = "text" if output.container == "text" else "JSON"
            asked = f"{error}. Answer again with {form} that fits the required format."
            self._transcript.say(Message("user", asked, name=CORRECTION))
            self.rejected = str(error)
            return None

    def _response(self, text: str, output: Any, halt: OpenSectionsResult | None) -> PromptResponse[Any]:
        return PromptResponse(
            prompt_name=self.prompt.name,
            text=text,
            output=output,
            halt=halt,
            hosted_outputs=self._offering.hosted_outputs(self.scope.codecs),
            usage=self.scope.meter.usage,
            turns=self.scope.meter.turns,
            run_id=self.scope.run_id,
            conversation_id=self.scope.conversation_id,
        )


def phase_of(error: Exception) -> str:
    """The phase in which a run failed, if the error records it."""
    if isinstance(error, PromptError):
        return "parse" if isinstance(error, OutputParseError) else "render"
    return getattr(error, "phase", "")
