"""A section that lets the model work on files."""

from __future__ import annotations

from typing import Unpack

from weakincentives.contrib.tools.vfs.handlers import file_tools
from weakincentives.contrib.tools.vfs.limits import VfsLimits
from weakincentives.filesystem import Filesystem
from weakincentives.prompt import SectionOptions, WorkspaceSection

_READING = """\
You have files to work with. Paths are relative to the root, such as `src/main.py`; the root itself is `.`.

- `ls`, `glob` and `grep` find files and lines; `read` shows a file, long ones in parts."""
_WRITING = """
- `write` makes a file, `edit` replaces an exact piece of text in one, `rm` deletes.

Read a file before you edit it. A call that fails changes nothing."""
_READ_ONLY = """

The files cannot be changed."""


class VfsToolsSection(WorkspaceSection):
    """The tools `ls`, `read`, `glob`, `grep`, and unless `read_only` also `write`, `edit` and `rm`.

        PromptTemplate(ns="demo", key="coder", sections=[VfsToolsSection(HostFilesystem("work"))])

    They work on the prompt's filesystem: the one given here, or without one that of another section or of
    `bind(resources=...)`, or else files in memory that belong to the run.
    """

    def __init__(
        self,
        filesystem: Filesystem | None = None,
        *,
        read_only: bool = False,
        limits: VfsLimits = VfsLimits(),
        title: str = "Files",
        key: str = "vfs",
        template: str | None = None,
        **options: Unpack[SectionOptions[None]],
    ) -> None:
        if template is None:
            template = _READING + (_READ_ONLY if read_only else _WRITING)
        options["tools"] = (*file_tools(limits, read_only=read_only), *options.get("tools", ()))
        super().__init__(filesystem, title=title, key=key, template=template, **options)
