"""Removes secrets whose values are known from what is shown: the client's keys, and those of the environment.

A value is found in every encoding in which an error may repeat it. The recorder's `Redactor` builds on this, and also
finds secrets that it does not know by their form.
"""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from html import escape, unescape
from itertools import chain
from json import dumps
from quopri import encodestring
from urllib.parse import quote, quote_plus

REDACTED = "[redacted]"
MIN_TEXT = 6
MIN_VALUE = 12
MAX_DEPTH = 2
WIDE_ENCODINGS = ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")

SECRET_VARIABLES = re.compile(
    r"(?:_|^)(?:API_?KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?"
    r"|(?:ACCESS|ACCOUNT|AUTH|CLIENT|ENCRYPTION|MASTER|PRIVATE|SECRET|SIGNING|STORAGE)_?KEY)$"
    # Not PWD itself, which is the working directory.
    r"|_(?:PASS|PWD)$|^PGPASSWORD$"
)


class KnownSecrets:
    """Replaces known values in text.

    `variables` are environment variables, whose values are secret if their names suggest it, and `values` are further
    secrets.
    """

    def __init__(self, values: Iterable[str] = (), *, variables: Mapping[str, str] | None = None) -> None:
        environment = os.environ if variables is None else variables
        secrets = list(values)
        for name, value in environment.items():
            if SECRET_VARIABLES.search(name.upper()):
                # A key of several lines is also found by the line, as a diff shows it.
                lines = [value, *map(str.strip, value.splitlines())]
                secrets += [line for line in lines if len(line) >= MIN_VALUE]
        self._values, self._wide_values, self._wide = _compiled(tuple(dict.fromkeys(secrets)))

    def text(self, text: str) -> str:
        """The text with each secret replaced."""
        return self._clean(text)

    def _clean(self, text: str, depth: int = 0) -> str:
        if "\0" in text:
            text = self._clean_wide(text, depth)
        if _ESCAPED_NUL.search(text):
            text = self._clean_escaped_wide(text, depth)
        text = self._find(text)
        return self._unescape(text, depth) if depth < MAX_DEPTH and len(text) >= MIN_TEXT else text

    def _find(self, text: str) -> str:
        return text if self._values is None else self._values.sub(REDACTED, text)

    def _clean_wide(self, text: str, depth: int) -> str:
        """The text without secrets written in UTF-16 or UTF-32, as which it was not decoded; the rest stays."""
        if self._wide_values is not None:
            text = self._wide_values.sub(lambda value: self._wide[value[0]], text)
        runs = list(_WIDE.finditer(text))
        pieces: list[str] = []
        done = 0
        for first in range(0, len(runs), _BLOCK):
            block = runs[first : first + _BLOCK]
            # One search for a block is much faster than one for each run, and most blocks have no secret.
            narrow = "\n".join(chain.from_iterable(map(_narrowed, block)))
            if self._clean(narrow, depth) != narrow:
                for run in block:
                    pieces += [text[done : run.start()], self._clean_run(run, depth)]
                    done = run.end()
        return "".join([*pieces, text[done:]])

    def _clean_run(self, run: re.Match[str], depth: int) -> str:
        for narrow in _narrowed(run):
            clean = self._clean(narrow, depth)
            if clean != narrow:
                before, _, after = run[0].replace("\0", "").partition(narrow)
                wide = run["gap"].join(before + clean + after)
                if run[0].endswith("\0"):
                    wide += run["gap"]
                return wide
        return run[0]

    def _clean_escaped_wide(self, text: str, depth: int) -> str:
        """The text without secrets in UTF-16 or UTF-32 whose zeros are escaped, as Python and JSON write bytes."""
        wide = _ESCAPED_BREAK.sub(lambda match: _BREAKS.get(match[0][-1], match[0][-1]), _ESCAPE.sub(_unescaped, text))
        clean = self._clean_wide(wide, depth)
        if clean == wide:
            return text
        # Escaped again in the same way, be it that of Python or of JSON.
        prefix = _ESCAPED_NUL.findall(text)[0][:-2]
        return _CONTROL.sub(lambda match: f"{prefix}{ord(match[0]):02x}", clean)

    def _unescape(self, text: str, depth: int) -> str:
        """The text without secrets whose characters are escaped, in any mixture."""

        def clean_word(match: re.Match[str]) -> str:
            plain = _ESCAPE.sub(_unescaped, match[0])
            if plain == match[0]:
                return plain
            clean = self._clean(plain, depth + 1)
            if clean == plain:
                return match[0]
            return clean if clean.isprintable() and not _QUOTES.search(clean) else REDACTED

        return _ESCAPED_WORD.sub(clean_word, text) if _ESCAPE.search(text) else text


def encodings(value: str) -> Iterator[str]:
    """The forms in which a value may occur in another text: itself, escaped, in hexadecimal and in base64.

    Bytes of an environment variable that are not UTF-8 are shown in several ways. Escapes of single characters are not
    listed: `KnownSecrets` undoes them, in any mixture.
    """
    data = _bytes_of(value)
    shown = [data.decode("utf-8", errors) for errors in ("replace", "ignore", "backslashreplace")]
    for plain in dict.fromkeys((value, *shown, data.decode("latin-1"))):
        yield plain
        yield dumps(plain)[1:-1]
        yield dumps(dumps(plain)[1:-1])[1:-1]
        yield escape(plain)
    yield quote(data, safe="")
    yield quote(data)
    yield quote_plus(data)
    yield encodestring(data).decode()
    yield from _encoded(data)
    for encoding in WIDE_ENCODINGS:
        yield from _encoded(_widened(value, encoding).encode("latin-1"))


