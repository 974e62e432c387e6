"""Resources in runs and conversations: one event loop, units of work, and the params that tools read."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from weakincentives import Conversation, MarkdownSection, Prompt, Session, ToolContext, ToolResult, run, run_async, tool
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.prompt import Tool
from weakincentives.resources import Binding, Resolver, ResourceRegistry, Scope
from weakincentives.runtime import Message, ToolInvoked


def prompt(*tools: Tool[Any, Any], resources: Any = None) -> Prompt[Any]:
    task = MarkdownSection(key="task", title="Task", template="Do it.", tools=tools)
    shop = MarkdownSection[Shop](key="shop", title="Shop", template="In ${town}.")
    return Prompt(ns="tests", key="resources", sections=[task, shop], resources=resources)


def tool_texts(session: Session) -> list[str]:
    return [message.text for message in session[Message] if message.role == "tool"]


class Line:
    """A connection with a reader task: it works on one event loop, and only as long as that runs."""

    def __init__(self) -> None:
        self.closed = False
        self.reader: asyncio.Task[None] | None = None

    async def ask(self, words: str) -> str:
        if self.reader is None:
            self.questions: asyncio.Queue[tuple[str, asyncio.Future[str]]] = asyncio.Queue()
            self.reader = asyncio.create_task(self._read())
        answer = asyncio.get_running_loop().create_future()
        await self.questions.put((words, answer))
        return await asyncio.wait_for(answer, 5)

    async def _read(self) -> None:
        while True:
            words, answer = await self.questions.get()
            answer.set_result(words.upper())

    async def aclose(self) -> None:
        assert not self.closed
        if self.reader is not None:
            assert self.reader.get_loop() is asyncio.get_running_loop()
            self.reader.cancel()
        self.closed = True


@tool
async def ask(words: str, *, context: ToolContext) -> str:
    """Ask."""
    return await (await context.resources.get_async(Line)).ask(words)


async def _connect(resolver: Resolver) -> Line:
    return Line()


@asynccontextmanager
async def _connected(resolver: Resolver) -> AsyncIterator[Line]:
    line = Line()
    await line.ask("hello")
    yield line
    await line.aclose()


PROVIDERS: dict[str, Callable[[Resolver], Any]] = {
    "sync": lambda r: Line(),
    "async": _connect,
    "manager": _connected,
}


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("entered", [True, False])
def test_an_async_resource_works_in_every_exchange_of_a_sync_conversation(provider: str, entered: bool) -> None:
    lines: list[Line] = []

    @tool
    def same(*, context: ToolContext) -> str:
        """Which line."""
        lines.append(context.resources.get(Line))
        return "noted"

    bound = ResourceRegistry.of(Binding(Line, PROVIDERS[provider]))
    steps = [step for words in ("a", "b", "c") for step in (call("ask", words=words), call("same"), words)]
    chat = Conversation(prompt(ask, same, resources=bound), adapter=ScriptedAdapter(steps))
    if entered:
        with chat:
            for words in ("a", "b", "c"):
                assert chat.send(words).text == words
            assert not lines[0].closed
    else:
        for words in ("a", "b", "c"):
            chat.send(words)
    assert tool_texts(chat.session) == ["A", "noted", "B", "noted", "C", "noted"]
    assert len(set(map(id, lines))) == (1 if entered else 3)
    assert all(line.closed for line in lines)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_an_async_resource_works_in_every_exchange_of_an_async_conversation(provider: str) -> None:
    bound = ResourceRegistry.of(Binding(Line, PROVIDERS[provider]))
    steps = [step for words in ("a", "b") for step in (call("ask", words=words), words)]

    async def talk() -> list[str]:
        async with Conversation(prompt(ask, resources=bound), adapter=ScriptedAdapter(steps)) as chat:
            for words in ("a", "b"):
                await chat.send_async(words)
            return tool_texts(chat.session)

    assert asyncio.run(talk()) == ["A", "B"]


def test_a_line_of_the_caller_works_in_every_exchange_of_a_conversation_that_is_not_entered() -> None:
    steps = [step for words in ("a", "b") for step in (call("ask", words=words), words)]
    mine = Line()
    chat = Conversation(prompt(ask).bind(resources={Line: mine}), adapter=ScriptedAdapter(steps))
    chat.send("a")
    chat.send("b")
    assert (tool_texts(chat.session), mine.closed) == (["A", "B"], False)


class Ledger:
    """A unit of work over one connection: it commits when it is closed, unless it was restored."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, check_same_thread=False)

    def snapshot(self) -> None: ...

    def restore(self, snapshot: None) -> None:
        self.connection.rollback()

    def close(self) -> None:
        self.connection.commit()
        self.connection.close()


