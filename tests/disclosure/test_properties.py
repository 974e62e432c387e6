"""Whatever is read, opened, closed, rolled back or resumed: the callable tools are those of the sections in full."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import example, given, settings, strategies as st

from tests.disclosure.trees import build, check_resume, line, poke, steps, trees
from tests.rounds import rounds
from weakincentives.adapters.scripted import ScriptedAdapter
from weakincentives.prompt import (
    MarkdownSection,
    OpenAndHalt,
    OpenOrRead,
    OpenToFiles,
    Prompt,
    PromptTemplate,
    ReadSections,
    WorkspaceSection,
)
from weakincentives.runtime import MainLoop, ModelRequest
from weakincentives.session import Session

BUILT_IN = {"read_section", "open_sections", "collapse_section", "poke"}


def callable_now(request: ModelRequest) -> set[str]:
    return {offer.name for offer in request.tools} - request.revoked - BUILT_IN


def shown_in_full(prompt: Prompt[Any], session: Session) -> set[str]:
    view = prompt.view(session)
    return {offer.name for node in view.existing() if view.is_open(node.path) for offer in node.tools} - BUILT_IN


@settings(max_examples=rounds(60, 300), deadline=None)
@given(
    st.lists(trees, min_size=1, max_size=4),
    st.lists(steps, max_size=8),
    st.sampled_from([ReadSections(), OpenOrRead(), OpenToFiles(), OpenAndHalt()]),
    st.booleans(),
)
@example([(True, False, True, ((False, False, True, ()),))], [("poke open", 1), ("collapse", 1)], ReadSections(), True)
def test_callable_tools_are_those_of_the_sections_in_full(
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

    def answer(request: ModelRequest) -> Any:
        assert callable_now(request) == shown_in_full(prompt, session)
        check_resume(template, session, request, dynamic)
        step = next(lines, None)
        return "done" if step is None else line(step, keys, request)

    adapter = ScriptedAdapter(answer, supports_dynamic_tools=dynamic)
    MainLoop(max_expansions=20).execute(prompt, session=session, adapter=adapter)
