"""The viewer's pages as JSON documents, built from a run file.

Texts that many turns share are separate documents: a turn refers to its prompt by the number of the event that
rendered it, and to its conversation by ranges over all messages of the run, up to its end.
"""

from __future__ import annotations

import json
import keyword
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from weakincentives._base.display import shortened
from weakincentives.content import Media
from weakincentives.prompt import Span
from weakincentives.runtime import (
    HistoryTurn,
    Ledger,
    LedgerTurn,
    Message,
    PendingCall,
    PromptRendered,
    RunEnded,
    RunHistory,
    ToolCall,
    ledger_of,
)
from weakincentives.runtime.spi import SHOWS, PromptState, Step, ToolUse
from weakincentives.session import LogEntry
from weakincentives.telemetry import (
    RecordedEvent,
    RunFileError,
    RunNotFoundError,
    RunStore,
    RunSummary,
    Turn,
    advise,
    bill_of,
    plain,
)
from weakincentives.viewer.conversations import (
    PAGE,
    exchange_counts,
    exchange_facts,
    forks,
    origin,
    place,
    user_messages,
)
from weakincentives.viewer.evaluations import evaluated
from weakincentives.viewer.hosted import hosted_story, queries_of
from weakincentives.viewer.marks import marks, shortened_before, undone_events
from weakincentives.viewer.questions import question_document
from weakincentives.viewer.search import search

SUMMARY_LENGTH = 400
# A page of messages ends early once it has this many characters.
PAGE_CHARACTERS = 2_000_000
CACHED_RUNS = 8
FIRST_EVENTS = 2_000
# The messages of a request, as ranges over all messages of its conversation.
Ranges = list[tuple[int, int]]


