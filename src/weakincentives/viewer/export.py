"""One run as one HTML file that opens from disk, with everything the viewer shows of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from weakincentives.telemetry import RunFileError, RunNotFoundError, RunStore
from weakincentives.viewer.documents import Documents
from weakincentives.viewer.page import exported_page


def export_run(path: str | os.PathLike[str], run_id: str) -> str:
    """The page of one run, by its id or the beginning of it."""
    with RunStore(path) as store:
        documents = Documents(store)
        run = store.run(run_id)
        return exported_page(f"{run.prompt_name or run.run_id} · wink", run_data(documents, run.run_id))


def run_data(documents: Documents, run_id: str) -> dict[str, Any]:
    """Every document of a run, as the page looks them up."""
    whole = documents.run(run_id)
    prompts = documents.store.query(
        "SELECT seq FROM events WHERE run_id = ? AND kind = 'PromptRendered' ORDER BY seq", (run_id,)
    )
    numbers = [*whole["turns"]["n"], *([whole["run"]["turns"] + 1] if whole["pending"] else [])]
    listed = _all(lambda offset: documents.events(run_id, offset=offset, limit=500)["events"])
    return {
        "file": documents.store.path.name,
        "run": whole,
        "turns": _readable(lambda n: documents.turn(run_id, n), numbers),
        "prompts": _readable(lambda seq: documents.prompt(run_id, seq), [seq for (seq,) in prompts]),
        "messages": _all(lambda start: documents.messages(run_id, start, start + 500)["messages"]),
        "events": [
            {**line, "event": documents.event(run_id, line["seq"])["event"]} if _is_small(line) else line
            for line in listed
        ],
    }


def _is_small(line: dict[str, Any]) -> bool:
    """Prompts, messages, tool calls and model calls are in the file already; the page looks them up there."""
    return line["kind"] not in ("PromptRendered", "Message", "ToolInvoked", "ModelCalled")


def _readable(document: Callable[[int], Any], numbers: Iterable[int]) -> dict[int, Any]:
    """The documents with these numbers but those that a damaged file does not give."""
    found: dict[int, Any] = {}
    for number in numbers:
        with suppress(RunFileError, RunNotFoundError):
            found[number] = document(number)
    return found


def _all(page: Any) -> list[Any]:
    found: list[Any] = []
    while some := page(len(found)):
        found += some
    return found
