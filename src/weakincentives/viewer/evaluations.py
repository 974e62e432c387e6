"""The viewer's pages of evaluations as JSON documents: a list, one evaluation, and two side by side."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from weakincentives.evals import CaseResult, Evaluation, compare, list_evaluations, load_evaluation
from weakincentives.telemetry import RunStore, plain


def evaluations(store: RunStore) -> dict[str, Any]:
    """All evaluations of a file, newest first, without their results."""
    return {"file": store.path.name, "evaluations": [_about(each) for each in list_evaluations(store)]}


def evaluation(store: RunStore, name: str) -> dict[str, Any]:
    """One evaluation, with a row for each result."""
    found = load_evaluation(store, name)
    turns = _turns(store, found.results)
    return {**_about(found), "results": [_row(result, turns) for result in found.results]}


def evaluated(store: RunStore, run_id: str) -> dict[str, Any] | None:
    """The case of an evaluation that a run was made for; None for other runs."""
    if not store.salvage("SELECT 1 FROM sqlite_master WHERE name = 'case_results'"):
        return None
    rows = store.salvage(
        "SELECT evaluations.id, name, case_id, verdict FROM case_results JOIN evaluations "
        "ON evaluations.id = evaluation WHERE json_valid(result) AND result ->> '$.run_id' = ? LIMIT 1",
        (run_id,),
    )
    return dict(zip(("id", "name", "case_id", "verdict"), rows[0], strict=True)) if rows else None


def comparison(store: RunStore, before: str, after: str) -> dict[str, Any]:
    """Two evaluations side by side: what the cases show, and each case in both."""
    one, two = load_evaluation(store, before), load_evaluation(store, after)
    found = compare(one, two)
    turns = _turns(store, (*one.results, *two.results))
    first, second = ({result.case_id: result for result in each.results} for each in (two, one))
    cases = []
    for case in dict.fromkeys((*one.cases, *two.cases)):
        old, new = second.get(case), first.get(case)
        changed = (old and old.verdict) != (new and new.verdict)
        cases.append(
            {
                "case_id": case,
                "changed": changed,
                "regressed": case in found.regressed,
                "before": None if old is None else _row(old, turns),
                "after": None if new is None else _row(new, turns),
            }
        )
    facts = {name: getattr(found, name) for name in ("wins", "losses", "ties", "cases", "difference", "low", "high")}
    return {
        "before": _about(one),
        "after": _about(two),
        # The figures are in `cost`, `tokens` and `seconds`.
        "text": [line for line in found.text.split("\n") if " -> " not in line],
        "better": found.better,
        "worse": found.worse,
        "same_prompt": one.prompt_hash == two.prompt_hash,
        **facts,
        **{name: plain(getattr(found, name)) for name in ("cost", "tokens", "seconds", "scorers", "groups")},
        "rows": cases,
    }


def _about(found: Evaluation) -> dict[str, Any]:
    return {
        "id": found.id,
        "name": found.name,
        "prompt": found.prompt,
        "prompt_hash": found.prompt_hash,
        "variant": found.variant,
        "overridden": list(found.overridden),
        "model": found.model,
        "adapter": found.adapter,
        "tools": found.tools,
        "scorers": list(found.scorers),
        "cases": len(found.cases),
        "repeats": found.repeats,
        "started": found.started,
        "finished": found.finished,
        "mean": found.mean,
        "cost": found.cost,
        "judge_cost": found.judge_cost,
        "tokens": sum(result.usage.total_tokens for result in found.results),
        "passed": found.count("passed"),
        "failed": found.count("failed"),
        "diverged": found.count("diverged"),
        "unscored": found.count("unscored"),
    }


def _row(result: CaseResult, turns: dict[str, int]) -> dict[str, Any]:
    # A run that was pruned, or not recorded, has no page.
    return {**plain(result), "tokens": result.usage.total_tokens, "turns": turns.get(result.run_id, 0)}


def _turns(store: RunStore, results: Iterable[CaseResult]) -> dict[str, int]:
    wanted = {result.run_id for result in results}
    return {run_id: turns for run_id, turns in store.query("SELECT run_id, turns FROM runs") if run_id in wanted}
