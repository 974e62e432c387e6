"""The handlers of tool calls, each run in a transaction: it is undone if it fails, compensated, and recorded.

A call that asks with its effects runs, and is taken back and shown; what was approved is then applied as it was shown.
Calls at the same time run on branches, whose changes are held back until the calls before them have ended.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from weakincentives._base.fence import current_calls, working_for
from weakincentives.errors import (
    AbandonedCallError,
    DeadlineExceededError,
    PromptEvaluationError,
    SerdeError,
    ToolValidationError,
    UnshownChangeError,
    WinkError,
    callers_traceback,
)
from weakincentives.filesystem import (
    FileChange,
    Filesystem,
    FilesystemError,
    NeedsFolderError,
    StaleFilesError,
)
from weakincentives.limits import Deadline
from weakincentives.prompt import Tool, ToolContext, ToolResult, VisibilityExpansionRequired
from weakincentives.resources import PreviewScope, ResourceError, ScopedResourceContext, StaleResourceError
from weakincentives.runtime.calls.approval import PendingCall, is_inside, waiting_calls
from weakincentives.runtime.calls.call import (
    NO_RESULT,
    CallOutcome,
    CallRefused,
    CheckedCall,
    RanCall,
    Waits,
)
from weakincentives.runtime.calls.drawing import question_steps
from weakincentives.runtime.calls.effects import (
    Effects,
    StaleEffectsError,
    UndeclaredChangesError,
    apply,
    capture,
    names_of,
)
from weakincentives.runtime.calls.live import Before, Branch, LiveCall, Preview
from weakincentives.runtime.calls.question import AskedCall, Needs
from weakincentives.runtime.calls.results import Results
from weakincentives.runtime.events import CallDecided, CheckpointFailed, FilesChanged, RunEnded
from weakincentives.runtime.live import LiveRun
from weakincentives.runtime.loop.bridge import HandlerCall, HandlerTimeout, Step, UserCodeExit, call_sync
from weakincentives.runtime.loop.inquiry import Inquiry, Verdict, held_guards
from weakincentives.runtime.messages import ToolCall
from weakincentives.runtime.past.points import OutsideCall, Point, Written, changes_of
from weakincentives.session import Session, SessionBranch

logger = logging.getLogger("weakincentives.runtime")
MAX_ANNOUNCED = 1_000_000
"""The bytes of a changed file, before and after together, up to which observers see it."""


class CallWaits(BaseException):
    """Ends a call inside of which others wait for a person: `pending`, with their ids below that of the call."""

    def __init__(self, pending: tuple[PendingCall, ...]) -> None:
        super().__init__(", ".join(call.call_id for call in pending))
        self.pending = pending


class CallSuspended(BaseException):
    """Abandons a tool call as if it had not been made: it is rolled back, but neither compensated nor recorded.

    A BaseException, so that a handler's own `except Exception` does not treat it as a failure.
    """


@dataclass(frozen=True, slots=True)
class HeldCall:
    """A call that has run beside others, on a branch: its changes are still to be made."""

    live: LiveCall
    ran: RanCall
    effects: Effects


Beginning: TypeAlias = Callable[[CheckedCall, object], Generator[Step, Any, LiveCall]]
"""Prepares a call for its owner, which its changes belong to."""
Ending: TypeAlias = Callable[[LiveCall, RanCall], Generator[Step, Any, RanCall | Waits | HeldCall]]
"""Ends a call whose handler has returned or failed."""


@dataclass(frozen=True, slots=True)
class Transactions:
    """Runs the handlers of a run's tool calls, each in a transaction."""

    context: LiveRun
    results: Results

    def run(self, checked: CheckedCall) -> Generator[Step, Any, CallOutcome]:
        """Run the handler in a transaction."""
        outcome = yield from self._perform(checked, self._begin, self._end)
        assert not isinstance(outcome, HeldCall)
        return outcome

    def preview(self, checked: CheckedCall) -> Generator[Step, Any, CallOutcome]:
        """Run the handler on branches, and ask about its effects."""
        outcome = yield from self._perform(checked, self._begin_preview, self._ask_with_effects)
        assert not isinstance(outcome, HeldCall)
        return outcome

    def apply(self, checked: CheckedCall, effects: Effects, ran: RanCall) -> Generator[Step, Any, CallOutcome]:
        """Make the changes that a call had made on branches; its result counts."""

        def begin(checked: CheckedCall, owner: object) -> Generator[Step, Any, LiveCall]:
            live = yield from self._begin(checked, owner)
            live.handler.function = partial(make_changes, live)
            live.handler.blocking = None
            return live

        def make_changes(live: LiveCall) -> ToolResult[Any]:
            apply(effects, live.session, live.resources)
            return ran.result

        outcome = yield from self._perform(checked, begin, self._end)
        assert not isinstance(outcome, HeldCall)
        return outcome

    def run_beside(self, checked: CheckedCall, branch: Branch) -> Generator[Step, Any, CallOutcome | HeldCall]:
        """Run the handler on a branch, and hold its changes back."""
        begin = partial(self._begin_beside, branch)
        return (yield from self._perform(checked, begin, self._hold, alone=False))

    def compensate(self, checked: CheckedCall, ran: RanCall) -> Generator[Step, Any, RanCall]:
        """Undo the effects outside of a call that has ended."""
        if checked.tool.compensate is None:
            return ran
        yield from self.context.session.transactions.take()
        try:
            owner = object()
            with working_for(owner):
                live = yield from self._begin(checked, owner)
                ran = yield from self._compensated(live, ran)
                ran = self._rolled_back(live, ran)
                live.end_uses(well=False)
                try:
                    yield live.resources
                except Exception as error:
                    logger.warning("Tool '%s' failed to close its resources.", checked.tool.name, exc_info=error)
        finally:
            self.context.session.transactions.end()
        return ran

    def ask(
        self, checked: CheckedCall, needs: Needs, effects: Effects | None = None, ran: RanCall | None = None
    ) -> Generator[Step, Any, Waits]:
        """Ask a person, and leave the call waiting in the session."""
        call, session = checked.call, self.context.session
        offer = self.results.toolbox.get(call.name)
        asked = AskedCall(
            call.id,
            call.name,
            self.context.toolbox.section_of(call.name),
            checked.arguments,
            checked.params,
            effects,
            needs,
            edited=bool(checked.notice),
            note=checked.note,
            own_name="" if offer is None else offer.ref.own_name,
        )
        decided = session[CallDecided].where(lambda event: event.call_id == call.id)
        occasion = f"{self.context.run_id}:{len(decided)}"
        deadline = self.context.meter.deadline
        try:
            question = yield from question_steps(checked.tool, asked, occasion, deadline)
        except GeneratorExit:
            raise
        except Exception as error:
            logger.error("The question about tool '%s' failed.", call.name, exc_info=error)
            problem = f"Tool '{call.name}' was not run, because its question could not be made: {error}"
            raise CallRefused(checked.failed(problem)) from error
        facts = {name: getattr(asked, name) for name in AskedCall.__dataclass_fields__}
        result = None if ran is None else ran.result
        pending = PendingCall(**facts, question=question, result=result, round=self.round)
        session.dispatch(pending)
        return Waits(pending.call_id, pending.tool, pending)

    def inspected(self, ran: RanCall, arguments: str, live: LiveCall | None = None) -> Generator[Step, Any, RanCall]:
        """Ask the guards after a call, whose result they may refuse or replace.

        Those of a call on branches see what these hold.
        """
        toolbox = self.results.toolbox
        guards = held_guards(self.context, "after_tool", toolbox.names_of(ran.call.name))
        if not guards:
            return ran
        call = toolbox.guarded(ran.call, arguments, ran.params)

        def accept(result: Any) -> ToolResult[Any]:
            if not isinstance(result, ToolResult):
                raise TypeError(f"Replace takes a ToolResult, got {type(result).__name__}")
            result.render()
            return result

        inquiry = Inquiry(
            self.context,
            "after_tool",
            ran.result,
            arguments=lambda result: ((call, result), None),
            accept=accept,
            call_id=call.id,
            preview=None if live is None else live.preview,
        )
        verdict = yield from inquiry.steps(guards)
        inquiry.record(verdict)
        if verdict.refuses:
            return self.refused(ran, verdict, inquiry)
        return self.results.accept(ran, verdict.value) if verdict.replaced else ran

    def refused(self, ran: RanCall, verdict: Verdict, inquiry: Inquiry) -> RanCall:
        """The call after guards have refused it."""
        if verdict.strongest != "stop":
            return ran.failed(verdict.message)
        error = verdict.error(inquiry.hook, self.context.prompt.name)
        # It goes up until it has ended the run that the guard holds for.
        error.ends_run = error.run_id != self.context.run_id
        message = f"Not run: {verdict.message}" if inquiry.hook == "before_tool" else verdict.message
        return replace(ran.failed(message), error=error)

    def abandon(self) -> None:
        """End the running calls from another thread, as stopped; one that is already ending is waited for."""
        for live in list(self.context.calls.started):
            if live.claim_end():
                with working_for(live.owner):
                    call_sync(self._stop(live), self.context.loop_thread)
            elif live.owner not in current_calls():
                live.ended.wait()

    def _perform(
        self,
        checked: CheckedCall,
        begin: Beginning,
        ending: Ending,
        *,
        alone: bool = True,
    ) -> Generator[Step, Any, CallOutcome | HeldCall]:
        """Begin a call and run it to its end; `alone`, when its turn among transactions comes."""
        tool, turn = checked.tool, None
        if alone and tool.transactional and not tool.read_only:
            turn = self.context.session.transactions
            yield from turn.take()
        owner, live = object(), None
        try:
            with working_for(owner):
                live = yield from begin(checked, owner)
                live.turn = turn
                return (yield from self._run(live, ending))
        finally:
            if live is not None:
                live.release()
            elif turn is not None:
                turn.end()

    def _begin(self, checked: CheckedCall, owner: object) -> Generator[Step, Any, LiveCall]:
        """A call in a transaction, with a snapshot of what it may change."""
        session, resources = self.context.session, self.context.resources.tool_scope()
        live = self._live(checked, owner, session, resources)
        if checked.tool.transactional and not checked.tool.read_only:
            live.uses = yield from resources.share()
            live.before = Before(session.state(), resources.begin_call())
            for use in live.uses:
                use.state = live.before.resources[use.protocol]
        return live

    def _begin_beside(self, branch: Branch, checked: CheckedCall, owner: object) -> Generator[Step, Any, LiveCall]:
        """A call at the same time as others, on a branch."""
        yield from ()
        live = self._live(checked, owner, *branch)
        live.before, live.beside = Before(branch.session.state(), branch.resources.begin_call()), True
        return live

    def _begin_preview(self, checked: CheckedCall, owner: object) -> Generator[Step, Any, LiveCall]:
        """A call on branches, which finds what the calls before it would change that wait, too."""
        try:
            preview = yield from self._branched(checked.tool, self._waiting_effects())
        except StaleEffectsError as error:
            # Those before it are asked about again, and then so is this one.
            logger.info("Tool '%s' is shown by itself: %s.", checked.tool.name, error)
            preview = yield from self._branched(checked.tool, ())
        live = self._live(checked, owner, preview.session, preview.resources)
        live.preview = preview
        session = self.context.session
        protected = (*session.stores, session.workspace.identity, *preview.resources.protected)
        live.handler.fence.protect(*protected)
        return live

    def _branched(self, tool: Tool[Any, Any], earlier: Sequence[Effects]) -> Generator[Step, Any, Preview]:
        """Branches of the session and the resources, on which these effects have been applied."""
        session = self.context.session
        branch = session.branch()
        resources = PreviewScope(
            self.context.resources,
            partial(_branch_of, session, branch),
            in_place=(Filesystem,) if tool.needs_folder else (),
        )

        def prepare() -> None:
            resources.save()
            for effects in earlier:
                apply(effects, branch, resources)
            resources.settle()

        try:
            yield from resources.begin()
            yield prepare
        except BaseException:
            resources.take_back()
            raise
        return Preview(branch, resources, branch.state())

    def _waiting_effects(self) -> list[Effects]:
        """What calls of this turn would change that were asked about since people last decided."""
        current = self.round
        effects: list[Effects] = []
        for pending in waiting_calls(self.context.session).values():
            if pending.effects is not None and pending.round == current:
                effects.append(pending.effects)
        return effects

    @property
    def round(self) -> int:
        """The number of times that this run has waited for people to decide."""
        ended = self.context.events(RunEnded)
        run_id = self.context.run_id
        return sum(event.run_id == run_id and event.status == "waiting" for event in ended)

    def _live(
        self,
        checked: CheckedCall,
        owner: object,
        session: Session,
        resources: ScopedResourceContext,
    ) -> LiveCall:
        """A call whose handler is prepared, with its limit of time."""
        tool, spec = checked.tool, self.context.spec
        timeout = None
        if tool.transactional:
            timeout = tool.timeout
            if timeout is None:
                timeout = self.context.prompt.template.tool_timeout
        deadline = self.context.meter.deadline
        if timeout is not None:
            own = Deadline.after(timeout, self.context.session.clock)
            deadline = own if deadline is None else min(own, deadline, key=Deadline.remaining)
        context = self._tool_context(checked.call, resources, deadline, session)
        handler = tool.handler if spec.handler_of is None else spec.handler_of(tool)
        # What keeps to the time by itself also ends in order when it is over.
        limit = deadline if tool.transactional else None
        function = partial(handler, checked.params, context=context)
        run = HandlerCall(function, limit, effect=tool.compensate is not None, timeout=timeout)
        if tool.blocking is not None and handler is tool.handler:
            run.blocking = partial(tool.blocking, checked.params, context=context)
        return LiveCall(checked, owner, session, resources, run)

    def _run(self, live: LiveCall, ending: Ending) -> Generator[Step, Any, CallOutcome | HeldCall]:
        """Call the handler with resources scoped to this call, and end the call."""
        self.context.calls.started.append(live)
        result = error = None
        try:
            result = yield live.handler
        except GeneratorExit:
            raise
        except BaseException as raised:
            error = raised
        name = live.checked.tool.name
        if not live.claim_end():
            live.ended.wait()
            raise AbandonedCallError(f"Tool '{name}' was stopped.")
        # The end of a call is not stopped itself: others who would stop the call wait for it.
        left = self.context.fence.leave()
        try:
            if isinstance(error, CallWaits):
                return (yield from self._wait_inside(live, error.pending))
            if isinstance(error, CallSuspended | StaleEffectsError):
                live.restore()
                live.resources.close()
                raise error
            if isinstance(error, NeedsFolderError) and live.beside:
                raise self._to_run_alone(live, error)
            ran = live.checked.ran(NO_RESULT)
            ran = self.results.accept(ran, result) if error is None else self._failed(live, error)
            ended = yield from ending(live, (yield from self._inspected(live, ran)))
            outcome = self._recorded(live, ended)
        finally:
            self._remove(live, left)
        if self.context.fence.closed:
            raise AbandonedCallError(f"Tool '{name}' ended, but its run was stopped.")
        if isinstance(ended, RanCall) and ended.error is not None:
            raise ended.error
        return outcome

    def _inspected(self, live: LiveCall, ran: RanCall) -> Generator[Step, Any, RanCall]:
        """Ask the guards about the result; if the run is stopped meanwhile, the call is undone."""
        if ran.error is not None or ran.expansion is not None:
            return ran
        try:
            return (yield from self.inspected(ran, live.checked.arguments, live))
        except GeneratorExit:
            raise
        except BaseException as error:
            return live.stopped("the run was stopped", error=error)

    def _wait_inside(self, live: LiveCall, pending: tuple[PendingCall, ...]) -> Generator[Step, Any, Waits]:
        """End a call for now, inside of which others wait."""
        yield live.resources
        for each in pending:
            self.context.session.dispatch(each)
        return Waits(live.checked.call.id, live.checked.call.name, pending[0])

    def _ask_with_effects(self, live: LiveCall, ran: RanCall) -> Generator[Step, Any, RanCall | Waits]:
        """End a call that ran on branches: ask about its effects; without any, it counts."""
        if ran.undone:
            return (yield from self._end(live, ran))
        # In a thread, if there is an event loop: effects may be large.
        effects = yield partial(self._taken_back, live, ran)
        if isinstance(effects, RanCall):
            return (yield from self._end(live, effects))
        ran = yield from self._closed(live, ran)
        if ran.undone:
            return replace(ran, rolled_back=True)
        return (yield from self.ask(live.checked, "effects", effects, ran))

    def _taken_back(self, live: LiveCall, ran: RanCall) -> Effects | RanCall:
        """Take back what a call would change; returns that, or the call if there is nothing to ask about."""
        effects = Effects()
        tool = live.checked.tool
        assert live.preview is not None
        try:
            effects = self._previewed(live.preview, tool)
            if not effects:
                ran = replace(ran, unchanged=names_of(tool.changes or ()))
        except UnshownChangeError as error:
            logger.warning("%s", error)
            ran = ran.failed(str(error))
            if isinstance(error, self.context.model.raised_errors):
                ran = ran.after_error(error)
        except (StaleFilesError, StaleResourceError) as error:
            problem = f"Tool '{tool.name}' was undone, because files changed while it ran: {error}"
            ran = ran.failed(problem)
        except (ResourceError, SerdeError) as error:
            problem = f"The effects of tool '{tool.name}' cannot be shown for approval: {error}"
            ran = self.results.programming_error(ran, problem, error)
        try:
            live.restore()
        except (Exception, KeyboardInterrupt) as error:
            return ran.failed(f"Tool '{tool.name}' could not be undone: {error}").after_error(error)
        return effects or ran

    def _previewed(self, preview: Preview, tool: Tool[Any, Any]) -> Effects:
        """The effects of a call that has run on branches, all of which its tool declares."""
        declared = tool.changes or ()
        past = preview.resources.changed_past()
        if past:
            raise UnshownChangeError(
                f"Tool '{tool.name}' was undone: it, or something else in this program, changed "
                f"{', '.join(names_of(past))} past its context, where a person does not see it; get "
                "it by context.resources, or declare the tool with approval='call'."
            )
        effects = capture(preview.session, preview.base, preview.resources.changed(declared))
        undeclared = effects.undeclared(declared)
        files = preview.session.branched_workspace
        is_unseen = files is not None and not preview.resources.has_branch(files)
        if is_unseen and files and files.snapshot() != self.context.session.workspace.snapshot():
            # The session's own files, which are no resource of this prompt.
            undeclared = (*undeclared, Filesystem)
        if undeclared:
            raise UndeclaredChangesError(tool, undeclared)
        # They are stored while the call waits.
        effects.check_stored()
        return effects

    def _hold(self, live: LiveCall, ran: RanCall) -> Generator[Step, Any, RanCall | HeldCall]:
        """End a call beside others: its changes are to be made after those of the calls before it."""
        if ran.undone or live.before is None:
            return (yield from self._end(live, ran))
        try:
            if live.resources.holds_managers:
                raise StaleResourceError("it has used a transaction, which is rolled back")
            effects = self._effects(live, live.before)
        except (StaleFilesError, StaleResourceError) as error:
            # It wrote to what other calls see, too, or to what is not captured.
            raise self._to_run_alone(live, error) from error
        except (ResourceError, SerdeError) as error:
            problem = f"The changes of tool '{live.checked.tool.name}' cannot be made after those of others: {error}"
            return (yield from self._end(live, self.results.programming_error(ran, problem, error)))
        if not effects:
            return (yield from self._end(live, ran))
        ran = self._rolled_back(live, ran)
        ran = yield from self._closed(live, ran)
        if ran.undone or ran.error is not None:
            return (yield from self._compensated_late(live, ran))
        self.context.calls.held[live.checked.call.id] = live
        return HeldCall(live, ran, effects)

    def _to_run_alone(self, live: LiveCall, error: Exception) -> StaleEffectsError:
        """Undo a call beside others that does more than its branch can hold; it runs again after them."""
        live.restore()
        self.context.calls.held[live.checked.call.id] = live
        live.resources.close()
        return StaleEffectsError(str(error))

    def _effects(self, live: LiveCall, before: Before) -> Effects:
        return capture(live.session, before.session, live.resources.changes(before.resources))

    def _stop(self, live: LiveCall) -> Generator[Step, Any, None]:
        """End a call whose handler is running in another thread."""
        left = self.context.fence.leave()
        try:
            live.handler.abandon()
            self._recorded(live, (yield from self._end(live, live.stopped("the run was stopped"))))
        finally:
            self._remove(live, left)

    def _remove(self, live: LiveCall, left: Any) -> None:
        self.context.calls.started.remove(live)
        live.release()
        live.ended.set()
        self.context.fence.enter_again(left)

    def _end(self, live: LiveCall, ran: RanCall) -> Generator[Step, Any, RanCall]:
        """Compensate and roll back a call that failed or asked for a new attempt, and close its resources."""
        undone = ran.undone
        in_transaction = live.resources.holds_managers
        if undone and not live.handler.dropped:
            ran = yield from self._compensated(live, ran)
        if undone:
            # In threads, if there is an event loop: much may have to be read and written.
            ran = yield partial(self._rolled_back, live, ran)
        elif live.before is not None and live.before.resources and self._notes_changes:
            yield partial(self._keep_changes, live)
        else:
            self._keep_changes(live)
        ran = yield from self._closed(live, ran)
        if not undone and ran.undone:
            ran = yield from self._compensated_late(live, ran)
            ran = yield partial(self._rolled_back, live, ran)
        live.end_uses(well=not ran.undone)
        if self._acted_outside(live, ran, in_transaction=in_transaction):
            call = live.checked.call
            key = self.results.toolbox.section_of(call.name)
            outside = OutsideCall(call.name, call.id, self.context.run_id, key)
            self.context.session[OutsideCall].append(outside)
        return ran

    def _acted_outside(self, live: LiveCall, ran: RanCall, *, in_transaction: bool) -> bool:
        """True if a call has acted outside, or may have, in a conversation that can go back.

        A transaction of a call that failed was rolled back, and a handler may say that it did nothing.
        """
        tool = live.checked.tool
        if Point not in self.context.session or tool.read_only or live.handler.dropped:
            return False
        if not ran.undone:
            return tool.reaches_outside or in_transaction
        says_nothing_happened = ran.declined and not tool.acts_if_failed
        return tool.reaches_outside and not says_nothing_happened and ran.compensation != "done"

    @property
    def _notes_changes(self) -> bool:
        """True if somebody is to know what calls change."""
        return Point in self.context.session or self.context.session.observed

    def _recorded(self, live: LiveCall, ended: RanCall | Waits | HeldCall) -> CallOutcome | HeldCall:
        """The outcome of a call that has ended; one that failed while calls inside it wait goes on waiting."""
        if not isinstance(ended, RanCall):
            return ended
        call = live.checked.call
        if ended.undone:
            for pending in waiting_calls(self.context.session).values():
                if is_inside(pending.call_id, call.id):
                    return Waits(call.id, call.name, pending)
        return self.results.record(ended)

    def _closed(self, live: LiveCall, ran: RanCall) -> Generator[Step, Any, RanCall]:
        """Close the resources of the call, which has failed if they cannot be closed."""
        try:
            yield live.resources
        except GeneratorExit:
            raise
        except BaseException as error:
            message = f"Tool '{live.checked.tool.name}' failed to close its resources: {error}"
            logger.warning("%s", message, exc_info=error)
            live.resources = self.context.resources
            if ran.result.success:
                ran = ran.failed(message)
            if isinstance(error, KeyboardInterrupt):
                ran = ran.after_error(error)
        return ran

    def _keep_changes(self, live: LiveCall) -> None:
        """Note what the call has changed, for observers and in a conversation that can go back."""
        session = self.context.session
        if live.before is None:
            return
        if Point in session and not live.beside:
            self._note_written(live, live.before)
        if session.observed:
            self._announce_files(live, live.before)

    def _note_written(self, live: LiveCall, before: Before) -> None:
        """Note how what the call has changed goes back."""
        session, tool, call = self.context.session, live.checked.tool, live.checked.call
        lost: dict[str, str] = {}
        for written in list(changes_of(tool.name, call.id, live.resources, before.resources)):
            session[Written].append(written)
            if written.problem:
                lost[written.name] = written.problem
        if lost:
            reason = "; ".join(f"{name}: {why}" for name, why in lost.items())
            logger.warning("What tool '%s' changed cannot be taken back: %s.", tool.name, reason)
            self.context.emit(CheckpointFailed, call_id=call.id, reason=reason, paths=tuple(lost))

    def _announce_files(self, live: LiveCall, before: Before) -> None:
        """Show observers which files the call changed; one beside it that writes the same files hides them."""
        announced: list[FileChange] = []
        with contextlib.suppress(FilesystemError, ResourceError, OSError):
            for resource in live.resources.changes(before.resources, only=Filesystem):
                for change in resource.changes:
                    if isinstance(change, FileChange) and change.size <= MAX_ANNOUNCED:
                        announced.append(change)
        if announced:
            self.context.announce(FilesChanged, call_id=live.checked.call.id, changes=tuple(announced))

    def _failed(self, live: LiveCall, error: BaseException) -> RanCall:
        """The failed call; an error that is not for the model to handle is kept, and raised once it is recorded."""
        checked, prompt_name = live.checked, self.context.prompt.name
        name = checked.tool.name
        error = error.error if (exits := isinstance(error, UserCodeExit)) else error
        match error:
            case VisibilityExpansionRequired(prompt_name=""):
                request = self.context.view.request(
                    error.section_keys, error.reason, overrides=error.requested_overrides
                )
                result = ToolResult[Any](f"Opening: {', '.join(error.section_keys)}.", disclosure=request)
                return checked.ran(result, expansion=request)
            case ToolValidationError():
                return checked.failed(str(error), declined=True)
            case HandlerTimeout() | AbandonedCallError() | DeadlineExceededError() if self._is_late(live, error):
                logger.warning("Tool '%s' did not end within %g s.", name, live.handler.timeout)
                return live.late()
            case AbandonedCallError() if (limit := self.context.meter.deadline) is None or not limit.expired:
                # A run inside the call was stopped by another thread.
                return live.stopped("the run was stopped", error=error)
            case HandlerTimeout() | AbandonedCallError():
                problem = f"The deadline of prompt '{prompt_name}' passed while tool '{name}' was running."
                late = DeadlineExceededError(problem, prompt_name=prompt_name, phase="tool")
                return live.stopped("the deadline passed", error=late)
            case WinkError(ends_run=True):
                if isinstance(error, PromptEvaluationError):
                    error.prompt_name = error.prompt_name or prompt_name
                return checked.failed(f"Tool '{name}' was stopped: {error}", error=error)
            case _ if isinstance(error, self.context.model.raised_errors):
                return checked.failed(f"Tool '{name}' failed: {type(error).__name__}: {error}", error=error)
            case _ if exits or isinstance(error, Exception):
                trace = (type(error), error, callers_traceback(error))
                logger.warning("Tool '%s' raised %s.", name, type(error).__name__, exc_info=trace)
                return checked.failed(f"Tool '{name}' failed: {type(error).__name__}: {error}")
            case _:
                return live.stopped("the run was stopped", error=error)

    def _is_late(self, live: LiveCall, error: BaseException) -> bool:
        """True if the handler was stopped by the timeout of its tool, which the run survives."""
        limit = live.handler.deadline
        if limit is None or limit is self.context.meter.deadline:
            return False
        return isinstance(error, HandlerTimeout) or limit.expired

    def _tool_context(
        self, call: ToolCall, resources: ScopedResourceContext, deadline: Deadline | None, session: Session
    ) -> ToolContext:
        # By turn, because some providers give an id again in a later one.
        meter, calls = self.context.meter, self.context.calls
        if calls.idempotency_key is None:
            key = f"{self.context.spec.call_key or self.context.run_id}:{meter.own_turns}:{call.id}"
        else:
            key = calls.idempotency_key(call)
        return ToolContext(
            session=session,
            resources=resources,
            prompt=self.context.prompt,
            call_id=call.id,
            deadline=deadline,
            budget=meter.budget,
            idempotency_key=key,
            presentation=self.context.presentation,
            sink=None if calls.emitted is None else partial(calls.emitted, call),
            run=self.context,
        )

    def _compensated(self, live: LiveCall, ran: RanCall) -> Generator[Step, Any, RanCall]:
        """The call after its effects outside were undone, or with why they were not."""
        checked = live.checked
        tool = checked.tool
        if tool.compensate is None:
            return ran
        deadline = self.context.meter.deadline
        context = self._tool_context(checked.call, live.resources, deadline, self.context.session)
        try:
            yield partial(tool.compensate, checked.params, context=context)
        except GeneratorExit:
            raise
        except BaseException as raised:
            error = raised.error if isinstance(raised, UserCodeExit) else raised
            problem = f"Compensation of '{tool.name}' failed: {type(error).__name__}: {error}"
            logger.error("%s", problem, exc_info=error)
            ran = replace(ran.with_note(problem), compensation=problem)
            return ran.after_error(error) if isinstance(error, KeyboardInterrupt) else ran
        return replace(ran, compensation="done")

    def _compensated_late(self, live: LiveCall, ran: RanCall) -> Generator[Step, Any, RanCall]:
        """Undo the effects outside of a call whose own resources are closed."""
        with self.context.resources.tool_scope() as live.resources:
            ran = yield from self._compensated(live, ran)
        live.resources = self.context.resources
        return ran

    def _rolled_back(self, live: LiveCall, ran: RanCall) -> RanCall:
        """Undo the call. A failed restore is raised at the end, unless the call was stopped, which takes precedence."""
        try:
            ran = replace(ran, rolled_back=live.restore())
        except (Exception, KeyboardInterrupt) as error:
            if ran.error is not None:
                ran.error.add_note(f"Rolling back failed as well: {error}")
            return ran.after_error(error)
        if live.left:
            names = ", ".join(live.left)
            logger.warning("Tool '%s' is not undone in %s, which other runs changed.", ran.call.name, names)
            ran = ran.with_note(
                f"What it changed of {names}, if anything, was not undone: other runs changed that too."
            )
        return ran


def _branch_of(session: Session, branch: SessionBranch, value: Any) -> Any:
    """The branch of a resource; of the session's files, that of its branch."""
    return branch.workspace if value is session.workspace else value.branch()
