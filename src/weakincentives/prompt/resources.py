"""The resources of a prompt: held open by its caller, or opened by each run for itself."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from weakincentives.errors import PromptValidationError
from weakincentives.filesystem import Filesystem
from weakincentives.prompt.markdown import OWN_FILES
from weakincentives.prompt.tools import Tool
from weakincentives.resources import ClassOf, ResourceRegistry, ScopedResourceContext
from weakincentives.session import Session

if TYPE_CHECKING:
    from weakincentives.resources.loop import ContextLoop

T = TypeVar("T")


class Bound(Protocol):
    """The part of a prompt that says which resources it has."""

    name: str
    bound_resources: ResourceRegistry

    def collect_resources(self, bound: ResourceRegistry) -> ResourceRegistry: ...


class Resourceful:
    """A context manager that holds a prompt's resources open; re-entrant, the outermost exit closes them."""

    resources: PromptResources

    def __enter__(self) -> Self:
        self.resources.enter()
        return self

    def __exit__(self, *error: Any) -> None:
        if (context := self.resources.leave()) is not None:
            context.__exit__(*error)

    async def __aenter__(self) -> Self:
        await self.resources.enter_async()
        return self

    async def __aexit__(self, *error: Any) -> None:
        if (context := self.resources.leave()) is not None:
            await context.__aexit__(*error)


@dataclass(frozen=True, slots=True)
class OpenResources:
    """Resources that are open, and what they were opened with; `own_files` if the files are those of the session."""

    context: ScopedResourceContext
    bound: ResourceRegistry
    session: Session | None
    own_files: bool
    borrowed: bool = False

    def of_run(self, session: Session) -> ScopedResourceContext:
        """The resources for a run on this session; if another session opened them, with files of its own."""
        if self.session in (None, session) or not self.own_files:
            return self.context
        return self.context.with_instances({Filesystem: session.workspace})


