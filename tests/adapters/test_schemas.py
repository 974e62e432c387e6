"""Constraints and defaults in the schemas that each provider gets."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from msgspec import Meta

from tests.adapters.vendors import VENDORS, Vendor
from tests.servers.turn import Turn
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, tool
from weakincentives.session import Session


@dataclass(frozen=True)
class Score:
    points: Annotated[int, Meta(ge=0, le=10)]


@dataclass(frozen=True)
class Page:
    size: int | None = 5


@tool
def rate(points: Annotated[int, Meta(ge=1)]) -> None:
    "Rate."


@tool
def page(size: int | None = 5) -> None:
    "Turn the page."


def request(vendor: Vendor, output: Any, *tools: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The declared tools by name, and the output format, of the first request."""
    section = MarkdownSection(title="T", key="t", template="Go.", tools=tools)
    template = PromptTemplate[output](ns="tests", key="schemas", sections=[section])
    answer = json.dumps({"points": 3} if output is Score else {"size": 1})
    with vendor.server([Turn(answer)]) as server, vendor.adapter(server) as adapter:
        adapter.evaluate(Prompt(template), session=Session())
    body = server.requests[0].json
    declared = [each.get("function", each) for each in body["tools"]]
    form = (
        body.get("response_format") or body.get("output_config", {}).get("format") or body.get("text", {}).get("format")
    )
    if form is None:  # Stated in the text, where tools and a schema for the answer cannot be combined.
        _, form, text = body["messages"][0]["content"].partition('{"')
        form = {"schema": json.loads(form + text), "strict": False}
    return {each["name"]: each for each in declared}, form.get("json_schema", form)


def parameters(declared: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = declared.get("parameters") or declared["input_schema"]
    return schema


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
def test_bounds_reach_the_model(vendor: Vendor) -> None:
    tools, output = request(vendor, Score, rate)
    assert parameters(tools["rate"])["properties"]["points"] == {"type": "integer", "minimum": 1}
    points = output["schema"]["properties"]["points"]
    if str(vendor).startswith("anthropic"):
        assert points == {"type": "integer", "description": "at least 0, at most 10"}
    else:
        assert points == {"type": "integer", "minimum": 0, "maximum": 10}


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
def test_a_field_that_may_be_left_out_is_not_sent_as_strict(vendor: Vendor) -> None:
    tools, output = request(vendor, Page, rate, page)
    assert parameters(tools["page"])["required"] == output["schema"]["required"] == []
    if not str(vendor).startswith("anthropic"):
        assert (tools["rate"]["strict"], tools["page"]["strict"], output["strict"]) == (True, False, False)
