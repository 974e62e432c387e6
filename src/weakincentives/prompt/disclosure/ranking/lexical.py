"""The built-in ranker: shared words, in any script and without a package."""

from __future__ import annotations

import math
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import chain, pairwise
from typing import Protocol

# Measured in bench/finding.py; results change little between 1.2 and 3, and between 0.7 and 0.9.
SATURATION = 2.0
LENGTH = 0.75
# Words are compared by their first letters, so that "refund", "refunds" and "refunding" are the same, in most
# alphabets.
PREFIX = 5

_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[^\sa-z])|(?<=[。！？])")
_RULE = re.compile(r"\|[\s:|-]+\|?")
_BULLET = re.compile(r"(?:[-*+]|\d+[.)])\s+")
_NOTE = re.compile(
    r"\[(?:Tools now available|This section is summarized|A section that ends with its key|Opening it costs)[^\]]*\]"
    r"|-{3,}"
    r"|`[^`]+` is the subsection `[^`]+`\.|Files of this skill, in `[^`]+` of the workspace: .*"
)


@dataclass(frozen=True, slots=True)
class SectionText:
    """The searchable parts of a section; `tools` has a line for each tool: its name and its description."""

    key: str = ""
    title: str = ""
    summary: str = ""
    body: str = ""
    tools: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        return f"{self.title}. {self.summary}" if self.summary and self.summary != self.title else self.title

    @property
    def text(self) -> str:
        """All parts as one text."""
        return "\n".join(part for part in (self.headline, self.body, *self.tools) if part)

    @property
    def pieces(self) -> list[str]:
        """The texts that can be quoted as a match: the summary, a sentence, or a tool."""
        return [piece for piece in (self.summary or self.title, *sentences(self.body), *self.tools) if piece]


Ranked = list[tuple[int, float]]


class Index(Protocol):
    """Sections that can be searched."""

    def rank(self, query: str, limit: int) -> Ranked | Awaitable[Ranked]:
        """The best `limit` sections, best first: the position of each in the index, with its positive score."""
        ...


class Ranker(Protocol):
    """Builds an index of a template's sections, once.

    A ranker that also has `index_sections(sections)` receives a `SectionText` for each instead of a
    single text. One whose `finds_misses` is true also finds sections that a finished run may have
    needed.
    """

    def index(self, texts: Sequence[str]) -> Index: ...


# The weights of the best sentence or tool and of title and summary, beside 1 for the whole section, and how BM25
# compares these short texts. Chosen by cross-validation in bench/fusion.py, among those with which rare words win.
PIECE, HEADLINE = 4.0, 1.0
SHORT_SATURATION, SHORT_LENGTH = 5.0, 0.5


class LexicalRanker:
    """Ranks by sums of BM25 scores: of the whole section, of its best sentence or tool, and of title and summary.

    A word weighs the same in all three, by how many sections have it, and none is scaled to its best section. So a word
    that only one section has outweighs common words in the titles of others.
    """

    def index(self, texts: Sequence[str]) -> LexicalIndex:
        return self.index_sections([SectionText(body=text) for text in texts])

    def index_sections(self, sections: Sequence[SectionText]) -> LexicalIndex:
        return LexicalIndex(sections)


class LexicalIndex:
    """An index of shared words."""

    def __init__(
        self, sections: Sequence[SectionText], saturation: float = SHORT_SATURATION, length: float = SHORT_LENGTH
    ) -> None:
        known: dict[str, str] = {}

        def terms_of(text: str) -> list[str]:
            return [known.setdefault(term, term) for term in terms(text)]

        headlines, whole = [], []
        pieces: list[list[str]] = []
        starts: list[int] = []
        for section in sections:
            title, headline = terms_of(section.title), terms_of(section.headline)
            others = [terms_of(piece) for piece in (*sentences(section.body), *section.tools)]
            headlines.append(headline)
            whole.append([*headline, *chain.from_iterable(others)])
            starts.append(len(pieces))
            pieces += [headline, *([*title, *other] for other in others)]
        self._whole = Bm25(whole)
        self._pieces = Bm25(pieces, saturation, length)
        self._headlines = Bm25(headlines, saturation, length)
        self._bounds = list(pairwise([*starts, len(pieces)]))

    def rank(self, query: str, limit: int) -> list[tuple[int, float]]:
        return best(self.scores(query), limit)

    def scores(self, query: str) -> list[float]:
        """A score for every section, as a share of the best."""
        parts = zip(*self.parts(query), strict=True)
        return in_proportion([whole + PIECE * piece + HEADLINE * headline for whole, piece, headline in parts])

    def alone(self, query: str) -> set[int]:
        """The sections that have a word of the query which no other has."""
        return self._whole.alone(terms(query))

    def parts(self, query: str) -> tuple[list[float], list[float], list[float]]:
        """For every section, the scores of the whole, of its best sentence or tool, and of title and summary."""
        weights = self._whole.weights(Counter(terms(query)))
        by_piece = self._pieces.scores(weights)
        pieces = [max(by_piece[start:end]) for start, end in self._bounds]
        return self._whole.scores(weights), pieces, self._headlines.scores(weights)


def in_proportion(scores: Sequence[float]) -> list[float]:
    """The scores as shares of the best."""
    most = max(scores, default=0.0)
    return [score / most for score in scores] if most > 0 else list(scores)


