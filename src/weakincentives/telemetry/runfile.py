"""Writes to a run file: adds a recorder's events and the cost of runs, and deletes runs."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from weakincentives._base.display import shortened
from weakincentives.limits import Prices, TokenUsage
from weakincentives.runtime import (
    CallDecided,
    Compacted,
    Message,
    ModelCalled,
    PromptRendered,
    RunEnded,
    RunStatus,
    SectionsRanked,
    ToolInvoked,
    ledger_of,
)
from weakincentives.runtime.spi import INSTRUCTIONS, PROMPT_TEXT, HistoryBuilder, prices_for
from weakincentives.telemetry.continuation import continuation_file
from weakincentives.telemetry.payload import storable
from weakincentives.telemetry.reader import (
    BELOW,
    SILENT_SECONDS,
    EventReader,
    NoRunFileError,
    RunFileError,
    open_for_writing,
)
from weakincentives.telemetry.turns import read_history

logger = logging.getLogger("weakincentives.telemetry")

# How many characters of a question or an answer a list shows, and how many openings.
MAX_LINE, MAX_OPENED = 400, 60
# A prompt's user sections have headings; the question is the text below them.
_HEADING = re.compile(r"^#+ .*\n+", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Packed:
    """An event ready to be written, with the texts its payload refers to."""

    run_id: str
    session_id: str
    time: float
    event: object
    payload: str
    texts: Mapping[str, str]
    blobs: Mapping[str, bytes]


# The status of a run in the file, by that of its last end.
_STATUSES: Mapping[RunStatus, str] = {
    "completed": "ok",
    "waiting": "waiting",
    "halted": "halted",
    "restarted": "running",
    "failed": "failed",
    "recovered": "running",
    "stopped": "interrupted",
    "suspended": "interrupted",
}


@dataclass(slots=True)
class Tally:
    """The changes of one run's row by a batch of events: columns to set and amounts to add."""

    run_id: str
    session_id: str
    events: int
    turns: int
    updated: float = 0.0
    # Until when another recorder has the run, as after a takeover: only what happens here later reopens it.
    continued: float = 0.0
    columns: dict[str, Any] = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)
    texts: set[str] = field(default_factory=set)

    def count(self, event: object, at: float, open_runs: set[str], prices: Mapping[str, Prices] | None) -> None:
        """Count one event, and keep track of which runs are open."""
        self.events += 1
        self.updated = at
        if parent := getattr(event, "parent_run_id", ""):
            self.columns["parent_run_id"] = parent
        match event:
            case PromptRendered():
                self.columns.update(prompt=f"{event.prompt_ns}/{event.prompt_key}", prompt_name=event.prompt_name)
                self.columns.update(adapter=event.adapter, model=event.model, conversation_id=event.conversation_id)
                if not self.turns and (asked := _filled_text(event)):
                    self.columns["question"] = shortened(asked, MAX_LINE)
                self._mark_running(at, open_runs)
            case Message():
                if not self.turns and (asked := question_in(event)):
                    self.columns["question"] = shortened(asked, MAX_LINE)
                elif event.role == "assistant" and not event.tool_calls and not event.rebased:
                    # The whole answer, or what was said of it when the run was stopped.
                    self.columns["answer"] = shortened(event.text, MAX_LINE)
            case ModelCalled():
                self.turns += 1
                self.columns.update(prompt_name=event.prompt_name, adapter=event.adapter, model=event.model)
                self._spend(event.usage, prices_for(event.model, prices))
                self._mark_running(at, open_runs)
            case Compacted():
                self._spend(event.usage, prices_for(event.model, prices))
            case SectionsRanked():
                self._spend(event.usage, None)
                self._add(cost=event.cost)
            case CallDecided():
                self._mark_running(at, open_runs)
            case ToolInvoked():
                self._add(tool_calls=1, tool_failures=not event.success, disclosures=event.disclosure is not None)
            case RunEnded(status="suspended") if self.continued and self.run_id not in open_runs:
                # The run goes on in the process that took it over, or has ended there.
                pass
            case RunEnded():
                self._end(event, at, open_runs)

    @property
    def ended(self) -> bool:
        return self.columns.get("ended") is not None

    def _end(self, event: RunEnded, at: float, open_runs: set[str]) -> None:
        self._add(restarts=event.status == "restarted")
        if event.adapter:
            self.columns.update(prompt=f"{event.prompt_ns}/{event.prompt_key}", prompt_name=event.prompt_name)
            self.columns.update(adapter=event.adapter, model=event.model)
        status = _STATUSES[event.status]
        if status == "running":
            self._mark_running(at, open_runs)
            return
        self.columns.update(status=status, ended=at)
        if event.error:
            self.columns["error"] = f"{event.error}: {event.reason}"
        if event.status == "completed":
            self.columns["answer"] = shortened(event.text, MAX_LINE)
        open_runs.discard(self.run_id)

    def _mark_running(self, at: float, open_runs: set[str]) -> None:
        if at < self.continued:
            return
        self.columns.update(status="running", ended=None, error="")
        open_runs.add(self.run_id)

    def _spend(self, usage: TokenUsage, prices: Prices | None) -> None:
        self._add(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cached_tokens=usage.cached_tokens,
            reasoning_tokens=usage.reasoning_tokens,
        )
        if prices is not None:
            self._add(cost=prices.cost(usage))

    def _add(self, **amounts: float) -> None:
        for name, amount in amounts.items():
            self.sums[name] = self.sums.get(name, 0) + amount


