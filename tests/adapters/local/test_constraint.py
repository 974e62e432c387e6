from __future__ import annotations

import json
from dataclasses import dataclass

import jsonschema

from weakincentives.adapters.local.gguf.decoding import TIGHT, closed
from weakincentives.prompt import Tool, ToolContext, ToolResult


@dataclass(frozen=True, slots=True)
class Point:
    x: int


@dataclass(frozen=True, slots=True)
class Line:
    ends: list[Point]


def draw(params: Line, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult("done")


def test_what_a_type_leaves_open_is_bounded() -> None:
    tool = Tool[Line, None](name="draw", description="Draw a line.", handler=draw)
    ends = closed(tool.schema, TIGHT)["properties"]["ends"]
    assert ends["maxItems"] == 2


def test_a_tool_of_others_is_held_to_the_strict_form_of_its_schema() -> None:
    texts = {"type": "object", "additionalProperties": {"type": "string"}}
    foreign = Tool.from_schema(
        name="Run.it",
        description="Run it.",
        schema={"type": "object", "properties": {"times": {"type": "integer"}, "env": texts}, "required": ["env"]},
        handler=lambda params, *, context: ToolResult(),
    )
    arguments = {"times": None, "env": [{"key": "a", "value": "b"}]}
    jsonschema.validate(arguments, foreign.strict_schema)
    assert foreign.parse(json.dumps(arguments)) == {"env": {"a": "b"}}
