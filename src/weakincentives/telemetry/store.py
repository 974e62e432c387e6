"""Reading recorded runs: lists, events page by page, and every turn as the model had it."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from weakincentives.errors import WinkError
from weakincentives.limits import TokenUsage
from weakincentives.prompt import Tokenizer, ToolResult
from weakincentives.prompt.disclosure.strategy import RESERVED_NAMES
from weakincentives.runtime import Ledger, ModelCalled, ToolInvoked, ledger_of
from weakincentives.telemetry.payload import load, references, unpack
from weakincentives.telemetry.schema import SILENT_SECONDS, open_for_reading
from weakincentives.telemetry.turns import Turn, build_turn

PAGE = 500
_SHARED, _TEXTS = frozenset({"json"}), frozenset({"text", "texts"})
# Most events refer to nothing, and need not be searched for it.
_REFERENCE = re.compile(r'"\$":"(?:text|texts|json|rows)"')
_VARIABLES = 500


class RunNotFoundError(WinkError):
    """The file has no such run, or the beginning of an id fits several."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One recorded run. `cost` is in US dollars, and None where a price is not known; times are seconds since 1970."""

    run_id: str
    session_id: str
    prompt: str
    prompt_name: str
    adapter: str
    model: str
    status: str
    started: float
    updated: float
    ended: float | None
    events: int
    turns: int
    tool_calls: int
    tool_failures: int
    disclosures: int
    restarts: int
    usage: TokenUsage
    cost: float | None
    error: str

    @property
    def duration(self) -> float:
        return (self.updated if self.ended is None else self.ended) - self.started


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """An event with its place in the run; `turn` is how many times the model had been called by then."""

    run_id: str
    seq: int
    kind: str
    time: float
    turn: int
    event: Any


