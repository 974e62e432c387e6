from __future__ import annotations

from dataclasses import dataclass

from weakincentives.adapters.local.constraint import TIGHT, closed
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
