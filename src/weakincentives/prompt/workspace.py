"""A section that gives the prompt a filesystem."""

from __future__ import annotations

from typing import Any

from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt.markdown import MarkdownSection
from weakincentives.resources import ResourceRegistry

_TEMPLATE = "A workspace of files is available. Paths are relative to its root."


class WorkspaceSection(MarkdownSection[None]):
    """Contributes its filesystem to the prompt's resources; handlers find it as `context.filesystem`."""

    def __init__(
        self,
        filesystem: Filesystem | None = None,
        *,
        title: str = "Workspace",
        key: str = "workspace",
        template: str = _TEMPLATE,
        **kwargs: Any,
    ) -> None:
        self.filesystem: Filesystem = InMemoryFilesystem() if filesystem is None else filesystem
        super().__init__(title=title, key=key, template=template, **kwargs)

    def resources(self) -> ResourceRegistry:
        return ResourceRegistry.build({Filesystem: self.filesystem})

    def clone(self, **kwargs: Any) -> WorkspaceSection:
        other = super().clone(**kwargs)
        assert isinstance(other, WorkspaceSection)
        if "filesystem" in kwargs:
            other.filesystem = kwargs["filesystem"]
        elif isinstance(self.filesystem, InMemoryFilesystem):
            other.filesystem = InMemoryFilesystem()
            other.filesystem.restore(self.filesystem.snapshot())
        return other