class RunStore:
    """A file of runs, open for reading; it may still be written to."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._connection = open_for_reading(self.path)

    def __enter__(self) -> RunStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def list_runs(
        self, limit: int = 50, offset: int = 0, search: str = "", *, status: str = "", prompt: str = ""
    ) -> tuple[RunSummary, ...]:
        """The newest runs first; `search` looks into ids, prompts, models, errors and everything that was said."""
        where, values = self._filter(search, status, prompt)
        rows = self._rows(
            f"SELECT {_COLUMNS} FROM {_RUNS} WHERE {where} ORDER BY started DESC, run_id LIMIT ? OFFSET ?",
            (time.time() - SILENT_SECONDS, *values, limit, offset),
        )
        return tuple(map(_summary, rows))

    def count_runs(self, search: str = "", *, status: str = "", prompt: str = "") -> int:
        where, values = self._filter(search, status, prompt)
        found = self._rows(f"SELECT count(*) FROM {_RUNS} WHERE {where}", (time.time() - SILENT_SECONDS, *values))
        return int(found[0][0])

    def run(self, run_id: str) -> RunSummary:
        """One run, by its id or the beginning of it that is its alone."""
        rows = self._rows(
            f"SELECT {_COLUMNS} FROM {_RUNS} WHERE run_id = ? OR substr(run_id, 1, ?) = ? "
            "ORDER BY run_id = ? DESC LIMIT 2",
            (time.time() - SILENT_SECONDS, run_id, len(run_id), run_id, run_id),
        )
        if not run_id or not rows:
            raise RunNotFoundError(
                f"There is no run {run_id!r} in '{self.path}'; `wink runs list` shows what there is."
            )
        if len(rows) > 1 and rows[0][0] != run_id:
            raise RunNotFoundError(f"Several runs in '{self.path}' begin with {run_id!r}; write more of the id.")
        return _summary(rows[0])

    def events(
        self,
        run_id: str,
        after: int = 0,
        limit: int = PAGE,
        *,
        kinds: Sequence[str] = (),
        turn: int | None = None,
    ) -> tuple[RecordedEvent, ...]:
        """The events of a run that come after the one numbered `after`, oldest first."""
        where, values = "run_id = ? AND seq > ?", [run_id, after]
        if kinds:
            where += f" AND kind IN ({', '.join('?' * len(kinds))})"
            values += kinds
        if turn is not None:
            where += " AND turn = ?"
            values.append(turn)
        return self._events(where, (*values, limit))

    def all_events(self, run_id: str, *, kinds: Sequence[str] = ()) -> Iterator[RecordedEvent]:
        """Every event of a run, read page by page."""
        after = 0
        while page := self.events(run_id, after, kinds=kinds):
            yield from page
            after = page[-1].seq

    def session_events(self, session_id: str, after: int = 0, limit: int = PAGE) -> tuple[RecordedEvent, ...]:
        """What happened in a session before its first run."""
        return self._events("run_id = '' AND session_id = ? AND seq > ?", (session_id, after, limit))

    def turn(self, run_id: str, n: int, *, with_messages: bool = True) -> Turn:
        """Everything about the n-th call of the model, counted from 1 over all restarts of the run."""
        run = self.run(run_id)
        if not 1 <= n <= run.turns:
            has = f"turns 1 to {run.turns}" if run.turns else "no turns"
            raise RunNotFoundError(f"Run '{run.run_id}' has {has}, so there is no turn {n}.")
        return build_turn(self, run.run_id, n, with_messages=with_messages)

    def ledger(self, run_id: str, *, tokenizer: Tokenizer | None = None) -> Ledger:
        """Tokens sent, cached and lost, against those of the full prompt; `rows[n - 1]` is turn n."""
        return ledger_of(self.disclosure_events(run_id), run_id, tokenizer=tokenizer)

    def disclosure_events(self, run_id: str) -> list[Any]:
        """What a ledger or advice needs of a run; of an ordinary tool call no more than that it happened."""
        kinds = "run_id = ? AND kind IN ('PromptRendered', 'ToolsInjected', 'RunRestarted')"
        disclosing = "run_id = ? AND kind IN ('ToolInvoked', 'Message') AND payload ->> '$.v.name' IN (?, ?, ?)"
        found = [*self._events(kinds, (run_id, -1)), *self._events(disclosing, (run_id, *sorted(RESERVED_NAMES), -1))]
        others = self._rows(
            "SELECT seq, payload ->> '$.v.name', payload ->> '$.v.section_key' FROM events "
            "WHERE run_id = ? AND kind = 'ToolInvoked' AND payload ->> '$.v.name' NOT IN (?, ?, ?)",
            (run_id, *sorted(RESERVED_NAMES)),
        )
        calls = self._rows(
            "SELECT seq, payload ->> '$.v.model', payload ->> '$.v.usage.v.input_tokens', "
            "payload ->> '$.v.usage.v.output_tokens', payload ->> '$.v.usage.v.cached_tokens', "
            "payload ->> '$.v.usage.v.reasoning_tokens' FROM events WHERE run_id = ? AND kind = 'ModelCalled'",
            (run_id,),
        )
        events = [(recorded.seq, recorded.event) for recorded in found]
        events += [
            (seq, ModelCalled(run_id, "", "", model, 0, TokenUsage(*usage), "end", 0)) for seq, model, *usage in calls
        ]
        events += [
            (seq, ToolInvoked(name=name, params=None, result=ToolResult(), call_id="", section_key=key))
            for seq, name, key in others
        ]
        return [event for _, event in sorted(events, key=itemgetter(0))]

    def last_event_id(self) -> int:
        """A number that grows with every event in the file: what a live view looks at."""
        return int(self._rows("SELECT coalesce(max(id), 0) FROM events")[0][0])

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a SELECT of your own; docs/observability.md has the tables and views."""
        return self._rows(sql, values)

    def events_where(self, where: str, values: Sequence[Any]) -> tuple[RecordedEvent, ...]:
        """Events by a condition on the columns of `events`, oldest first."""
        return self._events(where, (*values, -1))

    def _events(self, where: str, values: Sequence[Any]) -> tuple[RecordedEvent, ...]:
        rows = self._rows(
            f"SELECT run_id, seq, kind, time, turn, payload FROM events WHERE {where} ORDER BY seq LIMIT ?", values
        )
        decoded = [msgspec.json.decode(row[-1]) for row in rows]
        referring = [_REFERENCE.search(row[-1]) is not None for row in rows]
        packed = [data for data, refers in zip(decoded, referring, strict=True) if refers]
        texts = self._texts({key for data in packed for key in references(data, _SHARED)})
        packed += [msgspec.json.decode(text) for text in texts.values()]
        texts |= self._texts({key for data in packed for key in references(data, _TEXTS)})
        return tuple(
            RecordedEvent(run_id, seq, kind, at, turn, load(unpack(data, texts) if refers else data))
            for (run_id, seq, kind, at, turn, _), data, refers in zip(rows, decoded, referring, strict=True)
        )

    def _texts(self, keys: Iterable[str]) -> dict[str, str]:
        wanted = list(keys)
        texts: dict[str, str] = {}
        for start in range(0, len(wanted), _VARIABLES):
            some = wanted[start : start + _VARIABLES]
            texts |= self._rows(f"SELECT hash, text FROM texts WHERE hash IN ({', '.join('?' * len(some))})", some)
        return texts

    def _filter(self, search: str, status: str, prompt: str) -> tuple[str, list[Any]]:
        where, values = ["1"], []
        if status:
            where.append("status = ?")
            values.append(status)
        if prompt:
            where.append("(prompt = ? OR prompt_name = ?)")
            values += [prompt, prompt]
        if search:
            like = f"%{_escaped(search)}%"
            columns = ("run_id", "prompt", "prompt_name", "model", "adapter", "status", "error", "session_id")
            anywhere = [f"{column} LIKE ? ESCAPE '\\'" for column in columns]
            anywhere.append("EXISTS (SELECT 1 FROM events WHERE run_id = r.run_id AND payload LIKE ? ESCAPE '\\')")
            anywhere.append(
                "EXISTS (SELECT 1 FROM run_texts JOIN texts USING (hash) WHERE run_id = r.run_id "
                "AND text LIKE ? ESCAPE '\\')"
            )
            where.append(f"({' OR '.join(anywhere)})")
            values += [like] * len(anywhere)
        return " AND ".join(where), values

    def _rows(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock:
            return self._connection.execute(sql, tuple(values)).fetchall()


def read_run(path: str | os.PathLike[str], run_id: str) -> tuple[Any, ...]:
    """The events of a recorded run, equal to those that its session dispatched.

    Classes are looked up among those that this program has imported; a value of any other is an `UnknownType`.
    """
    with RunStore(path) as store:
        return tuple(recorded.event for recorded in store.all_events(store.run(run_id).run_id))


_COLUMNS = (
    "run_id, session_id, prompt, prompt_name, adapter, model, status, started, updated, ended, events, turns, "
    "tool_calls, tool_failures, disclosures, restarts, input_tokens, output_tokens, cached_tokens, reasoning_tokens, "
    "cost, error"
)
# A run whose recorder has gone silent without a word was killed.
_RUNS = (
    "(SELECT runs.run_id, session_id, prompt, prompt_name, adapter, model, "
    "CASE WHEN status = 'running' AND beat < ? THEN 'interrupted' ELSE status END AS status, "
    "runs.started, updated, ended, events, turns, tool_calls, tool_failures, disclosures, restarts, input_tokens, "
    "output_tokens, cached_tokens, reasoning_tokens, cost, error "
    "FROM runs JOIN recorders ON recorders.id = recorder_id) AS r"
)


def _summary(row: Sequence[Any]) -> RunSummary:
    return RunSummary(*(*row[:16], TokenUsage(*row[16:20]), *row[20:]))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


__all__ = ["RecordedEvent", "RunNotFoundError", "RunStore", "RunSummary", "read_run"]