class RunFile:
    """A run file that this process writes to; `open_runs` holds its runs that have not ended."""

    def __init__(self, path: Path, clean: Callable[[str], str], prices: Mapping[str, Prices] | None) -> None:
        self.recorder_id = os.urandom(8).hex()
        self.open_runs: set[str] = set()
        # The histories of runs that have not ended, with the number of their last event.
        self._histories: dict[str, tuple[int, HistoryBuilder]] = {}
        self._path = path
        self._clean = clean
        self._prices = prices
        self._connection = open_for_writing(path)
        self._opened = os.stat(path)
        try:
            self.transact(RunFile._register)
        except sqlite3.Error as error:
            self._connection.close()
            raise RunFileError(f"Cannot record to '{path}': {error}; record to a new file.") from error

    def transact(self, work: Callable[[RunFile], None]) -> None:
        """Do some work on this file, all or nothing."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            work(self)
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def beat(self, dropped: int) -> None:
        """Record that this recorder is alive."""
        self._connection.execute(
            "UPDATE recorders SET beat = ?, dropped = ? WHERE id = ?", (time.time(), dropped, self.recorder_id)
        )

    def write(self, batch: Iterable[Packed]) -> None:
        tallies: dict[str, Tally] = {}
        rows: list[tuple[Any, ...]] = []
        texts: dict[str, str] = {}
        blobs: dict[str, bytes] = {}
        for packed in batch:
            tally = tallies.get(packed.run_id)
            if tally is None:
                tally = tallies[packed.run_id] = self._tally(packed)
            tally.count(packed.event, packed.time, self.open_runs, self._prices)
            self._fold(packed, tally.events)
            tally.texts.update(packed.texts, packed.blobs)
            texts.update(packed.texts)
            blobs.update(packed.blobs)
            kind = type(packed.event).__name__
            rows.append(
                (packed.run_id, tally.events, packed.session_id, tally.turns, kind, packed.time, packed.payload)
            )
        insert = self._connection.executemany
        insert("INSERT OR IGNORE INTO texts (hash, text) VALUES (?, ?)", texts.items())
        insert("INSERT OR IGNORE INTO blobs (digest, data) VALUES (?, ?)", blobs.items())
        insert(
            "INSERT OR IGNORE INTO run_texts (run_id, hash) VALUES (?, ?)",
            [(run_id, key) for run_id, tally in tallies.items() for key in tally.texts],
        )
        insert(
            "INSERT INTO events (run_id, seq, session_id, turn, kind, time, payload) VALUES (?, ?, ?, ?, ?, ?, ?)",
            rows,
        )
        for tally in tallies.values():
            if tally.run_id:
                self._update(tally)
                if tally.ended:
                    self._sum_up(tally.run_id)

    def leave(self, dropped: int) -> None:
        """Write the status of runs that did not end, and that this recorder is done."""
        self._connection.executemany(
            "UPDATE runs SET status = 'interrupted', ended = updated "
            "WHERE run_id = ? AND recorder_id = ? AND status = 'running'",
            [(run_id, self.recorder_id) for run_id in self.open_runs],
        )
        for run_id in self.open_runs:
            self._sum_up(run_id)
        self.beat(dropped)
        self._connection.execute("UPDATE recorders SET closed = 1 WHERE id = ?", (self.recorder_id,))

    def _fold(self, packed: Packed, seq: int) -> None:
        """Add an event to the history of its run, if that has all the events before it."""
        known = (0, HistoryBuilder(packed.run_id)) if seq == 1 else self._histories.get(packed.run_id)
        if packed.run_id and known is not None and known[0] == seq - 1:
            # A history that fails is read again at the end, where the failure is logged.
            with suppress(Exception):
                known[1].add(packed.event, seq=seq, time=packed.time)
                self._histories[packed.run_id] = (seq, known[1])

    def _sum_up(self, run_id: str) -> None:
        """Write what depends on the whole history of a run, so that a list need not read it.

        The history is read if it lacks events: those of an earlier part of the run, of another recorder, or of a
        transaction that failed.
        """
        known = self._histories.pop(run_id, None)
        try:
            found = self._connection.execute("SELECT events FROM runs WHERE run_id = ?", (run_id,)).fetchone()
            if known is not None and found == (known[0],):
                history = known[1].build()
            else:
                history = read_history(EventReader(self._path, self._connection), run_id)
            full = ledger_of(history).full_prompt_tokens
        except Exception:
            logger.exception("The run '%s' could not be summed up.", run_id)
            return
        opened = [[step.turn, key] for step in history.openings() if step.kind == "open" for key in step.sections]
        self._connection.execute(
            "UPDATE runs SET full_prompt_tokens = ?, opened = ? WHERE run_id = ?",
            (full, json.dumps(opened[:MAX_OPENED]), run_id),
        )

    @property
    def is_gone(self) -> bool:
        """True if the file was deleted, moved or replaced since it was opened."""
        try:
            return not os.path.samestat(self._opened, os.stat(self._path))
        except OSError:
            return True

    def checkpoint(self) -> None:
        """Write everything to the file itself; SQLite does so on closing, except to a file that was moved."""
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").close()

    def close(self) -> None:
        self._connection.close()

    def _register(self) -> None:
        now = time.time()
        self._connection.execute(
            "INSERT INTO recorders (id, pid, host, started, beat) VALUES (?, ?, ?, ?, ?)",
            (self.recorder_id, os.getpid(), socket.gethostname(), now, now),
        )
        self._connection.execute(
            "UPDATE runs SET status = 'interrupted', ended = updated WHERE status = 'running' AND recorder_id IN "
            "(SELECT id FROM recorders WHERE beat < ?)",
            (now - SILENT_SECONDS,),
        )

    def _tally(self, packed: Packed) -> Tally:
        """The counts to continue from, whichever recorder wrote the run's row."""
        one = self._connection.execute
        found = one(
            "SELECT events, turns, recorder_id, status, updated FROM runs WHERE run_id = ?", (packed.run_id,)
        ).fetchone()
        if found is None:
            found = one("SELECT coalesce(max(seq), 0), 0 FROM events WHERE run_id = ?", (packed.run_id,)).fetchone()
            if packed.run_id:
                one(
                    "INSERT INTO runs (run_id, session_id, recorder_id, started, updated) VALUES (?, ?, ?, ?, ?)",
                    (packed.run_id, packed.session_id, self.recorder_id, packed.time, packed.time),
                )
        tally = Tally(packed.run_id, packed.session_id, events=found[0], turns=found[1])
        if found[2:] and found[2] != self.recorder_id:
            self.open_runs.discard(packed.run_id)
            tally.continued = inf if found[3] == "ok" else found[4]
        return tally

    def _update(self, tally: Tally) -> None:
        values = {"events": tally.events, "turns": tally.turns, "updated": tally.updated, **tally.columns}
        if values.get("status") == "running":
            values["recorder_id"] = self.recorder_id
        for name in ("error", "prompt", "prompt_name", "question", "answer"):
            if name in values:
                values[name] = storable(self._clean(values[name]))
        assignments = [f"{name} = :{name}" for name in values]
        assignments += [f"{name} = coalesce({name}, 0) + :{name}" for name in tally.sums]
        self._connection.execute(
            f"UPDATE runs SET {', '.join(assignments)} WHERE run_id = :run_id",
            {**values, **tally.sums, "run_id": tally.run_id},
        )


