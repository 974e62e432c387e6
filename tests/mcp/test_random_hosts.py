"""Random trees served to MCP hosts: what is listed, opened, read and closed agrees with a plain model of the specs."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st
from mcp import Client

from tests.disclosure.model import Inputs, Model, Shape
from tests.disclosure.modelled import (
    FILES,
    STRATEGIES,
    TASK,
    Flags,
    Run,
    build,
    collides_by_constants,
    poke,
    poked,
    shown_owners,
    steps,
    strategy_of,
    trees,
)
from weakincentives.mcp import serve
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, WorkspaceSection
from weakincentives.session import Session

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True, scope="module")
def without_warnings() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.limit(180)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(trees(), st.sampled_from(list(STRATEGIES)), st.booleans(), st.booleans(), steps, st.integers(0, 7))
def test_a_host_agrees_with_the_model_step_by_step(
    shapes: tuple[Shape, ...], strategy: str, keyed: bool, on: bool, script: list[tuple[str, int]], restarted_at: int
) -> None:
    # Hosts read sections, whatever the strategy of the template.
    model = Model((TASK, *shapes, FILES), "ReadSections", Inputs(on), keyed=keyed)
    assume(not collides_by_constants(model) and not model.collides())
    declared = Model((), strategy, Inputs(on), keyed=keyed)
    task = MarkdownSection(title="TASK", key="task", template="All of task.", tools=[poke])
    workspace = WorkspaceSection(title="WORKSPACE", template="All of workspace.")
    template: PromptTemplate[None] = PromptTemplate(
        ns="t",
        key="k",
        sections=[task, *(build(shape) for shape in shapes), workspace],
        disclosure=strategy_of(declared),
        allow_collapse=True,
    )
    asyncio.run(check(model, template, on, script, restarted_at))


async def check(model: Model, template: PromptTemplate[None], on: bool, script: Any, restarted_at: int) -> None:
    """Make the calls of a script; before one of them, the server starts again on its session."""
    session = Session()
    run = Run(model, dynamic=True, session=session)
    left = list(script)
    parts = [left[:restarted_at], left[restarted_at:]]
    for part in parts:
        # Code that decides by what the session has is asked again.
        model.inputs = Inputs(on, poked(session))
        if model.collides():
            return
        server = serve(Prompt(template).bind(Flags(on)), session=session, relist_seconds=0.001).server
        async with Client(server) as client:
            assert client.instructions == model.text()
            run.start()
            for action, number in part:
                offered = (await client.list_tools(cache_mode="refresh")).tools
                assert shown_owners(offered) == run.callable_now()
                key = model.nodes[number % len(model.nodes)].key
                call = run.step(action, key, {tool.name for tool in offered})
                result = await client.call_tool(call.name, json.loads(call.arguments))
                assert run.answer is not None
                text = result.content[0].text  # type: ignore[union-attr]
                assert (not result.is_error, text[: len(run.answer[1])]) == run.answer
