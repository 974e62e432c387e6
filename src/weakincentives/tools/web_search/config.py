"""What a web search is configured with."""

from __future__ import annotations

from dataclasses import dataclass

from weakincentives.errors import PromptValidationError
from weakincentives.prompt import HostedToolConfig
from weakincentives.tools.domain import DomainFilter
from weakincentives.tools.kind import check_flag, check_kind
from weakincentives.tools.web_search.country import COUNTRY_CODES
from weakincentives.tools.web_search.timezone import is_timezone


@dataclass(frozen=True, slots=True)
class GeoHint:
    """Where the user is, for results that fit: ISO 3166-1 alpha-2 country, IANA time zone, free text for the rest."""

    country_code: str | None = None
    city: str | None = None
    region: str | None = None
    timezone: str | None = None

    def __post_init__(self) -> None:
        for name in ("country_code", "city", "region", "timezone"):
            check_kind(getattr(self, name), str, f"GeoHint.{name}", "a text, or leave it out")
        if self.country_code is not None and self.country_code not in COUNTRY_CODES:
            raise PromptValidationError(
                f"GeoHint.country_code {self.country_code!r} is no ISO 3166-1 alpha-2 code; "
                "write two capital letters such as 'GB'."
            )
        if self.timezone is not None and not is_timezone(self.timezone):
            raise PromptValidationError(
                f"GeoHint.timezone {self.timezone!r} is no IANA time zone; write it like 'Europe/London'."
            )
        for name in ("city", "region"):
            value = getattr(self, name)
            if value is not None and not value.strip():
                raise PromptValidationError(f"GeoHint.{name} is empty; leave it out or name one.")


@dataclass(frozen=True, slots=True)
class WebSearchConfig(HostedToolConfig):
    """Where to search, for whom, and whether live pages may be fetched or only the provider's cache."""

    domain_filter: DomainFilter | None = None
    geo_hint: GeoHint | None = None
    allow_live_access: bool = True

    def __post_init__(self) -> None:
        check_kind(self.domain_filter, DomainFilter, "WebSearchConfig.domain_filter", "a DomainFilter")
        check_kind(self.geo_hint, GeoHint, "WebSearchConfig.geo_hint", "a GeoHint")
        check_flag(self.allow_live_access, "WebSearchConfig.allow_live_access")
