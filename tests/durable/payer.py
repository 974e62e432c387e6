"""Bills that a person decides about: an agent whose calls change the session, files and a service outside.

`main()` forks a worker for each line of JSON that it reads, prints its process id, and prints it
again when the worker has ended. A worker kills itself with SIGKILL at the `point`-th place it passes, or after some
`seconds`; without both, it works until the bill is done.
"""

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from weakincentives import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    ScriptedAdapter,
    Session,
    Tool,
    ToolContext,
    call,
    delegate,
    reducer,
    tool,
)
from weakincentives.durable import DurableMainLoop
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.runtime import ModelRequest

LOG = "begin\n"


@dataclass(frozen=True, slots=True)
class Bill:
    """One call for each amount. With `outside`, each also charges a service, which compensation undoes: they then ask
    before the call.

    Those of `late` amounts do not end in time. The calls are those of a run so many `levels` below the first, or of
    several such runs `side_by_side`.
    """

    needs: str
    amounts: tuple[int, ...]
    outside: bool = False
    levels: int = 0
    late: tuple[int, ...] = ()
    side_by_side: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """The calls that a run makes, such as `pay c1 5, pay_late c2 7`."""

    calls: str


@dataclass(frozen=True, slots=True)
class Paid:
    amount: int


@dataclass(frozen=True, slots=True)
class Balance:
    total: int = 1000

    @reducer(on=Paid)
    def pay(self, event: Paid) -> "Balance":
        return replace(self, total=self.total - event.amount)


