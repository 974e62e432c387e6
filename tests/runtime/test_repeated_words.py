"""After a compaction by the provider, the user's earlier words stand before the question, and say what they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.prompt import EstimatedTokens, MarkdownSection, Prompt, PromptTemplate, tool
from weakincentives.runtime import (
    Compacted,
    Compaction,
    Conversation,
    Message,
    ModelReply,
    ModelRequest,
    run,
)
from weakincentives.session import Session, Snapshot

PADDING = "lorem ipsum dolor sit amet " * 30
ORDER = "Never call me before nine."


@tool(read_only=True)
def look(n: int) -> str:
    "Look at a row."
    return f"row {n} {PADDING}"


class Compacting(ScriptedAdapter):
    """A provider that compacts conversations itself, and looks at some rows before it answers."""

    compacts = True

    def __init__(self, looks: int, *, binds: bool) -> None:
        super().__init__(self.answer, tokenizer=EstimatedTokens())
        self.looks = looks
        self.binds = binds
        self.max_requests = 1_000

    def binds_reasoning(self, message: Message) -> bool:
        return self.binds and message.role == "assistant"

    def answer(self, request: ModelRequest) -> Any:
        if request.compaction:
            return ModelReply("Rows were looked at.", items=('{"type": "compaction"}',))
        results = 0
        for message in reversed(request.messages):
            if message.role == "user" and not message.kind:
                break
            results += message.role == "tool"
        looks = results < self.looks and len(self.requests) < self.max_requests
        return call("look", n=results) if looks else f"All is well. {PADDING}"

    @property
    def answered(self) -> list[ModelRequest]:
        return [request for request in self.requests if not request.compaction]


def chat_with(adapter: ScriptedAdapter, *, user_section: bool = False) -> Conversation[Any]:
    sections = [MarkdownSection(key="task", title="Task", template="Help.", tools=[look])]
    if user_section:
        sections.append(MarkdownSection(key="who", title="Who", template="I am Ann.", role="user"))
    template = PromptTemplate(ns="tests", key="words", sections=sections)
    compaction = Compaction(window=5_000, keep=2)
    return Conversation(Prompt(template), adapter=adapter, compaction=compaction)


def newest_user_text(request: ModelRequest) -> str:
    return [message.text for message in request.messages if message.role == "user"][-1]


def repeats(request: ModelRequest) -> list[str]:
    texts = [message.text for message in request.messages if message.kind == "earlier"]
    return [text for text in texts if ORDER in text]


def restored(chat: Conversation[Any]) -> Conversation[Any]:
    session = Session()
    session.restore(Snapshot.from_json(chat.session.snapshot().to_json()))
    return Conversation(chat.prompt, adapter=chat.adapter, session=session, compaction=chat.compaction)


@pytest.mark.parametrize("go_on", [lambda chat: chat, restored, Conversation.fork], ids=["same", "restored", "fork"])
@pytest.mark.parametrize("user_section", [False, True], ids=["", "user section"])
@pytest.mark.parametrize("binds", [False, True], ids=["free", "bound"])
@pytest.mark.parametrize("looks", [0, 1, 3, 12])
def test_the_newest_words_of_the_user_are_those_to_be_answered(
    looks: int, binds: bool, user_section: bool, go_on: Callable[[Any], Conversation[Any]]
) -> None:
    adapter = Compacting(looks, binds=binds)
    chat = chat_with(adapter, user_section=user_section)
    chat.send(f"Question 0? {ORDER}")
    for number in range(1, 20 if looks < 3 else 6):
        chat = go_on(chat)
        first = len(adapter.requests)
        chat.send(f"Question {number}?")
        for request in adapter.requests[first:]:
            in_progress = request.compaction or newest_user_text(request).endswith(f"Question {number}?")
            assert in_progress or "working on" in newest_user_text(request)
    assert chat.session[Compacted].all()
    assert repeats(adapter.answered[-1])[0].startswith("This is not a new message.")
    everything = "\n".join(message.text for message in adapter.answered[-1].messages)
    assert not user_section or "I am Ann." in everything


@pytest.mark.parametrize("binds", [False, True], ids=["free", "bound"])
@pytest.mark.parametrize("looks", [0, 1, 3])
def test_requests_between_two_compactions_extend_each_other(looks: int, binds: bool) -> None:
    adapter = Compacting(looks, binds=binds)
    chat = chat_with(adapter)
    for number in range(50):
        chat.send(f"Question {number}?")
    before: list[Message] = []
    for request in adapter.requests:
        messages = list(request.messages)
        if before and not request.compaction:
            assert messages[: len(before)] == before
        before = [] if request.compaction else messages
    assert len(chat.session[Compacted]) > 1


def test_the_words_of_a_summary_by_the_provider_are_not_part_of_the_conversation() -> None:
    adapter = Compacting(0, binds=False)
    chat = chat_with(adapter)
    for number in range(20):
        chat.send(f"Question {number}?")
    assert {message.kind for message in chat.messages if message.role == "user"} == {""}


def test_a_run_reads_its_task_again_after_what_stands_for_its_turns() -> None:
    adapter = Compacting(100, binds=False)
    adapter.max_requests = 25
    sections = [
        MarkdownSection(key="task", title="Task", template="Help.", tools=[look]),
        MarkdownSection(key="ask", title="Ask", template="Look at all rows.", role="user"),
    ]
    session = Session()
    prompt = Prompt(ns="tests", key="run", sections=sections)
    run(prompt, adapter, session=session, compaction=Compaction(window=1_000, keep=2))
    assert session[Compacted].all()
    messages = [message for message in adapter.answered[-1].messages if not message.tools]
    system, head, task, *rest = messages
    assert (system.role, head.kind, task.text) == ("system", "summary", "## 2. Ask\n\nLook at all rows.")
    assert "user" not in {message.role for message in rest}
