"""A section that gives the prompt a filesystem."""

from __future__ import annotations

from typing import Any, Self, Unpack

from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt.markdown import MarkdownSection
from weakincentives.prompt.section import SectionOptions
from weakincentives.resources import Binding, ResourceRegistry
from weakincentives.session import Session

_TEMPLATE = "A workspace of files is available. Paths are relative to its root."


class WorkspaceSection(MarkdownSection[None]):
    """Contributes a filesystem to the prompt's resources; handlers find it as `context.filesystem`.

    A filesystem given here is shared by every run of the template. Without one, each run has an empty workspace in
    memory of its own, unless another section, the template or `bind(resources=...)` provides a filesystem.
    """

    def __init__(
        self,
        filesystem: Filesystem | None = None,
        *,
        title: str = "Workspace",
        key: str = "workspace",
        template: str = _TEMPLATE,
        **options: Unpack[SectionOptions[None]],
    ) -> None:
        self.filesystem = filesystem
        super().__init__(title=title, key=key, template=template, **options)

    def resources(self) -> ResourceRegistry:
        if self.filesystem is not None:
            return ResourceRegistry.build({Filesystem: self.filesystem})
        return own_filesystem()

    def clone(self, *, session: Session | None = None, bus: Any = None, filesystem: Filesystem | None = None) -> Self:
        """A copy with files of its own: those given, or a copy of the files in memory; other files are shared."""
        other = super().clone(session=session, bus=bus)
        other.filesystem = self.filesystem if filesystem is None else filesystem
        if filesystem is None and isinstance(self.filesystem, InMemoryFilesystem):
            other.filesystem = files = InMemoryFilesystem()
            files.restore(self.filesystem.snapshot())
        return other


def own_filesystem() -> ResourceRegistry:
    """A filesystem in memory for each run that has no other."""
    return ResourceRegistry.of(Binding(Filesystem, lambda resolver: InMemoryFilesystem(), eager=True, fallback=True))
