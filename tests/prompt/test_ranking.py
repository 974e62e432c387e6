"""Rankers: which sections a text is about."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from weakincentives.prompt.disclosure.ranking import LexicalRanker, SectionText, StaticRanker, VectorRanker

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


def common_words(chance: random.Random, count: int) -> str:
    """Words that many sections have; the first of them are in most."""
    words = ["".join(letters) for letters in itertools.product("bdfgk", "aeiou", "lmnpr", "aeiou", "stvz")]
    return " ".join(chance.choices(words, [1 / (place + 5) for place in range(len(words))], k=count)).capitalize()


def rare_words(seed: int, common: int, size: int = 300) -> tuple[list[SectionText], list[tuple[int, str]]]:
    """Sections of common words, and questions: a word that only the body of one has, among common ones."""
    chance = random.Random(seed)
    sections: list[SectionText] = []
    questions: list[tuple[int, str]] = []
    for place in range(size):
        sentences = [common_words(chance, 12) for _ in range(6)]
        if place % 6 == 0:
            word = f"q{chr(97 + place % 26)}{chr(97 + place // 26)}x"
            sentences[chance.randrange(6)] += f" {word}"
            questions.append((place, f"{common_words(chance, common)} {word}"))
        sections.append(SectionText(str(place), common_words(chance, 3), common_words(chance, 8), ". ".join(sentences)))
    return sections, questions


def firsts(ranker: object, sections: Sequence[SectionText], questions: Sequence[tuple[int, str]]) -> int:
    index = ranker.index_sections(sections)  # type: ignore[attr-defined]
    return sum(index.rank(text, 1)[0][0] == place for place, text in questions)


@pytest.mark.parametrize(("common", "plain"), [(1, 49), (3, 29), (6, 10)])
def test_a_word_that_one_section_has_wins_over_common_words_in_titles(common: int, plain: int) -> None:
    """In at least as many of 50 questions as for `plain` BM25 over the whole text."""
    assert firsts(LexicalRanker(), *rare_words(1, common)) >= plain


def test_a_word_that_one_section_has_wins_over_the_similarity_of_others() -> None:
    pytest.importorskip("numpy", reason="needs the extra [finding]")

    def embed(texts: Sequence[str]) -> list[list[float]]:
        """Similar if the letters are, which says nothing about the rare word."""
        return [[1.0, *(text.count(letter) / (len(text) or 1) for letter in "abdefgiklmnoprstuvz")] for text in texts]

    assert firsts(VectorRanker(embed), *rare_words(1, 1)) >= 45


def test_a_common_word_in_a_title_still_counts_more_than_in_a_body() -> None:
    texts = [SectionText("a", "Other things", "", "Refunds are rare."), SectionText("b", "Refunds", "", "Things are.")]
    assert [place for place, _ in LexicalRanker().index_sections(texts).rank("refunds", 2)] == [1, 0]
