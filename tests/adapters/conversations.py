"""What a conversation must do on every adapter, written once; provider-support.md shows the outcome of each.

A row of the table is a scenario, a column an adapter. To add an adapter, add a `Speaker` to `speakers()`; what it
cannot do it lists in `outcomes`, with the words for the table: a scenario that is `REFUSED` checks the refusal, and any
other words mean that it does not apply. `python -m tests.adapters.conversations --write` updates the page.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import pytest

from tests.adapters.claude_agent_sdk.subject import Claude
from tests.adapters.local.subject import Script, ScriptedLocalAdapter
from tests.adapters.scenarios import PAGE, ROUTES, Network, Stage
from tests.adapters.vendors import ANTHROPIC, LITELLM, OPENAI, OPENAI_CHAT
from tests.helpers.endings import endings
from tests.pictures import png
from tests.servers.loopback import Step
from tests.servers.turn import Call, Raw, Turn
from weakincentives.adapters import FallbackAdapter
from weakincentives.adapters.local.gguf.decoding import too_long
from weakincentives.adapters.local.gguf.engine import EngineError
from weakincentives.adapters.scripted import ScriptedAdapter
from weakincentives.clock import FakeClock
from weakincentives.content import Document, Image
from weakincentives.errors import ContextOverflowError, PromptEvaluationError
from weakincentives.prompt import (
    MarkdownSection,
    OpenOrRead,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    ToolContext,
    ToolResult,
    tool,
)
from weakincentives.runtime import (
    Approve,
    Compacted,
    Conversation,
    Message,
    ModelReply,
    ModelRequest,
    ReasoningDelta,
    ReasoningDropped,
    Settings,
    TextDelta,
    ToolCall,
    ToolStarted,
    assert_prefix_kept,
    delegate,
)
from weakincentives.session import Session, Snapshot

START, END = "<!-- conversations: made by tests/adapters/conversations.py -->", "<!-- end of conversations -->"
REFUSED = "refused by name"
PICTURE = Image.from_bytes(png(), "image/png", name="box.png")
PAPER = Document.from_bytes(b"%PDF-1.4 /Type /Page", "application/pdf", name="terms.pdf")


class Speaker(Protocol):
    """An adapter under test; `overflow` is how its vendor says that the context is full."""

    name: str
    outcomes: Mapping[str, str]
    overflow: Step

    def stage(self, *steps: Step) -> AbstractContextManager[Stage]: ...


def _error(**fields: Any) -> Raw:
    return Raw(400, json.dumps({"type": "error", "error": {"type": "invalid_request_error", **fields}}).encode())


@dataclass(frozen=True)
class Vendor:
    """A network adapter behind its vendor's server; the model is one that binds its thinking, where there is one."""

    network: Network
    overflow: Raw
    model: str
    outcomes: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.network.name

    def stage(self, *steps: Step) -> AbstractContextManager[Stage]:
        staged: AbstractContextManager[Stage] = self.network.stage(*steps, model=self.model)
        return staged


@dataclass(frozen=True)
class Scripted:
    """The public test double, which takes a script in place of a server's."""

    name: str = "scripted"
    overflow: Raw = field(default=Raw(413))
    outcomes: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def stage(self, *steps: Step) -> Iterator[Stage]:
        adapter = ScriptedAdapter([_line(step, number) for number, step in enumerate(steps)])
        yield Stage(adapter, FakeClock(), lambda: len(adapter.requests), lambda: list(map(_said, adapter.requests)))


