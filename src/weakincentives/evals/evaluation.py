"""Runs cases side by side, scores them, and keeps each result as it ends."""

from __future__ import annotations

import math
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from contextvars import copy_context
from copy import copy
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Literal

from weakincentives.errors import OutputParseError, UnboundParamsError, WinkError
from weakincentives.evals.cases import Case, CaseError, check_ids, load_cases
from weakincentives.evals.decisions import Decider, EvalDecisions, checked_decisions, decisions_facts
from weakincentives.evals.identity import declared, digest, overridden_parts, prompt_hash
from weakincentives.evals.judge import Judge
from weakincentives.evals.recording import Recording
from weakincentives.evals.replay import DivergedError, RecordedTools, ReplayAdapter, ToolMode
from weakincentives.evals.results import CaseResult, Evaluation, ResultFile
from weakincentives.evals.scorers import MAX_REASON, FinishedRun, Score, Scorer, Unscored, as_scorer, names_of
from weakincentives.evals.spending import counting_judges, spent_on
from weakincentives.filesystem import Filesystem
from weakincentives.limits import Budget, Deadline, Prices, TokenUsage
from weakincentives.prompt import Prompt, PromptError, PromptTemplate
from weakincentives.runtime import Conversation, ModelCalled, PromptResponse, ProviderAdapter, run_history
from weakincentives.runtime.spi import LiveRun, RunDriver, driver, prices_for
from weakincentives.session import Session
from weakincentives.telemetry import record

RECORDED = "recorded"
MAX_EXPANSIONS = 10
MAX_DECISIONS = 50
MAX_NAMED = 20
GRACE = 2.0
"""Seconds that an interrupt leaves to the cases under way, to end and be recorded."""
Progress = Callable[[int, int, CaseResult], None]


class UnknownPriceError(WinkError):
    """The cost of an evaluation is limited, and the prices of `model` are unknown."""

    def __init__(self, model: str) -> None:
        super().__init__(
            f"a limit on cost needs the prices of model {model!r}, which are not listed; pass "
            f"prices={{{model!r}: Prices(input=..., output=...)}}, per million tokens, or limit tokens instead"
        )
        self.model = model


def evaluate(
    cases: Iterable[Case] | str | os.PathLike[str],  #: the cases, or a JSONL file of them
    prompt: Prompt[Any] | PromptTemplate[Any],  #: the prompt; cases bind its params
    adapter: ProviderAdapter | Literal["recorded"],  #: the model, or the recorded replies
    scorers: Iterable[Any],  #: scorers, or functions of the finished run
    *,
    repeats: int = 1,
    limit: int = 4,
    tools: ToolMode = "live",
    decisions: EvalDecisions | None = None,  #: decides about calls that wait for a person
    name: str | None = None,  #: by default the prompt's
    file: str | os.PathLike[str] | None = None,
    again: bool | Literal["unscored"] = False,
    budget: Budget | None = None,
    total: Budget | None = None,
    timeout: float | None = None,
    prices: Mapping[str, Prices] | None = None,  #: prices by model, before the listed ones
    progress: Progress | None = None,  #: called after each case
) -> Evaluation:
    """Run each case `repeats` times, at most `limit` at a time, and score the finished runs.

    With `file`, runs and results are kept in this run file as they end. The same evaluation (by
    name, prompt, model, scorers and cases) goes on where it stopped; one that is finished runs
    again only with `again=True`, or its unscored cases with `again="unscored"`. With
    `tools="recorded"`, tools return what the case's recording has, and with `adapter="recorded"` so
    does the model. `budget` and `timeout` (seconds) limit each case, `total` all of them: once it
    is spent, no further case begins.

    A run whose calls wait for a person leaves its case unscored, unless `decisions` decides: a
    function of the call (and the `case`), a mapping from tools ("*" for all others) to decisions or
    functions, or a list of decisions, in the order of the questions of each run.
    """
    found = tuple(load_cases(cases) if isinstance(cases, str | os.PathLike) else cases)
    bound = Prompt(prompt) if isinstance(prompt, PromptTemplate) else prompt
    chosen = [as_scorer(scorer) for scorer in scorers]
    _check(found, chosen, repeats, limit, tools, adapter)
    chosen_decisions = checked_decisions(decisions)
    _check_limits(name, again, budget, total, timeout)
    _check_params(found, bound)
    _check_prices(adapter, chosen, total, prices)
    about = _about(found, bound, adapter, chosen, repeats, tools, name, chosen_decisions)
    with ExitStack() as stack:
        results = None if file is None else stack.enter_context(ResultFile(file))
        if results is not None:
            stack.enter_context(results.claimed(about))
        recorder = None if file is None else stack.enter_context(record(file, prices=prices))
        for judge in (scorer.function for scorer in chosen if isinstance(scorer.function, Judge)):
            judge.use(results, about.model)
            stack.callback(judge.use, None)
        work = _Work(about, bound, adapter, chosen, results, budget, total, timeout, prices, progress, chosen_decisions)
        done = work.open(found, again)
        work.run(found, done, limit)
        if recorder is not None:
            recorder.flush()
        evaluation = work.evaluation(found)
        if results is not None and evaluation.finished:
            results.end(about.id)
        return evaluation


