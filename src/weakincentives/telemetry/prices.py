"""What models cost per million tokens; pass your own where this is out of date.

Each adapter's spec lists its provider's prices, taken from litellm 1.108. They leave out surcharges for writing a cache
(the usage of a reply does not tell such tokens apart), for very long prompts and for faster service.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from weakincentives.limits import Prices
from weakincentives.runtime import adapter_specs

AS_OF = "2026-11"

_DATED = re.compile(r"[-@](?:\d{8}|\d{4}-\d{2}-\d{2}|latest)$")


@cache
def known_prices() -> Mapping[str, Prices]:
    """The prices of every model that some adapter's spec lists."""
    return {model: prices for spec in adapter_specs() for model, prices in spec.prices.items()}


def prices_for(model: str, own: Mapping[str, Prices] | None = None) -> Prices | None:
    """The prices of a model, by its name with or without a date or a provider in front; None where unknown."""
    table = {**known_prices(), **(own or {})}
    name = model.rpartition("/")[2]
    for candidate in (model, name, _DATED.sub("", name)):
        if candidate in table:
            return table[candidate]
    return None
