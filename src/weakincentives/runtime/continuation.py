"""How today's prompt differs from the one a conversation began with, and what the model is told of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from weakincentives.prompt import View
from weakincentives.runtime.events import PromptRendered

_HEADING = re.compile(r"#+ (?:[\d.]+\. )?")


@dataclass(frozen=True, slots=True)
class PromptDifference:
    """Sections that read otherwise (with their new text), and sections and tools that are gone.

    What the user sections say now is the user's, not an instruction.
    """

    changed: dict[str, str]
    user_changed: dict[str, str]
    removed_sections: tuple[str, ...]
    removed_tools: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.changed or self.user_changed or self.removed_sections or self.removed_tools)

    def render(self) -> str:
        """What the model reads."""
        parts = []
        if self.changed:
            texts = "\n\n".join(self.changed.values())
            parts.append(f"The instructions have changed. From now on these sections read:\n\n{texts}")
        if self.removed_sections:
            parts.append(f"These sections no longer apply: {', '.join(self.removed_sections)}.")
        if self.removed_tools:
            parts.append(f"These tools are no longer available: {', '.join(self.removed_tools)}.")
        return "\n\n".join(parts)


def prompt_difference(before: PromptRendered | None, view: View, removed_tools: Sequence[str] = ()) -> PromptDifference:
    """Compare a render with what its sections would show today; `view` is today's prompt."""
    changed: dict[str, dict[str, str]] = {"system": {}, "user": {}}
    removed: list[str] = []
    text, spans = ("", ()) if before is None else (before.text, before.spans)
    for span in spans:
        key = ".".join(span.path)
        if view.find(key) is None:
            removed.append(key)
            continue
        now = view.own_text(span.path, span.visibility)
        # Numbers and levels of headings depend on the other sections.
        if _HEADING.sub("", text[span.start : span.end], count=1) != _HEADING.sub("", now, count=1):
            changed[span.role][key] = now
    return PromptDifference(changed["system"], changed["user"], tuple(removed), tuple(removed_tools))
