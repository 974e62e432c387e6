"""Web fetch: the provider reads pages by their URL."""

from weakincentives.tools.domain import DomainFilter
from weakincentives.tools.failure import HostedToolFailure
from weakincentives.tools.web_fetch.config import WebFetchConfig
from weakincentives.tools.web_fetch.factory import WebFetchSection, web_fetch_tool
from weakincentives.tools.web_fetch.output import DocumentCitation, FetchedDocument, WebFetchResult

__all__ = [
    "DocumentCitation",
    "DomainFilter",
    "FetchedDocument",
    "HostedToolFailure",
    "WebFetchConfig",
    "WebFetchResult",
    "WebFetchSection",
    "web_fetch_tool",
]
