"""Web search: the provider looks things up and cites what it found."""

from weakincentives.tools.domain import DomainFilter
from weakincentives.tools.failure import HostedToolFailure
from weakincentives.tools.web_search.config import GeoHint, WebSearchConfig
from weakincentives.tools.web_search.factory import WebSearchSection, web_search_tool
from weakincentives.tools.web_search.output import Citation, WebSearchResult

__all__ = [
    "Citation",
    "DomainFilter",
    "GeoHint",
    "HostedToolFailure",
    "WebSearchConfig",
    "WebSearchResult",
    "WebSearchSection",
    "web_search_tool",
]
