"""How a web search gets into a prompt: as a tool of any section, or with a section of its own."""

from __future__ import annotations

from typing import Any

from weakincentives.prompt import HostedTool
from weakincentives.tools.section import HostedToolSection
from weakincentives.tools.web_search.config import WebSearchConfig

_TEMPLATE = """
You can search the web. Search when the answer depends on current events, on figures that change, or on facts that
you are not sure of. Prefer primary sources, and cite the pages that your answer rests on.
"""


def web_search_tool(
    config: WebSearchConfig = WebSearchConfig(), *, name: str = "web_search"
) -> HostedTool[WebSearchConfig]:
    """A web search with this configuration; its result is `response.hosted_outputs[name]`."""
    return HostedTool(
        kind="web_search",
        name=name,
        description="Search the web for current information and cite sources.",
        config=config,
    )


class WebSearchSection(HostedToolSection):
    """A section that lets the model search the web.

    PromptTemplate(ns="research", key="lookup", sections=[task, WebSearchSection()])
    """

    def __init__(
        self,
        config: WebSearchConfig = WebSearchConfig(),
        *,
        key: str = "web_search",
        title: str = "Web Search",
        template: str = _TEMPLATE,
        name: str = "web_search",
        **options: Any,
    ) -> None:
        super().__init__(web_search_tool(config, name=name), title=title, key=key, template=template, **options)