@dataclass(slots=True)
class _Work:
    """One evaluation under way."""

    about: Evaluation
    prompt: Prompt[Any]
    adapter: ProviderAdapter | str
    scorers: list[Scorer]
    file: ResultFile | None
    budget: Budget | None
    total: Budget | None
    timeout: float | None
    prices: Mapping[str, Prices] | None
    progress: Progress | None
    decisions: EvalDecisions | None
    results: dict[tuple[str, int], CaseResult] = field(default_factory=dict)
    runs: list[LiveRun] = field(default_factory=list)
    waiting: deque[tuple[Case, int]] = field(default_factory=deque)
    lock: threading.Lock = field(default_factory=threading.Lock)
    used: TokenUsage = field(default_factory=TokenUsage)
    paid: float = 0.0
    failure: BaseException | None = None
    stopped: bool = False

    def open(self, cases: Sequence[Case], again: bool | str) -> set[tuple[str, int]]:
        """Take up the results of an earlier call, and return which cases need not run."""
        if self.file is None:
            return set()
        if again is True:
            self.file.forget(self.about.id)
        self.file.begin(self.about)
        digests = {case.id: case.digest for case in cases}
        for (case_id, repeat, case_digest), result in self.file.done(self.about.id).items():
            kept = digests.get(case_id) == case_digest and repeat < self.about.repeats
            if kept and not (again == "unscored" and result.verdict == "unscored"):
                self._keep(result)
        return set(self.results)

    def run(self, cases: Sequence[Case], done: set[tuple[str, int]], limit: int) -> None:
        """Run what is left; a result is kept before its thread takes the next case.

        The threads are daemons, and an interrupt does not wait for them: code of the user's that
        hangs cannot keep the process alive.
        """
        left = [(case, repeat) for repeat in range(self.about.repeats) for case in cases]
        self.waiting.extend(each for each in left if (each[0].id, each[1]) not in done)
        threads = [
            threading.Thread(target=self._work, name=f"wink-eval-{number}", daemon=True)
            for number in range(min(limit, len(self.waiting)))
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException:
            self._stop()
            give_up = time.monotonic() + GRACE
            for thread in threads:
                thread.join(max(give_up - time.monotonic(), 0.0))
            raise
        if self.failure is not None:
            raise self.failure

    def _work(self) -> None:
        """Take cases until there are no more."""
        while not self.stopped:
            try:
                with self.lock:
                    if not self.waiting or self._spent():
                        return
                    case, repeat = self.waiting.popleft()
                self._case(case, repeat)
            except BaseException as error:
                with self.lock:
                    self.failure = self.failure or error
                self._stop()

    def _stop(self) -> None:
        """Begin no further case, and end those under way."""
        self.stopped = True
        for run in list(self.runs):
            if run.abandon is not None:
                run.abandon()

    def evaluation(self, cases: Sequence[Case]) -> Evaluation:
        order = {case.id: place for place, case in enumerate(cases)}
        kept = sorted(self.results.values(), key=lambda result: (order[result.case_id], result.repeat))
        return replace(self.about, results=tuple(kept))

    def _case(self, case: Case, repeat: int) -> None:
        result = self._result(case, repeat)
        if self.stopped:
            return
        if self.file is not None:
            self.file.add(self.about.id, case.digest, result)
        with self.lock:
            self._keep(result)
            if self.progress is not None:
                self.progress(len(self.results), len(self.about.cases) * self.about.repeats, result)

    def _keep(self, result: CaseResult) -> None:
        """Add a result, and what was paid for it; nothing was paid for the model of a replay, only for judges."""
        self.results[result.case_id, result.repeat] = result
        replayed = isinstance(self.adapter, str)
        usage, cost = (result.judge_usage, result.judge_cost) if replayed else (result.usage, result.cost)
        self.used += usage
        if self.total is None or self.total.max_cost is None:
            return
        if cost is None and self.total.prices is None:
            raise UnknownPriceError(self.about.model)
        self.paid += self.total.prices.cost(usage) if cost is None else cost  # type: ignore[union-attr]

    def _result(self, case: Case, repeat: int) -> CaseResult:
        began = time.monotonic()
        deadline = None if self.timeout is None else Deadline.after(self.timeout)
        session = Session(tags={"evaluation": self.about.name[:200], "case": case.id[:200]})
        blank = CaseResult(case.id, repeat, "unscored", group=case.group, question=case.question)
        try:
            return self._scored(case, session, blank, began, deadline)
        except DivergedError as error:
            verdict, reason, score = "diverged", str(error), None
        except Exception as error:
            # An answer that does not fit the declared output is a wrong answer; every other error says nothing of it.
            wrong = isinstance(error, OutputParseError) or isinstance(error.__cause__, OutputParseError)
            verdict, score = ("failed", 0.0) if wrong else ("unscored", None)
            reason = f"{type(error).__name__}: {error}"
        ran = spent_on(session, self.prices)
        called = session[ModelCalled].latest()
        made: Any = {"verdict": verdict, "score": score}
        if score is not None:
            made["scores"] = dict.fromkeys(self.about.scorers, 0.0)
        return replace(
            blank,
            reason=reason,
            run_id="" if called is None else called.run_id,
            usage=ran.usage,
            cost=ran.cost,
            seconds=time.monotonic() - began,
            **made,
        )

    def _scored(
        self, case: Case, session: Session, blank: CaseResult, began: float, deadline: Deadline | None
    ) -> CaseResult:
        prompt = copy(self.prompt)
        params, messages = case.bind(prompt)
        prompt.bind(*params)
        replay = None if self.about.tools == "live" else RecordedTools(Recording.of(case), self.about.tools)  # type: ignore[arg-type]
        adapter = ReplayAdapter(Recording.of(case)) if isinstance(self.adapter, str) else self.adapter
        with Conversation(prompt, adapter=adapter, session=session) as chat:
            response = self._answered(chat, case, messages, replay, deadline)
            seconds = time.monotonic() - began
            ran = spent_on(session, self.prices)
            finished = FinishedRun(
                case,
                response.text,
                response.output,
                response,
                session,
                chat.prompt.resources.get_optional(Filesystem),
                run_history(session),
                ran.usage,
                ran.cost,
            )
            with counting_judges(self.prices, deadline) as judges:
                scores, reasons, unscored = self._scores(finished, deadline)
        live = f"ran live: {', '.join(dict.fromkeys(replay.live))}" if replay is not None and replay.live else ""
        verdict: Any = "unscored" if unscored else "passed" if all(v == 1 for v in scores.values()) else "failed"
        return replace(
            blank,
            verdict=verdict,
            score=fmean(scores.values()) if scores and not unscored else None,
            scores=scores,
            reason="; ".join(filter(None, [*unscored, *reasons, live])),
            run_id=response.run_id,
            usage=ran.usage + judges.usage,
            cost=None if ran.cost is None or judges.cost is None else ran.cost + judges.cost,
            judge_usage=judges.usage,
            judge_cost=judges.cost,
            seconds=seconds,
            answer=response.text,
            opened=finished.opened,
        )

    def _answered(
        self,
        chat: Conversation[Any],
        case: Case,
        messages: Sequence[str],
        replay: RecordedTools | None,
        deadline: Deadline | None,
    ) -> PromptResponse[Any]:
        handler_of = None if replay is None else replay.handler_of
        options: Any = {"budget": self.budget, "deadline": deadline}
        decider = None if self.decisions is None else Decider(self.decisions, case)

        def answer(run: RunDriver[Any]) -> PromptResponse[Any]:
            self.runs.append(run.live)
            return run.returned()

        def settled(response: PromptResponse[Any]) -> PromptResponse[Any]:
            for _ in range(MAX_DECISIONS):
                if not response.pending:
                    return response
                if decider is not None:
                    decided = decider.decide(response.pending)
                elif replay is not None:
                    decided = replay.decide(response.pending)
                else:
                    waits = ", ".join(call.tool for call in response.pending)
                    way = "pass decisions=, or use recorded tools"
                    raise Unscored(f"calls wait for a person's decision: {waits}; {way}")
                decision_run = chat.driver(None, options | {"decisions": decided}, handler_of=handler_of)
                response = answer(decision_run)
            raise Unscored(f"calls still wait after {MAX_DECISIONS} decisions")

        if not messages:
            spec = replace(
                chat.adapter.run_spec(chat.prompt, options),
                max_expansions=MAX_EXPANSIONS,
                handler_of=handler_of,
            )
            return settled(answer(driver(chat.prompt, chat.session, spec, options)))
        for message in messages:
            response = settled(answer(chat.driver(message, options, handler_of=handler_of)))
        return response

    def _scores(
        self, finished: FinishedRun, deadline: Deadline | None
    ) -> tuple[dict[str, float], list[str], list[str]]:
        """The values by scorer, the reasons of those below 1, and why some could not tell."""
        scores: dict[str, float] = {}
        reasons, unscored = list[str](), list[str]()
        for scorer in self.scorers:
            try:
                score = _in_time(scorer, finished, deadline)
            except Unscored as error:
                unscored.append(f"{scorer.name}: {error}")
            except (Exception, SystemExit) as error:
                unscored.append(f"{scorer.name}: {type(error).__name__}: {error}"[:MAX_REASON])
            else:
                scores[scorer.name] = score.value
                if score.value < 1:
                    reasons.append(f"{scorer.name}: {score.reason or f'{score.value:g}'}")
        return scores, reasons, unscored

    def _spent(self) -> bool:
        """True once the budget of the whole evaluation is used up."""
        if self.total is None:
            return False
        limits = (
            (self.total.max_input_tokens, self.used.input_tokens),
            (self.total.max_output_tokens, self.used.output_tokens),
            (self.total.max_total_tokens, self.used.total_tokens),
            (self.total.max_cost, self.paid),
        )
        return any(most is not None and used >= most for most, used in limits)


def _in_time(scorer: Scorer, finished: FinishedRun, deadline: Deadline | None) -> Score:
    """The score; a scorer that takes longer than the case may is left behind in its thread, and cannot tell."""
    if deadline is None:
        return scorer(finished)
    found: list[Score | BaseException] = []

    def work() -> None:
        try:
            found.append(scorer(finished))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=copy_context().run, args=(work,), name="wink-scorer", daemon=True)
    thread.start()
    thread.join(max(deadline.remaining().total_seconds(), 0.0))
    if not found:
        raise Unscored("it did not end within the time that the case may take")
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def _check(
    cases: Sequence[Case], scorers: Sequence[Scorer], repeats: int, limit: int, tools: str, adapter: object
) -> None:
    if not cases:
        raise ValueError("evaluate needs at least one case")
    if not scorers:
        raise ValueError("evaluate needs at least one scorer, such as contains()")
    names_of(scorers)
    for given, least in (("repeats", repeats), ("limit", limit)):
        if not isinstance(least, int) or least < 1:
            raise ValueError(f"{given} must be a whole number, at least 1, got {least!r}")
    if tools not in ("live", "recorded", "recorded-or-read-only"):
        raise ValueError(f"tools must be 'live', 'recorded' or 'recorded-or-read-only', got {tools!r}")
    if not isinstance(adapter, ProviderAdapter) and adapter != RECORDED:
        raise TypeError(f"adapter must be a ProviderAdapter or 'recorded', got {adapter!r}")
    check_ids(cases)
    if tools != "live" or adapter == RECORDED:
        for case in cases:
            Recording.of(case)
    if adapter == RECORDED and tools == "live":
        warnings.warn("the model is replayed and tools run live, with all their effects", stacklevel=3)


