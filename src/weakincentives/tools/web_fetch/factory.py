"""How fetching pages gets into a prompt: as a tool of any section, or with a section of its own."""

from __future__ import annotations

from typing import Any

from weakincentives.prompt import HostedTool
from weakincentives.tools.section import HostedToolSection
from weakincentives.tools.web_fetch.config import WebFetchConfig

_TEMPLATE = """
You can read a web page or PDF in full when you know its URL. Fetch a page before you rely on what it says, and prefer
the page itself to what others write about it.
"""


def web_fetch_tool(config: WebFetchConfig = WebFetchConfig(), *, name: str = "web_fetch") -> HostedTool[WebFetchConfig]:
    """Fetching of pages with this configuration; its result is `response.hosted_outputs[name]`."""
    return HostedTool(
        kind="web_fetch", name=name, description="Read web pages and PDF documents by their URL.", config=config
    )


class WebFetchSection(HostedToolSection):
    """A section that lets the model read web pages."""

    def __init__(
        self,
        config: WebFetchConfig = WebFetchConfig(),
        *,
        key: str = "web_fetch",
        title: str = "Web Fetch",
        template: str = _TEMPLATE,
        name: str = "web_fetch",
        **options: Any,
    ) -> None:
        super().__init__(web_fetch_tool(config, name=name), title=title, key=key, template=template, **options)
