"""The history of a run says what the prompt showed, whatever opened, closed, undid or resumed it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tests.disclosure.desk import FULL, SUMMARY, LookUp, a_tool, changing, desk, section
from tests.disclosure.trees import build, line, poke, steps, trees
from tests.rounds import rounds
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.clock import FakeClock
from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import (
    CollapseSection,
    MarkdownSection,
    OpenAndHalt,
    OpenOrRead,
    OpenToFiles,
    Prompt,
    PromptTemplate,
    ReadSections,
    SectionVisibility,
    SetVisibilityOverride,
    ToolContext,
    VisibilityChange,
    WorkspaceSection,
    tool,
)
from weakincentives.runtime import Compacted, Compaction, MainLoop, ModelRequest, RunHistory, run_history
from weakincentives.runtime.spi import HistoryBuilder, PromptState
from weakincentives.session import Session

HIDDEN = SectionVisibility.HIDDEN


def shown(state: PromptState) -> dict[str, SectionVisibility]:
    return {section.key: section.visibility for section in state.sections}


def prompted(prompt: Prompt[Any], session: Session) -> dict[str, SectionVisibility]:
    view = prompt.view(session)
    return {node.key: view.visibility_of(node) for node in view.existing()}


class Watch:
    """Folds the events of a session as they come, as a recording does."""

    def __init__(self, session: Session) -> None:
        self.builder = HistoryBuilder()
        session.observe(self.builder.add)

    @property
    def history(self) -> RunHistory:
        return self.builder.build()


@settings(max_examples=rounds(60, 300), deadline=None)
@given(
    st.lists(trees, min_size=1, max_size=4),
    st.lists(steps, max_size=8),
    st.sampled_from([ReadSections(), OpenOrRead(), OpenToFiles(), OpenAndHalt()]),
    st.booleans(),
)
def test_history_and_prompt_agree_on_every_section_at_every_turn(
    shapes: Any, script: list[tuple[str, int]], strategy: Any, dynamic: bool
) -> None:
    numbers = itertools.count()
    sections = [build(shape, numbers) for shape in shapes]
    keys = [node.key for node in PromptTemplate(ns="t", key="k", sections=sections).outline.nodes]
    task = MarkdownSection(title="Task", key="task", template="Go.", tools=[poke])
    template = PromptTemplate(
        ns="t", key="k", sections=[task, *sections, WorkspaceSection()], disclosure=strategy, allow_collapse=True
    )
    session, prompt, lines = Session(), Prompt(template), iter(script)
    watch, seen = Watch(session), list[dict[str, SectionVisibility]]()

    def answer(request: ModelRequest) -> Any:
        seen.append(prompted(prompt, session))
        assert shown(watch.history.now) == seen[-1]
        step = next(lines, None)
        return "done" if step is None else line(step, keys, request)

    adapter = ScriptedAdapter(answer, supports_dynamic_tools=dynamic)
    MainLoop(max_expansions=20).execute(prompt, session=session, adapter=adapter)
    assert [shown(turn.state) for turn in watch.history.turns] == seen
    assert [shown(turn.state) for turn in run_history(session).turns] == seen


def changed(*changes: VisibilityChange, fail: bool = False) -> tuple[Watch, dict[str, SectionVisibility]]:
    """A parent with a child, both summarized, after a tool made these changes."""
    parent = section("parent", children=[section("child")])
    prompt, session = Prompt(ns="t", key="t", sections=[changing(*changes, fail=fail), parent]), Session()
    watch = Watch(session)
    ScriptedAdapter([call("change"), "done"]).evaluate(prompt, session=session)
    assert shown(watch.history.turns[-1].state) == shown(run_history(session).turns[-1].state)
    return watch, prompted(prompt, session)


def test_opening_a_child_opens_a_parent_that_was_closed_before() -> None:
    watch, prompt = changed(CollapseSection(("parent",)), SetVisibilityOverride(("parent", "child"), FULL))
    assert shown(watch.history.turns[-1].state) == prompt == {"task": FULL, "parent": FULL, "parent.child": FULL}


def test_what_a_failed_call_opened_is_closed_again() -> None:
    watch, prompt = changed(SetVisibilityOverride(("parent",), FULL), fail=True)
    assert shown(watch.history.turns[-1].state) == prompt == {"task": FULL, "parent": SUMMARY, "parent.child": HIDDEN}
    assert [use.rolled_back for use in watch.history.turns[0].uses] == [True]


def test_a_child_shows_what_it_declares_once_its_parent_opens() -> None:
    watch, _ = changed(SetVisibilityOverride(("parent",), FULL))
    assert [shown(turn.state)["parent.child"] for turn in watch.history.turns] == [HIDDEN, SUMMARY]


def test_overrides_of_the_session_from_before_the_run_are_known() -> None:
    session = Session()
    session.dispatch(SetVisibilityOverride(("docs",), FULL))
    watch = Watch(session)
    ScriptedAdapter(["done"]).evaluate(Prompt(desk()), session=session)
    docs = watch.history.turns[0].state.sections[1]
    assert (docs.rendered, docs.visibility, docs.decided_by) == (FULL, FULL, "session")


def test_a_run_resumed_from_a_snapshot_has_what_the_snapshot_had() -> None:
    session, taken = Session(), list[Any]()
    watch = Watch(session)

    def stop(request: ModelRequest) -> Any:
        if taken:
            raise ConnectionError("gone")
        taken.append(session.snapshot())
        return call("read_section", section_key="orders")

    with pytest.raises(ConnectionError):
        ScriptedAdapter(stop).evaluate(Prompt(desk()), session=session)
    assert shown(watch.history.now)["orders"] is FULL
    session.restore(taken[0])
    ScriptedAdapter(["done"]).resume(Prompt(desk()), session=session)
    assert shown(watch.history.turns[-1].state)["orders"] is SUMMARY


def played(*script: Any, session: Session | None = None, **options: Any) -> RunHistory:
    session = session or Session()
    template, compaction = desk(allow_collapse=True, **options.pop("template", {})), options.pop("compaction", None)
    adapter = ScriptedAdapter([*script, "done"], **options)
    MainLoop().execute(Prompt(template), session=session, adapter=adapter, compaction=compaction)
    return run_history(session)


READ_DOCS, READ_ORDERS = call("read_section", section_key="docs"), call("read_section", section_key="orders")


def test_each_section_says_where_the_model_has_its_content_from() -> None:
    history = played(READ_DOCS, READ_ORDERS, call("read_section", section_key="guide"))
    assert {section.key: section.seen for section in history.turns[-1].state.sections} == {
        "task": "prompt",
        "docs": "conversation",
        "orders": "conversation",
        "orders.refunds": "summary",
        "guide": "conversation",
        "guide.style": "conversation",
        "guide.tone": "summary",
    }


def test_tools_are_offered_injected_and_withdrawn_turn_by_turn() -> None:
    history = played(READ_ORDERS, call("lookup"), call("collapse_section", section_key="orders"))
    states = [turn.state for turn in history.turns]
    assert [set(state.tools) & {"lookup"} for state in states] == [set(), {"lookup"}, {"lookup"}, set()]
    assert [state.withdrawn for state in states] == [(), (), (), ("lookup",)]
    assert states[-1].definitions["lookup"] == a_tool("lookup").definition
    assert [turn.injected for turn in history.turns] == [(), ("orders",), (), ()]


def test_steps_say_who_opened_what_and_by_which_route() -> None:
    history = played(READ_DOCS, READ_ORDERS, call("collapse_section", section_key="orders"))
    flat = [(step.turn, step.kind, step.tool, step.sections, step.route) for step in history.steps if step.sections]
    assert flat == [
        (1, "open", "read_section", ("docs",), ""),
        (2, "open", "read_section", ("orders",), ""),
        (2, "injected", "", ("orders",), "append"),
        (3, "close", "collapse_section", ("orders",), ""),
        (3, "withdrawn", "", ("orders",), "append"),
    ]
    told = [(step.kind, step.sections, step.route, step.tools) for step in history.openings() if step.sections]
    assert told == [
        ("open", ("docs",), "tool result", ()),
        ("open", ("orders",), "append", ("lookup",)),
        ("close", ("orders",), "", ()),
        ("withdrawn", ("orders",), "append", ("lookup",)),
    ]


def test_a_restart_is_told_with_the_request_that_needed_it() -> None:
    history = played(READ_ORDERS, call("lookup"), supports_dynamic_tools=False)
    assert [(step.kind, step.route) for step in history.openings()] == [("open", "restart")]
    assert [(turn.number, turn.attempt, turn.first) for turn in history.turns] == [
        (1, 1, True),
        (2, 2, True),
        (3, 2, False),
    ]
    assert (history.restarts, history.opened_for(history.turns[0])) == (1, ("orders",))
    orders = history.turns[-1].state.sections[2]
    assert (orders.rendered, orders.decided_by, orders.reason) == (
        FULL,
        "session",
        "Adapter does not support dynamic tools.",
    )


def test_a_conversation_that_was_shortened_says_why_a_section_was_closed() -> None:
    session = Session()
    watch = Watch(session)
    script = [READ_ORDERS, READ_DOCS, READ_DOCS, call("read_section", section_key="nope")]
    played(*script, session=session, compaction=Compaction(window=200, keep=1, by=lambda messages: ""))
    (closed,) = [step for step in watch.history.steps if step.kind == "collapsed"]
    assert (closed.sections, closed.reason) == (("orders",), "the conversation was shortened")
    compacted, *_ = [step for step in watch.history.steps if step.kind == "compacted"]
    assert compacted.reason.startswith("from ") and compacted.route == session[Compacted].all()[0].by
    assert [section.reason for section in watch.history.turns[-1].state.sections][2] == closed.reason


def test_a_strategy_of_ones_own_opens_like_ours() -> None:
    history = played(call("look_up", words="All of orders"), call("lookup"), template={"disclosure": LookUp()})
    opening, *_ = history.openings()
    assert (opening.tool, opening.sections, opening.route) == ("look_up", ("orders",), "append")
    assert [history.opened_for(turn) for turn in history.turns] == [("orders",), (), ()]
    assert history.turns[-1].state.sections[2].read


def test_a_clock_that_stands_still_changes_nothing() -> None:
    script = (READ_DOCS, READ_ORDERS, call("lookup"))
    still, moving = played(*script, session=Session(clock=FakeClock())), played(*script)
    assert [turn.state for turn in still.turns] == [turn.state for turn in moving.turns]
    assert [(step.turn, step.kind, step.sections) for step in still.steps] == [
        (step.turn, step.kind, step.sections) for step in moving.steps
    ]


def test_a_session_without_a_run_has_an_empty_history() -> None:
    assert run_history(Session()) == RunHistory()


@pytest.mark.parametrize("visibility", [FULL, SUMMARY])
def test_what_code_opens_or_closes_shows_even_if_the_next_request_fails(visibility: SectionVisibility) -> None:
    @tool
    def change(*, context: ToolContext) -> str:
        "Open or close the orders."
        context.session.dispatch(SetVisibilityOverride(("orders",), visibility))
        return "Done."

    task = MarkdownSection(title="Task", key="task", template="Help.", tools=[change])
    template = PromptTemplate(ns="t", key="k", sections=[task, section("orders", closed=visibility is FULL)])
    prompt, session = Prompt(template), Session()
    adapter = ScriptedAdapter([call("change"), PromptEvaluationError("down", phase="request")])
    with pytest.raises(PromptEvaluationError):
        adapter.evaluate(prompt, session=session)
    assert shown(run_history(session).now) == {"task": FULL, "orders": visibility}
