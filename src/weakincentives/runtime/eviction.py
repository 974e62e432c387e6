"""Which open sections to close when a conversation has outgrown its limit."""

from __future__ import annotations

from collections.abc import Mapping

from weakincentives.prompt import SectionPath
from weakincentives.prompt.view import View
from weakincentives.runtime.inventory import Count


def sections_to_close(view: View, last_used: Mapping[str, int], excess: int, count: Count) -> list[SectionPath]:
    """Sections that the session opened, those used longest ago first, until they make up for the excess tokens."""
    opened = [
        node
        for node in view.existing()
        if view.is_open(node.path) and node.summary is not None and view.decided_by(node) == "session"
    ]
    opened.sort(key=lambda node: (last_used.get(node.key, 0), node.index))
    closing: list[SectionPath] = []
    for node in opened:
        if excess <= 0:
            break
        excess -= count(view.content(node.path))
        closing.append(node.path)
    return closing
