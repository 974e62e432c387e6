"""List, show, export and prune recorded runs.

A run is named by its id or the beginning of it; by default `show` takes the newest. `export` writes one line of JSON
per event, for DuckDB, jq or pandas.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from weakincentives.cli.output import (
    UsageError,
    plural,
    print_json,
    print_line,
    printable,
    progress,
    report_damage,
    table,
)

if TYPE_CHECKING:
    from weakincentives.runtime import RunHistory, ToolCall
    from weakincentives.telemetry import RunStore, RunSummary, Turn

# What a section shows, by where the model has its content from.
SHOWS = {"prompt": "full", "conversation": "read", "summary": "summary", "never": "hidden"}
STATUSES = ("running", "ok", "failed", "halted", "interrupted")


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True)
    listing = verbs.add_parser("list", help="the newest runs, one per line")
    show = verbs.add_parser("show", help="one run: its turns, openings, tool calls and tokens")
    export = verbs.add_parser("export", help="every event as one line of JSON")
    prune = verbs.add_parser("prune", help="delete runs, and texts that no other run has")
    for verb in (listing, show, export, prune):
        verb.add_argument("file", metavar="RUNS.DB", help="the run file, as passed to record() or --record")
    listing.add_argument("--limit", type=int, default=50, help="at most this many (default: 50)")
    listing.add_argument("--offset", type=int, default=0, help="skip this many of the newest")
    listing.add_argument("--search", default="", metavar="TEXT", help="only runs that contain this text")
    listing.add_argument("--status", default="", choices=STATUSES, help="only runs with this status")
    show.add_argument("run", nargs="?", default="", metavar="RUN", help="the run (default: the newest)")
    show.add_argument("--turn", type=int, metavar="N", help="one turn: its sections, request, reply and tool calls")
    export.add_argument("runs", nargs="*", metavar="RUN", help="the runs (default: all)")
    export.add_argument("--jsonl", action="store_true", help="one JSON object per line (the default and only format)")
    export.add_argument("--output", "-o", metavar="FILE", help="write to a file instead of stdout")
    prune.add_argument("runs", nargs="*", metavar="RUN", help="the runs to delete")
    prune.add_argument("--older-than", type=float, metavar="DAYS", help="delete runs older than this many days")
    prune.add_argument("--keep", type=int, metavar="N", help="delete all runs but the newest N")
    for verb in (listing, show, prune):
        verb.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    if arguments.verb == "prune":
        return prune_runs(arguments)
    from weakincentives.telemetry import RunStore

    with RunStore(arguments.file) as store:
        _VERBS[arguments.verb](store, arguments)
        return report_damage(arguments.file, store.problems)


def list_runs(store: RunStore, arguments: argparse.Namespace) -> int:
    found = store.list_runs(arguments.limit, arguments.offset, arguments.search, status=arguments.status)
    if arguments.json:
        print_json([facts(run) for run in found])
        return 0
    rows = [
        (
            run.run_id,
            run.status,
            moment(run.started),
            run.prompt,
            run.model,
            f"{run.turns}",
            f"{run.usage.input_tokens:,}",
            f"{run.usage.output_tokens:,}",
            money(run.cost),
        )
        for run in found
    ]
    heading = ("run", "status", "started", "prompt", "model", "turns", "input", "output", "cost")
    if rows:
        print_line(table(heading, rows, right=(5, 6, 7, 8)))
    else:
        progress("no runs")
    return 0


def show_run(store: RunStore, arguments: argparse.Namespace) -> int:
    run = chosen(store, arguments.run)
    if arguments.turn is not None:
        return show_turn(store.turn(run.run_id, arguments.turn), as_json=arguments.json)
    history = store.history(run.run_id)
    errors = failures(store, history)
    if arguments.json:
        print_json(facts(run) | history_facts(history, errors))
    else:
        print_history(run, history, errors)
    return 0


def failures(store: RunStore, history: RunHistory) -> list[dict[str, Any]]:
    """The tool calls and evaluations that failed, in their order."""
    seqs = [use.seq for turn in history.turns for use in turn.uses if not use.success]
    found = [*store.numbered(history.run_id, seqs), *store.of_kinds(history.run_id, ["EvaluationFailed"])]
    rows = []
    for recorded in sorted(found, key=lambda recorded: recorded.seq):
        event = recorded.event
        if recorded.kind == "ToolInvoked" and hasattr(event, "result"):
            rows.append({"turn": recorded.turn, "source": "tool", "name": event.name, "message": event.result.message})
        elif hasattr(event, "error"):
            rows.append({"turn": recorded.turn, "source": "run", "name": event.error, "message": event.message})
    return rows


def history_facts(history: RunHistory, errors: list[dict[str, Any]]) -> dict[str, Any]:
    from weakincentives.runtime import ledger_of

    turns = [
        {
            "turn": row.turn,
            "attempt": row.attempt,
            "sent": row.sent_tokens,
            "cached": row.cached_tokens,
            "full_prompt": row.full_prompt_tokens,
            "cache_lost": row.cache_lost_tokens,
            "tools": ", ".join(use.name for use in turn.uses),
        }
        for row, turn in zip(ledger_of(history).rows, history.turns, strict=True)
    ]
    disclosure = [
        {
            "turn": step.turn,
            "action": step.tool or step.kind,
            "section": section,
            "reason": step.reason,
            "route": step.route,
            "tools": list(step.tools),
        }
        for step in history.steps
        for section in step.sections
    ]
    return {"turn_list": turns, "disclosure": disclosure, "errors": errors}


def print_history(run: RunSummary, history: RunHistory, errors: list[dict[str, Any]]) -> None:
    from weakincentives.runtime import ledger_of

    ledger = ledger_of(history)
    heading = f"{run.run_id}  {run.status}  {run.prompt}  {run.adapter} {run.model}  {run.duration:.1f} s"
    print_line(printable(heading, one_line=True))
    if run.error:
        print_line(f"error: {run.error}")
    rows = [
        (
            f"{row.turn}",
            f"{row.attempt}",
            f"{row.sent_tokens:,}",
            f"{row.cached_tokens:,}",
            "-" if row.full_prompt_tokens is None else f"{row.full_prompt_tokens:,}",
            ", ".join(use.name for use in turn.uses) or "answers",
        )
        for row, turn in zip(ledger.rows, history.turns, strict=True)
    ]
    print_line("\n" + table(("turn", "attempt", "sent", "cached", "full prompt", "does"), rows, right=(0, 1, 2, 3, 4)))
    print_line(
        f"\nsent {ledger.sent_tokens:,} tokens; the full prompt would have sent {ledger.full_prompt_tokens:,} "
        f"({'saved' if ledger.saved >= 0 else 'lost'} {abs(ledger.saved):,})"
    )
    for step in history.steps:
        extras = [f"by {step.route}" if step.route else "", ", ".join(step.tools)]
        extras += [f"because: {step.reason}"] if step.reason else []
        for section in step.sections:
            line = f"turn {step.turn}: {step.tool or step.kind} {section}  {'  '.join(filter(None, extras))}"
            print_line(printable(line.rstrip(), one_line=True))
    for error in errors:
        print_line(f"turn {error['turn']}: {error['source']} {error['name']} failed: {error['message']}")


def show_turn(turn: Turn, *, as_json: bool) -> int:
    from weakincentives.telemetry import plain

    if as_json:
        print_json(plain(turn))
        return 0
    rows = [
        (
            "  " * (len(section.path) - 1) + section.key,
            SHOWS[section.seen],
            section.decided_by,
            f"{section.shown_tokens:,}",
            f"{section.hidden_tokens:,}",
            ", ".join(section.tools_offered),
        )
        for section in turn.sections
    ]
    print_line(table(("section", "shows", "because", "shown", "hidden", "tools"), rows, right=(3, 4)))
    for message in turn.messages:
        print_block(f"--- {message.role} {message.name}", message.text or ", ".join(message.tools), message.tool_calls)
    if turn.reply is not None:
        print_block("=== reply", turn.reply.text, turn.reply.tool_calls)
    for invoked in turn.tool_calls:
        print_block(f"=== {invoked.name} {'worked' if invoked.success else 'failed'}", invoked.result.message)
    for recorded in turn.events:
        if recorded.kind == "HostedToolInvoked":
            used = plain(recorded.event)
            print_block(f"=== {used['name']} was run by the provider", json.dumps(used["output"], indent=2))
    return 0


def print_block(heading: str, text: str, calls: Sequence[ToolCall] = ()) -> None:
    lines = [
        printable(heading.rstrip(), one_line=True),
        *filter(None, [text]),
        *(f"{call.name}({call.arguments})" for call in calls),
    ]
    print_line("\n" + "\n".join(lines))


def export_runs(store: RunStore, arguments: argparse.Namespace) -> int:
    from weakincentives.telemetry import plain

    wanted = [store.run(name).run_id for name in arguments.runs]
    if not wanted:
        wanted = [row[0] for row in store.query("SELECT run_id FROM runs ORDER BY started, run_id")]
    try:
        target = open(arguments.output, "w", encoding="utf-8") if arguments.output else sys.stdout  # noqa: SIM115
    except OSError as error:
        raise UsageError(f"cannot write {arguments.output}: {error.strerror}") from error
    try:
        for run_id in wanted:
            for recorded in store.all_events(run_id):
                line = {
                    "run_id": run_id,
                    "seq": recorded.seq,
                    "turn": recorded.turn,
                    "time": recorded.time,
                    "kind": recorded.kind,
                    "event": plain(recorded.event),
                }
                # JSON escapes keep lone surrogates and control characters out of the file.
                target.write(json.dumps(line) + "\n")
    finally:
        if target is not sys.stdout:
            target.close()
            progress(f"{plural(len(wanted), 'run')} in {arguments.output}")
    return 0


def prune_runs(arguments: argparse.Namespace) -> int:
    from weakincentives.telemetry import RunStore, prune

    if not arguments.runs and arguments.older_than is None and arguments.keep is None:
        raise UsageError("name what to delete: RUN, --older-than DAYS or --keep N")
    with RunStore(arguments.file) as store:
        named = [store.run(name).run_id for name in arguments.runs]
    gone = prune(arguments.file, older_than_days=arguments.older_than, keep=arguments.keep, run_ids=named)
    if arguments.json:
        print_json({"deleted": list(gone)})
    else:
        print_line(f"deleted {plural(len(gone), 'run')}")
    return 0


def chosen(store: RunStore, name: str) -> RunSummary:
    if name:
        return store.run(name)
    newest = store.list_runs(1)
    if not newest:
        raise UsageError(f"there are no runs in {store.path}")
    return newest[0]


def facts(run: RunSummary) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "status": run.status,
        "prompt": run.prompt,
        "adapter": run.adapter,
        "model": run.model,
        "session_id": run.session_id,
        "started": run.started,
        "ended": run.ended,
        "duration": round(run.duration, 3),
        "events": run.events,
        "turns": run.turns,
        "tool_calls": run.tool_calls,
        "tool_failures": run.tool_failures,
        "disclosures": run.disclosures,
        "restarts": run.restarts,
        "input_tokens": run.usage.input_tokens,
        "output_tokens": run.usage.output_tokens,
        "cached_tokens": run.usage.cached_tokens,
        "cost": run.cost,
        "error": run.error,
    }


def moment(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, OSError, ValueError):
        return "-"


def money(cost: float | None) -> str:
    return "" if cost is None else f"${cost:.4f}"


_VERBS = {"list": list_runs, "show": show_run, "export": export_runs}