@dataclass
class Service:
    """A payment service that takes each key once, until it is undone; its log is a file."""

    log: Path

    def entries(self) -> list[tuple[str, str, int]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [(verb, key, int(amount)) for verb, key, amount in map(str.split, lines)]

    def charged(self) -> dict[str, int]:
        active: dict[str, int] = {}
        for verb, key, amount in self.entries():
            if verb == "charge":
                active[key] = amount
            else:
                del active[key]
        return active

    def charge(self, key: str, amount: int) -> None:
        if key not in self.charged():
            self._write(f"charge {key} {amount}\n")

    def undo(self, key: str) -> None:
        if (amount := self.charged().get(key)) is not None:
            self._write(f"undo {key} {amount}\n")

    def _write(self, line: str) -> None:
        with open(self.log, "ab", buffering=0) as log:
            log.write(line.encode())


@dataclass
class Payer:
    """The loop with its service; `passed` is called at each place where a process may die."""

    folder: Path
    passed: Callable[[], None] = lambda: None
    sessions: list[Session] = field(default_factory=list)
    files: list[InMemoryFilesystem] = field(default_factory=list)
    handled: list[int] = field(default_factory=list)

    @property
    def service(self) -> Service:
        return Service(self.folder / "service")

    @property
    def database(self) -> str:
        return str(self.folder / "durable.db")

    def loop(self, **options: Any) -> DurableMainLoop[Bill, None]:
        adapter = ScriptedAdapter(self.model)
        more = {"database_url": self.database, "new_session": self.new_session, "max_attempts": 1000} | options
        return DurableMainLoop("payer", self.prepare, adapter, **more)

    def state(self) -> tuple[int, tuple[Paid, ...], dict[str, str]]:
        """The state of the run as its last process left it."""
        return state_of(self.sessions[-1], self.files[-1])

    def new_session(self, bill: Bill) -> Session:
        self.sessions.append(Session())
        return self.sessions[-1]

    def prepare(self, bill: Bill) -> Prompt[None]:
        self.passed()
        report, *tools = self.tools(bill)
        for level in range(bill.levels):
            template = PromptTemplate[None](ns="tests", key=f"level{level}", sections=[_section(tools)])
            tools = [delegate(template, name="hand_on", description="Hand on.", concurrent=bill.side_by_side)]
        self.files.append(InMemoryFilesystem({"log.txt": LOG}))
        prompt = Prompt[None](ns="tests", key="payer", sections=[_section([*tools, report])])
        return prompt.bind(part_of(bill), resources={Filesystem: self.files[-1]})

    def tools(self, bill: Bill) -> list[Tool[Any, Any]]:
        def undo(params: Any, *, context: ToolContext) -> None:
            self.passed()
            self.service.undo(context.idempotency_key)
            self.passed()

        def begin(amount: int, context: ToolContext) -> None:
            self.handled.append(amount)
            self.passed()
            context.session.dispatch(Paid(amount))
            if bill.outside:
                self.service.charge(context.idempotency_key, amount)
                self.passed()

        def end(amount: int, context: ToolContext) -> str:
            assert context.filesystem is not None
            context.filesystem.write("log.txt", f"paid {amount}\n", mode="append")
            self.passed()
            return f"paid {amount}"

        compensate = undo if bill.outside else None
        options: Any = {"approval": bill.needs, "compensate": compensate, "changes": (Filesystem, Balance)}

        @tool(**options)
        def pay(amount: int, *, context: ToolContext) -> str:
            """Pay an amount."""
            begin(amount, context)
            return end(amount, context)

        @tool(timeout=0.05, **options)
        async def pay_late(amount: int, *, context: ToolContext) -> str:
            """Pay an amount, and take too long."""
            begin(amount, context)
            await asyncio.Event().wait()
            return end(amount, context)

        @tool(timeout=0.05, **options)
        def pay_stuck(amount: int, *, context: ToolContext) -> str:
            """Pay an amount, take too long, and pay the rest."""
            begin(amount, context)
            threading.Event().wait(0.1)
            return end(amount, context)

        @tool(read_only=True)
        def report(*, context: ToolContext) -> str:
            """Report the state."""
            files = context.filesystem
            assert isinstance(files, InMemoryFilesystem)
            total, paid, written = state_of(context.session, files)
            return json.dumps([total, [each.amount for each in paid], written])

        return [report, pay, pay_late, pay_stuck]

    def model(self, request: ModelRequest) -> Any:
        """Make all calls in one turn or hand them on, ask for a report, and answer with the results and the report."""
        self.passed()
        names = {tool.name for tool in request.tools}
        results = [message for message in request.messages if message.role == "tool"]
        if not results:
            parts = request.messages[0].text.splitlines()[-1].split("; ")
            if "hand_on" in names:
                return [call("hand_on", call_id=f"down{at}", calls=part) for at, part in enumerate(parts)]
            words = [each.split() for part in parts for each in part.split(", ")]
            return [call(name, call_id=call_id, amount=int(amount)) for name, call_id, amount in words]
        if "report" in names and results[-1].name != "report":
            return call("report", call_id="report")
        told = [each for each in results if each.name != "report"]
        found = [[each.call_id, each.success, each.text] for each in told]
        if "hand_on" in names:
            found = [each for result in told for each in json.loads(result.text)]
        return json.dumps({"results": found, "state": json.loads(results[-1].text)} if "report" in names else found)


def _section(tools: list[Tool[Any, Any]]) -> MarkdownSection[Part]:
    return MarkdownSection[Part](title="Bill", key="bill", template="${calls}", tools=tools)


def part_of(bill: Bill) -> Part:
    """The calls for a bill; those of runs side by side are apart."""
    late = ("pay_late", "pay_stuck")
    names = [late[amount % 2] if amount in bill.late else "pay" for amount in bill.amounts]
    calls = [f"{name} c{at} {amount}" for at, (name, amount) in enumerate(zip(names, bill.amounts, strict=True), 1)]
    return Part(("; " if bill.side_by_side else ", ").join(calls))


def state_of(session: Session, files: InMemoryFilesystem) -> tuple[int, tuple[Paid, ...], dict[str, str]]:
    written = {path: files.read(path) for path in files.glob("**")}
    return (session[Balance].latest() or Balance()).total, session[Paid].all(), written


def work(folder: str, point: int | None, seconds: float | None) -> None:
    """Work on the bill in a folder until it is paid, or until the process dies."""
    left = iter(range(point or sys.maxsize, -1, -1))

    def passed() -> None:
        if next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    if seconds is not None:
        timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL))
        timer.daemon = True
        timer.start()
    with Payer(Path(folder), passed).loop() as loop:
        loop.start()
        loop.result("bill")


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                work(**json.loads(line))
            finally:
                os._exit(0)
        print(child, flush=True)
        os.waitpid(child, 0)
        print(child, flush=True)