def best(scores: Sequence[float], limit: int) -> list[tuple[int, float]]:
    """The positions of the highest scores above 0; ties keep their order."""
    found = nlargest(limit, ((score, -place) for place, score in enumerate(scores) if score > 0))
    return [(-place, score) for score, place in found]


def sentences(markdown: str) -> list[str]:
    """The sentences a reader would point at; headings and the library's own notes are left out."""
    return list(dict.fromkeys(_units(markdown)))


def _units(markdown: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n", markdown):
        lines = [line.strip() for line in block.strip().split("\n")]
        if lines[0].startswith("|") and len(lines) > 2 and _RULE.fullmatch(lines[1]):
            header = _cells(lines[0])
            for line in lines[2:]:
                yield "; ".join(
                    f"{name}: {cell}" if name else cell for name, cell in zip(header, _cells(line), strict=False)
                )
            continue
        for text in _paragraphs(lines):
            yield from (unit.strip() for unit in _END.split(text) if unit.strip())


def _paragraphs(lines: list[str]) -> Iterator[str]:
    """Wrapped lines rejoined; each list item on its own."""
    text = ""
    for line in lines:
        bullet = _BULLET.match(line)
        if line.startswith("#") or _NOTE.fullmatch(line) or bullet:
            if text:
                yield text
            text = line[bullet.end() :] if bullet else ""
        else:
            text = f"{text} {line}".strip()
    if text:
        yield text


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
# Thai to Khmer, kana, Han and Hangul: spaces do not separate words, or not units of meaning.
_UNSPACED = "\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_MARKS = "\\s\\x00-/:-@\\[-`{-\u00bf\u2000-\u206f\u3000-\u303f\uff00-\uff0f\uff1a-\uff20"
_WORD = re.compile(f"([{_UNSPACED}]+)|[^{_MARKS}{_UNSPACED}]+")
_DIGIT = re.compile(r"\d")
_COMMON = frozenset(
    re.findall(
        r"\w+",
        """
    a about above after again against all also am an and any are as at be because been before being below between both
    but by can could did do does doing down during each either else ever every few for from further get gets got had
    has have having he her here hers herself him himself his how however i if in into is it its itself just let like
    may me might more most much must my myself need needs no nor not now of off on once one only or other our ours
    ourselves out over own per please same shall she should since so some such than that the their theirs them
    themselves then there these they this those through thus to too under until up upon us use used uses using very
    via want wants was we well were what when where whether which while who whom whose why will with within without
    would yes yet you your yours yourself yourselves d don didn doesn isn ll m re s t ve won
    able allow allows ask find give given help helps know look looking make makes making provide provided provides
    providing show shows sure tell thank thanks try trying way ways
    """,
    )
)


def terms(text: str) -> list[str]:
    """The words that carry meaning, each by its beginning, and pairs of characters where words have no spaces.

    `getCurrentPrice` and `get_current_price` are three words. The stop words are English; those of other languages have
    little weight anyway, since they are in most texts.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    found: list[str] = []
    for match in _WORD.finditer(_CAPITAL.sub(" ", text).lower()):
        word = match[0]
        if match[1]:
            found += [word[at : at + 2] for at in range(max(1, len(word) - 1))]
        elif word not in _COMMON:
            found.append(word[:PREFIX] if word.isalpha() or not _DIGIT.search(word) else word)
    return found


def bm25(question: str, texts: Sequence[str]) -> list[float]:
    """A score for each text, 0 if nothing is shared."""
    index = Bm25([terms(text) for text in texts])
    return index.scores(index.weights(Counter(terms(question))))


class Bm25:
    """Documents, each a list of terms, ready to be compared with many questions."""

    def __init__(
        self, documents: Sequence[Sequence[str]], saturation: float = SATURATION, length: float = LENGTH
    ) -> None:
        self._size = len(documents)
        lengths = [len(document) for document in documents]
        average = sum(lengths) / self._size if any(lengths) else 1.0
        self._postings: dict[str, tuple[array[int], array[float]]] = {}
        for place, document in enumerate(documents):
            # A count of 1 in a text of average length weighs 1.
            half = saturation * (1 - length + length * lengths[place] / average)
            for term, count in Counter(document).items():
                places, weights = self._postings.get(term) or self._postings.setdefault(term, (array("I"), array("f")))
                places.append(place)
                weights.append(count * (saturation + 1) / (count + half))

    def rarity(self, term: str) -> float:
        holding = len(self._postings[term][0]) if term in self._postings else 0
        return math.log(1 + (self._size - holding + 0.5) / (holding + 0.5))

    def weights(self, question: Mapping[str, int]) -> dict[str, float]:
        """The weight of each term of a question."""
        return {term: count * self.rarity(term) for term, count in question.items()}

    def alone(self, question: Iterable[str]) -> set[int]:
        """The documents that have a term of the question which no other has."""
        found = (self._postings.get(term) for term in question)
        return {postings[0][0] for postings in found if postings is not None and len(postings[0]) == 1}

    def scores(self, weights: Mapping[str, float]) -> list[float]:
        scores = [0.0] * self._size
        for term, rarity in weights.items():
            if term in self._postings:
                for place, weight in zip(*self._postings[term], strict=True):
                    scores[place] += rarity * weight
        return scores
