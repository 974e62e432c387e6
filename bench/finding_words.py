"""Does a word that only one section has win over common words? Compared with plain BM25 over the whole text."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from bench.row import Row
from weakincentives.prompt import Section, markdown_sections
from weakincentives.prompt.disclosure.ranking import SectionText, terms
from weakincentives.prompt.disclosure.ranking.lexical import Bm25, best

MADE = 5000
DOCS = Path(__file__).parents[1] / "docs"
# How many common words each question has beside the rare one.
COMMON = (3, 8)
_WORD = re.compile(r"[a-z]{4,}")

Rank = Callable[[str, int], list[tuple[int, float]]]
Corpus = tuple[Sequence[SectionText], Sequence[tuple[int, int, str]]]


def rare_word_rows(name: str, ranker: Any) -> Iterator[Row]:
    """The built-in ranker is held to a goal; one that runs a model takes too long for 5,000 sections."""
    for label, (sections, questions) in corpora(name).items():
        index = ranker.index_sections(sections)
        plain = plain_bm25(sections)
        for common in COMMON:
            asked = [(place, text) for count, place, text in questions if count == common]
            ours, theirs = found(index.rank, asked), found(plain, asked)
            note = (
                f"first in {ours[0]} of {len(asked)}, plain BM25 {theirs[0]}; "
                f"among ten {ours[1]}, plain BM25 {theirs[1]}"
            )
            share = 100 * min(mine / max(1, other) for mine, other in zip(ours, theirs, strict=True))
            goal = 90 if name == "built-in" else None
            title = f"{name}: a rare word and {common} common ones, {label}, of plain BM25"
            yield Row(title, share, "%", goal=goal, better="more", note=note)


def corpora(ranker: str) -> dict[str, Corpus]:
    """What a ranker of this name is measured on."""
    return {"the docs": docs()} if ranker == "embedding model" else {f"{MADE:,} sections": made(), "the docs": docs()}


def text_maker(chance: random.Random) -> Callable[[int], str]:
    """Text of made-up words, a few of them common, most of them rare."""
    words = ["".join(chance.choice("bdfgklmnprst") + chance.choice("aeiou") for _ in range(3)) for _ in range(20_000)]
    weights = [1 / (place + 5) for place in range(len(words))]
    return lambda length: " ".join(chance.choices(words, weights, k=length))


@cache
def made(size: int = MADE, questions: int = 150, seed: int = 1) -> Corpus:
    """Sections of made-up words, some with a word of their own in the body, and questions for these."""
    chance = random.Random(seed)
    text = text_maker(chance)
    sections = [
        SectionText(str(place), text(4), text(15), ". ".join(text(14).capitalize() for _ in range(8)))
        for place in range(size)
    ]
    asked: list[tuple[int, int, str]] = []
    for number, place in enumerate(chance.sample(range(size), min(questions, size))):
        word = "z" + "".join(chr(ord("a") + int(digit)) for digit in f"{number:04}")
        words = sections[place].body.split(" ")
        words.insert(chance.randrange(1, len(words)), word)
        sections[place] = replace(sections[place], body=" ".join(words))
        asked += [(common, place, f"{word} {text(common)}") for common in COMMON]
    return sections, asked


@cache
def docs(questions: int = 300, seed: int = 2) -> Corpus:
    """This project's documentation by heading; the rare word is in one body, each common one in a tenth of all."""
    chance = random.Random(seed)
    sections = [_text(section) for section in _all(markdown_sections(DOCS, headings=True))]
    words = [set(_WORD.findall(section.text.lower())) for section in sections]
    holding = Counter(chain.from_iterable(words))
    common = sorted(word for word, count in holding.items() if count >= len(sections) / 10)
    rare = [
        (place, word)
        for place, (section, found) in enumerate(zip(sections, words, strict=True))
        for word in sorted(found - set(_WORD.findall(section.headline.lower())))
        if holding[word] == 1
    ]
    asked = [
        (count, place, " ".join([word, *chance.sample(common, count)]))
        for place, word in chance.choices(rare, k=questions)
        for count in COMMON
    ]
    return sections, asked


def plain_bm25(sections: Sequence[SectionText]) -> Rank:
    """BM25 (k1 1.2, b 0.75) over the whole text, with the built-in ranker's words."""
    index = Bm25([terms(section.text) for section in sections], 1.2, 0.75)
    return lambda query, limit: best(index.scores(index.weights(Counter(terms(query)))), limit)


def found(rank: Rank, asked: Sequence[tuple[int, str]]) -> tuple[int, int]:
    """For how many questions the section is first, and among the first ten."""
    orders = [([place for place, _ in rank(text, 10)], wanted) for wanted, text in asked]
    return sum(order[:1] == [wanted] for order, wanted in orders), sum(wanted in order for order, wanted in orders)


def _text(section: Section[Any]) -> SectionText:
    summary, body = ("".join(text.literals) if text else "" for text in (section.summary_text(), section.body_text()))
    return SectionText(section.key, section.title, summary, body)


def _all(sections: Sequence[Section[Any]]) -> Iterator[Section[Any]]:
    for section in sections:
        yield section
        yield from _all(section.children)
