"""Rankers, which find the sections that a text is about: by shared words, or by meaning as well."""

from __future__ import annotations

import math
import re
import threading
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from importlib.util import find_spec
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from weakincentives._imports import import_extra, require_extra
from weakincentives.prompt.outline import ABSENT, Node, Outline
from weakincentives.prompt.section import TemplateText
from weakincentives.prompt.view import View
from weakincentives.prompt.visibility import SectionVisibility

__all__ = [
    "CLEAR",
    "Found",
    "Index",
    "LexicalIndex",
    "LexicalRanker",
    "Ranker",
    "SectionFinder",
    "SectionText",
    "StaticRanker",
    "VectorRanker",
    "bm25",
    "section_texts",
    "sentences",
    "terms",
]

Embed = Callable[[Sequence[str]], Sequence[Sequence[float]]]

MAX_SENTENCE = 240
BATCH = 64
# A score is clear if it is this many times the next.
CLEAR = 1.5
# Measured in bench/finding.py; results change little between 1.2 and 3, and between 0.7 and 0.9.
SATURATION = 2.0
LENGTH = 0.75
# A word counts by its first letters, so that "refund", "refunds" and "refunding" are one in most alphabets.
PREFIX = 5

_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[^\sa-z])|(?<=[。！？])")
_RULE = re.compile(r"\|[\s:|-]+\|?")
_BULLET = re.compile(r"(?:[-*+]|\d+[.)])\s+")
_NOTE = re.compile(r"\[(?:Tools now available|This section is summarized|Opening it costs)[^\]]*\]|-{3,}")
_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
# Thai to Khmer, kana, Han and Hangul: words are not divided by spaces, or not where meaning is.
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


@dataclass(frozen=True, slots=True)
class Found:
    """A section with its score; `closed` if the model does not see its text."""

    node: Node
    score: float
    closed: bool


class SectionFinder:
    """Ranks the sections of prompts; the index of a template is made on first use and lives as long as the template."""

    def __init__(self, ranker: Ranker | None = None) -> None:
        self._ranker: Ranker = ranker or LexicalRanker()
        self._indexes: WeakKeyDictionary[Outline, Index] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def has_index(self, outline: Outline) -> bool:
        return outline in self._indexes

    def ranked(self, view: View, text: str, outline: Outline | None = None) -> Iterator[Found]:
        """Every enabled section that has to do with the text, the best first.

        `outline` is that of the template, where it is enough: what a run adds to it takes an index of its own.
        """
        yield from self._found(view, text, len(view.outline.nodes), outline or view.outline)

    def closed(self, view: View, text: str, limit: int) -> list[Found]:
        """The best closed sections."""
        shown = len(view.layout.marks) - len(view.layout.listed)
        absent = len(view.outline.nodes) if ABSENT in view.state.packed else 0
        closed = (found for found in self._found(view, text, limit + shown + absent, view.outline) if found.closed)
        return [found for found, _ in zip(closed, range(limit), strict=False)]

    def _found(self, view: View, text: str, limit: int, outline: Outline) -> Iterator[Found]:
        for place, score in self._index(outline).rank(text, limit):
            node = view.outline.by_path[outline.nodes[place].path]
            visibility = view.visibility_of(node)
            if visibility is not SectionVisibility.ABSENT:
                yield Found(node, score, visibility is not SectionVisibility.FULL)

    def _index(self, outline: Outline) -> Index:
        with self._lock:
            index = self._indexes.get(outline)
            if index is None:
                sections = [section_text(node) for node in outline.nodes]
                by_field: Any = getattr(self._ranker, "index_sections", None)
                index = by_field(sections) if by_field else self._ranker.index([section.text for section in sections])
                self._indexes[outline] = index
            return index


def section_text(node: Node) -> SectionText:
    """What of a section can be searched before any params are bound."""
    return SectionText(
        key=node.key,
        title=node.section.title,
        summary=_literal(node.summary),
        body=_literal(node.text) if node.text is not None else _made_by_code(node),
        tools=tuple(f"{tool.name}: {tool.description}" for tool in node.all_tools),
    )


def section_texts(outline: Outline) -> dict[str, SectionText]:
    """What of each section can be searched, by key."""
    return {node.key: section_text(node) for node in outline.nodes}


def matching_sentence(node: Node, text: str) -> str:
    """The sentence or tool that shares most with a text; the first one where none does."""
    pieces = section_text(node).pieces
    scores = bm25(text, pieces)
    best = max(range(len(pieces)), key=scores.__getitem__, default=0)
    sentence = " ".join(pieces[best].split()) if pieces else node.section.title
    return sentence if len(sentence) <= MAX_SENTENCE else sentence[: MAX_SENTENCE - 3] + "..."


