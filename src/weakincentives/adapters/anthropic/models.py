"""Anthropic's models: what each accepts and costs, as documented in November 2026."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal

from weakincentives.content import Image
from weakincentives.limits import Prices
from weakincentives.runtime import MediaSupport
from weakincentives.runtime.spi import MEGABYTE, TEXT_TYPES

Thinking = Literal["adaptive", "effort", "budget"]
EFFORTS = ("low", "medium", "high", "max", "xhigh")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The capabilities and prices of a model; the defaults are those of the newest generation.

    With `system_messages`, the model accepts them mid-conversation, with text or tool changes. With `tool_search`, it
    accepts deferred tools, which a search or the result of any tool may reveal. With `binds_thinking`,
    it accepts its earlier thinking only after the exact text it followed. With `closes_results`, it takes a system
    message after tool results for a part of them, unless a text closes these. `thinking` is how it takes an effort, and
    `none` the type that stops its thinking: empty if it only thinks on request, None if it always thinks. Images are
    scaled down to `max_side` pixels. With `compaction`, it summarizes conversations on request. `window` and
    `max_tokens` are the most that it reads and writes, if that is known.
    """

    prices: Prices | None = None
    system_messages: bool = True
    binds_thinking: bool = False
    closes_results: bool = False
    tool_search: bool = True
    efforts: tuple[str, ...] = EFFORTS
    thinking: Thinking = "adaptive"
    thinks_by_default: bool = True
    none: str | None = "disabled"
    max_side: int = 2000
    compaction: bool = True
    window: int | None = None
    max_tokens: int | None = None

    @property
    def route(self) -> Literal["tool_addition", "tool_reference", "append"]:
        """How tools are best added to a conversation."""
        return "tool_addition" if self.system_messages else "tool_reference" if self.tool_search else "append"

    def image_tokens(self, image: Image) -> int:
        """The tokens of an image: one for each 28-pixel square, after scaling down to the size the model sees."""
        width, height = image.dimensions or (1024, 1024)
        scale = min(1.0, self.max_side / max(width, height))
        tokens = math.ceil(width * scale / 28) * math.ceil(height * scale / 28)
        return tokens if self.max_side == 2000 else min(tokens, 1568)

    def described(self, info: Mapping[str, Any]) -> ModelFacts:
        """The facts with what the vendor's models endpoint says, which is nothing about tools."""
        can = info["capabilities"]
        levels, kinds = can["effort"], can["thinking"]["types"]
        thinking: Thinking = "adaptive" if _has(kinds, "adaptive") else "effort" if levels["supported"] else "budget"
        known = tuple(level for level in EFFORTS if _has(levels, level))
        off = next((kind for kind in ("disabled", "between_tools") if _has(kinds, kind)), None)
        return replace(
            self,
            thinking=thinking,
            efforts=EFFORTS[:3] if thinking == "budget" else known,
            none=off,
            window=_size(info["max_input_tokens"]),
            max_tokens=_size(info["max_tokens"]),
        )


def _has(capabilities: Mapping[str, Any], name: str) -> bool:
    return bool((capabilities.get(name) or {}).get("supported"))


def _size(tokens: Any) -> int | None:
    return tokens if type(tokens) is int and tokens > 0 else None


_BINDING = partial(ModelFacts, binds_thinking=True)
_4_8 = partial(ModelFacts, thinks_by_default=False)
_4_6 = partial(_4_8, system_messages=False, efforts=EFFORTS[:4], max_side=1568)
_4_5 = partial(_4_6, efforts=EFFORTS[:3], thinking="budget", none="", compaction=False)

MODELS = {
    "claude-fable-5-2": _BINDING(none=None),
    "claude-fable-5-1": _BINDING(Prices(10.0, 50.0, 0.25), none=None),
    "claude-fable-5": ModelFacts(Prices(10.0, 50.0, 1.0), none=None),
    "claude-mythos-5-1": ModelFacts(Prices(10.0, 50.0, 0.25), none=None),
    "claude-mythos-5": ModelFacts(Prices(10.0, 50.0, 1.0), none=None),
    "claude-opus-5-5": _BINDING(Prices(4.0, 20.0, 0.20), none=None),
    "claude-opus-5": ModelFacts(Prices(5.0, 25.0, 0.50)),
    "claude-opus-4-8": _4_8(Prices(5.0, 25.0, 0.50)),
    "claude-opus-4-7": _4_8(Prices(5.0, 25.0, 0.50), system_messages=False),
    "claude-opus-4-6": _4_6(Prices(5.0, 25.0, 0.50)),
    "claude-opus-4-5": _4_5(Prices(5.0, 25.0, 0.50), thinking="effort"),
    "claude-opus-4": _4_5(tool_search=False),
    "claude-sonnet-5-5": _BINDING(Prices(2.0, 10.0, 0.10), none="between_tools"),
    "claude-sonnet-5": ModelFacts(Prices(2.0, 10.0, 0.20), system_messages=False),
    "claude-sonnet-4-6": _4_6(Prices(3.0, 15.0, 0.30)),
    "claude-sonnet-4-5": _4_5(Prices(3.0, 15.0, 0.30)),
    "claude-haiku-5-5": _BINDING(Prices(0.10, 0.50, 0.01), closes_results=True),
    "claude-haiku-4-5": _4_5(Prices(1.0, 5.0, 0.10)),
}
SHUT_DOWN = {"claude-sonnet-4-5": "2026-11-30"}
"""When the vendor shuts down a listed model, according to its SDK; those that are gone before that are not listed."""
_LISTED = re.compile(rf"({'|'.join(sorted(MODELS, key=len, reverse=True))})(?!\d)")
_NEWER = re.compile(r"claude-[a-z]+-[5-9]")


def is_unknown(model: str) -> bool:
    """True if a name is one of Anthropic's own, but not listed."""
    return model.startswith("claude-") and _LISTED.search(model) is None


@cache
def facts(model: str) -> ModelFacts:
    """The facts of a model by its name, with or without a suffix; an unlisted one counts as the newest.

    A name that is not Anthropic's own, such as a gateway's, may stand for a service without the newest routes.
    """
    found = _LISTED.search(model)
    listed = MODELS[found[1]] if found else ModelFacts()
    if found and found.start() == 0:
        return listed
    return replace(
        listed,
        system_messages=False,
        binds_thinking=False,
        tool_search=bool(_NEWER.match(model)),
        compaction=False,
    )


def media_support(model: str) -> MediaSupport:
    """Images, PDF documents and plain text; base64 data is limited to 10 MB per image and 32 MB per request."""
    known = facts(model)
    return MediaSupport(
        images=tuple(dict.fromkeys(Image.types.values())),
        documents=("application/pdf", *TEXT_TYPES),
        max_image_bytes=10 * MEGABYTE * 3 // 4,
        max_document_bytes=32 * MEGABYTE * 3 // 4,
        max_total_bytes=32 * MEGABYTE * 3 // 4,
        max_images=600 if known.system_messages else 100,
        max_side=8000,
        image_tokens=known.image_tokens,
    )
