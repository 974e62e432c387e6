"""Removes secrets whose values are known from what is shown: the client's keys, and those of the environment.

A value is found in every encoding in which an error may repeat it. The recorder's `Redactor` builds on this, and also
finds secrets that it does not know by their form.
"""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from html import escape, unescape
from json import dumps
from quopri import encodestring
from typing import Any
from urllib.parse import quote, quote_plus

REDACTED = "[redacted]"
MIN_TEXT = 6
MIN_VALUE = 12
MAX_DEPTH = 2

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
        known = os.environ if variables is None else variables
        named = [value for name, value in known.items() if SECRET_VARIABLES.search(name.upper())]
        # A key of several lines is also found by the line, as a diff shows it.
        lines = [line.strip() for value in named for line in value.splitlines()]
        secrets = [*(value for value in (*named, *lines) if len(value) >= MIN_VALUE), *values]
        forms = {form for value in secrets if len(value) >= MIN_TEXT for form in encodings(value)}
        found = {form for form in forms if len(form) >= MIN_TEXT}
        self._values = re.compile(any_of(found)) if found else None

    def text(self, text: str) -> str:
        """The text with each secret replaced."""
        return self._clean(text)

    def _clean(self, text: str, depth: int = 0) -> str:
        text = self._find(text)
        return self._unescape(text, depth) if depth < MAX_DEPTH and len(text) >= MIN_TEXT else text

    def _find(self, text: str) -> str:
        return text if self._values is None else self._values.sub(REDACTED, text)

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
    yield data.hex()
    yield data.hex().upper()
    for offset in range(3):
        # The middle of the base64 text is the same, whatever comes before and after the value.
        encoded = b64encode(b"\0" * offset + data).decode().rstrip("=")
        inner = encoded[(offset * 8 + 5) // 6 : len(encoded) - ((offset + len(data)) % 3 > 0)]
        yield inner
        yield inner.replace("+", "-").replace("/", "_")


def _bytes_of(value: str) -> bytes:
    try:
        # The bytes that an environment variable really has.
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogatepass")


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
    tree: dict[str, Any] = {}
    for word in words:
        node = tree
        for character in word:
            node = node.setdefault(character, {})
        node[""] = {}
    return _branches(tree)


def _branches(tree: dict[str, Any]) -> str:
    longer = [re.escape(character) + _branches(node) for character, node in tree.items() if character]
    if not longer:
        return ""
    joined = longer[0] if len(longer) == 1 else f"(?:{'|'.join(longer)})"
    return f"(?:{joined})?" if "" in tree else joined
