"""The engine stores tagged JSON, which restores values, arguments and exceptions."""

import json
import sys
from dataclasses import dataclass
from types import ModuleType

import weakincentives
from weakincentives.durable.journal import TaggedSerializer
from weakincentives.durable.work import RemoteError
from weakincentives.errors import BudgetExceededError

serializer = TaggedSerializer()


@dataclass(frozen=True, slots=True)
class Order:
    number: int
    tags: tuple[str, ...] = ()


def test_arguments_come_back_with_their_types() -> None:
    inputs = {"args": (Order(7, ("a", "b")),), "kwargs": {}}
    assert serializer.deserialize(serializer.serialize(inputs)) == inputs


def test_what_is_stored_is_readable_json() -> None:
    assert json.loads(serializer.serialize({"a": [1, None]})) == {"a": [1, None]}


def test_an_exception_comes_back_with_its_class_and_attributes() -> None:
    error = BudgetExceededError("too many turns", prompt_name="triage", limit="max_turns")
    back = serializer.deserialize(serializer.serialize(error))
    assert type(back) is BudgetExceededError
    assert (str(back), back.prompt_name, back.phase, back.limit) == ("too many turns", "triage", "budget", "max_turns")


def test_an_attribute_that_cannot_be_serialised_is_stored_as_its_repr() -> None:
    error = ValueError("bad", object)
    error.handle = sys.stdout  # type: ignore[attr-defined]
    back = serializer.deserialize(serializer.serialize(error))
    assert back.args == ("bad", object)
    assert isinstance(back.handle, str)


def test_an_exception_of_a_class_that_is_not_loaded_is_named() -> None:
    module = ModuleType("elsewhere")
    exec("class Gone(Exception): pass", module.__dict__)
    text = serializer.serialize(module.Gone("lost")).replace("elsewhere:Gone", "elsewhere:Lost")
    back = serializer.deserialize(text)
    assert isinstance(back, RemoteError)
    assert (back.type_name, str(back)) == ("elsewhere:Lost", "elsewhere:Lost: lost")


def test_the_name_of_an_exception_imports_nothing() -> None:
    # The front of the package would import the adapter for whoever reads the attribute.
    vars(weakincentives).pop("AnthropicAdapter", None)
    text = serializer.serialize(ValueError("x")).replace("builtins:ValueError", "weakincentives:AnthropicAdapter")
    assert isinstance(serializer.deserialize(text), RemoteError)
    assert "AnthropicAdapter" not in vars(weakincentives)


def test_only_exception_classes_are_made_from_text() -> None:
    text = serializer.serialize(ValueError("x")).replace("builtins:ValueError", "os:system")
    assert isinstance(serializer.deserialize(text), RemoteError)
