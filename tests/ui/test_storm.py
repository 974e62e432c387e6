"""Many pages at once on a few threads of two processes, which stop, leave, and have a store that is slow and fails."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections import Counter
from typing import Any

import pytest

from tests.disclosure.desk import desk
from tests.rounds import rounds
from tests.ui.server import Page, chunks
from tests.waiting import until_async
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.prompt import Prompt
from weakincentives.runtime import Conversation, ModelRequest
from weakincentives.session import Session, Snapshot
from weakincentives.ui import StaleThreadError, ThreadLimits, Threads

pytestmark = pytest.mark.slow


class Store:
    """Takes its time, and fails every tenth time."""

    def __init__(self, chance: random.Random) -> None:
        self.rows: dict[str, tuple[str, int]] = {}
        self._chance = chance
        self._lock = threading.Lock()

    def load(self, thread: str) -> tuple[str, int] | None:
        self._wait()
        return self.rows.get(thread)

    def save(self, thread: str, chat: Conversation[Any], version: int | None) -> int:
        self._wait()
        with self._lock:
            if self.rows.get(thread, (None, None))[1] != version:
                raise StaleThreadError(thread)
            self.rows[thread] = chat.session.snapshot().to_json(), (version or 0) + 1
            return self.rows[thread][1]

    def questions(self, thread: str) -> list[str]:
        session = Session()
        session.restore(Snapshot.from_json(self.rows[thread][0]))
        chat = Conversation(Prompt(desk()), adapter=ScriptedAdapter([]), session=session)
        return [message.text for message in chat.messages if message.by_user]

    def _wait(self) -> None:
        time.sleep(self._chance.random() * 0.005)
        if self._chance.random() < 0.1:
            raise OSError("unavailable")


def messages_of(history: Any) -> list[str]:
    messages = history["messages"] if isinstance(history, dict) else history
    return [message["id"] for message in messages if message["role"] == "user"]


@pytest.mark.parametrize("seed", range(rounds(1, 10)))
async def test_no_answered_message_is_lost_none_is_doubled_and_nothing_is_left(seed: int) -> None:
    chance = random.Random(seed)
    store = Store(chance)
    before = asyncio.all_tasks()

    def model(request: ModelRequest) -> Any:
        return call("read_section", section_key="docs") if chance.random() < 0.3 else "Yes.\nOr no."

    def make(thread: str, request: Any) -> Conversation[Any]:
        return Conversation(Prompt(desk()), adapter=ScriptedAdapter(model))

    limits = ThreadLimits(requests=8, per_minute=10_000, in_memory=3)
    processes = [Threads(make, store.load, store.save, limits=limits, idle=0.01) for _ in range(2)]
    answered: list[tuple[str, str]] = []

    async def visit(number: int) -> None:
        await asyncio.sleep(chance.random() * 3)
        page = Page(chance.choice(processes), chance.choice(["vercel", "ag-ui"]))
        thread, text = f"t{number % 12}", f"q{number}"
        _, history = await page.get(f"id={thread}&threadId={thread}")
        known = [] if page.status != 200 else messages_of(json.loads(history))
        waiting = asyncio.ensure_future(page.send(text, thread, key=f"k{number}", earlier=known))
        if chance.random() < 0.3:
            await asyncio.sleep(chance.random() * 0.05)
            page.gone.set()
            if chance.random() < 0.5:
                waiting.cancel()
        await asyncio.wait([waiting])
        if not waiting.cancelled():
            status, body = waiting.result()
            assert status in (200, 409, 429, 503)
            if status == 200 and {"finish", "RUN_FINISHED"} & {chunk["type"] for chunk in chunks(body)}:
                answered.append((thread, text))

    await asyncio.gather(*map(visit, range(400)))
    for threads in processes:
        await threads.aclose()
    kept = {thread: Counter(store.questions(thread)) for thread in store.rows}
    assert len(answered) > 20
    assert [each for each in answered if each[1] not in kept[each[0]]] == []
    assert {count for counted in kept.values() for count in counted.values()} == {1}
    await until_async(lambda: asyncio.all_tasks() == before)
