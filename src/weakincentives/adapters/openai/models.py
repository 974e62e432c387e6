"""OpenAI's models: what each accepts and costs, as documented in November 2026."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Literal

from weakincentives.content import Document, Image
from weakincentives.limits import Prices
from weakincentives.runtime import MediaSupport
from weakincentives.runtime.spi import MEGABYTE

EFFORTS = ("none", "low", "medium", "high", "xhigh", "max")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The capabilities and prices of a model; the defaults are those of the newest generation.

    `efforts` ascend: empty if the model does not reason, None if unknown. If `chooses_added`, `tool_choice` may name a
    tool that an `additional_tools` item declared. If `updates_output`, the type of the answer may change with a
    `configuration_update` item. An image costs so much per square of 32 pixels, up to a number of
    `squares`, or else a base and an amount per tile of 512 pixels.
    """

    prices: Prices | None = None
    route: Literal["additional_tools", "append"] = "additional_tools"
    efforts: tuple[str, ...] | None = EFFORTS
    tool_search: bool = True
    chooses_added: bool = True
    updates_output: bool = True
    squares: tuple[float, float] | None = (1.2, math.inf)
    tiles: tuple[int, int] = (85, 170)

    def image_tokens(self, image: Image) -> int:
        width, height = image.dimensions or (1024, 1024)
        if self.squares:
            return math.ceil(min(math.ceil(width / 32) * math.ceil(height / 32), self.squares[1]) * self.squares[0])
        scale = min(1.0, 2048 / max(width, height))
        scale = min(scale, 768 / min(width, height))
        tiles = math.ceil(width * scale / 512) * math.ceil(height * scale / 512)
        return self.tiles[0] + self.tiles[1] * tiles


_GPT_5_6 = partial(ModelFacts, squares=(1.2, 10_000), updates_output=False)
_GPT_5_4 = partial(_GPT_5_6, efforts=EFFORTS[:5], chooses_added=False)
_GPT_5_2 = partial(_GPT_5_4, tool_search=False, squares=None, tiles=(70, 140))
_GPT_5_1 = partial(_GPT_5_2, efforts=EFFORTS[:4])
_GPT_5 = partial(_GPT_5_2, efforts=("minimal", *EFFORTS[1:4]))
_O = partial(_GPT_5_2, efforts=EFFORTS[1:4], tiles=(75, 150))
_GPT_4 = partial(_GPT_5_2, efforts=(), tiles=(85, 170))

MODELS = {
    "gpt-6.1-sol": ModelFacts(Prices(2.0, 10.0, 0.10), efforts=EFFORTS[1:]),
    "gpt-6-astra": ModelFacts(Prices(10.0, 50.0, 1.0), efforts=EFFORTS[1:]),
    "gpt-6-sol": ModelFacts(Prices(2.0, 10.0, 0.20)),
    "gpt-6-luna": ModelFacts(Prices(0.10, 0.50, 0.01)),
    "gpt-5.6": _GPT_5_6(Prices(4.0, 20.0, 0.40)),
    "gpt-5.6-sol": _GPT_5_6(Prices(4.0, 20.0, 0.40)),
    "gpt-5.6-terra": _GPT_5_6(Prices(2.0, 12.0, 0.20)),
    "gpt-5.6-luna": _GPT_5_6(Prices(0.20, 1.20, 0.02)),
    "gpt-5.5": _GPT_5_4(Prices(5.0, 30.0, 0.50)),
    "gpt-5.4": _GPT_5_4(Prices(2.50, 15.0, 0.25)),
    "gpt-5.4-mini": _GPT_5_4(Prices(0.75, 4.50, 0.075)),
    "gpt-5.4-nano": _GPT_5_4(Prices(0.20, 1.25, 0.02), tool_search=False),
    "gpt-5.3": _GPT_5_2(),
    "gpt-5.2": _GPT_5_2(Prices(1.75, 14.0, 0.175)),
    "gpt-5.1": _GPT_5_1(Prices(1.25, 10.0, 0.125)),
    "gpt-5": _GPT_5(Prices(1.25, 10.0, 0.125)),
    "gpt-5-mini": _GPT_5(Prices(0.25, 2.0, 0.025), squares=(1.62, 1536)),
    "gpt-5-nano": _GPT_5(Prices(0.05, 0.40, 0.005), squares=(2.46, 1536)),
    "gpt-4.1": _GPT_4(Prices(2.0, 8.0, 0.50)),
    "gpt-4.1-mini": _GPT_4(Prices(0.40, 1.60, 0.10), squares=(1.62, 1536)),
    "gpt-4o": _GPT_4(Prices(2.50, 10.0, 1.25)),
    "gpt-4o-mini": _GPT_4(Prices(0.15, 0.60, 0.075)),
    "o3": _O(Prices(2.0, 8.0, 0.50)),
}
SHUT_DOWN = {
    **dict.fromkeys(("gpt-5", "gpt-5-mini", "gpt-5-nano", "o3"), "2026-12-11"),
    **dict.fromkeys(("gpt-4.1", "gpt-4.1-mini", "gpt-4o", "gpt-4o-mini"), "2027-01-14"),
    **dict.fromkeys(("gpt-5.1", "gpt-5.4-nano"), "2027-04-01"),
}
"""When the vendor shuts down a listed model, according to the types of its SDK; gone before that are not listed."""
_LISTED = re.compile(rf"({'|'.join(sorted(map(re.escape, MODELS), key=len, reverse=True))})(?![\d.])")


@cache
def facts(model: str) -> ModelFacts:
    """The facts of a model by its name, with or without a suffix; an unlisted gpt model counts as the newest."""
    name = model.removeprefix("ft:")
    newest = ModelFacts() if re.match(r"gpt-\d", name) else _GPT_4(route="append", efforts=None)
    found = _LISTED.match(name)
    listed = MODELS[found[1]] if found else newest
    # The models of the chat application do not reason.
    return replace(listed, efforts=()) if listed.efforts and "chat" in name else listed


def media_support(model: str) -> MediaSupport:
    """Images and any documents; the limits apply to one request."""
    return MediaSupport(
        images=tuple(dict.fromkeys(Image.types.values())),
        documents=tuple(Document.types.values()),
        max_image_bytes=50 * MEGABYTE,
        max_images=1500,
        max_total_bytes=500 * MEGABYTE,
        image_tokens=facts(model).image_tokens,
    )
