"""What control costs: approval that asks nobody, guards, effects that are captured and applied, a run inside a run."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any

from bench.guards import guard_rows
from bench.measure import compare
from bench.row import Row
from weakincentives import (
    Approve,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    ScriptedAdapter,
    Session,
    ToolContext,
    call,
    delegate,
    run,
    tool,
)
from weakincentives.filesystem import Filesystem, HostFilesystem, InMemoryFilesystem

CALLS = 20
FILES, BYTES = 10, 10_000


def rows() -> Iterator[Row]:
    plain, ruled = compare(calling(None), calling(lambda params: None), rounds=15)
    more = (ruled - plain) / CALLS
    yield Row("a call with an approval rule that asks nobody, above one without", more * 1e6, "µs", goal=20.0)
    yield from guard_rows()
    free, held = (min(writing(approval) for _ in range(20)) for approval in (None, "effects"))
    yield Row(
        f"effects of a call that writes {FILES} files of {BYTES // 1000} kB: captured, taken back, asked about",
        (held - free) * 1e3,
        "ms",
        goal=5.0,
        note="wall time above the same call without approval",
    )
    with tempfile.TemporaryDirectory() as folder:
        disk = HostFilesystem(folder)
        free, held = (min(writing(approval, disk) for _ in range(40)) for approval in (None, "effects"))
    yield Row("the same on disk", (held - free) * 1e3, "ms", goal=5.0, note="the files are put back by renaming")
    yield Row("the same, approved: applied and answered", min(map(applying, range(20))) * 1e3, "ms")
    alone, child = compare(running_alone, running_a_child(), rounds=15)
    (parent,) = compare(calling(None, 1), rounds=15)
    yield Row(
        "a delegated child that answers at once, above its parent",
        (child - parent) * 1e3,
        "ms",
        ratio=(child - parent) / alone,
        ratio_goal=1.5,
        baseline="a run of its own",
    )
    held, every = forking()
    what = "adapters and routes on which a fork's first request begins with its parent's bytes"
    yield Row(what, held, "adapters", goal=float(every), better="more", note="the prefix check")


def forking() -> tuple[int, int]:
    """On how many adapters and routes the prefix check holds for a fork, and how many have been tried."""
    conversations = import_module("tests.adapters.conversations")
    vendors = [*conversations.speakers(), *conversations.routes()]
    vendors = [each for each in vendors if isinstance(each, conversations.Vendor)]
    held = 0
    for speaker in vendors:
        with suppress(AssertionError):
            conversations.fork_keeps_the_prefix(speaker)
            held += 1
    return held, len(vendors)


def prompt(*tools: Any) -> Prompt[Any]:
    return Prompt(
        ns="bench", key="control", sections=[MarkdownSection(key="t", title="T", template="Go.", tools=tools)]
    )


def calling(approval: Any, calls: int = CALLS) -> Callable[[], object]:
    @tool(approval=approval)
    def act(number: int) -> str:
        "Act."
        return "done"

    asked = prompt(act)

    def work() -> None:
        run(asked, ScriptedAdapter([*(call("act", number=n) for n in range(calls)), "Done."]), session=Session())

    return work


@tool(name="write", approval="effects", changes=(Filesystem,))
def write_asking(context: ToolContext) -> str:
    "Write."
    return _write(context)


@tool(name="write")
def write_freely(context: ToolContext) -> str:
    "Write."
    return _write(context)


def _write(context: ToolContext) -> str:
    files = context.resources.get(Filesystem)
    for number in range(FILES):
        files.write(f"{number}.txt", f"{number}\n" * (BYTES // 2))
    return "written"


def writing(approval: str | None, files: Filesystem | None = None) -> float:
    files = InMemoryFilesystem() if files is None else files
    for number in range(FILES):
        files.write(f"{number}.txt", "x\n" * (BYTES // 2))
    asked = prompt(write_freely if approval is None else write_asking).bind(resources={Filesystem: files})
    model = ScriptedAdapter([call("write"), "Done."])
    began = time.perf_counter()
    run(asked, model, session=Session())
    return time.perf_counter() - began


def applying(_: int) -> float:
    asked = prompt(write_asking).bind(resources={Filesystem: InMemoryFilesystem()})
    model, session = ScriptedAdapter([call("write"), "Done."]), Session()
    (pending,) = run(asked, model, session=session).pending
    began = time.perf_counter()
    run(asked, model, session=session, decisions={pending.call_id: Approve()})
    return time.perf_counter() - began


SMALL = PromptTemplate[None](
    ns="bench", key="child", sections=[MarkdownSection(key="t", title="T", template="Answer.")]
)


def running_alone() -> object:
    return run(Prompt(SMALL), ScriptedAdapter(["Done."]), session=Session())


def running_a_child() -> Callable[[], object]:
    child = ScriptedAdapter(lambda request: "Done.")
    asked = prompt(delegate(SMALL, description="Answer.", adapter=child))
    return lambda: run(asked, ScriptedAdapter([call("child"), "Done."]), session=Session())
