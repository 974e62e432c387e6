"""Random trees: rendering, reading, opening, closing, restarting and resuming agree with a plain model of the specs."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st

from tests.disclosure import model as spec
from tests.disclosure.model import Inputs, Model, Shape
from tests.disclosure.modelled import (
    FILES,
    IN_CALL,
    STRATEGIES,
    TASK,
    Flags,
    Poked,
    Run,
    build,
    collides_by_constants,
    poke,
    shown_owners,
    steps,
    strategy_of,
    trees,
)
from tests.disclosure.trees import check_resume, check_same_request
from tests.rounds import rounds
from weakincentives.adapters.scripted import ScriptedAdapter
from weakincentives.filesystem import Filesystem
from weakincentives.prompt import (
    ClearAllVisibilityOverrides,
    ClearVisibilityOverride,
    CollapseSection,
    MarkdownSection,
    Prompt,
    PromptRenderError,
    PromptTemplate,
    PromptValidationError,
    SectionVisibility,
    SetVisibilityOverride,
    WorkspaceSection,
)
from weakincentives.runtime import MainLoop, ModelRequest
from weakincentives.session import Session

EXAMPLES = settings.default.max_examples
"""100, and a fifth of that under --quick."""


@pytest.fixture(autouse=True, scope="module")
def without_warnings() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def template_of(model: Model, **options: Any) -> PromptTemplate[None]:
    sections = [build(shape) for shape in model.shapes]
    return PromptTemplate(ns="t", key="k", sections=sections, disclosure=strategy_of(model), **options)


changes = st.lists(
    st.tuples(st.sampled_from(["open", "open", "close", "clear", "clear all", "collapse"]), st.integers(0, 99)),
    max_size=6,
)


def change(model: Model, session: Session, action: str, number: int) -> None:
    """Do the same to the model and to the session."""
    node = model.nodes[number % len(model.nodes)]
    if action == "clear all":
        model.overrides = {}
        session.dispatch(ClearAllVisibilityOverrides())
    elif action == "clear":
        model.overrides.pop(node.path, None)
        session.dispatch(ClearVisibilityOverride(node.path))
    elif action == "open":
        model.set(node.path, spec.FULL)
        session.dispatch(SetVisibilityOverride(node.path, SectionVisibility.FULL))
    elif node.shape.summary:
        model.set(node.path, spec.SUMMARY)
        closing = CollapseSection(node.path)
        session.dispatch(
            closing if action == "collapse" else SetVisibilityOverride(node.path, SectionVisibility.SUMMARY)
        )


@settings(max_examples=rounds(2, 10) * EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(trees(), st.sampled_from(list(STRATEGIES)), st.booleans(), st.booleans(), st.booleans(), changes, changes)
def test_what_is_rendered_agrees_with_the_model(
    shapes: tuple[Shape, ...], strategy: str, keyed: bool, on: bool, dispatched: bool, before: Any, given_to_render: Any
) -> None:
    model, session, other = Model(shapes, strategy, Inputs(on, dispatched), keyed=keyed), Session(), Session()
    if dispatched:
        session.dispatch(Poked())
    for step in before:
        change(model, session, *step)
    for step in reversed(before):
        change(Model(shapes, strategy, model.inputs), other, *step)
    for action, number in given_to_render:
        node = model.nodes[number % len(model.nodes)]
        if action == "open" or node.shape.summary:
            model.caller[node.path] = spec.FULL if action == "open" else spec.SUMMARY
    overrides = {path: SectionVisibility(chosen) for path, chosen in model.caller.items()}
    try:
        prompt = Prompt(template_of(model, allow_collapse=True)).bind(Flags(on))
    except PromptValidationError:
        assert collides_by_constants(model)
        return
    with suppress(PromptRenderError):
        # What was rendered before, such as the same sections opened in another order, must not matter.
        prompt.render(session=other, visibility_overrides=dict(reversed(overrides.items())))
    if model.collides():
        with pytest.raises(PromptRenderError, match="are shown together"):
            prompt.render(session=session, visibility_overrides=overrides)
        return
    rendered = prompt.render(session=session, visibility_overrides=overrides)
    assert rendered.text == model.text()
    assert shown_owners(rendered.tools) == model.owners()
    assert [tool.name for tool in rendered.tools][len(model.owners()) :] == model.builtin(collapse=True)


@contextmanager
def prompt_by(door: str, template: PromptTemplate[None], on: bool) -> Iterator[tuple[Prompt[None], Prompt[None]]]:
    """The prompt to run by a door that must make no difference, and the one that holds its resources open."""
    prompt = Prompt(template).bind(Flags(on))
    if door == "copy":
        prompt = copy(Prompt(template).bind(Flags(not on))).bind(Flags(on))
    elif door == "copy of an open one":
        with prompt:
            yield copy(prompt), prompt
        return
    yield prompt, prompt


DOORS = ["itself", "copy", "copy of an open one", "bound again in each turn"]


@pytest.mark.limit(180)
@settings(max_examples=rounds(3, 20) * EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    trees(),
    st.sampled_from(list(STRATEGIES)),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    steps,
    st.integers(0, 7),
    st.sampled_from(DOORS),
)
def test_a_run_agrees_with_the_model_step_by_step(
    shapes: tuple[Shape, ...],
    strategy: str,
    keyed: bool,
    on: bool,
    dynamic: bool,
    script: list[tuple[str, int]],
    resumed_at: int,
    door: str,
) -> None:
    model = Model((TASK, *shapes, FILES), strategy, Inputs(on), keyed=keyed)
    assume(not collides_by_constants(model) and not model.collides())
    task = MarkdownSection(title="TASK", key="task", template="All of task.", tools=[poke])
    workspace = WorkspaceSection(title="WORKSPACE", template="All of workspace.")
    template: PromptTemplate[None] = PromptTemplate(
        ns="t",
        key="k",
        sections=[task, *(build(shape) for shape in shapes), workspace],
        disclosure=strategy_of(model),
        allow_collapse=True,
    )
    session, left = Session(), iter(script)
    run = Run(model, dynamic=dynamic, session=session)
    turn = itertools.count()
    IN_CALL.clear()

    def answer(request: ModelRequest) -> Any:
        opened = door == "copy of an open one"
        run.check(request, opener.resources.get(Filesystem) if opened else session.workspace)
        if next(turn) == resumed_at:
            check_resume(template, session, request, dynamic, Flags(on))
        if IN_CALL and IN_CALL[0]:
            # The call is made again, and the run goes on as it did.
            check_same_request(template, IN_CALL[0], request, dynamic, Flags(on))
            IN_CALL[0] = ""
        if door == "bound again in each turn":
            prompt.bind(Flags(not on))
        step = next(left, None)
        if step is None:
            return "done"
        action, number = step
        key = model.nodes[number % len(model.nodes)].key
        return run.step(action, key, {tool.name for tool in request.tools} - request.revoked)

    adapter = ScriptedAdapter(answer, supports_dynamic_tools=dynamic)
    with prompt_by(door, template, on) as (prompt, opener):
        try:
            MainLoop(max_expansions=20).execute(prompt, session=session, adapter=adapter)
        except PromptRenderError as error:
            assert "are shown together" in str(error) and run.model.collides()