def _check_limits(name: object, again: object, budget: object, total: object, timeout: object) -> None:
    if not isinstance(name, str | None):
        raise TypeError(f"name must be a text, got {name!r}")
    if again not in (True, False, "unscored"):
        raise ValueError(f'again must be True, False or "unscored", got {again!r}')
    for given, limit in (("budget", budget), ("total", total)):
        if not isinstance(limit, Budget | None):
            raise TypeError(f"{given} must be a Budget, got {limit!r}; pass for example Budget(max_cost=1)")
    if timeout is not None and not (isinstance(timeout, int | float) and 0 < timeout < math.inf):
        raise ValueError(f"timeout must be a number of seconds above 0, got {timeout!r}")


def _check_params(cases: Sequence[Case], prompt: Prompt[Any]) -> None:
    """Name all cases that do not fit the prompt, before one of them is paid for."""
    problems = []
    for case in cases:
        try:
            params, _ = case.bind(prompt)
            bound = copy(prompt).bind(*params)
        except (CaseError, PromptError, TypeError) as error:
            problems.append(str(error) if isinstance(error, CaseError) else f"case {case.id!r}: {error}")
            continue
        if {type(each) for each in bound.params} >= set(prompt.template.outline.params_types):
            continue
        try:
            bound.render()
        except UnboundParamsError as error:
            problems.append(f"case {case.id!r}: {str(error).removesuffix('; pass one to bind().')}; give it params")
        except Exception:
            continue  # It may need the session of a run, and will say so there.
    if problems:
        more = [f"and {len(problems) - MAX_NAMED} more"] if len(problems) > MAX_NAMED else []
        listed = "\n".join([*problems[:MAX_NAMED], *more])
        raise CaseError(f"{len(problems)} of {len(cases)} cases do not fit the prompt:\n{listed}")


