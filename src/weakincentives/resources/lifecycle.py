"""The life of one resource: what its provider returns is awaited or entered, and left or closed at the end.

Both are generators that yield what is to be awaited, so that sync and async contexts share them.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from weakincentives._base.fence import current_fence
from weakincentives.resources.binding import (
    Binding,
    Resolver,
    ResourceError,
    TransactionRefusedError,
    chain_text,
    type_name,
)

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

# Entering a lock would acquire it for the resource's whole life.
_LOCKS = frozenset({"_thread", "threading", "asyncio.locks", "multiprocessing.synchronize"})


@dataclass(slots=True, eq=False)
class Work:
    """Something to await, on the loop to which it belongs if there is one; `loop` is then where it was awaited."""

    awaitable: Awaitable[Any]
    loop: AbstractEventLoop | None = None

    async def run(self) -> Any:
        from asyncio import get_running_loop

        self.loop = get_running_loop()
        return await self.awaitable

    def drop(self) -> None:
        if inspect.iscoroutine(self.awaitable):
            self.awaitable.close()


class Creation:
    """A resource that is being created below a root context; `awaits` is true if that takes an event loop.

    `chain` lists what it is created for, outermost first, and itself; `needs` is what it waits for in turn. `done` is
    there once somebody waits for it. A creation is `abandoned` once the tool call that needed it is: its provider may
    still be running, but the result is not kept. `opens` is false if what is created may not be a
    context manager of the tool call, such as a transaction.
    """

    __slots__ = ("_fence", "_outer", "awaits", "chain", "done", "needs", "opens", "root")

    def __init__(self, protocol: type, root: object) -> None:
        self.opens = True
        self.root: object = root
        around = creating.get()
        self._outer = around if around is not None and around.root is root else None
        self._fence = current_fence()
        self.chain: tuple[type, ...] = (*(self._outer.chain if self._outer else ()), protocol)
        self.awaits = False
        self.needs: type | None = None
        self.done: Future[None] | None = None

    def note_needed(self) -> None:
        """Note that what it is created for waits for it."""
        if self._outer is not None:
            self._outer.needs = self.chain[-1]

    def note_awaiting(self) -> None:
        """Note that this, and what it is created for, takes an event loop."""
        creation: Creation | None = self
        while creation is not None:
            creation.awaits, creation = True, creation._outer

    @property
    def abandoned(self) -> bool:
        return self._fence is not None and self._fence.closed

    def end(self) -> None:
        """Wake whoever waits for it."""
        if self.done is not None and not self.done.done():
            self.done.set_result(None)


creating: ContextVar[Creation | None] = ContextVar("weakincentives_creating", default=None)
T = TypeVar("T")
Step: TypeAlias = Work | Creation
Steps: TypeAlias = Generator[Step, Any, T]


class OnOwnLoop(Exception):
    """A blocking wait on the event loop that would have to do the work."""


@dataclass(slots=True, eq=False)
class Held:
    """A resource that its context created.

    `leave` leaves the context manager that it came from, `own` says that it is that manager itself, and `loop` is the
    event loop it belongs to, if one was needed to create it. Such a resource ends only in the process of that loop, not
    in a forked child. `makers` are the tool calls for which it was created, and `initial` is its state before anything
    was done with it, as far as that was asked for.
    """

    protocol: type
    value: Any
    leave: Callable[[BaseException | None], Any] | None = None
    own: bool = True
    loop: AbstractEventLoop | None = None
    makers: tuple[object, ...] = ()
    initial: Any = None
    process: int = field(default_factory=os.getpid)

    @property
    def ends(self) -> bool:
        """True if there is something to leave or to close."""
        return self.leave is not None or _is_closeable(self.value)

    @property
    def is_managed(self) -> bool:
        """True if it came from a context manager."""
        return self.leave is not None

    @property
    def ends_async(self) -> bool:
        """True if an event loop is needed for that."""
        closers = (getattr(type(self.value), name, None) for name in ("close", "aclose"))
        return self.loop is not None or any(map(inspect.iscoroutinefunction, closers))

    def end(self, error: BaseException | None, closer: str) -> Steps[None]:
        """Leave the manager with the error, then close a resource that is its own manager or has none.

        `closer` is the method to prefer, `close` or `aclose`.
        """
        if self.loop is not None and self.process != os.getpid():
            return
        try:
            if self.leave is not None:
                yield from self._finish(self.leave(error))
        except BaseException as raised:
            if raised is not error:
                raise
        finally:
            if self.own and _is_closeable(self.value):
                other = "aclose" if closer == "close" else "close"
                close = getattr(self.value, closer, None) or getattr(self.value, other)
                yield from self._finish(close())

    def _finish(self, result: Any) -> Steps[None]:
        if inspect.isawaitable(result):
            yield Work(result, self.loop)


def provide(resolver: Resolver, binding: Binding[Any], creation: Creation) -> Steps[Held]:
    """Call the provider, then await or enter what it returns."""
    token, chain = creating.set(creation), creation.chain
    try:
        protocol: Any = binding.protocol
        created = binding.provider(resolver)
        if not creation.opens:
            yield from _refuse_manager(protocol, created)
        held = yield from _held(protocol, created, chain)
    except ResourceError:
        raise
    except SystemExit as error:
        raise ResourceError(exited(f"The provider of {chain_text(chain)}", error)) from error
    except Exception as error:
        if not any(note.startswith("While creating resource ") for note in getattr(error, "__notes__", ())):
            error.add_note(f"While creating resource {chain_text(chain)}")
        raise
    finally:
        creating.reset(token)
    if held.value is None:
        nothing = ResourceError(f"The provider of {chain_text(chain)} must return the resource, got None")
        yield from held.end(nothing, "close")
        raise nothing
    return held


def _refuse_manager(protocol: type, created: Any) -> Steps[None]:
    """Raise for a context manager, which is not entered."""
    kind = type(created)
    if kind.__module__ in _LOCKS or not (hasattr(kind, "__enter__") or hasattr(kind, "__aenter__")):
        return
    refused = TransactionRefusedError(
        f"{type_name(protocol)} cannot be opened: this call is shown to a person before it counts, and "
        "what a transaction does cannot be shown; declare the tool with approval='call'"
    )
    yield from Held(protocol, created).end(refused, "close")
    raise refused


def _held(protocol: type, found: Any, chain: tuple[type, ...]) -> Steps[Held]:
    kind = type(found)
    if inspect.isgenerator(found) or inspect.isasyncgen(found):
        decorator = "contextmanager" if inspect.isgenerator(found) else "asynccontextmanager"
        raise ResourceError(
            f"The provider of {chain_text(chain)} must return the resource, got a generator; decorate it with "
            f"@{decorator}"
        )
    if kind.__module__ in _LOCKS:
        return Held(protocol, found)
    if hasattr(kind, "__aenter__") and hasattr(kind, "__aexit__"):
        from weakincentives._base.loops import Entered

        entered = Entered(found)
        value = _resource(protocol, found, (yield from awaited(Work(entered.enter()), chain)))
        return Held(protocol, value, entered.leave, own=value is found, loop=entered.loop)
    if hasattr(kind, "__enter__") and hasattr(kind, "__exit__"):
        value = _resource(protocol, found, kind.__enter__(found))
        return Held(protocol, value, partial(_leave, found), own=value is found)
    if inspect.isawaitable(found):
        work = Work(found)
        value = yield from awaited(work, chain)
        return Held(protocol, value, loop=work.loop)
    return Held(protocol, found)


def awaited(work: Step, chain: tuple[type, ...]) -> Steps[Any]:
    """The result of the work; an error says what to write instead if the caller would block the loop that does it."""
    try:
        return (yield work)
    except OnOwnLoop:
        if isinstance(work, Work):
            work.drop()
        name = type_name(chain[-1])
        raise ResourceError(
            f"{chain_text(chain)} is created asynchronously, so async code must await it: "
            f"`await context.resources.get_async({name})`, or bind it with eager=True"
        ) from None


def _resource(protocol: type, manager: Any, entered: Any) -> Any:
    """The value that entering returned, unless only the manager itself is what was bound."""
    with suppress(TypeError):  # A protocol that cannot be checked at run time.
        if isinstance(manager, protocol) and not isinstance(entered, protocol):
            return manager
    return entered


def _leave(manager: Any, error: BaseException | None) -> None:
    type(manager).__exit__(manager, None if error is None else type(error), error, error and error.__traceback__)


def _is_closeable(value: object) -> bool:
    kind = type(value)
    return callable(getattr(kind, "close", None)) or callable(getattr(kind, "aclose", None))


def exited(what: str, error: SystemExit) -> str:
    return f"{what} raised {error!r}; raise an Exception instead"
