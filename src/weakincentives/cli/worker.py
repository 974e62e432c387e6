"""Work on the durable runs of a loop until SIGTERM or Ctrl-C; then hand back what runs at its next step.

Start as many workers on as many machines as you like against one postgresql:// database. The limits belong to the
queue: those of the worker that started last hold for all of them.
"""

from __future__ import annotations

import argparse
import logging
import re
import signal
import sys
import time

from weakincentives.cli.output import UsageError, print_error
from weakincentives.cli.settings import default
from weakincentives.cli.target import resolve

_PERIODS = {"s": 1, "m": 60, "h": 3600}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("loop", help="the DurableMainLoop, as module:variable")
    parser.add_argument("--database-url", help="a file or postgresql://... (default: the loop's own)")
    parser.add_argument("--queue", action="append", help="a queue to serve, repeatable (default: the loop's name)")
    parser.add_argument("--concurrency", type=int, default=8, help="runs at a time per worker (default: 8)")
    parser.add_argument("--tenant-concurrency", type=int, help="runs at a time per tenant, over all workers")
    parser.add_argument("--rate", type=per_second, help="starts per time over all workers: 10/s, 300/m, 1000/h")
    parser.add_argument("--drain", type=float, default=30.0, help="seconds to wait for steps in flight (default: 30)")


def run(arguments: argparse.Namespace) -> int:
    from weakincentives.durable import DurableMainLoop, QueueLimits

    loop = resolve(arguments.loop)
    if not isinstance(loop, DurableMainLoop):
        raise UsageError(f"{arguments.loop} is a {type(loop).__name__}; a worker needs a DurableMainLoop")
    loop.database_url = arguments.database_url or loop.database_url or default("database-url")
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: told.append(number))
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(message)s")
    logging.getLogger("weakincentives.durable").setLevel(logging.INFO)
    limits = QueueLimits(arguments.concurrency, arguments.tenant_concurrency, arguments.rate)
    with loop:
        queues = tuple(arguments.queue or (loop.name,))
        name = loop.start(queues=queues, limits=limits)
        print_error(f"{name} works on {', '.join(queues)} (version {loop.version})")
        # Not an event: its lock may be held when the handler runs, and a wait without end may miss a signal.
        while not told:
            time.sleep(0.1)
        signal.signal(told[0], signal.SIG_DFL)
        print_error("draining ...")
        drained = loop.drain(arguments.drain)
    if not drained:
        print_error("a step was still running; another worker will repeat it")
    return 0 if drained else 1


def per_second(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)/([smh])", text)
    if not found or float(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no rate; write 10/s, 300/m or 1000/h")
    return float(found[1]) / _PERIODS[found[2]]
