"""The resources of a prompt: held open by its caller, or opened by each run for itself."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

from weakincentives.filesystem import Filesystem
from weakincentives.prompt.markdown import OWN_FILES
from weakincentives.prompt.template import BoundPrompt
from weakincentives.resources import ClassOf, ResourceRegistry, ScopedResourceContext
from weakincentives.session import Session

if TYPE_CHECKING:
    from weakincentives.resources.loop import ContextLoop

T = TypeVar("T")


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

    def of_session(self, session: Session) -> ScopedResourceContext:
        """The resources for this session; if another one opened them, with files of its own."""
        if self.session in (None, session) or not self.own_files:
            return self.context
        return self.context.with_instances({Filesystem: session.workspace})


class PromptResources(Resourceful):
    """`with prompt.resources:` opens the resources, `prompt.resources.get(...)` resolves one.

    As long as they are held open like this, runs of the prompt and of its copies use them. Otherwise each run opens
    resources of its own, as they were bound when it began: those of one run may be those of one user.
    """

    def __init__(self, prompt: Callable[[], BoundPrompt[Any]], *, lender: PromptResources | None = None) -> None:
        self.resources = self
        self._prompt = prompt
        self._lender = lender
        self._held: OpenResources | None = None
        self._depth = 0
        # The number of runs under way that use the event loop; what they have opened is theirs.
        self._runs = 0
        self._loop: ContextLoop | None = None
        self._lock = threading.Lock()

    @property
    def context(self) -> ScopedResourceContext:
        """The resources that are held open."""
        return self._required().context

    @property
    def held_open(self) -> bool:
        """True inside `with prompt:`."""
        return self._held is not None

    @property
    def opened(self) -> OpenResources:
        """What is held open, for a run that borrows it."""
        return self._required()

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

    def of_session(self, session: Session) -> ScopedResourceContext:
        """The resources that are held open, for this session."""
        return self._required().of_session(session)

    def borrow(self, resources: OpenResources) -> None:
        """Hold the open resources of a run, which closes them."""
        with self._lock:
            self._held = replace(resources, borrowed=True)
            self._depth += 1

    @contextmanager
    def borrowing(self, resources: OpenResources) -> Iterator[None]:
        """Hold the open resources of a run for a while, such as to go back in its conversation."""
        self.borrow(resources)
        try:
            yield
        finally:
            self.leave()

    def enter(self, session: Session | None = None) -> None:
        """Hold the resources open, for runs on this session; if they are, once more."""
        with self._lock:
            resources = self._held or self._lent(self._prompt())
            if resources is None:
                resources = self._new(session, self._prompt())
                resources.context.start()
            self._held = resources
            self._depth += 1

    async def enter_async(self, session: Session | None = None) -> None:
        """`enter` on an event loop, on which async resources then live."""
        with self._lock:
            resources = self._held or self._lent(self._prompt())
            starts = resources is None
            if resources is None:
                resources = self._new(session, self._prompt())
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
    def for_run(self, session: Session, prompt: BoundPrompt[Any]) -> Iterator[OpenResources]:
        """Open resources for a run on this session, unless they are held open with the same ones bound."""
        with ExitStack() as stack:
            resources, is_held = self._begin(session, prompt)
            stack.callback(self._end_run)
            if is_held:
                stack.push(self)
            elif not resources.borrowed:
                stack.enter_context(resources.context)
            yield resources

    @asynccontextmanager
    async def for_run_async(self, session: Session, prompt: BoundPrompt[Any]) -> AsyncIterator[OpenResources]:
        """`for_run` on an event loop, on which async resources then live."""
        async with AsyncExitStack() as stack:
            resources, is_held = self._begin(session, prompt)
            stack.callback(self._end_run)
            if is_held:
                stack.push_async_exit(self)
            elif not resources.borrowed:
                await stack.enter_async_context(resources.context)
            yield resources

    def _begin(self, session: Session, prompt: BoundPrompt[Any]) -> tuple[OpenResources, bool]:
        """The resources of a run, and whether they are held open here, so that the run is to leave them."""
        with self._lock:
            resources = self._held
            is_held = resources is not None and resources.bound is prompt.bound_resources
            if is_held:
                self._depth += 1
            else:
                resources = self._lent(prompt)
            resources = resources or self._new(session, prompt)
            self._runs += 1
            return resources, is_held

    def _end_run(self) -> None:
        with self._lock:
            self._runs -= 1

    def _lent(self, prompt: BoundPrompt[Any]) -> OpenResources | None:
        """What a prompt that this one is a copy of holds open, if these are the resources that are bound there."""
        lender = self._lender
        while lender is not None:
            resources = lender._held
            if resources is not None:
                is_same = resources.bound is prompt.bound_resources
                return replace(resources, borrowed=True) if is_same else None
            lender = lender._lender
        return None

    def _new(self, session: Session | None, prompt: BoundPrompt[Any]) -> OpenResources:
        """New resources, which are still to be started. A workspace that nobody provides is that of the session."""
        registry = prompt.collect_resources()
        own_files = registry.bindings.get(Filesystem) is OWN_FILES
        if own_files and session is not None:
            registry = registry.merge({Filesystem: session.workspace})
        return OpenResources(registry.create_context(self._loop), prompt.bound_resources, session, own_files)

    def _required(self) -> OpenResources:
        resources = self._held
        if resources is None:
            raise RuntimeError(
                f"Resources of prompt '{self._prompt().name}' are used outside `with prompt.resources:`; enter it "
                "first. A tool finds those of its run in context.resources."
            )
        return resources