def managed(path: Path) -> Callable[[Resolver], Any]:
    @contextmanager
    def connect(resolver: Resolver) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(path, check_same_thread=False)
        try:
            with connection:
                yield connection
        finally:
            connection.close()

    return connect


@dataclass(frozen=True)
class Pay:
    amount: int


UNITS: dict[str, Callable[[Path], Binding[Any]]] = {
    "manager": lambda path: Binding(sqlite3.Connection, managed(path), scope=Scope.TOOL_CALL),
    "class": lambda path: Binding(Ledger, lambda r: Ledger(path), scope=Scope.TOOL_CALL),
}


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("unit", UNITS)
def test_the_database_has_the_work_of_successful_calls_and_nothing_of_failed_ones(
    unit: str, is_async: bool, tmp_path: Path
) -> None:
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as setup:
        setup.execute("CREATE TABLE payments (amount INTEGER CHECK (amount < 1000))")
    setup.close()

    def pay(params: Pay, *, context: ToolContext) -> ToolResult[None]:
        """Pay."""
        found = context.resources.get_optional(Ledger)
        connection = found.connection if found else context.resources.get(sqlite3.Connection)
        connection.execute("INSERT INTO payments VALUES (?)", (params.amount,))
        if params.amount == 3:
            raise ValueError("the card was refused")
        return ToolResult(f"paid {params.amount}", success=params.amount != 4)

    steps = [*(call("pay", amount=amount) for amount in (1, 2, 3, 4, 5000, 6)), "Done."]
    pay_tool = Tool[Pay, None](name="pay", description="Pay.", handler=pay)
    shop = prompt(pay_tool, resources=ResourceRegistry.of(UNITS[unit](path)))
    adapter, session = ScriptedAdapter(steps), Session()
    if is_async:
        asyncio.run(run_async(shop, adapter, session=session))
    else:
        run(shop, adapter, session=session)
    with sqlite3.connect(path) as connection:
        paid = [amount for (amount,) in connection.execute("SELECT amount FROM payments")]
    connection.close()
    assert paid == [1, 2, 6]
    assert [event.result.success for event in session[ToolInvoked]] == [True, True, False, False, False, True]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_commit_that_fails_fails_the_call_and_undoes_what_it_did_to_the_session(is_async: bool) -> None:
    @contextmanager
    def refusing(resolver: Resolver) -> Iterator[dict[str, int]]:
        yield {}
        raise OSError("the disk is full")

    @tool
    def note(*, context: ToolContext) -> str:
        """Note."""
        context.resources.get(dict)
        context.session.dispatch(Pay(1))
        return "noted"

    shop = prompt(note, resources=ResourceRegistry.of(Binding(dict, refusing, scope=Scope.TOOL_CALL)))
    adapter, session = ScriptedAdapter([call("note"), "Done."]), Session()
    if is_async:
        asyncio.run(run_async(shop, adapter, session=session))
    else:
        run(shop, adapter, session=session)
    assert session[Pay].all() == ()
    assert tool_texts(session)[0].startswith(
        "Tool 'note' failed to close its resources: Could not close dict: the disk"
    )


@dataclass(frozen=True)
class Customer:
    name: str


@dataclass(frozen=True)
class Shop:
    town: str = "Ulm"


@tool(read_only=True)
def who(*, context: ToolContext) -> str:
    """Who."""
    return f"{context.params(Customer).name} in {context.params(Shop).town}"


def test_a_tool_reads_the_params_that_its_run_began_with() -> None:
    shop = prompt(who).bind(Customer("Ann"))
    chat = Conversation(shop, adapter=ScriptedAdapter([call("who"), "1", call("who"), "2"]))
    chat.send("Who?")
    chat.bind(Customer("Bob"), Shop("Bern"))
    chat.send("And now?")
    assert tool_texts(chat.session) == ["Ann in Ulm", "Bob in Bern"]


def test_params_that_are_not_bound_are_named_with_the_way_out() -> None:
    session = Session()
    run(prompt(who).bind(Shop()), ScriptedAdapter([call("who"), "Done."], tool_errors="tell"), session=session)
    assert (
        "has no params of type Customer (bound: Shop); pass them to prompt.bind(Customer(...))."
        in tool_texts(session)[0]
    )