class Heard(Script):
    """A script for the local adapter that keeps what it was asked."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        super().__init__(steps)
        self.heard: list[str] = []
        self.requests: list[ModelRequest] = []
        self.full = any(isinstance(step, Raw) and step.status == 413 for step in steps)

    def reply(self, request: ModelRequest, *rest: Any) -> ModelReply:
        self.heard.append(_said(request))
        self.requests.append(request)
        try:
            return super().reply(request, *rest)
        except EngineError:
            engine: Any = SimpleNamespace(settings=SimpleNamespace(path=Path("model.gguf"), context=8192))
            raise too_long(9_000, engine, request.prompt_name) if self.full else EngineError("broken") from None


@dataclass(frozen=True)
class Local:
    """The local adapter, with a script in place of its model."""

    name: str = "local"
    overflow: Raw = field(default=Raw(413))
    outcomes: Mapping[str, str] = field(
        default_factory=lambda: {
            **dict.fromkeys(("image", "document", "tool with image"), REFUSED),
            "reasoning": "shows none",
        }
    )

    @contextmanager
    def stage(self, *steps: Step) -> Iterator[Stage]:
        adapter = ScriptedLocalAdapter()
        adapter.replier = script = Heard(steps)
        with adapter:
            yield Stage(adapter, FakeClock(), lambda: script.replies, lambda: list(script.heard))


def _line(step: Step, number: int) -> Any:
    if isinstance(step, Raw):
        kind = ContextOverflowError if step.status == 413 else PromptEvaluationError
        return kind("refused", phase="request")
    calls = tuple(
        ToolCall(f"call_{number}_{index}", call.name, json.dumps(call.arguments))
        for index, call in enumerate(step.calls)
    )
    return ModelReply(step.text, calls, reasoning=step.reasoning, stop_reason="tool_calls" if calls else "end")


def _said(request: ModelRequest) -> str:
    media = [part for message in request.messages for part in message.parts if not isinstance(part, str)]
    return "\n".join([*(message.text for message in request.messages), *(encoded(part) for part in media)])


def encoded(part: Any) -> str:
    """The bytes of a part as they are seen in a request."""
    from base64 import b64encode

    return b64encode(part.data).decode() if getattr(part, "blob", None) else ""


@tool
def photograph() -> ToolResult[None]:
    """Take a photo."""
    return ToolResult("Here it is:", attachments=(PICTURE,))


@tool
def look_up(word: str) -> str:
    """Look up a word."""
    return f"{word} means {word[::-1]}"


@tool
def refund() -> str:
    """Pay it back."""
    return "refunded"


@tool
def interrupt(context: ToolContext) -> str:
    """Run while the user speaks."""
    context.session.dispatch(Message("user", "Wait, one more thing."))
    return "interrupted"


@dataclass(frozen=True)
class Bought:
    what: str


@tool(name="buy", approval="effects", changes=(Bought,))
def buying(what: str, context: ToolContext) -> str:
    """Buy something."""
    context.session.dispatch(Bought(what))
    return f"bought {what}"


def prompt(*sections: Any, **options: Any) -> Prompt[Any]:
    task = MarkdownSection(title="Task", key="task", template="Help.", tools=[photograph, look_up, interrupt])
    return Prompt(PromptTemplate(ns="tests", key="chat", sections=[task, *sections], **options))


def chat_on(stage: Stage, *sections: Any, **options: Any) -> Conversation[Any]:
    return Conversation(prompt(*sections, **options), adapter=stage.adapter)


def said(chat: Conversation[Any]) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in chat.messages if message.role in ("user", "assistant")]


def first_user_turn(speaker: Speaker) -> None:
    customer = MarkdownSection(title="Customer", key="customer", template="My parcel is lost.", role="user")
    with speaker.stage(Turn("I am sorry.")) as stage:
        chat = chat_on(stage, customer)
        assert chat.send().text == "I am sorry."
        assert "My parcel is lost." in stage.received()[0]
    assert [(m.role, "My parcel is lost." in m.text) for m in chat.messages][:2] == [("system", False), ("user", True)]


def second_turn(speaker: Speaker) -> None:
    with speaker.stage(Turn("In Lyon."), Turn("Tomorrow.")) as stage:
        chat = chat_on(stage)
        assert [chat.send("Where is it?").text, chat.send("When does it arrive?").text] == ["In Lyon.", "Tomorrow."]
        first, second = stage.received()
        assert "Where is it?" in second and "In Lyon." in second and "When does it arrive?" in second
        if isinstance(speaker, Vendor):
            assert_prefix_kept([json.loads(first), json.loads(second)], chat.session)


def _media(speaker: Speaker, scenario: str, part: Any) -> None:
    with speaker.stage(Turn("I see."), Turn("Yes.")) as stage:
        chat = chat_on(stage)
        if speaker.outcomes.get(scenario) == REFUSED:
            models = "|".join(re.escape(model.model) for model in stage.adapter.models)
            with pytest.raises(PromptEvaluationError, match=models):
                chat.send([part, "What is it?"])
            assert stage.sent() == 0
            assert chat.send("Never mind.").text == "I see."
            return
        assert chat.send([part, "What is it?"]).text == "I see."
        assert chat.send("Are you sure?").text == "Yes."
        assert encoded(part) in stage.received()[0] and encoded(part) in stage.received()[1]


def image(speaker: Speaker) -> None:
    _media(speaker, "image", PICTURE)


def document(speaker: Speaker) -> None:
    _media(speaker, "document", PAPER)


def tool_with_image(speaker: Speaker) -> None:
    with speaker.stage(Turn(calls=(Call("photograph"),)), Turn("A box.")) as stage:
        chat = chat_on(stage)
        assert chat.send("Look.").text == "A box."
        shown = encoded(PICTURE) in stage.received()[1] if stage.received() else False
    (result,) = [message for message in chat.messages if message.role == "tool"]
    refused = speaker.outcomes.get("tool with image") == REFUSED
    assert (result.success, shown) == (not refused, not refused)


def reasoning(speaker: Speaker) -> None:
    turns = [Turn(reasoning="Let me look.", calls=(Call("look_up", {"word": "pets"}),)), Turn("Steps."), Turn("Yes.")]
    with speaker.stage(*turns) as stage:
        chat = chat_on(stage)
        with chat.stream("What is it?", settings=Settings(show_reasoning=True)) as events:
            shown = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
        assert (shown, chat.send("Sure?", settings=Settings(show_reasoning=True)).text) == ("Let me look.", "Yes.")
    assert [message.reasoning for message in chat.messages if message.tool_calls] == ["Let me look."]
    assert chat.session[ReasoningDropped].all() == ()


def stop_in_text(speaker: Speaker) -> None:
    with speaker.stage(Turn("One two three."), Turn("As I said.")) as stage:
        chat = chat_on(stage)
        with chat.stream("Count.") as events:
            shown = next(event.text for event in events if isinstance(event, TextDelta))
        assert chat.send("Go on.").text == "As I said."
    assert said(chat)[:3] == [("user", "Count."), ("assistant", shown), ("user", "Go on.")]


def stop_in_tool(speaker: Speaker) -> None:
    with speaker.stage(Turn(calls=(Call("look_up", {"word": "a"}),)), Turn("Fine.")) as stage:
        chat = chat_on(stage)
        with chat.stream("Go.") as events:
            assert any(isinstance(event, ToolStarted) for event in events)
        assert chat.send("Stop that.").text == "Fine."
    assert [message.text for message in chat.messages if message.role == "tool"] == ["Not run: the run was stopped."]


def user_speaks_over_a_call(speaker: Speaker) -> None:
    both = Turn(calls=(Call("interrupt"), Call("look_up", {"word": "pets"})))
    with speaker.stage(both, Turn("Noted.")) as stage:
        chat = chat_on(stage)
        assert chat.send("Go.").text == "Noted."
        assert "Wait, one more thing." in stage.received()[1]
    assert [message.role for message in chat.messages][-4:] == ["tool", "tool", "user", "assistant"]


def restart_in_mid_conversation(speaker: Speaker) -> None:
    hidden = MarkdownSection(
        title="Refunds",
        key="refunds",
        template="Refund all.",
        summary="Money.",
        visibility=SectionVisibility.SUMMARY,
        tools=[refund],
    )
    opening = Call("open_sections", {"section_keys": ["refunds"], "reason": "needed"})
    turns = [Turn("Hello.", reasoning="Hm."), Turn(reasoning="Open it.", calls=(opening,)), Turn("Refunded.")]
    with speaker.stage(*turns) as stage:
        chat = chat_on(stage, hidden, disclosure=OpenOrRead())
        assert [chat.send("Hi.").text, chat.send("My money!").text] == ["Hello.", "Refunded."]
        assert "Refund all." in stage.received()[2] and "Hello." in stage.received()[2]
    assert len(endings(chat.session, "restarted")) == 1
    assert [text for role, text in said(chat) if role == "user"] == ["Hi.", "My money!"]
    assert bool(chat.session[ReasoningDropped].all()) == ("5-5" in str(stage.adapter.model))


def save_and_load(speaker: Speaker) -> None:
    asked = Turn(reasoning="Let me look.", calls=(Call("look_up", {"word": "pets"}),))
    with speaker.stage(asked, Turn("Steps."), Turn("Still steps.")) as stage:
        chat = chat_on(stage)
        chat.send([PICTURE, "Look."] if "image" not in speaker.outcomes else "Look.")
        session = Session()
        session.restore(Snapshot.from_json(chat.session.snapshot().to_json()))
        later = Conversation(prompt(), adapter=stage.adapter, session=session)
        assert later.send("And now?").text == "Still steps."
        assert "Let me look." in stage.received()[2] or not stage.received()[2].startswith("{")
    assert (later.conversation_id, later.session[ReasoningDropped].all()) == (chat.conversation_id, ())


def earlier_message_redacted(speaker: Speaker) -> None:
    with speaker.stage(Turn("Thanks."), Turn("Fine."), Turn("Yes.")) as stage:
        chat = chat_on(stage)
        chat.send("My card is 4111-1111.")
        chat.send("Good.")
        chat.session[Message].update(
            lambda messages: [replace(each, text=each.text.replace("4111-1111", "[gone]")) for each in messages]
        )
        assert chat.send("Is it safe?").text == "Yes."
        assert "4111-1111" in stage.received()[1]
        assert "4111-1111" not in stage.received()[2] and "My card is [gone]." in stage.received()[2]


def fallback(speaker: Speaker) -> None:
    asked = Turn(reasoning="Let me look.", calls=(Call("look_up", {"word": "pets"}),))
    with speaker.stage(asked, Raw(400, b'{"error":{"message":"broken"}}'), Turn("Back again.")) as stage:
        other = ScriptedAdapter(["From the other."])
        chat = Conversation(prompt(), adapter=FallbackAdapter(stage.adapter, other))
        assert chat.send("What is it?").text == "From the other."
        assert chat.send("And now?").text == "Back again."
        assert "From the other." in stage.received()[-1]
    assert [message.text for message in other.requests[0].messages if message.role == "tool"] == ["pets means step"]
    assert [text for role, text in said(chat) if role == "user"] == ["What is it?", "And now?"]


def overflow(speaker: Speaker) -> None:
    with speaker.stage(Turn("Hello."), speaker.overflow, Turn("Shorter.")) as stage:
        chat = chat_on(stage)
        chat.send("Hi.")
        with pytest.raises(ContextOverflowError):
            chat.send("A very long story.")
        assert chat.send("In short.").text == "Shorter."


def compaction(speaker: Speaker) -> None:
    said_long = Turn("Hello. " + "And so on. " * 200, input_tokens=300, output_tokens=700)
    with speaker.stage(said_long, speaker.overflow, Turn("We have said hello."), Turn("Shorter.")) as stage:
        chat = chat_on(stage)
        chat.send("Hi.")
        assert chat.send("And then? " * 40).text == "Shorter."
        assert "And so on." not in stage.received()[-1]
        assert [event.by for event in chat.session[Compacted]] in (["provider"], ["model"])


def call_waits_for_a_person(speaker: Speaker) -> None:
    buy, look = Call("buy", {"what": "tea"}), Call("look_up", {"word": "pets"})
    turns = [Turn(reasoning="Both.", calls=(buy, look)), Turn("Bought."), Turn(calls=(buy,)), Turn("Well.")]
    shop = MarkdownSection(title="Shop", key="shop", template="Buy.", tools=[buying])
    with speaker.stage(*turns) as stage:
        chat = chat_on(stage, shop)
        (waiting,) = chat.send("Buy some.").pending
        session = Session()
        session.restore(Snapshot.from_json(chat.session.snapshot().to_json(), types=[Bought]))
        chat = Conversation(prompt(shop), adapter=stage.adapter, session=session)
        assert (session[Bought].all(), len(stage.received())) == ((), 1)
        assert chat.decide({waiting.call_id: Approve()}).text == "Bought."
        assert "pets means step" in stage.received()[1] and "bought tea" in stage.received()[1]
        if isinstance(speaker, Vendor):
            assert_prefix_kept([json.loads(body) for body in stage.received()])
        assert len(chat.send("And more.").pending) == 1
        assert chat.send("No, thanks.").text == "Well."
        assert "Not decided" in stage.received()[3]
    assert session[Bought].all() == (Bought("tea"),)


def fork_keeps_the_prefix(speaker: Speaker) -> None:
    summing = PromptTemplate(
        ns="tests", key="sum_up", sections=[MarkdownSection(title="T", key="t", template="Sum it up.")]
    )
    more = MarkdownSection(
        title="More", key="more", template="More.", tools=[delegate(summing, description="Sum up.", fork=True)]
    )
    looked = Turn(reasoning="Look.", calls=(Call("look_up", {"word": "pets"}),))
    turns = [looked, Turn(reasoning="Fork.", calls=(Call("sum_up"),)), Turn("In a word."), Turn("Done.")]
    with speaker.stage(*turns) as stage:
        chat = chat_on(stage, more)
        assert chat.send("Go.").text == "Done."
        first, before, fork, after = stage.received()
        assert "Sum it up." in fork and "In a word." in after and "Sum it up." not in after
        if isinstance(speaker, Vendor):
            bodies = [json.loads(body) for body in (first, before, fork, after)]
            assert_prefix_kept(bodies[:3])
            assert_prefix_kept([*bodies[:2], bodies[3]])


def going_back(speaker: Speaker) -> None:
    """To a turn in this process, and to a message in another; requests are those of then, byte for byte."""
    looked = Turn(reasoning="Look.", calls=(Call("look_up", {"word": "pets"}),))
    turns = [looked, Turn("Steps."), Turn("Fine.", reasoning="Hm."), Turn("Stairs."), Turn("Well."), Turn("Well.")]
    with speaker.stage(*turns) as stage:
        chat = chat_on(stage)
        chat.send("What is it?")
        chat.send("And then?")
        chat.rewind(chat.checkpoints()[2])
        assert chat.send().text == "Stairs."
        chat.send("And then?")
        session = Session()
        session.restore(Snapshot.from_json(chat.session.snapshot().to_json()))
        later = Conversation(prompt(), adapter=stage.adapter, session=session)
        (point,) = [point for point in later.checkpoints() if point.text == "And then?"]
        later.rewind(point)
        assert later.send("And then?").text == "Well."
        _, answered, _, repeated, asked, again = stage.received()
        if not speaker.name.startswith("claude agent sdk"):  # The CLI writes requests of its own.
            assert (repeated, again) == (answered, asked)
        assert "Steps." not in again and "Fine." not in again
    assert said(later)[-3:] == [("assistant", "Stairs."), ("user", "And then?"), ("assistant", "Well.")]


SCENARIOS: dict[str, Callable[[Speaker], None]] = {
    "first user turn": first_user_turn,
    "second turn": second_turn,
    "image": image,
    "document": document,
    "tool with image": tool_with_image,
    "reasoning": reasoning,
    "stop in text": stop_in_text,
    "stop in tool": stop_in_tool,
    "user speaks over a call": user_speaks_over_a_call,
    "restart in mid-conversation": restart_in_mid_conversation,
    "save and load": save_and_load,
    "earlier message redacted": earlier_message_redacted,
    "fallback": fallback,
    "overflow": overflow,
    "compaction after an overflow": compaction,
    "call waits for a person": call_waits_for_a_person,
    "fork keeps the prefix": fork_keeps_the_prefix,
    "going back": going_back,
}

FULL = "prompt is too long: 208310 tokens > 200000 maximum"
EXCEEDED = {"code": "context_length_exceeded", "message": "Your input exceeds the context window of this model."}


def speakers() -> list[Speaker]:
    """The adapters, in the order of the table."""
    return [
        Vendor(Network(OPENAI), _error(**EXCEEDED), "gpt-5.6"),
        Vendor(Network(ANTHROPIC), _error(message=FULL), "claude-opus-5-5"),
        Vendor(Network(OPENAI_CHAT), _error(**EXCEEDED), "scripted"),
        Vendor(Network(LITELLM), _error(**EXCEEDED), "openai/scripted"),
        Claude(),
        Local(),
        Scripted(),
    ]


def routes() -> list[Speaker]:
    """The other routes of the network adapters."""
    errors = {"openai": _error(**EXCEEDED), "anthropic": _error(message=FULL)}
    models = {"openai": "gpt-5.6", "anthropic": "claude-opus-5-5"}
    return [Vendor(network, errors[network.vendor.name], models[network.vendor.name]) for network in ROUTES]


def table() -> str:
    """Scenario by adapter, in Markdown."""
    found = speakers()
    lines = [f"| scenario | {' | '.join(speaker.name for speaker in found)} |", f"|---|{'---|' * len(found)}"]
    for scenario in SCENARIOS:
        lines.append(f"| {scenario} | {' | '.join(speaker.outcomes.get(scenario, 'yes') for speaker in found)} |")
    return "\n".join(lines)


def page() -> str:
    """The page with the table in its place."""
    before, _, rest = PAGE.read_text().partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page())
    else:
        print(table())
