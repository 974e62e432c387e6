"""The provider's own tools in a run, in words: their queries, and how many sources they found."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from weakincentives.runtime import Message

_VERBS = {
    "web_search": "searched the web",
    "file_search": "searched files",
    "web_fetch": "fetched pages",
    "code_interpreter": "ran code",
}
_TIMES = {1: " once", 2: " twice"}


def queries_of(items: Iterable[str]) -> list[str]:
    """The queries of hosted tools, from a provider's output items; their results do not repeat it."""
    return list(dict.fromkeys(query for item in items for query in _queries(_parsed(item))))


def hosted_story(used: Sequence[Mapping[str, Any]], events: Sequence[Any]) -> list[str]:
    """The work of a run's hosted tools, one part of a sentence each."""
    asked = queries_of(item for event in events if isinstance(event, Message) for item in event.items)
    parts = []
    for one in used:
        kind = str(one.get("kind", ""))
        words = _VERBS.get(kind, f"used {one.get('name', kind)}")
        if kind == "web_search" and asked:
            words += _TIMES.get(len(asked), f" {len(asked)} times")
        sources = set(_sources(one.get("output")))
        parts.append(f"{words}, {len(sources)} source{'s' if len(sources) != 1 else ''}" if sources else words)
    return parts


def _parsed(item: str) -> Any:
    try:
        return json.loads(item)
    except ValueError:
        return None


def _queries(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from _queries(each)
    elif isinstance(value, dict):
        for name, each in value.items():
            if name == "query" and isinstance(each, str):
                yield each
            elif name == "queries" and isinstance(each, list):
                yield from (query for query in each if isinstance(query, str))
            else:
                yield from _queries(each)


def _sources(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if value.startswith(("https://", "http://")):
            yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _sources(each)
