"""The identity of what is evaluated: whatever decides about results, as far as it can be known before a run.

An evaluation may only return kept results if its prompt, model and scorers are those of now. So everything that a
model is shown or allowed goes into a hash: what is declared by its value, functions by their compiled code. An object
that may change while it is used, such as a list that a handler appends to, is known by its class alone.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from pathlib import PurePath
from types import CodeType, FunctionType, MethodType
from typing import Any
from uuid import UUID

from weakincentives import serde
from weakincentives.prompt import Prompt, PromptTemplate, Tool
from weakincentives.resources import ResourceRegistry
from weakincentives.telemetry import plain

_REPRESENTED = (date, time, timedelta, Decimal, UUID, PurePath, complex)
# Known from the outline, where stored overrides are applied.
_FROM_OUTLINE = frozenset({"template", "text", "summary", "children", "key", "title"})


def digest(facts: Any) -> str:
    """A hash of values, classes and functions, the same in every process."""
    text = json.dumps(_Facts().of(facts), sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def prompt_hash(prompt: Prompt[Any]) -> str:
    """A hash of what a model is shown of a prompt and may do with it, with overrides applied.

    It covers texts, titles, summaries, visibility and what decides about it, tools and hosted tools with their schemas
    and limits, approval, guards, the strategy, the output type, params and their defaults, and the code of the prompt's
    own functions and classes. Not in it are what that code calls, and what files, servers and databases return.
    """
    bound = prompt.bound()
    outline = bound.outline
    sections = [_section_facts(outline, node) for node in outline.nodes]
    resources = [_bindings(prompt.template.resources), _bindings(bound.bound_resources)]
    return digest([_template_facts(prompt.template), sections, resources, prompt.params])


def overridden_parts(prompt: Prompt[Any]) -> tuple[str, ...]:
    """What a stored override changes in a prompt, such as "summary orders" or "tool refund"."""
    bound = prompt.bound()
    before, after = bound.declared_outline, bound.outline
    parts: dict[str, None] = {}
    for declared, shown in zip(before.nodes, after.nodes, strict=True):
        if declared.text != shown.text:
            parts[f"text {shown.key}"] = None
        if declared.summary != shown.summary:
            parts[f"summary {shown.key}"] = None
        if before.base[declared.index] != after.base[shown.index]:
            parts[f"visibility {shown.key}"] = None
        for old, new in zip(declared.tools, shown.tools, strict=True):
            if old.definition != new.definition:
                parts[f"tool {new.name}"] = None
    return tuple(parts)


def declared(value: Any) -> Any:
    """A function, or another object by its class and attributes, as a fact."""
    if isinstance(value, FunctionType | MethodType | partial | type):
        return value
    return _Declared(value)


def _template_facts(template: PromptTemplate[Any]) -> list[Any]:
    options, strategy, output = template.view_options, template.disclosure, template.structured_output
    facts: list[Any] = [
        _Declared(strategy),
        [_tool_facts(tool) for tool in template.builtin_tools()],
        [strategy.hint("key", children=("child",), has_tools=with_tools) for with_tools in (True, False)],
        strategy.instruction(with_tools=True, content_only=True),
        options.show_prices,
        options.token_budget,
        type(options.counter),
        template.tool_timeout,
        [_Declared(guard) for guard in template.guards],
    ]
    if output is not None:
        facts += [output.container, output.schema, output.allow_extra_keys, output.output_type]
    return facts


def _section_facts(outline: Any, node: Any) -> list[Any]:
    section = node.section
    attributes = {name: value for name, value in vars(section).items() if name not in _FROM_OUTLINE}
    default = None
    if node.source is not None:
        default = _default_params(node.source.params_type, node.source.default)
    return [
        [node.key, section.title, section.role, outline.base[node.index], node.path in outline.unloaded],
        [_text_facts(node.text), _text_facts(node.summary)],
        [_Declared(guard) for guard in section.guards],
        _Declared(section, attributes),
        default,
        [_tool_facts(tool) for tool in node.tools],
        [[tool.kind, tool.name, tool.config] for tool in node.hosted_tools],
    ]


def _text_facts(text: Any) -> Any:
    return None if text is None else [text.literals, text.names, text.formats, text.indents]


def _tool_facts(tool: Tool[Any, Any]) -> list[Any]:
    functions = [tool.handler, getattr(tool, "function", None), tool.compensate, tool.approval, tool.preview]
    settings = [tool.read_only, tool.timeout, tool.concurrent, tool.changes, tool.reaches_outside]
    return [tool.definition, tool.examples, settings, functions, tool.params_type]


def _bindings(registry: ResourceRegistry) -> list[Any]:
    """The resources that are bound, by type, and the functions that create them."""
    return [[protocol, binding.provider] for protocol, binding in registry.bindings.items()]


def _default_params(params_type: type, default: Any) -> Any:
    """The params of a section if none are bound."""
    if default is not None:
        return default
    try:
        return params_type()
    except Exception:  # They have no defaults, so the prompt or a case binds them.
        return params_type


class _Declared:
    """An object that is part of a prompt's declaration, with its attributes: its class alone does not describe it."""

    def __init__(self, value: Any, attributes: Mapping[str, Any] | None = None) -> None:
        self.kind = type(value)
        self.attributes = attributes
        if attributes is None and is_dataclass(value):
            self.attributes = {field.name: getattr(value, field.name, None) for field in fields(value)}
        elif attributes is None:
            self.attributes = getattr(value, "__dict__", {})


