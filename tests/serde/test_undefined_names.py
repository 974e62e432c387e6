"""Classes and functions with annotations that name what is imported for type checkers only."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from weakincentives import serde
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.errors import SerdeError
from weakincentives.prompt import MarkdownSection, Prompt, Tool
from weakincentives.runtime import ToolInvoked
from weakincentives.session import Session

CLASSES = """
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypedDict

from weakincentives.prompt import ToolResult

if TYPE_CHECKING:
    from decimal import Decimal

@dataclass(frozen=True)
class Constant:
    unit: ClassVar[Decimal]
    count: int

class Helper:
    cached: Decimal

@dataclass(frozen=True)
class Derived(Helper):
    count: int

@dataclass(frozen=True)
class Field:
    price: Decimal

class Item(TypedDict):
    price: Decimal

class Row(NamedTuple):
    price: Decimal

def handler(params: Constant, *, context: Decimal) -> ToolResult[None]:
    "Count."
    return ToolResult(str(params.count))

def approve(params: Constant, session: Decimal) -> None:
    return None
"""
COUNT = {
    "type": "object",
    "properties": {"count": {"type": "integer"}},
    "required": ["count"],
    "additionalProperties": False,
}


# From Python 3.14 on, annotations are evaluated late in any module; before, only where it asks for that.
@pytest.fixture(params=["from __future__ import annotations\n", *([""] if sys.version_info >= (3, 14) else [])])
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = ModuleType("module_with_undefined_names")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    exec(request.param + CLASSES, vars(made))
    return made


@pytest.mark.parametrize("name", ["Constant", "Derived"])
def test_an_undefined_name_outside_of_the_fields_does_not_matter(module: ModuleType, name: str) -> None:
    record = getattr(module, name)
    assert serde.schema(record) == COUNT
    assert serde.decode(record, '{"count": 1}') == record(count=1)


@pytest.mark.parametrize("name", ["Field", "Item", "Row"])
def test_an_undefined_name_in_a_field_is_named(module: ModuleType, name: str) -> None:
    with pytest.raises(SerdeError, match=rf"{name}\.price: annotation '?.*Decimal.* define the type at module level"):
        serde.schema(getattr(module, name))


def test_a_handler_and_an_approval_rule_may_have_undefined_names(module: ModuleType) -> None:
    tool = Tool(
        name="count",
        description="Count.",
        handler=module.handler,
        params_type=module.Constant,
        approval=module.approve,
    )
    task = MarkdownSection(key="task", title="Task", template="Count.", tools=[tool])
    session = Session()
    adapter = ScriptedAdapter([call("count", count=1), "Done."])
    adapter.evaluate(Prompt(ns="t", key="t", sections=[task]), session=session)
    assert [event.result.message for event in session[ToolInvoked]] == ["1"]
