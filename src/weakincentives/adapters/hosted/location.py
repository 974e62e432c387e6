"""A user's place in the words that every provider takes."""

from __future__ import annotations

from weakincentives.tools.web_search import GeoHint


def approximate(hint: GeoHint) -> dict[str, str]:
    named = {"country": hint.country_code, "city": hint.city, "region": hint.region, "timezone": hint.timezone}
    return {name: value for name, value in named.items() if value}