class PromptResources(Resourceful):
    """`with prompt.resources:` opens the resources, `prompt.resources.get(...)` resolves one.

    As long as they are held open like this, runs of the prompt and of its copies use them. Otherwise each run opens
    resources of its own, as they were bound when it began: those of one run may be those of one user.
    """

    def __init__(self, prompt: Bound, *, lender: PromptResources | None = None) -> None:
        self.resources = self
        self._prompt = prompt
        self._lender = lender
        self._held: OpenResources | None = None
        self._depth = 0
        self._runs: dict[Session, OpenResources] = {}
        self._loop: ContextLoop | None = None
        self._lock = threading.Lock()

    @property
    def context(self) -> ScopedResourceContext:
        """The resources that are held open, or else those of the one run under way."""
        runs = list(self._runs.values())
        if self._held is None and len(runs) > 1:
            raise RuntimeError(
                f"{len(runs)} runs of prompt '{self._prompt.name}' are under way, each with resources of its own; take "
                "them from the context of the tool, as context.resources, or share them: `with prompt.resources:`."
            )
        return self._required(self._held or next(iter(runs), None)).context

    @property
    def held_open(self) -> bool:
        """True inside `with prompt:`."""
        return self._held is not None

    def get(self, protocol: ClassOf[T]) -> T:
        return self.context.get(protocol)

    async def get_async(self, protocol: ClassOf[T]) -> T:
        return await self.context.get_async(protocol)

    def get_optional(self, protocol: ClassOf[T]) -> T | None:
        return self.context.get_optional(protocol)

    def keep_loop(self) -> None:
        """Use one event loop for async resources and tools however often these are opened, until `close_loop`."""
        from weakincentives.resources.loop import ContextLoop

        self._loop = ContextLoop()

    def close_loop(self) -> None:
        """End the event loop, unless resources are still open."""
        if self._loop is not None and self._depth == 0 and not self._runs:
            self._loop.close()

    def of_run(self, session: Session) -> ScopedResourceContext:
        """The open resources for a run on this session."""
        return self._required(self._runs.get(session, self._held)).of_run(session)

    def lend(self, session: Session, borrower: PromptResources) -> None:
        """Have a run inside the one on this session use the same resources."""
        borrower._held = replace(self._required(self._runs.get(session, self._held)), borrowed=True)
        borrower._depth = 1

    def enter(self, session: Session | None = None) -> None:
        """Hold the resources open, for runs on this session; if they are, once more."""
        with self._lock:
            resources = self._held or self._lent(session, self._prompt.bound_resources)
            if resources is None:
                resources = self._new(session, self._prompt.bound_resources)
                resources.context.start()
            self._held = resources
            self._depth += 1

    async def enter_async(self, session: Session | None = None) -> None:
        """`enter` on an event loop, on which async resources then live."""
        with self._lock:
            resources = self._held or self._lent(session, self._prompt.bound_resources)
            starts = resources is None
            if resources is None:
                resources = self._new(session, self._prompt.bound_resources)
            self._held = resources
            self._depth += 1
        if starts:
            try:
                await resources.context.start_async()
            except BaseException:
                self.leave()
                raise

    def leave(self) -> ScopedResourceContext | None:
        """Leave the resources; the outermost exit returns what it has to close."""
        with self._lock:
            self._depth -= 1
            if self._depth:
                return None
            resources, self._held = self._held, None
            return None if resources is None or resources.borrowed else resources.context

    @contextmanager
    def for_run(self, session: Session, bound: ResourceRegistry) -> Iterator[None]:
        """Open resources for a run on this session, unless they are held open with the same ones bound."""
        with ExitStack() as stack:
            resources, is_held = self._begin(session, bound)
            stack.callback(self._runs.pop, session, None)
            if is_held:
                stack.push(self)
            elif not resources.borrowed:
                stack.enter_context(resources.context)
            yield

    @asynccontextmanager
    async def for_run_async(self, session: Session, bound: ResourceRegistry) -> AsyncIterator[None]:
        """`for_run` on an event loop, on which async resources then live."""
        async with AsyncExitStack() as stack:
            resources, is_held = self._begin(session, bound)
            stack.callback(self._runs.pop, session, None)
            if is_held:
                stack.push_async_exit(self)
            elif not resources.borrowed:
                await stack.enter_async_context(resources.context)
            yield

    def _begin(self, session: Session, bound: ResourceRegistry) -> tuple[OpenResources, bool]:
        """The resources of a run, and whether they are held open here, so that the run is to leave them."""
        with self._lock:
            resources = self._held
            is_held = resources is not None and resources.bound is bound
            if is_held:
                self._depth += 1
            else:
                resources = self._lent(session, bound)
            if resources is None:
                resources = self._new(session, bound)
            self._runs[session] = resources
            return resources, is_held

    def _lent(self, session: Session | None, bound: ResourceRegistry) -> OpenResources | None:
        """What a prompt that this one is a copy of has open, if these are the resources that are bound there.

        That is what its caller holds open, or what its run on the same session has opened: a conversation that is
        taken up inside that run, to go back in it, has the run's resources.
        """
        lender = self._lender
        while lender is not None:
            resources = lender._held
            if resources is None and session is not None:
                resources = lender._runs.get(session)
            if resources is not None:
                return replace(resources, borrowed=True) if resources.bound is bound else None
            lender = lender._lender
        return None

    def _new(self, session: Session | None, bound: ResourceRegistry) -> OpenResources:
        """New resources, which are still to be started. A workspace that nobody provides is that of the session."""
        registry = self._prompt.collect_resources(bound)
        own_files = registry.bindings.get(Filesystem) is OWN_FILES
        if own_files and session is not None:
            registry = registry.merge({Filesystem: session.workspace})
        return OpenResources(registry.create_context(self._loop), bound, session, own_files)

    def _required(self, resources: OpenResources | None) -> OpenResources:
        if resources is None:
            raise RuntimeError(
                f"Resources of prompt '{self._prompt.name}' are used outside `with prompt.resources:`; enter it first."
            )
        return resources


def check_captured(
    tools: Iterable[Tool[Any, Any]],
    bound: Callable[[], ResourceRegistry],
) -> None:
    """Raise for a tool that declares changes of a resource which, as it is bound, has no snapshots."""
    registry: ResourceRegistry | None = None
    for tool in tools:
        registry = registry or bound()
        for protocol in tool.changes or ():
            binding = registry.bindings.get(protocol)
            problem = binding.capture_problem if binding is not None else ""
            if problem:
                raise PromptValidationError(
                    f"Tool '{tool.name}': changes= names {protocol.__qualname__}, whose changes cannot "
                    f"be captured: {problem}. Use approval='call' for a tool that acts on it."
                )
