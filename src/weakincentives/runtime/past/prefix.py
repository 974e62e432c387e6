"""The prefix check: does each request on the wire extend the one before it?

A provider's prompt cache stays valid as long as each request begins with the whole previous one. The check compares
request bodies as they were sent and, if one is not an extension, names what changed and the section it came from.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weakincentives.runtime.events import PromptRendered
from weakincentives.runtime.providers import adapter_specs
from weakincentives.session import Session


@dataclass(frozen=True, slots=True)
class PrefixBreak:
    """Request number `request` (from 0) does not extend the previous one: `where` changed, in this section."""

    request: int
    where: str
    detail: str  #: the difference
    section_key: str = ""  #: the section, if one caused it

    def __str__(self) -> str:
        section = f" (section '{self.section_key}')" if self.section_key else ""
        return f"request {self.request} breaks the prefix at {self.where}: {self.detail}{section}"


def prefix_breaks(requests: Sequence[Mapping[str, Any]], session: Session | None = None) -> tuple[PrefixBreak, ...]:
    """Every request that does not extend its predecessor; the session's events identify the sections."""
    rendered = session[PromptRendered].all() if session is not None else ()
    pairs = itertools.pairwise(requests)
    found = (_compare(number, before, after, rendered) for number, (before, after) in enumerate(pairs, start=1))
    return tuple(broken for broken in found if broken is not None)


def assert_prefix_kept(requests: Sequence[Mapping[str, Any]], session: Session | None = None) -> None:
    """Raise AssertionError with every break found."""
    breaks = prefix_breaks(requests, session)
    if breaks:
        raise AssertionError("; ".join(map(str, breaks)))


def _compare(
    number: int, before: Mapping[str, Any], after: Mapping[str, Any], rendered: Sequence[PromptRendered]
) -> PrefixBreak | None:
    for key in dict.fromkeys(key for spec in adapter_specs() for key in spec.prefix_keys):
        old, new = _unmarked(before.get(key)), _unmarked(after.get(key))
        if key == "tools":
            old, new = (_revealed(tools or [], before) for tools in (old, new))
        if old == new:
            continue
        if key == "tools":
            names = _changed_tools(old, new)
            return PrefixBreak(number, key, f"tools changed: {', '.join(names)}", _section_of_tool(names, rendered))
        return PrefixBreak(number, key, _difference(str(old), str(new)), _section_of_text(old, new, rendered))
    for key in dict.fromkeys(spec.conversation_key for spec in adapter_specs()):
        old, new = _unmarked(before.get(key) or []), _unmarked(after.get(key) or [])
        if old and len(new) >= len(old):
            new = [*new[: len(old) - 1], _as_far_as(old[-1], new[len(old) - 1]), *new[len(old) :]]
        if new[: len(old)] != old:
            index = next(i for i, item in enumerate(old) if i >= len(new) or new[i] != item)
            following = new[index] if index < len(new) else "nothing"
            return PrefixBreak(
                number,
                f"{key}[{index}]",
                _difference(str(old[index]), str(following)),
                _section_of_text(old[index], following, rendered),
            )
    return None


def _as_far_as(old: Any, new: Any) -> Any:
    """The new message with as many blocks as the old one: a cache holds up to a block, and blocks may be added."""
    before, after = (each.get("content") if isinstance(each, Mapping) else None for each in (old, new))
    if isinstance(before, list) and isinstance(after, list):
        return {**new, "content": after[: len(before)]}
    return new


def _unmarked(value: Any) -> Any:
    """The value without cache markers, which move with the conversation and are not part of the prefix."""
    if isinstance(value, Mapping):
        markers = {spec.cache_marker for spec in adapter_specs()}
        return {key: _unmarked(item) for key, item in value.items() if key not in markers}
    return [_unmarked(item) for item in value] if isinstance(value, list) else value


def _revealed(tools: list[Any], request: Mapping[str, Any]) -> list[Any]:
    """The listed tools that a cache depends on: not those that are deferred, unless the conversation refers to them."""
    specs = [spec for spec in adapter_specs() if spec.deferred_marker and spec.conversation_key in request]
    hidden = [tool for tool in tools if any(spec.deferred_marker in tool for spec in specs)]
    if not hidden:
        return tools
    spoken = _references([request[spec.conversation_key] for spec in specs])
    kept = [tool for tool in hidden if _tool_name(tool) in spoken]
    # Wherever they stand in the list, the model sees them where it was referred to them.
    return [tool for tool in tools if tool not in hidden] + sorted(kept, key=_tool_name)


def _references(value: Any) -> set[str]:
    """The tools that a conversation refers to."""
    if isinstance(value, Mapping):
        named = {str(value.get("tool_name"))} if value.get("type") == "tool_reference" else set()
        return named.union(*map(_references, value.values()))
    return set().union(*map(_references, value)) if isinstance(value, list) else set()


def _changed_tools(old: list[Any], new: list[Any]) -> list[str]:
    before, after = ({_tool_name(tool): tool for tool in tools} for tools in (old, new))
    changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return changed or ["their order"]


def _tool_name(tool: Any) -> str:
    inner = next((tool[spec.tool_key] for spec in adapter_specs() if spec.tool_key in tool), tool)
    return str(inner.get("name") or inner.get("type"))


def _section_of_tool(names: Sequence[str], rendered: Sequence[PromptRendered]) -> str:
    for event in reversed(rendered):
        for section in event.sections:
            if set(section.tools) & set(names):
                return ".".join(section.path)
    return ""


def _section_of_text(old: Any, new: Any, rendered: Sequence[PromptRendered]) -> str:
    """The section in whose span two renders begin to differ."""
    old, new = _text(old), _text(new)
    position = first_difference(old, new)
    for event in rendered:
        if event.text in (old, new):
            for span in event.spans:
                if span.start <= position <= span.end:
                    return ".".join(span.path)
    return ""


def _text(item: Any) -> str:
    """The text of a message or of a list of text blocks, in any provider's format."""
    if isinstance(item, str):
        return item
    if isinstance(item, Mapping):
        return _text(item.get("content", item.get("text", "")))
    return "".join(_text(part) for part in item) if isinstance(item, list) else ""


def first_difference(old: str, new: str) -> int:
    """Where two texts begin to differ."""
    places = (index for index, (a, b) in enumerate(zip(old, new, strict=False)) if a != b)
    return next(places, min(len(old), len(new)))


def _difference(old: str, new: str) -> str:
    position = first_difference(old, new)
    start = max(position - 20, 0)
    return f"{old[start : position + 20]!r} became {new[start : position + 20]!r}"
