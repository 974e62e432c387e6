"""`Exposure` says what a reader of the actual requests finds, and everyone who shows it agrees."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from tests.disclosure.desk import FULL, SUMMARY, a_tool, desk, section
from tests.disclosure.trees import line, poke, steps, trees
from tests.rounds import rounds
from weakincentives.adapters import FallbackAdapter
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import (
    CollapseSection,
    Disclosure,
    MarkdownSection,
    OpenAndHalt,
    OpenOrRead,
    OpenToFiles,
    Prompt,
    PromptTemplate,
    ReadSections,
    SearchSections,
    Tool,
    ToolContext,
    ToolResult,
    WorkspaceSection,
    tool,
)
from weakincentives.runtime import (
    Conversation,
    Exposure,
    MainLoop,
    Message,
    ModelRequest,
    SectionsExposed,
    ToolInvoked,
    run_history,
)
from weakincentives.session import Session, Snapshot

RANK = {"none": 0, "summary": 1, "conversation": 2, "prompt": 3}


@dataclass(frozen=True)
class Year:
    number: int = 0


def read_requests(messages: Any, number: int, year: int) -> str:
    """Where the text of section `number` stands, by looking for it: the plain rule that the library must follow."""
    full, short = re.compile(rf"Full {number}, {year}\."), re.compile(rf"Short {number}\.")
    found = "none"
    for at, message in enumerate(messages):
        if full.search(message.text):
            found = max(found, "prompt" if at == 0 and message.role == "system" else "conversation", key=RANK.get)
        elif short.search(message.text):
            found = max(found, "summary", key=RANK.get)
    return found


def build(shape: Any, numbers: Iterator[int]) -> MarkdownSection[Year]:
    closed, has_tool, _, children = shape
    number = next(numbers)
    return MarkdownSection[Year](
        title=f"S{number}",
        key=f"s{number}",
        template=f"Full {number}, ${{number}}.",
        summary=f"Short {number}.",
        visibility=SUMMARY if closed else FULL,
        tools=[a_tool(f"tool{number}")] if has_tool else [],
        children=[build(child, numbers) for child in children],
    )


class ByTitle(Disclosure):
    """A strategy of the user's own, which names only the section that it opens."""

    def tools(self, *, with_tools: bool, content_only: bool) -> tuple[Tool[Any, Any], ...]:
        return (READ,) if with_tools or content_only else ()

    def hint(self, key: str, *, children: Any, has_tools: bool) -> str:
        return f"[More: {key}]"


def read(section_key: str, *, context: ToolContext) -> ToolResult[None]:
    """Read a section."""
    view = context.view
    path = view.find(section_key)
    if path is None or view.is_open(path):
        return ToolResult("nothing to open", success=False)
    return ToolResult(view.reading(path).render(), disclosure=view.request([section_key]))


READ = tool(name="read_section", description="Read a section.")(read)


def check(session: Session, request: ModelRequest, count: int, year: int) -> None:
    exposure = session[Exposure].latest() or Exposure()
    found = {int(path[-1][1:]): exposed.source for path, exposed in exposure.items() if path[-1][1:].isdigit()}
    for number in range(count):
        assert found.get(number, "none") == read_requests(request.messages, number, year), (number, request.messages)
    calls = {message.call_id: message.text for message in request.messages if message.role == "tool"}
    for path, exposed in exposure.items():
        if exposed.call_id and path[-1][1:].isdigit():
            assert f"Full {path[-1][1:]}, {year}." in calls[exposed.call_id] or exposed.source == "summary"


def check_agreement(session: Session) -> None:
    """The log folds to the slice, and the history of the last run shows the same."""
    exposure, folded = session[Exposure].latest() or Exposure(), Exposure()
    for event in session[SectionsExposed].all():
        assert event.changes and all(folded[path] != exposed for path, exposed in event.changes.items())
        folded = folded.handle(event)
    assert folded == exposure
    for shown in run_history(session).now.sections:
        assert shown.seen == exposure[shown.path].source


