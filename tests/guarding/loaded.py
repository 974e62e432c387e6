"""A section that is loaded with another, and has a guard."""

from __future__ import annotations

from weakincentives.guards import Guard
from weakincentives.prompt import LateContent, MarkdownSection, Section
from weakincentives.resources import ScopedResourceContext


class Loaded(Section[None]):
    """A section that brings others, of which one has the guard."""

    def __init__(self, guard: Guard) -> None:
        super().__init__(key="loaded", title="Loaded")
        self.guard = guard

    def render_body(self, params: None) -> str:
        return "Rules."

    def load(self, resources: ScopedResourceContext) -> LateContent:
        inner = MarkdownSection(key="inner", title="Inner", template="More rules.")
        rules = MarkdownSection(key="rules", title="Rules", template="Rules.", guards=[self.guard], children=[inner])
        return LateContent(children=(MarkdownSection(key="outer", title="Outer", template="Rules.", children=[rules]),))
