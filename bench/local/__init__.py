"""How well the local adapter does on the demo's handbook: sections opened, facts in answers, tokens, seconds."""

from __future__ import annotations

from collections.abc import Iterable

from bench.local.desk import measure
from bench.row import Row
from weakincentives.adapters.local import LocalAdapter

SLOW = True


def rows() -> Iterable[Row]:
    """The figures of the default setup on the 40 test questions."""
    with LocalAdapter() as adapter:
        result = measure(adapter, "test")
    yield Row("right section opened first", result.share("section"), "%", goal=85, better="more")
    yield Row("needed fact in the answer", result.share("fact"), "%", better="more")
    yield Row("tokens sent in a run", result.tokens, "tokens", ratio=result.tokens / result.full, baseline="all open")
    yield Row("a question", result.seconds, "s")
