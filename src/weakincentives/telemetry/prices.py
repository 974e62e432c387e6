"""What models cost per million tokens; pass your own where this is out of date.

The table is that of litellm 1.108. Not in it: surcharges for writing a cache (the usage of a reply does not tell such
tokens apart), for very long prompts and for faster service.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from weakincentives.limits import Prices

AS_OF = "2026-11"

# US dollars per million tokens: input, output, cached input.
PRICES: Mapping[str, Prices] = {
    "gpt-6.1-sol": Prices(2.0, 10.0, 0.10),
    "gpt-6-astra": Prices(10.0, 50.0, 1.0),
    "gpt-6-sol": Prices(2.0, 10.0, 0.20),
    "gpt-6-luna": Prices(0.10, 0.50, 0.01),
    "gpt-5.6": Prices(4.0, 20.0, 0.40),
    "gpt-5.6-sol": Prices(4.0, 20.0, 0.40),
    "gpt-5.6-terra": Prices(2.0, 12.0, 0.20),
    "gpt-5.6-luna": Prices(0.20, 1.20, 0.02),
    "gpt-5.5": Prices(5.0, 30.0, 0.50),
    "gpt-5.4": Prices(2.50, 15.0, 0.25),
    "gpt-5.4-mini": Prices(0.75, 4.50, 0.075),
    "gpt-5.4-nano": Prices(0.20, 1.25, 0.02),
    "gpt-5.2": Prices(1.75, 14.0, 0.175),
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
    "claude-fable-5-1": Prices(10.0, 50.0, 0.25),
    "claude-fable-5": Prices(10.0, 50.0, 1.0),
    "claude-mythos-5-1": Prices(10.0, 50.0, 0.25),
    "claude-mythos-5": Prices(10.0, 50.0, 1.0),
    "claude-opus-5-5": Prices(4.0, 20.0, 0.20),
    "claude-opus-5": Prices(5.0, 25.0, 0.50),
    "claude-opus-4-8": Prices(5.0, 25.0, 0.50),
    "claude-opus-4-7": Prices(5.0, 25.0, 0.50),
    "claude-opus-4-6": Prices(5.0, 25.0, 0.50),
    "claude-opus-4-5": Prices(5.0, 25.0, 0.50),
    "claude-sonnet-5-5": Prices(2.0, 10.0, 0.10),
    "claude-sonnet-5": Prices(2.0, 10.0, 0.20),
    "claude-sonnet-4-6": Prices(3.0, 15.0, 0.30),
    "claude-sonnet-4-5": Prices(3.0, 15.0, 0.30),
    "claude-haiku-5-5": Prices(0.10, 0.50, 0.01),
    "claude-haiku-4-5": Prices(1.0, 5.0, 0.10),
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
