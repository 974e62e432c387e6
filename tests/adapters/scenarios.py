"""What every adapter must do, written once: each scenario runs on each adapter, through its vendor's own SDK.

A subject stages a scripted model behind an adapter. The table in provider-support.md says which scenarios each
adapter passes; `python -m tests.adapters.scenarios` runs them all and prints it, `--write` updates the page.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.adapters.vendors import ANTHROPIC, OPENAI, VENDORS, Vendor
from tests.servers.loopback import Step
from tests.servers.turn import Call, Raw, Turn
from weakincentives.clock import FakeClock
from weakincentives.errors import BudgetExceededError, DeadlineExceededError, OutputParseError
from weakincentives.limits import Budget, Deadline
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    ToolContext,
    ToolResult,
    tool,
)
from weakincentives.runtime import ArgumentsDelta, ModelCalled, ToolInvoked, ToolsInjected
from weakincentives.session import Session, Snapshot, reducer

PAGE = Path(__file__).parents[2] / "docs" / "models" / "provider-support.md"
START, END = "<!-- scenarios: made by tests/adapters/scenarios.py -->", "<!-- end of scenarios -->"


@dataclass
class Stage:
    """A scripted model behind an adapter; `sent` says how many requests have reached it, `received` what they said."""

    adapter: Any
    clock: FakeClock
    sent: Callable[[], int]
    received: Callable[[], list[str]] = list


class Subject(Protocol):
    """An adapter under test. `exempt` names the scenarios that do not apply to it, with the reason."""

    name: str
    exempt: Mapping[str, str]

    def stage(self, *steps: Step) -> AbstractContextManager[Stage]: ...


@dataclass(frozen=True)
class Network:
    """A network adapter behind its vendor's server, with options that choose one of its routes."""

    vendor: Vendor
    exempt: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return " ".join([self.vendor.name, *(f"{name}={value}" for name, value in self.options.items())])

    @contextmanager
    def stage(self, *steps: Step, **options: Any) -> Any:
        clock, options = FakeClock(), {**options, **self.options}
        with self.vendor.server(steps) as server, self.vendor.adapter(server, clock=clock, **options) as adapter:
            yield Stage(
                adapter,
                clock,
                lambda: len(server.requests),
                lambda: [request.body.decode() for request in server.requests],
            )


@dataclass(frozen=True)
class Verdict:
    score: int
    why: str


@dataclass(frozen=True)
class Noted:
    text: str


@dataclass(frozen=True)
class Notes:
    """A slice that tools write to."""

    texts: tuple[str, ...] = ()

    @reducer(on=Noted)
    def add(self, event: Noted) -> Notes:
        return Notes((*self.texts, event.text))


@tool
def note(text: str, context: ToolContext) -> ToolResult[None]:
    """Keep a note."""
    context.session.dispatch(Noted(text))
    return ToolResult(f"Noted {text}.")


@tool
def note_and_fail(text: str, context: ToolContext) -> ToolResult[None]:
    """Keep a note, then fail."""
    context.session.dispatch(Noted(text))
    raise ValueError("it broke")


@tool(read_only=True)
def look_up(word: str) -> ToolResult[None]:
    """Look up a word."""
    return ToolResult(f"{word} means {word[::-1]}")


TOOLS = (note, note_and_fail, look_up)


def prompt(output: Any = None, **options: Any) -> Prompt[Any]:
    made: Any = PromptTemplate if output is None else PromptTemplate[output]
    section = MarkdownSection(title="Task", key="task", template="Do it.", tools=TOOLS)
    return Prompt(made(ns="tests", key="scenario", sections=[section], **options))


def hidden_prompt() -> Prompt[Any]:
    """A prompt whose tools appear when the model reads a section."""
    section = MarkdownSection(
        title="Notebook",
        key="notebook",
        template="Write notes here.",
        summary="A notebook.",
        visibility=SectionVisibility.SUMMARY,
        tools=TOOLS,
    )
    return Prompt(PromptTemplate(ns="tests", key="hidden", sections=[section]))


def call(name: str, **arguments: Any) -> Call:
    return Call(name, arguments)


def text(subject: Subject) -> None:
    with subject.stage(Turn("Hello.")) as stage:
        session = Session()
        response = stage.adapter.evaluate(prompt(), session=session)
    assert (response.text, response.output, response.turns) == ("Hello.", None, 1)
    assert session[ModelCalled].latest().usage.total_tokens > 0


def structured_output(subject: Subject) -> None:
    with subject.stage(Turn('{"score": 7, "why": "good"}')) as stage:
        response = stage.adapter.evaluate(prompt(Verdict), session=Session())
    assert response.output == Verdict(7, "good")


def structured_list(subject: Subject) -> None:
    with subject.stage(Turn('{"items": [{"score": 7, "why": "good"}]}')) as stage:
        response = stage.adapter.evaluate(prompt(list[Verdict]), session=Session())
    assert response.output == [Verdict(7, "good")]


