"""The pytest plugin: evaluations in tests, replayed from recordings that are committed beside them.

    def test_the_desk_still_answers(evals):
        evaluation = evals.run("desk.jsonl", prompt, [contains()], adapter=make_adapter)
        assert_at_least(evaluation, 0.8)

By default the cases' recordings are replayed: no model is called, and no tool runs. `pytest --evals=live` runs them on
the adapter and writes their recordings into the file again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from weakincentives.evals.cases import Case
    from weakincentives.evals.results import Evaluation
    from weakincentives.runtime import ProviderAdapter


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("weakincentives")
    group.addoption(
        "--evals",
        choices=["recorded", "live"],
        default="recorded",
        help="replay the recordings of evaluations (default), or run them live and record them again",
    )
    group.addoption("--evals-file", metavar="RUNS.DB", default=None, help="keep the results in this run file")


@pytest.fixture
def evals(request: pytest.FixtureRequest, tmp_path: Path) -> Evals:
    """Runs evaluations: from recordings, or live with `--evals=live`."""
    config = request.config
    kept = config.getoption("--evals-file")
    file = Path(kept) if kept else tmp_path / "evals.db"
    return Evals(request.path.parent, file, live=config.getoption("--evals") == "live")


class Evals:
    """Evaluations of one test; files of cases are looked for beside the test."""

    def __init__(self, folder: Path, file: Path, *, live: bool) -> None:
        self.folder, self.file, self.live = folder, file, live

    def cases(self, name: str) -> tuple[Case, ...]:
        """The cases in a file beside the test."""
        from weakincentives.evals.cases import load_cases

        return load_cases(self.folder / name)

    def run(
        self,
        cases: str | Iterable[Case],
        prompt: Any,
        scorers: Iterable[Any],
        *,
        adapter: ProviderAdapter | Callable[[], ProviderAdapter] | None = None,
        name: str | None = None,
        **options: Any,
    ) -> Evaluation:
        """Evaluate a prompt on cases, by their recordings or live; a live run rewrites the recordings in the file."""
        from weakincentives.evals.evaluation import evaluate

        found = self.cases(cases) if isinstance(cases, str) else tuple(cases)
        options.setdefault("file", self.file)
        if not self.live:
            if missing := next((case.id for case in found if case.recording is None), None):
                where = f" of {cases}" if isinstance(cases, str) else ""
                pytest.fail(f"case {missing!r}{where} has no recording; `pytest --evals=live` records the cases")
            options.setdefault("tools", "recorded")
            return evaluate(found, prompt, "recorded", scorers, name=name, **options)
        made = adapter() if callable(adapter) else adapter
        if made is None:
            pytest.fail("--evals=live needs evals.run(..., adapter=...)")
        evaluation = evaluate(found, prompt, made, scorers, name=name, **options)
        if isinstance(cases, str):
            record_again(self.folder / cases, found, evaluation, options["file"])
        return evaluation


def record_again(path: Path, cases: Iterable[Case], evaluation: Evaluation, file: Path) -> None:
    """Write the cases with the recordings of an evaluation; one that has no finished run keeps what it had."""
    from dataclasses import replace

    from weakincentives.evals.cases import write_cases
    from weakincentives.evals.recording import cases_from_runs

    runs = {result.case_id: result.run_id for result in evaluation.results if result.run_id and result.counts}
    recorded = {case.id: case.recording for case in cases_from_runs(file, run_ids=list(runs.values()))}
    write_cases(path, [replace(case, recording=recorded.get(runs.get(case.id, ""), case.recording)) for case in cases])
