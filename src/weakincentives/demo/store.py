"""The shop's data: a small SQLite database in memory, created for each run."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from typing import Any

_SCHEMA = """
CREATE TABLE orders (
    number TEXT PRIMARY KEY, state TEXT, item TEXT, paid REAL, refunded REAL DEFAULT 0,
    country TEXT, address TEXT, note TEXT, label TEXT
);
CREATE TABLE parts (model TEXT, part TEXT, number TEXT, price REAL, stock INTEGER, PRIMARY KEY (model, part));
CREATE TABLE members (number TEXT PRIMARY KEY, plan TEXT, rhythm TEXT, state TEXT);
CREATE TABLE tickets (number INTEGER PRIMARY KEY, level TEXT, summary TEXT);
"""

_ORDERS = [
    ("FH-20417", "shipped", "Sprig Six, moss", 129.0, "Germany", "DHL 00340434161094, expected on Thursday"),
    ("FH-20388", "held", "Sprig Tower", 549.0, "Belgium", "out of stock since 3 days, the wait is 14 days at most"),
    ("FH-20391", "delivered", "Sprig Mini, chalk", 59.0, "Netherlands", "delivered to the customer on Monday"),
    ("FH-20402", "picking", "Kitchen herbs, 6 pods", 14.5, "France", "leaves today"),
    ("FH-20425", "packed", "Sprig Feed, 2 litres", 36.0, "Austria", "waiting for the carrier"),
    ("FH-20366P", "delivered", "Pod Club, Harvest", 33.0, "Ireland", "delivered on the 4th"),
    ("FH-20430", "received", "Sprig Six, slate", 129.0, "Denmark", "paid an hour ago"),
    ("FH-20377", "cancelled", "Gift card, 50 euros", 50.0, "Spain", "cancelled by the customer"),
]

_PARTS = {
    "pump": ("P-101", 14, "P-102", 16, "P-103", 34),
    "filter sponge": ("P-110", 5, "P-110", 5, "P-113", 9),
    "seal set": ("P-120", 6, "P-121", 7, "P-123", 12),
    "LED panel": ("P-130", 29, "P-131", 42, "P-133", 38),
    "power supply": ("P-140", 18, "P-140", 18, "P-143", 31),
    "float sensor": ("P-160", 8, "P-160", 8, "P-160", 8),
    "tank": ("P-170", 22, "P-171", 27, "P-173", 49),
    "lid": ("P-150", 9, "P-151", 11, "", 0),
}

_MEMBERS = [
    ("M-4417", "Kitchen", "every 6 weeks", "active"),
    ("M-4420", "Harvest", "every 12 weeks", "active"),
    ("M-4421", "Taste", "every 4 weeks", "paused"),
]


class Store:
    """The database of one run; a snapshot holds all of it, so that a failed tool call leaves nothing behind."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.row_factory = sqlite3.Row
        with self._database:
            self._database.executescript(_SCHEMA)
            self._database.executemany(
                "INSERT INTO orders (number, state, item, paid, country, note) VALUES (?, ?, ?, ?, ?, ?)", _ORDERS
            )
            self._database.executemany("INSERT INTO parts VALUES (?, ?, ?, ?, ?)", _part_rows())
            self._database.executemany("INSERT INTO members VALUES (?, ?, ?, ?)", _MEMBERS)

    def one(self, question: str, values: Sequence[Any] = ()) -> sqlite3.Row | None:
        """The first row, or None."""
        with self._lock:
            row: sqlite3.Row | None = self._database.execute(question, values).fetchone()
            return row

    def change(self, command: str, values: Sequence[Any] = ()) -> int:
        """Execute a statement and return the id of a new row."""
        with self._lock, self._database:
            return self._database.execute(command, values).lastrowid or 0

    def snapshot(self) -> bytes:
        with self._lock:
            return self._database.serialize()

    def restore(self, snapshot: bytes) -> None:
        with self._lock:
            self._database.deserialize(snapshot)

    def close(self) -> None:
        self._database.close()


def _part_rows() -> list[tuple[str, str, str, float, int]]:
    rows = []
    for index, model in enumerate(("Mini", "Six", "Tower")):
        for stock, (part, numbers) in enumerate(_PARTS.items(), start=3):
            number, price = numbers[2 * index], numbers[2 * index + 1]
            if number:
                rows.append((model, part, str(number), float(price), stock * 4 - index))
    return rows
