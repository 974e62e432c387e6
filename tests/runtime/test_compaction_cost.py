"""What a compaction costs: model calls and counted texts do not grow with the conversation, and run in threads."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from weakincentives.adapters.scripted import ScriptedAdapter
from weakincentives.clock import FakeClock
from weakincentives.errors import ContextOverflowError
from weakincentives.limits import Budget, Prices, TokenUsage
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate
from weakincentives.runtime import Compacted, Compaction, Conversation, ModelReply, ModelRequest
from weakincentives.session import Session

TEMPLATE = PromptTemplate(
    ns="tests", key="cost", sections=[MarkdownSection(key="task", title="Task", template="Help.")]
)


def summarizes(request: ModelRequest) -> bool:
    spoken = [message for message in request.messages if message.role == "user" and not message.kind]
    return spoken[-1].text.startswith("Summarize the conversation")


class Meter(ScriptedAdapter):
    """Answers with as many words as it is told to, and records which thread counts each text."""

    def __init__(self, answer_words: int = 20, *, reports_usage: bool = True) -> None:
        super().__init__(self.answer)
        self.answer_words = answer_words
        self.reports_usage = reports_usage
        self.calls = 0
        self.counted: Counter[int] = Counter()

    def answer(self, request: ModelRequest) -> str:
        self.calls += 1
        return "All is well. " * 10 if summarizes(request) else "w " * self.answer_words

    def count_tokens(self, text: str) -> int:
        self.counted[threading.get_ident()] += 1
        return len(text) // 2

    def reply(self, request: ModelRequest) -> ModelReply:
        reply = super().reply(request)
        if not self.reports_usage:
            return replace(reply, usage=TokenUsage())
        return replace(reply, usage=replace(reply.usage, cached_tokens=reply.usage.input_tokens))


def chat_with(adapter: ScriptedAdapter, **options: Any) -> Conversation[Any]:
    return Conversation(Prompt(TEMPLATE), adapter=adapter, **options)


@pytest.mark.parametrize("question_words", [5, 400])
@pytest.mark.parametrize("share", [0.05, 0.2, 0.4, 0.6, 0.75], ids=str)
@pytest.mark.parametrize("keep", [1, 4])
@pytest.mark.parametrize("window", [8_000, 16_000, 32_000])
def test_a_message_costs_as_many_calls_however_long_the_conversation_is(
    question_words: int, share: float, keep: int, window: int
) -> None:
    adapter = Meter(int(share * window))
    chat = chat_with(adapter, compaction=Compaction(window=window, keep=keep))
    calls: list[int] = []
    for _ in range(40):
        before = adapter.calls
        chat.send("m " * question_words)
        calls.append(adapter.calls - before)
    # Two parts, if what is to be summarized does not fit at once.
    assert max(calls) <= 3
    assert sum(calls) <= 2 * len(calls)


@pytest.mark.parametrize("place", [0, 3, 20])
def test_a_message_longer_than_the_window_is_summarized_once(place: int) -> None:
    adapter = Meter()
    chat = chat_with(adapter, compaction=Compaction(window=8_000))
    for number in range(30):
        chat.send("m " * 20_000 if number == place else f"Question {number}?")
    # One part up to the long message, and one with it.
    assert adapter.calls - 30 <= 3


def counted_by_exchange(chat: Conversation[Any], adapter: Meter, exchanges: int) -> list[int]:
    counted: list[int] = []
    for number in range(exchanges):
        before = adapter.counted.total()
        chat.send(f"Question {number}?")
        counted.append(adapter.counted.total() - before)
    return counted


@pytest.mark.parametrize("reports_usage", [True, False], ids=["usage", "no usage"])
def test_the_texts_that_an_exchange_counts_do_not_become_more(reports_usage: bool) -> None:
    adapter = Meter(reports_usage=reports_usage)
    chat = chat_with(adapter, compaction=Compaction(window=2_000))
    counted = counted_by_exchange(chat, adapter, 400)
    assert len(chat.session[Compacted]) > 4
    assert max(counted[200:]) <= 1.2 * max(counted[:200])
    # Most exchanges need no compaction, and count what is new alone.
    assert sorted(counted[200:])[100] <= 20


async def test_an_event_loop_counts_what_is_new_alone() -> None:
    adapter = Meter()
    chat = chat_with(adapter, compaction=Compaction(window=3_000))
    for number in range(300):
        compactions = len(chat.session[Compacted])
        adapter.counted.clear()
        await chat.send_async(f"Question {number}?")
        here = adapter.counted.pop(threading.get_ident(), 0)
        assert here <= 20
        if len(chat.session[Compacted]) > compactions:
            assert adapter.counted.total() > 200
    assert len(chat.session[Compacted]) > 1


async def test_a_long_message_is_counted_in_a_thread() -> None:
    adapter = Meter()
    threads: list[int] = []
    adapter.count_tokens = lambda text: threads.append(threading.get_ident()) or 9  # type: ignore[method-assign]
    chat = chat_with(adapter, compaction=Compaction(window=1_000_000))
    await chat.send_async("Question 0?")
    threads.clear()
    await chat.send_async("m " * 50_000)
    assert threading.get_ident() not in threads and threads


async def test_an_event_loop_does_not_compute_whether_a_compaction_pays() -> None:
    clock, adapter = FakeClock(), Meter(400)
    budget = Budget(prices=Prices(input=1.0, output=0.1))
    chat = chat_with(adapter, session=Session(clock=clock), budget=budget, compaction=Compaction(when="pays"))
    for number in range(60):
        clock.advance(600)
        adapter.counted.clear()
        await chat.send_async(f"Question {number}?")
        assert adapter.counted[threading.get_ident()] <= 20
    assert chat.session[Compacted].all()


async def test_an_event_loop_does_not_shorten_what_was_refused() -> None:
    class Refusing(Meter):
        def reply(self, request: ModelRequest) -> ModelReply:
            size = sum(len(message.text) // 2 for message in request.messages)
            if size > 6_000 and not summarizes(request):
                raise ContextOverflowError("prompt is too long: 6001 > 6000 maximum", phase="request")
            return super().reply(request)

    adapter = Refusing()
    chat = chat_with(adapter, compaction=Compaction())
    for number in range(300):
        adapter.counted.clear()
        await chat.send_async(f"Question {number}?")
        assert adapter.counted[threading.get_ident()] <= 20
    assert chat.session[Compacted].all()
