"""Keeping secrets out of what is recorded."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

REDACTED = "[redacted]"

# What a secret is called; in prose a word such as "secret" alone says nothing.
_NAMES = (
    r"(?:api[-_]?(?:key|token)|password|passwd|passphrase|client[-_]?secret|secret[-_]?(?:access[-_]?)?key|access[-_]?key"
    r"|private[-_]?key|(?:access|refresh|auth|bearer|id|session|security)[-_]?token)"
)
_FIELDS = rf"(?:(?:proxy-)?authorization|(?:set-)?cookie|(?:[a-z0-9]{{1,32}}[-_]){{0,6}}(?:{_NAMES}|secret))"
# Where a pattern has the group `keep`, that part of the match stays.
DEFAULT_PATTERNS = (
    r"\bsk-[A-Za-z0-9_-]{16,}",
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    r"\bgh[pousr]_[A-Za-z0-9]{30,}",
    r"\bgithub_pat_[A-Za-z0-9_]{30,}",
    r"\bAIza[0-9A-Za-z_-]{35}",
    r"\bhf_[A-Za-z0-9]{30,}",
    r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",
    r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{5,}",
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    r"(?P<keep>\b[Bb](?:earer|asic)\s+)[A-Za-z0-9._~+/=-]{8,}",
    r"(?P<keep>\b[a-z][a-z0-9+.-]{0,20}://[^\s/:@\"']{0,99}:)[^\s/?#@\"']+(?=@)",
    # JSON, also as text in JSON: all of the value, up to the quote that ends it.
    rf"(?P<keep>(?P<name>\\{{0,7}}[\"'])(?i:{_FIELDS})(?P=name)\s*:\s*(?P<value>\\{{0,7}}[\"']))"
    r"(?:(?!(?P=value))(?:\\+[^\\]|[^\\]))+",
    rf"(?P<keep>(?<![A-Za-z0-9])(?i:{_NAMES}|(?<=[-_])secret)\\*[\"']?\s*[:=]\s*\\*[\"']?)[^\s\"'\\,;&}}]{{6,}}",
    r"(?P<keep>\b[A-Z0-9_]+_TOKEN\s*=\s*[\"']?)[^\s\"']{6,}",
)
SECRET_NAMES = re.compile(rf"(?i)^{_FIELDS}$")
SECRET_VARIABLES = re.compile(r"(?:_|^)(?:API_?KEY|TOKEN|SECRET|PASSWORD|ACCESS_KEY)$")
SHORTEST_VALUE = 12


class Redactor:
    """Replaces secrets in text and data.

    `patterns` come on top of the defaults; `variables` are environment variables whose values are secret when their
    names say so.
    """

    def __init__(
        self, patterns: Iterable[str | re.Pattern[str]] = (), *, variables: Mapping[str, str] | None = None
    ) -> None:
        known = os.environ if variables is None else variables
        values = sorted(
            {
                value
                for name, value in known.items()
                if len(value) >= SHORTEST_VALUE and SECRET_VARIABLES.search(name.upper())
            },
            key=len,
            reverse=True,
        )
        self.patterns = (*(re.compile(re.escape(value)) for value in values), *_compiled(DEFAULT_PATTERNS))
        self.add(patterns)

    def add(self, patterns: Iterable[str | re.Pattern[str]]) -> None:
        """Look for these too."""
        self.patterns = tuple(dict.fromkeys((*self.patterns, *_compiled(patterns))))

    def text(self, text: str) -> str:
        for pattern in self.patterns:
            text = pattern.sub(_replacement, text)
        return text


class NoRedaction(Redactor):
    """Leaves everything as it is."""

    def __init__(self) -> None:
        self.patterns = ()

    def add(self, patterns: Iterable[str | re.Pattern[str]]) -> None:
        return


def is_secret_name(name: Any) -> bool:
    """Whether a field of this name holds a secret whatever its text looks like."""
    return isinstance(name, str) and len(name) < 64 and SECRET_NAMES.match(name) is not None


def _compiled(patterns: Iterable[str | re.Pattern[str]]) -> list[re.Pattern[str]]:
    return [re.compile(pattern) for pattern in patterns]


def _replacement(match: re.Match[str]) -> str:
    return (match.groupdict().get("keep") or "") + REDACTED
