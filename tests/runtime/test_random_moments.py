"""Random runs go on from a snapshot at any moment, in fresh objects, with the requests that they would have sent.

The model replies by a digest of the request alone: what it reads decides what it does, and two runs that send the same
requests get the same replies. Strategy, voice, door, approvals, delegation, sections that load, rules, compaction and
the model that fails are drawn from the seed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from random import Random
from typing import Any

import pytest

from tests.disclosure.desk import section
from tests.rounds import rounds
from weakincentives.adapters import FallbackAdapter
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.errors import PromptEvaluationError
from weakincentives.limits import Budget
from weakincentives.prompt import (
    ClearVisibilityOverride,
    CollapseSection,
    LateContent,
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
from weakincentives.resources import ScopedResourceContext
from weakincentives.runtime import (
    Approve,
    Compaction,
    Conversation,
    Deny,
    MainLoop,
    Message,
    ModelRequest,
    PromptResponse,
    delegate,
)
from weakincentives.session import Session, Snapshot

STRATEGIES = [
    *(ReadSections(), ReadSections(voice="system"), SearchSections()),
    *(OpenOrRead(), OpenToFiles()),
]
DOORS = ["execute", "execute_async", "stream", "stream_async"]
WORDS = ["Hello.", "Where is order 7?", "And the refund?"]
KEYS = ["guide", "docs", "orders", "orders.refunds", "served", "ruled"]
MOST_REPLIES = 12
BUDGET = Budget(max_turns=500)
MESSAGE_FIELDS = [each.name for each in fields(Message) if each.name != "tool_calls"]


@dataclass(frozen=True)
class Case:
    """What is drawn for a run: how it is asked, and what its prompt and its model are like."""

    seed: int
    strategy: Any
    door: str
    in_conversation: bool
    is_operator: bool
    falls_back: bool
    delegates: bool
    compaction: Compaction | None

    @classmethod
    def drawn(cls, seed: int) -> Case:
        random = Random(seed)
        by = random.choice(["provider", lambda messages: f"Summary of {len(messages)} messages."])
        return cls(
            seed,
            random.choice(STRATEGIES),
            random.choice(DOORS),
            in_conversation=random.random() < 0.6,
            is_operator=random.random() < 0.5,
            falls_back=random.random() < 0.3,
            delegates=random.random() < 0.4,
            compaction=Compaction(window=random.choice([700, 1_500]), by=by, keep=1) if random.random() < 0.4 else None,
        )


class Operator(ScriptedAdapter):
    """A model that accepts system messages in the middle of a conversation."""

    supports_operator_text = True


class Served(MarkdownSection[None]):
    """A section whose tool and child are loaded as it opens."""

    def load(self, resources: ScopedResourceContext) -> LateContent:
        return LateContent((serve,), (section("inner"),), text="Served text.")


@tool(read_only=True)
def serve() -> str:
    """Serve."""
    return "served"


@tool
def save() -> str:
    """Save."""
    return "saved"


@tool(read_only=True)
def look() -> str:
    """Look."""
    return "looked"


@tool(approval="call")
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool
def unlock(key: str, *, context: ToolContext) -> str:
    """Open a section by code."""
    context.session.dispatch(SetVisibilityOverride((key,), SectionVisibility.FULL))
    return f"unlocked {key}"


def is_unlocked(*, session: Session) -> bool:
    overrides = session[VisibilityOverrides].latest()
    return overrides is not None and ("docs",) in overrides.overrides


def template(case: Case) -> PromptTemplate[Any]:
    tools: list[Any] = [save, look, pay, unlock]
    if case.delegates:
        task = MarkdownSection(key="task", title="Task", template="Help the helper.", tools=[save, pay])
        helper = PromptTemplate[str](ns="t", key="helper", sections=[task, section("manual")])
        tools.append(delegate(helper, description="Have somebody help.", adapter=Model(case).adapter(fails=False)))
    sections = [
        MarkdownSection(title="Task", key="task", template="Help.", tools=tools),
        section("guide"),
        section("docs"),
        section("orders", tools=("lookup",), children=[section("refunds", tools=("refund",))]),
        section("ruled", tools=("rule",), open_when=is_unlocked),
        Served(
            title="Served", key="served", template="", summary="About served.", visibility=SectionVisibility.SUMMARY
        ),
        WorkspaceSection(),
    ]
    return PromptTemplate(ns="t", key="moments", sections=sections, disclosure=case.strategy)


def comparable(request: ModelRequest) -> tuple[Any, ...]:
    """All that a request says, as values that are written the same wherever they come from."""
    messages = [tuple(getattr(message, name) for name in MESSAGE_FIELDS) for message in request.messages]
    calls = [[(made.id, made.name, made.arguments) for made in message.tool_calls] for message in request.messages]
    offered = [(each.name, each.description) for each in request.tools]
    marks = sorted(request.revoked), sorted(request.deferred), request.initial_tools, request.compaction
    return messages, calls, offered, marks


@dataclass
class Model:
    """Replies by what a request says, and has all requests of the runs on it."""

    case: Case
    requests: list[tuple[Any, ...]] = field(default_factory=list)
    snapshots: Snapshots | None = None

    def adapter(self, *, fails: bool | None = None) -> Any:
        kind = Operator if self.case.is_operator else ScriptedAdapter
        if not (self.case.falls_back if fails is None else fails):
            return kind(self.reply)
        return FallbackAdapter(kind(self.failing, model="first"), kind(self.reply, model="second"))

    def random(self, request: ModelRequest) -> Random:
        text = repr((self.case.seed, comparable(request)))
        return Random(sha256(text.encode()).hexdigest())

    def failing(self, request: ModelRequest) -> Any:
        if self.random(request).random() < 0.3:
            self.record(request)
            return PromptEvaluationError("it is down", phase="request")
        return self.reply(request)

    def record(self, request: ModelRequest) -> None:
        if self.snapshots is not None:
            self.snapshots.take("before a reply")
        self.requests.append(comparable(request))

    def reply(self, request: ModelRequest) -> Any:
        self.record(request)
        random = self.random(request)
        if request.messages[-1].text.startswith("Summarize the conversation") and random.random() < 0.8:
            return f"Summary {random.randrange(10**6)}."
        names = [offered.name for offered in request.tools if offered.name not in request.revoked]
        replies = sum(message.role == "assistant" for message in request.messages)
        if not names or replies > MOST_REPLIES or random.random() < 0.2 + replies / 40:
            return f"Answer {random.randrange(10**6)}."
        calls = [self.call(random.choice(names), random) for _ in range(random.choice([1, 1, 2, 3]))]
        return calls if len(calls) > 1 else calls[0]

    def call(self, name: str, random: Random) -> Any:
        key = random.choice(KEYS)
        arguments: dict[str, Any] = {}
        if name in ("read_section", "close_section"):
            arguments = {"section_key": key}
        elif name in ("open_sections", "close_sections"):
            arguments = {"section_keys": [key], "reason": "needed"}
        elif name == "search_sections":
            arguments = {"query": key}
        elif name == "recall":
            arguments = {"what": random.choice(["1", "2"])}
        elif name == "pay":
            arguments = {"amount": random.randrange(100)}
        elif name == "unlock":
            arguments = {"key": random.choice(["docs", "guide"])}
        return replace(call(name, **arguments), id=f"c{random.randrange(10**9)}")


@dataclass
class Snapshots:
    """Snapshots of a session at each of its events and requests, with how many requests were sent before."""

    model: Model
    session: Session = field(default_factory=Session)
    taken: list[tuple[str, int, Snapshot]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model.snapshots = self
        self.session.observe(self.observed)

    def observed(self, event: Any) -> None:
        # A handler's own changes are part of a snapshot that is taken before it ends.
        if not isinstance(event, SetVisibilityOverride | ClearVisibilityOverride | CollapseSection):
            self.take(type(event).__name__)

    def take(self, moment: str) -> None:
        self.taken.append((moment, len(self.model.requests), self.session.snapshot()))

    def restored(self, random: Random, number: int) -> Iterator[tuple[str, int, Session]]:
        """So many of them, each in a session as another process has it."""
        for moment, sent, snapshot in random.sample(self.taken, min(len(self.taken), number)):
            session = Session()
            session.restore(Snapshot.from_json(snapshot.to_json()))
            yield moment, sent, session


def decisions(response: PromptResponse[Any]) -> dict[str, Any]:
    """What a person decides, by the question alone."""
    return {
        waiting.call_id: Approve() if sum(map(ord, waiting.call_id)) % 3 else Deny("Not today.")
        for waiting in response.pending
    }


def finish(case: Case, adapter: Any, session: Session) -> None:
    """Go on with what a session has to the end of the conversation, or begin it."""
    spoken = {message.text for message in session[Message] if message.by_user}
    prompt = Prompt(template(case))
    if not case.in_conversation:
        begun = bool(session[Message].all())
        response = step(case, prompt, adapter, session, {} if begun else None)
        while response.pending:
            response = step(case, prompt, adapter, session, decisions(response))
        return
    chat = Conversation(
        prompt, adapter=adapter, session=session, budget=BUDGET, max_expansions=50, compaction=case.compaction
    )
    last = max((number for number, words in enumerate(WORDS) if words in spoken), default=-1)
    if last >= 0:
        settle(case, chat, say(case, chat, decisions={}))
    for words in WORDS[last + 1 :]:
        settle(case, chat, say(case, chat, words))


def settle(case: Case, chat: Conversation[Any], response: PromptResponse[Any]) -> None:
    while response.pending:
        response = say(case, chat, decisions=decisions(response))


def say(case: Case, chat: Conversation[Any], words: str | None = None, **options: Any) -> PromptResponse[Any]:
    if case.door == "execute":
        return chat.send(words, **options)
    if case.door == "execute_async":
        return asyncio.run(chat.send_async(words, **options))
    if case.door == "stream":
        with chat.stream(words, **options) as events:
            return [*events][-1].response
    return asyncio.run(last_of(chat.stream_async(words, **options)))


def step(case: Case, prompt: Any, adapter: Any, session: Session, decided: Any) -> PromptResponse[Any]:
    loop = MainLoop(max_expansions=50, budget=BUDGET)
    options: dict[str, Any] = {"session": session, "adapter": adapter, "compaction": case.compaction}
    if decided is not None:
        options["decisions"] = decided
    if case.door == "execute":
        return loop.execute(prompt, **options)
    if case.door == "execute_async":
        return asyncio.run(loop.execute_async(prompt, **options))
    if case.door == "stream":
        with loop.stream(prompt, **options) as events:
            return [*events][-1].response
    return asyncio.run(last_of(loop.stream_async(prompt, **options)))


async def last_of(stream: Any) -> PromptResponse[Any]:
    async with stream as events:
        async for event in events:
            last = event
    return last.response


@pytest.mark.parametrize("seed", range(rounds(150, 2_000)))
def test_a_random_run_goes_on_from_any_moment_with_the_same_requests(seed: int) -> None:
    case = Case.drawn(seed)
    model = Model(case)
    snapshots = Snapshots(model)
    finish(case, model.adapter(), snapshots.session)
    expected = model.requests
    for moment, sent, session in snapshots.restored(Random(seed), rounds(6, 20)):
        again = Model(case)
        finish(case, again.adapter(), session)
        first = len(expected) - len(again.requests)
        assert first in (sent - 1, sent), (moment, first, sent)
        assert again.requests == expected[first:], moment
