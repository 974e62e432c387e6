"""Remembers the vector of each text between runs, so that a handbook is read by the ranker once."""

from __future__ import annotations

import hashlib
import sqlite3
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path

Embed = Callable[[Sequence[str]], list[list[float]]]


class Vectors:
    """Vectors by text; what cannot be read or written on disk is computed anew."""

    def __init__(self, embed: Embed, file: Path) -> None:
        self._embed = embed
        self._file = file
        self._known: dict[str, array[float]] = {}

    def of(self, texts: Sequence[str]) -> list[array[float]]:
        """The vectors of these texts, in order."""
        missing = [text for text in dict.fromkeys(texts) if text not in self._known]
        if missing:
            stored = self._read(missing)
            fresh = [text for text in missing if text not in stored]
            computed = {text: array("f", vector) for text, vector in zip(fresh, self.once(fresh), strict=True)}
            self._write(computed)
            self._known |= stored | computed
        return [self._known[text] for text in texts]

    def once(self, texts: Sequence[str]) -> list[list[float]]:
        """The vectors of texts that will not come again, such as questions."""
        return self._embed(texts) if texts else []

    def _read(self, texts: Sequence[str]) -> dict[str, array[float]]:
        found: dict[str, array[float]] = {}
        try:
            with _connected(self._file) as database:
                for text in texts:
                    row = database.execute("SELECT vector FROM vectors WHERE text = ?", (_key(text),)).fetchone()
                    if row is not None:
                        found[text] = array("f", row[0])
        except (sqlite3.Error, OSError):
            pass
        return found

    def _write(self, vectors: dict[str, array[float]]) -> None:
        if not vectors:
            return
        try:
            with _connected(self._file) as database, database:
                database.executemany(
                    "INSERT OR IGNORE INTO vectors VALUES (?, ?)",
                    [(_key(text), vector.tobytes()) for text, vector in vectors.items()],
                )
        except (sqlite3.Error, OSError):
            pass


class _connected:
    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(file, timeout=5)

    def __enter__(self) -> sqlite3.Connection:
        self._database.execute("CREATE TABLE IF NOT EXISTS vectors (text BLOB PRIMARY KEY, vector BLOB) WITHOUT ROWID")
        return self._database

    def __exit__(self, *_: object) -> None:
        self._database.close()


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
