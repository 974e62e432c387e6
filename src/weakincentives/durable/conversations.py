"""`Conversation` on a durable engine: any worker answers the next message, and what a killed one left is continued."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack, cast

from weakincentives.content import Content
from weakincentives.durable.process import DurableWorker
from weakincentives.durable.wait import Wait
from weakincentives.durable.work import (
    DatabaseUnavailableError,
    DurableError,
    InFlight,
    NoSuchWorkError,
    WorkPendingError,
    is_name,
)
from weakincentives.limits import Budget, Meter
from weakincentives.prompt import Prompt, Tool
from weakincentives.runtime import (
    Compaction,
    Conversation,
    Message,
    PendingCall,
    Point,
    PromptResponse,
    ProviderAdapter,
    RewindReport,
)
from weakincentives.runtime.spi import Decision, user_message
from weakincentives.serde import Upgrades
from weakincentives.session import Session

if TYPE_CHECKING:
    from weakincentives.durable.archive import Archive, Posted, RunRow, State
    from weakincentives.durable.streams import AsyncDurableStream, DurableStream

OutputT = TypeVar("OutputT")


class SendOptions(TypedDict, total=False):
    """The options of a message.

    `decisions` about calls that wait, by call id, are settled first. `params` are bound for this run, and `tools`,
    which have no handler, are offered in it: their calls wait for an `Answer`. A message with a known `key` is not sent
    again. With `join`, a message that arrives during a run is added to it before the next model call, and its answer is
    that of the run; a prompt with guards takes it as the next run. With `again`, the last answer is taken back first;
    with the id of a `point`, the conversation goes back there first, over calls with effects outside only with
    `over_effects`. `tenant` says who the work is for: a worker can
    limit how many of one tenant's runs execute at a time.
    """

    decisions: Mapping[str, Decision] | None
    params: Sequence[Any]
    tools: Sequence[Tool[Any, Any]]
    key: str | None
    join: bool
    again: bool
    point: str
    over_effects: bool
    tenant: str | None


class DurableConversations(DurableWorker, Generic[OutputT]):
    """Conversations that survive their processes, and are answered by any of many workers.

        chats = DurableConversations("support", lambda conversation: Prompt(SUPPORT), adapter, "postgresql://...")
        print(chats.send("ann", "Where is order 7?").text)

    `prepare` makes the prompt of a conversation from its id. It runs for each message, and again when a run continues
    in another process, so the same id must give the same prompt. `budget` and `deadline_seconds` limit each run, and
    `total` a whole conversation; `compaction` keeps it below the size of the model's window, None turns that off.

    Only `start()`, which `wink worker module:variable` calls, makes this process a worker. Without it, the object is a
    client: it sends messages, reads streams and decides, and workers do the work. Every call has an awaitable form that
    ends in `_async`.
    """

    def __init__(
        self,
        name: str,
        prepare: Callable[[str], Prompt[OutputT]],
        adapter: ProviderAdapter,
        database_url: str | None = None,
        *,
        new_session: Callable[[str], Session] = lambda conversation: Session(),
        version: str | None = None,
        upgrades: Upgrades = MappingProxyType({}),
        max_expansions: int = 10,
        budget: Budget | None = None,
        total: Budget | None = None,
        deadline_seconds: float | None = None,
        max_attempts: int = 5,
        lease_seconds: float = 5.0,
        compaction: Compaction | None = Compaction(),
    ) -> None:
        super().__init__(name, database_url, version=version, upgrades=upgrades)
        if not callable(prepare) or not isinstance(adapter, ProviderAdapter):
            raise DurableError(
                f"Durable conversations {name!r} need a function that makes a prompt from a conversation's id and an "
                f"adapter, got {type(prepare).__name__} and {type(adapter).__name__}."
            )
        Meter(budget, total=total)  # Rejects what is not a budget now, not in the first run.
        self.prepare = prepare
        self.adapter = adapter
        self.new_session = new_session
        self.max_expansions = max_expansions
        self.budget = budget
        self.compaction = compaction
        self.total = total
        self.deadline_seconds = deadline_seconds
        self.max_attempts = max_attempts
        self.lease_seconds = self._idle_timeout = lease_seconds

    def send(
        self,
        conversation: str,
        content: Content | None = None,
        *,
        timeout: float | None = None,
        **options: Unpack[SendOptions],
    ) -> PromptResponse[OutputT]:
        """Send a message and wait for the answer; `WorkPendingError` after `timeout` seconds, while the run goes on.

        Messages are answered in order, each as a run of its own. Without content, the model answers the prompt's user
        sections, or goes on with `decisions` about calls that wait.
        """
        wait, posted = self._wait(conversation, timeout), self._post(conversation, content, options)
        while (row := self._ended(conversation, posted, wait)) is None:
            wait.pause()
        return self._response(row)

    async def send_async(
        self,
        conversation: str,
        content: Content | None = None,
        *,
        timeout: float | None = None,
        **options: Unpack[SendOptions],
    ) -> PromptResponse[OutputT]:
        wait = await asyncio.to_thread(self._wait, conversation, timeout)
        posted = await asyncio.to_thread(self._post, conversation, content, options)
        while (row := await asyncio.to_thread(self._ended, conversation, posted, wait)) is None:
            await wait.pause_async()
        return self._response(row)

    def decide(
        self, conversation: str, decisions: Mapping[str, Decision], *, timeout: float | None = None
    ) -> PromptResponse[OutputT]:
        """Decide about pending calls, and continue the exchange once all are decided."""
        return self.send(conversation, decisions=decisions, timeout=timeout)

    async def decide_async(
        self, conversation: str, decisions: Mapping[str, Decision], *, timeout: float | None = None
    ) -> PromptResponse[OutputT]:
        return await self.send_async(conversation, decisions=decisions, timeout=timeout)

    def stream(
        self, conversation: str, content: Content | None = None, **options: Unpack[SendOptions]
    ) -> DurableStream[OutputT]:
        """`send` as a stream of events; leaving it does not stop the run.

        Without content and decisions, it is the stream of the newest run, from its start, live or ended. After
        `Restarted`, drop the text of the run so far: another worker continues the run, and its events come again.
        """
        name, store = self._id(conversation), self.store
        from weakincentives.durable.streams import DurableStream, StreamReader

        if content is None and options.get("decisions") is None and not (options.get("again") or options.get("point")):
            row = store.archive.find(name)
            if row is None:
                raise NoSuchWorkError(f"There is no conversation {conversation!r}; send it a message first.")
            posted = row.posted
        else:
            posted = self._post(conversation, content, options)
        return DurableStream(StreamReader(store.archive, store.serializer, name, posted), store.signals)

    def stream_async(
        self, conversation: str, content: Content | None = None, **options: Unpack[SendOptions]
    ) -> AsyncDurableStream[OutputT]:
        """`stream` on an event loop; the message is sent when it is entered, or when its first event is read."""
        from weakincentives.durable.streams import AsyncDurableStream

        return AsyncDurableStream(lambda: self.stream(conversation, content, **options))

    def read(self, conversation: str) -> Conversation[OutputT]:
        """The conversation as its last run left it, to look at; what is sent to this object stays in this process."""
        state = self._state(conversation)
        session = self.new_session(conversation)
        session.session_id = self._id(conversation)
        if state is not None:
            snapshot = state.snapshot(self._id(conversation), self.store.serializer.upgrades)
            session.restore(snapshot, preserve_logs=False)
        return Conversation(self.prepare(conversation), adapter=self.adapter, session=session)

    async def read_async(self, conversation: str) -> Conversation[OutputT]:
        return await asyncio.to_thread(self.read, conversation)

    def messages(self, conversation: str) -> tuple[Message, ...]:
        """The messages up to the end of the last run, from the user, the model and the tools."""
        state = self._state(conversation)
        found = () if state is None else state.snapshot(self._id(conversation), self.store.serializer.upgrades)[Message]
        return tuple(found)

    async def messages_async(self, conversation: str) -> tuple[Message, ...]:
        return await asyncio.to_thread(self.messages, conversation)

    def pending(self, conversation: str) -> tuple[PendingCall, ...]:
        """The calls that wait for a person's decision."""
        state = self._state(conversation)
        if state is None:
            return ()
        return tuple(state.snapshot(self._id(conversation), self.store.serializer.upgrades)[PendingCall])

    async def pending_async(self, conversation: str) -> tuple[PendingCall, ...]:
        return await asyncio.to_thread(self.pending, conversation)

    def checkpoints(self, conversation: str) -> tuple[Point, ...]:
        """The points to which the conversation can go back, oldest first: one for each user message and each turn."""
        return self.read(conversation).checkpoints()

    async def checkpoints_async(self, conversation: str) -> tuple[Point, ...]:
        return await asyncio.to_thread(self.checkpoints, conversation)

    def preview(self, conversation: str, point: Point | str, *, timeout: float | None = None) -> RewindReport:
        """The changes that a rewind would make, as a worker finds them."""
        return cast(RewindReport, self._act(conversation, "preview", point, timeout))

    async def preview_async(
        self, conversation: str, point: Point | str, *, timeout: float | None = None
    ) -> RewindReport:
        return await asyncio.to_thread(self.preview, conversation, point, timeout=timeout)

    def rewind(
        self,
        conversation: str,
        point: Point | str,
        *,
        compensate: bool = False,
        over_effects: bool = False,
        timeout: float | None = None,
    ) -> RewindReport:
        """Go back to a point, as `Conversation.rewind` does; a worker does it, after the messages sent before."""
        options = {"compensate": compensate, "over_effects": over_effects}
        return cast(RewindReport, self._act(conversation, "rewind", point, timeout, **options))

    async def rewind_async(
        self,
        conversation: str,
        point: Point | str,
        *,
        compensate: bool = False,
        over_effects: bool = False,
        timeout: float | None = None,
    ) -> RewindReport:
        options: dict[str, Any] = {"compensate": compensate, "over_effects": over_effects}
        options["timeout"] = timeout
        return await asyncio.to_thread(self.rewind, conversation, point, **options)

    def undo_rewind(self, conversation: str, *, timeout: float | None = None) -> RewindReport:
        """Undo the last rewind, if no message was sent since."""
        return cast(RewindReport, self._act(conversation, "undo_rewind", None, timeout))

    async def undo_rewind_async(self, conversation: str, *, timeout: float | None = None) -> RewindReport:
        return await asyncio.to_thread(self.undo_rewind, conversation, timeout=timeout)

    def fork(
        self,
        conversation: str,
        point: Point | str | None = None,
        new: str | None = None,
        *,
        timeout: float | None = None,
    ) -> str:
        """A second conversation from a point on, or from here; returns its id, which is `new` if that is given."""
        new = new or secrets.token_hex(8)
        if self._archive.load(self._id(new)) is not None:
            raise DurableError(f"There is a conversation {new!r} already; fork to another id.")
        return cast(str, self._act(conversation, "fork", point, timeout, new=new))

    async def fork_async(
        self,
        conversation: str,
        point: Point | str | None = None,
        new: str | None = None,
        *,
        timeout: float | None = None,
    ) -> str:
        return await asyncio.to_thread(self.fork, conversation, point, new, timeout=timeout)

    def _act(
        self, conversation: str, action: Any, point: Point | str | None, timeout: float | None, **arguments: Any
    ) -> object:
        """Have a worker change the conversation, in order with its messages."""
        from weakincentives.durable.archive import Action, Sent

        where = point.id if isinstance(point, Point) else point
        sent = Sent(action=Action(action, where, **arguments))
        name, whose = self._id(conversation), {"loop": self.name, "version": self.version}
        if self._archive.find(name) is None and self._archive.load(name) is None:
            raise NoSuchWorkError(f"There is no conversation {conversation!r}; send it a message first.")
        posted = self._archive.post(name, sent, **whose, tenant=None, key=None, join=False)
        wait = self._wait(conversation, timeout)
        while (row := self._ended(conversation, posted, wait)) is None:
            wait.pause()
        return self._response(row)

    def in_flight(self, conversation: str) -> InFlight:
        """The run and the messages that are not answered yet."""
        return self._archive.in_flight(self._id(conversation))

    async def in_flight_async(self, conversation: str) -> InFlight:
        return await asyncio.to_thread(self.in_flight, conversation)

    def stop(self, conversation: str) -> bool:
        """Stop the run under way where it stands; False if there is none.

        A model's reply ends at once, and a tool call is made to its end. What was shown and done so far stays in the
        conversation, and messages that wait are answered next. Whoever waits for the answer gets `WorkCancelledError`.
        """
        return self._archive.stop(self._id(conversation)) is not None

    async def stop_async(self, conversation: str) -> bool:
        return await asyncio.to_thread(self.stop, conversation)

    def delete(self, conversation: str) -> bool:
        """Stop a conversation and delete it with all its rows; False if there is none."""
        return self._archive.delete(self._id(conversation))

    async def delete_async(self, conversation: str) -> bool:
        return await asyncio.to_thread(self.delete, conversation)

    @property
    def _archive(self) -> Archive:
        return self.store.archive

    def _id(self, conversation: str) -> str:
        if not is_name(conversation):
            raise DurableError(f"A conversation's id must be a text, such as 'ann', got {conversation!r}.")
        return f"{self.name}/{conversation}"

    def _post(self, conversation: str, content: Content | None, options: SendOptions) -> Posted:
        name, archive = self._id(conversation), self._archive
        from weakincentives.durable.archive import DeclaredTool, Sent

        if unknown := options.keys() - SendOptions.__annotations__.keys():
            known = ", ".join(SendOptions.__annotations__)
            raise TypeError(f"unexpected keyword argument '{min(unknown)}'; known: {known}")
        key, decisions = options.get("key"), options.get("decisions")
        if key is not None and not is_name(key):
            raise DurableError(f"key must be a text that names the message, such as 'm-7', got {key!r}.")
        message = None if content is None else user_message(content)
        if message is not None and key:
            message = replace(message, key=key)
        params, tools = tuple(options.get("params", ())), tuple(options.get("tools", ()))
        for each in params:
            if type(each).__module__ == "__main__" and self._engine is None:
                raise DurableError(
                    f"{type(each).__qualname__} is defined in the running script, where no worker can find it; "
                    "move it into a module and import it from there."
                )
        for tool in tools:
            if tool.approval != "answer":
                raise DurableError(f"Tool {tool.name!r} of a message must have no handler; put it into the prompt.")
        sent = Sent(
            message,
            None if decisions is None else dict(decisions),
            params,
            tuple(DeclaredTool(tool.name, tool.description, json.dumps(tool.plain_schema)) for tool in tools),
            again=options.get("again", False),
            point=(point := options.get("point", "")),
            over_effects=options.get("over_effects", False),
        )
        return archive.post(
            name,
            sent,
            loop=self.name,
            version=self.version,
            tenant=options.get("tenant"),
            # The message that replaces another has its key.
            key=f"{key}@{point}" if key and point else key,
            join=options.get("join", False) and message is not None,
        )

    def _wait(self, conversation: str, timeout: float | None) -> Wait:
        return Wait(timeout, self.store.signals.waiter(self._id(conversation)))

    def _ended(self, conversation: str, posted: Posted, wait: Wait) -> RunRow | None:
        """The run that answers a message, once it has ended; raises when the time is up."""
        name, number = self._id(conversation), posted.number
        try:
            row = self._archive.find(name, posted)
            if row is not None and row.joined and row.ended:
                row = self._archive.find(name, row.joined)
        except DatabaseUnavailableError:
            if wait.is_over():
                raise
            return None
        if row is None:
            raise NoSuchWorkError(f"Conversation {conversation!r} has no run {number}; it was deleted.")
        if row.ended:
            return row
        if wait.is_over():
            status = "running" if row.attempt else "queued"
            whose = "" if row.attempt else f" for workers of version {self.version!r}"
            raise WorkPendingError(f"Run {number} of conversation {conversation!r} is {status}{whose}.", status=status)
        return None

    def _response(self, row: RunRow) -> PromptResponse[OutputT]:
        outcome = self.store.serializer.deserialize(row.outcome or "null")
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome  # type: ignore[no-any-return]

    def _state(self, conversation: str) -> State | None:
        return self._archive.load(self._id(conversation))

    def _body(self) -> Any:
        from weakincentives.durable.exchange import ConversationWorkflow

        return ConversationWorkflow(
            self.prepare,
            self.adapter,
            self.new_session,
            self.max_expansions,
            self.budget,
            self.deadline_seconds,
            self.compaction,
            name=self.name,
            total=self.total,
        )