def question_in(event: object) -> str:
    """The text of a user's message; empty for other events."""
    if not isinstance(event, Message) or event.role != "user" or event.kind == INSTRUCTIONS:
        return ""
    return (_HEADING.sub("", event.text) if event.kind == PROMPT_TEXT else event.text).strip()


def _filled_text(event: PromptRendered) -> str:
    """The sections filled by params, without headings: the question of a run that has no user message."""
    filled = {section.path for section in event.sections if section.filled}
    texts = (event.text[span.start : span.end] for span in event.spans if span.path in filled)
    return "\n".join(_HEADING.sub("", text).strip() for text in texts)


def _pruned(
    now: float, older_than_days: float | None, keep: int | None, run_ids: Sequence[str]
) -> tuple[str, list[Any]]:
    """The query for the runs to delete, without those inside them, and its values."""
    silent = "recorder_id IN (SELECT id FROM recorders WHERE beat < ?)"
    conditions: list[str] = [f"(status <> 'running' OR {silent})"]
    values: list[Any] = [now - SILENT_SECONDS]
    if run_ids:
        conditions.append(f"run_id IN ({', '.join('?' * len(run_ids))})")
        values += list(run_ids)
    else:
        conditions.append("parent_run_id = ''")
    if older_than_days is not None:
        conditions.append("updated < ?")
        values.append(now - older_than_days * 86_400)
    if keep is not None:
        newest = "SELECT run_id FROM runs WHERE parent_run_id = '' ORDER BY started DESC, run_id LIMIT ?"
        conditions.append(f"run_id NOT IN ({newest})")
        values.append(keep)
    return f"SELECT run_id FROM runs WHERE {' AND '.join(conditions)}", values


