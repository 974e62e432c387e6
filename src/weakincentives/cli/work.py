"""List, show, retry, cancel and prune durable runs, and answer their questions.

A run is named loop/key, as `wink work list` prints it. Your program is not imported, so errors whose classes it defines
are shown as stored.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, get_args

from weakincentives._display import Table
from weakincentives._imports import require_extra
from weakincentives.cli.commands import default
from weakincentives.cli.output import UsageError, plural, print_json, print_line, print_table, progress

if TYPE_CHECKING:
    from weakincentives.durable import Work, WorkStatus, WorkStore


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True)
    listing = verbs.add_parser("list", help="the newest runs, one per line")
    listing.add_argument("--status", help="only: queued, running, waiting, done, failed, cancelled or dead")
    listing.add_argument("--loop", help="only the runs of this loop")
    listing.add_argument("--limit", type=int, default=50, help="at most this many (default: 50)")
    for verb, purpose in (
        ("show", "one run with its steps and open questions"),
        ("retry", "run a failed, dead or cancelled run again; recorded steps are kept"),
        ("cancel", "stop a run at its next step"),
    ):
        verbs.add_parser(verb, help=purpose).add_argument("id", help="loop/key")
    answer = verbs.add_parser("approve", help="answer the question of a tool call, which `show` lists; the run goes on")
    answer.add_argument("id", help="loop/key")
    answer.add_argument("call_id", help="the call that waits")
    answer.add_argument("--refuse", action="store_true", help="answer no")
    answer.add_argument("--note", default="", help="a note for the tool and the model")
    answer.add_argument("--by", default="", help="who decided")
    prune = verbs.add_parser("prune", help="delete finished runs with their steps; their keys are free again")
    prune.add_argument("--older-than", type=seconds, required=True, metavar="TIME", help="such as 30d, 12h, 90m, 45s")
    prune.add_argument("--status", help="only: done, failed, cancelled or dead")
    prune.add_argument("--loop", help="only the runs of this loop")
    for each in verbs.choices.values():
        each.add_argument(
            "--database-url", help="a file or postgresql://... (default: WINK_DATABASE_URL, .wink/durable.db)"
        )
        each.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    store = open_store(arguments.database_url or default("database-url"))
    try:
        _VERBS[arguments.verb](store, arguments)
    finally:
        store.close()
    return 0


def open_store(url: str | None) -> WorkStore:
    require_extra("dbos", "durable", "wink work")
    from weakincentives.durable import NoSuchWorkError, WorkStore

    try:
        return WorkStore.open(url, create=False)
    except NoSuchWorkError as error:
        raise UsageError(f"{error} (--database-url)") from None


def show_list(store: WorkStore, arguments: argparse.Namespace) -> None:
    from weakincentives.durable import WorkStatus

    _check_status(arguments.status, get_args(WorkStatus))
    found = store.list(status=arguments.status, loop=arguments.loop, limit=arguments.limit)
    if arguments.json:
        print_json([_facts(work) for work in found])
    else:
        rows = [(w.id, w.status, _time(w.updated_ms) or "", str(w.attempts), w.worker) for w in found]
        if rows:
            heading = ("run", "status", "changed", "attempts", "worker")
            print_table(Table(heading, rows, ("attempts",), drop=("worker", "attempts", "changed")))
        else:
            progress("no runs")


def show_one(store: WorkStore, arguments: argparse.Namespace) -> None:
    work, steps = store.find(arguments.id), store.steps(arguments.id)
    questions = store.questions(work_id=arguments.id)
    failure = store.failure(arguments.id)
    if arguments.json:
        listed = [{"number": s.number, "name": s.name, "milliseconds": s.milliseconds, "error": s.error} for s in steps]
        asked = [{"call_id": q.call_id, "question": q.text, "expires": _time(q.expires_ms)} for q in questions]
        print_json(_facts(work) | {"error": failure, "steps": listed, "questions": asked})
        return
    for name, value in _facts(work).items():
        print_line(f"{name:9} {value}")
    if failure:
        print_line(f"error     {failure}")
    for question in questions:
        print_line(f"waits for {question.call_id}: {question.text}")
    for step in steps:
        error = f"  {step.error}" if step.error else ""
        print_line(f"{step.number:4}  {step.milliseconds:7} ms  {step.name}{error}")


def retry(store: WorkStore, arguments: argparse.Namespace) -> None:
    _print_status(store.retry(arguments.id), arguments)


def cancel(store: WorkStore, arguments: argparse.Namespace) -> None:
    _print_status(store.cancel(arguments.id), arguments)


def approve(store: WorkStore, arguments: argparse.Namespace) -> None:
    from weakincentives.durable import Approval

    store.answer(arguments.id, arguments.call_id, Approval(not arguments.refuse, arguments.note, arguments.by))
    _print_status(store.find(arguments.id), arguments)


def prune(store: WorkStore, arguments: argparse.Namespace) -> None:
    finished: tuple[WorkStatus, ...] = ("done", "failed", "cancelled", "dead")
    _check_status(arguments.status, finished)
    statuses = (arguments.status,) if arguments.status else finished
    deleted = store.prune(older_than_seconds=arguments.older_than, statuses=statuses, loop=arguments.loop)
    if arguments.json:
        print_json({"deleted": deleted})
    else:
        print_line(f"deleted {plural(deleted, 'run')}")


_VERBS = {"list": show_list, "show": show_one, "retry": retry, "cancel": cancel, "approve": approve, "prune": prune}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if not found:
        raise argparse.ArgumentTypeError(f"time must be like 30d, 12h, 90m or 45s, got {text!r}")
    return float(found[1]) * _SECONDS[found[2]]


def _check_status(given: str | None, allowed: Sequence[str]) -> None:
    if given and given not in allowed:
        raise UsageError(f"--status must be one of {', '.join(allowed)}, got {given!r}")


def _print_status(work: Work, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json(_facts(work))
    else:
        print_line(f"{work.id} is {work.status}")


def _facts(work: Work) -> dict[str, Any]:
    names = ("id", "status", "version", "queue", "tenant", "worker", "attempts")
    times = {"created": _time(work.created_ms), "updated": _time(work.updated_ms)}
    return {name: getattr(work, name) for name in names} | times


def _time(milliseconds: int | None) -> str | None:
    if milliseconds is None:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
