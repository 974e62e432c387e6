"""The params of a prompt as a form: an input for each field, and examples for what is not filled in yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin

from weakincentives.serde import Column, columns, dump, field_types, is_record, schema

MAX_DEPTH = 4
LISTS = (list, tuple, set, frozenset, Sequence)
KINDS = {"integer": "whole number", "number": "number", "boolean": "yes or no", "string": "text"}
FORMATS = {"date": "date", "date-time": "date and time", "time": "time"}
EXAMPLES: Mapping[str, Any] = {
    "whole number": 0,
    "number": 0,
    "yes or no": False,
    "date": "2026-01-01",
    "date and time": "2026-01-01T00:00:00",
    "time": "00:00:00",
    "list": [],
}


def form_of(cls: type, default: Any = None, depth: int = 0) -> list[dict[str, Any]]:
    """The fields of a params type, each with its kind of input and its initial value.

    A field has `choices`, the `fields` of a group, or the `item` that a list consists of.
    """
    known = [column for column in columns(cls) if column.init]
    hints, _ = field_types(cls, cls, frozenset(column.name for column in known))
    values = cast(Mapping[str, Any], dump(default)) if default is not None else {}
    begun = {column.key: values.get(column.key, _initial(column)) for column in known}
    return [
        {
            "name": column.key,
            "required": column.required,
            "value": begun[column.key],
            **_input(hints[column.name], begun[column.key], depth),
        }
        for column in known
    ]


def with_examples(fields: Sequence[Mapping[str, Any]], given: Mapping[str, Any]) -> dict[str, Any]:
    """The filled-in values, with an example for each required field that was not; a text stands as its placeholder."""
    found = dict(given)
    for field in fields:
        name, kind = field["name"], field["kind"]
        if kind == "group" and isinstance(found.get(name, {}), Mapping) and (field["required"] or name in found):
            found[name] = with_examples(field["fields"], found.get(name, {}))
        elif field["required"] and name not in found:
            found[name] = _example(field, f"${{{name}}}")
    return found


def missing(fields: Sequence[Mapping[str, Any]], given: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """The names of the required fields that are not filled in."""
    for field in fields:
        name, inner = field["name"], given.get(field["name"])
        if field["kind"] == "group" and isinstance(inner, Mapping):
            yield from missing(field["fields"], inner, f"{above}{name}.")
        elif field["required"] and name not in given:
            yield f"{above}{name}"


def _example(field: Mapping[str, Any], placeholder: str) -> Any:
    if field["optional"]:
        return None
    if field["kind"] == "choice":
        return field["choices"][0]
    return EXAMPLES.get(field["kind"], placeholder)


def _initial(column: Column) -> Any:
    if column.required or column.optional:
        return None
    return dump(column.default_factory()) if callable(column.default_factory) else dump(column.default)


def _input(hint: Any, value: Any, depth: int) -> dict[str, Any]:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _input(args[0], value, depth)
    if origin in (Union, UnionType) and NoneType in args:
        rest = [arg for arg in args if arg is not NoneType]
        return {**(_input(rest[0], value, depth) if len(rest) == 1 else {"kind": "json"}), "optional": True}
    if is_record(hint) and depth < MAX_DEPTH:
        return {"kind": "group", "optional": False, "fields": form_of(hint, value, depth + 1)}
    if origin in LISTS and args and args[1:] in ((), (...,)) and depth < MAX_DEPTH:
        item = _input(args[0], None, depth + 1)
        return {"kind": "list", "optional": False, "item": {"name": "", "required": True, "value": None, **item}}
    try:
        written = schema(hint)
    except Exception:  # A type that has no schema is written as JSON.
        written = {}
    if "enum" in written:
        return {"kind": "choice", "optional": False, "choices": list(written["enum"])}
    kind = FORMATS.get(str(written.get("format"))) or KINDS.get(str(written.get("type")), "json")
    return {"kind": kind, "optional": False}
