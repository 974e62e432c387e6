"""Going back: what a point costs, how long a rewind takes, and random conversations that go back correctly.

`WINK_REWINDS` is the number of random rewinds (default 2,000).
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from bench.journeys import Tone, journey, template
from bench.measure import cpu
from bench.row import Row
from weakincentives import Conversation, Prompt, ScriptedAdapter, Session, Snapshot, call
from weakincentives.filesystem import Filesystem, HostFilesystem
from weakincentives.runtime.past.points import Points

SLOW = True
EXCHANGES, FILES = 200, 100
TURNS = 400


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        chat = long_conversation(Path(folder))
        points = len(chat.checkpoints())
        session = chat.session.clone()
        adding = Points.before(chat.prompt.bound(), session)
        yield Row(f"a point, after {EXCHANGES} exchanges", cpu(lambda: adding.turn("run", 1)) * 1e6, "µs", goal=50.0)
        for exchanges in (10, EXCHANGES):
            yield Row(f"memory of a point, after {exchanges} exchanges", point_bytes(exchanges), "B", goal=8_000.0)
        text = chat.session.snapshot().to_json()
        bare = chat.session.clone()
        bare[type(chat.checkpoints()[0])].clear()
        stored = (len(text) - len(bare.snapshot().to_json())) / points
        yield Row("a point in the text of a snapshot", stored / 1000, "kB")
        yield Row("writing that snapshot", cpu(lambda: chat.session.snapshot().to_json(), rounds=3) * 1e3, "ms")
        yield Row("reading it", cpu(lambda: Snapshot.from_json(text), rounds=3) * 1e3, "ms")
        first = chat.checkpoints()[0]
        took = []
        for _ in range(7):
            started = time.process_time()
            report = chat.rewind(first)
            took.append(time.process_time() - started)
            assert len(report.files) == FILES and not report.left_alone
            chat.undo_rewind()
        name = f"a rewind over {EXCHANGES} exchanges and {FILES} files on disk"
        yield Row(name, min(took) * 1e3, "ms", goal=50.0)
    yield from correct()


def correct() -> Iterator[Row]:
    """Random rewinds, each checked: the next request, session and files, and undoing it."""
    wanted, made, seed = int(os.environ.get("WINK_REWINDS", "2000")), 0, 0
    while made < wanted:
        with tempfile.TemporaryDirectory() as folder:
            made += journey(Random(f"bench {seed}"), Path(folder) if seed % 2 else None)
        seed += 1
        if seed % 50 == 0:
            print(f"  {made:,} of {wanted:,} random rewinds", file=sys.stderr, flush=True)
    yield Row("random rewinds after which request, session and files were as before", made, "", wanted, better="more")


def long_conversation(folder: Path) -> Conversation[Any]:
    """Two turns in each exchange; the tool writes one of the files, or adds to the total."""

    def reply(request: Any) -> Any:
        if request.messages[-1].role == "tool":
            return "Done."
        number = sum(message.by_user for message in request.messages)
        if number == 1:
            return call("read_section", section_key="part1")
        if number <= FILES + 1:
            return call("write", path=f"folder/{number}.txt", text=f"{number} " * 200)
        return call("add", amount=number)

    prompt = Prompt(template()).bind(Tone(), resources={Filesystem: HostFilesystem(folder)})
    chat = Conversation(prompt, adapter=ScriptedAdapter(reply), session=Session())
    for number in range(EXCHANGES):
        chat.send(f"Message {number}.")
    return chat


def point_bytes(exchanges: int) -> float:
    """The bytes that a point keeps in memory, besides what the session has anyway."""
    chat = Conversation(Prompt(template()).bind(Tone()), adapter=ScriptedAdapter(lambda request: "Yes."))
    for number in range(exchanges):
        chat.send(f"Message {number}.")
    points = Points.before(chat.prompt.bound(), chat.session)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(TURNS):
        points.turn("run", 1)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / TURNS