def _widened(text: str, encoding: str) -> str:
    """A text encoded, each byte as one character."""
    return text.encode(encoding, "surrogatepass").decode("latin-1")


def _encoded(data: bytes) -> Iterator[str]:
    """Bytes in hexadecimal and in base64."""
    yield data.hex()
    yield data.hex().upper()
    for offset in range(3):
        # The middle of the base64 text is the same, whatever comes before and after the value.
        encoded = b64encode(b"\0" * offset + data).decode().rstrip("=")
        inner = encoded[(offset * 8 + 5) // 6 : len(encoded) - ((offset + len(data)) % 3 > 0)]
        yield inner
        yield inner.replace("+", "-").replace("/", "_")


@lru_cache(maxsize=8)
def _compiled(
    secrets: tuple[str, ...],
) -> tuple[re.Pattern[str] | None, re.Pattern[str] | None, dict[str, str]]:
    """What finds these secrets, what finds them in UTF-16 and UTF-32, and what replaces the latter.

    The secrets of an environment seldom change, and the expressions for a private key take a tenth of a second.
    """
    forms: set[str] = set()
    # What replaces a value in UTF-16 or UTF-32 has the same encoding.
    wide: dict[str, str] = {}
    for secret in secrets:
        if len(secret) >= MIN_TEXT:
            forms.update(encodings(secret))
            for encoding in WIDE_ENCODINGS:
                wide[_widened(secret, encoding)] = _widened(REDACTED, encoding)
    return _finder(form for form in forms if len(form) >= MIN_TEXT), _finder(wide), wide


def _finder(words: Iterable[str]) -> re.Pattern[str] | None:
    """An expression that finds any of these words; None if there are none."""
    expression = any_of(words)
    return re.compile(expression) if expression else None


def _narrowed(run: re.Match[str]) -> list[str]:
    """The characters of a run of wide ones. Its first or last may be a byte of another character beside it."""
    narrow = run[0].replace("\0", "")
    parts = [narrow]
    if run.start() and run.string[run.start() - 1] != "\0":
        parts.append(narrow[1:])
    if not run[0].endswith("\0") and run.end() < len(run.string):
        for part in list(parts):
            parts.append(part[:-1])
    return parts


def _bytes_of(value: str) -> bytes:
    try:
        # The bytes that an environment variable really has.
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogatepass")


# Characters of two or four bytes of which all but one are zero. Read as text, their order does not matter: the first
# or last zeros of a run are beside it.
_WIDE = re.compile(r"[^\0](?P<gap>\0(?:\0\0)?)[^\0](?:(?P=gap)[^\0]){4,}(?P=gap)?")
_BLOCK = 500
_ESCAPED_NUL = re.compile(r"\\{1,8}(?:x00|u0000)")
_ESCAPED_BREAK = re.compile(r"(?<=\0)\\{1,8}[nrt\"']|\\{1,8}[nrt\"'](?=\0)")
_CONTROL = re.compile(r"[\0-\x08\x0b-\x1f\x7f-\xff]|(?<=\0)[\t\n]|[\t\n](?=\0)")
_BREAKS = {"n": "\n", "r": "\r", "t": "\t"}
# An escaped character: by its code in hexadecimal, in octal, as an entity of HTML, or punctuation after a backslash.
_ESCAPE = re.compile(
    r"(?:%|\\{1,8}x)([0-9A-Fa-f]{2})|\\{1,8}(?:u|U0000)([0-9A-Fa-f]{4})|\\{1,8}u\{0{0,4}([0-9A-Fa-f]{1,4})\}"
    r"|\\{1,8}([0-3][0-7]{2})|&(?:#[0-9]{1,9};?|#[xX][0-9A-Fa-f]{1,8};?|[A-Za-z][0-9A-Za-z]{1,30};)"
    r"|\\{1,8}([!#$%&()*+,./:;=?@\[\]^_`{|}~-])"
)
_OCTAL, _PUNCTUATION = 4, 5
_ESCAPED_WORD = re.compile(rf"[^\s\"'<>]{{{MIN_TEXT},}}+")
_QUOTES = re.compile(r"[\"'\\]")


def _unescaped(match: re.Match[str]) -> str:
    kind = match.lastindex
    if kind is None:
        return unescape(match[0])
    return match[kind] if kind == _PUNCTUATION else chr(int(match[kind], 8 if kind == _OCTAL else 16))


def any_of(words: Iterable[str]) -> str:
    """An expression for any of these words that tries a common prefix only once."""
    groups: dict[str, list[str]] = {}
    ends_here = False
    for word in words:
        if word:
            groups.setdefault(word[0], []).append(word)
        else:
            ends_here = True

    branches = []
    for group in groups.values():
        # All of the prefix at once: with a branch for each character, a long key is nested too deeply.
        prefix = _common_prefix(group)
        branches.append(re.escape(prefix) + any_of(word[len(prefix) :] for word in group))
    if not branches:
        return ""
    joined = branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
    return f"(?:{joined})?" if ends_here else joined


def _common_prefix(words: list[str]) -> str:
    first, last = min(words), max(words)
    for index, character in enumerate(first):
        if last[index] != character:
            return first[:index]
    return first
