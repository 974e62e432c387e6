"""A result names only tools that can be called and sections that exist, whoever has written it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.disclosure.desk import a_tool, desk, section, tool_names
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.prompt import (
    FoundSection,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    ReadSectionResult,
    SearchSectionsResult,
    SectionVisibility,
    SetVisibilityOverride,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.runtime import MainLoop, ModelReply, ModelRequest
from weakincentives.session import Session

Handler = Callable[..., ToolResult[Any]]
LATE, TAKEN = a_tool("late"), a_tool("own")


def desk_of(*sections: Any, **options: Any) -> PromptTemplate[None]:
    return PromptTemplate[None](ns="tests", key="desk", sections=sections, **options)


def desk_with(handler: Handler) -> PromptTemplate[None]:
    """The desk with a tool of ours."""
    mine = Tool[None, Any](name="mine", description="Reads.", handler=handler)
    reader = MarkdownSection[None](title="Reader", key="reader", template="Read.", tools=[mine])
    return desk_of(*desk().sections, reader)


def reads(context: ToolContext, key: str, **changes: Any) -> ToolResult[Any]:
    """What a handler returns that reads a section as the library does, with these changes."""
    reading = context.view.reading(context.view.outline.by_key[key].path)
    result = ToolResult("Read.", ReadSectionResult(reading.render(), reading.tools))
    return ToolResult(result.message, result.value, **changes)


def of_no_section(params: None, *, context: ToolContext) -> ToolResult[Any]:
    return ToolResult("Read.", ReadSectionResult("Text.", (LATE,)))


def of_a_closed_section(params: None, *, context: ToolContext) -> ToolResult[Any]:
    return reads(context, "orders")


def of_an_opened_section(params: None, *, context: ToolContext) -> ToolResult[Any]:
    return reads(context, "orders", disclosure=context.view.request(["orders"]))


def of_another_section(params: None, *, context: ToolContext) -> ToolResult[Any]:
    return reads(context, "orders", disclosure=context.view.request(["docs"]))


def of_a_failure(params: None, *, context: ToolContext) -> ToolResult[Any]:
    return reads(context, "orders", disclosure=context.view.request(["orders"]), success=False)


def by_the_session(params: None, *, context: ToolContext) -> ToolResult[Any]:
    claimed = reads(context, "orders")
    context.session.dispatch(SetVisibilityOverride(("orders",), SectionVisibility.FULL))
    return claimed


@pytest.mark.parametrize(
    ("handler", "claimed"),
    [
        (of_no_section, []),
        (of_a_closed_section, []),
        (of_an_opened_section, ["lookup"]),
        (of_another_section, []),
        (of_a_failure, []),
        (by_the_session, ["lookup"]),
    ],
)
def test_a_handler_s_result_names_the_tools_that_the_next_request_offers(handler: Handler, claimed: list[str]) -> None:
    template = desk_with(handler)
    adapter = ScriptedAdapter([call("mine"), "Done."])
    adapter.evaluate(Prompt(template), session=Session())
    assert named_tools(adapter.requests[1]) == claimed
    assert {*claimed} <= {*tool_names(adapter.requests[1].tools)}


def named_tools(request: ModelRequest) -> list[str]:
    """The tools that the newest result says are available now."""
    results = [message for message in request.messages if message.role == "tool"]
    match = re.search(r"\[Tools now available: (.*)\.\]", results[-1].text) if results else None
    return match[1].split(", ") if match else []


def test_a_tool_of_the_run_keeps_its_name_and_no_section_is_said_to_bring_it() -> None:
    template = desk_of(section("docs", tools=("own", "search")))
    adapter = ScriptedAdapter([call("read_section", section_key="docs"), call("search"), "Done."])
    adapter.evaluate(Prompt(template), session=Session(), tools=[TAKEN])
    assert named_tools(adapter.requests[1]) == ["search"]


def test_a_handler_s_claim_that_nothing_supports_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    adapter = ScriptedAdapter([call("mine"), "Done."])
    adapter.evaluate(Prompt(desk_with(of_no_section)), session=Session())
    assert "The result of tool 'mine' names tools that nothing offers: late" in caplog.text


def test_a_search_of_ones_own_lists_only_sections_that_exist_with_tools_that_they_add() -> None:
    found = (
        FoundSection("orders", "Orders", "Where they are.", 9, ("lookup", "late")),
        FoundSection("nowhere", "Nowhere", "Lost.", 9, ("late",)),
    )

    def search(params: None, *, context: ToolContext) -> ToolResult[Any]:
        return ToolResult("Found:", SearchSectionsResult(found))

    adapter = ScriptedAdapter([call("mine"), "Done."])
    adapter.evaluate(Prompt(desk_with(search)), session=Session())
    assert adapter.requests[1].messages[-1].text == (
        'Found:\n\n- "orders": Orders (about 9 tokens; tools: lookup)\n  Where they are.'
    )


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_opened_and_closed_every_tool_that_is_named_can_be_called(seed: int) -> None:
    rng = random.Random(seed)
    keys = [f"s{number}" for number in range(5)]
    names = ["a", "b", "c", "d"]
    sections = [section(key, tools=tuple(rng.sample(names, rng.randint(0, 3)))) for key in keys]
    wrong: list[tuple[list[str], set[str]]] = []

    def model(request: ModelRequest) -> ModelReply | str | Any:
        claimed, offered = named_tools(request), callable_tools(request)
        if not {*claimed} <= offered:
            wrong.append((claimed, offered))
        if len(request.messages) > 40:
            return "Done."
        tool = rng.choice(["read_section", "collapse_section"])
        return call(tool, section_key=rng.choice(keys))

    MainLoop().execute(
        Prompt(desk_of(*sections, allow_collapse=True)),
        session=Session(),
        adapter=ScriptedAdapter(model),
        tools=[a_tool(rng.choice(names))],
    )
    assert wrong == []


def callable_tools(request: ModelRequest) -> set[str]:
    return {*tool_names(request.tools)} - request.revoked
