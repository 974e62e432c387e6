"""Guards at work: which of them hold now, what they are asked, and what follows from their outcomes together."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

from weakincentives._base.display import shortened
from weakincentives._base.frozen import quick_init
from weakincentives.errors import DeadlineExceededError, GuardRefusedError, callers_traceback
from weakincentives.prompt import Guard, SectionVisibility, ToolContext
from weakincentives.prompt.disclosure.strategies import BUILT_IN_TOOLS
from weakincentives.prompt.guards import (
    OUTCOMES,
    TOOL_HOOKS,
    GuardedCall,
    Hook,
    Replace,
    is_provider_tool,
    missing_tool_problem,
    missing_tools,
)
from weakincentives.runtime.calls.live import Preview
from weakincentives.runtime.events import GuardDecided
from weakincentives.runtime.live import LiveRun
from weakincentives.runtime.loop.bridge import HandlerTimeout, Step, TimedCall, TimedCalls
from weakincentives.runtime.loop.effects import AskGuards, Effect
from weakincentives.runtime.past.history import RunHistory, run_history

logger = logging.getLogger("weakincentives.runtime")

Strength = Literal["allow", "ask", "retry", "refuse", "stop"]
_ORDER: tuple[Strength, ...] = ("stop", "refuse", "retry", "ask")
_ABOUT = {"before_run": "the user's words", "before_answer": "the answer"}


@quick_init
@dataclass(frozen=True, slots=True)
class GuardContext(ToolContext):
    """The context of a guard's hook: session, files, params and limits of the run, as tools have them.

    `output` is the typed answer in `before_answer`. `run_id` is the run that the guard holds for; if it is asked about
    a call of a run inside that one, everything else is of the run that makes the call. `running` are the calls of
    Claude Code's own tools that guards have let through, and whose results are not in the session yet.
    """

    _: KW_ONLY
    run_id: str = ""
    output: Any = None
    running: tuple[GuardedCall, ...] = ()

    @property
    def history(self) -> RunHistory:
        """The run so far: its turns, the sections that were open, and the tools that were called."""
        return run_history(self.session, self.run_id)


@dataclass(frozen=True, slots=True)
class GuardOutcome:
    """The outcome of one guard that did not simply allow; `failed` says that the guard itself failed.

    `run_id` is the run that the guard holds for.
    """

    guard: str
    outcome: str
    message: str = ""
    failed: bool = False
    run_id: str = ""


@quick_init
@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcomes of all guards of a hook; `value` is what it is about, after their replacements."""

    value: Any
    outcomes: tuple[GuardOutcome, ...] = ()

    @property
    def strongest(self) -> Strength:
        """The outcome that counts: stop, then refuse, retry, ask, allow."""
        if not self.outcomes:
            return "allow"
        found = {each.outcome for each in self.outcomes}
        return next((strength for strength in _ORDER if strength in found), "allow")

    @property
    def refuses(self) -> bool:
        return self.strongest in ("stop", "refuse")

    @property
    def replaced(self) -> bool:
        return any(each.outcome == "replace" for each in self.outcomes)

    @property
    def message(self) -> str:
        """The texts of the guards whose outcome counts."""
        return "\n".join(each.message for each in self._counting)

    @property
    def guards(self) -> str:
        """The names of the guards whose outcome counts."""
        return ", ".join(dict.fromkeys(each.guard for each in self._counting))

    @property
    def _counting(self) -> list[GuardOutcome]:
        strongest = self.strongest
        return [each for each in self.outcomes if each.outcome == strongest]

    def error(self, hook: Hook, prompt_name: str) -> GuardRefusedError:
        """The error that ends the run; it has the guards' own texts, unless a guard failed."""
        did = "stopped" if self.strongest == "stop" else f"refused {_ABOUT.get(hook, 'a call')} of"
        texts = [each.message for each in self._counting if not each.failed]
        # The guards of the runs around this one come first.
        return GuardRefusedError(
            f"{self.guards} {did} '{prompt_name}': {self.message}",
            message="\n".join(texts),
            guard=self.guards,
            hook=hook,
            prompt_name=prompt_name,
            run_id=self._counting[0].run_id if self.strongest == "stop" else "",
        )


