"""BERT's uncased tokenizer: words in lower case and without accents, cut into the longest pieces of a vocabulary."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

START, END, UNKNOWN = "[CLS]", "[SEP]", "[UNK]"
# A longer word is not cut, as in the published tokenizer.
MAX_WORD = 100
# The pieces of this many words are remembered; a handbook has a few thousand.
MAX_REMEMBERED = 50_000
_ASCII_WORD = re.compile(r"[0-9a-z]+|[^0-9a-z\s]")
_CONTROLS = dict.fromkeys([0xFFFD, *range(9), 11, 12, *range(14, 32), 127])
# Chinese characters are words of their own: (first, last) of each block.
_IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


class WordPieces:
    """Turns texts into the numbers of pieces that the encoder was trained on."""

    def __init__(self, vocabulary: Iterable[str]) -> None:
        self._numbers = {piece: number for number, piece in enumerate(vocabulary)}
        self._unknown = self._numbers[UNKNOWN]
        self._remembered: dict[str, tuple[int, ...]] = {}

    def numbers(self, text: str, limit: int) -> list[int]:
        """The pieces of a text between the marks of its start and end, at most `limit` with them."""
        pieces = [self._numbers[START]]
        for word in words(text):
            pieces += self._pieces(word)
            if len(pieces) >= limit:
                break
        return [*pieces[: limit - 1], self._numbers[END]]

    def _pieces(self, word: str) -> tuple[int, ...]:
        pieces = self._remembered.get(word)
        if pieces is None:
            if len(self._remembered) >= MAX_REMEMBERED:
                self._remembered.clear()
            pieces = self._remembered[word] = self._cut(word)
        return pieces

    def _cut(self, word: str) -> tuple[int, ...]:
        if len(word) > MAX_WORD:
            return (self._unknown,)
        pieces = []
        start = 0
        while start < len(word):
            end = len(word)
            prefix = "##" if start else ""
            while end > start and prefix + word[start:end] not in self._numbers:
                end -= 1
            if end == start:
                return (self._unknown,)
            pieces.append(self._numbers[prefix + word[start:end]])
            start = end
        return tuple(pieces)


def words(text: str) -> list[str]:
    """The words of a text, in lower case and without accents; each punctuation mark is one, too."""
    if text.isascii():
        return _ASCII_WORD.findall(text.translate(_CONTROLS).lower())
    spaced = []
    for character in unicodedata.normalize("NFD", "".join(map(_spaced_ideograph, text))):
        category = unicodedata.category(character)
        if character in "\t\n\r":
            spaced.append(" ")
        elif category == "Mn" or category[0] == "C" or character == "\ufffd":
            continue
        elif character.isspace():
            spaced.append(" ")
        elif _is_punctuation(character, category):
            spaced.append(f" {character} ")
        else:
            spaced.append(character.lower())
    return "".join(spaced).split()


def _spaced_ideograph(character: str) -> str:
    code = ord(character)
    if any(first <= code <= last for first, last in _IDEOGRAPHS):
        return f" {character} "
    return character


def _is_punctuation(character: str, category: str) -> bool:
    """BERT counts all ASCII symbols as punctuation, and of the others those of Unicode."""
    if character.isascii():
        return not character.isalnum()
    return category[0] == "P"
