"""A conversation of several turns: what the user says, what the model answers, and what is open meanwhile."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Generic, Self, Unpack

from weakincentives._generics import OutputT
from weakincentives.content import Content
from weakincentives.limits import Budget, TokenUsage
from weakincentives.prompt import Prompt
from weakincentives.runtime.adapter import ProviderAdapter, RunOptions
from weakincentives.runtime.drivers import AsyncEventStream, EventStream
from weakincentives.runtime.events import ModelCalled
from weakincentives.runtime.main_loop import MainLoop
from weakincentives.runtime.messages import Message, PromptResponse, user_message
from weakincentives.runtime.run import Run
from weakincentives.session import Session


class Conversation(Generic[OutputT]):
    """Talks to a model in several turns.

        chat = Conversation(prompt, adapter=OpenAIAdapter("gpt-5.6"))
        print(chat.send("Where is order 7?").text)
        with chat.stream([Image.from_path("box.jpg"), "It arrived like this."]) as events:
            for event in events: ...

    Its state is the session: sections that were opened stay open, and a conversation whose session was restored from a
    snapshot goes on where that stood. Each turn is a run of its own; `budget` is what each may spend unless `send` is
    given another. A turn may be stopped at any moment: by closing its stream, cancelling its task, or Ctrl-C. Used as a
    context manager, it keeps the prompt's resources open between turns.
    """

    def __init__(
        self,
        prompt: Prompt[OutputT],
        *,
        adapter: ProviderAdapter,
        session: Session | None = None,
        budget: Budget | None = None,
        max_expansions: int = 10,
    ) -> None:
        self.prompt = prompt
        self.adapter = adapter
        self.session = Session() if session is None else session
        self._loop = MainLoop(max_expansions=max_expansions, budget=budget)

    def __enter__(self) -> Self:
        self.prompt.resources.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.prompt.resources.__exit__(kind, error, trace)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.prompt.resources.__aexit__(kind, error, trace)

    @property
    def conversation_id(self) -> str:
        """What all runs of this conversation have in common."""
        run = self.session[Run].latest()
        return self.session.session_id if run is None else run.conversation_id

    @property
    def messages(self) -> tuple[Message, ...]:
        """What was said so far, by the user, the model and the tools."""
        return self.session[Message].all()

    @property
    def usage(self) -> TokenUsage:
        """What all turns have used, those of earlier processes included."""
        mine = self.conversation_id
        calls = self.session[ModelCalled].view()
        return sum((call.usage for call in calls if call.conversation_id == mine), TokenUsage())

    def bind(self, *params: Any) -> None:
        """Bind params anew; the model is told what has changed with the next turn."""
        self.prompt.bind(*params)

    def send(self, content: Content | None = None, **options: Unpack[RunOptions]) -> PromptResponse[OutputT]:
        """Say something and wait for the answer. Without content, the prompt's user sections are answered alone."""
        return self._loop.execute(self.prompt, session=self.session, adapter=self.adapter, **_turn(content, options))

    async def send_async(
        self, content: Content | None = None, **options: Unpack[RunOptions]
    ) -> PromptResponse[OutputT]:
        """`send` on an event loop."""
        turn = _turn(content, options)
        return await self._loop.execute_async(self.prompt, session=self.session, adapter=self.adapter, **turn)

    def stream(self, content: Content | None = None, **options: Unpack[RunOptions]) -> EventStream[OutputT]:
        """`send` as a stream of events; leaving it stops the turn."""
        return self._loop.stream(self.prompt, session=self.session, adapter=self.adapter, **_turn(content, options))

    def stream_async(self, content: Content | None = None, **options: Unpack[RunOptions]) -> AsyncEventStream[OutputT]:
        """`stream` on an event loop."""
        turn = _turn(content, options)
        return self._loop.stream_async(self.prompt, session=self.session, adapter=self.adapter, **turn)


def _turn(content: Content | None, options: RunOptions) -> RunOptions:
    message = None if content is None else user_message(content)
    return {**options, "beginning": "turn", "message": message}
