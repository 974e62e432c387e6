"""Finds words in recorded runs, with their place and some context."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from weakincentives.telemetry import RecordedEvent, RunStore, RunSummary, like_pattern, plain

BEFORE, AFTER = 60, 140
MAX_RUNS, MAX_HITS, HITS_PER_RUN = 200, 200, 6
MAX_PATTERNS = 60
_SKIPPED = ("role", "provider", "run_id", "call_id", "id", "response_id", "spans", "current_visibility_state")


def search(store: RunStore, words: str, run_id: str = "") -> dict[str, Any]:
    """Events that contain these words, ignoring case, newest run first; `matching` counts the runs that contain them.

    When many runs match, each shows only its first few places; `cut` means that there are more than are shown.
    """
    words = words.strip()
    if not words:
        return {"hits": [], "runs": [], "matching": 0, "cut": False}
    runs = [store.run(run_id)] if run_id else store.list_runs(MAX_RUNS, search=words, parent=None)
    matching = 1 if run_id else store.count_runs(words, parent=None)
    each = MAX_HITS if len(runs) == 1 else HITS_PER_RUN
    hits: list[dict[str, Any]] = []
    shown: list[RunSummary] = []
    cut = matching > len(runs)
    for run in runs:
        if len(hits) >= MAX_HITS:
            cut = True
            break
        found = _hits(store, words, run.run_id, each)
        cut |= len(found) > each
        hits += found[:each]
        shown += [run] if found else []
    return {"hits": hits, "runs": shown, "matching": len(shown) if not cut else matching, "cut": cut}


def _hits(store: RunStore, words: str, run_id: str, limit: int) -> list[dict[str, Any]]:
    """At most one hit more than the limit, to tell whether there are more."""
    hits: list[dict[str, Any]] = []
    for seq in _candidates(store, words, run_id):
        for recorded in store.numbered(run_id, [seq]):
            hit = _hit(recorded, words)
            if hit is not None and not _repeats(hit, hits[-1:]):
                hits.append(hit)
        if len(hits) > limit:
            break
    return hits


def _candidates(store: RunStore, words: str, run_id: str) -> list[int]:
    """Events that contain the words, or refer to a text that does; matches in field names are dropped later."""
    texts = store.query(
        "SELECT hash FROM texts WHERE hash IN (SELECT hash FROM run_texts WHERE run_id = ?) "
        "AND text LIKE ? ESCAPE '\\'",
        (run_id, like_pattern(words)),
    )
    # In payloads, the words are escaped as in JSON.
    patterns = [like_pattern(msgspec.json.encode(words).decode()[1:-1]), *(f'%"{key}"%' for (key,) in texts)]
    found: set[int] = set()
    for start in range(0, len(patterns), MAX_PATTERNS):
        some = patterns[start : start + MAX_PATTERNS]
        anywhere = " OR ".join(["payload LIKE ? ESCAPE '\\'"] * len(some))
        rows = store.query(f"SELECT seq FROM events WHERE run_id = ? AND ({anywhere})", (run_id, *some))
        found.update(seq for (seq,) in rows)
    return sorted(found)


def _hit(recorded: RecordedEvent, words: str) -> dict[str, Any] | None:
    event = plain(recorded.event)
    if not isinstance(event, dict):
        event = {"value": event}
    if recorded.kind == "Message" and event.get("role") == "system":
        # The prompt is recorded twice; PromptRendered also has its sections.
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
