"""An override beside the text that it replaces."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import unified_diff

from weakincentives.prompt.overrides.application import check_override
from weakincentives.prompt.overrides.descriptor import PromptDescriptor
from weakincentives.prompt.overrides.override import PromptOverride


def diff(descriptor: PromptDescriptor, override: PromptOverride) -> str:
    """A unified diff from the prompt's own words to the override's; what is not applied says so and why."""
    stale = {(left_out.kind, left_out.name): left_out for left_out in check_override(descriptor, override).stale}
    parts: list[str] = []
    for path, body in override.sections.items():
        section, name = descriptor.sections.get(path), ".".join(path)
        if left_out := stale.get(("section", name)):
            parts.append(f"# not applied: {left_out}\n")
        parts += _unified(f"section {name}", (section and section.source) or "", body.body, override.tag)
    for name, words in override.tools.items():
        tool = descriptor.tools.get(name)
        if left_out := stale.get(("tool", name)):
            parts.append(f"# not applied: {left_out}\n")
        if words.description is not None:
            parts += _unified(f"tool {name}", tool.description if tool else "", words.description, override.tag)
        for param, text in words.param_descriptions.items():
            before = tool.param_descriptions.get(param, "") if tool else ""
            parts += _unified(f"tool {name} param {param}", before, text, override.tag)
    return "".join(parts)


def _unified(label: str, before: str, after: str, tag: str) -> Iterator[str]:
    return unified_diff(_lines(before), _lines(after), f"{label} (prompt)", f"{label} ({tag})")


def _lines(text: str) -> list[str]:
    return [f"{line}\n" for line in text.strip().splitlines()]
