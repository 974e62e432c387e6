"""Random conversations that go back to random points, checked against what was recorded on the way.

`journey(random, folder)` returns the number of rewinds it checked, or raises AssertionError.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from weakincentives import (
    Approve,
    Compaction,
    Conversation,
    Deny,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    ScriptedAdapter,
    SectionVisibility,
    Session,
    Snapshot,
    ToolContext,
    ToolResult,
    call,
    delegate,
    tool,
)
from weakincentives.filesystem import Filesystem, HostFilesystem
from weakincentives.prompt import Section
from weakincentives.runtime import ModelRequest
from weakincentives.serde import dump_tagged
from weakincentives.session import reducer

SUMMARY = SectionVisibility.SUMMARY
PATHS = ["a.txt", "b.txt", "notes/c.md", "notes/d.md", "deep/er/e.txt", "notes"]
# What a rewind keeps for itself, and what differs in every run.
OWN = ("Undone", "RewindUndo", "Point", "RunState", "ConversationId")


class Stop(Exception):
    """Ends a run at its first request."""


@dataclass(frozen=True)
class Added:
    amount: int


@dataclass(frozen=True)
class Total:
    total: int = 0

    @reducer(on=Added)
    def add(self, event: Added) -> Total:
        return replace(self, total=self.total + event.amount)


@dataclass(frozen=True)
class Tone:
    tone: str = "plain"


@tool
def add(amount: int, context: ToolContext) -> str:
    """Add to the total."""
    context.session.dispatch(Added(amount))
    return f"added {amount}"


@tool
def write(path: str, text: str, context: ToolContext) -> str:
    """Write a file."""
    files = context.filesystem
    assert files is not None
    in_the_way = [(path, "directory"), *([(path.partition("/")[0], "file")] if "/" in path else [])]
    for there, kind in in_the_way:
        if files.exists(there) and files.stat(there).kind == kind:
            files.delete(there, recursive=True)
    files.write(path, text)
    return f"wrote {path}"


@tool
def remove(path: str, context: ToolContext) -> str:
    """Delete a file or folder."""
    files = context.filesystem
    assert files is not None
    if not files.exists(path):
        return "nothing there"
    files.delete(path, recursive=True)
    return f"removed {path}"


@tool
def break_off(context: ToolContext) -> ToolResult[None]:
    """Write a file and fail."""
    assert context.filesystem is not None
    context.filesystem.write("broken.txt", "half")
    context.session.dispatch(Added(1000))
    return ToolResult("broken", success=False)


@tool(approval="effects", changes=(Filesystem, Total))
def pay(amount: int, context: ToolContext) -> str:
    """Pay, once a person has seen the effects."""
    assert context.filesystem is not None
    context.session.dispatch(Added(amount))
    context.filesystem.write("paid.txt", f"{amount}")
    return "paid"


def template() -> PromptTemplate[Any]:
    child = PromptTemplate[Any](
        ns="bench",
        key="child",
        sections=[MarkdownSection(title="Child", key="child", template="Help.", tools=[add, write])],
    )
    inner: list[Section[Any]] = [
        MarkdownSection(
            title=f"Part {n}",
            key=f"part{n}",
            template=f"Text of part {n}. " * 5,
            summary=f"Part {n}.",
            visibility=SUMMARY,
            tools=[write] if n == 1 else [remove] if n == 2 else [],
        )
        for n in range(4)
    ]
    return PromptTemplate[Any](
        ns="bench",
        key="journey",
        sections=[
            MarkdownSection[Tone](title="Task", key="task", template="Be $tone.", tools=[add, break_off, pay]),
            *inner,
            MarkdownSection(
                title="Helpers",
                key="helpers",
                template="Delegate.",
                tools=[delegate(child, description="Help.", name="help")],
            ),
        ],
    )


class Traveller:
    """One conversation, with a record of every request, and of session and files at every point."""

    def __init__(self, random: Random, folder: Path | None, *, dynamic: bool = True) -> None:
        self.random = random
        self.folder = folder
        self.requests: dict[str, str] = {}
        self.states: dict[str, Any] = {}
        self.says: dict[str, str | None] = {}
        self.stops = False
        self.last = ""
        self.calls = 0
        # So small that conversations are shortened often; a summary is the number of messages.
        window = random.choice([None, 700, 1_000])
        self.compaction = None if window is None else Compaction(window=window, keep=1, by=lambda said: f"{len(said)}")
        self.adapter = ScriptedAdapter(self._reply, supports_dynamic_tools=dynamic, tool_errors="tell")
        self.chat = self._made(Session())

    def _made(self, session: Session) -> Conversation[Any]:
        prompt = Prompt(template()).bind(Tone())
        files: Filesystem | None = HostFilesystem(self.folder) if self.folder is not None else None
        if files is not None:
            prompt.bind(resources={Filesystem: files})
        else:
            prompt.bind(resources={Filesystem: session.workspace})
        return Conversation(prompt, adapter=self.adapter, session=session, compaction=self.compaction)

    def _reply(self, request: ModelRequest) -> Any:
        random = self.random
        if request.prompt_name.endswith("child"):
            if request.messages[-1].role == "tool" or random.random() < 0.3:
                return "helped"
            return [self._change()]
        self.last = written(request)
        if self.stops:
            raise Stop
        point = self.chat.checkpoints()[-1]
        self.requests[point.id], self.states[point.id], self.says[point.id] = self.last, self.state(), None
        if random.random() < 0.4:
            return f"answer {random.randrange(1000)}"
        closed = [f"part{n}" for n in range(4)]
        made = [
            self._change(),
            call("read_section", section_key=random.choice(closed)),
            call("close_section", section_key=random.choice(closed)),
            call("help"),
            call("break_off"),
            call("pay", amount=random.randrange(9)),
        ]
        names = {each.name for each in request.tools} - set(request.revoked)
        wanted = [each for each in random.sample(made, random.randrange(1, 4)) if each.name in names]
        return wanted or "nothing to call"

    def _change(self) -> Any:
        random = self.random
        path, text = random.choice(PATHS), f"{random.randrange(10**6)} " * random.randrange(1, 50)
        return random.choice(
            [call("add", amount=random.randrange(9)), call("write", path=path, text=text), call("remove", path=path)]
        )

    def state(self) -> Any:
        """The session and the files, without what differs after a rewind."""
        session = self.chat.session
        slices = {
            kind.__name__: [*map(repr, session[kind].all())]
            for kind in session.state(logs=False).slices
            if kind.__name__ not in OWN and [*session[kind].all()] != session.initial(kind)[0]
        }
        return slices, self.files(), self.chat.prompt.params

    def files(self) -> str:
        if self.folder is None:
            return hashlib.sha256(repr(tree(self.chat.session.workspace)).encode()).hexdigest()
        return hashlib.sha256(repr(sorted(tree(HostFilesystem(self.folder)))).encode()).hexdigest()

    def exchange(self) -> None:
        """One random message with all that follows."""
        random, chat = self.random, self.chat
        if random.random() < 0.2:
            chat.bind(Tone(random.choice(["plain", "loud", "soft"])))
        text, before, points = f"message {random.randrange(10**6)}", self.state(), len(chat.checkpoints())
        chat.send(text)
        point = chat.checkpoints()[points]
        assert point.kind == "message"
        first = chat.checkpoints()[points + 1 : points + 2]
        self.states[point.id], self.says[point.id] = before, text
        if first and first[0].kind == "turn":
            self.requests[point.id] = self.requests[first[0].id]
        while chat.pending and random.random() < 0.7:
            chat.decide({each.call_id: Approve() if random.random() < 0.5 else Deny("no") for each in chat.pending})

    def restart(self) -> None:
        """Go on in another process, as far as the conversation is concerned."""
        text, params = self.chat.session.snapshot().to_json(), self.chat.prompt.params
        session = Session()
        session.restore(Snapshot.from_json(text))
        self.chat = self._made(session)
        self.chat.bind(*params)

    def go_back(self) -> None:
        """Rewind to a random point, check, undo, check, rewind again and check the next request."""
        chat, random = self.chat, self.random
        known = [point for point in chat.checkpoints() if point.id in self.states]
        point, now = random.choice(known), self.state()
        preview = chat.preview(point)
        assert self.state() == now
        report = chat.rewind(point.id)
        assert not report.left_alone and not preview.left_alone, report.left_alone
        assert [each.path for each in preview.files] == [each.path for each in report.files]
        same(self.state(), self.states[point.id])
        if random.random() < 0.3:
            self.restart()
            chat = self.chat
        chat.undo_rewind()
        same(self.state(), now)
        chat.rewind(point)
        same(self.state(), self.states[point.id])
        if point.id not in self.requests:
            return
        self.stops = True
        try:
            chat.send(self.says[point.id])
        except Stop:
            pass
        finally:
            self.stops = False
        same(self.last, self.requests[point.id])
        # Back to before that, where the conversation goes on.
        chat.rewind(chat.checkpoints()[-1] if self.says[point.id] is None else chat.checkpoints()[-2])


def journey(random: Random, folder: Path | None, *, rewinds: int = 4) -> int:
    """A conversation that goes back `rewinds` times."""
    traveller = Traveller(random, folder, dynamic=random.random() < 0.7)
    for _ in range(rewinds):
        for _ in range(random.randrange(1, 5)):
            traveller.exchange()
            if random.random() < 0.15:
                traveller.restart()
        traveller.go_back()
    return rewinds


def written(request: ModelRequest) -> str:
    """A request as text, with everything that an adapter sends of it."""
    said = [dump_tagged(message) for message in request.messages]
    tools = [each.definition for each in request.tools]
    return repr((said, tools, request.initial_tools, sorted(request.revoked), sorted(request.deferred)))


def tree(files: Any) -> list[tuple[str, bytes]]:
    return [(path, files.read_bytes(path)) for path in files.glob("**")]


def same(found: Any, expected: Any) -> None:
    if found != expected:
        raise AssertionError(difference(found, expected))


def difference(found: Any, expected: Any) -> str:
    if isinstance(found, tuple) and isinstance(expected, tuple):
        return "\n".join(difference(a, b) for a, b in zip(found, expected, strict=True) if a != b)
    if isinstance(found, dict) and isinstance(expected, dict):
        return "\n".join(
            f"{k}: {found.get(k)}\n  !=  {expected.get(k)}"
            for k in {**found, **expected}
            if found.get(k) != expected.get(k)
        )
    return f"{found}\n  !=  {expected}"
