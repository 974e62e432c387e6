"""Where overrides are kept: the contract of a store."""

from __future__ import annotations

from typing import Protocol

from weakincentives.errors import PromptError
from weakincentives.prompt.overrides.descriptor import PromptDescriptor
from weakincentives.prompt.overrides.override import PromptOverride


class PromptOverridesError(PromptError):
    """Stored overrides cannot be read or written."""


class PromptOverridesStore(Protocol):
    """Keeps one `PromptOverride` per prompt and tag."""

    def resolve(self, descriptor: PromptDescriptor, tag: str) -> PromptOverride | None:
        """What is stored for this prompt, stale or not; None where nothing is."""
        ...

    def upsert(self, override: PromptOverride) -> None:
        """Store it in place of what was there."""
        ...

    def delete(self, *, ns: str, key: str, tag: str) -> bool:
        """Whether there was anything to delete."""
        ...

    def list(self, *, ns: str | None = None, key: str | None = None) -> tuple[PromptOverride, ...]:
        """Everything stored, by namespace, key and tag."""
        ...