def wrong_output_corrected(subject: Subject) -> None:
    script = [Turn('{"score": "high"}'), Turn('{"score": 7, "why": "good"}')]
    with subject.stage(*script) as stage:
        response = stage.adapter.evaluate(prompt(Verdict), session=Session())
        assert stage.sent() == 2
    assert response.output == Verdict(7, "good")


def wrong_output_twice(subject: Subject) -> None:
    with subject.stage(Turn('{"score": 1}'), Turn('{"score": 2}')) as stage:
        try:
            stage.adapter.evaluate(prompt(Verdict), session=Session())
        except OutputParseError as error:
            assert error.raw == '{"score": 2}'
        else:
            raise AssertionError("no OutputParseError")


def three_tool_turns(subject: Subject) -> None:
    turns = [Turn(calls=(call("note", text=word),)) for word in ("a", "b", "c")]
    with subject.stage(*turns, Turn("Done.")) as stage:
        session = Session()
        response = stage.adapter.evaluate(prompt(), session=session)
        assert stage.sent() == 4
    assert (response.text, session[Notes].latest()) == ("Done.", Notes(("a", "b", "c")))
    assert [event.name for event in session[ToolInvoked].all()] == ["note"] * 3


def parallel_calls(subject: Subject) -> None:
    both = Turn(calls=(call("look_up", word="pets"), call("look_up", word="star")))
    with subject.stage(both, Turn("Done.")) as stage:
        session = Session()
        stage.adapter.evaluate(prompt(), session=session)
    found = {event.result.message for event in session[ToolInvoked].all()}
    assert found == {"pets means step", "star means rats"}


def failing_tool_rolled_back(subject: Subject) -> None:
    turns = [Turn(calls=(call("note", text="kept"),)), Turn(calls=(call("note_and_fail", text="gone"),))]
    with subject.stage(*turns, Turn("Done.")) as stage:
        session = Session()
        stage.adapter.evaluate(prompt(), session=session)
    assert session[Notes].latest() == Notes(("kept",))
    assert [event.success for event in session[ToolInvoked].all()] == [True, False]


def unknown_tool_and_bad_arguments(subject: Subject) -> None:
    turns = [Turn(calls=(call("nothing"),)), Turn(calls=(call("note", words=3),))]
    with subject.stage(*turns, Turn("Done.")) as stage:
        session = Session()
        response = stage.adapter.evaluate(prompt(), session=session)
    assert response.text == "Done."
    first, second = [event.result.message for event in session[ToolInvoked].all()]
    assert "Unknown tool 'nothing'" in first and "text" in second and "words" in second


def retry_after_429(subject: Subject) -> None:
    busy = Raw(429, b'{"error":{"message":"slow down"}}', {"retry-after": "2"})
    with subject.stage(busy, Turn("Hello.")) as stage:
        session = Session()
        assert stage.adapter.evaluate(prompt(), session=session).text == "Hello."
        assert stage.sent() == 2
        assert stage.clock.monotonic() > 0
    assert session[ModelCalled].latest().retries == 1


def retry_after_503(subject: Subject) -> None:
    down = Raw(503, b'{"error":{"message":"down"}}')
    with subject.stage(down, down, Turn("Hello.")) as stage:
        session = Session()
        assert stage.adapter.evaluate(prompt(), session=session).text == "Hello."
    assert session[ModelCalled].latest().retries == 2


def deadline_in_mid_run(subject: Subject) -> None:
    with subject.stage(Turn(calls=(call("note", text="a"),)), Turn("Late.", delay=30)) as stage:
        session = Session()
        try:
            stage.adapter.evaluate(
                prompt(), session=session, deadline=Deadline.after(getattr(subject, "patience", 0.3))
            )
        except DeadlineExceededError:
            pass
        else:
            raise AssertionError("no DeadlineExceededError")
    assert session[Notes].latest() == Notes(("a",))


def budget_stop(subject: Subject) -> None:
    with subject.stage(Turn(calls=(call("note", text="a"),), input_tokens=90), Turn("Never.")) as stage:
        session = Session()
        try:
            stage.adapter.evaluate(prompt(), session=session, budget=Budget(max_total_tokens=80))
        except BudgetExceededError as error:
            assert error.limit == "max_total_tokens"
        else:
            raise AssertionError("no BudgetExceededError")
        assert stage.sent() == 1


def streaming(subject: Subject) -> None:
    with subject.stage(Turn(calls=(call("note", text="a"),)), Turn("one two three")) as stage:
        events = list(stage.adapter.stream(prompt(), session=Session()))
    _check_stream(events)


def asynchronous(subject: Subject) -> None:
    with subject.stage(Turn(calls=(call("note", text="a"),)), Turn("Done.")) as stage:
        session = Session()
        response = asyncio.run(stage.adapter.evaluate_async(prompt(), session=session))
    assert (response.text, session[Notes].latest()) == ("Done.", Notes(("a",)))


