"""The viewer's single HTML page: served with its modules beside it, or exported with one run and everything inside.

Modules are imported by name (`wink/tree.js`, `preact`) and an import map says where they are: on the server, or in the
page itself as `data:` URLs, because browsers load no modules over `file:`.
"""

from __future__ import annotations

import gzip
import json
import os
from base64 import b64encode
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

from weakincentives.runtime import HistoryTurn
from weakincentives.telemetry import RecordedEvent, RunFileError, RunNotFoundError, RunStore, plain
from weakincentives.viewer.documents import Documents, leave_to_pending, line, state_parts, turn_document
from weakincentives.viewer.marks import undone_events

STATIC = Path(__file__).parent / "static"
STYLE = "style.css"
ICON = "favicon.svg"
MAIN = "wink/main.js"
Progress = Callable[[int, int], None]
PROGRESS_EVERY = 500


@cache
def modules() -> dict[str, str]:
    """The file of every module below `static`, by import name."""
    found = {f"wink/{path.name}": path.name for path in sorted(STATIC.glob("*.js"))}
    for library in json.loads((STATIC / "vendor" / "lock.json").read_text(encoding="utf-8")):
        found |= {details["import"]: f"vendor/{name}" for name, details in library["files"].items()}
    return found


def served_page() -> tuple[str, str]:
    """The served page and its Content-Security-Policy."""
    imports = import_map({name: f"/static/{file}" for name, file in modules().items()})
    # Load all modules at once instead of one by one as they import each other.
    preloads = "".join(f'<link rel="modulepreload" href="/static/{file}">' for file in modules().values())
    head = (
        f'<link rel="icon" href="/static/{ICON}"><link rel="stylesheet" href="/static/{STYLE}">'
        f'<script type="importmap">{imports}</script>{preloads}'
        f'<script type="module" src="/static/{modules()[MAIN]}"></script>'
    )
    policy = (
        f"default-src 'none'; script-src 'self' '{_allowed(imports)}'; style-src 'self'; img-src 'self'; "
        "media-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return _page("wink", head, ""), policy


def export_run(path: str | os.PathLike[str], run_id: str, progress: Progress = lambda done, total: None) -> str:
    """The page of one run, given its id or a prefix; `progress` is called with the events done and their total."""
    with RunStore(path) as store:
        documents = Documents(store)
        run = store.run(run_id)
        data = _Export(documents, run.run_id).data(progress)
        return exported_page(f"{run.prompt_name or run.run_id} · wink", data)


class _Export:
    """Every document of a run, in the form the page looks them up; what turns share is stored once."""

    def __init__(self, documents: Documents, run_id: str) -> None:
        self._documents = documents
        self._store = documents.store
        self._run_id = run_id
        self._history = documents.store.history(run_id)
        self._calls = {turn.seq: turn for turn in self._history.turns}
        self._states: dict[tuple[int, int], int] = {}
        self._found: list[dict[str, Any]] = []

    def data(self, progress: Progress) -> dict[str, Any]:
        """Read the run once, in the order of its events."""
        whole = self._documents.run(self._run_id)
        total = whole["run"]["events"]
        # Messages of the runs that this one continues.
        earlier = self._store.message_ids(self._run_id, own=False)
        messages = [self._documents.message(recorded) for recorded in self._store.identified(earlier)]
        events: list[dict[str, Any]] = []
        prompts: dict[int, Any] = {}
        turns: dict[int, Any] = {}
        here: list[tuple[RecordedEvent, Any]] = []
        prompt: int | None = None
        undone = undone_events(self._store, self._run_id)
        for done, recorded in enumerate(self._store.all_events(self._run_id), start=1):
            fields = plain(recorded.event)
            kind = recorded.kind
            small = kind not in ("PromptRendered", "Message", "ToolInvoked", "ModelCalled")
            shown = {**line(recorded, fields), "undone": undone(recorded)}
            events.append(shown | ({"event": fields} if small else {}))
            if kind in ("ModelCalled", "PromptRendered"):
                self._end_turn(here, prompt, turns)
                here = []
            here.append((recorded, fields))
            if kind == "PromptRendered":
                prompt = recorded.seq
                with suppress(RunFileError, RunNotFoundError):
                    prompts[prompt] = self._documents.prompt(self._run_id, prompt)
            elif kind == "Message":
                messages.append(self._documents.message(recorded, fields))
            if done % PROGRESS_EVERY == 0 or done == total:
                progress(done, total)
        self._end_turn(here, prompt, turns)
        if whole["pending"]:
            last = whole["run"]["turns"] + 1
            turns[last] = self._documents.turn(self._run_id, last)
            if last - 1 in turns:
                leave_to_pending(turns[last - 1])
        return {
            "file": self._store.path.name,
            "run": whole,
            "states": self._found,
            "turns": turns,
            "prompts": prompts,
            "messages": messages,
            "events": events,
            "blobs": self._blobs(messages),
            "script": self._documents.script(self._run_id),
        }

    def _end_turn(self, here: list[tuple[RecordedEvent, Any]], prompt: int | None, turns: dict[int, Any]) -> None:
        turn = self._calls.get(here[0][0].seq) if here else None
        if turn is None:
            return
        facts = {"attempt": turn.attempt, "time": turn.time, "prompt": prompt, "state": self._state(turn)}
        request = self._documents.request(self._run_id, turn.seq)
        turns[turn.number] = turn_document(
            self._run_id, turn.number, facts, here[0][1], request, turn.called.messages, here
        )

    def _state(self, turn: HistoryTurn) -> int:
        """The index of the model's sections and tools, which most turns share with the turn before."""
        key = (id(turn.state), turn.attempt)
        if key not in self._states:
            self._states[key] = len(self._found)
            rendered = self._history.renders[turn.attempt - 1] if self._history.renders else None
            self._found.append(state_parts(turn.state, rendered))
        return self._states[key]

    def _blobs(self, messages: Iterable[dict[str, Any]]) -> dict[str, str]:
        parts = (part for message in messages for part in message.get("parts", ()))
        digests = {part["digest"] for part in parts if part.get("digest")}
        return {digest: b64encode(blob.data).decode() for digest, blob in self._store.blobs(digests).items()}


def exported_page(title: str, data: Any) -> str:
    """A self-contained page that loads nothing else."""
    sources = {name: (STATIC / file).read_bytes() for name, file in modules().items()}
    imports = import_map({name: _data_url("text/javascript", source) for name, source in sources.items()})
    start = f'import "{MAIN}";'
    policy = (
        f"default-src 'none'; script-src data: '{_allowed(imports)}' '{_allowed(start)}'; style-src 'unsafe-inline'; "
        "img-src data:; media-src data:; base-uri 'none'; form-action 'none'"
    )
    icon = _data_url("image/svg+xml", (STATIC / ICON).read_bytes())
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><link rel="icon" href="{icon}">'
        f"<style>{(STATIC / STYLE).read_text(encoding='utf-8')}</style>"
        f'<script type="importmap">{imports}</script>'
    )
    # Turns repeat each other, so compression shrinks the data to a fraction.
    embedded = b64encode(gzip.compress(json.dumps(data, separators=(",", ":")).encode(), 6)).decode()
    body = f'<script type="text/plain" id="data">{embedded}</script><script type="module">{start}</script>'
    return _page(escape(title, quote=False), head, body)


def import_map(urls: dict[str, str]) -> str:
    return json.dumps({"imports": urls}, separators=(",", ":"))


def _page(title: str, head: str, body: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title>{head}</head>'
        f'<body><div id="app"></div><noscript>The viewer needs JavaScript.</noscript>{body}</body></html>\n'
    )


def _data_url(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{b64encode(content).decode()}"


def _allowed(script: str) -> str:
    return f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}"
