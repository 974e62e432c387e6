"""Bills that a person decides about: an agent whose calls change the session, files and a service outside.

`main()` forks a worker for each line of JSON that it reads, prints its process id, and prints it
again when the worker has ended. A worker kills itself with SIGKILL at the `point`-th place it passes, or after some
`seconds`; without both, it works until the bill is done.
"""

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
    """One call for each amount. With `outside`, each also charges a service, which compensation undoes.

    The calls are those of a run so many `levels` below the first.
    """

    needs: str
    amounts: tuple[int, ...]
    outside: bool = False
    levels: int = 0


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
        section = MarkdownSection(title="Bill", key="bill", template=json.dumps(bill.amounts), tools=self.tools(bill))
        template = PromptTemplate[None](ns="tests", key="payer", sections=[section])
        for level in range(bill.levels):
            below = delegate(template, name="hand_on", description="Hand the bill on.")
            section = MarkdownSection(title="Bill", key="bill", template="Hand on.", tools=[below])
            template = PromptTemplate[None](ns="tests", key=f"level{level}", sections=[section])
        self.files.append(InMemoryFilesystem({"log.txt": LOG}))
        return Prompt(template).bind(resources={Filesystem: self.files[-1]})

    def tools(self, bill: Bill) -> list[Tool[Any, Any]]:
        def undo(params: Any, *, context: ToolContext) -> None:
            self.passed()
            self.service.undo(context.idempotency_key)
            self.passed()

        @tool(approval=bill.needs, compensate=undo if bill.outside else None)  # type: ignore[call-overload,untyped-decorator]
        def pay(amount: int, *, context: ToolContext) -> str:
            """Pay an amount."""
            self.handled.append(amount)
            self.passed()
            context.session.dispatch(Paid(amount))
            files = context.filesystem
            assert files is not None
            if bill.outside:
                self.service.charge(context.idempotency_key, amount)
                self.passed()
            files.write("log.txt", f"paid {amount}\n", mode="append")
            self.passed()
            return f"paid {amount}"

        @tool(read_only=True)
        def report(*, context: ToolContext) -> str:
            """Report the state."""
            files = context.filesystem
            assert isinstance(files, InMemoryFilesystem)
            total, paid, written = state_of(context.session, files)
            return json.dumps([total, [each.amount for each in paid], written])

        return [pay, report]

    def model(self, request: ModelRequest) -> Any:
        """Pay all amounts in one turn, ask for a report, and answer with the results and the report."""
        self.passed()
        results = [message for message in request.messages if message.role == "tool"]
        if request.messages[0].text.endswith("Hand on."):
            return results[-1].text if results else call("hand_on", call_id="down")
        amounts = json.loads(request.messages[0].text.splitlines()[-1])
        if not results:
            return [call("pay", call_id=f"c{number}", amount=amount) for number, amount in enumerate(amounts, 1)]
        if results[-1].name != "report":
            return call("report", call_id="report")
        told = [(each.call_id, each.success, each.text) for each in results[:-1]]
        return json.dumps({"results": told, "state": json.loads(results[-1].text)})


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