def asynchronous_streaming(subject: Subject) -> None:
    async def collect(adapter: Any) -> list[Any]:
        return [event async for event in adapter.stream_async(prompt(), session=Session())]

    with subject.stage(Turn(calls=(call("note", text="a"),)), Turn("one two three")) as stage:
        events = asyncio.run(collect(stage.adapter))
    _check_stream(events)


def tools_appear(subject: Subject) -> None:
    turns = [Turn(calls=(call("read_section", section_key="notebook"),)), Turn(calls=(call("note", text="a"),))]
    with subject.stage(*turns, Turn("Done.")) as stage:
        session = Session()
        response = stage.adapter.evaluate(hidden_prompt(), session=session)
        assert stage.sent() == 3
    assert (response.text, session[Notes].latest()) == ("Done.", Notes(("a",)))
    assert session[ToolsInjected].latest().tool_names == ("note", "note_and_fail", "look_up")


def resumed_from_json(subject: Subject) -> None:
    with subject.stage(Turn(calls=(call("note", text="a"),)), Raw(400, b"{}"), Turn("Done.")) as stage:
        session = Session()
        try:
            stage.adapter.evaluate(prompt(), session=session)
        except Exception:
            saved = session.snapshot().to_json()
        later = Session()
        later.restore(Snapshot.from_json(saved))
        response = stage.adapter.resume(prompt(), session=later)
    assert (response.text, later[Notes].latest()) == ("Done.", Notes(("a",)))


def _check_stream(events: list[Any]) -> None:
    events = [event for event in events if not isinstance(event, ArgumentsDelta)]
    kinds = [type(event).__name__ for event in events]
    assert kinds[:2] == ["ToolStarted", "ToolEnded"]
    assert set(kinds[2:-1]) == {"TextDelta"} and len(kinds) > 4
    assert "".join(event.text for event in events[2:-1]) == events[-1].response.text == "one two three"


SCENARIOS: dict[str, Callable[[Subject], None]] = {
    "text": text,
    "structured output": structured_output,
    "a list as output": structured_list,
    "wrong output corrected": wrong_output_corrected,
    "wrong output twice": wrong_output_twice,
    "3 tool turns": three_tool_turns,
    "parallel calls": parallel_calls,
    "failing tool rolled back": failing_tool_rolled_back,
    "unknown tool, bad arguments": unknown_tool_and_bad_arguments,
    "tools appear mid-conversation": tools_appear,
    "retry after 429": retry_after_429,
    "retry after 503": retry_after_503,
    "deadline passes mid-run": deadline_in_mid_run,
    "budget stop": budget_stop,
    "streaming": streaming,
    "async": asynchronous,
    "async streaming": asynchronous_streaming,
    "resumed from JSON": resumed_from_json,
}


def subjects() -> list[Subject]:
    """The network adapters, and those with a subject of their own."""
    from tests.adapters.claude_agent_sdk.subject import SUBJECT as CLAUDE
    from tests.adapters.local.subject import SUBJECT as LOCAL

    return [*(Network(vendor) for vendor in VENDORS), CLAUDE, LOCAL]


ROUTES = (
    Network(OPENAI, options={"tool_route": "append"}),
    Network(OPENAI, options={"tool_search": True}),
    Network(OPENAI, options={"model": "gpt-6-sol"}),
    Network(ANTHROPIC, options={"model": "claude-sonnet-5"}),
    Network(ANTHROPIC, options={"model": "claude-haiku-5-5"}),
    Network(ANTHROPIC, options={"model": "claude-sonnet-5", "tool_route": "append"}),
    Network(ANTHROPIC, options={"tool_search": True}),
    Network(ANTHROPIC, options={"model": "claude-sonnet-5", "tool_search": True}),
)
"""The routes of the network adapters besides those that `subjects()` have: by option, or by model."""


def table() -> str:
    """Scenario by adapter, in Markdown; an exempt scenario shows its reason."""
    found = subjects()
    lines = [f"| scenario | {' | '.join(subject.name for subject in found)} |", f"|---|{'---|' * len(found)}"]
    for scenario in SCENARIOS:
        cells = [subject.exempt.get(scenario, "yes") for subject in found]
        lines.append(f"| {scenario} | {' | '.join(cells)} |")
    return "\n".join(lines)


def page_with(made: str) -> str:
    """The page with this table in its place."""
    before, _, rest = PAGE.read_text().partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n{made}\n{END}{after}"


def main(arguments: list[str]) -> None:
    logging.disable(logging.WARNING)
    for subject in subjects():
        for name, scenario in SCENARIOS.items():
            if name not in subject.exempt:
                scenario(subject)
    if "--write" in arguments:
        PAGE.write_text(page_with(table()))
    else:
        print(table())


if __name__ == "__main__":
    main(sys.argv[1:])