class Documents:
    """Builds documents from a store; an overview is cached until its run grows."""

    def __init__(self, store: RunStore) -> None:
        self.store = store
        self._runs: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        # A run's messages and requests, by run id, as far as they can no longer change.
        self._message_ids: dict[str, list[int]] = {}
        self._requests: dict[str, dict[int, Ranges]] = {}

    def runs(
        self, *, search: str = "", offset: int = 0, limit: int = 100, newest: bool = False, **filters: Any
    ) -> dict[str, Any]:
        """One page of the list, newest first unless `order` says otherwise, with sums over all runs that match.

        With `newest`, a conversation is one row, that of its last run.
        """
        found = self.store.list_runs(limit, offset, search, newest=newest, **filters)
        filters.pop("order", None)
        sums = self.store.groups("all", search, **filters)
        known = sums[0]["runs"] if sums and not newest else self.store.count_runs(search, newest=newest, **filters)
        sizes = exchange_counts(self.store, {run.conversation_id for run in found if run.conversation_id})
        return {
            "file": self.store.path.name,
            "total": known,
            "sums": sums[0] if sums else None,
            "offset": offset,
            "runs": [{**summary(run), "exchanges": sizes.get(run.conversation_id)} for run in found],
        }

    def groups(self, by: Literal["prompt", "conversation"], *, search: str = "", **filters: Any) -> dict[str, Any]:
        """The runs grouped by prompt or by conversation, each group with its totals."""
        return {"by": by, "groups": self.store.groups(by, search, **filters)}

    def script(self, run_id: str) -> dict[str, Any]:
        """The run as a test: what the model replied, for a `ScriptedAdapter`."""
        return {"text": _script_of(self.store, self.store.run(run_id))}

    def run(self, run_id: str) -> dict[str, Any]:
        """A run without its texts: numbers per turn, disclosure, and the ledger."""
        run = self.store.run(run_id)
        version = (run.events, run.status, run.updated, run.children)
        kept = self._runs.get(run.run_id)
        if kept is None or kept[0] != version:
            kept = self._runs[run.run_id] = (version, overview(self.store, run))
            while len(self._runs) > CACHED_RUNS:
                del self._runs[next(iter(self._runs))]
        # Other runs of the conversation come without a change of this one.
        return {**kept[1], "conversation": place(self.store, run)}

    def conversation(self, name: str, *, offset: int = 0, limit: int = PAGE) -> dict[str, Any]:
        """A page of a conversation, oldest exchange first: what was said, answered, shortened, undone and forked."""
        found = self.store.list_runs(limit, offset, conversation=name, order="started")
        sums = self.store.groups("all", conversation=name)
        if not found or not sums:
            raise RunNotFoundError(f"There is no conversation {name!r} in '{self.store.path}'.")
        runs = [run.run_id for run in found]
        said: dict[str, list[Any]] = {}
        for recorded in self.store.identified(user_messages(self.store, runs)):
            said.setdefault(recorded.run_id, []).append(self.message(recorded))
        facts = exchange_facts(self.store, runs)
        return {
            "id": name,
            "file": self.store.path.name,
            "offset": offset,
            "sums": sums[0],
            "forked_from": origin(self.store, name),
            "forks": forks(self.store, name, runs),
            "exchanges": [
                {"at": offset + at, "run": summary(run), "said": said.get(run.run_id, []), **facts[run.run_id]}
                for at, run in enumerate(found, start=1)
            ],
        }

    def turn(self, run_id: str, n: int) -> dict[str, Any]:
        """Turn n: the request, the reply, and the calls that followed from it.

        The turn after the last answered one may be pending: a request without a reply.
        """
        run = self.store.run(run_id)
        pending = self.store.pending_turn(run.run_id) if n >= run.turns else None
        if pending is not None and n == run.turns + 1:
            turn, ids = pending
            request = _extended([], 0, self._ordinals(run.run_id, ids))
            return self._turn(turn, run.events + 1, request, len(ids)) | {"pending": True}
        turn = self.store.turn(run_id, n, with_messages=False)
        called = turn.events[0].seq
        request = self.request(turn.run_id, called)
        document = self._turn(turn, called, request, turn.called.messages if turn.called else 0)
        if pending is not None:
            leave_to_pending(document)
        return document

    def request(self, run_id: str, called: int) -> Ranges:
        """The messages of the model call with this event number."""
        known = self._requests.setdefault(run_id, {})
        if called not in known:
            ranges: Ranges = []
            # The first turns of a long run are viewed most, and need not wait for the rest.
            stop = called if called < FIRST_EVENTS else float("inf")
            for seq, kept, added in self.store.requests(run_id, stop):
                ranges = known[seq] = _extended(ranges, kept, self._ordinals(run_id, added))
        return known.get(called, [])

    def _ordinals(self, run_id: str, ids: Sequence[int]) -> list[int]:
        known = self._ids(run_id, 1)
        if ids and ids[-1] > known[-1]:
            known = self._ids(run_id, len(known) + 1)
        return [bisect_left(known, number) for number in ids]

    def _ids(self, run_id: str, needed: int) -> list[int]:
        """The ids of all messages; reads them again if fewer than `needed` are known."""
        known = self._message_ids.setdefault(run_id, [])
        if len(known) < needed:
            known = self._message_ids[run_id] = self.store.message_ids(run_id)
        return known

    def _turn(self, turn: Turn, seq: int, request: Ranges, messages: int) -> dict[str, Any]:
        events = [(recorded, plain(recorded.event)) for recorded in turn.events]
        facts = {"attempt": turn.attempt, "time": turn.time, "prompt": self._prompt_before(turn.run_id, seq)}
        state = state_parts(turn, turn.rendered)
        return turn_document(turn.run_id, turn.n, facts | state, plain(turn.called), request, messages, events)

    def prompt(self, run_id: str, seq: int) -> dict[str, Any]:
        """A rendered prompt in pieces, each with its section; other text from before the first turn comes last."""
        recorded, event = self._rendered(run_id, seq)
        said = self.store.of_kinds(run_id, ["Message"], seq, limit=1)
        first = said[0].event if said else None
        more = _after_prompt(first.text, event) if isinstance(first, Message) and first.role == "system" else None
        return {
            "seq": seq,
            "turn": recorded.turn,
            "attempt": event.attempt,
            "name": event.prompt_name,
            "ns": event.prompt_ns,
            "key": event.prompt_key,
            "tokenizer": event.tokenizer,
            "tools": [*event.tools, *event.hosted_tools],
            "builtin_tool_tokens": event.builtin_tool_tokens,
            "pieces": [*pieces_of(event.text, event.spans), *([{"text": more}] if more else [])],
        }

    def _rendered(self, run_id: str, seq: int) -> tuple[RecordedEvent, PromptRendered]:
        found = self.store.events_where("run_id = ? AND seq = ? AND kind = 'PromptRendered'", (run_id, seq))
        if not found:
            raise RunNotFoundError(f"Run '{run_id}' has no prompt rendered at {seq}.")
        event = found[0].event
        if not isinstance(event, PromptRendered):
            problems = "; ".join(self.store.problems)
            raise RunFileError(f"The prompt of run '{run_id}' in '{self.store.path}' cannot be read; {problems}.")
        return found[0], event

    def messages(self, run_id: str, start: int, stop: int) -> dict[str, Any]:
        """A range of a run's messages, in order; fewer than requested if they are long."""
        ids = self._ids(run_id, stop)[start:stop]
        found: list[dict[str, Any]] = []
        characters = 0
        for at in range(0, len(ids), 50):
            for recorded in self.store.identified(ids[at : at + 50]):
                found.append(self.message(recorded))
                characters += len(found[-1].get("text", ""))
                if characters > PAGE_CHARACTERS:
                    return {"start": start, "messages": found}
        return {"start": start, "messages": found}

    def events(self, run_id: str, *, offset: int = 0, limit: int = 200, kinds: Sequence[str] = ()) -> dict[str, Any]:
        """One page of events, one line each."""
        where, values = "run_id = ?", [run_id]
        if kinds:
            where += f" AND kind IN ({', '.join('?' * len(kinds))})"
            values += kinds
        seqs = self.store.query(
            f"SELECT seq FROM events WHERE {where} ORDER BY seq LIMIT ? OFFSET ?", (*values, limit, offset)
        )
        undone = undone_events(self.store, run_id)
        return {
            "total": self.store.query(f"SELECT count(*) FROM events WHERE {where}", values)[0][0],
            "offset": offset,
            "kinds": dict(
                self.store.query("SELECT kind, count(*) FROM events WHERE run_id = ? GROUP BY kind", (run_id,))
            ),
            "events": [
                {**line(recorded, plain(recorded.event)), "undone": undone(recorded)}
                for recorded in self.store.numbered(run_id, [seq for (seq,) in seqs])
            ],
        }

    def event(self, run_id: str, seq: int) -> dict[str, Any]:
        """One event with all its fields."""
        found = self.store.numbered(run_id, [seq])
        if not found:
            raise RunNotFoundError(f"Run '{run_id}' has no event {seq}.")
        fields = plain(found[0].event)
        return {**line(found[0], fields), "event": fields}

    def search(self, words: str, run_id: str = "") -> dict[str, Any]:
        """Where these words occur, newest runs first, and how many runs contain them."""
        found = search(self.store, words, run_id)
        return {**found, "runs": {run.run_id: summary(run) for run in found["runs"]}}

    def blob(self, digest: str) -> bytes:
        """The bytes of an image, a document or a recording."""
        found = self.store.blobs([digest])
        if digest not in found:
            raise RunNotFoundError(f"There are no bytes with the digest {digest!r} in '{self.store.path}'.")
        return found[digest].data

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

    def message(self, recorded: RecordedEvent, fields: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """A message as a document; `fields` are the event's fields if already known."""
        message: dict[str, Any] = {"run_id": recorded.run_id, "seq": recorded.seq, "turn": recorded.turn}
        message |= plain(recorded.event) if fields is None else fields
        if isinstance(recorded.event, Message):
            message["parts"] = [_part(part) for part in recorded.event.parts]
        if message.get("role") == "system":
            self._leave_out_prompt(message)
        return message

    def _leave_out_prompt(self, message: dict[str, Any]) -> None:
        """Refer to the prompt instead of repeating its text; later operator messages contain no prompt."""
        message["prompt"] = None
        seq = self._prompt_before(message["run_id"], message["seq"])
        if seq is None:
            return
        more = _after_prompt(message["text"], self._rendered(message["run_id"], seq)[1])
        if more is not None:
            message["prompt"], message["text"] = seq, more


def overview(store: RunStore, run: RunSummary) -> dict[str, Any]:
    """The run's page before any of its turns is opened."""
    history = store.history(run.run_id)
    ledger = ledger_of(history)
    calls = {turn.number: turn.seq for turn in history.turns}
    uses = _own_uses(history)
    continues = any(render.continues for render in history.renders)
    hosted = [plain(recorded.event) for recorded in store.of_kinds(run.run_id, ["HostedToolInvoked"])]
    said = [recorded.event for recorded in store.of_kinds(run.run_id, ["Message"])] if hosted else []
    return {
        "run": summary(run),
        "overrides_tag": history.renders[-1].overrides_tag if history.renders else "",
        "turns": _turns(history, ledger),
        "steps": [_step(store, run.run_id, step, calls) for step in history.openings()],
        "lanes": _lanes(history),
        "ledger": _ledger(ledger),
        "bill": plain(bill_of(history, ledger)),
        "calls": {"made": len(uses), "failed": sum(not use.success for use in uses), "hosted": len(hosted)},
        "story": story(history, ledger, uses, hosted_story(hosted, said)),
        "marks": marks(store, history),
        "shortened": shortened_before(store, run),
        "evaluation": evaluated(store, run.run_id),
        "outcome": plain(history.outcome),
        "pending": store.pending_turn(run.run_id) is not None,
        "waiting": [question_document(call) for call in store.open_calls(run.run_id)],
        "continue": store.continuation(run.run_id),
        "undone_from": history.undone_from,
        "earlier": len(store.message_ids(run.run_id, own=False)) if continues else 0,
        "parent": _parent(store, run),
        "children": {
            child.run_id.removeprefix(f"{run.run_id}/"): summary(child)
            for child in (store.children(run.run_id) if run.children.runs else ())
        },
    }


def _parent(store: RunStore, run: RunSummary) -> dict[str, Any] | None:
    """The run whose tool call made this one, and the turn of the call; None for a run of its own."""
    if not run.parent_run_id:
        return None
    call = run.run_id.removeprefix(f"{run.parent_run_id}/")
    turns = store.salvage(
        "SELECT turn FROM events WHERE run_id = ? AND kind = 'ToolInvoked' AND json_valid(payload) "
        "AND payload ->> '$.v.call_id' = ?",
        (run.parent_run_id, call),
    )
    outer = store.salvage("SELECT turns, question, prompt_name FROM runs WHERE run_id = ?", (run.parent_run_id,))
    if not outer:
        return None
    last, question, name = outer[0]
    return {"run_id": run.parent_run_id, "turn": turns[0][0] if turns else last, "question": question, "name": name}


def summary(run: RunSummary) -> dict[str, Any]:
    """One line of the list of runs."""
    return {**plain(run), "duration": run.duration, "saved": run.saved, "total_cost": run.total_cost}


def story(history: RunHistory, ledger: Ledger, uses: Sequence[ToolUse], hosted: Sequence[str] = ()) -> str:
    """A run in one sentence: what it opened, which tools that added, what it called, and what it saved.

    It leaves out what did not happen; `uses` are the calls of the program's own tools, and `hosted` tells what the
    provider's did.
    """
    sections = history.turns[-1].state.sections if history.turns else history.now.sections
    steps = history.openings()
    opened = dict.fromkeys(key for step in steps if step.kind == "open" and step.success for key in step.sections)
    brought = dict.fromkeys(name for step in steps if step.kind != "withdrawn" and step.sections for name in step.tools)
    called = dict.fromkeys(use.name for use in uses)
    parts = [f"opened {len(opened)} of {len(sections)} sections"] if opened else []
    if brought:
        parts.append(f"got {_names(brought)}")
    if called and called.keys() == brought.keys():
        parts.append(f"called {'it' if len(called) == 1 else 'them'}")
    elif called:
        parts.append(f"called {_names(called)}")
    parts += hosted
    if failed := sum(not use.success for use in uses):
        parts.append(f"{failed} of {len(uses)} calls failed" if len(uses) > 1 else "the call failed")
    share = round(100 * ledger.saved / ledger.full_prompt_tokens) if ledger.full_prompt_tokens else 0
    if share and len(sections) > 1:
        parts.append(f"sent {abs(share)}% {'less' if share > 0 else 'more'} than with everything open")
    return ", ".join(parts)


def _own_uses(history: RunHistory) -> list[ToolUse]:
    """The calls of the program's own tools, without those that opened or closed sections."""
    return [use for turn in history.turns for use in turn.uses if use.disclosure is None]


def _names(names: Iterable[str]) -> str:
    first, others = list(names)[:3], list(names)[3:]
    return ", ".join(first) + (f" and {len(others)} more" if others else "")


_COLUMNS: Mapping[str, Callable[[HistoryTurn, LedgerTurn], Any]] = {
    "n": lambda turn, row: turn.number,
    "time": lambda turn, row: turn.time,
    "input": lambda turn, row: row.sent_tokens,
    "cached": lambda turn, row: row.cached_tokens,
    "output": lambda turn, row: turn.called.usage.output_tokens,
    "latency": lambda turn, row: turn.called.latency,
    "stop": lambda turn, row: turn.called.stop_reason,
    "attempt": lambda turn, row: row.attempt,
    "full": lambda turn, row: row.full_prompt_tokens,
    "lost": lambda turn, row: row.cache_lost_tokens,
    "calls": lambda turn, row: len(turn.uses),
    "failed": lambda turn, row: sum(not use.success for use in turn.uses),
    "rolled_back": lambda turn, row: sum(use.rolled_back for use in turn.uses),
    "opened": lambda turn, row: sum(use.disclosure is not None for use in turn.uses),
}


def _turns(history: RunHistory, ledger: Ledger) -> dict[str, list[Any]]:
    """Numbers per turn, column by column."""
    pairs = list(zip(history.turns, ledger.rows, strict=True))
    return {name: [value(*pair) for pair in pairs] for name, value in _COLUMNS.items()}


def _step(store: RunStore, run_id: str, step: Step, calls: Mapping[int, int]) -> dict[str, Any]:
    """A disclosure step; if the model gave no reason, with the text of its reply."""
    found = {**plain(step), "action": step.tool or step.kind}
    if step.tool and not step.reason and step.turn in calls:
        replies = store.of_kinds(run_id, ["Message"], calls[step.turn], limit=1)
        found["said"] = replies[0].event.text if replies and isinstance(replies[0].event, Message) else ""
    return found


def _lanes(history: RunHistory) -> list[dict[str, Any]]:
    """Each section with the turns at which its state changes: full, summary, hidden, or read (returned by a tool)."""
    lanes: dict[str, dict[str, Any]] = {}
    before = None
    for turn in history.turns:
        if turn.state.sections is before:
            continue
        before = turn.state.sections
        for section in before:
            lane = lanes.setdefault(section.key, {"key": section.key, "title": section.title, "states": []})
            state = SHOWS[section.seen]
            if not lane["states"] or lane["states"][-1][1:] != [state, section.decided_by]:
                lane["states"].append([turn.number, state, section.decided_by])
    return list(lanes.values())


def _ledger(ledger: Ledger) -> dict[str, Any]:
    return {
        "sent": ledger.sent_tokens,
        "full": ledger.full_prompt_tokens,
        "cached": ledger.cached_tokens,
        "saved": ledger.saved,
        "lost": ledger.cache_lost_tokens,
        "lost_by_route": ledger.cache_lost_by_route,
        "ranked": ledger.ranked_tokens,
        "ranking_cost": ledger.ranking_cost,
        "restarts": ledger.restarts,
        "sections": [{**plain(section), "saved": section.saved} for section in ledger.sections],
    }


def _extended(ranges: Ranges, kept: int, added: Sequence[int]) -> Ranges:
    """The first `kept` numbers of the ranges, then the added ones."""
    found: Ranges = []
    for start, stop in ranges:
        stop = min(stop, start + kept)
        if start < stop:
            found.append((start, stop))
        kept -= stop - start
    for number in added:
        if found and found[-1][1] == number:
            found[-1] = (found[-1][0], number + 1)
        else:
            found.append((number, number + 1))
    return found


def _after_prompt(text: str, rendered: PromptRendered) -> str | None:
    """The rest of a system message after a prompt's text; None if the message does not begin with it."""
    own = rendered.text[: max((span.end for span in rendered.spans if span.role == "system"), default=0)].rstrip()
    return text[len(own) :].lstrip("\n") if own and text.startswith(own) else None


def pieces_of(text: str, spans: Iterable[Span]) -> list[dict[str, Any]]:
    """A rendered text in pieces, each with its section."""
    pieces: list[dict[str, Any]] = []
    position = 0

    def add(text: str, **origin: Any) -> None:
        if text:
            pieces.append({"text": text, **origin})

    for span in spans:
        add(text[position : span.start])
        add(
            text[span.start : span.end],
            section=".".join(span.path),
            visibility=span.visibility.value,
            decided_by=span.decided_by,
        )
        position = span.end
    add(text[position:])
    return pieces


def turn_document(
    run_id: str,
    n: int,
    facts: Mapping[str, Any],
    called: Any,
    request: Ranges,
    messages: int,
    events: Iterable[tuple[RecordedEvent, Any]],
) -> dict[str, Any]:
    """A turn: the messages of its request, and whether all of them were recorded; the reply, and what followed."""
    complete = sum(stop - start for start, stop in request) == messages
    sent = {"request": request, "messages": messages, "complete": complete}
    return {"run_id": run_id, "n": n, **facts, "called": called, **sent, **_turn_parts(events)}


def _turn_parts(events: Iterable[tuple[RecordedEvent, Any]]) -> dict[str, Any]:
    """The outcome of a turn, from its events and their plain forms.

    Each call includes its result as the model read it, and what it changed in the session before any rollback.
    """
    reply: Any = None
    calls: list[dict[str, Any]] = []
    hosted: list[Any] = []
    ended: list[Any] = []
    during: list[str] = []
    asked: dict[str, dict[str, Any]] = {}
    decided: dict[str, list[Any]] = {}
    for recorded, fields in events:
        if isinstance(recorded.event, PendingCall):
            asked[recorded.event.call_id] = question_document(recorded.event)
        elif recorded.kind == "CallDecided" and "call_id" in fields:
            decided.setdefault(fields["call_id"], []).append(fields)
        elif not isinstance(recorded.event, LogEntry | Message):
            during.append(shortened(f"{recorded.kind} {_describe(fields)}", SUMMARY_LENGTH))
        if recorded.kind == "Message" and isinstance(recorded.event, Message):
            if recorded.event.role == "assistant":
                reply = reply or fields
        elif recorded.kind == "ToolInvoked" and "call_id" in fields:
            undone = during if fields["rolled_back"] else []
            call_id = fields["call_id"]
            about = {"question": asked.get(call_id), "decided": decided.get(call_id, [])}
            disclosure = (fields["result"] or {}).get("disclosure")
            calls.append({"seq": recorded.seq, "undone": undone, "disclosure": disclosure, **about, **fields})
            during = []
        elif recorded.kind == "HostedToolInvoked":
            hosted.append({"seq": recorded.seq, **fields})
        elif isinstance(recorded.event, RunEnded):
            ended.append(fields)
    for used in hosted:
        used["queries"] = queries_of(reply["items"] if reply else ())
    return {"reply": reply, "calls": calls, "hosted": hosted, "ended": ended, "questions": asked}


def leave_to_pending(turn: dict[str, Any]) -> None:
    """Show how the run ended only with the request after its last answered turn, if there was one."""
    turn["ended"] = [event for event in turn["ended"] if event["status"] == "restarted"]


def state_parts(state: Turn | PromptState, rendered: PromptRendered | None) -> dict[str, Any]:
    """The model's view at a request: its sections, and every tool with the section it belongs to.

    `initial` tools were offered when the conversation began.
    """
    owners = {name: section.key for section in state.sections for name in section.tools}
    hosted = rendered.hosted_tools if rendered else ()
    initial = (*rendered.tools, *hosted) if rendered else ()
    tools = [
        {
            "name": name,
            "section": owners.get(name, ""),
            "builtin": name not in owners,
            "hosted": name in hosted,
            "initial": name in initial,
            "withdrawn": name in state.withdrawn,
            "definition": state.definitions.get(name, ""),
        }
        for name in dict.fromkeys((*state.definitions, *state.tools))
    ]
    builtin = rendered.builtin_tool_tokens if rendered else 0
    return {"sections": plain(state.sections), "tools": tools, "builtin_tokens": builtin}


def _part(part: Any) -> dict[str, Any]:
    """A part of a message; media are referred to by the digest of their bytes."""
    if not isinstance(part, Media):
        return {"kind": "text", "text": str(part)}
    digest = "" if part.blob is None else part.blob.digest
    return {
        "kind": type(part).__name__.lower(),
        "type": part.media_type,
        "digest": digest,
        "url": part.url,
        "label": str(part),
    }


def line(recorded: RecordedEvent, fields: Any) -> dict[str, Any]:
    """An event in one line of a list."""
    return {
        "seq": recorded.seq,
        "turn": recorded.turn,
        "time": recorded.time,
        "kind": recorded.kind,
        "summary": shortened(_describe(fields), SUMMARY_LENGTH),
    }


def _describe(event: Any) -> str:
    """A few words that distinguish an event from others of its kind."""
    if not isinstance(event, dict):
        return str(event)
    parts = []
    for name in _IDENTIFYING:
        if value := event.get(name):
            between = "." if name == "path" else ", "
            parts.append(between.join(map(str, value)) if isinstance(value, list) else str(value))
    for name in ("reason", "message", "arguments", "text"):
        value = event.get(name)
        if isinstance(value, str) and value:
            parts.append(value)
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
        parts = [f"{name}: {value}" for name, value in event.items() if value not in ("", [], None)]
    return " · ".join(parts)


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

_TEST = """\
from weakincentives import MainLoop, Session
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.runtime import ModelReply, ToolCall

SCRIPT = [
{lines}
]


def test_{name}_as_recorded() -> None:
    prompt = ...  # the prompt {prompt!r} with its params bound
    with ScriptedAdapter(SCRIPT) as adapter:
        response = MainLoop().execute(prompt, session=Session(), adapter=adapter)
    assert response.text == {answer!r}
"""


def _script_of(store: RunStore, run: RunSummary) -> str:
    """A test that replays the run's replies; its reader must fill in what the prompt was bound to."""
    messages = (recorded.event for recorded in store.of_kinds(run.run_id, ["Message"]))
    said = [one for one in messages if isinstance(one, Message) and one.role == "assistant" and not one.rebased]
    name = re.sub(r"\W+", "_", run.prompt_name or run.run_id, flags=re.ASCII).strip("_").lower()
    lines = "\n".join(f"    {_reply(reply)}," for reply in said)
    return _TEST.format(lines=lines, name=name, prompt=run.prompt, answer=said[-1].text if said else "")


def _reply(reply: Message) -> str:
    if not reply.tool_calls:
        return repr(reply.text)
    if reply.text:
        return f'ModelReply({reply.text!r}, {reply.tool_calls!r}, stop_reason="tool_calls")'
    calls = ", ".join(map(_call, reply.tool_calls))
    return calls if len(reply.tool_calls) == 1 else f"[{calls}]"


def _call(call: ToolCall) -> str:
    """A call as Python, with its arguments as keywords if Python accepts them as such and nothing is lost."""
    try:
        arguments = json.loads(call.arguments or "{}")
        json.dumps(arguments, allow_nan=False)  # Infinity and NaN have no name in Python.
    except (ValueError, RecursionError):
        return repr(call)
    if not isinstance(arguments, dict) or not all(map(_is_keyword_argument, arguments)):
        return repr(call)
    words = [json.dumps(call.name)]
    for key, value in arguments.items():
        words.append(f"{key}={value!r}")
    return f"call({', '.join(words)})"


def _is_keyword_argument(name: str) -> bool:
    # Python changes names that are not ASCII (NFKC), and `call_id` is a parameter of `call` itself.
    is_name = name.isascii() and name.isidentifier() and not keyword.iskeyword(name)
    return is_name and name not in ("call_id", "__debug__")
