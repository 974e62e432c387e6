"""Hosted tools of a run: rejected before any request if the adapter cannot offer them, and read at its end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol, TypeVar

from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import HostedTool, View
from weakincentives.runtime.messages import Message
from weakincentives.runtime.providers import adapter_spec, adapter_specs

ConfigT = TypeVar("ConfigT")
OutputT_co = TypeVar("OutputT_co", covariant=True)


class HostedToolCodec(Protocol[ConfigT, OutputT_co]):
    """Encodes one kind of hosted tool for a provider and reads the provider's items into a typed output."""

    @property
    def kind(self) -> str:
        """The abstract tool kind this codec handles."""
        ...

    def serialize(self, tool: HostedTool[ConfigT]) -> dict[str, Any]:
        """The provider's declaration of the tool; a setting it cannot honour is a `PromptEvaluationError`."""
        ...

    def parse_output(self, response_items: Sequence[Any], tool: HostedTool[ConfigT]) -> OutputT_co | None:
        """The typed output from all items of a run, or None if the tool was not used.

        Items are mappings that can be read by attribute too: `item["type"]`, `item.get("type")` and `item.type`.
        """
        ...


class Item(dict[str, Any]):
    """An object of a provider's JSON: a mapping that can be read by attribute too, as the objects of SDKs are.

    A field with the name of a method of mappings, such as `items`, is read by `item["items"]`.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the item has no field {name!r}") from None


Codecs = Mapping[str, HostedToolCodec[Any, Any]]
Owned = tuple[str, HostedTool[Any]]
"""A hosted tool with the key of its section."""


def all_hosted(view: View) -> list[Owned]:
    """The hosted tools of all enabled sections, shown or not."""
    return [(node.key, tool) for node in view.existing() for tool in node.hosted_tools]


def hosted_problems(
    owned: Iterable[Owned], codecs: Codecs, adapter: str
) -> Iterator[tuple[Owned, PromptEvaluationError | None]]:
    """Each tool with the reason why the adapter cannot offer it."""
    seen: dict[str, Owned] = {}
    for section_key, tool in owned:
        first = seen.setdefault(tool.kind, (section_key, tool))
        yield (section_key, tool), _problem(first, section_key, tool, codecs, adapter)


def hosted_outputs(
    tools: Sequence[HostedTool[Any]], answers: Iterable[Message], codecs: Mapping[str, Codecs], prompt_name: str
) -> dict[str, Any]:
    """The typed output of each tool that was used, by name, from the items of these answers."""
    items: dict[str, list[str]] = {}
    for message in answers:
        if message.provider in codecs:
            items.setdefault(message.provider, []).extend(message.items)
    decoded: dict[tuple[str, bool], list[Any]] = {}
    outputs: dict[str, Any] = {}
    for tool in tools:
        for adapter, texts in items.items():
            codec = codecs[adapter].get(tool.kind)
            if codec is None:
                continue
            ours = type(codec).__module__.startswith("weakincentives.")
            if (adapter, ours) not in decoded:
                hook = None if ours else Item
                decoded[adapter, ours] = [json.loads(text, object_hook=hook) for text in texts]
            try:
                output = codec.parse_output(decoded[adapter, ours], tool)
            except PromptEvaluationError as error:
                error.prompt_name = error.prompt_name or prompt_name
                raise
            if output is not None:
                outputs[tool.name] = _merged(outputs[tool.name], output) if tool.name in outputs else output
    return outputs


def _merged(first: Any, second: Any) -> Any:
    """The outputs of a tool at two providers as one: texts and lists are joined; of the rest, the later counts."""
    if type(first) is not type(second) or not is_dataclass(first):
        return second
    offset, joined = len(getattr(first, "text", "")), {}
    for each in fields(second):
        value = getattr(second, each.name)
        if isinstance(value, tuple):
            value = tuple(_shifted(item, offset) for item in value)
        if isinstance(value, str | tuple):
            joined[each.name] = getattr(first, each.name) + value
    return replace(second, **joined)


def _shifted(item: Any, offset: int) -> Any:
    span = getattr(item, "span", None)
    return item if span is None else replace(item, span=(span[0] + offset, span[1] + offset))


def _problem(
    first: Owned, section_key: str, tool: HostedTool[Any], codecs: Codecs, adapter: str
) -> PromptEvaluationError | None:
    codec = codecs.get(tool.kind)
    if codec is None:
        known = ", ".join(sorted(codecs)) or "none"
        elsewhere = [spec.name for spec in adapter_specs() if tool.kind in spec.hosted_tools]
        ways = [f"{' and '.join(elsewhere)} can"] if elsewhere else []
        spec = adapter_spec(adapter)
        if spec is None or spec.accepts_codecs:
            ways.append("pass hosted_tool_codecs= to add one")
        way_out = f"; {', or '.join(ways)}" if ways else ""
        return PromptEvaluationError(
            f"Unsupported hosted tool kind '{tool.kind}' for {adapter} adapter (supported: {known}){way_out}.",
            phase="render",
        )
    try:
        declared = codec.serialize(tool)
        if first[1].name == tool.name or not getattr(codec, "single", False):
            return None
        if codec.serialize(first[1]) == declared:
            return None
    except PromptEvaluationError as error:
        return error
    return PromptEvaluationError(
        f"Hosted tools '{first[1].name}' (section '{first[0]}') and '{tool.name}' (section '{section_key}') are both "
        f"of kind '{tool.kind}' and declared differently, and the {adapter} adapter cannot tell their results apart; "
        "give both the same config, keep one of them, or let enabled= choose.",
        phase="render",
    )
