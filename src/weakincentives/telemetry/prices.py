"""What models cost per million tokens, as their makers published it; pass your own where it is out of date.

Cache writes that a provider charges extra for are not in here: the usage of a reply does not tell them apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from weakincentives.limits import Prices

AS_OF = "2025-11"

# US dollars per million tokens: input, output, cached input.
PRICES: Mapping[str, Prices] = {
    "gpt-5.1": Prices(1.25, 10.0, 0.125),
    "gpt-5": Prices(1.25, 10.0, 0.125),
    "gpt-5-mini": Prices(0.25, 2.0, 0.025),
    "gpt-5-nano": Prices(0.05, 0.40, 0.005),
    "gpt-4.1": Prices(2.0, 8.0, 0.50),
    "gpt-4.1-mini": Prices(0.40, 1.60, 0.10),
    "gpt-4.1-nano": Prices(0.10, 0.40, 0.025),
    "gpt-4o": Prices(2.50, 10.0, 1.25),
    "gpt-4o-mini": Prices(0.15, 0.60, 0.075),
    "o3": Prices(2.0, 8.0, 0.50),
    "o4-mini": Prices(1.10, 4.40, 0.275),
    "claude-opus-4-5": Prices(5.0, 25.0, 0.50),
    "claude-opus-4-1": Prices(15.0, 75.0, 1.50),
    "claude-sonnet-4-5": Prices(3.0, 15.0, 0.30),
    "claude-sonnet-4": Prices(3.0, 15.0, 0.30),
    "claude-haiku-4-5": Prices(1.0, 5.0, 0.10),
    "claude-3-5-haiku": Prices(0.80, 4.0, 0.08),
}

_DATED = re.compile(r"[-@](?:\d{8}|\d{4}-\d{2}-\d{2}|latest)$")


def prices_for(model: str, own: Mapping[str, Prices] | None = None) -> Prices | None:
    """The prices of a model, by its name with or without a date or a provider in front; None where unknown."""
    table = {**PRICES, **(own or {})}
    name = model.rpartition("/")[2]
    for candidate in (model, name, _DATED.sub("", name)):
        if candidate in table:
            return table[candidate]
    return None