def _check_prices(
    adapter: ProviderAdapter | str,
    scorers: Sequence[Scorer],
    total: Budget | None,
    prices: Mapping[str, Prices] | None,
) -> None:
    if total is None or total.max_cost is None or total.prices is not None:
        return
    asked = [scorer.function.adapter for scorer in scorers if isinstance(scorer.function, Judge)]
    for each in (*asked, adapter):
        # A model that its provider chooses is not known yet.
        if isinstance(each, ProviderAdapter) and each.model and prices_for(each.model, prices) is None:
            raise UnknownPriceError(each.model)


def _about(
    cases: Sequence[Case],
    prompt: Prompt[Any],
    adapter: ProviderAdapter | str,
    scorers: Sequence[Scorer],
    repeats: int,
    tools: str,
    name: str | None,
    decisions: EvalDecisions | None,
) -> Evaluation:
    if isinstance(adapter, str):
        kind, model, settings = adapter, adapter, tuple[Any, ...]()
    else:
        kind, model, settings = adapter.name, adapter.model, adapter.identity
    named = name or f"{prompt.ns}/{prompt.key}"
    hashed = prompt_hash(prompt)
    ids = tuple(case.id for case in cases)
    judged = list(map(_scorer_facts, sorted(scorers, key=_name_of)))
    identity = [named, hashed, kind, model, settings, tools, judged, sorted(ids), decisions_facts(decisions)]
    return Evaluation(
        name=named,
        results=(),
        id=digest(identity)[:12],
        prompt=f"{prompt.ns}/{prompt.key}",
        prompt_hash=hashed,
        adapter=kind,
        model=model,
        tools=tools,
        scorers=tuple(names_of(scorers)),
        cases=ids,
        repeats=repeats,
        started=time.time(),
        tag=prompt.overrides_tag,
        overridden=overridden_parts(prompt),
    )


def _name_of(scorer: Scorer) -> str:
    return scorer.name


def _scorer_facts(scorer: Scorer) -> list[Any]:
    """What a scorer is: its name with its code, or with the model and criterion of a judge."""
    if isinstance(scorer.function, Judge):
        return [scorer.name, scorer.function.identity]
    return [scorer.name, declared(scorer.function)]
