"""Keeping keys out of errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from weakincentives import redaction


class Redactor:
    """Replaces secrets in what an error shows, those of the client in any encoding.

    Which these are is asked only when an error is made.
    """

    def __init__(self, secrets: Callable[[], Iterable[str | None]]) -> None:
        self._secrets = secrets

    def text(self, text: str) -> str:
        secrets = [secret for secret in self._secrets() if secret]
        return redaction.Redactor(values=secrets).text(text)

    def value(self, value: object) -> object:
        """A payload with the secrets replaced wherever they appear in it."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, (dict, list)):
            plain = msgspec.json.encode(value).decode()
            cleaned = self.text(plain)
            try:
                return value if cleaned == plain else msgspec.json.decode(cleaned)
            except msgspec.DecodeError:
                return cleaned
        return value
