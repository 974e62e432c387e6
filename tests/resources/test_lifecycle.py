"""Resources that are created, entered, left and closed in every way, in sync and async contexts."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from weakincentives.resources import (
    Binding,
    CircularDependencyError,
    Resolver,
    ResourceError,
    ResourceRegistry,
    RolledBackError,
    Scope,
    ScopedResourceContext,
)


class Client:
    """Belongs to the event loop that it is first used on, as connections do; `log` says how it ended."""

    def __init__(self, log: list[str], name: str = "client") -> None:
        self.log, self.name = log, name
        self.loop: asyncio.AbstractEventLoop | None = None

    async def fetch(self) -> str:
        loop = asyncio.get_running_loop()
        assert self.loop in (None, loop), "used on another event loop"
        self.loop = loop
        return self.name


class Closing(Client):
    def close(self) -> None:
        self.log.append(f"close {self.name}")


class AsyncClosing(Client):
    async def aclose(self) -> None:
        await self.fetch()
        self.log.append(f"aclose {self.name}")


class Managing(Client):
    def __enter__(self) -> Managing:
        self.log.append(f"enter {self.name}")
        return self

    def __exit__(self, *error: object) -> None:
        self.log.append(f"exit {self.name}")


class AsyncManaging(Client):
    """Insists on the same task, as cancel scopes do."""

    async def __aenter__(self) -> AsyncManaging:
        await self.fetch()
        self.task = asyncio.current_task()
        self.log.append(f"enter {self.name}")
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.fetch()
        assert asyncio.current_task() is self.task
        self.log.append(f"exit {self.name}")


Provider = Callable[[list[str]], Callable[[Resolver], Any]]


def awaited(log: list[str]) -> Callable[[Resolver], Awaitable[Client]]:
    async def connect(resolver: Resolver) -> Client:
        client = AsyncClosing(log)
        await client.fetch()
        return client

    return connect


def managed(log: list[str]) -> Callable[[Resolver], Any]:
    @contextmanager
    def connect(resolver: Resolver) -> Iterator[Client]:
        log.append("enter client")
        yield Client(log)
        log.append("exit client")

    return connect


def async_managed(log: list[str]) -> Callable[[Resolver], Any]:
    @asynccontextmanager
    async def connect(resolver: Resolver) -> AsyncIterator[Client]:
        client = Client(log)
        await client.fetch()
        log.append("enter client")
        yield client
        await client.fetch()
        log.append("exit client")

    return connect


ENTERED = ["enter client", "exit client"]
SYNC: dict[str, tuple[Provider, list[str]]] = {
    "plain": (lambda log: lambda r: Client(log), []),
    "closing": (lambda log: lambda r: Closing(log), ["close client"]),
    "aclosing": (lambda log: lambda r: AsyncClosing(log), ["aclose client"]),
    "manager": (lambda log: lambda r: Managing(log), ENTERED),
    "generator manager": (managed, ENTERED),
}
ASYNC: dict[str, tuple[Provider, list[str]]] = {
    "awaited": (awaited, ["aclose client"]),
    "async manager": (lambda log: lambda r: AsyncManaging(log), ENTERED),
    "async generator manager": (async_managed, ENTERED),
}
ALL = SYNC | ASYNC
SCOPES = list(Scope)


def context_of(provider: Any, scope: Scope = Scope.SINGLETON, **more: Any) -> ScopedResourceContext:
    return ResourceRegistry.of(Binding(Client, provider, scope=scope, **more)).create_context()


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("kind", ALL)
def test_a_sync_context_creates_and_ends_every_kind_of_resource_on_one_loop(kind: str, scope: Scope) -> None:
    log: list[str] = []
    make, ended = ALL[kind]
    with context_of(make(log), scope) as context, context.tool_scope() as call:
        client = call.get(Client)
        thread = context.loop.thread()
        assert thread.submit(client.fetch()).result() == thread.submit(client.fetch()).result() == "client"
    assert log == ended
    assert thread.ended.done()


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("kind", ALL)
async def test_an_async_context_creates_and_ends_every_kind_of_resource_on_its_own_loop(
    kind: str, scope: Scope
) -> None:
    log: list[str] = []
    make, ended = ALL[kind]
    async with context_of(make(log), scope) as context, context.tool_scope() as call:
        client = await call.get_async(Client)
        assert (await client.fetch(), client.loop) == ("client", asyncio.get_running_loop())
    assert log == ended


@pytest.mark.parametrize("kind", ALL)
async def test_a_thread_of_an_async_context_gets_resources_of_the_contexts_loop(kind: str) -> None:
    log: list[str] = []
    make, ended = ALL[kind]
    async with context_of(make(log)) as context:
        client = await asyncio.to_thread(context.get, Client)
        assert await client.fetch() == "client"
        assert context.get(Client) is client
    assert log == ended


@pytest.mark.parametrize("kind", ALL)
async def test_an_eager_resource_is_there_for_a_plain_get(kind: str) -> None:
    log: list[str] = []
    make, ended = ALL[kind]
    async with context_of(make(log), eager=True) as context:
        assert await context.get(Client).fetch() == "client"
    assert log == ended


@pytest.mark.parametrize("kind", ALL)
async def test_a_sync_context_works_while_another_loop_runs_in_its_thread(kind: str) -> None:
    log: list[str] = []
    make, ended = ALL[kind]
    with context_of(make(log)) as context:
        assert context.get(Client).name == "client"
    assert log == ended


@pytest.mark.parametrize("kind", ASYNC)
async def test_a_plain_get_that_would_block_its_own_loop_says_what_to_write(kind: str) -> None:
    async with context_of(ASYNC[kind][0]([])) as context:
        with pytest.raises(
            ResourceError, match=r"Client is created asynchronously.*`await context.resources.get_async"
        ):
            context.get(Client)
        assert await (await context.get_async(Client)).fetch() == "client"


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("scope", [Scope.SINGLETON, Scope.TOOL_CALL])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_restore_ends_what_was_created_since_and_the_next_get_creates_another(
    kind: str, scope: Scope, is_async: bool
) -> None:
    log: list[str] = []
    make, ended = ALL[kind]
    # A generator does not go past its `yield` with an error.
    undone = ended[:1] if "generator" in kind else ended

    async def use() -> None:
        async with context_of(make(log), scope) as context:
            async with context.tool_scope() as call:
                before = call.begin_call()
                first = await call.get_async(Client)
                call.restore(before)
            assert log == undone
            async with context.tool_scope() as call:
                assert await call.get_async(Client) is not first

    if is_async:
        asyncio.run(use())
    else:
        with context_of(make(log), scope) as context:
            with context.tool_scope() as call:
                before = call.begin_call()
                first = call.get(Client)
                call.restore(before)
                assert log == undone
            with context.tool_scope() as call:
                assert call.get(Client) is not first
    assert log == undone + ended


def test_a_manager_learns_what_ended_its_block_and_what_was_rolled_back() -> None:
    seen: list[BaseException | None] = []

    @contextmanager
    def connect(resolver: Resolver) -> Iterator[Client]:
        try:
            yield Client([])
        except BaseException as error:
            seen.append(error)
            raise
        seen.append(None)

    failure = ValueError("the block")
    with pytest.raises(ValueError, match="the block"), context_of(connect) as context:
        context.get(Client)
        before = context.tool_scope().begin_call()
        raise failure
    context = context_of(connect)
    before = context.begin_call()
    context.get(Client)
    context.restore(before)
    context.get(Client)
    context.close()
    assert seen[0] is failure
    assert [type(each) for each in seen[1:]] == [RolledBackError, type(None)]


def test_a_manager_that_fails_to_leave_is_reported_with_the_others_closed() -> None:
    log: list[str] = []

    @asynccontextmanager
    async def stuck(resolver: Resolver) -> AsyncIterator[set[str]]:
        yield set()
        raise OSError("stuck")

    registry = ResourceRegistry.of(Binding(Client, lambda r: Closing(log)), Binding(set, stuck))
    with pytest.raises(ResourceError, match="Could not close set: stuck"), registry.create_context() as context:
        context.get(Client), context.get(set)
    assert log == ["close client"]


def test_a_lock_is_not_entered() -> None:
    locks: list[Any] = [threading.Lock, threading.RLock, threading.Condition, asyncio.Lock, asyncio.Semaphore]
    for make in locks:
        with ResourceRegistry.of(Binding(object, lambda r, make=make: make())).create_context() as context:
            lock: Any = context.get(object)
            assert not getattr(lock, "locked", bool)()


def test_a_connection_is_closed_and_a_temporary_directory_stays_what_was_bound() -> None:
    registry = ResourceRegistry.of(
        Binding(sqlite3.Connection, lambda r: sqlite3.connect(":memory:")),
        Binding(TemporaryDirectory, lambda r: TemporaryDirectory()),
    )
    with registry.create_context() as context:
        connection, folder = context.get(sqlite3.Connection), context.get(TemporaryDirectory)
        assert isinstance(folder, TemporaryDirectory)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


class Other(Client):
    pass


def test_providers_depend_on_async_resources() -> None:
    log: list[str] = []

    async def other(resolver: Resolver) -> Other:
        client = await resolver.get_async(Client)
        return Other(log, f"other of {await client.fetch()}")

    registry = ResourceRegistry.of(
        Binding(Client, awaited(log)), Binding(Other, other), Binding(list, lambda r: [r.get(Other)])
    )
    with registry.create_context() as context:
        assert context.get(list)[0].name == "other of client"
    assert log == ["aclose client"]

    async def use() -> str:
        async with registry.create_context() as context:
            return (await context.get_async(Other)).name

    assert asyncio.run(use()) == "other of client"


@pytest.mark.parametrize("kind", ALL)
def test_a_resource_is_created_once_by_many_threads_and_tasks(kind: str) -> None:
    log: list[str] = []
    seen: list[Client] = []
    made: list[int] = []
    provider = ALL[kind][0](log)

    def counting(resolver: Resolver) -> Any:
        made.append(1)
        return provider(resolver)

    async def use() -> None:
        async with context_of(counting) as context:

            async def task() -> None:
                seen.append(await context.get_async(Client))

            def thread() -> None:
                seen.append(context.get(Client))

            await asyncio.gather(*(task() for _ in range(8)), *(asyncio.to_thread(thread) for _ in range(8)))

    asyncio.run(use())
    assert (len(seen), len(set(map(id, seen))), len(made)) == (16, 1, 1)


def test_a_circle_between_two_threads_is_an_error_and_no_deadlock() -> None:
    both_began = threading.Barrier(2)
    waited: set[type] = set()

    def needs(own: type, other: type) -> Callable[[Resolver], Any]:
        def provide(resolver: Resolver) -> Any:
            if own not in waited:
                waited.add(own)
                both_began.wait(10)
            return resolver.get(other)

        return provide

    context = ResourceRegistry.of(Binding(set, needs(set, list)), Binding(list, needs(list, set))).create_context()
    errors: list[BaseException] = []

    def ask(protocol: type) -> None:
        try:
            context.get(protocol)
        except CircularDependencyError as error:
            errors.append(error)

    threads = [threading.Thread(target=ask, args=(protocol,)) for protocol in (set, list)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(errors) == 2


def test_a_failed_async_provider_names_the_chain_and_is_asked_again() -> None:
    answers = iter([OSError("refused"), Client([])])

    async def connect(resolver: Resolver) -> Client:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    with context_of(connect) as context:
        with pytest.raises(OSError, match="refused") as caught:
            context.get(Client)
        assert caught.value.__notes__ == ["While creating resource Client"]
        assert context.get(Client).name == "client"


@pytest.mark.parametrize("when", ["entered", "left"])
@pytest.mark.parametrize("is_async", [True, False])
def test_a_manager_that_exits_the_program_ends_no_event_loop(when: str, is_async: bool) -> None:
    @asynccontextmanager
    async def exiting(resolver: Resolver) -> AsyncIterator[Client]:
        if when == "entered":
            raise SystemExit(3)
        yield Client([])
        raise SystemExit(3)

    async def use_async() -> None:
        async with context_of(exiting) as context:
            await context.get_async(Client)

    with pytest.raises((ResourceError, ExceptionGroup), match=r"SystemExit\(3\); raise an Exception instead"):
        if is_async:
            asyncio.run(use_async())
        else:
            with context_of(exiting) as context:
                context.get(Client)


@pytest.mark.parametrize("is_async", [True, False])
def test_a_manager_that_was_left_with_its_event_loop_is_not_left_again(is_async: bool) -> None:
    log: list[str] = []
    context = context_of(lambda r: AsyncManaging(log))
    asyncio.run(context.get_async(Client))
    assert log == ENTERED
    if is_async:
        asyncio.run(context.aclose())
    else:
        context.close()
    assert log == ENTERED
