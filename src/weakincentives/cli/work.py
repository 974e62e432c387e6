"""Commands for durable runs: a worker that executes them, and commands to inspect and manage them."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from threading import Thread
from typing import TYPE_CHECKING, Any, get_args

from weakincentives._base.display import Table, shortened
from weakincentives._base.imports import require_extra
from weakincentives.cli.commands import SECONDS, default, duration, number
from weakincentives.cli.output import (
    UsageError,
    plural,
    print_error,
    print_json,
    print_line,
    print_prose,
    print_table,
    progress,
)
from weakincentives.cli.questions import styled_lines
from weakincentives.cli.recordings import recorder
from weakincentives.cli.runs import moment

if TYPE_CHECKING:
    from weakincentives.durable import (
        DurableConversations,
        DurableMainLoop,
        DurableQuestion,
        Reply,
        Work,
        WorkerHealth,
        WorkStatus,
        WorkStore,
    )

WORKER = """\
Work on the durable runs of a loop until SIGTERM or Ctrl-C, then hand unfinished runs back at their next step.

Any number of workers on any number of machines can share a postgresql:// database. The limits belong to the queue:
those of the worker that started last apply to all. With --health, GET /healthz answers 200 while the process works and
GET /readyz while it takes work: 503 when it starts, drains or has lost its database.
"""
WORK = """\
List, show, retry, cancel and prune durable runs, and answer their questions.

