"""Evaluates prompts on cases, compares evaluations case by case, and tunes summaries on evidence.

cases = load_cases("questions.jsonl")
before = evaluate(cases, prompt, adapter, [contains()], name="before", file="runs.db")
after = evaluate(cases, changed, adapter, [contains()], name="after", file="runs.db")
print(compare(before, after))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weakincentives._base.imports import lazy_front

if TYPE_CHECKING:
    from weakincentives.evals.atif import trajectory
    from weakincentives.evals.cases import Case, CaseError, load_cases, write_cases
    from weakincentives.evals.comparison import Comparison, assert_at_least, assert_no_regression, compare
    from weakincentives.evals.decisions import approve_all, deny_all
    from weakincentives.evals.evaluation import UnknownPriceError, evaluate
    from weakincentives.evals.identity import prompt_hash
    from weakincentives.evals.judge import Agreement, Judge, Judgement, Preference, agreement
    from weakincentives.evals.proposer import ModelProposer
    from weakincentives.evals.recording import Recording, cases_from_runs
    from weakincentives.evals.replay import DivergedError, ReplayAdapter
    from weakincentives.evals.results import (
        CaseResult,
        Evaluation,
        EvaluationBusyError,
        EvaluationNotFoundError,
        list_evaluations,
        load_evaluation,
    )
    from weakincentives.evals.scorers import (
        FinishedRun,
        Score,
        Scorer,
        Unscored,
        called,
        contains,
        equals,
        max_calls,
        max_cost,
        max_tokens,
        not_opened,
        opened,
    )
    from weakincentives.evals.spending import Spending, counting_judges
    from weakincentives.evals.tuning import Tuning, tune

__all__ = [
    "Agreement",
    "Case",
    "CaseError",
    "CaseResult",
    "Comparison",
    "DivergedError",
    "Evaluation",
    "EvaluationBusyError",
    "EvaluationNotFoundError",
    "FinishedRun",
    "Judge",
    "Judgement",
    "ModelProposer",
    "Preference",
    "Recording",
    "ReplayAdapter",
    "Score",
    "Scorer",
    "Spending",
    "Tuning",
    "UnknownPriceError",
    "Unscored",
    "agreement",
    "approve_all",
    "assert_at_least",
    "assert_no_regression",
    "called",
    "cases_from_runs",
    "compare",
    "contains",
    "counting_judges",
    "deny_all",
    "equals",
    "evaluate",
    "list_evaluations",
    "load_cases",
    "load_evaluation",
    "max_calls",
    "max_cost",
    "max_tokens",
    "not_opened",
    "opened",
    "prompt_hash",
    "trajectory",
    "tune",
    "write_cases",
]

__getattr__ = lazy_front(
    __name__,
    {
        "atif": ["trajectory"],
        "cases": ["Case", "CaseError", "load_cases", "write_cases"],
        "comparison": ["Comparison", "assert_at_least", "assert_no_regression", "compare"],
        "decisions": ["approve_all", "deny_all"],
        "evaluation": ["UnknownPriceError", "evaluate"],
        "identity": ["prompt_hash"],
        "judge": ["Agreement", "Judge", "Judgement", "Preference", "agreement"],
        "proposer": ["ModelProposer"],
        "recording": ["Recording", "cases_from_runs"],
        "replay": ["DivergedError", "ReplayAdapter"],
        "results": [
            "CaseResult",
            "Evaluation",
            "EvaluationBusyError",
            "EvaluationNotFoundError",
            "list_evaluations",
            "load_evaluation",
        ],
        "scorers": [
            "FinishedRun",
            "Score",
            "Scorer",
            "Unscored",
            "called",
            "contains",
            "equals",
            "max_calls",
            "max_cost",
            "max_tokens",
            "not_opened",
            "opened",
        ],
        "spending": ["Spending", "counting_judges"],
        "tuning": ["Tuning", "tune"],
    },
)
