"""Web fetch: the provider reads pages by URL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weakincentives.prompt import HostedTool, HostedToolConfig, HostedToolOutput
from weakincentives.tools.hosted import (
    DomainFilter as DomainFilter,
    HostedToolFailure as HostedToolFailure,
    HostedToolSection,
    check_bool,
    check_positive,
    check_type,
)

_TEMPLATE = """
You can read a web page or PDF in full when you know its URL. Fetch a page before you rely on what it says, and prefer
the page itself to what others write about it.
"""


@dataclass(frozen=True, slots=True)
class WebFetchConfig(HostedToolConfig):
    """Which domains to fetch from, how often, how much of a page, whether to cite, and whether to use a cache."""

    domain_filter: DomainFilter | None = None
    max_uses: int | None = None
    max_content_tokens: int | None = None
    citations: bool = False
    allow_cache: bool = True

    def __post_init__(self) -> None:
        check_type(self.domain_filter, DomainFilter, "WebFetchConfig.domain_filter", "a DomainFilter")
        check_positive(self.max_uses, "WebFetchConfig.max_uses")
        check_positive(self.max_content_tokens, "WebFetchConfig.max_content_tokens")
        check_bool(self.citations, "WebFetchConfig.citations")
        check_bool(self.allow_cache, "WebFetchConfig.allow_cache")


@dataclass(frozen=True, slots=True)
class FetchedDocument:
    """A fetched page: its text, or its bytes if `media_type` is not text (a PDF)."""

    url: str
    title: str = ""
    text: str = ""
    media_type: str = "text/plain"
    data: bytes | None = None
    retrieved_at: str | None = None


@dataclass(frozen=True, slots=True)
class DocumentCitation:
    """A passage of a fetched page that the answer cites; `document_span` is its range in the document's text.

    `url` is empty if the provider cites a document that was not fetched in this run.
    """

    url: str
    title: str
    cited_text: str = ""
    document_span: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class WebFetchResult(HostedToolOutput):
    """All pages fetched in a run, in order, with the text of its answers, their citations, and failures."""

    text: str
    documents: tuple[FetchedDocument, ...] = ()
    citations: tuple[DocumentCitation, ...] = ()
    errors: tuple[HostedToolFailure, ...] = ()


def web_fetch_tool(config: WebFetchConfig = WebFetchConfig(), *, name: str = "web_fetch") -> HostedTool[WebFetchConfig]:
    """A web fetch tool with this configuration; its result is `response.hosted_outputs[name]`."""
    return HostedTool(
        kind="web_fetch", name=name, description="Read web pages and PDF documents by their URL.", config=config
    )


class WebFetchSection(HostedToolSection):
    """A section that lets the model read web pages."""

    default_title, default_template = "Web Fetch", _TEMPLATE

    def __init__(self, config: WebFetchConfig = WebFetchConfig(), *, name: str = "web_fetch", **options: Any) -> None:
        super().__init__(web_fetch_tool(config, name=name), **options)