@example(
    [(True, False, True, ((True, True, True, ()),))], [("read", 0), ("read", 1), ("collapse", 0)], ReadSections(), False
)
@example(
    [(True, False, True, ((False, False, True, ()),))],
    [("open", 0), ("bind", 3), ("read", 0), ("bind", 0), ("bind", 3)],
    OpenAndHalt(),
    True,
)
@settings(max_examples=rounds(50, 300))
@given(
    st.lists(trees, min_size=1, max_size=4),
    st.lists(st.one_of(steps, st.tuples(st.sampled_from(["send", "bind", "restore"]), st.integers(0, 3))), max_size=12),
    st.sampled_from([ReadSections(), OpenOrRead(), OpenToFiles(), OpenAndHalt(), SearchSections(), ByTitle()]),
    st.booleans(),
)
def test_exposure_is_what_a_reader_of_the_requests_finds(
    shapes: Any, script: list[tuple[str, int]], strategy: Any, dynamic: bool
) -> None:
    numbers = itertools.count()
    sections = [build(shape, numbers) for shape in shapes]
    count, year = next(numbers), 0
    keys = [node.key for node in PromptTemplate(ns="t", key="k", sections=sections).outline.nodes]
    task = MarkdownSection(title="Task", key="task", template="Go.", tools=[poke])
    template: PromptTemplate[None] = PromptTemplate(
        ns="t", key="k", sections=[task, *sections, WorkspaceSection()], disclosure=strategy, allow_collapse=True
    )
    lines = list(script)

    def answer(request: ModelRequest) -> Any:
        check(chat.session, request, count, year)
        check_agreement(chat.session)
        if not lines or lines[0][0] in ("send", "bind", "restore"):
            return "done"
        return line(lines.pop(0), keys, request)

    adapter = ScriptedAdapter(answer, supports_dynamic_tools=dynamic)
    chat = Conversation(Prompt(template).bind(Year()), adapter=adapter, max_expansions=30)
    chat.send("Go.")
    while lines:
        action, number = lines.pop(0)
        if action == "bind":
            year = number
            chat.bind(Year(year))
        elif action == "restore":
            restored = Session()
            restored.restore(Snapshot.from_json(chat.session.snapshot().to_json()))
            chat = Conversation(Prompt(template).bind(Year(year)), adapter=adapter, session=restored, max_expansions=30)
        chat.send("Go on.")


def sources(session: Session) -> dict[str, str]:
    exposure = session[Exposure].latest() or Exposure()
    return {".".join(path): exposed.source for path, exposed in exposure.items()}


def test_closing_changes_visibility_not_exposure() -> None:
    session, script = Session(), [call("read_section", section_key="orders"), "One."]
    chat = Conversation(Prompt(desk(allow_collapse=True)), adapter=ScriptedAdapter([*script, "Two."]), session=session)
    chat.send("a")
    before, events = session[Exposure].latest(), len(session[SectionsExposed].all())
    session.dispatch(CollapseSection(("orders",)))
    chat.send("b")
    assert session[Exposure].latest() == before and len(session[SectionsExposed].all()) == events
    orders = next(each for each in run_history(session).now.sections if each.key == "orders")
    assert (orders.visibility, orders.seen) == (SUMMARY, "conversation")


def test_a_restart_by_another_adapter_moves_text_into_the_prompt_and_keeps_the_result() -> None:
    down = PromptEvaluationError("down", phase="request")
    first = ScriptedAdapter([call("read_section", section_key="orders"), down])
    second = ScriptedAdapter(["Done."], supports_dynamic_tools=False)
    session = Session()
    MainLoop().execute(Prompt(desk()), session=session, adapter=FallbackAdapter(first, second))
    exposed = (session[Exposure].latest() or Exposure())["orders",]
    in_prompt = "All of orders." in second.requests[0].messages[0].text
    assert (exposed.source, bool(exposed.call_id)) == ("prompt" if in_prompt else "conversation", True)


def test_a_search_hit_exposes_a_section_that_the_prompt_does_not_list() -> None:
    template = PromptTemplate[None](
        ns="t", key="k", sections=[section("docs"), section("orders")], disclosure=SearchSections(menu="none")
    )
    session = Session()
    adapter = ScriptedAdapter([call("search_sections", query="docs"), "Done."])
    MainLoop().execute(Prompt(template), session=session, adapter=adapter)
    assert sources(session) == {"docs": "summary"}


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_strategy_of_ones_own_sends_the_text_of_a_nested_section_once(dynamic: bool) -> None:
    inner = section("inner", tools=("act",))
    template = PromptTemplate[None](
        ns="t", key="k", sections=[section("outer", children=[inner])], disclosure=ByTitle()
    )
    adapter = ScriptedAdapter(
        [call("read_section", section_key="outer.inner"), "Done."], supports_dynamic_tools=dynamic
    )
    session = Session()
    MainLoop().execute(Prompt(template), session=session, adapter=adapter)
    sent = "\n".join(message.text for message in adapter.requests[-1].messages)
    assert (sent.count("All of inner."), sent.count("All of outer.")) == (1, 1)
    invoked = session[ToolInvoked].all()[0]
    assert invoked.text == next(message.text for message in session[Message].all() if message.role == "tool")


def test_a_run_resumed_from_an_earlier_snapshot_says_what_the_model_has_again() -> None:
    session, taken = Session(), list[Snapshot]()

    def stop(request: ModelRequest) -> Any:
        if taken:
            raise ConnectionError("gone")
        taken.append(session.snapshot())
        return call("read_section", section_key="orders")

    with pytest.raises(ConnectionError):
        ScriptedAdapter(stop).evaluate(Prompt(desk()), session=session)
    assert sources(session)["orders"] == "conversation"
    session.restore(taken[0])
    ScriptedAdapter(["done"]).resume(Prompt(desk()), session=session)
    assert sources(session)["orders"] == "summary"
    check_agreement(session)
