"""How a file search gets into a prompt: as a tool of any section, or with a section of its own."""

from __future__ import annotations

from typing import Any

from weakincentives.prompt import HostedTool
from weakincentives.tools.file_search.config import FileSearchConfig
from weakincentives.tools.section import HostedToolSection

_TEMPLATE = """
You can search the uploaded files. Search them before you answer what they may hold, use several queries where one is
not enough, and cite the files that your answer rests on.
"""


def file_search_tool(config: FileSearchConfig, *, name: str = "file_search") -> HostedTool[FileSearchConfig]:
    """A file search with this configuration; its result is `response.hosted_outputs[name]`."""
    return HostedTool(
        kind="file_search", name=name, description="Search the uploaded files and cite them.", config=config
    )


class FileSearchSection(HostedToolSection):
    """A section that lets the model search uploaded files."""

    def __init__(
        self,
        config: FileSearchConfig,
        *,
        key: str = "file_search",
        title: str = "File Search",
        template: str = _TEMPLATE,
        name: str = "file_search",
        **options: Any,
    ) -> None:
        super().__init__(file_search_tool(config, name=name), title=title, key=key, template=template, **options)
