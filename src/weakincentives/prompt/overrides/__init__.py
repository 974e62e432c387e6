"""Prompt overrides: other words for a prompt without touching its code, and where they are stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weakincentives._imports import lazy_front
from weakincentives.prompt.overrides.descriptor import (
    LATEST,
    Applied,
    PromptDescriptor,
    PromptOverride,
    PromptOverridesError,
    PromptOverridesStore,
    SectionDescriptor,
    SectionOverride,
    StaleOverride,
    ToolDescriptor,
    ToolOverride,
    apply_override,
    check_override,
    diff,
)

if TYPE_CHECKING:
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

# Most programs store no overrides.
__getattr__ = lazy_front(__name__, {"JsonPromptOverridesStore": "json_store"})
