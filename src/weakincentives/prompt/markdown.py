"""Sections of markdown text, with `${placeholders}` or literal, and one that provides a filesystem to the prompt."""

from __future__ import annotations

from typing import Any, Self, Unpack

from weakincentives._base.generics import ParamsT_co
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt.section import (
    Section,
    SectionOptions,
    TemplateText,
    check_placeholders,
    has_own,
    split_text,
)
from weakincentives.resources import Binding, ResourceRegistry
from weakincentives.session import Session

_WORKSPACE = "A workspace of files is available. Paths are relative to its root."


class MarkdownSection(Section[ParamsT_co]):
    """Text that is dedented, stripped, and filled from the fields of its params dataclass.

    `title` is the heading; `key` names the section among its siblings. `${tone}` in `template` is a params field:

        MarkdownSection[Tone](title="Tone", key="tone", template="Target tone: ${tone}", summary="Tone guidance.")
    """

    def __init__(
        self,
        *,
        template: str,  #: the text; `${tone}` stands for a field of the params
        title: str,  #: the heading
        key: str,  #: the section's name among its siblings
        **options: Unpack[SectionOptions[ParamsT_co]],
    ) -> None:
        self.template = template
        self._text = split_text(template, where=f"Section '{key}'", literal=self.literal)
        super().__init__(title=title, key=key, **options)
        check_placeholders(self, self._text, "template")

    @property
    def source(self) -> str | None:
        return None if self.body_text() is None or has_own(self, "render") else self.template

    def body_text(self) -> TemplateText | None:
        return self._text if type(self).render_body is MarkdownSection.render_body else None

    def render_body(self, params: ParamsT_co | None) -> str:
        return self._text.fill(params, self.key)


class TextSection(MarkdownSection[ParamsT_co]):
    """Literal text: a `$` in `text`, its summary or an override is just a dollar sign.

    `title` is the heading, and `key` names the section among its siblings.

        TextSection(key="deploy", title="Deploy", text="Run $HOME/bin/deploy.", summary="A run costs $5.")
    """

    literal = True

    def __init__(
        self,
        *,
        text: str,  #: the text as it is sent
        title: str,  #: the heading
        key: str,  #: the section's name among its siblings
        **options: Unpack[SectionOptions[ParamsT_co]],
    ) -> None:
        super().__init__(template=text, title=title, key=key, **options)

    @property
    def text(self) -> str:
        """The text as it was given."""
        return self.template


class WorkspaceSection(MarkdownSection[None]):
    """Contributes a filesystem to the prompt's resources; handlers find it as `context.filesystem`.

    A filesystem passed here is shared by every run of the template. Without one, runs work on the in-memory files of
    their session, `session.workspace`, unless another section, the template or `bind(resources=...)` provides a
    filesystem.
    """

    def __init__(
        self,
        filesystem: Filesystem | None = None,
        *,
        title: str = "Workspace",
        key: str = "workspace",
        template: str = _WORKSPACE,
        **options: Unpack[SectionOptions[None]],
    ) -> None:
        self.filesystem = filesystem
        super().__init__(title=title, key=key, template=template, **options)

    def resources(self) -> ResourceRegistry:
        if self.filesystem is not None:
            return ResourceRegistry.build({Filesystem: self.filesystem})
        return own_filesystem()

    def clone(self, *, session: Session | None = None, bus: Any = None, filesystem: Filesystem | None = None) -> Self:
        """A copy with its own files: those passed, or a copy of in-memory files; other files are shared."""
        other = super().clone(session=session, bus=bus)
        other.filesystem = self.filesystem if filesystem is None else filesystem
        if filesystem is None and isinstance(self.filesystem, InMemoryFilesystem):
            other.filesystem = files = InMemoryFilesystem()
            files.restore(self.filesystem.snapshot())
        return other


# Replaced by the workspace of the session as soon as there is one, so that files stay with the conversation.
OWN_FILES = Binding[Filesystem](Filesystem, lambda resolver: InMemoryFilesystem(), eager=True, fallback=True)


def own_filesystem() -> ResourceRegistry:
    """In-memory files for each session whose prompt has no other filesystem."""
    return ResourceRegistry.of(OWN_FILES)
