"""Other words for a prompt without touching its code: descriptors, overrides and where they are kept."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from weakincentives.prompt.overrides.application import Applied, StaleOverride, apply_override, check_override
from weakincentives.prompt.overrides.descriptor import PromptDescriptor, SectionDescriptor, ToolDescriptor
from weakincentives.prompt.overrides.override import LATEST, PromptOverride, SectionOverride, ToolOverride
from weakincentives.prompt.overrides.store import PromptOverridesError, PromptOverridesStore

if TYPE_CHECKING:
    from weakincentives.prompt.overrides.diff import diff
    from weakincentives.prompt.overrides.json_store import JsonPromptOverridesStore

__all__ = [
    "LATEST",
    "Applied",
    "JsonPromptOverridesStore",
    "PromptDescriptor",
    "PromptOverride",
    "PromptOverridesError",
    "PromptOverridesStore",
    "SectionDescriptor",
    "SectionOverride",
    "StaleOverride",
    "ToolDescriptor",
    "ToolOverride",
    "apply_override",
    "check_override",
    "diff",
]

# Most programs keep no overrides, and nothing else needs these two.
_LATE = {"JsonPromptOverridesStore": "json_store", "diff": "diff"}


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
    globals()[name] = value
    return value
