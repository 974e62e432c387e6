"""Rankers: which sections a text is about."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from weakincentives.prompt.ranking import LexicalRanker, SectionText, StaticRanker, VectorRanker

SECTIONS = [
    SectionText("weather", "Weather", "Forecasts for a city", tools=("getCurrentTemperature: How warm it is now",)),
    SectionText("refunds", "Refunds", "Money back", "Damaged goods are refunded at once. Others take five days."),
    SectionText("hours", "Opening hours", "", "| Day | Hours |\n|---|---|\n| Sunday | closed |\n| Monday | 9 to 5 |"),
]


def first(ranker: object, *questions: str) -> list[str]:
    index = ranker.index_sections(SECTIONS)  # type: ignore[attr-defined]
    return [SECTIONS[index.rank(question, 1)[0][0]].key for question in questions]


def test_words_are_found_in_titles_summaries_bodies_tables_and_tools() -> None:
    questions = ("a forecast", "the current temperature", "damaged on arrival", "is it open on Sunday")
    assert first(LexicalRanker(), *questions) == ["weather", "weather", "refunds", "hours"]


def test_forms_of_a_word_are_one() -> None:
    assert first(LexicalRanker(), "refunding", "REFUNDED", "forecasting") == ["refunds", "refunds", "weather"]


@pytest.mark.parametrize(
    ("question", "found"),
    [("возврат денег", 0), ("πότε ανοίγει", 1), ("환불 방법", 2), ("คืนเงิน", 3), ("استرداد", 4)],
)
def test_any_script_is_searched(question: str, found: int) -> None:
    texts = [
        "Возврат денег за товар",
        "Το κατάστημα ανοίγει στις εννέα",
        "환불은 닷새 걸립니다",
        "นโยบายการคืนเงิน",
        "سياسة استرداد الأموال",
    ]
    assert LexicalRanker().index(texts).rank(question, 1)[0][0] == found


def test_scores_fall_and_sections_that_share_nothing_are_left_out() -> None:
    ranked = LexicalRanker().index_sections(SECTIONS).rank("refunds on Sunday", 10)
    assert [place for place, _ in ranked] == [1, 2]
    assert 1 >= ranked[0][1] > ranked[1][1] > 0


def test_nothing_indexed_and_nothing_asked_find_nothing() -> None:
    assert LexicalRanker().index([]).rank("refunds", 3) == []
    assert LexicalRanker().index(["", "text"]).rank("", 3) == []


def test_an_embedding_model_of_ones_own_joins_the_shared_words() -> None:
    pytest.importorskip("numpy", reason="needs the extra [finding]")
    meanings = {"cash": (1.0, 0.0), "refund": (1.0, 0.0), "money": (1.0, 0.0)}

    def embed(texts: Sequence[str]) -> list[tuple[float, float]]:
        return [next((found for word, found in meanings.items() if word in text.lower()), (0.0, 1.0)) for text in texts]

    assert first(VectorRanker(embed), "my cash, please", "the forecast") == ["refunds", "weather"]
    assert VectorRanker(embed).index([]).rank("cash", 3) == []


def test_the_static_table_knows_words_that_mean_the_same() -> None:
    pytest.importorskip("wordllama", reason="needs the extra [finding]")
    assert first(StaticRanker(), "Will it rain?", "reimbursement for a broken item") == ["weather", "refunds"]
