"""Every kind of type as output, as params of a tool and as params of a section, with every provider."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest

from tests.adapters.vendors import VENDORS, Vendor
from tests.servers.turn import Call, Turn
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.errors import OutputParseError
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, PromptValidationError, Tool, ToolResult
from weakincentives.runtime import RunEnded, ToolInvoked
from weakincentives.serde import field_value
from weakincentives.session import Session, Snapshot
from weakincentives.telemetry import RunStore, read_run, record

Size = Annotated[int, msgspec.Meta(ge=1, le=10)]


@dataclass(frozen=True)
class DataOrder:
    item: str = field(metadata={"description": "what to bring"})
    size: Size = 1
    extras: dict[str, int] = field(default_factory=dict)


class StructOrder(msgspec.Struct, frozen=True):
    item: Annotated[str, msgspec.Meta(description="what to bring")]
    size: Size = 1
    extras: dict[str, int] = {}


class ModelOrder(pydantic.BaseModel):
    item: str = pydantic.Field(description="what to bring")
    size: int = pydantic.Field(1, ge=1, le=10)
    extras: dict[str, int] = {}

    @pydantic.field_validator("item")
    @classmethod
    def is_on_the_menu(cls, item: str) -> str:
        if item == "moon":
            raise ValueError("there is no moon on the menu")
        return item


class DictOrder(TypedDict):
    item: Annotated[str, msgspec.Meta(description="what to bring")]
    size: Size
    extras: dict[str, int]


class TupleOrder(NamedTuple):
    item: Annotated[str, msgspec.Meta(description="what to bring")]
    size: Size = 1
    extras: dict[str, int] = {}  # noqa: RUF012


ORDERS = [DataOrder, StructOrder, ModelOrder, DictOrder, TupleOrder]
ORDER = {"item": "tea", "size": 2, "extras": [{"key": "sugar", "value": 1}]}


def made(kind: Any) -> Any:
    return kind(item="tea", size=2, extras={"sugar": 1})


def template(output: Any, *tools: Tool[Any, Any]) -> Prompt[Any]:
    section = MarkdownSection(title="T", key="t", template="Go.", tools=tools)
    return Prompt(PromptTemplate[output](ns="tests", key="types", sections=[section]))


def schema_of(body: Any) -> Any:
    form = body.get("response_format") or body.get("output_config", {}).get("format") or body["text"]["format"]
    return form.get("json_schema", form)["schema"]


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
@pytest.mark.parametrize("kind", ORDERS)
def test_any_type_with_fields_is_an_output(vendor: Vendor, kind: Any) -> None:
    with vendor.server([Turn(json.dumps(ORDER))]) as server, vendor.adapter(server) as adapter:
        response = adapter.evaluate(template(kind), session=Session())
    schema = schema_of(server.requests[0].json)
    assert response.output == made(kind)
    assert schema["properties"]["item"] == {"type": "string", "description": "what to bring"}
    assert (list(schema["properties"]), schema["additionalProperties"]) == (["item", "size", "extras"], False)
    assert schema["required"] == ["item", "size", "extras"]


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
@pytest.mark.parametrize("kind", ORDERS)
def test_any_type_with_fields_is_the_params_of_a_tool(vendor: Vendor, kind: Any) -> None:
    taken: list[Any] = []

    def take(params: Any, *, context: Any) -> ToolResult[Any]:
        taken.append(params)
        return ToolResult("Taken.", params)

    tool = Tool[kind, kind](name="order", description="Order.", handler=take)
    wrong = {**ORDER, "size": 11}
    script = [Turn(calls=(Call("order", wrong),)), Turn(calls=(Call("order", ORDER),)), Turn("Done.")]
    with vendor.server(script) as server, vendor.adapter(server) as adapter:
        adapter.evaluate(template(None, tool), session=Session())
    second, third = (json.dumps(received.json) for received in server.requests[1:])
    assert (taken, "size: " in second, "10" in second) == ([made(kind)], True, True)
    assert '{\\"item\\":\\"tea\\",\\"size\\":2,\\"extras\\":{\\"sugar\\":1}}' in third


@pytest.mark.parametrize("kind", ORDERS)
def test_any_type_with_fields_is_the_params_of_a_section(kind: Any) -> None:
    section = MarkdownSection[kind](title="T", key="t", template="Bring ${size} ${item}.")
    prompt = Prompt(PromptTemplate(ns="tests", key="params", sections=[section])).bind(made(kind))
    assert prompt.render().text == "## 1. T\n\nBring 2 tea."


def test_a_dict_is_bound_to_the_typed_dict_that_has_its_keys() -> None:
    section = MarkdownSection[DictOrder](title="T", key="t", template="${item}")
    prompt = Prompt(PromptTemplate(ns="tests", key="params", sections=[section]))
    with pytest.raises(PromptValidationError, match=r"the one TypedDict that has its keys \(item\); that is none"):
        prompt.bind({"item": "tea"})


@pytest.mark.parametrize("kind", ORDERS)
def test_snapshots_and_recordings_keep_every_type(kind: Any, tmp_path: Path) -> None:
    def take(params: Any, *, context: Any) -> ToolResult[Any]:
        return ToolResult("Taken.", params)

    tool = Tool[kind, kind](name="order", description="Order.", handler=take)
    session = Session()
    with record(tmp_path / "runs.db"):
        adapter = ScriptedAdapter([call("order", **ORDER), made(kind)])
        adapter.evaluate(template(kind, tool), session=session)
    again = Session()
    again.restore(Snapshot.from_json(session.snapshot().to_json()), preserve_logs=False)
    with RunStore(tmp_path / "runs.db") as store:
        (summary,) = store.list_runs()
    events = read_run(tmp_path / "runs.db", summary.run_id)
    recorded = [getattr(each, "event", each) for each in events]
    for found in (again[ToolInvoked].all(), [event for event in recorded if isinstance(event, ToolInvoked)]):
        assert [(event.params, event.result.value) for event in found] == [(made(kind), made(kind))]
    executed = [event for event in recorded if isinstance(event, RunEnded)]
    assert [event.output for event in executed] == [made(kind)]
    assert [type(event.output) for event in executed] == [type(made(kind))]


def test_the_validators_of_a_model_speak_to_the_language_model() -> None:
    adapter = ScriptedAdapter([{"item": "moon"}, {"item": "tea"}])
    session = Session()
    response = adapter.evaluate(template(ModelOrder), session=session)
    asked = adapter.requests[1].messages[-1].text
    assert (response.output, "item: there is no moon on the menu" in asked) == (ModelOrder(item="tea"), True)


@dataclass(frozen=True)
class Answer:
    text: str


class Refusal(pydantic.BaseModel):
    reason: str


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


VALUES: list[tuple[Any, Any, Any]] = [
    (Answer | Refusal, {"reason": "no"}, Refusal(reason="no")),
    (Answer | Refusal, {"text": "yes"}, Answer("yes")),
    (list[Answer | Refusal], [{"text": "a"}, {"reason": "b"}], [Answer("a"), Refusal(reason="b")]),
    (bool, False, False),
    (int, 42, 42),
    (Annotated[float, msgspec.Meta(ge=0)], 0.5, 0.5),
    (Literal["yes", "no"], "yes", "yes"),
    (Color, "red", Color.RED),
    (list[int], [1, 2], [1, 2]),
    (int | Refusal, 3, 3),
]


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
@pytest.mark.parametrize(("output", "data", "value"), VALUES, ids=lambda case: str(case)[:30])
def test_what_is_no_object_travels_in_one(vendor: Vendor, output: Any, data: Any, value: Any) -> None:
    name = "items" if isinstance(data, list) else "value"
    for text in (json.dumps({name: data}), json.dumps(data)):
        with vendor.server([Turn(text)]) as server, vendor.adapter(server) as adapter:
            response = adapter.evaluate(template(output), session=Session())
        assert (response.output, type(response.output)) == (value, type(value))
        schema = schema_of(server.requests[0].json)
        assert (schema["type"], schema["required"]) == ("object", [name])


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
def test_text_is_an_output_without_a_format(vendor: Vendor) -> None:
    short = Annotated[str, msgspec.Meta(max_length=10)]
    with vendor.server([Turn("Much too long."), Turn("Short.")]) as server, vendor.adapter(server) as adapter:
        response = adapter.evaluate(template(short), session=Session())
    bodies = [received.json for received in server.requests]
    assert response.output == "Short."
    assert "at most 10 characters" in json.dumps(bodies[1])
    assert not {"response_format", "output_config", "text"} & bodies[0].keys()


def test_options_that_cannot_be_told_apart_are_refused() -> None:
    @dataclass
    class Other:
        text: str
        more: int = 0

    with pytest.raises(PromptValidationError, match="give each a field of its own"):
        template(Other | Answer)


def test_an_answer_that_fits_no_option_names_the_options() -> None:
    adapter = ScriptedAdapter([{"rason": "no"}], output_retries=0)
    with pytest.raises(OutputParseError, match=r"expected Answer \| Refusal"):
        adapter.evaluate(template(Answer | Refusal), session=Session())


def test_the_fields_of_any_type_can_be_read_alike() -> None:
    assert [field_value(made(kind), "item") for kind in ORDERS] == ["tea"] * 5
