"""Keeping secrets out of what is recorded."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

REDACTED = "[redacted]"

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
    r"(?P<keep>(?i:\b(?:x-)?api[-_]?key|\baws_secret_access_key|\bclient_secret|\b(?:access|refresh|auth)_token"
    r"|\bpassword|\bpasswd)\\*[\"']?\s*[:=]\s*\\*[\"']?)[^\s\"'\\,;&}]{6,}",
)
SECRET_NAMES = re.compile(
    r"(?i)^(?:(?:proxy-)?authorization|(?:[a-z0-9]+[-_])*(?:api[-_]?key|password|passwd|secret"
    r"|(?:secret[-_])?access[-_]key|client[-_]secret|private[-_]key|(?:access|refresh|auth)[-_]token))$"
)
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
