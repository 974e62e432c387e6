"""Reads recorded runs: lists, events page by page, and each turn as the model saw it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from shlex import quote
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from weakincentives.errors import WinkError
from weakincentives.limits import TokenUsage
from weakincentives.prompt import Tokenizer
from weakincentives.runtime import Ledger, RunHistory, ledger_of
from weakincentives.serde import Upgrades
from weakincentives.telemetry.reader import (
    SILENT_SECONDS,
    EventReader,
    RecordedEvent,
    RunFileError,
    continuation_file,
    marks,
)
from weakincentives.telemetry.redaction import Redactor
from weakincentives.telemetry.turns import Turn, build_turn, continued_runs, pending_turn, read_history, requests
from weakincentives.telemetry.values import plain

PAGE = 500


class RunNotFoundError(WinkError):
    """The file has no such run or turn, or the prefix of an id matches several runs."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One recorded run. `cost` is in US dollars, None if a price is unknown; times are seconds since 1970.

    `question` and `answer` are the first characters of each. `full_prompt_tokens` is what the run would have sent with
    everything open, None until it ends; `opened` lists the turns and keys of the sections it opened. `tags` are those
    of the session and the run, and `overrides`, the tag of the stored override, if one was applied.
    """

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
    conversation_id: str = ""
    question: str = ""
    answer: str = ""
    full_prompt_tokens: int | None = None
    opened: tuple[tuple[int, str], ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def saved(self) -> int | None:
        """Input tokens saved compared with everything open; negative if disclosure cost more."""
        return None if self.full_prompt_tokens is None else self.full_prompt_tokens - self.usage.input_tokens

    @property
    def duration(self) -> float:
        return (self.updated if self.ended is None else self.ended) - self.started


ORDERS = {
    "started": "started",
    "prompt": "prompt",
    "question": "question",
    "status": "status",
    "model": "model",
    "turns": "turns",
    "opened": "disclosures",
    "sent": "input_tokens",
    "saved": "1.0 * (full_prompt_tokens - input_tokens) / nullif(full_prompt_tokens, 0)",
    "cost": "cost",
    "time": "coalesce(ended, updated) - started",
}


class RunStore(EventReader):
    """A run file open for reading; it may still be written to."""

    def __enter__(self) -> RunStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def list_runs(
        self, limit: int = 50, offset: int = 0, search: str = "", *, order: str = "-started", **filters: Any
    ) -> tuple[RunSummary, ...]:
        """Runs, newest first; `search` looks in ids, prompts, models, errors and everything that was said.

        `filters` are `status`, `prompt`, `conversation` and `tags`, a mapping that the run's tags must contain. `order`
        is a key of `ORDERS`, with a minus sign for descending order.
        """
        where, values = self._filter(search, **filters)
        column = ORDERS.get(order.lstrip("-"))
        if column is None:
            raise ValueError(f"order must be one of {', '.join(ORDERS)}, got {order!r}")
        rows = self.salvage(
            f"SELECT {_COLUMNS} FROM {_RUNS} WHERE {where} ORDER BY {column} "
            f"{'DESC' if order.startswith('-') else 'ASC'} NULLS LAST, started DESC, run_id LIMIT ? OFFSET ?",
            (time.time() - SILENT_SECONDS, *values, limit, offset),
        )
        if not rows and self.problems:
            rows = self._salvaged_runs(**filters)[offset : offset + limit]
        return self._tagged(map(_summary, rows))

    def _tagged(self, runs: Iterable[RunSummary]) -> tuple[RunSummary, ...]:
        """The runs with their tags, which stand in the event that begins each."""
        found = tuple(runs)
        rows = [row for run in found for row in self.salvage(_TAGS.format("= ?"), (run.run_id,) * 2)]
        tags: dict[str, dict[str, str]] = {}
        for run_id, name, text in rows:
            tags.setdefault(run_id, {})[str(name)] = str(text)
        return tuple(replace(run, tags=tags[run.run_id]) if run.run_id in tags else run for run in found)

    def _salvaged_runs(self, status: str = "", prompt: str = "", **others: Any) -> list[tuple[Any, ...]]:
        """The runs of a damaged file, as far as they can be read without an index."""
        rows = self.salvage(f"SELECT {_COLUMNS} FROM runs NOT INDEXED")
        if not rows:
            raise RunFileError(f"'{self.path}' is damaged: {'; '.join(self.problems)}.")
        wanted = [row for row in rows if row[6] == (status or row[6]) and (not prompt or prompt in row[2:4])]
        return sorted(wanted, key=lambda row: _summary(row).started, reverse=True)

    def count_runs(self, search: str = "", **filters: Any) -> int:
        where, values = self._filter(search, **filters)
        found = self.salvage(f"SELECT count(*) FROM {_RUNS} WHERE {where}", (time.time() - SILENT_SECONDS, *values))
        return int(found[0][0]) if found else len(self._salvaged_runs(**filters))

    def groups(
        self, by: Literal["all", "prompt", "conversation"] = "all", search: str = "", **filters: Any
    ) -> list[dict[str, Any]]:
        """Totals over groups of runs, the newest group first; `filters` are those of `list_runs`.

        `compared_tokens` is the input of the runs that count towards `full_prompt_tokens`, those that have ended, and
        `priced` counts the runs whose cost is known.
        """
        where, values = self._filter(search, **filters)
        first = "(SELECT question FROM runs WHERE conversation_id = r.conversation_id ORDER BY started LIMIT 1)"
        sums = {
            "key": {"all": "''", "prompt": "prompt", "conversation": "conversation_id"}[by],
            "runs": "count(*)",
            "answered": "sum(status = 'ok')",
            "failed": "sum(status = 'failed')",
            **{name: f"sum({name})" for name in ("turns", "input_tokens", "cached_tokens", "cost")},
            "priced": "count(cost)",
            "compared_tokens": "sum(iif(full_prompt_tokens IS NULL, 0, input_tokens))",
            "full_prompt_tokens": "coalesce(sum(full_prompt_tokens), 0)",
            "updated": "max(updated)",
            "prompt_name": "min(prompt_name)",
            "question": first if by == "conversation" else "''",
        }
        rows = self.salvage(
            f"SELECT {', '.join(sums.values())} FROM {_RUNS} WHERE {where} GROUP BY {sums['key']} "
            f"ORDER BY max(started) DESC LIMIT {PAGE}",
            (time.time() - SILENT_SECONDS, *values),
        )
        # A damaged number may be infinite, which JSON cannot express.
        finite = ([None if value in (math.inf, -math.inf) else value for value in row] for row in rows)
        return [dict(zip(sums, row, strict=True)) for row in finite]

    def run(self, run_id: str) -> RunSummary:
        """One run, by its id or an unambiguous prefix of it."""
        rows = self.salvage(
            f"SELECT {_COLUMNS} FROM {_RUNS} WHERE run_id >= ? AND run_id < ? ORDER BY run_id LIMIT 2",
            (time.time() - SILENT_SECONDS, run_id, f"{run_id}\U0010ffff"),
        )
        if not rows and self.problems:
            rows = [row for row in self._salvaged_runs() if str(row[0]).startswith(run_id)]
        if not run_id or not rows:
            raise RunNotFoundError(f"There is no run {run_id!r} in '{self.path}'; `wink runs list` shows those it has.")
        if len(rows) > 1 and rows[0][0] != run_id:
            some = ", ".join(repr(row[0]) for row in rows)
            raise RunNotFoundError(f"Several runs in '{self.path}' begin with {run_id!r}: {some}; give more of the id.")
        return self._tagged([_summary(rows[0])])[0]

    def events(
        self, run_id: str, after: int = 0, limit: int = PAGE, *, kinds: Sequence[str] = ()
    ) -> tuple[RecordedEvent, ...]:
        """The events of a run after the one numbered `after`, oldest first."""
        if kinds:
            return self.of_kinds(run_id, kinds, after, limit=limit)
        return self.events_where("run_id = ? AND seq > ?", (run_id, after), limit=limit)

    def all_events(self, run_id: str, *, kinds: Sequence[str] = ()) -> Iterator[RecordedEvent]:
        """Every event of a run, read page by page."""
        after = 0
        while page := self.events(run_id, after, kinds=kinds):
            yield from page
            after = page[-1].seq

    def session_events(self, session_id: str, after: int = 0, limit: int = PAGE) -> tuple[RecordedEvent, ...]:
        """The events of a session before its first run."""
        return self.events_where("run_id = '' AND session_id = ? AND seq > ?", (session_id, after), limit=limit)

    def turn(self, run_id: str, n: int, *, with_messages: bool = True) -> Turn:
        """Everything about the n-th model call, counted from 1 over all restarts of the run."""
        run = self.run(run_id)
        if not 1 <= n <= run.turns:
            has = f"turns 1 to {run.turns}" if run.turns else "no turns"
            raise RunNotFoundError(f"Run '{run.run_id}' has {has}, so there is no turn {n}.")
        return build_turn(self, run.run_id, n, with_messages=with_messages)

    def pending_turn(self, run_id: str) -> tuple[Turn, list[int]] | None:
        """The unanswered request after the last turn, if there is one, and the ids of its messages."""
        run = self.run(run_id)
        return None if run.status in ("ok", "waiting", "halted") else pending_turn(self, run.run_id, run.turns + 1)

    def open_calls(self, run_id: str) -> list[dict[str, Any]]:
        """The calls for which the run waits, as plain data: `call_id`, `tool`, `arguments`, `text`, `needs`."""
        found: dict[str, dict[str, Any]] = {}
        if self.run(run_id).status == "waiting":
            for recorded in self.of_kinds(run_id, ["PendingCall", "CallDecided"]):
                if isinstance(fields := plain(recorded.event), dict) and "call_id" in fields:
                    found.pop(fields["call_id"], None)
                    if recorded.kind == "PendingCall":
                        found[fields["call_id"]] = fields
        return list(found.values())

    def continuation(self, run_id: str) -> str:
        """How to continue a run that waits, as a command, or as Python if a program has its session."""
        calls = self.open_calls(run_id)
        if not calls:
            return ""
        if "/" in run_id:
            return f"wink work questions {quote(run_id)}"
        try:
            return Redactor().text(continuation_file(self.path, run_id).with_suffix(".command").read_text("utf-8"))
        except OSError:
            return f"run(prompt, adapter, session=session, decisions={{{calls[0]['call_id']!r}: Approve()}})"

    def requests(self, run_id: str, stop: float = float("inf")) -> Iterator[tuple[int, int, list[int]]]:
        """Each model call: its event number, how many messages of the previous request it keeps, and which it adds."""
        return requests(self, run_id, stop)

    def message_ids(self, run_id: str, *, own: bool = True) -> list[int]:
        """The messages of the runs that a run continues, followed by its own unless `own` is False."""
        runs = continued_runs(self, run_id)[: None if own else -1]
        rows = self.query(
            f"SELECT id FROM events WHERE run_id IN ({marks(runs)}) AND kind = 'Message' ORDER BY id", runs
        )
        return [number for (number,) in rows]

    def history(self, run_id: str) -> RunHistory:
        """The history of a run: its sections and why they were shown, tools, openings, and rollbacks."""
        return read_history(self, self.run(run_id).run_id)

    def ledger(self, run_id: str, *, tokenizer: Tokenizer | None = None) -> Ledger:
        """Tokens sent, cached and lost, compared with the full prompt; `rows[n - 1]` is turn n."""
        return ledger_of(self.history(run_id), tokenizer=tokenizer)

    def last_event_id(self) -> int:
        """A number that grows with every event in the file, for a live view to poll."""
        return int(self.query("SELECT coalesce(max(id), 0) FROM events")[0][0])

    def _filter(
        self,
        search: str,
        status: str = "",
        prompt: str = "",
        conversation: str = "",
        tags: Mapping[str, str] | None = None,
    ) -> tuple[str, list[Any]]:
        where, values = ["1"], list[Any]()
        for name, text in (tags or {}).items():
            where.append(f"(?, ?) IN (SELECT key, value FROM ({_TAGS.format('= r.run_id')}))")
            values += [name, text]
        if conversation:
            where.append("conversation_id = ?")
            values.append(conversation)
        if status:
            where.append("status = ?")
            values.append(status)
        if prompt:
            where.append("(prompt = ? OR prompt_name = ?)")
            values += [prompt, prompt]
        if search:
            like = like_pattern(search)
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


def read_run(
    path: str | os.PathLike[str], run_id: str, *, upgrades: Upgrades = MappingProxyType({})
) -> tuple[Any, ...]:
    """The events of a recorded run, equal to those its session dispatched.

    Classes are looked up among those this program has imported; a value of any other class, or of one that has changed
    and has no entry in `upgrades`, is an `UnknownType`.
    """
    with RunStore(path, upgrades=upgrades) as store:
        return tuple(recorded.event for recorded in store.all_events(store.run(run_id).run_id))


_USAGE = "input_tokens, output_tokens, cached_tokens, reasoning_tokens"
_NAMES = [field.name for field in fields(RunSummary) if field.name != "tags"]
_COLUMNS = ", ".join(_USAGE if name == "usage" else name for name in _NAMES)
# A run's tags, from the events that begin it; `{0}` is the condition on their run.
_TAGS = (
    "SELECT run_id, tag.key, tag.value "
    "FROM events, json_each(iif(json_valid(payload), payload, 'null'), '$.v.tags') AS tag "
    "WHERE kind = 'PromptRendered' AND run_id {0} "
    "UNION ALL SELECT run_id, 'overrides', payload ->> '$.v.overrides_tag' FROM events "
    "WHERE kind = 'PromptRendered' AND run_id {0} AND json_valid(payload) AND payload ->> '$.v.overrides_tag' <> ''"
)
# A run was killed if its recorder went silent without closing.
_STATUS = "CASE WHEN status = 'running' AND beat < ? THEN 'interrupted' ELSE status END AS status"
_OTHERWISE = {"status": _STATUS, "started": "runs.started"}
_RUNS = (
    f"(SELECT {', '.join(_OTHERWISE.get(name, name) for name in _COLUMNS.split(', '))} "
    "FROM runs JOIN recorders ON recorders.id = recorder_id) AS r"
)
# What replaces a column value of the wrong type, in column order.
_DEFAULTS: tuple[Any, ...] = (*[""] * 7, 0.0, 0.0, None, *[0] * 10, None, *[""] * 4, None, "")


def _summary(row: Sequence[Any]) -> RunSummary:
    values = [_of_type(value, default) for value, default in zip(row, _DEFAULTS, strict=True)]
    *rest, full, opened = values[16:]
    usage = TokenUsage(*rest[:4])
    whole = None if full is None else int(full)
    return RunSummary(*(*values[:16], usage, *rest[4:], whole, _openings(opened)))


def _openings(text: str) -> tuple[tuple[int, str], ...]:
    try:
        return tuple(msgspec.json.decode(text, type=list[tuple[int, str]]))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ()


def _of_type(value: Any, default: Any) -> Any:
    if isinstance(default, str | int) and not isinstance(default, float):
        return value if type(value) is type(default) else default
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return float(value) if is_number else default


def like_pattern(text: str) -> str:
    """The LIKE pattern, for ESCAPE '\\', that finds a text anywhere."""
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"
