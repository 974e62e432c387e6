"""Finds tool arguments in the question itself: a small model may copy arguments but should not make them up."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weakincentives.prompt import Tool

_NUMBER = re.compile(r"(?<![\w.,-])-?\d+(?:[.,]\d+)?(?![\w-]|[.,]\d)")
_CODE = re.compile(r"\b[A-Za-z]+[-_/#]?\d[\w-]*\b")


@dataclass(frozen=True, slots=True)
class Grounding:
    """`given` holds the arguments found in the question; `missing` names those still to be written."""

    given: Mapping[str, Any]
    missing: tuple[str, ...]


def ground(tool: Tool[Any, Any], question: str) -> Grounding | None:
    """Find a tool's arguments in the question; None if a required number, code or choice is missing."""
    schema = tool.strict_schema
    definitions = schema.get("$defs", {})
    given: dict[str, Any] = {}
    missing: list[str] = []
    taken: list[tuple[int, int]] = []
    for name, declared in schema["properties"].items():
        node, optional = _resolve(declared, definitions)
        found, value = _find(node, question, taken)
        if found:
            given[name] = value
        elif optional:
            given[name] = None
        elif "enum" in node or _form(node) or node.get("type") in ("number", "integer"):
            return None
        else:
            missing.append(name)
    return Grounding(given, tuple(missing))


def _resolve(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """The schema with references resolved, and whether it also accepts null."""
    if "$ref" in node:
        return _resolve(definitions.get(node["$ref"].rpartition("/")[2], {}), definitions)
    kinds = node.get("type")
    if isinstance(kinds, list) and "null" in kinds:
        rest = [kind for kind in kinds if kind != "null"]
        return {**node, "type": rest[0] if len(rest) == 1 else rest}, True
    forms = node.get("anyOf")
    if forms and any(form.get("type") == "null" for form in forms):
        rest = [form for form in forms if form.get("type") != "null"]
        return (_resolve(rest[0], definitions)[0] if len(rest) == 1 else {"anyOf": rest}), True
    return node, False


def _find(node: Mapping[str, Any], question: str, taken: list[tuple[int, int]]) -> tuple[bool, Any]:
    if "const" in node:
        return True, node["const"]
    if "enum" in node:
        said = [value for value in node["enum"] if isinstance(value, str) and _mentions(question, value)]
        return (True, max(said, key=len)) if said else (False, None)
    if form := _form(node):
        found = re.search(form, question)
        if found:
            taken.append(found.span())
        return found is not None, found[0] if found else None
    if node.get("type") in ("number", "integer"):
        for found in _NUMBER.finditer(question):
            text = found[0].replace(",", ".")
            if any(start < found.end() and found.start() < end for start, end in taken) or (
                node["type"] == "integer" and "." in text
            ):
                continue
            taken.append(found.span())
            return True, int(text) if "." not in text else float(text)
    return False, None


def _form(node: Mapping[str, Any]) -> str | None:
    """The format of a code: its pattern, or the format of an example in the description ("such as FH-20417")."""
    if node.get("type") != "string":
        return None
    if "pattern" in node:
        return str(node["pattern"]).removeprefix("^").removesuffix("$")
    example = _CODE.search(node.get("description", ""))
    if example is None:
        return None
    digits = re.sub(r"\d+", lambda _: r"\d+", re.escape(example[0]))
    return rf"\b{digits}\w*\b"


def _mentions(question: str, value: str) -> bool:
    spoken = re.escape(value).replace("_", "[ _-]?").replace(r"\-", "[ _-]?")
    return re.search(rf"\b{spoken}s?\b", question, re.IGNORECASE) is not None
