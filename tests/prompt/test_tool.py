"""Tools: declaration, results, and tools made of typed functions."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Awaitable
from dataclasses import dataclass, field, make_dataclass
from functools import partial
from typing import Annotated, Any

import pytest

from weakincentives.errors import SerdeError
from weakincentives.prompt import HostedTool, PromptValidationError, Tool, ToolContext, ToolResult, tool
from weakincentives.runtime import PromptResponse


@dataclass
class Params:
    city: str = field(metadata={"description": "Where."})


@dataclass(frozen=True)
class Weather:
    degrees: int

    def render(self) -> str:
        return f"{self.degrees} degrees"


def handle(params: Params, *, context: Any) -> ToolResult[Weather]:
    return ToolResult("Measured.", Weather(20))


def test_types_are_given_once() -> None:
    with pytest.raises(TypeError, match=r"Tool\[...\]\(\) has its types in brackets, got params_type as well"):
        Tool[Params, Weather](name="weather", description="Weather.", handler=handle, params_type=Weather)


def test_a_tool_knows_its_types_and_schema() -> None:
    declared = Tool[Params, Weather](name="weather", description="Weather of a city.", handler=handle)
    assert (declared.params_type, declared.result_type) == (Params, Weather)
    assert declared.schema["properties"]["city"] == {"type": "string", "description": "Where."}
    assert declared.param_descriptions == {"city": "Where."}


@pytest.mark.parametrize("name", ["", "Has Space", "UPPER", "x" * 65, "dot.ted"])
def test_names_follow_the_pattern(name: str) -> None:
    with pytest.raises(PromptValidationError, match="Tool name"):
        Tool(name=name, description="x", handler=handle)


def test_params_must_be_a_dataclass() -> None:
    with pytest.raises(PromptValidationError, match=r"write Tool\[Params, Result\]"):
        Tool[int, None](name="x", description="x", handler=handle)


def test_a_read_only_tool_has_nothing_to_compensate() -> None:
    with pytest.raises(PromptValidationError, match="drop compensate="):
        Tool(name="x", description="x", handler=handle, read_only=True, compensate=handle)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (ToolResult("Done."), "Done."),
        (ToolResult("Measured.", Weather(20)), "Measured.\n\n20 degrees"),
        (ToolResult(value=Weather(20)), "20 degrees"),
        (ToolResult("As data.", Params("Rome")), 'As data.\n\n{"city":"Rome"}'),
        (ToolResult(value=[1, 2]), "[1,2]"),
        (ToolResult(value="plain"), "plain"),
    ],
)
def test_the_model_reads_the_message_then_the_value(result: ToolResult[Any], text: str) -> None:
    assert result.render() == text


def test_a_message_is_text() -> None:
    with pytest.raises(TypeError, match=r"ToolResult message must be text, got \{\}; pass other things as value="):
        ToolResult({})  # type: ignore[arg-type]


def test_a_typed_function_becomes_a_tool() -> None:
    @tool(read_only=True)
    def add(a: int, b: Annotated[int, "The second."] = 2) -> int:
        """Add two numbers."""
        return a + b

    assert (add.name, add.description, add.read_only) == ("add", "Add two numbers.", True)
    assert add.param_descriptions == {"b": "The second."}
    assert add.params_type is not None
    assert add.handler(add.params_type(a=1), context=None) == ToolResult(value=3)


def test_a_function_may_ask_for_the_context_and_return_a_result() -> None:
    @tool
    def fail(*, context: ToolContext) -> ToolResult[None]:
        """Always fails."""
        return ToolResult(str(context), success=False)

    assert fail.params_type is not None
    assert fail.handler(fail.params_type(), context="here") == ToolResult("here", success=False)


def test_the_context_may_have_any_name_if_it_is_annotated() -> None:
    @tool
    def look_up(ctx: ToolContext, order: int) -> str:
        """Look up an order."""
        return f"{order} by {ctx}"

    assert look_up.params_type is not None and list(look_up.params) == ["order"]
    assert look_up.handler(look_up.params_type(order=7), context="here") == ToolResult(value="7 by here")


def test_a_parameter_named_context_is_an_argument_unless_it_is_for_the_tool_context() -> None:
    def summarize(context: str) -> str:
        "Summarize."
        return context

    def optional(context: ToolContext | None = None) -> str:
        "Look."
        return str(context)

    def unannotated(context) -> str:  # type: ignore[no-untyped-def]
        "Look."
        return str(context)

    for declared, argument in ((tool(summarize), {"context": "text"}), (tool(optional), {}), (tool(unannotated), {})):
        assert list(declared.schema["properties"]) == list(argument)
        params = declared.parse(json.dumps(argument))
        assert declared.handler(params, context="here") == ToolResult(value=argument.get("context", "here"))


def test_a_problem_with_arguments_names_the_tool_and_not_a_type_of_ours() -> None:
    @tool
    def look_up(order: int) -> str:
        """Look up an order."""
        return ""

    with pytest.raises(SerdeError, match=r"unknown field \(look_up has order\)"):
        look_up.parse('{"order": 7, "number": 8}')


@pytest.mark.parametrize("given", [partial(print, "a"), "look_up"])
def test_only_functions_become_tools(given: Any) -> None:
    with pytest.raises(PromptValidationError, match=r"tool\(\) takes a function or a method, got .*; write a function"):
        tool(given)


def test_a_function_needs_a_docstring_and_annotations() -> None:
    with pytest.raises(PromptValidationError, match="give the function a docstring"):
        tool(lambda: None)

    def untyped(a):  # type: ignore[no-untyped-def]
        """Doc."""

    with pytest.raises(PromptValidationError, match="parameter 'a' has no annotation"):
        tool(untyped)


@dataclass
class Mutable:
    pass


@pytest.mark.parametrize(
    ("field_name", "value", "message"),
    [
        ("name", "Bad Name", "Tool name"),
        ("kind", "", "has no kind"),
        ("kind", 3, r"has no kind \(got 3\)"),
        ("description", None, "1 to 200 ASCII characters and not blank, got None"),
        ("description", " ", "1 to 200 ASCII"),
        ("description", "", "1 to 200 ASCII"),
        ("description", "x" * 201, "1 to 200 ASCII"),
        ("description", "déjà", "1 to 200 ASCII"),
        ("config", Mutable(), "frozen dataclass"),
        ("config", {}, "frozen dataclass"),
    ],
)
def test_hosted_tools_are_validated(field_name: str, value: Any, message: str) -> None:
    arguments = {"kind": "web_search", "name": "search", "description": "Search.", "config": Weather(1)}
    with pytest.raises(PromptValidationError, match=message):
        HostedTool(**{**arguments, field_name: value})


@pytest.mark.parametrize("handler", [lambda params: None, lambda context: None, lambda: None])
def test_a_handler_that_cannot_be_called_is_refused(handler: Any) -> None:
    with pytest.raises(
        PromptValidationError, match=r"Tool 'x': handler is called as handler\(params, context=context\)"
    ):
        Tool(name="x", description="x", handler=handler)
    with pytest.raises(PromptValidationError, match="Tool 'x': compensate is called as"):
        Tool[Params, Weather](name="x", description="x", handler=handle, compensate=handler)


def nothing(params: None, *, context: Any) -> ToolResult[None]:
    return ToolResult("ok")


def no_result(params: Params, *, context: Any) -> str:
    return "ok"


class Measuring:
    def __call__(self, params: Params, *, context: Any) -> ToolResult[None]:
        return ToolResult("ok")


@pytest.mark.parametrize(
    ("declared", "handler", "message"),
    [
        (Tool, handle, "handler handle takes Params, but the tool has no params; write Tool[Params, ...](...)."),
        (Tool, Measuring(), "handler Measuring takes Params, but the tool has no params"),
        (Tool[Weather, None], handle, "handler handle takes Params, but the tool has Weather as its params"),
        (Tool[Params, None], nothing, "handler nothing takes NoneType, but the tool has Params as its params"),
        (Tool[Params, None], no_result, "handler no_result returns str; return a ToolResult, or make a tool of"),
    ],
)
def test_a_handler_with_the_wrong_annotations_is_refused(declared: Any, handler: Any, message: str) -> None:
    with pytest.raises(PromptValidationError, match=re.escape(f"Tool 'x': {message}")):
        declared(name="x", description="x", handler=handler)


async def later(params: Params | None, *, context: Any) -> ToolResult[Weather]:
    return ToolResult("ok")


def sooner(params: object, *, context: Any) -> Awaitable[ToolResult[Weather]]:
    return later(None, context=context)


@pytest.mark.parametrize("handler", [handle, later, sooner, Measuring(), lambda params, *, context: ToolResult("ok")])
def test_a_handler_whose_annotations_fit_is_taken(handler: Any) -> None:
    assert Tool[Params, Weather](name="x", description="x", handler=handler).handler is handler


@pytest.mark.parametrize("description", ["", "  \n", None, "x" * 1025])
def test_a_description_is_text_and_not_blank(description: Any) -> None:
    with pytest.raises(
        PromptValidationError, match="Tool 'x': the description must be 1 to 1024 characters and not blank"
    ):
        Tool(name="x", description=description, handler=nothing)

    def blank() -> None:
        """ """

    with pytest.raises(PromptValidationError, match="Tool 'blank' has no description; give the function a docstring"):
        tool(blank)


class WeatherTool(Tool[Params, Weather]):
    pass


def test_types_are_inherited_by_subclasses() -> None:
    assert WeatherTool(name="weather", description="x", handler=handle).params_type is Params


def test_a_mutable_default_is_made_anew_for_each_call() -> None:
    @tool
    def collect(items: list[str] = []) -> list[str]:  # noqa: B006
        """Collect."""
        items.append("one more")
        return items

    assert collect.params_type is not None
    for _ in range(2):
        assert collect.handler(collect.params_type(), context=None) == ToolResult(value=["one more"])


def test_generic_values_can_be_made_with_their_type_spelled_out() -> None:
    assert ToolResult[str]("Done.", "x") == ToolResult("Done.", "x")
    hosted = HostedTool[Weather](kind="weather", name="weather", description="Weather.", config=Weather(1))
    assert hosted.config == Weather(1)
    assert PromptResponse[Weather](prompt_name="p", text="").output is None


def test_a_decorated_function_can_still_be_called() -> None:
    @tool
    def double(number: int) -> int:
        """Double."""
        return 2 * number

    assert (double(4), double(number=5), double.with_descriptions("Twice.", {})(6)) == (8, 10, 12)
    declared = Tool[None, None](name="t", description="d", handler=lambda params, *, context: ToolResult("x"))
    with pytest.raises(TypeError, match="'Tool' object is not callable"):
        declared()  # type: ignore[operator]


def test_params_without_a_schema_are_refused_with_their_tool() -> None:
    with pytest.raises(PromptValidationError, match=r"The params of tool 'use' have no schema: .*thing: type"):

        @tool
        def use(thing: threading.Thread) -> None:
            """Use."""


def test_params_of_a_type_that_is_defined_later_are_checked_when_they_are_needed() -> None:
    Params = make_dataclass("Params", [("later", "list[Later]")])
    declared = Tool[Params, None](name="t", description="d", handler=lambda params, *, context: ToolResult("x"))
    with pytest.raises(PromptValidationError, match=r"tool 't' have no schema: .*'Later' is not defined"):
        declared.schema  # noqa: B018


def test_a_method_is_made_a_tool_when_it_is_bound() -> None:
    class Shop:
        def sell(self, item: str) -> str:
            """Sell."""
            return f"sold {item}"

    with pytest.raises(PromptValidationError, match=r"'self' has no annotation.*tool\(object\.method\)"):
        tool(Shop.sell)
    assert tool(Shop().sell)("tea") == "sold tea"


SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "description": "Where."}}, "required": ["city"]}


def foreign(name: str = "Weather.now", description: str = "Weather of a city.") -> Tool[dict[str, Any], Any]:
    return Tool.from_schema(
        name=name, description=description, schema=SCHEMA, handler=lambda params, *, context: ToolResult(str(params))
    )


def test_a_tool_of_others_has_any_name_and_description() -> None:
    longest = foreign("n" * 128, "d" * 10_000)
    assert (len(longest.name), len(longest.description)) == (128, 10_000)
    assert foreign(description=" ").description == "Weather.now"
    for name in ("", "n" * 129, "new\nline"):
        with pytest.raises(PromptValidationError, match="Tool name"):
            foreign(name)


def test_a_tool_of_others_takes_overrides_and_another_name() -> None:
    changed = foreign().with_descriptions("How it is.", {"city": "In English."}).renamed("Weather.there")
    assert (changed.name, changed.description, changed.params) == (
        "Weather.there",
        "How it is.",
        {"city": "In English."},
    )
    assert changed.schema["properties"]["city"] == {"type": "string", "description": "In English."}
    assert changed.parse('{"city": "Oslo"}') == {"city": "Oslo"}


def test_the_handler_of_a_tool_of_others_takes_a_dict() -> None:
    with pytest.raises(PromptValidationError, match="handler handle takes Params, but the tool has dict as its params"):
        Tool.from_schema(name="x", description="x", schema=SCHEMA, handler=handle)  # type: ignore[arg-type]


def test_a_wrong_schema_is_refused_with_the_reason() -> None:
    with pytest.raises(
        PromptValidationError, match=r"Tool 'x' cannot be offered, its schema is wrong: \$\.type: must be"
    ):
        Tool.from_schema(
            name="x", description="x", schema={"type": "text"}, handler=lambda params, *, context: ToolResult()
        )
