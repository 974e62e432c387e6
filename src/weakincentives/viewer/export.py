"""One run as one HTML file that opens from disk, with everything the viewer shows of it."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from weakincentives.runtime import HistoryTurn, RunState
from weakincentives.telemetry import RecordedEvent, RunFileError, RunNotFoundError, RunStore, plain
from weakincentives.viewer.documents import Documents, line, request_facts, tool_documents, turn_parts
from weakincentives.viewer.page import exported_page

Progress = Callable[[int, int], None]
PROGRESS_EVERY = 500


def export_run(path: str | os.PathLike[str], run_id: str, progress: Progress = lambda done, total: None) -> str:
    """The page of one run, by its id or the beginning of it; `progress` is told how many of its events are done."""
    with RunStore(path) as store:
        documents = Documents(store)
        run = store.run(run_id)
        return exported_page(f"{run.prompt_name or run.run_id} · wink", run_data(documents, run.run_id, progress))


def run_data(documents: Documents, run_id: str, progress: Progress = lambda done, total: None) -> dict[str, Any]:
    """Every document of a run, as the page looks them up; what turns have in common is there once."""
    return _Export(documents, run_id).data(progress)


class _Export:
    """Reads a run once, in the order of its events."""

    def __init__(self, documents: Documents, run_id: str) -> None:
        self._documents = documents
        self._store = documents.store
        self._run_id = run_id
        self._history = documents.store.history(run_id)
        self._calls = {turn.seq: turn for turn in self._history.turns}
        self._states: dict[tuple[int, int], int] = {}
        self._found: list[dict[str, Any]] = []
        self._kept: list[Any] = []

    def data(self, progress: Progress) -> dict[str, Any]:
        whole = self._documents.run(self._run_id)
        total = whole["run"]["events"]
        # Those of the runs that this one continues.
        earlier = self._store.message_ids(self._run_id, own=False)
        messages = [self._documents.message(recorded) for recorded in self._store.identified(earlier)]
        events: list[dict[str, Any]] = []
        prompts: dict[int, Any] = {}
        turns: dict[int, Any] = {}
        here: list[tuple[RecordedEvent, Any]] = []
        prompt: int | None = None
        for done, recorded in enumerate(self._store.all_events(self._run_id), start=1):
            fields = plain(recorded.event)
            kind = recorded.kind
            small = kind not in ("PromptRendered", "Message", "ToolInvoked", "ModelCalled")
            events.append(line(recorded, fields) | ({"event": fields} if small else {}))
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
                turns[last - 1]["ended"] = []
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
        called = turn.called
        turns[turn.number] = {
            "run_id": self._run_id,
            "n": turn.number,
            "attempt": turn.attempt,
            "time": turn.time,
            "prompt": prompt,
            "called": here[0][1],
            "state": self._state(turn),
            **request_facts(self._documents.request(self._run_id, turn.seq), called.messages),
            **turn_parts(here),
        }

    def _state(self, turn: HistoryTurn) -> int:
        """The number of what the model had: sections and tools, which most turns share with the turn before."""
        state: RunState = turn.state
        key = (id(state), turn.attempt)
        if key not in self._states:
            self._kept.append(state)
            self._states[key] = len(self._found)
            rendered = self._history.renders[turn.attempt - 1] if self._history.renders else None
            first = () if rendered is None else (*rendered.tools, *rendered.hosted_tools)
            hosted = () if rendered is None else rendered.hosted_tools
            names = dict.fromkeys((*state.definitions, *state.tools))
            self._found.append(
                {
                    "sections": plain(state.sections),
                    "tools": tool_documents(names, state.sections, state.withdrawn, state.definitions, first, hosted),
                }
            )
        return self._states[key]

    def _blobs(self, messages: Iterable[dict[str, Any]]) -> dict[str, str]:
        digests = {part["digest"] for part in _parts(messages) if part.get("digest")}
        return {digest: b64encode(blob.data).decode() for digest, blob in self._store.blobs(digests).items()}


def _parts(messages: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for message in messages:
        yield from message.get("parts", ())
