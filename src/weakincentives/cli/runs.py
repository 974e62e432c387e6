"""List, show, export and prune recorded runs; alone it lists them.

A run is named by its id or the beginning of it; by default `show` takes the newest. `export` writes one line of JSON
per event, for DuckDB, jq or pandas.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weakincentives._base.display import Table, shortened
from weakincentives.cli.commands import SECONDS, duration, number, tag
from weakincentives.cli.output import (
    UsageError,
    dollars,
    plural,
    print_json,
    print_line,
    print_prose,
    print_table,
    printable,
    progress,
    report_damage,
    terminal_width,
)
from weakincentives.cli.recordings import FILE_HELP, RUNS, check_target, file_and_runs, named_run, question, runs_file

if TYPE_CHECKING:
    from weakincentives.runtime import RunHistory, ToolCall
    from weakincentives.telemetry import RunStore, RunSummary, Turn

MAX_QUESTION = 2000
STATUS_STYLES = {"running": "36", "ok": "32", "waiting": "33", "failed": "31", "halted": "33", "interrupted": "33"}


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb")
    listing = verbs.add_parser("list", help="list the newest runs, one per line")
    show = verbs.add_parser("show", help="show one run: question, turns, openings, tool calls, answer, tokens")
    export = verbs.add_parser("export", help="write every event as one line of JSON")
    prune = verbs.add_parser("prune", help="delete runs, and texts that no other run has")
    listing.add_argument("names", nargs="*", metavar="RUNS.DB", help=FILE_HELP)
    for verb, which in ((show, " (default: the newest)"), (export, "s (default: all)"), (prune, "s to delete")):
        purpose = f"the run{which}; a run file may come first [WINK_RECORD] (default: {RUNS})"
        verb.add_argument("names", nargs="*", metavar="RUN", help=purpose)
    listing.add_argument("--limit", type=number(1), default=50, metavar="N", help="at most this many (default: 50)")
    listing.add_argument("--offset", type=number(0), default=0, metavar="N", help="skip this many of the newest")
    listing.add_argument("--search", default="", metavar="TEXT", help="only runs that contain this text")
    listing.add_argument(
        "--where",
        action="append",
        default=[],
        type=tag,
        metavar="KEY=VALUE",
        help="only runs with this tag; overrides=TAG finds those with this override; repeatable",
    )
    listing.add_argument("--status", default="", choices=list(STATUS_STYLES), help="only runs with this status")
    show.add_argument(
        "--turn", type=number(1), metavar="N", help="show one turn: its sections, request, reply and tool calls"
    )
    export.add_argument("--jsonl", action="store_true", help="one JSON object per line (the default and only format)")
    export.add_argument("--output", "-o", metavar="FILE", help="write to a file instead of stdout")
    prune.add_argument(
        "--older-than", type=duration, metavar="TIME", help="delete runs older than this, such as 30d or 12h"
    )
    prune.add_argument("--keep", type=number(0), metavar="N", help="delete all runs but the newest N")
    for verb in (listing, show, prune):
        verb.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(verb="list")


def run(arguments: argparse.Namespace) -> int:
    from weakincentives.telemetry import RunStore

    if arguments.verb == "list":
        file, names = runs_file(*arguments.names[:1]), arguments.names[1:]
    else:
        file, names = file_and_runs(arguments.names)
    if arguments.verb == "prune":
        return prune_runs(file, names, arguments)
    if len(names) > {"list": 0, "show": 1}.get(arguments.verb, len(names)):
        misplaced = Path(names[-1]).is_file() or names[-1].endswith(".db")
        first = "; the run file comes before the run" if misplaced else ""
        raise UsageError(f"wink runs {arguments.verb} does not take {names[-1]!r}{first}")
    with RunStore(file) as store:
        _VERBS[arguments.verb](store, names, arguments)
        return report_damage(file, store.problems)


def list_runs(store: RunStore, names: list[str], arguments: argparse.Namespace) -> None:
    filters = {"status": arguments.status, "tags": dict(arguments.where)}
    found = store.list_runs(arguments.limit, arguments.offset, arguments.search, **filters)
    if arguments.json:
        print_json([facts(run) for run in found])
        return
    # Scripts get what never becomes ambiguous.
    short = terminal_width() is not None
    length = shortest_unique([run.run_id for run in found]) if short else None
    tagged, nested = any(run.tags for run in found), any(run.children.runs for run in found)
    rows = [
        (
            run.run_id[:length],
            run.status,
            moment(run.started, "%d %b %H:%M") if short else moment(run.started),
            run.prompt,
            run.model,
            f"{run.turns}",
            f"{run.total_usage.input_tokens:,}",
            f"{run.total_usage.output_tokens:,}",
            "" if run.total_cost is None else dollars(run.total_cost),
            f"{run.duration:.1f} s",
            *([f"{run.children.runs or ''}"] if nested else []),
            *([" ".join(f"{name}={text}" for name, text in run.tags.items())] if tagged else []),
            " ".join(run.question.split()) or f"({run.error or run.prompt})",
        )
        for run in found
    ]
    heading = ["run", "status", "started", "prompt", "model", "turns", "input", "output", "cost", "time", "question"]
    heading[-1:-1] = [*(["children"] if nested else []), *(["tags"] if tagged else [])]
    if not rows:
        progress("no runs")
        return
    if all(run.total_cost is None for run in found):
        at = heading.index("cost")
        heading, rows = [*heading[:at], *heading[at + 1 :]], [(*row[:at], *row[at + 1 :]) for row in rows]
    right = ("turns", "input", "output", "cost", "time", "children")
    # The cost, or where no price is known the input, stays longest of the numbers.
    drop = ("output", "model", "time", "prompt", "children", "tags", "turns", "input", "cost", "started", "question")
    print_table(Table(heading, rows, right, drop=drop, flexible="question"), styles=STATUS_STYLES)


def show_run(store: RunStore, names: list[str], arguments: argparse.Namespace) -> None:
    run = named_run(store, *names)
    if arguments.turn is not None:
        turn = store.turn(run.run_id, arguments.turn)
        if not arguments.json:
            print_prose(f"{run.run_id}  turn {arguments.turn} of {run.turns}  {run.prompt} on {run.model}", style="1")
            print_line()
        show_turn(turn, as_json=arguments.json)
        return
    history = store.history(run.run_id)
    if arguments.json:
        from weakincentives.telemetry import asked_question

        pending = [asked_question(call).data for call in store.open_calls(run.run_id)]
        waiting = {"pending": pending, "continue": store.continuation(run.run_id)}
        inside = {"child_list": [facts(child) for child in store.children(run.run_id)]}
        print_json(facts(run) | history_facts(history, failures(store, history)) | waiting | inside)
    else:
        print_run(store, run, history)


def failures(store: RunStore, history: RunHistory) -> list[dict[str, Any]]:
    """The tool calls and evaluations that failed, in order."""
    seqs = [use.seq for turn in history.turns for use in turn.uses if not use.success]
    found = [*store.numbered(history.run_id, seqs), *store.of_kinds(history.run_id, ["RunEnded"])]
    rows = []
    for recorded in sorted(found, key=lambda recorded: recorded.seq):
        event = recorded.event
        if recorded.kind == "ToolInvoked" and hasattr(event, "result"):
            rows.append({"turn": recorded.turn, "source": "tool", "name": event.name, "message": event.result.message})
        elif getattr(event, "error", ""):
            rows.append({"turn": recorded.turn, "source": "run", "name": event.error, "message": event.reason})
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
    tag = history.renders[-1].overrides_tag if history.renders else ""
    undone = {"undone_from": history.undone_from}
    return {"overrides_tag": tag, "turn_list": turns, "disclosure": disclosure, "errors": errors} | undone


def print_run(store: RunStore, run: RunSummary, history: RunHistory) -> None:
    """Print the story of a run: the question, what each turn opened and called, the answer, and the usage."""
    from weakincentives.cli.progress import print_labelled, print_spent

    heading = f"{run.run_id}  {run.status}  {run.prompt} on {run.adapter} {run.model}  {moment(run.started)}"
    print_prose(printable(heading, one_line=True), style=STATUS_STYLES.get(run.status, ""))
    print_line()
    print_steps(store, run)
    if how := store.continuation(run.run_id):
        print_labelled("go on", how, "2")
    cut_off = run.status == "interrupted" and store.pending_turn(run.run_id) is not None
    loaded = {section.path for section in history.now.sections if section.visibility.value == "full"}
    states = history.renders[-1].sections if history.renders else ()
    unloaded = any(state.unloaded and state.path not in loaded for state in states)
    # The run's own figures, as `wink runs list` shows them: some of its events may be damaged.
    print_spent(
        run.usage.input_tokens,
        run.turns,
        run.duration,
        full=run.full_prompt_tokens,
        cost=run.cost,
        answered=run.status == "ok",
        cut_off=cut_off,
        unloaded=unloaded,
    )
    if run.children.runs:
        inside, cost = run.children, run.children.cost
        used = f"{inside.usage.input_tokens:,} tokens in {plural(inside.runs, 'run')} inside it"
        print_labelled("", used if cost is None else f"{used}, {dollars(cost)}")


def print_steps(store: RunStore, run: RunSummary, indent: str = "") -> None:
    """Print the steps of a run, and below each call those of the run it made."""
    from weakincentives.cli.progress import print_labelled, print_story
    from weakincentives.runtime import ModelCalled, RunEnded, ToolInvoked

    asked = question(store, run.run_id) or run.question
    if asked:
        print_labelled("asked", shortened(asked, MAX_QUESTION), "1", indent)
    children = {child.run_id: child for child in (store.children(run.run_id) if run.children.runs else ())}

    def print_child(run_id: str) -> None:
        if child := children.pop(run_id, None):
            print_labelled("run", f"{child.run_id}  {child.status}", STATUS_STYLES.get(child.status, ""), f"{indent}  ")
            print_steps(store, child, f"{indent}  ")

    model, failed = "", False
    for recorded in store.all_events(run.run_id):
        event = recorded.event
        if isinstance(event, ModelCalled):
            if failed or model not in ("", event.model):
                print_labelled("model", f"{event.model} goes on", indent=indent)
            model, failed = event.model, False
        failed = failed or (isinstance(event, RunEnded) and bool(event.error))
        print_story(event, asked=asked, indent=indent)
        if isinstance(event, ToolInvoked):
            print_child(f"{run.run_id}/{event.call_id}")
    # Those whose calls have no result yet.
    for run_id in list(children):
        print_child(run_id)


def show_turn(turn: Turn, *, as_json: bool) -> None:
    from weakincentives.runtime.spi import SHOWS
    from weakincentives.telemetry import plain

    if as_json:
        print_json(plain(turn))
        return
    rows = [
        (
            "  " * (len(section.path) - 1) + section.key,
            SHOWS[section.seen],
            "the model" if section.read and section.call_id else section.decided_by,
            f"{section.shown_tokens:,}",
            f"{section.hidden_tokens:,}",
            ", ".join(section.tools_offered),
        )
        for section in turn.sections
    ]
    heading = ("section", "shows", "because", "shown", "hidden", "tools")
    print_table(Table(heading, rows, ("shown", "hidden"), drop=("because", "hidden"), flexible="tools"))
    for message in turn.messages:
        print_block(
            f"--- {message.role} {message.name or message.kind}",
            message.text or ", ".join(message.tools),
            message.tool_calls,
        )
    if turn.reply is not None:
        print_block("=== reply", turn.reply.text, turn.reply.tool_calls)
    for event in turn.tool_calls:
        print_block(f"=== {event.name} {'worked' if event.success else 'failed'}", event.text)
    for recorded in turn.events:
        if recorded.kind == "HostedToolInvoked":
            used = plain(recorded.event)
            print_block(f"=== {used['name']} was run by the provider", json.dumps(used["output"], indent=2))


def print_block(heading: str, text: str, calls: Sequence[ToolCall] = ()) -> None:
    lines = [
        printable(heading.rstrip(), one_line=True),
        *filter(None, [text]),
        *(f"{call.name}({call.arguments})" for call in calls),
    ]
    print_prose("\n" + "\n".join(lines))


def export_runs(store: RunStore, names: list[str], arguments: argparse.Namespace) -> None:
    from weakincentives.telemetry import plain

    named = [named_run(store, name).run_id for name in names]
    wanted = list(dict.fromkeys(run_id for name in named for run_id in (name, *store.inside(name))))
    if not wanted:
        wanted = [row[0] for row in store.query("SELECT run_id FROM runs ORDER BY started, run_id")]
    check_target(store.path, arguments.output)
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


def prune_runs(file: str, names: list[str], arguments: argparse.Namespace) -> int:
    from weakincentives.telemetry import RunStore, prune

    if not names and arguments.older_than is None and arguments.keep is None:
        raise UsageError("name what to delete: RUN, --older-than TIME or --keep N")
    with RunStore(file) as store:
        named = [named_run(store, name) for name in names]
    days = arguments.older_than and arguments.older_than / SECONDS["d"]
    gone = prune(file, older_than_days=days, keep=arguments.keep, run_ids=[run.run_id for run in named])
    for run in named:
        if run.run_id not in gone and run.status == "running":
            progress(f"{run.run_id} is running; it can be deleted once it has ended")
    if arguments.json:
        print_json({"deleted": list(gone)})
    else:
        print_line(f"deleted {plural(len(gone), 'run')}")
    return 0


def facts(run: RunSummary) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "parent_run_id": run.parent_run_id,
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
        "question": run.question,
        "answer": run.answer,
        "tags": dict(run.tags),
        "children": {
            "runs": run.children.runs,
            "input_tokens": run.children.usage.input_tokens,
            "output_tokens": run.children.usage.output_tokens,
            "cached_tokens": run.children.usage.cached_tokens,
            "cost": run.children.cost,
        },
    }


def shortest_unique(ids: Sequence[str]) -> int:
    """How many letters tell these ids apart: at least six, and all where one contains another, as those of children."""
    if any("/" in each for each in ids):
        return max(map(len, ids))
    return next((size for size in range(6, 64) if len({each[:size] for each in ids}) == len(set(ids))), 64)


def moment(seconds: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).astimezone().strftime(form)
    except (OverflowError, OSError, ValueError):
        return "-"


_VERBS = {"list": list_runs, "show": show_run, "export": export_runs}