A run is named loop/key, as `wink work list` prints it. `attempts` counts how often it was started without making
progress. Times are local in tables, and UTC in JSON. Your program is not imported, so errors whose classes it defines
are shown as stored.
"""


def configure_worker(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("loop", metavar="module:variable", help="a DurableMainLoop or DurableConversations")
    parser.add_argument("--database-url", metavar="URL", help="a file or postgresql://... (default: the loop's own)")
    parser.add_argument(
        "--queue", action="append", metavar="NAME", help="a queue to serve; repeatable (default: the loop's name)"
    )
    parser.add_argument(
        "--concurrency", type=number(1), default=8, metavar="N", help="runs at a time per worker (default: 8)"
    )
    parser.add_argument(
        "--tenant-concurrency", type=number(1), metavar="N", help="runs at a time per tenant, across all workers"
    )
    parser.add_argument("--rate", type=_per_second, help="starts across all workers, such as 10/s, 300/m, 1000/h")
    parser.add_argument("--record", metavar="FILE", help="record the runs to this file [WINK_RECORD] (default: none)")
    parser.add_argument(
        "--health", type=_host_and_port, metavar="PORT", help="answer /healthz and /readyz over HTTP on this port"
    )
    parser.add_argument("--otel", action="store_true", help="report spans and metrics to OpenTelemetry's providers")
    parser.add_argument(
        "--drain",
        type=number(0, kind=float),
        default=30.0,
        metavar="SECONDS",
        help="wait for running steps (default: 30)",
    )


def run_worker(arguments: argparse.Namespace) -> int:
    import logging

    from weakincentives.cli.selection import resolve
    from weakincentives.durable import DurableConversations, DurableMainLoop, QueueLimits

    loop = resolve(arguments.loop, DurableMainLoop, DurableConversations)
    if not isinstance(loop, DurableMainLoop | DurableConversations):
        kinds = "a DurableMainLoop or DurableConversations"
        raise UsageError(f"{arguments.loop} must be {kinds}, got {type(loop).__name__}")
    loop.database_url = arguments.database_url or loop.database_url or default("database-url")
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(message)s")
    logging.getLogger("weakincentives.durable").setLevel(logging.INFO)
    limits = QueueLimits(arguments.concurrency, arguments.tenant_concurrency, arguments.rate)
    queues = tuple(arguments.queue or (loop.name,))
    file = arguments.record or default("record")
    recording = recorder(file) if file else None
    with (
        recording or nullcontext(),
        _reporting(loop) if arguments.otel else nullcontext(),
        _serving_health(arguments.health, loop.health),
        loop,
    ):
        name = loop.start(queues=queues, limits=limits)
        print_error(f"{name} works on {', '.join(queues)} (version {loop.version})")
        # Set after the start, which a signal must be able to end. Not an Event: a handler might find its lock held.
        signals: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: signals.append(number))
        while not signals:
            time.sleep(0.1)
        signal.signal(signals[0], signal.SIG_DFL)
        print_error("draining ...")
        if not loop.drain(arguments.drain):
            print_error("a step was still running; another worker will repeat it")
            # Its thread must end before another worker takes over, and only exiting the process ends a thread.
            os._exit(1)
    return 0


def configure_work(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb")
    parser.set_defaults(verb="list")
    listing = verbs.add_parser("list", help="list the newest runs, one per line")
    listing.add_argument("--status", help="only: queued, running, waiting, done, failed, cancelled or dead")
    listing.add_argument("--loop", metavar="NAME", help="only the runs of this loop")
    listing.add_argument("--limit", type=number(1), default=50, metavar="N", help="at most this many (default: 50)")
    for verb, purpose in (
        ("show", "show one run with its steps and questions"),
        ("retry", "run a failed, dead or cancelled run again; recorded steps are kept"),
        ("cancel", "stop a run at its next step"),
    ):
        verbs.add_parser(verb, help=purpose).add_argument("id", metavar="RUN", help="loop/key")
    asked = verbs.add_parser(
        "questions", help="list the tool calls that wait for a person, with what they would change"
    )
    asked.add_argument("id", nargs="?", metavar="RUN", help="loop/key (default: all runs)")
    answer = verbs.add_parser("approve", help="decide about a tool call, which `questions` lists; the run continues")
    answer.add_argument("id", metavar="RUN", help="loop/key")
    answer.add_argument("question", metavar="QUESTION", help="the id of the question: what is asked must still be that")
    instead = answer.add_mutually_exclusive_group()
    instead.add_argument("--deny", "--refuse", action="store_true", help="answer no; the call does not happen")
    instead.add_argument("--edit", type=_object, metavar="JSON", help="let the call happen with these arguments")
    instead.add_argument("--answer", metavar="TEXT", help="give the model this text in place of the call")
    answer.add_argument(
        "--note", default="", metavar="TEXT", help="with --deny, the reason; a handler that asked reads any note"
    )
    answer.add_argument("--by", default="", metavar="NAME", help="who decided")
    prune = verbs.add_parser("prune", help="delete finished runs with their steps; their keys are free again")
    prune.add_argument("--older-than", type=duration, required=True, metavar="TIME", help="such as 30d, 12h, 90m, 45s")
    prune.add_argument("--status", help="only: done, failed, cancelled or dead")
    prune.add_argument("--loop", metavar="NAME", help="only the runs of this loop")
    for each in verbs.choices.values():
        each.add_argument(
            "--database-url",
            metavar="URL",
            help="a file or postgresql://... (default: WINK_DATABASE_URL, .wink/durable.db)",
        )
        each.add_argument("--json", action="store_true", help="print JSON")


def run_work(arguments: argparse.Namespace) -> int:
    store = _open_store(arguments.database_url or default("database-url"))
    try:
        _VERBS[arguments.verb](store, arguments)
    finally:
        store.close()
    return 0


@contextmanager
def _reporting(loop: DurableMainLoop[Any, Any] | DurableConversations[Any]) -> Iterator[None]:
    """Report to the global providers, which `opentelemetry-instrument` configures from the environment."""
    from weakincentives.durable import measured
    from weakincentives.telemetry import instrument

    with instrument(), measured(loop):
        yield


@contextmanager
def _serving_health(address: tuple[str, int] | None, check: Callable[[], WorkerHealth]) -> Iterator[None]:
    """Serve /healthz and /readyz at this address, if one is given."""
    if address is None:
        yield
        return
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    host, port = address

    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            health = check()
            answers = {"/healthz": health.live, "/readyz": health.ready}
            well = answers.get(self.path)
            body = json.dumps(asdict(health)).encode() if well is not None else b'{"paths": ["/healthz", "/readyz"]}'
            self.send_response(404 if well is None else 200 if well else 503)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    try:
        server = Server(address, Handler)
    except OSError as error:
        raise UsageError(f"--health cannot listen on {host} port {port}: {error}") from None
    print_error(f"health on port {server.server_address[1]}")
    Thread(target=server.serve_forever, name="wink-health", daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _host_and_port(text: str) -> tuple[str, int]:
    found = re.fullmatch(r"(?:\[?([^\[\]]*?)\]?:)?(\d{1,5})", text)
    if not found or int(found[2]) > 65535:
        raise argparse.ArgumentTypeError(f"address must be like 8080 or 127.0.0.1:8080, got {text!r}")
    return found[1] or "0.0.0.0", int(found[2])


def _per_second(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)/([smh])", text)
    if not found or float(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"rate must be like 10/s, 300/m or 1000/h, got {text!r}")
    return float(found[1]) / SECONDS[found[2]]


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"arguments must be JSON such as '{{\"amount\": 5}}': {error}") from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"arguments must be a JSON object, got {shortened(text, 100)}")
    return found


def _open_store(url: str | None) -> WorkStore:
    require_extra("dbos", "durable", "wink work")
    from weakincentives.durable import NoSuchWorkError, WorkStore

    try:
        return WorkStore.open(url, create=False)
    except NoSuchWorkError as error:
        start = "start it with `wink worker module:loop`, or name another file or postgresql://... with --database-url"
        raise UsageError(f"{str(error).rstrip('.')}; {start}") from None


def _show_list(store: WorkStore, arguments: argparse.Namespace) -> None:
    from weakincentives.durable import WorkStatus

    _check_status(arguments.status, get_args(WorkStatus))
    found = store.list(status=arguments.status, loop=arguments.loop, limit=arguments.limit)
    alive = store.ownership.workers()
    if arguments.json:
        print_json([_facts(work, alive) for work in found])
        return
    rows = [(w.id, w.status, moment(w.updated_ms / 1000), str(w.attempts), _worker(w, alive)) for w in found]
    if not rows:
        progress("no runs")
        return
    heading = ("run", "status", "changed", "attempts", "worker")
    print_table(Table(heading, rows, ("attempts",), drop=("worker", "attempts", "changed")))
    versions = {work.version for work in found if work.status in ("queued", "running")}
    if versions and not alive:
        progress("no worker is alive; start one with `wink worker module:loop`")
    elif None not in alive.values():
        for version in sorted(versions - set(alive.values())):
            progress(f"no worker of version {version} is alive; its runs wait for one")


def _show_one(store: WorkStore, arguments: argparse.Namespace) -> None:
    work, steps, alive = store.find(arguments.id), store.steps(arguments.id), store.ownership.workers()
    questions = store.questions(work_id=arguments.id, waiting=False)
    failure, answer = store.failure(arguments.id), store.answer_text(arguments.id)
    decisions = store.archive.decisions(arguments.id)
    if arguments.json:
        listed = [{"number": s.number, "name": s.name, "milliseconds": s.milliseconds, "error": s.error} for s in steps]
        asked = [_question_facts(question) for question in questions]
        decided = [
            {"question_id": name, "decision": _answered(each, ""), "by": each.by, "note": _note(each)}
            for name, each in decisions.items()
        ]
        outcome = {"error": failure, "answer": answer, "steps": listed, "questions": asked, "decisions": decided}
        print_json(_facts(work, alive) | outcome)
        return
    for name in _NAMES:
        print_line(f"{name:9} {_worker(work, alive) if name == 'worker' else getattr(work, name)}")
    print_line(f"created   {moment(work.created_ms / 1000)}")
    print_line(f"changed   {moment(work.updated_ms / 1000)}")
    if failure:
        print_prose(f"error     {failure}", indent=" " * 10)
    if answer:
        print_prose(f"answer    {shortened(' '.join(answer.split()), 200)}", indent=" " * 10)
    for name, decision in decisions.items():
        print_line(f"{_answered(decision, ''):9} {_short_id(name)}{_details(decision)}")
    for question in questions:
        state = _answered(question.answer, work.status)
        print_line(f"{state:9} {_short_id(question.id)}{_details(question.answer)}")
        _print_question(question, " " * 10)
    for step in steps:
        error = f"  {step.error}" if step.error else ""
        print_line(f"{step.number:4}  {step.milliseconds:7} ms  {step.name}{error}")


def _show_questions(store: WorkStore, arguments: argparse.Namespace) -> None:
    ids = [arguments.id] if arguments.id else [work.id for work in store.list(status="waiting", limit=_MAX_WAITING)]
    found = [(store.find(each).id, question) for each in ids for question in store.questions(work_id=each)]
    found.sort(key=lambda asked: asked[1].asked_ms)
    if arguments.json:
        print_json([{"id": work_id} | _question_facts(question) for work_id, question in found])
        return
    for work_id, question in found:
        until = f", until {moment(question.expires_ms / 1000)}" if question.expires_ms else ""
        asked = f"asked {moment(question.asked_ms / 1000)}{until}"
        print_line(f"{work_id} {_short_id(question.id)}  {asked}", style="1")
        _print_question(question, "    ")
    if found:
        progress("decide with `wink work approve RUN QUESTION`, and --deny, --edit or --answer")
    else:
        progress("no call waits for a person")


def _print_question(question: DurableQuestion, indent: str) -> None:
    if question.asked is None:
        for line in question.text.split("\n"):
            print_line(f"{indent}{line}")
        return
    # A problem with an earlier decision comes before the question.
    for line in question.text.removesuffix(question.asked.text).rstrip().split("\n"):
        if line:
            print_line(f"{indent}{line}", style="31")
    print_line(f"{indent}{question.asked.words}")
    for part in question.asked.parts:
        for style, text in styled_lines(part):
            print_line(f"{indent}{text}".rstrip(), style=style)


def _short_id(question_id: str) -> str:
    """The id of a question as people type it: that of the call, and the beginning of the digest."""
    call_id, _, digest = question_id.rpartition(":")
    if not call_id:
        return question_id
    return f"{call_id}:{digest[:SHORT_DIGEST]}"


def _whole_id(store: WorkStore, work_id: str, given: str) -> str:
    """The id of the question that a short one names; any other stays as it is."""
    call_id, _, digest = given.rpartition(":")
    if call_id and SHORT_DIGEST <= len(digest) < DIGEST:
        for question in store.questions(work_id=work_id, waiting=False):
            if question.id.startswith(given):
                return question.id
    return given


def _question_facts(question: DurableQuestion) -> dict[str, Any]:
    from weakincentives.durable import Approval
    from weakincentives.telemetry import Redactor

    answer = question.answer
    yes_or_no = asdict(answer) if isinstance(answer, Approval) else {}
    return {
        "question_id": question.id,
        "call_id": question.call_id,
        "question": question.text,
        "needs": question.needs,
        "tool": question.tool,
        "arguments": Redactor().text(question.arguments),
        "parts": [] if question.asked is None else question.asked.data["parts"],
        "complete": question.asked is None or question.asked.complete,
        "asked": _time(question.asked_ms),
        "expires": _time(question.expires_ms),
        "answer": answer and yes_or_no | {"decision": _answered(answer, ""), "by": answer.by, "note": _note(answer)},
    }


def _answered(answer: Reply | None, status: str) -> str:
    from weakincentives.durable import Approval

    if isinstance(answer, Approval):
        return "approved" if answer.approved else "expired" if answer.expired else "denied"
    if answer is None:
        return "asked" if status in ("failed", "cancelled", "dead", "done") else "waits for"
    return {"Approve": "approved", "Deny": "denied", "Edit": "edited", "Answer": "answered"}[type(answer).__name__]


def _details(answer: Reply | None) -> str:
    """Who answered, and what they added."""
    by = f" by {answer.by}" if answer and answer.by else ""
    note = f": {_note(answer)}" if answer and _note(answer) else ""
    return f" ({f'{by}{note}'.lstrip(' :')})" if by or note else ""


def _note(answer: Reply) -> str:
    """The words that a person added, with secrets replaced."""
    from weakincentives.runtime import Answer, Approve, Deny, Edit
    from weakincentives.telemetry import Redactor

    match answer:
        case Approve():
            return ""
        case Deny():
            return Redactor().text(answer.reason)
        case Edit():
            return Redactor().text(json.dumps(dict(answer.arguments), ensure_ascii=False))
        case Answer():
            return Redactor().text(answer.text)
    return Redactor().text(answer.note)


def _retry(store: WorkStore, arguments: argparse.Namespace) -> None:
    _print_status(store, store.retry(arguments.id), arguments)


def _cancel(store: WorkStore, arguments: argparse.Namespace) -> None:
    _print_status(store, store.cancel(arguments.id), arguments)


def _approve(store: WorkStore, arguments: argparse.Namespace) -> None:
    from weakincentives.durable import Approval
    from weakincentives.runtime import Answer, Edit

    reply: Reply = Approval(not arguments.deny, arguments.note, arguments.by)
    if arguments.edit is not None or arguments.answer is not None:
        if arguments.note:
            raise UsageError("--note goes with --deny; of --edit and --answer, the model reads what you give there")
        edited = arguments.answer is None
        reply = Edit(arguments.edit, arguments.by) if edited else Answer(arguments.answer, arguments.by)
    store.answer(arguments.id, _whole_id(store, arguments.id, arguments.question), reply)
    _print_status(store, store.find(arguments.id), arguments)


def _prune(store: WorkStore, arguments: argparse.Namespace) -> None:
    finished: tuple[WorkStatus, ...] = ("done", "failed", "cancelled", "dead")
    _check_status(arguments.status, finished)
    statuses = (arguments.status,) if arguments.status else finished
    deleted = store.prune(older_than_seconds=arguments.older_than, statuses=statuses, loop=arguments.loop)
    if arguments.json:
        print_json({"deleted": deleted})
    else:
        print_line(f"deleted {plural(deleted, 'run')}")


_MAX_WAITING = 1_000_000
SHORT_DIGEST, DIGEST = 8, 32
_NAMES = ("id", "status", "version", "queue", "tenant", "worker", "attempts")
_VERBS = {
    "list": _show_list,
    "show": _show_one,
    "retry": _retry,
    "cancel": _cancel,
    "questions": _show_questions,
    "approve": _approve,
    "prune": _prune,
}


def _check_status(given: str | None, allowed: Sequence[str]) -> None:
    if given and given not in allowed:
        raise UsageError(f"--status must be one of {', '.join(allowed)}, got {given!r}")


def _print_status(store: WorkStore, work: Work, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json(_facts(work, store.ownership.workers()))
    else:
        print_line(f"{work.id} is {work.status}")


def _facts(work: Work, alive: Mapping[str, str | None]) -> dict[str, Any]:
    facts = {name: getattr(work, name) for name in _NAMES}
    facts["worker_alive"] = work.worker in alive if work.status == "running" else None
    return facts | {"created": _time(work.created_ms), "updated": _time(work.updated_ms)}


def _worker(work: Work, alive: Mapping[str, str | None]) -> str:
    return f"{work.worker} (gone)" if work.status == "running" and work.worker not in alive else work.worker


def _time(milliseconds: int | None) -> str | None:
    if milliseconds is None:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")