class _Facts:
    """Turns facts into JSON; `_inside` are the functions and classes that are being described."""

    def __init__(self) -> None:
        self._inside: list[Any] = []

    def of(self, value: Any) -> Any:
        """A value that nobody changes: what was declared, params, or a part of these."""
        if isinstance(value, Mapping):
            pairs = [[self.of(key), self.of(item)] for key, item in value.items()]
            return ["mapping", *sorted(pairs, key=json.dumps)]
        if isinstance(value, list | tuple):
            return [self.of(item) for item in value]
        if isinstance(value, set | frozenset):
            return ["set", *sorted(map(self.of, value), key=json.dumps)]
        if isinstance(value, _Declared):
            attributes = value.attributes or {}
            public = {name: self.fixed(item) for name, item in attributes.items() if not name.startswith("_")}
            return [self.of(value.kind), public]
        if isinstance(value, _REPRESENTED):
            return repr(value)
        if is_dataclass(value) and not isinstance(value, type):
            return [_name(type(value)), self._fields(value, self.of)]
        if serde.is_record(type(value)) and not isinstance(value, tuple):
            return [_name(type(value)), self.of(plain(value))]
        return self.fixed(value)

    def fixed(self, value: Any) -> Any:
        """The value if it cannot change while it is used, else its class."""
        if isinstance(value, Enum):
            return [_name(type(value)), value.name]
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, bytes):
            return ["bytes", hashlib.sha256(value).hexdigest()]
        if isinstance(value, tuple):
            return [self.fixed(item) for item in value]
        if isinstance(value, frozenset):
            return ["set", *sorted(map(self.fixed, value), key=json.dumps)]
        if isinstance(value, partial):
            arguments = [[name, self.fixed(item)] for name, item in sorted(value.keywords.items())]
            return [self.fixed(value.func), self.fixed(value.args), arguments]
        if isinstance(value, MethodType):
            return [self.fixed(value.__func__), _name(type(value.__self__))]
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, CodeType):
            return self._code(value)
        if isinstance(value, type):
            return self._class(value)
        if _is_frozen(value):
            return [_name(type(value)), self._fields(value, self.fixed)]
        return _name(type(value))

    def _fields(self, value: Any, describe: Callable[[Any], Any]) -> list[Any]:
        return [[field.name, describe(getattr(value, field.name, None))] for field in fields(value)]

    def _function(self, function: FunctionType) -> Any:
        if function in self._inside:
            return function.__qualname__
        self._inside.append(function)
        cells = [self.fixed(cell.cell_contents) for cell in function.__closure__ or () if _is_filled(cell)]
        facts = [function.__qualname__, cells]
        if not _is_known(function):
            named = sorted((function.__kwdefaults__ or {}).items())
            facts += [self._code(function.__code__), self.fixed(function.__defaults__), self.fixed(tuple(named))]
        self._inside.pop()
        return facts

    def _code(self, code: CodeType) -> Any:
        """Compiled code without its place in the file: moving it, or a comment in it, changes nothing."""
        constants = [self.fixed(constant) for constant in code.co_consts]
        return [code.co_code.hex(), constants, list(code.co_names), list(code.co_varnames)]

    def _class(self, kind: type) -> Any:
        """A class by its name, and one of the user's by its methods and constants too."""
        if _is_known(kind) or kind in self._inside:
            return _name(kind)
        self._inside.append(kind)
        members = []
        for name, member in sorted(vars(kind).items()):
            function = _function_of(member)
            if isinstance(function, FunctionType) or not name.startswith("_"):
                members.append([name, self.fixed(function)])
        bases = [self._class(base) for base in kind.__bases__]
        self._inside.pop()
        return [_name(kind), members, bases]


def _function_of(member: Any) -> Any:
    if isinstance(member, staticmethod | classmethod):
        return member.__func__
    if isinstance(member, property):
        return member.fget
    return member


def _is_frozen(value: Any) -> bool:
    options = getattr(type(value), "__dataclass_params__", None)
    return options is not None and bool(options.frozen)


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _is_known(value: Any) -> bool:
    """True for code of the library and of Python itself, which has a version instead."""
    package = str(value.__module__).partition(".")[0]
    return package == "weakincentives" or package in sys.stdlib_module_names


def _name(value: Any) -> str:
    """The name of a class; that of the user's own module may be another one in another program, such as `__main__`."""
    return f"{value.__module__}.{value.__qualname__}" if _is_known(value) else str(value.__qualname__)
