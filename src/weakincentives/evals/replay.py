"""Replays recorded runs: tools return what was recorded, and so does the model, until something differs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from weakincentives.errors import WinkError
from weakincentives.evals.decisions import Decision
from weakincentives.evals.recording import RecordedCall, RecordedReply, Recording, by_key, canonical
from weakincentives.filesystem import StaleFilesError
from weakincentives.prompt import Tool, ToolContext, ToolResult
from weakincentives.runtime import (
    Answer,
    Approve,
    Channel,
    Deny,
    Exposure,
    LiveRun,
    ModelReply,
    ModelRequest,
    PendingCall,
    ProviderAdapter,
)
from weakincentives.serde import load_tagged
from weakincentives.telemetry import Redactor

ToolMode = Literal["live", "recorded", "recorded-or-read-only"]


class DivergedError(WinkError):
    """A replay differs from its recording: the message names the turn and the section, and what differs there."""

    ends_run = True

    def __init__(self, message: str, *, turn: int, section: str = "") -> None:
        super().__init__(message)
        self.turn = turn
        self.section = section


class RecordedTools:
    """Handlers that return what was recorded, found by tool and arguments, and make its changes again.

    `live` lists the calls that ran because nothing was recorded of them, which only read-only tools may.
    """

    def __init__(self, recording: Recording, mode: ToolMode = "recorded") -> None:
        self._calls = by_key(recording.calls)
        self._all = recording.calls
        self._mode = mode
        self._used: dict[tuple[str, str], int] = {}
        self._redactor = Redactor()
        self.live: list[str] = []

    def handler_of(self, tool: Tool[Any, Any]) -> Callable[..., Any]:
        """The handler for a tool; those that open sections, and runs inside calls, are not replaced."""
        if not tool.transactional:
            return tool.handler

        def handle(params: Any, *, context: ToolContext) -> Any:
            if any(node is None and offered.name == tool.name for node, offered in context.view.offered()):
                return tool.handler(params, context=context)
            found = self._next(tool, canonical(params))
            if found is not None:
                return self._replayed(tool, found, context)
            if self._mode == "recorded-or-read-only" and tool.read_only:
                self.live.append(tool.name)
                return tool.handler(params, context=context)
            raise self._missing(tool, canonical(params), context)

        return handle

    def decide(self, pending: tuple[PendingCall, ...]) -> dict[str, Decision]:
        """The recorded decisions about calls that wait; nothing happens outside, so others are approved."""
        found: dict[str, Decision] = {}
        for call in pending:
            key = call.tool, canonical(call.params)
            recorded = next(iter(self._calls.get(key, ())), None)
            if recorded is not None and recorded.decision == "deny":
                found[call.question.id] = Deny(recorded.text)
            elif recorded is not None and recorded.decision == "answer":
                found[call.question.id] = Answer(recorded.text)
            else:
                found[call.question.id] = Approve()
        return found

    def _next(self, tool: Tool[Any, Any], arguments: str) -> RecordedCall | None:
        for key in ((tool.name, arguments), (tool.name, self._redactor.text(arguments))):
            if calls := self._calls.get(key):
                used = self._used.get(key, 0)
                self._used[key] = used + 1
                # A call that only reads returns the same again.
                return calls[used] if used < len(calls) else calls[-1] if tool.read_only else None
        return None

    def _replayed(self, tool: Tool[Any, Any], call: RecordedCall, context: ToolContext) -> ToolResult[Any]:
        for data in call.events:
            context.session.dispatch(load_tagged(data))
        if call.files is not None:
            files: Any = context.filesystem
            try:
                files.apply(load_tagged(call.files))
            except (StaleFilesError, AttributeError) as error:
                where = _where(tool, context)
                message = f"{where}: the files that {tool.name} changed are not as they were: {error}"
                raise DivergedError(message, turn=_turn(context), section=call.section) from None
        return call.tool_result()

    def _missing(self, tool: Tool[Any, Any], arguments: str, context: ToolContext) -> DivergedError:
        recorded = [call for call in self._all if call.tool == tool.name]
        if not recorded:
            why = "the recording has no call of this tool"
        elif (tool.name, arguments) in self._calls:
            why = f"it was recorded {len(self._calls[tool.name, arguments])} times, and this call is one more"
        else:
            why = f"recorded with {_difference(arguments, recorded)}"
        message = f"{_where(tool, context)}: {tool.name}({_written(arguments)}) has no recording; {why}"
        return DivergedError(message, turn=_turn(context), section=_section(tool, context))


class ReplayAdapter(ProviderAdapter):
    """Replies as a recorded model did, as long as it is shown what that was shown.

    Before each reply, the sections that the model has are compared with those of the recording; the first whose text
    differs makes the run diverge.
    """

    name = "recorded"

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording.model or "recorded")
        self._recording = recording
        self._places: dict[str, int] = {}
        self._recorded: dict[str, str] = {}

    @property
    def supports_dynamic_tools(self) -> bool:
        return self._recording.dynamic_tools

    def check_content(self, parts: Any) -> None:
        """The recorded model has accepted all content."""

    def channel(self) -> Channel:
        return _Replay(self, "", None)

    @contextmanager
    def open_channel(self, live: LiveRun) -> Iterator[Channel]:
        root = live.spec.parents[0] if live.spec.parents else live.run_id
        yield _Replay(self, live.run_id.removeprefix(root), live)

    def next_reply(self, run: str) -> tuple[RecordedReply, int]:
        """The next reply of a run, and its number."""
        place = self._places.get(run, 0)
        replies = self._recording.replies.get(run, [])
        if place >= len(replies):
            message = f"turn {place + 1}: the recorded model was not called again; it ended after {place} turns"
            raise DivergedError(message, turn=place + 1)
        self._places[run] = place + 1
        return replies[place], place + 1

    def check_sections(self, exposure: Mapping[str, str], recorded: RecordedReply, turn: int) -> None:
        """Raise if a section shows something else than it did in the recording."""
        self._recorded.update(recorded.sections)
        kept = {key: shown for key, shown in self._recorded.items() if not shown.startswith("none:")}
        for key in (*exposure, *kept):
            here, there = exposure.get(key), kept.get(key)
            if here != there:
                raise DivergedError(f"turn {turn}: section '{key}' {_changed(here, there)}", turn=turn, section=key)


class _Replay(Channel):
    def __init__(self, adapter: ReplayAdapter, run: str, live: LiveRun | None) -> None:
        self._adapter, self._run, self._live = adapter, run, live

    def call(self, request: ModelRequest) -> ModelReply:
        recorded, turn = self._adapter.next_reply(self._run)
        if self._live is not None and not self._run:
            shown = self._live.session[Exposure].latest() or Exposure()
            exposed = {".".join(path): f"{each.source}:{each.digest}" for path, each in shown.items()}
            self._adapter.check_sections(exposed, recorded, turn)
        return recorded.reply()

    async def call_async(self, request: ModelRequest) -> ModelReply:
        return self.call(request)


def _changed(here: str | None, there: str | None) -> str:
    if there is None:
        return "was not shown in the recording"
    if here is None:
        return "is not shown, but was in the recording"
    (source, _, _), (before, _, _) = here.partition(":"), there.partition(":")
    if source != before:
        return f"is shown as {source!r}, and was as {before!r} in the recording"
    return f"has another {'summary' if source == 'summary' else 'text'} than in the recording"


def _difference(arguments: str, recorded: list[RecordedCall]) -> str:
    """The arguments of the most similar recorded call that differ."""
    here = json.loads(arguments)

    def apart(call: RecordedCall) -> dict[str, Any]:
        there = json.loads(call.arguments)
        if not isinstance(here, dict) or not isinstance(there, dict):
            return {"arguments": there}
        return {key: there.get(key) for key in sorted({*here, *there}) if here.get(key) != there.get(key)}

    nearest = min((apart(call) for call in recorded), key=len)
    return ", ".join(f"{key}={json.dumps(value)}" for key, value in nearest.items())


def _written(arguments: str) -> str:
    given = json.loads(arguments)
    if not isinstance(given, dict):
        return "" if given is None else arguments
    return ", ".join(f"{key}={json.dumps(value)}" for key, value in given.items())


def _turn(context: ToolContext) -> int:
    return int(context.run.meter.turns)


def _section(tool: Tool[Any, Any], context: ToolContext) -> str:
    offered = context.view.offered()
    return next((node.key for node, other in offered if node is not None and other.name == tool.name), "")


def _where(tool: Tool[Any, Any], context: ToolContext) -> str:
    section = _section(tool, context)
    return f"turn {_turn(context)}, section '{section}'" if section else f"turn {_turn(context)}"
