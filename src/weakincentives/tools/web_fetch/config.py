"""What fetching pages is configured with."""

from __future__ import annotations

from dataclasses import dataclass

from weakincentives.prompt import HostedToolConfig
from weakincentives.tools.domain import DomainFilter
from weakincentives.tools.kind import check_flag, check_kind, check_positive


@dataclass(frozen=True, slots=True)
class WebFetchConfig(HostedToolConfig):
    """Which domains may be fetched, how often, how much of a page, whether to cite, and whether a copy will do."""

    domain_filter: DomainFilter | None = None
    max_uses: int | None = None
    max_content_tokens: int | None = None
    citations: bool = False
    allow_cache: bool = True

    def __post_init__(self) -> None:
        check_kind(self.domain_filter, DomainFilter, "WebFetchConfig.domain_filter", "a DomainFilter")
        check_positive(self.max_uses, "WebFetchConfig.max_uses")
        check_positive(self.max_content_tokens, "WebFetchConfig.max_content_tokens")
        check_flag(self.citations, "WebFetchConfig.citations")
        check_flag(self.allow_cache, "WebFetchConfig.allow_cache")
