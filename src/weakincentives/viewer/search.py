"""Finding words in recorded runs, with the place and some context."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from weakincentives.telemetry import RecordedEvent, RunStore, plain

BEFORE, AFTER = 60, 140
MAX_TEXTS = 60
_SKIPPED = ("role", "provider", "run_id", "call_id", "id", "response_id", "spans", "current_visibility_state")


def search(store: RunStore, words: str, run_id: str = "", limit: int = 60) -> list[dict[str, Any]]:
    """Events that contain these words in any case, the newest run first."""
    words = words.strip()
    if not words:
        return []
    hits: list[dict[str, Any]] = []
    for seq, found_run in _candidates(store, words, run_id, limit * 3):
        for recorded in store.events_where("run_id = ? AND seq = ?", (found_run, seq)):
            hit = _hit(recorded, words)
            if hit is not None and not _repeats(hit, hits[-1:]):
                hits.append(hit)
        if len(hits) == limit:
            break
    return hits


def _candidates(store: RunStore, words: str, run_id: str, limit: int) -> list[tuple[Any, ...]]:
    """Events that contain the words, or refer to a text that does; matches in field names are dropped later."""
    like = _pattern(words)
    of_run = "AND hash IN (SELECT hash FROM run_texts WHERE run_id = ?)" if run_id else ""
    texts = store.query(
        f"SELECT hash FROM texts WHERE text LIKE ? ESCAPE '\\' {of_run} LIMIT {MAX_TEXTS}",
        (like, run_id) if run_id else (like,),
    )
    # In payloads the words are escaped as JSON text.
    patterns = [_pattern(msgspec.json.encode(words).decode()[1:-1]), *(f'%"{key}"%' for (key,) in texts)]
    anywhere = " OR ".join(["payload LIKE ? ESCAPE '\\'"] * len(patterns))
    return store.query(
        f"SELECT seq, events.run_id FROM events JOIN runs ON runs.run_id = events.run_id WHERE ({anywhere}) "
        f"{'AND events.run_id = ?' if run_id else ''} ORDER BY runs.started DESC, seq LIMIT ?",
        (*patterns, *([run_id] if run_id else []), limit),
    )


def _hit(recorded: RecordedEvent, words: str) -> dict[str, Any] | None:
    event = plain(recorded.event)
    if not isinstance(event, dict):
        event = {"value": event}
    if recorded.kind == "Message" and event.get("role") == "system":
        # The prompt is recorded twice; PromptRendered knows its sections.
        return None
    wanted = words.casefold()
    for where, text in _texts(event, ""):
        at = text.casefold().find(wanted)
        if at >= 0:
            return {
                "run_id": recorded.run_id,
                "seq": recorded.seq,
                "turn": recorded.turn,
                "kind": recorded.kind,
                "where": where,
                "name": str(event.get("name") or event.get("role") or ""),
                "before": text[max(0, at - BEFORE) : at],
                "match": text[at : at + len(words)],
                "after": text[at + len(words) : at + len(words) + AFTER],
            }
    return None


def _repeats(hit: dict[str, Any], before: list[dict[str, Any]]) -> bool:
    """A tool's result is recorded twice: with the call, and as the message the model read."""
    same = ("run_id", "turn", "match", "after")
    return any(all(hit[name] == last[name] for name in same) for last in before)


def _texts(value: Any, where: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, where)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key not in _SKIPPED:
                yield from _texts(item, f"{where}.{key}" if where else key)


def _pattern(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"
