"""The JSON schema that decoding is held to: one of the offered calls, or the answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weakincentives.prompt import StructuredOutputConfig, Tool

MAX_ANSWER = 1500
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


def reply_schema(
    tools: Sequence[Tool[Any, Any]], keys: Sequence[str], output: StructuredOutputConfig | None
) -> dict[str, Any]:
    """A call of one of `tools` with valid arguments, or an answer; sections are named out of `keys`."""
    definitions: dict[str, Any] = {}
    forms = [
        _object(tool=_const(tool.name), arguments=_adopt(arguments_schema(tool, keys), f"tool{index}", definitions))
        for index, tool in enumerate(tools)
    ]
    answer = {"type": "string", "minLength": 1, "maxLength": MAX_ANSWER} if output is None else output.schema
    forms.append(_object(answer=_adopt(answer, "answer", definitions)))
    return {"anyOf": forms, "$defs": definitions} if len(forms) > 1 else {**forms[0], "$defs": definitions}


def arguments_schema(tool: Tool[Any, Any], keys: Sequence[str]) -> dict[str, Any]:
    """A tool's arguments; what names a section is one of those that can be opened now."""
    schema = tool.strict_schema
    if tool.name == "read_section" and keys:
        return _with(schema, section_key={"type": "string", "enum": list(keys)})
    if tool.name == "open_sections" and keys:
        items = {"type": "array", "items": {"type": "string", "enum": list(keys)}, "minItems": 1, "maxItems": 2}
        return _with(schema, section_keys=items)
    return schema


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


def _adopt(schema: Mapping[str, Any], prefix: str, definitions: dict[str, Any]) -> Any:
    """Move a schema's definitions to the common place under names of its own."""
    text = json.dumps(schema).replace('"#/$defs/', f'"#/$defs/{prefix}.')
    adopted = json.loads(text)
    for name, definition in adopted.pop("$defs", {}).items():
        definitions[f"{prefix}.{name}"] = definition
    return adopted


def _with(schema: Mapping[str, Any], **properties: Any) -> dict[str, Any]:
    return {**schema, "properties": {**schema["properties"], **properties}}


def _const(value: str) -> dict[str, Any]:
    return {"type": "string", "enum": [value]}


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