def _literal(text: TemplateText | None) -> str:
    return "" if text is None else " ".join(literal for literal in text.literals if literal)


def _made_by_code(node: Node) -> str:
    """The body of a section without params; one that has some, or cannot be rendered now, is found by its summary."""
    if node.section.params_type is not None or node.is_late:
        return ""
    try:
        return str(node.section.render_body(None))
    except Exception:
        return ""


@dataclass(frozen=True, slots=True)
class SectionText:
    """What of a section is searched; `tools` has a line for each tool: its name and its description."""

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
        """All of it as one text."""
        return "\n".join(part for part in (self.headline, self.body, *self.tools) if part)

    @property
    def pieces(self) -> list[str]:
        """What a match can be shown by: the summary, a sentence, or a tool."""
        return [piece for piece in (self.summary or self.title, *sentences(self.body), *self.tools) if piece]


class Index(Protocol):
    """Sections that can be searched."""

    def rank(self, query: str, limit: int) -> list[tuple[int, float]]:
        """The best `limit` sections, best first, by their place in what was indexed, with a positive score each."""
        ...


class Ranker(Protocol):
    """Makes an index of the sections of a template, once.

    A ranker that also has `index_sections(sections)` gets a `SectionText` for each in place of one text.
    """

    def index(self, texts: Sequence[str]) -> Index: ...


class LexicalRanker:
    """Ranks by three lists of BM25 scores: whole sections, titles with summaries, and the best sentence or tool.

    The three count the same, each in proportion to its best section.
    """

    def index(self, texts: Sequence[str]) -> LexicalIndex:
        return self.index_sections([SectionText(body=text) for text in texts])

    def index_sections(self, sections: Sequence[SectionText]) -> LexicalIndex:
        return LexicalIndex(sections)


class LexicalIndex:
    """An index of shared words."""

    def __init__(self, sections: Sequence[SectionText]) -> None:
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
        self._headlines, self._whole, self._pieces = Bm25(headlines), Bm25(whole), Bm25(pieces)
        self._bounds = list(pairwise([*starts, len(pieces)]))

    def rank(self, query: str, limit: int) -> list[tuple[int, float]]:
        return best(self.scores(query), limit)

    def scores(self, query: str) -> list[float]:
        """A score between 0 and 1 for every section."""
        question = Counter(terms(query))
        weights = self._whole.weights(question)
        by_piece = self._pieces.scores(weights)
        pieces = [max(by_piece[start:end]) for start, end in self._bounds]
        lists = (self._whole.scores(weights), self._headlines.scores(self._headlines.weights(question)), pieces)
        return [sum(scores) / 3 for scores in zip(*map(in_proportion, lists), strict=True)]


def in_proportion(scores: Sequence[float]) -> list[float]:
    """The scores as shares of the best."""
    most = max(scores, default=0.0)
    return [score / most for score in scores] if most > 0 else list(scores)


def best(scores: Sequence[float], limit: int) -> list[tuple[int, float]]:
    """The places of the highest scores above 0, the first of equals first."""
    found = nlargest(limit, ((score, -place) for place, score in enumerate(scores) if score > 0))
    return [(-place, score) for score, place in found]


class VectorRanker:
    """Ranks by shared words and by an embedding model of yours.

        VectorRanker(lambda texts: client.embed(texts))

    `embed` takes a list of texts and returns a vector for each; `embed_query` is for models that embed questions
    otherwise. Half of a score is shared words, the rest the similarity of titles with summaries and of the best
    sentence or tool; of each, only what is above the average counts.
    """

    def __init__(self, embed: Embed, *, embed_query: Embed | None = None) -> None:
        self._numpy = import_extra("numpy", "finding", type(self).__name__)
        self.embed = embed
        self.embed_query = embed_query or embed

    def index(self, texts: Sequence[str]) -> VectorIndex:
        return self.index_sections([SectionText(body=text) for text in texts])

    def index_sections(self, sections: Sequence[SectionText]) -> VectorIndex:
        return VectorIndex(sections, self.embed, self.embed_query, self._numpy)


