"""Recorded runs as part of a case: what the model replied, what tools returned and changed, what sections showed."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weakincentives.errors import SerdeError
from weakincentives.evals.cases import Case, CaseError
from weakincentives.limits import TokenUsage
from weakincentives.prompt import SectionPath, ToolResult
from weakincentives.runtime import (
    CallDecided,
    FilesChanged,
    Message,
    ModelCalled,
    ModelReply,
    ParamsBound,
    PendingCall,
    PromptRendered,
    RunEnded,
    SectionsExposed,
    ToolCall,
    ToolInvoked,
)
from weakincentives.runtime.spi import RUN_EVENTS
from weakincentives.serde import dump_tagged, encode, load_tagged
from weakincentives.telemetry import (
    RecordedEvent,
    RunStore,
    RunSummary,
    UnknownType,
    Unreadable,
    Unserialisable,
    plain,
    question_in,
)

VERSION = 1
OWN_PROMPTS = "wink/"
"""The prompts of judges and proposers, whose runs are no cases."""
_OWN = ("Message", "PendingCall", "Exposure", "RunState", "SectionsExposed", "CollapseSection")


@dataclass(slots=True)
class RecordedCall:
    """A tool call as it was recorded; `events` and `files` are what it changed, as tagged data."""

    tool: str
    arguments: str
    turn: int
    section: str
    success: bool
    text: str
    result: Any = None
    events: list[Any] = field(default_factory=list)
    files: Any = None
    decision: str = ""

    def tool_result(self) -> ToolResult[Any]:
        """The result; what the model read stands for a value whose class this program does not have."""
        try:
            found = load_tagged(self.result)
            if isinstance(found, ToolResult) and found.render() == self.text:
                return found
        except (SerdeError, TypeError, ValueError, AttributeError):
            pass
        return ToolResult(self.text, success=self.success)


@dataclass(slots=True)
class RecordedReply:
    """One model call: the reply, and the digests of the sections that the model had, if they changed."""

    text: str
    calls: list[list[str]]
    stop: str
    usage: list[int]
    sections: dict[str, str] = field(default_factory=dict)
    reasoning: str = ""

    def reply(self) -> ModelReply:
        calls = tuple(ToolCall(*each) for each in self.calls)
        usage = TokenUsage(*self.usage)
        stop: Any = self.stop
        return ModelReply(self.text, calls, usage, stop, reasoning=self.reasoning)


@dataclass(slots=True)
class Recording:
    """The recorded runs of a case: replies by run (empty for the case's own, a path for those inside), and calls."""

    runs: list[str]  #: ids of the recorded runs
    model: str = ""  #: the model's name
    adapter: str = ""  #: the adapter's name
    prompt: str = ""  #: namespace and key of the template
    dynamic_tools: bool = True  #: True if tools could appear mid-conversation
    replies: dict[str, list[RecordedReply]] = field(default_factory=dict)  #: the model's replies, by run
    calls: list[RecordedCall] = field(default_factory=list)  #: the tool calls, in order
    opened: list[str] = field(default_factory=list)  #: keys of the opened sections
    answer: str = ""  #: the text of the answer
    status: str = ""  #: how the run ended
    version: int = VERSION  #: the version of the format

    @classmethod
    def of(cls, case: Case) -> Recording:
        """The recording of a case."""
        if case.recording is None:
            raise CaseError(
                f"case {case.id!r} has no recording; make cases of recorded runs with cases_from_runs() or "
                "`wink eval cases`, or use live tools"
            )
        if (version := case.recording.get("version", VERSION)) != VERSION:
            raise CaseError(
                f"the recording of case {case.id!r} has format {version!r} and this release reads {VERSION}; "
                "make the case again, or use the release that wrote it"
            )
        try:
            given = {**case.recording}
            replies = {
                run: [RecordedReply(**each) for each in several] for run, several in given.pop("replies", {}).items()
            }
            calls = [RecordedCall(**each) for each in given.pop("calls", ())]
            return cls(replies=replies, calls=calls, **given)
        except (TypeError, AttributeError, ValueError) as error:
            raise CaseError(f"the recording of case {case.id!r} cannot be read: {error}; make the case again") from None

    def as_json(self) -> dict[str, Any]:
        written = plain(self)
        # Tagged data is JSON already.
        for call, each in zip(written["calls"], self.calls, strict=True):
            call.update(result=each.result, events=each.events, files=each.files)
        data: dict[str, Any] = json.loads(json.dumps(written))
        return data


def canonical(params: Any) -> str:
    """The arguments of a call as text: sorted keys, defaults filled in."""
    return json.dumps(plain(params), sort_keys=True, default=str)


def cases_from_runs(
    path: str | os.PathLike[str],
    where: Mapping[str, str] | Callable[[RunSummary], bool] | None = None,
    *,
    run_ids: Iterable[str] = (),
) -> tuple[Case, ...]:
    """A case of each recorded run that was answered, oldest first, with its recording.

    `where` are tags that the run must have, or a function of its summary. The runs of a conversation are one case, up
    to the last that was chosen. Runs of evaluations repeat questions that are cases already; they are left out if other
    runs have the tags.
    """
    with RunStore(Path(path)) as store:
        if run_ids:
            chosen = [store.run(run_id) for run_id in run_ids]
        else:
            tags = where if isinstance(where, Mapping) else None
            answered = [run for run in store.list_runs(-1, order="started", tags=tags) if run.status == "ok"]
            chosen = [run for run in answered if not run.prompt.startswith(OWN_PROMPTS)]
            if callable(where):
                chosen = [run for run in chosen if where(run)]
            else:
                chosen = [run for run in chosen if "evaluation" not in run.tags] or chosen
        cases = [_case(store, run) for run in chosen]
    # An exchange of a conversation is part of the case of a later one.
    later = {run for case in cases for run in (case.recording or {})["runs"][:-1]}
    return tuple(case for case in cases if case.id not in later)


def _case(store: RunStore, last: RunSummary) -> Case:
    reader = _read(store, last, [last])
    # Runs on one session are exchanges if the user spoke in them; else each has its own params.
    if reader.messages and last.conversation_id:
        together = store.list_runs(-1, order="started", conversation=last.conversation_id)
        before = [run for run in together if run.started < last.started and run.status == "ok"]
        reader = _read(store, last, [*before, last])
    recording = reader.recording
    recording.opened = list(dict.fromkeys(key for _, key in last.opened))
    return Case(
        id=last.run_id,
        params=_plain_params(reader.params),
        messages=tuple(reader.messages),
        metadata={"sections": recording.opened, **({"tags": dict(last.tags)} if last.tags else {})},
        recording=recording.as_json(),
    )


def _read(store: RunStore, last: RunSummary, runs: Iterable[RunSummary]) -> _Reader:
    ids = [run.run_id for run in runs]
    reader = _Reader(Recording(ids, last.model, last.adapter, last.prompt, status=last.status))
    for run_id in ids:
        for inside in (run_id, *store.inside(run_id)):
            reader.read(store.all_events(inside), inside.removeprefix(run_id))
    return reader


class _Reader:
    """Reads the events of runs into a recording."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.params: tuple[Any, ...] = ()
        self.messages: list[str] = []

    def read(self, events: Iterable[RecordedEvent], run: str) -> None:
        exposed: dict[SectionPath, str] = {}
        pending: list[Any] = []
        files: dict[str, Any] = {}
        decided: dict[str, str] = {}
        replies = self.recording.replies.setdefault(run, [])
        before = len(replies)
        for recorded in events:
            match event := recorded.event:
                case PromptRendered() | PendingCall() | Unreadable():
                    pass
                case ParamsBound():
                    self.params = self.params or (event.params if not run else ())
                case SectionsExposed():
                    exposed.update({path: f"{each.source}:{each.digest}" for path, each in event.changes.items()})
                case ModelCalled():
                    sections = {".".join(path): digest for path, digest in exposed.items()}
                    used = event.usage
                    usage = [used.input_tokens, used.output_tokens, used.cached_tokens, used.reasoning_tokens]
                    replies.append(RecordedReply("", [], event.stop_reason, usage, sections))
                    exposed, pending = {}, []
                case Message():
                    self._add_message(event, replies[before:], run)
                case FilesChanged():
                    files[event.call_id] = _tagged(event.changes)
                case CallDecided():
                    decided[event.call_id] = event.decision
                case ToolInvoked():
                    self._add_call(event, len(replies), pending, files.get(event.call_id), decided)
                    pending = []
                case RunEnded():
                    self.recording.dynamic_tools &= event.status != "restarted"
                    if not run and event.status == "completed":
                        self.recording.answer = event.text
                case _:
                    pending.extend(_event_data(event))

    def _add_message(self, message: Message, replies: list[RecordedReply], run: str) -> None:
        if message.role == "assistant" and replies and not message.rebased:
            last = replies[-1]
            last.text, last.reasoning = message.text, message.reasoning
            last.calls = [[each.id, each.name, each.arguments] for each in message.tool_calls]
        elif message.by_user and not run and not message.rebased and (words := question_in(message)):
            self.messages.append(words)

    def _add_call(
        self, event: ToolInvoked, turn: int, events: list[Any], files: Any, decided: Mapping[str, str]
    ) -> None:
        if event.disclosure is not None:
            return
        self.recording.calls.append(
            RecordedCall(
                event.name,
                canonical(event.params),
                turn,
                event.section_key,
                event.success,
                event.text,
                _tagged(event.result),
                list(events),
                files,
                decided.get(event.call_id, ""),
            )
        )


def _event_data(event: Any) -> Iterator[Any]:
    """An event of the program as tagged data; events of the library are made again by the replay."""
    kind = event.type.rpartition(":")[2] if isinstance(event, UnknownType) else type(event).__name__
    own = isinstance(event, RUN_EVENTS) or type(event).__module__.startswith("weakincentives.")
    if (own and not isinstance(event, UnknownType)) or kind in _OWN:
        return
    if (data := _tagged(event)) is not None:
        yield data


def _tagged(value: Any) -> Any:
    try:
        return {"$": value.type, "v": value.value} if isinstance(value, UnknownType) else dump_tagged(value)
    except SerdeError:
        return None


def _plain_params(params: tuple[Any, ...]) -> Any:
    """Params as a mapping by type, so that a case can be written and read without their classes."""
    if any(isinstance(each, Unserialisable) for each in params):
        return None
    named = {_type_name(each): _as_input(each) for each in params}
    return named or None


def _as_input(value: Any) -> Any:
    return plain(value) if isinstance(value, UnknownType) else json.loads(encode(value, as_input=True))


def _type_name(value: Any) -> str:
    name = value.type if isinstance(value, UnknownType) else type(value).__qualname__
    return str(name).rpartition(":")[2].rpartition(".")[2]


def by_key(calls: Iterable[RecordedCall]) -> dict[tuple[str, str], list[RecordedCall]]:
    """Recorded calls by tool and canonical arguments, in order."""
    found: dict[tuple[str, str], list[RecordedCall]] = defaultdict(list)
    for call in calls:
        found[call.tool, call.arguments].append(call)
    return found