class HeldGuard(NamedTuple):
    """A guard that holds now, and the run that it holds for, with the runs inside it."""

    guard: Guard
    run_id: str


def held_guards(live: LiveRun, hook: Hook, tool_names: Collection[str] = ()) -> list[HeldGuard]:
    """The guards with this hook that hold now: the template's, those of open sections, and those of runs around it.

    For a tool hook, those that are asked about a tool with one of these names, or about any.
    """
    guards: Sequence[Guard] = live.prompt.template.guards_by_hook[hook]
    if nodes := live.presentation.outline.guarded:
        view = live.view
        opened = [node for node in nodes if view.visibility_of(node) is SectionVisibility.FULL]
        guards = [*guards, *(guard for node in opened for guard in node.section.guards if guard.has(hook))]
    run_id, parent = live.run_id, live.parent
    held: list[HeldGuard] = []
    if parent is not None and hook in TOOL_HOOKS:
        held.extend(held_guards(parent, hook, tool_names))
    for guard in guards:
        if not tool_names or not guard.tools or any(name in guard.tools for name in tool_names):
            held.append(HeldGuard(guard, run_id))
    return held


@dataclass(frozen=True, slots=True, eq=False)
class Inquiry:
    """One hook that is asked of each guard in turn, each with the value that the one before has left.

    `arguments` gives the hook's arguments for a value, and the typed output. `accept` gives the value after a
    replacement, and raises if that does not fit. `preview` has the branches that guards see after a
    call which has run on these.
    """

    live: LiveRun
    hook: Hook
    value: Any
    _: KW_ONLY
    accept: Callable[[Any], Any]
    arguments: Callable[[Any], tuple[tuple[Any, ...], Any]] = lambda value: ((value,), None)
    call_id: str = ""
    running: tuple[GuardedCall, ...] = ()
    preview: Preview | None = None

    def steps(self, guards: Sequence[HeldGuard]) -> Generator[Step, Any, Verdict]:
        """Ask the guards; raises if the run's deadline has passed meanwhile."""
        deadline = self.live.meter.deadline
        left = None if deadline is None else max(0.0, deadline.remaining().total_seconds())
        replies = _Replies(self, self.value)
        yield TimedCalls([replies.call(guard, run_id) for guard, run_id in guards], left)
        if replies.late and deadline is not None and deadline.expired:
            name = self.live.name
            problem = f"The deadline of prompt '{name}' passed while its guards were asked."
            raise DeadlineExceededError(problem, prompt_name=name, phase="guard")
        return Verdict(replies.value, tuple(replies.outcomes))

    def ask(self, guards: Sequence[HeldGuard]) -> Generator[Effect, Any, Verdict]:
        """Ask the guards outside of a tool call, as an effect of the loop."""
        verdict: Verdict = yield AskGuards(self.hook, partial(self.steps, guards))
        self.record(verdict)
        return verdict

    def record(self, verdict: Verdict) -> None:
        """Record the outcomes as events."""
        for outcome in verdict.outcomes:
            self.live.emit(
                GuardDecided,
                guard=outcome.guard,
                hook=self.hook,
                outcome=outcome.outcome,
                message=outcome.message,
                call_id=self.call_id,
            )

    def context(self, run_id: str, output: Any) -> GuardContext:
        """The context for a guard of this run."""
        live = self.live
        place = live if self.preview is None else self.preview
        return GuardContext(
            session=place.session,
            resources=place.resources,
            prompt=live.prompt,
            call_id=self.call_id,
            deadline=live.meter.deadline,
            budget=live.meter.budget,
            presentation=live.presentation,
            run_id=run_id,
            output=output,
            running=self.running,
        )


