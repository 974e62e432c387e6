from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import jsonschema
import pytest

from weakincentives.adapters.local.composing import AnswerText
from weakincentives.adapters.local.constraint import TIGHT, arguments_schema, closed, reply_schema
from weakincentives.prompt import ReadSectionParams, Tool, ToolResult
from weakincentives.prompt.output import structured_output


@dataclass(frozen=True, slots=True)
class Point:
    x: int


@dataclass(frozen=True, slots=True)
class Line:
    ends: list[Point]


def tool(name: str, params: type) -> Tool[Any, Any]:
    return Tool(name=name, description="A tool.", handler=lambda p, *, context: ToolResult(), params_type=params)


SCHEMA = reply_schema(
    [tool("draw", Line), tool("read_section", ReadSectionParams)], ["a", "b.c"], structured_output(Point)
)


@pytest.mark.parametrize(
    "reply",
    [
        {"tool": "draw", "arguments": {"ends": [{"x": 1}]}},
        {"tool": "read_section", "arguments": {"section_key": "b.c"}},
        {"answer": {"x": 3}},
    ],
)
def test_calls_and_answers_of_the_right_form_are_allowed(reply: Any) -> None:
    jsonschema.validate(reply, SCHEMA)


@pytest.mark.parametrize(
    "reply",
    [
        {"tool": "draw", "arguments": {"ends": [{"x": "1"}]}},
        {"tool": "read_section", "arguments": {"section_key": "c"}},
        {"tool": "other", "arguments": {}},
        {"answer": "text"},
    ],
)
def test_everything_else_is_not(reply: Any) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(reply, SCHEMA)


def test_what_a_type_leaves_open_is_bounded() -> None:
    ends = closed(arguments_schema(tool("draw", Line), ()), TIGHT)["properties"]["ends"]
    assert ends["maxItems"] == 2


def test_the_text_of_an_answer_is_told_while_its_json_is_written() -> None:
    heard: list[str] = []
    answer = AnswerText(heard.append)
    for piece in ('{"ans', 'wer": "', "a \\", "n b \\ud83d", '\\ude00"', "}"):
        answer.feed(piece)
    assert heard == ["a ", "\n b ", "\U0001f600"]


def test_a_tool_of_others_is_held_to_the_strict_form_of_its_schema() -> None:
    texts = {"type": "object", "additionalProperties": {"type": "string"}}
    foreign = Tool.from_schema(
        name="Run.it",
        description="Run it.",
        schema={"type": "object", "properties": {"times": {"type": "integer"}, "env": texts}, "required": ["env"]},
        handler=lambda params, *, context: ToolResult(),
    )
    arguments = {"times": None, "env": [{"key": "a", "value": "b"}]}
    jsonschema.validate({"tool": "Run.it", "arguments": arguments}, reply_schema([foreign], [], None))
    assert foreign.parse(json.dumps(arguments)) == {"env": {"a": "b"}}
