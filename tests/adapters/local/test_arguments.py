from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from weakincentives.adapters.local.arguments import Grounding, ground, requested
from weakincentives.prompt import Tool, ToolContext, ToolResult


@dataclass(frozen=True, slots=True)
class Refund:
    order: Annotated[str, "The order, such as FH-20417."]
    amount: float
    reason: Literal["damaged", "lost"]
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Search:
    words: str


def tool(params: type) -> Tool[Any, Any]:
    return Tool(name="tool", description="A tool.", handler=lambda p, *, context: ToolResult(), params_type=params)


def test_codes_numbers_and_named_values_are_copied() -> None:
    found = ground(tool(Refund), "Refund 20,50 euros for FH-20391, it was damaged")
    assert found == Grounding({"order": "FH-20391", "amount": 20.5, "reason": "damaged", "note": None}, missing=())


def test_a_code_that_is_not_there_is_not_made_up() -> None:
    assert ground(tool(Refund), "Refund 20 euros, it was damaged") is None


def test_a_choice_that_is_not_named_is_not_guessed() -> None:
    assert ground(tool(Refund), "Refund 20 euros for FH-20391") is None


def test_digits_of_a_code_are_no_number() -> None:
    assert ground(tool(Refund), "Refund FH-20391, it was damaged") is None


def test_text_that_matches_a_pattern_is_copied_up_to_its_end() -> None:
    properties = {"order": {"type": "string", "pattern": "^[A-Z]{2}-\\d+$"}}
    schema = {"type": "object", "properties": properties, "required": ["order"]}
    made = Tool.from_schema(name="find", description="", schema=schema, handler=lambda p, *, context: ToolResult())
    assert ground(made, "Where is FH-20391 now?") == Grounding({"order": "FH-20391"}, missing=())


def test_free_text_is_left_to_the_model() -> None:
    assert ground(tool(Search), "Where are the socks?") == Grounding({}, missing=("words",))


def test_a_number_and_a_complaint_do_not_forbid_a_request() -> None:
    def handle(params: Search, *, context: ToolContext) -> ToolResult[None]:
        return ToolResult()

    refund = Tool[Search, None](name="refund", description="Refund an order.", handler=handle)
    for message in ("Please refund order no. 7", "Please refund order 7, it's not working"):
        assert requested(refund, message)[0], message
    assert requested(refund, "Do not refund order no. 7")[0] == ""