class StaticRanker(VectorRanker):
    """Ranks by shared words and by a table that has a vector for each word piece; no model runs (extra `finding`)."""

    def __init__(self) -> None:
        super().__init__(self._means)
        tokenizers = import_extra("tokenizers", "finding", "StaticRanker")
        tensors = import_extra("safetensors.numpy", "finding", "StaticRanker")
        require_extra("wordllama", "finding", "StaticRanker")
        # The package itself takes half a second to import and looks for its files on the network.
        folder = Path(str(find_spec("wordllama").origin)).parent  # type: ignore[union-attr]
        self._tokenizer = tokenizers.Tokenizer.from_file(
            str(folder / "tokenizers" / "l2_supercat_tokenizer_config.json")
        )
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        (self._table,) = tensors.load_file(folder / "weights" / "l2_supercat_256.safetensors").values()

    def _means(self, texts: Sequence[str]) -> Any:
        numpy = self._numpy
        found = numpy.zeros((len(texts), self._table.shape[1]), numpy.float32)
        for place, encoded in enumerate(self._tokenizer.encode_batch(list(texts), add_special_tokens=False)):
            if encoded.ids:
                found[place] = self._table[encoded.ids].mean(axis=0, dtype=numpy.float32)
        return found


class VectorIndex:
    """An index of shared words and vectors."""

    def __init__(self, sections: Sequence[SectionText], embed: Embed, embed_query: Embed, numpy: Any) -> None:
        self._numpy = numpy
        self._embed = embed
        self._embed_query = embed_query
        self._words = LexicalIndex(sections)
        pieces = [section.pieces or [section.key or "-"] for section in sections]
        self._starts = [0, *accumulate(map(len, pieces))][:-1]
        self._headlines = self._vectors(
            [section.headline or found[0] for section, found in zip(sections, pieces, strict=True)]
        )
        self._pieces = self._vectors([piece for found in pieces for piece in found])

    def rank(self, query: str, limit: int) -> list[tuple[int, float]]:
        words = self._words.scores(query)
        if not words or not query.strip():
            return []
        numpy = self._numpy
        asked = numpy.asarray(self._embed_query([query])[0], numpy.float32)
        pieces = numpy.maximum.reduceat(self._pieces @ asked, self._starts)
        lists = map(_above_average, (words, (self._headlines @ asked).tolist(), pieces.tolist()))
        return best(
            [shared / 2 + (headline + piece) / 4 for shared, headline, piece in zip(*lists, strict=True)], limit
        )

    def _vectors(self, texts: Sequence[str]) -> Any:
        numpy = self._numpy
        batches = [self._embed(texts[at : at + BATCH]) for at in range(0, len(texts), BATCH)]
        vectors = numpy.concatenate([numpy.asarray(batch, numpy.float32) for batch in batches or [[[0.0]]]])
        return vectors / numpy.maximum(numpy.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


def _above_average(scores: Sequence[float]) -> list[float]:
    """What each score is above the mean, as a share of the best; models differ in how similar unrelated texts are."""
    mean = sum(scores) / len(scores) if len(scores) > 1 else 0.0
    return in_proportion([max(0.0, score - mean) for score in scores])


def sentences(markdown: str) -> list[str]:
    """What a reader would point at; headings and the library's own notes are left out."""
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
    """Wrapped lines joined again; list items by themselves."""
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


def terms(text: str) -> list[str]:
    """The words that carry meaning, each by its beginning, and pairs of characters where words have no spaces.

    `getCurrentPrice` and `get_current_price` are three words. The words left out are English: those of other languages
    count little by themselves, since they are in most texts.
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
    """A score for each text, 0 where nothing is shared."""
    index = Bm25([terms(text) for text in texts])
    return index.scores(index.weights(Counter(terms(question))))


class Bm25:
    """Documents, each a list of terms, ready to be compared with many questions."""

    def __init__(self, documents: Sequence[Sequence[str]]) -> None:
        self._size = len(documents)
        lengths = [len(document) for document in documents]
        average = sum(lengths) / self._size if any(lengths) else 1.0
        self._postings: dict[str, tuple[array[int], array[float]]] = {}
        for place, document in enumerate(documents):
            for term, count in Counter(document).items():
                places, weights = self._postings.get(term) or self._postings.setdefault(term, (array("I"), array("f")))
                places.append(place)
                weights.append(saturated(count, lengths[place] / average))

    def rarity(self, term: str) -> float:
        holding = len(self._postings[term][0]) if term in self._postings else 0
        return math.log(1 + (self._size - holding + 0.5) / (holding + 0.5))

    def weights(self, question: Mapping[str, int]) -> dict[str, float]:
        """How much each term of a question counts."""
        return {term: count * self.rarity(term) for term, count in question.items()}

    def scores(self, weights: Mapping[str, float]) -> list[float]:
        scores = [0.0] * self._size
        for term, rarity in weights.items():
            if term in self._postings:
                for place, weight in zip(*self._postings[term], strict=True):
                    scores[place] += rarity * weight
        return scores


def saturated(count: int, length: float) -> float:
    """How much a term counts that occurs this often in a text of this length, where 1 is the average."""
    return count * (SATURATION + 1) / (count + SATURATION * (1 - LENGTH + LENGTH * length))
