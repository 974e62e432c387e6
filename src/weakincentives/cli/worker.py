"""Work on the durable runs of a loop until SIGTERM or Ctrl-C, then hand back what runs at its next step.

Any number of workers on any number of machines can share a postgresql:// database. The limits belong to the queue:
those of the worker that started last apply to all. With --health, GET /healthz answers 200 while the process works and
GET /readyz while it takes work: 503 when it starts, drains or has lost its database.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

from weakincentives.cli.commands import default
from weakincentives.cli.output import UsageError, print_error
from weakincentives.cli.selection import resolve

if TYPE_CHECKING:
    from weakincentives.durable import WorkerHealth

_PERIODS = {"s": 1, "m": 60, "h": 3600}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("loop", help="the DurableMainLoop, as module:variable")
    parser.add_argument("--database-url", help="a file or postgresql://... (default: the loop's own)")
    parser.add_argument("--queue", action="append", help="a queue to serve, repeatable (default: the loop's name)")
    parser.add_argument("--concurrency", type=int, default=8, help="runs at a time per worker (default: 8)")
    parser.add_argument("--tenant-concurrency", type=int, help="runs at a time per tenant, over all workers")
    parser.add_argument("--rate", type=per_second, help="starts over all workers, such as 10/s, 300/m, 1000/h")
    parser.add_argument(
        "--health", type=host_and_port, metavar="PORT", help="answer /healthz and /readyz over HTTP on this port"
    )
    parser.add_argument("--drain", type=float, default=30.0, help="seconds to wait for running steps (default: 30)")


def run(arguments: argparse.Namespace) -> int:
    from weakincentives.durable import DurableMainLoop, QueueLimits

    loop = resolve(arguments.loop)
    if not isinstance(loop, DurableMainLoop):
        raise UsageError(f"{arguments.loop} must be a DurableMainLoop, got {type(loop).__name__}")
    loop.database_url = arguments.database_url or loop.database_url or default("database-url")
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(message)s")
    logging.getLogger("weakincentives.durable").setLevel(logging.INFO)
    limits = QueueLimits(arguments.concurrency, arguments.tenant_concurrency, arguments.rate)
    queues = tuple(arguments.queue or (loop.name,))
    with serving_health(arguments.health, loop.health), loop:
        name = loop.start(queues=queues, limits=limits)
        print_error(f"{name} works on {', '.join(queues)} (version {loop.version})")
        # Not before the start, which a signal must be able to end; not an Event, whose lock a handler may find held.
        signals: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: signals.append(number))
        while not signals:
            time.sleep(0.1)
        signal.signal(signals[0], signal.SIG_DFL)
        print_error("draining ...")
        if not loop.drain(arguments.drain):
            print_error("a step was still running; another worker will repeat it")
            # Its thread must end before others take the work over, and nothing ends a thread but its process.
            os._exit(1)
    return 0


@contextmanager
def serving_health(address: tuple[str, int] | None, check: Callable[[], WorkerHealth]) -> Iterator[None]:
    """Answer /healthz and /readyz at this address, if there is one."""
    if address is None:
        yield
        return
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


def host_and_port(text: str) -> tuple[str, int]:
    found = re.fullmatch(r"(?:\[?([^\[\]]*?)\]?:)?(\d{1,5})", text)
    if not found or int(found[2]) > 65535:
        raise argparse.ArgumentTypeError(f"address must be like 8080 or 127.0.0.1:8080, got {text!r}")
    return found[1] or "0.0.0.0", int(found[2])


def per_second(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)/([smh])", text)
    if not found or float(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"rate must be like 10/s, 300/m or 1000/h, got {text!r}")
    return float(found[1]) / _PERIODS[found[2]]
