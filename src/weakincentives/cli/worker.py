"""Work on the durable runs of a loop until SIGTERM or Ctrl-C, then hand back what runs at its next step.

Any number of workers on any number of machines can share a postgresql:// database. The limits belong to the queue:
those of the worker that started last apply to all.
"""

from __future__ import annotations

import argparse
import logging
import re
import signal
import sys
import time

from weakincentives.cli.settings import default
from weakincentives.cli.target import resolve
from weakincentives.cli.usage import UsageError

_PERIODS = {"s": 1, "m": 60, "h": 3600}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("loop", help="the DurableMainLoop, as module:variable")
    parser.add_argument("--database-url", help="a file or postgresql://... (default: the loop's own)")
    parser.add_argument("--queue", action="append", help="a queue to serve, repeatable (default: the loop's name)")
    parser.add_argument("--concurrency", type=int, default=8, help="runs at a time per worker (default: 8)")
    parser.add_argument("--tenant-concurrency", type=int, help="runs at a time per tenant, over all workers")
    parser.add_argument("--rate", type=per_second, help="starts over all workers, such as 10/s, 300/m, 1000/h")
    parser.add_argument("--drain", type=float, default=30.0, help="seconds to wait for running steps (default: 30)")


def run(arguments: argparse.Namespace) -> int:
    from weakincentives.durable import DurableMainLoop, QueueLimits

    loop = resolve(arguments.loop)
    if not isinstance(loop, DurableMainLoop):
        raise UsageError(f"{arguments.loop} must be a DurableMainLoop, got {type(loop).__name__}")
    loop.database_url = arguments.database_url or loop.database_url or default("database-url")
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: signals.append(number))
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(message)s")
    logging.getLogger("weakincentives.durable").setLevel(logging.INFO)
    limits = QueueLimits(arguments.concurrency, arguments.tenant_concurrency, arguments.rate)
    with loop:
        queues = tuple(arguments.queue or (loop.name,))
        name = loop.start(queues=queues, limits=limits)
        print(f"{name} works on {', '.join(queues)} (version {loop.version})", file=sys.stderr, flush=True)
        # Not an Event: its lock may be held when the handler runs.
        while not signals:
            time.sleep(0.1)
        signal.signal(signals[0], signal.SIG_DFL)
        print("draining ...", file=sys.stderr, flush=True)
        drained = loop.drain(arguments.drain)
    if not drained:
        print("a step was still running; another worker will repeat it", file=sys.stderr)
    return 0 if drained else 1


def per_second(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)/([smh])", text)
    if not found or float(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"rate must be like 10/s, 300/m or 1000/h, got {text!r}")
    return float(found[1]) / _PERIODS[found[2]]
