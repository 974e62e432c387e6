"""A snapshot that is taken in the middle of a run goes on elsewhere with the requests that the run would have sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.disclosure.desk import section
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.prompt import (
    MarkdownSection,
    OpenOrRead,
    OpenToFiles,
    Prompt,
    PromptTemplate,
    ReadSections,
    SearchSections,
    SectionVisibility,
    SetVisibilityOverride,
    ToolContext,
    VisibilityOverrides,
    WorkspaceSection,
    tool,
)
from weakincentives.runtime import Conversation, MainLoop, Message, ModelRequest, ToolInvoked, run
from weakincentives.session import Session, Snapshot

STRATEGIES = [ReadSections(), ReadSections(voice="system"), SearchSections(), OpenOrRead(), OpenToFiles()]


class Operator(ScriptedAdapter):
    """A model that accepts system messages in the middle of a conversation."""

    supports_operator_text = True


class Snapshots:
    """Snapshots of a session: at each of its events, in each request, and inside its calls."""

    def __init__(self) -> None:
        self.session = Session()
        self.texts: dict[str, str] = {}
        self.session.observe(lambda event: self.take(type(event).__name__))

    def take(self, moment: str) -> None:
        self.texts.setdefault(self.session.snapshot().to_json(), moment)

    def restored(self) -> Iterator[tuple[str, Session]]:
        """A new session for each snapshot that has a message of the user, or the prompt of a run without one."""
        for text, moment in self.texts.items():
            session = Session()
            session.restore(Snapshot.from_json(text))
            yield moment, session


def template(strategy: Any, taken: Callable[[str], None] = lambda moment: None) -> PromptTemplate[Any]:
    @tool
    def save() -> str:
        """Save."""
        taken("inside a call")
        return "saved"

    @tool(read_only=True)
    def look() -> str:
        """Look."""
        taken("inside a call that may overlap")
        return "looked"

    @tool
    def unlock(key: str, *, context: ToolContext) -> str:
        """Open a section by code."""
        taken("inside a call that is about to open a section")
        context.session.dispatch(SetVisibilityOverride((key,), SectionVisibility.FULL))
        return f"unlocked {key}"

    def is_unlocked(*, session: Session) -> bool:
        overrides = session[VisibilityOverrides].latest()
        return overrides is not None and ("docs",) in overrides.overrides

    sections = [
        MarkdownSection(title="Task", key="task", template="Help.", tools=[save, look, unlock]),
        section("guide"),
        section("docs"),
        section("orders", tools=("lookup",), children=[section("refunds", tools=("refund",))]),
        section("ruled", tools=("rule",), open_when=is_unlocked),
        WorkspaceSection(),
    ]
    return PromptTemplate(ns="t", key="moments", sections=sections, disclosure=strategy)


def opening(strategy: Any, key: str) -> Any:
    if isinstance(strategy, OpenToFiles) or (isinstance(strategy, OpenOrRead) and key.startswith("orders")):
        return call("open_sections", section_keys=[key], reason="needed")
    return call("read_section", section_key=key)


def script(strategy: Any) -> list[Any]:
    """A conversation that reads, opens by tool and by code, and calls what it has opened."""
    turns = [
        [opening(strategy, "guide"), call("look"), call("look"), call("save")],
        [opening(strategy, "orders"), call("look"), call("save")],
        [call("lookup"), call("unlock", key="docs"), opening(strategy, "orders.refunds"), call("save")],
        [call("refund"), call("rule")],
    ]
    lines: list[Any] = []
    for number, calls in enumerate(turns):
        lines.append([replace(each, id=f"c{number}_{index}") for index, each in enumerate(calls)])
    return [*lines, "Done."]


def by_turn(lines: list[Any]) -> Callable[[ModelRequest], Any]:
    """A model whose reply depends only on how often it has replied."""
    return lambda request: lines[sum(message.role == "assistant" for message in request.messages)]


def comparable(request: ModelRequest) -> tuple[Any, ...]:
    names = [tool.name for tool in request.tools]
    return tuple(request.messages), names, request.initial_tools, request.revoked, request.deferred, request.output


@dataclass(frozen=True)
class Door:
    """A way to begin, and to go on with what a snapshot has."""

    begin: Callable[[Prompt[Any], Any, Session], object]
    resume: Callable[[Prompt[Any], Any, Session], object]
    in_conversation: bool


async def read(stream: Any) -> None:
    async with stream as events:
        async for _ in events:
            pass


def stream(prompt: Prompt[Any], adapter: Any, session: Session, **options: Any) -> None:
    with MainLoop().stream(prompt, session=session, adapter=adapter, **options) as events:
        list(events)


def stream_conversation(prompt: Prompt[Any], adapter: Any, session: Session, *words: str, **options: Any) -> None:
    chat = Conversation(prompt, adapter=adapter, session=session)
    asyncio.run(read(chat.stream_async(*words, **options)))


DOORS = {
    "run": Door(
        lambda prompt, adapter, session: run(prompt, adapter, session=session),
        lambda prompt, adapter, session: MainLoop().execute(prompt, session=session, adapter=adapter, decisions={}),
        in_conversation=False,
    ),
    "stream": Door(stream, lambda *run: stream(*run, decisions={}), in_conversation=False),
    "async stream of a conversation": Door(
        lambda *exchange: stream_conversation(*exchange, "Hello."),
        lambda *exchange: stream_conversation(*exchange, decisions={}),
        in_conversation=True,
    ),
    "conversation": Door(
        lambda prompt, adapter, session: Conversation(prompt, adapter=adapter, session=session).send("Hello."),
        lambda prompt, adapter, session: Conversation(prompt, adapter=adapter, session=session).decide({}),
        in_conversation=True,
    ),
}


def cases() -> Iterator[Any]:
    """Each strategy by the doors that block, and two of them by those that stream."""
    for strategy in STRATEGIES:
        for adapter_class in (Operator, ScriptedAdapter):
            streams = adapter_class is Operator and isinstance(strategy, ReadSections | OpenOrRead)
            for name, door in DOORS.items():
                if streams or "stream" not in name:
                    case_id = f"{type(strategy).__name__}-{strategy.voice}-{adapter_class.__name__}-{name}"
                    yield pytest.param(strategy, adapter_class, door, id=case_id)


@pytest.mark.parametrize(("strategy", "adapter_class", "door"), list(cases()))
def test_a_snapshot_at_any_moment_goes_on_with_the_same_requests(strategy: Any, adapter_class: Any, door: Door) -> None:
    snapshots, lines, restarts = Snapshots(), script(strategy), isinstance(strategy, OpenOrRead | OpenToFiles)

    def model(request: ModelRequest) -> Any:
        snapshots.take("before a reply")
        return by_turn(lines)(request)

    adapter = adapter_class(model)
    door.begin(Prompt(template(strategy, snapshots.take)), adapter, snapshots.session)
    expected = [comparable(request) for request in adapter.requests]
    assert len(expected) == len(lines)
    for moment, session in snapshots.restored():
        messages = session[Message].all()
        if not messages or (door.in_conversation and not any(message.by_user for message in messages)):
            continue
        # A handler's own changes are part of a snapshot that is taken before it ends. A turn that ends to open sections
        # is not taken up between its results and the restart.
        if moment == "SetVisibilityOverride" or (restarts and not moment.startswith(("inside", "before"))):
            continue
        replies = sum(message.role == "assistant" for message in messages)
        again = adapter_class(by_turn(lines))
        door.resume(Prompt(template(strategy)), again, session)
        assert [comparable(request) for request in again.requests] == expected[replies:], moment


def test_a_call_that_had_ended_is_not_made_again() -> None:
    made: list[str] = []

    @tool
    def pay(name: str) -> str:
        """Pay."""
        made.append(name)
        return f"paid {len(made)}"

    task = MarkdownSection(title="Task", key="task", template="Help.", tools=[pay])
    prompts, texts, session = PromptTemplate[None](ns="t", key="pay", sections=[task]), list[str](), Session()
    session.observe(lambda event: texts.append(session.snapshot().to_json()) if type(event) is ToolInvoked else None)
    calls = [call("pay", name="ann"), call("pay", name="bob")]
    ScriptedAdapter([calls, "Done."]).evaluate(Prompt(prompts), session=session)
    elsewhere = Session()
    elsewhere.restore(Snapshot.from_json(texts[0]))
    made.clear()
    with ScriptedAdapter(["Done."]) as adapter:
        adapter.resume(Prompt(prompts), session=elsewhere)
    assert made == ["bob"]
    assert [each.text for each in adapter.requests[0].messages if each.role == "tool"] == ["paid 1", "paid 1"]
