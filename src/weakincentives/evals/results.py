"""Results of evaluations: values, and the tables of the run file that keep them as they end."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any, BinaryIO, Literal, Self

from weakincentives._base.display import Displayed, Drawn, Shown, Table, bar, one_line, shortened, toned
from weakincentives.errors import WinkError
from weakincentives.limits import TokenUsage
from weakincentives.telemetry import RunFileError, RunStore, open_for_writing

Verdict = Literal["passed", "failed", "diverged", "unscored"]
VERDICTS: tuple[Verdict, ...] = ("passed", "failed", "diverged", "unscored")

_TABLES = (
    """CREATE TABLE IF NOT EXISTS evaluations (
        id TEXT PRIMARY KEY, name TEXT NOT NULL, prompt TEXT NOT NULL, prompt_hash TEXT NOT NULL,
        adapter TEXT NOT NULL, model TEXT NOT NULL, tools TEXT NOT NULL, scorers TEXT NOT NULL, cases TEXT NOT NULL,
        repeats INTEGER NOT NULL, started REAL NOT NULL, ended REAL, tag TEXT NOT NULL DEFAULT '',
        overridden TEXT NOT NULL DEFAULT '[]'
    ) STRICT""",
    """CREATE TABLE IF NOT EXISTS case_results (
        evaluation TEXT NOT NULL, case_id TEXT NOT NULL, repeat INTEGER NOT NULL, digest TEXT NOT NULL,
        verdict TEXT NOT NULL, ended REAL NOT NULL, result TEXT NOT NULL, PRIMARY KEY (evaluation, case_id, repeat)
    ) STRICT""",
    "CREATE TABLE IF NOT EXISTS judgements (key TEXT PRIMARY KEY, verdict TEXT NOT NULL) STRICT",
)
_BUSY = "Evaluation {name!r} is running already; wait for it, or give this one another name."
_CLAIMS: set[tuple[str, str]] = set()
_CLAIMS_LOCK = threading.Lock()
_USAGES = ("usage", "judge_usage")
_COLUMNS = "id, name, prompt, prompt_hash, adapter, model, tools, scorers, cases, repeats, started, ended"
_NOUNS = {
    "text": ("text", "texts"),
    "summary": ("summary", "summaries"),
    "visibility": ("visibility", "visibilities"),
    "tool": ("tool", "tools"),
}
_ADDED = {"tag": "''", "overridden": "'[]'"}
"""Columns that files of earlier versions do not have, with their defaults."""


class EvaluationNotFoundError(WinkError, LookupError):
    """No evaluation in the run file has this name or id."""


class EvaluationBusyError(WinkError):
    """The evaluation is running already, so that its cases would be paid twice."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case, run once.

    `score` is the mean of `scores`, None if there is none; `reason` says why it did not pass. `usage` and `cost` (in US
    dollars, None if a price is unknown) are those of the run and its judges together; `judge_usage` and `judge_cost`
    are the judges' part. `answer` and `question` are texts, `opened` the sections that were opened.
    """

    case_id: str  #: the case
    repeat: int  #: which repetition, from 0
    verdict: Verdict  #: passed, failed, diverged or unscored
    score: float | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    run_id: str = ""  #: the run
    group: str = ""  #: the case's group
    usage: TokenUsage = field(default_factory=TokenUsage)
    cost: float | None = None
    seconds: float = 0.0  #: how long it took
    question: str = ""
    answer: str = ""
    opened: tuple[str, ...] = ()
    judge_usage: TokenUsage = field(default_factory=TokenUsage)
    judge_cost: float | None = 0.0

    @property
    def run_tokens(self) -> int:
        """The tokens of the run alone."""
        return self.usage.total_tokens - self.judge_usage.total_tokens

    @property
    def run_cost(self) -> float | None:
        """The cost of the run alone; None if a price is unknown."""
        return None if self.cost is None or self.judge_cost is None else self.cost - self.judge_cost

    @property
    def counts(self) -> bool:
        """True if it counts towards the mean: it was scored, and its replay did not diverge."""
        return self.verdict in ("passed", "failed")


@dataclass(frozen=True, slots=True)
class Evaluation(Displayed):
    """The results of a prompt on some cases; `mean` is that of the cases that were scored, each counted once."""

    name: str  #: its name in lists and comparisons
    results: tuple[CaseResult, ...]  #: one for each case and repetition
    id: str = ""  #: its id in the file
    prompt: str = ""  #: namespace and key of the template
    prompt_hash: str = ""  #: a digest of the template's content
    adapter: str = ""  #: the adapter's name
    model: str = ""  #: the model's name
    tools: str = "live"  #: live, recorded or recorded-or-read-only
    scorers: tuple[str, ...] = ()  #: names of the scorers
    cases: tuple[str, ...] = ()  #: ids of the cases
    repeats: int = 1  #: how often each case was run
    started: float = 0.0  #: seconds since 1970
    ended: float | None = None  #: seconds since 1970; None if it did not finish
    tag: str = ""  #: the tag of the stored override that was applied; empty if there was none
    overridden: tuple[str, ...] = ()  #: the parts of the prompt that it replaced, such as "summary orders"

    @property
    def variant(self) -> str:
        """The prompt in words: "as declared", or the tag of its override with what that replaced."""
        if not self.tag:
            return "as declared"
        counts = Counter(part.partition(" ")[0] for part in self.overridden)
        words = [f"{count} {_NOUNS.get(kind, (kind, kind))[count > 1]}" for kind, count in counts.items()]
        return f"{self.tag} ({', '.join(words)})"

    @property
    def mean(self) -> float | None:
        """The mean score over cases; None if none was scored."""
        scores = [fmean(score) for score in self._by_case(lambda result: result.score).values()]
        return fmean(scores) if scores else None

    @property
    def pass_rate(self) -> float | None:
        """The share of passed repeats, averaged over cases; None if none was scored."""
        shares = [fmean(passed) for passed in self.passes().values()]
        return fmean(shares) if shares else None

    @property
    def finished(self) -> bool:
        return len(self.results) >= len(self.cases) * self.repeats

    @property
    def cost(self) -> float | None:
        """The cost of all results together, judges included; None if one is unknown."""
        return _sum(result.cost for result in self.results)

    @property
    def judge_cost(self) -> float | None:
        """The part of the cost that judges had; None if a price is unknown."""
        return _sum(result.judge_cost for result in self.results)

    def passes(self) -> dict[str, list[float]]:
        """For each case that was scored, 1 for each repeat that passed and 0 for each that did not."""
        return self._by_case(lambda result: float(result.verdict == "passed"))

    def scores(self, scorer: str) -> dict[str, list[float]]:
        """For each case, the values of one scorer."""
        return self._by_case(lambda result: result.scores.get(scorer))

    def of(self, case_id: str) -> tuple[CaseResult, ...]:
        """The results of one case."""
        return tuple(result for result in self.results if result.case_id == case_id)

    def count(self, verdict: Verdict) -> int:
        return sum(result.verdict == verdict for result in self.results)

    def _by_case(self, value: Any) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for result in self.results:
            if result.counts and (one := value(result)) is not None:
                found.setdefault(result.case_id, []).append(one)
        return found

    def __str__(self) -> str:
        counted = [f"{self.count(verdict)} {verdict}" for verdict in VERDICTS if self.count(verdict)]
        mean = "" if self.mean is None else f", mean {self.mean:.2f}"
        paid = "cost" if self.adapter != "recorded" else "recorded cost"
        cost = f", {paid} ${self.cost:.4f}" if self.cost else ""
        judges = f" (judges ${self.judge_cost:.4f})" if cost and self.judge_cost else ""
        return f"{self.name}: {', '.join(counted) or 'no results'}{mean}{cost}{judges}"

    def _display(self) -> Iterator[Shown]:
        counted = [(verdict, self.count(verdict)) for verdict in VERDICTS]
        yield Drawn(str(self), f"<p>{escape(str(self))}</p>{bar(counted, len(self.results)).html}")
        yield results_table(self.results)
        if self.id:
            yield "In the viewer, if it was stored: wink view, page Evals"


def results_table(results: Sequence[CaseResult]) -> Table:
    """The results as a table for people."""
    repeated = any(result.repeat for result in results)
    rows = [
        (
            f"{result.case_id} ({result.repeat + 1})" if repeated else result.case_id,
            toned(result.verdict),
            "-" if result.score is None else f"{result.score:.2f}",
            f"{result.usage.total_tokens:,}",
            "-" if result.cost is None else f"${result.cost:.4f}",
            f"{result.seconds:.1f}",
            result.run_id,
            shortened(one_line(result.reason or result.answer), 200),
        )
        for result in results
    ]
    heading = ("case", "verdict", "score", "tokens", "cost", "s", "run", "reason or answer")
    return Table(
        heading, rows, right=("score", "tokens", "cost", "s"), drop=("run", "cost", "s"), flexible="reason or answer"
    )


class ResultFile:
    """The evaluations in a run file, open for writing; each result is on disk when `add` returns."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._connection = open_for_writing(self.path)
        for table in _TABLES:
            self._connection.execute(table)
        present = {row[1] for row in self._connection.execute("PRAGMA table_info(evaluations)")}
        for column, default in _ADDED.items():
            if column not in present:
                self._connection.execute(f"ALTER TABLE evaluations ADD COLUMN {column} TEXT NOT NULL DEFAULT {default}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    @contextmanager
    def claimed(self, evaluation: Evaluation) -> Iterator[None]:
        """Have the evaluation to oneself; the operating system gives it back if the process is killed."""
        key = str(self.path.resolve()), evaluation.id
        with _CLAIMS_LOCK:
            busy = key in _CLAIMS
            _CLAIMS.add(key)
        try:
            if busy:
                raise EvaluationBusyError(_BUSY.format(name=evaluation.name))
            # A file beside the run file, whose own locks are SQLite's. It is there only while the evaluation runs.
            place = Path(f"{self.path}-{evaluation.id}")
            with place.open("a+b") as file:
                _lock(file, evaluation.name)
                try:
                    yield
                finally:
                    place.unlink(missing_ok=True)
        finally:
            if not busy:
                with _CLAIMS_LOCK:
                    _CLAIMS.discard(key)

    def begin(self, evaluation: Evaluation) -> None:
        """Write down what is evaluated, unless it was begun before."""
        values = _row(evaluation)
        marks = ", ".join("?" * len(values))
        again = "repeats = max(repeats, excluded.repeats), ended = NULL, tag = excluded.tag"
        columns = ", ".join([_COLUMNS, *_ADDED])
        self._write(
            f"INSERT INTO evaluations ({columns}) VALUES ({marks}) ON CONFLICT (id) DO UPDATE SET {again}", values
        )

    def end(self, evaluation_id: str) -> None:
        self._write("UPDATE evaluations SET ended = ? WHERE id = ?", (time.time(), evaluation_id))

    def forget(self, evaluation_id: str) -> None:
        """Delete the results of an evaluation that is to run again."""
        self._write("DELETE FROM case_results WHERE evaluation = ?", (evaluation_id,))

    def add(self, evaluation_id: str, digest: str, result: CaseResult) -> None:
        """Write one result; one of an earlier attempt is replaced."""
        written = json.dumps(_result_json(result))
        self._write(
            "INSERT OR REPLACE INTO case_results VALUES (?, ?, ?, ?, ?, ?, ?)",
            (evaluation_id, result.case_id, result.repeat, digest, result.verdict, time.time(), written),
        )

    def done(self, evaluation_id: str) -> dict[tuple[str, int, str], CaseResult]:
        """The results so far, by case, repeat and the digest of the case."""
        rows = self._read(
            "SELECT case_id, repeat, digest, result FROM case_results WHERE evaluation = ?", (evaluation_id,)
        )
        return {(case, repeat, digest): _result(text) for case, repeat, digest, text in rows}

    def judgement(self, key: str) -> Mapping[str, Any] | None:
        """A verdict that a judge has given before."""
        rows = self._read("SELECT verdict FROM judgements WHERE key = ?", (key,))
        found: Mapping[str, Any] | None = json.loads(rows[0][0]) if rows else None
        return found

    def keep_judgement(self, key: str, verdict: Mapping[str, Any]) -> None:
        self._write("INSERT OR REPLACE INTO judgements VALUES (?, ?)", (key, json.dumps(verdict)))

    def _write(self, sql: str, values: Sequence[Any]) -> None:
        try:
            with self._lock:
                self._connection.execute(sql, values)
        except sqlite3.Error as error:
            raise RunFileError(f"Cannot write results to '{self.path}': {error}.") from error

    def _read(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        with self._lock:
            return list(self._connection.execute(sql, values))


def _lock(file: BinaryIO, name: str) -> None:
    """Lock the file until it is closed."""
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
            raise EvaluationBusyError(_BUSY.format(name=name)) from None
        # A file system without locks.


def list_evaluations(path: str | os.PathLike[str] | RunStore) -> tuple[Evaluation, ...]:
    """The evaluations in a run file, newest first, with their results."""
    if not isinstance(path, RunStore):
        with RunStore(Path(path)) as store:
            return list_evaluations(store)
    if not path.query("SELECT 1 FROM sqlite_master WHERE name = 'case_results'"):
        return ()
    present = {row[1] for row in path.query("PRAGMA table_info(evaluations)")}
    columns = [_COLUMNS]
    for column, default in _ADDED.items():
        columns.append(column if column in present else default)
    rows = path.query(f"SELECT {', '.join(columns)} FROM evaluations ORDER BY started DESC, id")
    results: dict[str, list[CaseResult]] = {}
    for evaluation, text in path.query("SELECT evaluation, result FROM case_results ORDER BY rowid"):
        results.setdefault(evaluation, []).append(_result(text))
    return tuple(_evaluation(row, results.get(row[0], [])) for row in rows)


def load_evaluation(path: str | os.PathLike[str] | RunStore, name: str = "") -> Evaluation:
    """The newest evaluation with this name, or the one whose id begins with it; without a name, the newest of all."""
    found = list_evaluations(path)
    named = [each for each in found if each.name == name] or [each for each in found if each.id.startswith(name)]
    if not named:
        there = ", ".join(dict.fromkeys(each.name for each in found)) or "none"
        where = path.path if isinstance(path, RunStore) else path
        raise EvaluationNotFoundError(f"There is no evaluation {name!r} in '{where}'; there are: {there}.")
    return named[0]


def _sum(costs: Iterable[float | None]) -> float | None:
    known = list(costs)
    return None if not known or None in known else sum(cost for cost in known if cost is not None)


def _row(evaluation: Evaluation) -> tuple[Any, ...]:
    return (
        evaluation.id,
        evaluation.name,
        evaluation.prompt,
        evaluation.prompt_hash,
        evaluation.adapter,
        evaluation.model,
        evaluation.tools,
        json.dumps(evaluation.scorers),
        json.dumps(evaluation.cases),
        evaluation.repeats,
        evaluation.started,
        evaluation.ended,
        evaluation.tag,
        json.dumps(evaluation.overridden),
    )


def _evaluation(row: Sequence[Any], results: Sequence[CaseResult]) -> Evaluation:
    identity, name, prompt, prompt_hash, adapter, model, tools, scorers, cases, repeats, *rest = row
    started, ended, tag, overridden = rest
    ids = tuple(json.loads(cases))
    order = {case: place for place, case in enumerate(ids)}
    kept = sorted(results, key=lambda result: (order.get(result.case_id, len(order)), result.repeat))
    return Evaluation(
        name,
        tuple(kept),
        identity,
        prompt,
        prompt_hash,
        adapter,
        model,
        tools,
        tuple(json.loads(scorers)),
        ids,
        repeats,
        started,
        ended,
        tag,
        tuple(json.loads(overridden)),
    )


def _result_json(result: CaseResult) -> dict[str, Any]:
    written = {name: getattr(result, name) for name in CaseResult.__dataclass_fields__}
    used = {name: _counts(written[name]) for name in _USAGES}
    return {**written, "scores": dict(result.scores), **used}


def _counts(usage: TokenUsage) -> list[int]:
    return [
        usage.input_tokens,
        usage.output_tokens,
        usage.cached_tokens,
        usage.reasoning_tokens,
        usage.hosted_requests,
    ]


def _result(text: str) -> CaseResult:
    # A field that this version does not know was written by a later one.
    fields = {name: value for name, value in json.loads(text).items() if name in CaseResult.__dataclass_fields__}
    fields.update({name: TokenUsage(*fields[name]) for name in _USAGES if name in fields})
    return CaseResult(**{**fields, "opened": tuple(fields.get("opened", ()))})
