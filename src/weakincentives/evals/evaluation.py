"""Runs cases side by side, scores them, and keeps each result as it ends."""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Literal

from weakincentives.errors import OutputParseError
from weakincentives.evals.cases import Case, load_cases
from weakincentives.evals.judge import Judge
from weakincentives.evals.recording import Recording
from weakincentives.evals.replay import DivergedError, RecordedTools, ReplayAdapter, ToolMode
from weakincentives.evals.results import CaseResult, Evaluation, ResultFile
from weakincentives.evals.scorers import FinishedRun, Scorer, Unscored, as_scorer, names_of
from weakincentives.filesystem import Filesystem
from weakincentives.limits import Budget, Deadline, Meter, Prices, TokenUsage
from weakincentives.prompt import Prompt, PromptDescriptor, PromptTemplate
from weakincentives.runtime import (
    Conversation,
    ModelCalled,
    PromptResponse,
    ProviderAdapter,
    SectionsRanked,
    run,
    run_history,
)
from weakincentives.runtime.spi import RunScope, prices_for
from weakincentives.session import Session
from weakincentives.telemetry import Recorder, plain, record

RECORDED = "recorded"
MAX_DECISIONS = 50
Progress = Callable[[int, int, CaseResult], None]


def evaluate(
    cases: Iterable[Case] | str | os.PathLike[str],
    prompt: Prompt[Any] | PromptTemplate[Any],
    adapter: ProviderAdapter | Literal["recorded"],
    scorers: Iterable[Any],
    *,
    repeats: int = 1,
    limit: int = 4,
    tools: ToolMode = "live",
    name: str | None = None,
    file: str | os.PathLike[str] | None = None,
    again: bool | Literal["unscored"] = False,
    budget: Budget | None = None,
    total: Budget | None = None,
    timeout: float | None = None,
    prices: Mapping[str, Prices] | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Run each case `repeats` times, at most `limit` at a time, and score the finished runs.

    With `file`, runs and results are kept in this run file as they end. The same evaluation (by name, prompt, model,
    scorers and cases) goes on where it stopped; one that is finished runs again only with `again=True`, or its unscored
    cases with `again="unscored"`. With `tools="recorded"`, tools return what the case's recording has, and with
    `adapter="recorded"` so does the model. `budget` and `timeout` (seconds) limit each case, `total` all of them: once
    it is spent, no further case begins.
    """
    found = tuple(load_cases(cases) if isinstance(cases, str | os.PathLike) else cases)
    bound = Prompt(prompt) if isinstance(prompt, PromptTemplate) else prompt
    chosen = [as_scorer(scorer) for scorer in scorers]
    _check(found, chosen, repeats, limit, tools, adapter)
    about = _about(found, bound, adapter, chosen, repeats, tools, name)
    with ExitStack() as stack:
        results = None if file is None else stack.enter_context(ResultFile(file))
        recorder = None if file is None else stack.enter_context(record(file, prices=prices))
        for judge in (scorer.function for scorer in chosen if isinstance(scorer.function, Judge)):
            judge.use(results, about.model)
            stack.callback(judge.use, None)
        work = _Work(about, bound, adapter, chosen, results, recorder, budget, total, timeout, prices, progress)
        done = work.open(found, again)
        work.run(found, done, limit)
        evaluation = work.evaluation(found)
        if results is not None and evaluation.finished:
            results.end(about.id)
        return evaluation


def prompt_hash(prompt: Prompt[Any]) -> str:
    """A hash of everything that a prompt shows: texts, summaries, visibility and tools, with overrides applied."""
    outline = prompt.outline()
    about = PromptDescriptor.of(prompt.ns, prompt.key, outline)
    parts = [
        *(f"{path} {each.content_hash}" for path, each in about.sections.items()),
        *(f"{path} {each.content_hash}" for path, each in about.summaries.items()),
        *(f"{path} {each.content_hash}" for path, each in about.visibility.items()),
        *(f"{node.key} {node.section.title}" for node in outline.nodes),
        *(tool.definition for node in outline.nodes for tool in node.tools),
        type(prompt.template.disclosure).__qualname__,
        str(prompt.template.structured_output),
        json.dumps(plain(prompt.params), sort_keys=True, default=str),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@dataclass(slots=True)
class _Work:
    """One evaluation under way."""

    about: Evaluation
    prompt: Prompt[Any]
    adapter: ProviderAdapter | str
    scorers: list[Scorer]
    file: ResultFile | None
    recorder: Recorder | None
    budget: Budget | None
    total: Budget | None
    timeout: float | None
    prices: Mapping[str, Prices] | None
    progress: Progress | None
    results: dict[tuple[str, int], CaseResult] = field(default_factory=dict)
    scopes: list[RunScope] = field(default_factory=list)
    stopped: bool = False

    def open(self, cases: Sequence[Case], again: bool | str) -> set[tuple[str, int]]:
        """Take up the results of an earlier call, and return which cases need not run."""
        if self.file is None:
            return set()
        if again is True:
            self.file.forget(self.about.id)
        self.file.begin(self.about)
        digests = {case.id: case.digest for case in cases}
        for (case_id, repeat, digest), result in self.file.done(self.about.id).items():
            kept = digests.get(case_id) == digest and repeat < self.about.repeats
            if kept and not (again == "unscored" and result.verdict == "unscored"):
                self.results[case_id, repeat] = result
        return set(self.results)

    def run(self, cases: Sequence[Case], done: set[tuple[str, int]], limit: int) -> None:
        """Run what is left; a result is kept before its thread takes the next case."""
        left = [(case, repeat) for repeat in range(self.about.repeats) for case in cases]
        waiting = [each for each in left if (each[0].id, each[1]) not in done]
        waiting.reverse()
        running: set[Future[None]] = set()
        with ThreadPoolExecutor(limit, thread_name_prefix="wink-eval") as pool:
            try:
                while running or (waiting and not self._spent()):
                    while waiting and len(running) < limit and not self._spent():
                        running.add(pool.submit(self._case, *waiting.pop()))
                    ended, running = wait(running, return_when=FIRST_COMPLETED)
                    for each in ended:
                        each.result()
            except BaseException:
                self.stopped = True
                for scope in list(self.scopes):
                    if scope.abandon is not None:
                        scope.abandon()
                raise

    def evaluation(self, cases: Sequence[Case]) -> Evaluation:
        order = {case.id: place for place, case in enumerate(cases)}
        kept = sorted(self.results.values(), key=lambda result: (order[result.case_id], result.repeat))
        return replace(self.about, results=tuple(kept))

    def _case(self, case: Case, repeat: int) -> None:
        result = self._result(case, repeat)
        if self.stopped:
            return
        if self.file is not None and self.recorder is not None:
            self.recorder.flush()
            self.file.add(self.about.id, case.digest, result)
        self.results[case.id, repeat] = result
        if self.progress is not None:
            self.progress(len(self.results), len(self.about.cases) * self.about.repeats, result)

    def _result(self, case: Case, repeat: int) -> CaseResult:
        began = time.monotonic()
        session = Session(tags={"evaluation": self.about.name[:200], "case": case.id[:200]})
        blank = CaseResult(case.id, repeat, "unscored", group=case.group, question=case.question)
        try:
            return self._scored(case, session, blank, began)
        except DivergedError as error:
            verdict, reason, score = "diverged", str(error), None
        except Exception as error:
            # An answer that does not fit the declared output is a wrong answer; every other error says nothing of it.
            wrong = isinstance(error, OutputParseError) or isinstance(error.__cause__, OutputParseError)
            verdict, score = ("failed", 0.0) if wrong else ("unscored", None)
            reason = f"{type(error).__name__}: {error}"
        ran = _spent_by(session, self.prices)
        called = session[ModelCalled].latest()
        made: Any = {"verdict": verdict, "score": score}
        if score is not None:
            made["scores"] = dict.fromkeys(self.about.scorers, 0.0)
        return replace(
            blank,
            reason=reason,
            run_id="" if called is None else called.run_id,
            usage=ran[0],
            cost=ran[1],
            seconds=time.monotonic() - began,
            **made,
        )

    def _scored(self, case: Case, session: Session, blank: CaseResult, began: float) -> CaseResult:
        prompt = copy(self.prompt)
        params, messages = case.bind(prompt)
        prompt.bind(*params)
        replay = None if self.about.tools == "live" else RecordedTools(Recording.of(case), self.about.tools)  # type: ignore[arg-type]
        adapter = ReplayAdapter(Recording.of(case)) if isinstance(self.adapter, str) else self.adapter
        with Conversation(prompt, adapter=adapter, session=session) as chat:
            response = self._answered(chat, messages, replay)
            seconds = time.monotonic() - began
            usage, cost = _spent_by(session, self.prices)
            finished = FinishedRun(
                case,
                response.text,
                response.output,
                response,
                session,
                chat.prompt.resources.get_optional(Filesystem),
                run_history(session),
                usage,
                cost,
            )
            scores, reasons, unscored = self._scores(finished)
        live = f"ran live: {', '.join(dict.fromkeys(replay.live))}" if replay is not None and replay.live else ""
        verdict: Any = "unscored" if unscored else "passed" if all(v == 1 for v in scores.values()) else "failed"
        return replace(
            blank,
            verdict=verdict,
            score=fmean(scores.values()) if scores and not unscored else None,
            scores=scores,
            reason="; ".join(filter(None, [*unscored, *reasons, live])),
            run_id=response.run_id,
            usage=usage,
            cost=cost,
            seconds=seconds,
            answer=response.text,
            opened=finished.opened,
        )

    def _answered(
        self, chat: Conversation[Any], messages: Sequence[str], replay: RecordedTools | None
    ) -> PromptResponse[Any]:
        deadline = None if self.timeout is None else Deadline.after(self.timeout)

        def scope() -> RunScope:
            made = RunScope(Meter(self.budget, deadline), handler_of=None if replay is None else replay.handler_of)
            self.scopes.append(made)
            return made

        def settled(response: PromptResponse[Any]) -> PromptResponse[Any]:
            for _ in range(MAX_DECISIONS):
                if not response.pending:
                    return response
                if replay is None:
                    waits = ", ".join(call.tool for call in response.pending)
                    raise Unscored(f"calls wait for a person's decision: {waits}; use recorded tools, or no approval=")
                response = chat.decide(replay.decide(response.pending), scope=scope())
            raise Unscored(f"calls still wait after {MAX_DECISIONS} decisions")

        if not messages:
            return settled(run(chat.prompt, chat.adapter, session=chat.session, scope=scope()))
        for message in messages:
            response = settled(chat.send(message, scope=scope()))
        return response

    def _scores(self, finished: FinishedRun) -> tuple[dict[str, float], list[str], list[str]]:
        """The values by scorer, the reasons of those below 1, and why some could not tell."""
        scores: dict[str, float] = {}
        reasons, unscored = list[str](), list[str]()
        for scorer in self.scorers:
            try:
                score = scorer(finished)
            except Unscored as error:
                unscored.append(f"{scorer.name}: {error}")
            except Exception as error:
                unscored.append(f"{scorer.name}: {type(error).__name__}: {error}")
            else:
                scores[scorer.name] = score.value
                if score.value < 1:
                    reasons.append(f"{scorer.name}: {score.reason or f'{score.value:g}'}")
        return scores, reasons, unscored

    def _spent(self) -> bool:
        """True once the budget of the whole evaluation is used up."""
        if self.total is None:
            return False
        usage = sum((result.usage for result in self.results.values()), TokenUsage())
        costs = [result.cost for result in self.results.values()]
        prices = self.total.prices
        cost = prices.cost(usage) if prices is not None else sum(cost for cost in costs if cost is not None)
        limits = (
            (self.total.max_input_tokens, usage.input_tokens),
            (self.total.max_output_tokens, usage.output_tokens),
            (self.total.max_total_tokens, usage.total_tokens),
            (self.total.max_cost, cost),
        )
        return any(most is not None and used >= most for most, used in limits)


def _check(
    cases: Sequence[Case], scorers: Sequence[Scorer], repeats: int, limit: int, tools: str, adapter: object
) -> None:
    if not cases:
        raise ValueError("evaluate needs at least one case")
    if not scorers:
        raise ValueError("evaluate needs at least one scorer, such as contains()")
    names_of(scorers)
    for given, least in (("repeats", repeats), ("limit", limit)):
        if least < 1:
            raise ValueError(f"{given} must be at least 1, got {least}")
    if tools not in ("live", "recorded", "recorded-or-read-only"):
        raise ValueError(f"tools must be 'live', 'recorded' or 'recorded-or-read-only', got {tools!r}")
    if not isinstance(adapter, ProviderAdapter) and adapter != RECORDED:
        raise TypeError(f"adapter must be a ProviderAdapter or 'recorded', got {adapter!r}")
    twice = next((case.id for place, case in enumerate(cases) if case.id in {c.id for c in cases[:place]}), None)
    if twice is not None:
        raise ValueError(f"two cases have the id {twice!r}; ids must be unique")
    if tools != "live" or adapter == RECORDED:
        for case in cases:
            Recording.of(case)
    if adapter == RECORDED and tools == "live":
        warnings.warn("the model is replayed and tools run live, with all their effects", stacklevel=3)


def _about(
    cases: Sequence[Case],
    prompt: Prompt[Any],
    adapter: ProviderAdapter | str,
    scorers: Sequence[Scorer],
    repeats: int,
    tools: str,
    name: str | None,
) -> Evaluation:
    kind, model = (adapter, adapter) if isinstance(adapter, str) else (adapter.name, adapter.model)
    named = name or f"{prompt.ns}/{prompt.key}"
    hashed, scored, ids = prompt_hash(prompt), tuple(names_of(scorers)), tuple(case.id for case in cases)
    judges = [scorer.function.identity for scorer in scorers if isinstance(scorer.function, Judge)]
    settings = None if isinstance(adapter, str) else plain(adapter.settings)
    identity = [named, hashed, kind, model, settings, tools, sorted(scored), judges, sorted(ids)]
    made = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]
    return Evaluation(
        named,
        (),
        made,
        f"{prompt.ns}/{prompt.key}",
        hashed,
        kind,
        model,
        tools,
        scored,
        ids,
        repeats,
        time.time(),
    )


def _spent_by(session: Session, prices: Mapping[str, Prices] | None) -> tuple[TokenUsage, float | None]:
    """The tokens of all model calls on a session, runs inside others included, and their cost if it is known."""
    calls, rankings = session[ModelCalled].all(), session[SectionsRanked].all()
    usage = sum((ranking.usage for ranking in rankings), sum((call.usage for call in calls), TokenUsage()))
    costs = [None if (known := prices_for(call.model, prices)) is None else known.cost(call.usage) for call in calls]
    costs += [ranking.cost for ranking in rankings]
    return usage, None if None in costs or not costs else sum(cost for cost in costs if cost is not None)
