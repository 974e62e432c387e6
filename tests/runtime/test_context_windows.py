"""What an overflow reveals of a model's window counts from then on, whatever was declared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from weakincentives.adapters import FallbackAdapter
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.errors import ContextOverflowError, PromptEvaluationError
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate
from weakincentives.runtime import (
    Compacted,
    Compaction,
    Conversation,
    Message,
    ModelReply,
    ModelRequest,
    delegate,
)
from weakincentives.session import Session, Snapshot

WINDOW = 3_000
PADDING = "lorem ipsum dolor sit amet " * 30
TASK = MarkdownSection(key="task", title="Task", template="Help.")
TEMPLATE = PromptTemplate(ns="tests", key="windows", sections=[TASK])


def size(request: ModelRequest) -> int:
    return sum(len(message.text) for message in request.messages) // 4


class SmallWindow(ScriptedAdapter):
    """A model that refuses requests above its window, and counts them."""

    def __init__(self, window: int = WINDOW, model: str = "small", script: Any = None) -> None:
        super().__init__(script or (lambda request: f"Yes. {PADDING}"))
        self.model = model
        self.window = window
        self.refused = 0

    def reply(self, request: ModelRequest) -> ModelReply:
        if size(request) > self.window:
            self.refused += 1
            text = f"prompt is too long: {size(request)} tokens > {self.window} maximum"
            raise ContextOverflowError(text, phase="request")
        return super().reply(request)


def talk(chat: Conversation[Any], exchanges: int) -> None:
    for number in range(exchanges):
        assert chat.send(f"Question {number}?").text.startswith("Yes.")


def restored(chat: Conversation[Any]) -> Conversation[Any]:
    session = Session()
    session.restore(Snapshot.from_json(chat.session.snapshot().to_json()))
    return Conversation(chat.prompt, adapter=chat.adapter, session=session, compaction=chat.compaction)


def rewound(chat: Conversation[Any]) -> Conversation[Any]:
    chat.rewind(chat.checkpoints()[0].id)
    return chat


def forked(chat: Conversation[Any]) -> Conversation[Any]:
    return chat.fork()


DOORS = [restored, rewound, forked]


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
@pytest.mark.parametrize("declared", [None, 4_000, 1_000_000], ids=str)
def test_one_refused_request_is_enough(declared: int | None, door: Callable[..., Any]) -> None:
    adapter = SmallWindow()
    chat: Conversation[Any] = Conversation(Prompt(TEMPLATE), adapter=adapter, compaction=Compaction(window=declared))
    talk(chat, 25)
    talk(door(chat), 25)
    assert adapter.refused == 1


async def test_a_stream_remembers_it_for_a_message() -> None:
    adapter = SmallWindow()
    compaction = Compaction(window=1_000_000)
    chat: Conversation[Any] = Conversation(Prompt(TEMPLATE), adapter=adapter, compaction=compaction)
    for number in range(25):
        async with chat.stream_async(f"Question {number}?") as events:
            assert [event async for event in events]
    assert adapter.refused == 1
    talk(chat, 25)
    assert adapter.refused == 1


def test_what_is_declared_counts_if_it_is_less() -> None:
    adapter = SmallWindow(1_000_000)
    chat: Conversation[Any] = Conversation(Prompt(TEMPLATE), adapter=adapter, compaction=Compaction(window=2_000))
    talk(chat, 25)
    assert max(map(size, adapter.requests)) < 2_000


def test_an_overflow_that_could_not_be_mended_is_remembered() -> None:
    adapter = SmallWindow()
    chat: Conversation[Any] = Conversation(Prompt(TEMPLATE), adapter=adapter, compaction=Compaction(window=1_000_000))
    with pytest.raises(ContextOverflowError):
        chat.send("So many words. " * 2_000)
    chat.session[Message].clear()
    talk(chat, 25)
    assert adapter.refused == 1


def test_each_model_has_a_window_of_its_own() -> None:
    def sometimes(request: ModelRequest) -> str:
        if "Question 20?" in request.messages[-1].text:
            raise PromptEvaluationError("down", phase="request")
        return f"Yes. {PADDING}"

    large, small = SmallWindow(50_000, "large", sometimes), SmallWindow()
    adapter = FallbackAdapter(large, small)
    chat: Conversation[Any] = Conversation(Prompt(TEMPLATE), adapter=adapter)
    talk(chat, 21)
    assert (large.refused, small.refused) == (0, 1)
    compactions = len(chat.session[Compacted])
    talk(chat, 19)
    # The small model's window does not shorten what the large one reads.
    assert len(chat.session[Compacted]) == compactions
    talk(chat, 21)
    assert (large.refused, small.refused) == (0, 1)


def test_a_delegated_run_knows_what_its_parent_has_learned() -> None:
    section = MarkdownSection(key="help", title="Help", template=f"Helper. {PADDING * 20}")
    helper = PromptTemplate(ns="tests", key="helper", sections=[section])
    ask = delegate(helper, description="Ask.", name="ask")
    learned: list[bool] = []

    def script(request: ModelRequest) -> Any:
        last = request.messages[-1]
        if "Helper." in request.messages[0].text:
            learned.append(True)
            return "Helped."
        return call("ask") if last.text == "Question 24?" and last.role == "user" else f"Yes. {PADDING}"

    adapter = SmallWindow(5_000, script=script)
    task = MarkdownSection(key="task", title="Task", template="Help.", tools=[ask])
    template = PromptTemplate(ns="tests", key="parent", sections=[task])
    chat: Conversation[Any] = Conversation(Prompt(template), adapter=adapter, compaction=Compaction(window=1_000_000))
    talk(chat, 40)
    assert (adapter.refused, learned) == (1, [True])
