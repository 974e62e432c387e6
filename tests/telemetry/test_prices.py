from __future__ import annotations

import pytest

from weakincentives.limits import Prices
from weakincentives.runtime.spi import known_prices, prices_for


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("gpt-5.6", "gpt-5.6"),
        ("openai/gpt-5.4-mini", "gpt-5.4-mini"),
        ("gpt-5.4-2026-03-05", "gpt-5.4"),
        ("anthropic/claude-haiku-4-5-20251001", "claude-haiku-4-5"),
        ("claude-opus-5@20260724", "claude-opus-5"),
        ("claude-sonnet-5-latest", "claude-sonnet-5"),
    ],
)
def test_a_model_is_found_with_a_date_or_a_provider(name: str, known: str) -> None:
    assert prices_for(name) == known_prices()[known]


@pytest.mark.parametrize("name", ["gpt-5.6-nova", "gpt-5-turbo", "scripted", "", "qwen.gguf"])
def test_a_model_that_only_resembles_another_has_no_price(name: str) -> None:
    assert prices_for(name) is None


def test_own_prices_win() -> None:
    own = Prices(1.0, 2.0)
    assert prices_for("gpt-5.2", {"gpt-5.2": own}) == own
    assert prices_for("my-model", {"my-model": own}) == own
