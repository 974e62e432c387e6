"""Web search: the provider searches the web and cites what it found."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from weakincentives.errors import PromptValidationError
from weakincentives.prompt import HostedTool, HostedToolConfig, HostedToolOutput
from weakincentives.tools.hosted import (
    DomainFilter as DomainFilter,
    HostedToolFailure as HostedToolFailure,
    HostedToolSection,
    check_bool,
    check_type,
)

_TEMPLATE = """
You can search the web. Search when the answer depends on current events, on figures that change, or on facts that
you are not sure of. Prefer primary sources, and cite the pages that your answer rests on.
"""

_ISO_3166 = """
AD AE AF AG AI AL AM AO AQ AR AS AT AU AW AX AZ BA BB BD BE BF BG BH BI BJ BL BM BN BO BQ BR BS BT BV BW BY
BZ CA CC CD CF CG CH CI CK CL CM CN CO CR CU CV CW CX CY CZ DE DJ DK DM DO DZ EC EE EG EH ER ES ET FI FJ FK
FM FO FR GA GB GD GE GF GG GH GI GL GM GN GP GQ GR GS GT GU GW GY HK HM HN HR HT HU ID IE IL IM IN IO IQ IR
IS IT JE JM JO JP KE KG KH KI KM KN KP KR KW KY KZ LA LB LC LI LK LR LS LT LU LV LY MA MC MD ME MF MG MH MK
ML MM MN MO MP MQ MR MS MT MU MV MW MX MY MZ NA NC NE NF NG NI NL NO NP NR NU NZ OM PA PE PF PG PH PK PL PM
PN PR PS PT PW PY QA RE RO RS RU RW SA SB SC SD SE SG SH SI SJ SK SL SM SN SO SR SS ST SV SX SY SZ TC TD TF
TG TH TJ TK TL TM TN TO TR TT TV TW TZ UA UG UM US UY UZ VA VC VE VG VI VN VU WF WS YE YT ZA ZM ZW
"""

_COUNTRY_CODES = frozenset(_ISO_3166.split())
_TIMEZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+)*")


@dataclass(frozen=True, slots=True)
class GeoHint:
    """Where the user is: ISO 3166-1 alpha-2 country, IANA time zone, and free text for city and region."""

    country_code: str | None = None
    city: str | None = None
    region: str | None = None
    timezone: str | None = None

    def __post_init__(self) -> None:
        for name in ("country_code", "city", "region", "timezone"):
            check_type(getattr(self, name), str, f"GeoHint.{name}", "text or None")
        if self.country_code is not None and self.country_code not in _COUNTRY_CODES:
            raise PromptValidationError(
                f"GeoHint.country_code must be an ISO 3166-1 alpha-2 code, got {self.country_code!r}; "
                "write two capital letters such as 'GB'."
            )
        if self.timezone is not None and not _is_timezone(self.timezone):
            raise PromptValidationError(
                f"GeoHint.timezone must be an IANA time zone such as 'Europe/London', got {self.timezone!r}."
            )
        for name in ("city", "region"):
            value = getattr(self, name)
            if value is not None and not value.strip():
                raise PromptValidationError(f"GeoHint.{name} must not be empty; name one or leave it out.")


@dataclass(frozen=True, slots=True)
class WebSearchConfig(HostedToolConfig):
    """Where to search, for whom, and whether to fetch live pages or only use the provider's cache."""

    domain_filter: DomainFilter | None = None
    geo_hint: GeoHint | None = None
    allow_live_access: bool = True

    def __post_init__(self) -> None:
        check_type(self.domain_filter, DomainFilter, "WebSearchConfig.domain_filter", "a DomainFilter")
        check_type(self.geo_hint, GeoHint, "WebSearchConfig.geo_hint", "a GeoHint")
        check_bool(self.allow_live_access, "WebSearchConfig.allow_live_access")


@dataclass(frozen=True, slots=True)
class Citation:
    """A web source; `span` is the range of the result's `text` that cites it, None if the provider gives none."""

    url: str
    title: str
    span: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class WebSearchResult(HostedToolOutput):
    """All searches of a run: the text of its answers, their citations, every page consulted, and failures.

    If the run has one answer, `text` equals the response's text; otherwise it is all answers joined.
    """

    text: str
    citations: tuple[Citation, ...] = ()
    source_urls: tuple[str, ...] = ()
    errors: tuple[HostedToolFailure, ...] = ()


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

    default_title, default_template = "Web Search", _TEMPLATE

    def __init__(
        self, config: WebSearchConfig = WebSearchConfig(), *, name: str = "web_search", **options: Any
    ) -> None:
        super().__init__(web_search_tool(config, name=name), **options)


def _is_timezone(name: str) -> bool:
    """Check against the system's time zone data; without any, check only the form."""
    return _TIMEZONE.fullmatch(name) is not None and (_is_known(name) or not _is_known("Etc/UTC"))


def _is_known(name: str) -> bool:
    # Imported here because it costs more than the rest of this package.
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True
