"""The JSON schema that decoding is held to, bounded so that decoding ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_NUMBER = 1_000_000_000
# As in the JSON that models have read; other spacing leads small ones astray.
_SPACING = {"whitespace_flexible": False, "key_separator": ": ", "item_separator": ", "}


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long texts and lists may be where their type does not say."""

    text: int
    items: int


LOOSE = Bounds(300, 6)
TIGHT = Bounds(40, 2)


def closed(schema: Mapping[str, Any], bounds: Bounds = LOOSE) -> dict[str, Any]:
    """The schema with every text, list and number bounded, so that decoding ends; white space is fixed."""
    bounded = _bounded(schema, bounds)
    assert isinstance(bounded, dict)
    return {**bounded, "x-guidance": _SPACING}


def _bounded(node: Any, bounds: Bounds) -> Any:
    if isinstance(node, list):
        return [_bounded(item, bounds) for item in node]
    if not isinstance(node, Mapping):
        return node
    result = {
        key: {name: _bounded(value, bounds) for name, value in member.items()}
        if key in ("properties", "$defs")
        else member
        if key in ("enum", "const", "default", "required")
        else _bounded(member, bounds)
        for key, member in node.items()
        if key not in ("title", "description", "default", "examples")
    }
    kind = node.get("type")
    if kind == "string" and not {"enum", "const", "pattern", "format"} & node.keys():
        result.setdefault("maxLength", bounds.text)
    elif kind == "array" and "prefixItems" not in node:
        result.setdefault("maxItems", max(bounds.items, node.get("minItems", 0)))
    elif kind == "integer":
        _bound_number(result, node, 1)
    elif kind == "number":
        _bound_number(result, node, 0.01)
    return result


def _bound_number(result: dict[str, Any], node: Mapping[str, Any], step: float) -> None:
    if not {"minimum", "exclusiveMinimum"} & node.keys():
        result["minimum"] = -MAX_NUMBER
    if not {"maximum", "exclusiveMaximum"} & node.keys():
        result["maximum"] = MAX_NUMBER
    if step < 1:
        result.setdefault("multipleOf", step)
