"""Examples of calls, which Anthropic's models are shown, in the form that the schema requires."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.adapters.tools import SYSTEM, ask
from tests.adapters.vendors import ANTHROPIC, OPENAI, OPENAI_CHAT, Vendor
from tests.servers.rules import messages_problem
from tests.servers.turn import Turn
from weakincentives.adapters.anthropic import AnthropicAdapter
from weakincentives.errors import PromptValidationError
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, Tool, ToolResult, tool
from weakincentives.session import Session


@dataclass(frozen=True)
class Line:
    item: str
    count: int = 1


@dataclass(frozen=True)
class Order:
    lines: list[Line]
    note: str | None = None
    tags: dict[str, str] = field(default_factory=dict)


def place(params: Any, *, context: Any) -> ToolResult[None]:
    return ToolResult("placed")


ORDER = {"lines": [{"item": "chair"}], "tags": {"gift": "yes"}}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@tool(examples=[{"city": "Lyon"}, {"city": "Oslo", "days": 3}])
def forecast(city: str, days: int = 1) -> str:
    """Tell the weather."""
    return "rain"


def sent(made: Tool[Any, Any]) -> Any:
    body = json.loads(AnthropicAdapter()._wire().encode_request(ask([SYSTEM], tools=(made,))).body())
    assert messages_problem(body) is None
    return body["tools"][0].get("input_examples")


def test_examples_go_with_a_schema_that_they_fit() -> None:
    assert sent(forecast) == [{"city": "Lyon"}, {"city": "Oslo", "days": 3}]
    (order,) = sent(Tool(name="place", description="Order.", handler=place, params_type=Order, examples=[ORDER]))
    assert order == ORDER


def test_a_foreign_tool_has_its_examples_as_they_are() -> None:
    made = Tool.from_schema(name="w", description="W.", schema=SCHEMA, handler=place, examples=[{"city": "Lyon"}])
    assert sent(made) == [{"city": "Lyon"}]
    assert sent(made.renamed("v")) == [{"city": "Lyon"}]
    assert sent(Tool.from_schema(name="w", description="W.", schema=SCHEMA, handler=place)) is None


@pytest.mark.parametrize("example", [{"lines": "chair"}, {}, {"lines": [object()]}])
def test_an_example_that_is_no_valid_call_is_refused(example: Any) -> None:
    with pytest.raises(PromptValidationError, match="Tool 'place': an example is no valid call: "):
        Tool(name="place", description="Order.", handler=place, params_type=Order, examples=[example])


@pytest.mark.parametrize("vendor", [OPENAI, ANTHROPIC, OPENAI_CHAT], ids=str)
def test_providers_without_examples_get_none(vendor: Vendor) -> None:
    section = MarkdownSection(title="A", key="a", template="A.", tools=[forecast])
    with vendor.server([Turn("Hi.")]) as server, vendor.adapter(server) as adapter:
        adapter.evaluate(Prompt(PromptTemplate(ns="t", key="k", sections=[section])), session=Session())
    assert ("Oslo" in server.requests[0].body.decode()) == (vendor is ANTHROPIC)
