"""Reads recorded runs: lists, events page by page, and each turn as the model saw it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from shlex import quote
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from weakincentives.errors import WinkError
from weakincentives.limits import TokenUsage
from weakincentives.prompt import Tokenizer
from weakincentives.redaction import Redactor
from weakincentives.runtime import CallDecided, Ledger, PendingCall, RunEnded, RunHistory, ToolInvoked, ledger_of
from weakincentives.serde import Upgrades
from weakincentives.telemetry.continuation import continuing_command
from weakincentives.telemetry.reader import (
    BELOW,
    SILENT_SECONDS,
    EventReader,
    RecordedEvent,
    RunFileError,
)
from weakincentives.telemetry.turns import Turn, build_turn, message_ids, pending_turn, read_history, requests
from weakincentives.telemetry.values import asked_question

PAGE = 500


class RunNotFoundError(WinkError, LookupError):
    """The file has no such run or turn, or the prefix of an id matches several runs."""


@dataclass(frozen=True, slots=True)
class ChildRuns:
    """The runs inside a run, at any depth, and what they used; `cost` is that of those whose price is known."""

    runs: int = 0  #: the number of runs
    usage: TokenUsage = field(default_factory=TokenUsage)  #: their tokens
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One recorded run. `cost` is in US dollars, None if a price is unknown; times are seconds since 1970.

    `question` and `answer` are the first characters of each. `full_prompt_tokens` is what the run would have sent with
    everything open, None until it ends; `opened` lists the turns and keys of the sections it opened. `tags` are those
    of the session and the run, and `overrides`, the tag of the stored override, if one was applied. A run that a tool
    call of another made has the `parent_run_id` of that one; `children` is what runs inside this one used, which is no
    part of `usage` and `cost`.
    """

    run_id: str  #: the run
    session_id: str  #: its session
    prompt: str  #: namespace and key of the template
    prompt_name: str  #: the name of the prompt
    adapter: str  #: the adapter's name
    model: str  #: the model's name
    status: str  #: `running`, or how it ended
    started: float  #: when it began
    updated: float  #: when its last event was recorded
    ended: float | None  #: when it ended; None until then
    events: int  #: the number of events
    turns: int  #: the number of model calls
    tool_calls: int  #: the number of tool calls
    tool_failures: int  #: calls that failed
    disclosures: int  #: requests to open sections
    restarts: int  #: how often it began again to open sections
    usage: TokenUsage
    cost: float | None
    error: str  #: why it failed
    conversation_id: str = ""  #: the conversation that it is part of
    question: str = ""
    answer: str = ""
    full_prompt_tokens: int | None = None
    opened: tuple[tuple[int, str], ...] = ()
    parent_run_id: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    children: ChildRuns = field(default_factory=ChildRuns)

    @property
    def saved(self) -> int | None:
        """Input tokens saved compared with everything open; negative if disclosure cost more."""
        return None if self.full_prompt_tokens is None else self.full_prompt_tokens - self.usage.input_tokens

    @property
    def total_usage(self) -> TokenUsage:
        """Its own usage and that of its children."""
        return self.usage + self.children.usage

    @property
    def total_cost(self) -> float | None:
        """Its own cost and that of its children, as far as they are known."""
        known = [cost for cost in (self.cost, self.children.cost) if cost is not None]
        return sum(known) if known else None

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

        `filters` are `status`, `prompt`, `conversation`, `newest`, only the last run of each conversation, `tags`, a
        mapping that the run's tags must contain, and `parent`. Runs inside another are left out unless it is the id of
        the other, or None for all runs; a `search` finds a run by what is inside it. `order` is a key of `ORDERS`, with
        a minus sign for descending order.
        """
        where, values = self._filter(search, **filters)
        column = ORDERS.get(order.lstrip("-"))
        if column is None:
            raise ValueError(f"order must be one of {', '.join(ORDERS)}, got {order!r}")
        rows = self.salvage(
            f"WITH RECURSIVE {BELOW} SELECT {_COLUMNS} FROM {_RUNS} WHERE {where} ORDER BY {column} "
            f"{'DESC' if order.startswith('-') else 'ASC'} NULLS LAST, started DESC, run_id LIMIT ? OFFSET ?",
            (time.time() - SILENT_SECONDS, *values, limit, offset),
        )
        if not rows and self.problems:
            rows = self._salvaged_runs(**filters)[offset : offset + limit]
        return tuple(self._completed(_summary(row)) for row in rows)

    def children(self, run_id: str) -> tuple[RunSummary, ...]:
        """The runs that tool calls of a run made, oldest first; the id of each is `run/call`."""
        return self.list_runs(-1, order="started", parent=self.run(run_id).run_id)

    def inside(self, run_id: str) -> tuple[str, ...]:
        """The ids of the runs inside a run, at any depth."""
        sql = f"WITH RECURSIVE {BELOW} SELECT id FROM below JOIN runs ON run_id = id WHERE root = ? ORDER BY started"
        return tuple(child for (child,) in self.salvage(sql, (run_id,)))

    def _completed(self, run: RunSummary) -> RunSummary:
        """The run with its tags, which stand in the event that begins it, and with what runs inside it used."""
        tags = {str(name): str(text) for _, name, text in self.salvage(_TAGS.format("= ?"), (run.run_id,) * 2)}
        rows = self.salvage(_INSIDE, (run.run_id,))
        many, *used, cost = rows[0] if rows else (0, None)
        children = ChildRuns(many, TokenUsage(*used), cost) if many else ChildRuns()
        return replace(run, tags=tags, children=children) if tags or many else run

    def _salvaged_runs(
        self, status: str = "", prompt: str = "", parent: str | None = "", **others: Any
    ) -> list[tuple[Any, ...]]:
        """The runs of a damaged file, as far as they can be read without an index."""
        rows = self.salvage(f"SELECT {_COLUMNS} FROM runs NOT INDEXED")
        if not rows:
            raise RunFileError(f"'{self.path}' is damaged: {'; '.join(self.problems)}.")
        wanted = [
            row
            for row in rows
            if row[6] == (status or row[6]) and (not prompt or prompt in row[2:4]) and parent in (None, row[-1])
        ]
        return sorted(wanted, key=lambda row: _summary(row).started, reverse=True)

    def count_runs(self, search: str = "", **filters: Any) -> int:
        where, values = self._filter(search, **filters)
        counted = f"WITH RECURSIVE {BELOW} SELECT count(*) FROM {_RUNS} WHERE {where}"
        found = self.salvage(counted, (time.time() - SILENT_SECONDS, *values))
        return int(found[0][0]) if found else len(self._salvaged_runs(**filters))

    def groups(
        self, by: Literal["all", "prompt", "conversation"] = "all", search: str = "", **filters: Any
    ) -> list[dict[str, Any]]:
        """Totals over groups of runs, the newest group first; `filters` are those of `list_runs`.

        `compared_tokens` is the input of the runs that count towards `full_prompt_tokens`, those that have ended,
        `priced` counts the runs whose cost is known, and `statuses` names those that occur. Tokens, turns and cost
        include those of runs inside them.
        """
        where, values = self._filter(search, **filters)
        first = "(SELECT question FROM runs WHERE conversation_id = r.conversation_id ORDER BY started LIMIT 1)"
        sums = {
            "key": {"all": "''", "prompt": "prompt", "conversation": "conversation_id"}[by],
            "runs": "count(*)",
            "answered": "sum(status = 'ok')",
            "failed": "sum(status = 'failed')",
            "statuses": "group_concat(DISTINCT status)",
            **{
                name: f"sum(r.{name}) + coalesce(sum(inside.{name}), 0)"
                for name in ("turns", "input_tokens", "cached_tokens")
            },
            "cost": "iif(count(r.cost) + count(inside.cost), total(r.cost) + total(inside.cost), NULL)",
            "priced": "count(r.cost)",
            "compared_tokens": "sum(iif(full_prompt_tokens IS NULL, 0, r.input_tokens))",
            "full_prompt_tokens": "coalesce(sum(full_prompt_tokens), 0)",
            "updated": "max(updated)",
            "prompt_name": "min(prompt_name)",
            "question": first if by == "conversation" else "''",
        }
        rows = self.salvage(
            f"WITH RECURSIVE {BELOW}, {_SUMS} SELECT {', '.join(sums.values())} FROM {_RUNS} "
            f"LEFT JOIN inside ON root = r.run_id WHERE {where} GROUP BY {sums['key']} "
            f"ORDER BY max(started) DESC LIMIT {PAGE}",
            (time.time() - SILENT_SECONDS, *values),
        )
        # A damaged number may be infinite, which JSON cannot express.
        finite = ([None if value in (math.inf, -math.inf) else value for value in row] for row in rows)
        return [dict(zip(sums, row, strict=True)) for row in finite]

    def run(self, run_id: str) -> RunSummary:
        """One run, by its id or an unambiguous prefix of it; runs inside it share the prefix, but do not count."""
        end = f"{run_id}\U0010ffff"
        rows = self.salvage(
            f"SELECT {_COLUMNS} FROM {_RUNS} WHERE run_id >= ? AND run_id < ? "
            "AND (run_id = ? OR parent_run_id < ? OR parent_run_id >= ?) ORDER BY run_id LIMIT 2",
            (time.time() - SILENT_SECONDS, run_id, end, run_id, run_id, end),
        )
        if not rows and self.problems:
            found = [row for row in self._salvaged_runs(parent=None) if str(row[0]).startswith(run_id)]
            rows = sorted((row for row in found if not str(row[-1]).startswith(run_id)), key=lambda row: str(row[0]))
        if not run_id or not rows:
            raise RunNotFoundError(f"There is no run {run_id!r} in '{self.path}'; `wink runs list` shows those it has.")
        if len(rows) > 1 and rows[0][0] != run_id:
            some = ", ".join(repr(row[0]) for row in rows)
            raise RunNotFoundError(f"Several runs in '{self.path}' begin with {run_id!r}: {some}; give more of the id.")
        return self._completed(_summary(rows[0]))

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

    def open_calls(self, run_id: str) -> list[PendingCall]:
        """The calls for which the run waits."""
        found: dict[str, PendingCall] = {}
        earlier: set[str] = set()
        if self.run(run_id).status != "waiting":
            return []
        for recorded in self.of_kinds(run_id, ["PendingCall", "CallDecided", "ToolInvoked", "RunEnded"]):
            match event := recorded.event:
                case RunEnded():
                    earlier = set(found)
                case CallDecided() | ToolInvoked():
                    for each in [each for each in found if f"{each}/".startswith(f"{event.call_id}/")]:
                        del found[each]
                case PendingCall():
                    # Those of a run inside a call are asked again together, without what was decided inside.
                    above = f"{event.call_id.rpartition('/')[0]}/"
                    for each in [each for each in found if each in earlier and "/" in each and each.startswith(above)]:
                        del found[each]
                    found[event.call_id] = event
        return list(found.values())

    def continuation(self, run_id: str) -> str:
        """How to continue a run that waits, as a command, or as Python if a program has its session."""
        parent = self.run(run_id).parent_run_id
        if parent and self.salvage("SELECT 1 FROM runs WHERE run_id = ?", (parent,)):
            return self.continuation(parent)
        calls = self.open_calls(run_id)
        if not calls:
            return ""
        if "/" in run_id:
            return f"wink work questions {quote(run_id)}"
        try:
            return Redactor().text(continuing_command(self.path, run_id))
        except OSError:
            return f"run(prompt, adapter, session=session, decisions={{{asked_question(calls[0]).id!r}: Approve()}})"

    def requests(self, run_id: str, stop: float = float("inf")) -> Iterator[tuple[int, int, list[int]]]:
        """Each model call: its event number, how many messages of the previous request it keeps, and which it adds."""
        return requests(self, run_id, stop)

    def message_ids(self, run_id: str, *, own: bool = True) -> list[int]:
        """The messages of the runs that a run continues, followed by its own unless `own` is False."""
        return message_ids(self, run_id, own=own)

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
        newest: bool = False,
        tags: Mapping[str, str] | None = None,
        parent: str | None = "",
    ) -> tuple[str, list[Any]]:
        where, values = ["1"], list[Any]()
        if parent is not None:
            orphan = "parent_run_id NOT IN (SELECT run_id FROM runs)"
            where.append("parent_run_id = ?" if parent else f"(parent_run_id = ? OR {orphan})")
            values.append(parent)
        for name, text in (tags or {}).items():
            where.append(f"(?, ?) IN (SELECT key, value FROM ({_TAGS.format('= r.run_id')}))")
            values += [name, text]
        if conversation:
            where.append("conversation_id = ?")
            values.append(conversation)
        if newest:
            where.append(
                "(conversation_id = '' OR NOT EXISTS (SELECT 1 FROM runs AS later WHERE later.conversation_id = "
                "r.conversation_id AND later.started > r.started AND later.parent_run_id = ''))"
            )
        if status:
            where.append("status = ?")
            values.append(status)
        if prompt:
            where.append("(prompt = ? OR prompt_name = ?)")
            values += [prompt, prompt]
        if search:
            like = like_pattern(search)
            columns = ("run_id", "prompt", "prompt_name", "model", "adapter", "status", "error", "session_id")
            anywhere = [f"r.{column} LIKE ? ESCAPE '\\'" for column in columns]
            inside = "" if parent is None else " UNION ALL SELECT id FROM below WHERE root = r.run_id"
            whose = f"run_id IN (SELECT r.run_id{inside})"
            anywhere.append(f"EXISTS (SELECT 1 FROM events WHERE {whose} AND payload LIKE ? ESCAPE '\\')")
            anywhere.append(
                f"EXISTS (SELECT 1 FROM run_texts JOIN texts USING (hash) WHERE {whose} AND text LIKE ? ESCAPE '\\')"
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
_NAMES = [field.name for field in fields(RunSummary) if field.name not in ("tags", "children")]
_COLUMNS = ", ".join(_USAGE if name == "usage" else name for name in _NAMES)
# A run's tags, from the events that begin it; `{0}` is the condition on their run.
_TAGS = (
    "SELECT run_id, tag.key, tag.value "
    "FROM events, json_each(iif(json_valid(payload), payload, 'null'), '$.v.tags') AS tag "
    "WHERE kind = 'PromptRendered' AND run_id {0} "
    "UNION ALL SELECT run_id, 'overrides', payload ->> '$.v.overrides_tag' FROM events "
    "WHERE kind = 'PromptRendered' AND run_id {0} AND json_valid(payload) AND payload ->> '$.v.overrides_tag' <> ''"
)
_SUMMED = ("turns", *_USAGE.split(", "), "cost")
_SUMS = (
    f"inside AS (SELECT root, count(*) AS runs, {', '.join(f'sum({name}) AS {name}' for name in _SUMMED)} "
    "FROM below JOIN runs ON run_id = id GROUP BY root)"
)
_INSIDE = f"WITH RECURSIVE {BELOW}, {_SUMS} SELECT runs, {_USAGE}, cost FROM inside WHERE root = ?"
# A run was killed if its recorder went silent without closing.
_STATUS = "CASE WHEN status = 'running' AND beat < ? THEN 'interrupted' ELSE status END AS status"
_OTHERWISE = {"status": _STATUS, "started": "runs.started"}
_RUNS = (
    f"(SELECT {', '.join(_OTHERWISE.get(name, name) for name in _COLUMNS.split(', '))} "
    "FROM runs JOIN recorders ON recorders.id = recorder_id) AS r"
)
# What replaces a column value of the wrong type, in column order.
_DEFAULTS: tuple[Any, ...] = (*[""] * 7, 0.0, 0.0, None, *[0] * 10, None, *[""] * 4, None, "", "")


def _summary(row: Sequence[Any]) -> RunSummary:
    values = [_of_type(value, default) for value, default in zip(row, _DEFAULTS, strict=True)]
    *rest, full, opened, parent = values[16:]
    usage = TokenUsage(*rest[:4])
    whole = None if full is None else int(full)
    return RunSummary(*(*values[:16], usage, *rest[4:], whole, _openings(opened), parent))


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