def prune(
    path: str | os.PathLike[str],
    *,
    older_than_days: float | None = None,
    keep: int | None = None,
    run_ids: Sequence[str] = (),
) -> tuple[str, ...]:
    """Delete runs and return their ids: those named, those older than a number of days, or all but the newest few.

    Runs in progress are kept. A run goes with the runs inside it, which do not count. Texts that no other run uses are
    deleted too, and the disk space is freed.
    """
    file = Path(path)
    if not file.is_file():
        raise NoRunFileError(f"There is no run file at '{file}'.")
    if not run_ids and older_than_days is None and keep is None:
        return ()
    now = time.time()
    named, values = _pruned(now, older_than_days, keep, run_ids)
    connection = open_for_writing(file)
    try:
        connection.execute("BEGIN IMMEDIATE")
        inside = f"SELECT id FROM below WHERE root IN ({named})"
        found = connection.execute(f"WITH RECURSIVE {BELOW} {named} UNION {inside}", (*values, *values))
        gone = tuple(row[0] for row in found)
        for table in ("runs", "events", "run_texts"):
            connection.executemany(f"DELETE FROM {table} WHERE run_id = ?", [(run_id,) for run_id in gone])
        if older_than_days is not None:
            # Events of sessions before their first run belong to no run.
            connection.execute("DELETE FROM events WHERE run_id = '' AND time < ?", (now - older_than_days * 86_400,))
            connection.execute(
                "DELETE FROM run_texts WHERE run_id = '' AND NOT EXISTS (SELECT 1 FROM events WHERE run_id = '')"
            )
        connection.execute("DELETE FROM texts WHERE hash NOT IN (SELECT hash FROM run_texts)")
        connection.execute("DELETE FROM blobs WHERE digest NOT IN (SELECT hash FROM run_texts)")
        connection.execute(
            "DELETE FROM recorders WHERE beat < ? AND id NOT IN (SELECT recorder_id FROM runs)", (now - SILENT_SECONDS,)
        )
        connection.execute("COMMIT")
        if gone:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").close()
    except sqlite3.Error as error:
        raise RunFileError(f"'{file}' cannot be pruned: {error}.") from error
    finally:
        connection.close()
    for run_id in gone:
        for ending in (".json", ".command"):
            continuation_file(file, run_id).with_suffix(ending).unlink(missing_ok=True)
    return gone
