"""Keeping keys out of errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

SHORTEST = 6


class Redactor:
    """Replaces known secrets in what an error shows. Which they are is asked only when an error is made."""

    def __init__(self, secrets: Callable[[], Iterable[str | None]]) -> None:
        self._secrets = secrets

    def text(self, text: str) -> str:
        for secret in self._secrets():
            if secret and len(secret) >= SHORTEST:
                text = text.replace(secret, "[redacted]")
        return text

    def value(self, value: object) -> object:
        """A payload with the secrets replaced wherever they appear in it."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, (dict, list)):
            plain = msgspec.json.encode(value).decode()
            cleaned = self.text(plain)
            return value if cleaned == plain else msgspec.json.decode(cleaned)
        return value
