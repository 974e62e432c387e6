"""What the viewer's pages show, as JSON documents made from a run file.

Texts that many turns share are documents of their own: a turn names its prompt by the number of the event that
rendered it, and its conversation by ranges over all messages of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from weakincentives.runtime import Message, PromptRendered, ToolInvoked
from weakincentives.telemetry import RecordedEvent, RunFileError, RunNotFoundError, RunStore, Turn, advise, plain
from weakincentives.viewer.conversations import Conversations, Ranges
from weakincentives.viewer.overview import overview, summary
from weakincentives.viewer.search import search

SUMMARY_LENGTH = 160
# A page of messages ends early when it has this many characters.
PAGE_CHARACTERS = 2_000_000
CACHED_RUNS = 8


class Documents:
    """Makes documents from a store; an overview is kept until its run grows."""

    def __init__(self, store: RunStore) -> None:
        self.store = store
        self._runs: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self._conversations = Conversations(store)

    def runs(self, *, search: str = "", status: str = "", offset: int = 0, limit: int = 100) -> dict[str, Any]:
        """One page of the list, newest first, and the total."""
        found = self.store.list_runs(limit, offset, search, status=status)
        return {
            "file": self.store.path.name,
            "total": self.store.count_runs(search, status=status),
            "offset": offset,
            "runs": [summary(run) for run in found],
        }

    def run(self, run_id: str) -> dict[str, Any]:
        """A run without its texts: numbers per turn, disclosure, and the ledger."""
        run = self.store.run(run_id)
        version = (run.events, run.status, run.updated)
        kept = self._runs.get(run.run_id)
        if kept is None or kept[0] != version:
            kept = self._runs[run.run_id] = (version, overview(self.store, run))
            while len(self._runs) > CACHED_RUNS:
                del self._runs[next(iter(self._runs))]
        return kept[1]

    def turn(self, run_id: str, n: int) -> dict[str, Any]:
        """What the model was sent at turn n, what it replied, and what its tools did.

        The turn after the last answered one may be pending: a request without a reply.
        """
        run = self.store.run(run_id)
        pending = self.store.pending_turn(run.run_id) if n >= run.turns else None
        if pending is not None and n == run.turns + 1:
            turn, ids = pending
            request = self._conversations.ranges(run.run_id, ids)
            return self._turn(turn, run.events + 1, request, len(ids)) | {"pending": True}
        turn = self.store.turn(run_id, n, with_messages=False)
        called = turn.events[0].seq
        request = self._conversations.request(turn.run_id, called)
        document = self._turn(turn, called, request, turn.called.messages if turn.called else 0)
        if pending is not None:
            # It was the request after this one that failed.
            document["ended"] = [event for event in document["ended"] if event["kind"] != "EvaluationFailed"]
        return document

    def _turn(self, turn: Turn, seq: int, request: Ranges, messages: int) -> dict[str, Any]:
        return {
            "run_id": turn.run_id,
            "n": turn.n,
            "attempt": turn.attempt,
            "time": turn.time,
            "prompt": self._prompt_before(turn.run_id, seq),
            "called": plain(turn.called),
            "sections": plain(turn.sections),
            "request": request,
            "messages": messages,
            "complete": sum(stop - start for start, stop in request) == messages,
            "tools": _tools(turn),
            "reply": None if turn.reply is None else plain(turn.reply),
            "calls": [
                _call(recorded, turn.events) for recorded in turn.events if isinstance(recorded.event, ToolInvoked)
            ],
            "hosted": [
                {"seq": recorded.seq, **plain(recorded.event)}
                for recorded in turn.events
                if recorded.kind == "HostedToolInvoked"
            ],
            "ended": [
                {"kind": recorded.kind, **plain(recorded.event)}
                for recorded in turn.events
                if recorded.kind in ("PromptExecuted", "EvaluationFailed", "RunRestarted")
            ],
        }

    def prompt(self, run_id: str, seq: int) -> dict[str, Any]:
        """A rendered prompt in pieces, each with its section."""
        found = self.store.events_where("run_id = ? AND seq = ? AND kind = 'PromptRendered'", (run_id, seq))
        if not found:
            raise RunNotFoundError(f"Run '{run_id}' has no prompt rendered at {seq}.")
        event = found[0].event
        if not isinstance(event, PromptRendered):
            raise RunFileError(f"The prompt of run '{run_id}' at {seq} cannot be read; {event.problem}.")
        return {
            "seq": seq,
            "turn": found[0].turn,
            "attempt": event.attempt,
            "name": event.prompt_name,
            "ns": event.prompt_ns,
            "key": event.prompt_key,
            "tokenizer": event.tokenizer,
            "tools": [*event.tools, *event.hosted_tools],
            "builtin_tool_tokens": event.builtin_tool_tokens,
            "pieces": _pieces(event),
        }

    def messages(self, run_id: str, start: int, stop: int) -> dict[str, Any]:
        """Some of all messages of a run, in order; fewer than asked for where they are long."""
        ids = self._conversations.ids(run_id, stop)[start:stop]
        found: list[dict[str, Any]] = []
        characters = 0
        for at in range(0, len(ids), 50):
            for recorded in self.store.identified(ids[at : at + 50]):
                found.append(self._message(recorded))
                characters += len(found[-1].get("text", ""))
                if characters > PAGE_CHARACTERS:
                    return {"start": start, "messages": found}
        return {"start": start, "messages": found}

    def events(self, run_id: str, *, offset: int = 0, limit: int = 200, kinds: Sequence[str] = ()) -> dict[str, Any]:
        """One page of the events, a line each."""
        where, values = "run_id = ?", [run_id]
        if kinds:
            where += f" AND kind IN ({', '.join('?' * len(kinds))})"
            values += kinds
        seqs = self.store.query(
            f"SELECT seq FROM events WHERE {where} ORDER BY seq LIMIT ? OFFSET ?", (*values, limit, offset)
        )
        return {
            "total": self.store.query(f"SELECT count(*) FROM events WHERE {where}", values)[0][0],
            "offset": offset,
            "kinds": dict(
                self.store.query("SELECT kind, count(*) FROM events WHERE run_id = ? GROUP BY kind", (run_id,))
            ),
            "events": [_line(recorded) for recorded in self.store.numbered(run_id, [seq for (seq,) in seqs])],
        }

    def event(self, run_id: str, seq: int) -> dict[str, Any]:
        """One event with everything in it."""
        found = self.store.numbered(run_id, [seq])
        if not found:
            raise RunNotFoundError(f"Run '{run_id}' has no event {seq}.")
        return {**_line(found[0]), "event": plain(found[0].event)}

    def search(self, words: str, run_id: str = "") -> dict[str, Any]:
        """Places where these words occur."""
        hits = search(self.store, words, run_id)
        names = {hit["run_id"] for hit in hits}
        return {"hits": hits, "runs": {name: summary(self.store.run(name)) for name in names}}

    def report(self) -> dict[str, Any]:
        """The advice from the last runs."""
        advice = advise(self.store)
        return {
            "file": self.store.path.name,
            "runs": advice.runs,
            "prompts": [{**plain(prompt), "saved": prompt.saved} for prompt in advice.prompts],
        }

    def _prompt_before(self, run_id: str, seq: int) -> int | None:
        found = self.store.query(
            "SELECT max(seq) FROM events WHERE run_id = ? AND kind = 'PromptRendered' AND seq < ?", (run_id, seq)
        )
        return found[0][0] if found else None

    def _message(self, recorded: RecordedEvent) -> dict[str, Any]:
        message: dict[str, Any] = {"seq": recorded.seq, "turn": recorded.turn, **plain(recorded.event)}
        if message.get("role") == "system":
            message["prompt"] = self._prompt_before(recorded.run_id, recorded.seq)
            if message["prompt"] is not None:
                message["text"] = ""
        return message


def _pieces(event: PromptRendered) -> list[dict[str, Any]]:
    pieces: list[dict[str, Any]] = []
    position = 0

    def add(text: str, **origin: Any) -> None:
        if text:
            pieces.append({"text": text, **origin})

    for span in event.spans:
        add(event.text[position : span.start])
        add(
            event.text[span.start : span.end],
            section=".".join(span.path),
            visibility=span.visibility.value,
            decided_by=span.decided_by,
        )
        position = span.end
    add(event.text[position:])
    return pieces


def _tools(turn: Turn) -> list[dict[str, Any]]:
    """Every tool of the request with its section; `initial` ones were there when the conversation began."""
    owners = {name: section.key for section in turn.sections for name in section.tools}
    first = set() if turn.rendered is None else {*turn.rendered.tools, *turn.rendered.hosted_tools}
    hosted = set() if turn.rendered is None else set(turn.rendered.hosted_tools)
    return [
        {
            "name": name,
            "section": owners.get(name, ""),
            "builtin": name not in owners,
            "hosted": name in hosted,
            "initial": name in first,
            "withdrawn": name in turn.withdrawn,
            "definition": turn.definitions.get(name, ""),
        }
        for name in turn.tools
    ]


def _call(recorded: RecordedEvent, events: Iterable[RecordedEvent]) -> dict[str, Any]:
    """A tool call with the text the model read as its result."""
    call: ToolInvoked = recorded.event
    read = next(
        (
            other.event.text
            for other in events
            if isinstance(other.event, Message) and other.event.role == "tool" and other.event.call_id == call.call_id
        ),
        None,
    )
    return {"seq": recorded.seq, "read": read, **plain(call)}


def _line(recorded: RecordedEvent) -> dict[str, Any]:
    return {
        "seq": recorded.seq,
        "turn": recorded.turn,
        "time": recorded.time,
        "kind": recorded.kind,
        "summary": _describe(plain(recorded.event))[:SUMMARY_LENGTH],
    }


def _describe(event: Any) -> str:
    """A few words that distinguish an event from others of its kind."""
    if not isinstance(event, dict):
        return str(event)[:SUMMARY_LENGTH]
    parts = [_words(event[name], "." if name == "path" else ", ") for name in _IDENTIFYING if event.get(name)]
    for name in ("reason", "message", "arguments", "text"):
        value = event.get(name)
        if isinstance(value, str) and value:
            parts.append(value[:SUMMARY_LENGTH])
            break
    usage = event.get("usage")
    if isinstance(usage, dict) and {"input_tokens", "cached_tokens", "output_tokens"} <= usage.keys():
        parts.append(
            f"{usage['input_tokens']:,} sent, {usage['cached_tokens']:,} cached, {usage['output_tokens']:,} back"
        )
    calls = event.get("tool_calls")
    if isinstance(calls, list):
        parts += [f"calls {call['name']}" for call in calls if isinstance(call, dict) and "name" in call]
    if not parts:
        parts = [f"{name}: {value}"[:SUMMARY_LENGTH] for name, value in event.items() if value not in ("", [], None)]
    return " · ".join(parts)


def _words(value: Any, between: str) -> str:
    return between.join(map(str, value)) if isinstance(value, list) else str(value)


_IDENTIFYING = (
    "role",
    "name",
    "kind",
    "section_key",
    "path",
    "visibility",
    "tool_names",
    "route",
    "stop_reason",
    "error",
)