@dataclass(slots=True, eq=False)
class _Replies:
    """What the guards have replied to an inquiry so far, and the value that they have left."""

    inquiry: Inquiry
    value: Any
    outcomes: list[GuardOutcome] = field(default_factory=list)
    late: bool = False
    _context: GuardContext | None = None

    def call(self, guard: Guard, run_id: str) -> TimedCall:
        """The call of a guard's hook, in its turn."""
        hook = getattr(guard, self.inquiry.hook)
        is_async = _is_async(getattr(hook, "__func__", hook))
        settle = partial(self._settle, guard, run_id)
        return TimedCall(partial(self._ask, hook, run_id), guard.timeout, settle, is_async=is_async)

    def _ask(self, hook: Callable[..., Any], run_id: str) -> Any:
        arguments, output = self.inquiry.arguments(self.value)
        context = self._context
        if context is None or context.output is not output or context.run_id != run_id:
            context = self._context = self.inquiry.context(run_id, output)
        return hook(*arguments, context=context)

    def _settle(self, guard: Guard, run_id: str, outcome: Any, error: BaseException | None) -> None:
        hook = self.inquiry.hook
        if error is not None:
            self.late = self.late or isinstance(error, HandlerTimeout)
            self._fail(guard, error)
        elif outcome is None:
            pass
        elif not isinstance(outcome, OUTCOMES[hook]):
            names = ", ".join(kind.__name__ for kind in OUTCOMES[hook])
            described = shortened(repr(outcome), 100)
            self._fail(guard, TypeError(f"{hook} must return None or one of {names}, got {described}"))
        elif not isinstance(outcome, Replace):
            self.outcomes.append(GuardOutcome(guard.name, outcome.kind, outcome.message, run_id=run_id))
        else:
            try:
                self.value = self.inquiry.accept(outcome.value)
            except Exception as problem:
                self._fail(guard, problem)
            else:
                self.outcomes.append(GuardOutcome(guard.name, "replace"))

    def _fail(self, guard: Guard, error: BaseException) -> None:
        """A guard that failed has refused."""
        if isinstance(error, HandlerTimeout):
            problem = f"Guard '{guard.name}' did not decide within {guard.timeout:g} s."
            logger.warning("%s", problem)
        else:
            problem = f"Guard '{guard.name}' failed: {type(error).__name__}: {error}"
            logger.warning("%s", problem, exc_info=(type(error), error, callers_traceback(error)))
        self.outcomes.append(GuardOutcome(guard.name, "refuse", problem, failed=True))


_is_async = lru_cache(maxsize=256)(inspect.iscoroutinefunction)


def check_guarded_tools(live: LiveRun) -> None:
    """Raise for a guard that names a tool which this run cannot have, once all of its sections are loaded."""
    outline = live.presentation.outline
    if outline.may_load:
        return
    own_names = [tool.name for tool in live.own_tools]
    names = outline.tool_names | BUILT_IN_TOOLS | frozenset(own_names)
    known = names | outline.guarded_names
    provider_tools = live.model.own_tools
    for guard in _guards(live):
        for name in missing_tools(guard, known):
            raise live.error(missing_tool_problem(f"Prompt '{live.name}'", guard, name, names))
        for name in filter(is_provider_tool, guard.tools):
            if provider_tools and name not in provider_tools and name not in names:
                listed = ", ".join(sorted(provider_tools))
                raise live.error(
                    f"Guard '{guard.name}' of '{live.name}' names the tool '{name}', which the "
                    f"{live.model.name} adapter does not allow; it allows {listed}."
                )


def warn_of_unmatched(live: LiveRun) -> None:
    """Warn of guards that name a tool which was not offered in this run, and might be in another.

    That is so for the tools of a page or a provider, and where sections were not loaded.
    """
    names = live.presentation.outline.guarded_names
    for guard in _guards(live):
        for name in guard.tools:
            if not live.toolbox.knows(name) and name not in names and name not in BUILT_IN_TOOLS:
                message = "Guard '%s' of '%s' names the tool '%s', which no section has offered in this run."
                logger.warning(message, guard.name, live.name, name)


def _guards(live: LiveRun) -> Iterator[Guard]:
    """All guards of the prompt, whether their sections are open or not."""
    yield from live.prompt.template.guards
    for node in live.presentation.outline.guarded:
        yield from node.section.guards
