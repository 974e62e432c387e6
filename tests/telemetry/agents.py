"""A small agent to record: a guide that can be read, and a section whose tool adds numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, SectionVisibility, Tool, ToolResult
from weakincentives.runtime import Conversation, MainLoop, PromptResponse
from weakincentives.session import Session, observing
from weakincentives.telemetry import record

GUIDE = "How to work here, in detail. " * 40


@dataclass(frozen=True, slots=True)
class Add:
    a: int
    b: int


def add(params: Add, *, context: Any) -> ToolResult[int]:
    return ToolResult("Added.", params.a + params.b)


def fail(params: None, *, context: Any) -> ToolResult[None]:
    raise ValueError("no such thing")


ADD = Tool[Add, int](name="add", description="Add two numbers.", handler=add)
FAIL = Tool[None, None](name="fail", description="Fail.", handler=fail)


def prompt(*tools: Tool[Any, Any], intro: str = "Be brief.") -> Prompt[None]:
    sections = [
        MarkdownSection(title="Intro", key="intro", template=intro, tools=tools),
        MarkdownSection(
            title="Guide", key="guide", template=GUIDE, summary="A guide.", visibility=SectionVisibility.SUMMARY
        ),
        MarkdownSection(
            title="Sums",
            key="sums",
            template="Use add.",
            summary="Adds numbers.",
            visibility=SectionVisibility.SUMMARY,
            tools=[ADD],
        ),
    ]
    return Prompt(PromptTemplate(ns="tests", key="sums", sections=sections))


SCRIPT = (
    call("read_section", section_key="guide"),
    call("read_section", section_key="sums"),
    call("add", a=1, b=2),
    "Three.",
)


@dataclass
class Heard:
    """What all sessions of the process dispatched."""

    events: list[Any] = field(default_factory=list)


@contextmanager
def hearing() -> Iterator[Heard]:
    heard = Heard()
    with observing(lambda session, event: heard.events.append(event)):
        yield heard


def run(*script: Any, session: Session | None = None, bound: Prompt[Any] | None = None, **options: Any) -> Any:
    """One run on a scripted model; options of the adapter, and `recorder`."""
    loop = MainLoop(recorder=options.pop("recorder", None))
    adapter = ScriptedAdapter(script or SCRIPT, **options)
    response: PromptResponse[Any] = loop.execute(bound or prompt(), session=session or Session(), adapter=adapter)
    return response


def record_durable_run(file: Path, key: str) -> str:
    """Record a durable run, whose id consists of the loop's name and the key."""
    pytest.importorskip("dbos", reason="needs the durable engine: pip install 'weakincentives[durable]'")
    from weakincentives.durable import DurableMainLoop

    with (
        record(file),
        DurableMainLoop("desk", lambda add: prompt(), ScriptedAdapter(SCRIPT), str(file.with_name("work.db"))) as loop,
    ):
        return loop.execute(Add(1, 2), key=key).run_id


CONVERSATION = [call("read_section", section_key="guide"), "It says to be brief.", "You are welcome."]


def record_conversation(path: Path, *said: Any, script: Any = CONVERSATION) -> list[str]:
    with record(path):
        chat = Conversation(prompt(), adapter=ScriptedAdapter(script))
        return [chat.send(content).run_id for content in said]
