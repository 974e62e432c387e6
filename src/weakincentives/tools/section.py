"""A section that brings one hosted tool."""

from __future__ import annotations

from typing import Any

from weakincentives.prompt import HostedTool, MarkdownSection


class HostedToolSection(MarkdownSection[None]):
    """Says in markdown what a hosted tool is for, and offers it while the section is shown in full.

    Further options are those of every section: `summary=`, `visibility=`, `enabled=`, `children=` and so on.
    """

    def __init__(self, tool: HostedTool[Any], *, title: str, key: str, template: str, **options: Any) -> None:
        super().__init__(title=title, key=key, template=template, hosted_tools=(tool,), **options)
