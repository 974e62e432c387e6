"""Events of a run: log entries of the session, and the source of everything that is recorded or shown."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from weakincentives._base.frozen import quick_init
from weakincentives.filesystem import FileChange
from weakincentives.limits import TokenUsage
from weakincentives.prompt import DisclosureRequest, Overrides, SectionPath, SectionVisibility, Span, ToolResult
from weakincentives.prompt.tool_names import qualified_names
from weakincentives.runtime.messages import Message, StopReason
from weakincentives.session import LogEntry, reducer


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent(LogEntry):
    """When something happened, in which run and conversation, and inside which other run, if its run was delegated."""

    run_id: str = ""  #: the run
    timestamp: float = field(default_factory=time.time)  #: seconds since 1970
    conversation_id: str = ""  #: the conversation that the run is part of
    parent_run_id: str = ""  #: the run whose tool call made this run


@dataclass(frozen=True, slots=True)
class SectionState:
    """One section of the tree at render: what it shows, what decided it, and its tokens shown and in full.

    The counts are for the section alone, without children; `tool_tokens` is what its tools add when it is open. `base`
    is what it would show if its ancestors were open, without the session's overrides. `filled` says that it has params,
    and `unloaded` that it may add tools that are not known yet.
    """

    path: SectionPath
    title: str
    visibility: SectionVisibility
    decided_by: str
    shown_tokens: int
    full_tokens: int
    tools: tuple[str, ...] = ()
    tool_tokens: int = 0
    collapsible: bool = False
    base: SectionVisibility = SectionVisibility.FULL
    base_decided_by: str = "declared"
    filled: bool = False
    unloaded: bool = False

    def after(self, rendered: SectionState | None) -> SectionState:
        """This later state of a section, with what the prompt's text still shows of it."""
        if rendered is None:
            return replace(self, visibility=SectionVisibility.HIDDEN, shown_tokens=0)
        return replace(
            self, visibility=rendered.visibility, decided_by=rendered.decided_by, shown_tokens=rendered.shown_tokens
        )


class RequestSize(NamedTuple):
    """The tokens of one request's prompt, tools included: as it is, and with everything open."""

    sent: int
    full: int

    @classmethod
    def of(cls, sections: Iterable[SectionState], builtin_tool_tokens: int) -> RequestSize:
        """The size from the sections at render and the disclosure strategy's own tools, which an open prompt lacks."""
        sent, full = builtin_tool_tokens, 0
        for section in sections:
            sent += section.shown_tokens + (section.tool_tokens if section.visibility is SectionVisibility.FULL else 0)
            full += section.full_tokens + section.tool_tokens
        return cls(sent, full)


@quick_init
@dataclass(frozen=True, slots=True)
class Exposed:
    """The text that the model has of one section.

    `source` is where its text stands: in full in the system or first user text ("prompt"), in a later message
    ("conversation"), only as a summary, or nowhere. `digest` and `tokens` are those of that text; `call_id` is the call
    whose result holds it, if one does. `prompt` is the digest of the full text in the prompt, and `result` the last
    call that returned the full text, with its digest; either may be an older text. `listed` is the last call that
    returned the summary, with its digest and tokens: it counts once the full text is gone.
    """

    source: Literal["prompt", "conversation", "summary", "none"]
    digest: str = ""
    call_id: str = ""
    tokens: int = 0
    prompt: str = ""
    result: tuple[str, str] | None = None
    listed: tuple[str, str, int] | None = None

    def with_text(self, digest: str, tokens: int) -> Exposed:
        """The exposure once the full text with this digest stands somewhere in the conversation."""
        source: Literal["prompt", "conversation"] = "prompt" if self.prompt == digest else "conversation"
        call_id = self.result[0] if self.result is not None and self.result[1] == digest else ""
        return Exposed(source, digest, call_id, tokens, self.prompt, self.result, self.listed)


_NOWHERE = Exposed("none")


@dataclass(frozen=True, slots=True)
class SectionsExposed(RunEvent):
    """The model has more or less of some sections than before; `changes` maps their paths to what it has now.

    `run_path` is empty for a run of its own.
    """

    changes: Mapping[SectionPath, Exposed]
    reason: str = ""  #: what caused the change
    run_path: str = ""


@dataclass(frozen=True, slots=True)
class Exposure(Mapping[SectionPath, Exposed]):
    """The text that the model has of each section, by path; of a path that is missing, it has nothing.

    Closing a section changes nothing here: its text stands in the conversation until that is rendered again or
    shortened. `children` are the exposures of runs inside this one, by run path.
    """

    sections: Mapping[SectionPath, Exposed] = field(default_factory=dict)  #: the exposure of each section
    children: Mapping[str, Exposure] = field(default_factory=dict)

    def __getitem__(self, path: SectionPath) -> Exposed:
        return self.sections.get(path, _NOWHERE)

    def __contains__(self, path: object) -> bool:
        return path in self.sections

    def __iter__(self) -> Iterator[SectionPath]:
        return iter(self.sections)

    def __len__(self) -> int:
        return len(self.sections)

    @reducer(on=SectionsExposed)
    def handle(self, event: SectionsExposed) -> Exposure:
        if event.run_path:
            child = self.children.get(event.run_path, Exposure()).with_changes(event.changes)
            return Exposure(self.sections, {**self.children, event.run_path: child})
        return self.with_changes(event.changes)

    def with_changes(self, changes: Mapping[SectionPath, Exposed]) -> Exposure:
        sections = {**self.sections, **changes}
        for path, exposed in changes.items():
            if exposed == _NOWHERE:
                sections.pop(path, None)
        return Exposure(sections, self.children)


@dataclass(frozen=True, slots=True)
class PromptRendered(RunEvent):
    """An attempt begins with this text and these tools; `definitions` are the tools as sent, hosted tools last.

    `overrides` are the session's at this moment, and `exposed` is what the model had of each section before; the
    `SectionsExposed` that follows changes it. `continues` is the run whose conversation continues here with the same
    text. `overrides_tag` is that of the stored override of its texts, if one was applied; `tags` are the run's.
    `module` is the module that made the prompt's template.
    """

    prompt_ns: str  #: the template's namespace
    prompt_key: str  #: the template's key
    prompt_name: str  #: the name of the prompt
    adapter: str  #: the adapter's name
    model: str  #: the model's name
    attempt: int  #: its number in the run, from 1
    text: str  #: the rendered text
    tools: tuple[str, ...]  #: names of the tools
    hosted_tools: tuple[str, ...] = ()  #: names of the hosted tools
    spans: tuple[Span, ...] = ()  #: which section each part of the text comes from
    sections: tuple[SectionState, ...] = ()  #: the state of every section
    tokenizer: str = ""  #: how tokens were counted
    builtin_tool_tokens: int = 0  #: tokens of the tools that open sections
    definitions: tuple[str, ...] = ()
    overrides: Overrides = field(default_factory=dict)
    continues: str = ""
    exposed: Mapping[SectionPath, Exposed] = field(default_factory=dict)
    overrides_tag: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    module: str = ""

    @property
    def size(self) -> RequestSize:
        return RequestSize.of(self.sections, self.builtin_tool_tokens)


@dataclass(frozen=True, slots=True)
class ParamsBound(RunEvent):
    """The params with which a run begins; only observers, such as a recorder, receive it."""

    run_id: str  #: the run
    params: tuple[Any, ...]  #: one instance of each params type


@dataclass(frozen=True, slots=True)
class FilesChanged(RunEvent):
    """The files that a tool call changed; only observers, such as a recorder, receive it."""

    run_id: str  #: the run
    call_id: str  #: the call
    changes: tuple[FileChange, ...]  #: each changed path


@dataclass(frozen=True, slots=True)
class SectionLoaded(RunEvent):
    """A section was opened and added tools or children that were not known before; `sections` is the new state.

    `changed_tools` differ from what was known beforehand.
    """

    section_key: str  #: the section
    sections: tuple[SectionState, ...]
    changed_tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SectionsOpened(RunEvent):
    """Sections were opened without the model asking: by their `open_when` ("rule"), for the user's words ("search"), by
    the provider's own search ("provider"), or by your program ("code").
    """

    section_keys: tuple[str, ...]  #: the sections
    decided_by: str  #: what opened them


@dataclass(frozen=True, slots=True)
class PossibleMiss(RunEvent):
    """A section that may have been needed stayed closed; `score` is between 0 and 1, `reason` is for people to read."""

    section_key: str  #: the section
    score: float
    reason: str


@dataclass(frozen=True, slots=True)
class SectionsRanked(RunEvent):
    """A model ranked sections, for a search, for the user's words or for a report of misses; `cost` is in dollars."""

    model: str  #: the model that ranked
    usage: TokenUsage  #: tokens of its calls
    cost: float
    latency: float  #: in seconds


@quick_init
@dataclass(frozen=True, slots=True)
class ModelCalled(RunEvent):
    """The model was called once, with the first `messages` messages; `tools` are those it could call.

    `overrides` are the session's at that moment, so that what was open is known even if a change was undone later.
    """

    prompt_name: str  #: the name of the prompt
    adapter: str  #: the adapter's name
    model: str  #: the model that answered
    turn: int  #: its number in the run, from 1
    usage: TokenUsage  #: tokens of this call
    stop_reason: StopReason  #: why the model stopped
    latency: float  #: in seconds
    retries: int = 0  #: failed requests before it
    response_id: str = ""  #: the provider's id of the reply
    messages: int = 0
    tools: tuple[str, ...] = ()
    overrides: Overrides = field(default_factory=dict)


Insert = tuple[int, Message | None]
"""A message that only requests have, after so many of those that a cut counts."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The part of a conversation that is not sent, or not as it was said.

    In place of the first `summarized` messages that a restart keeps, `head` is sent, if it is for any provider or for
    that of the request; in the first `cleared` of them, results are replaced by a line, and so are those of the calls
    `closed`, whose sections were closed. `rebased` replies no longer follow what they were written after. The cut holds
    as long as these messages have this `digest`. `keeps_tools` says that `head` includes the tools added before.
    `omitted` tokens are left out of each request; `by_turns` says that turns are counted as exchanges.
    `inserts` are messages that only requests have, each after this many of those that a restart
    keeps; None stands for the prompt's user messages among those that are summarized.
    """

    cleared: int = 0
    summarized: int = 0
    closed: tuple[str, ...] = ()
    rebased: int = 0
    digest: str = ""
    head: Message | None = None
    keeps_tools: bool = False
    omitted: int = 0
    by_turns: bool = False
    inserts: tuple[Insert, ...] = ()


@dataclass(frozen=True, slots=True)
class Compacted(RunEvent):
    """A conversation was shortened from `before` to `after` tokens, by the last of the steps that were needed.

    `by` is "sections", "results", "provider", "model" or "function"; `usage` is that of the summary, and `rewritten`
    the tokens that the next request cannot read from the cache because of it. `window` is the size of the model's
    context window, if an overflow has revealed it, `cut` what is left out from now on, and `messages` the length of the
    conversation.
    """

    run_id: str  #: the run
    before: int
    after: int
    saved: int  #: tokens that are no longer sent
    by: str
    cut: Cut
    usage: TokenUsage = field(default_factory=TokenUsage)
    rewritten: int = 0
    window: int | None = None
    messages: int = 0
    model: str = ""  #: the model that wrote the summary

    def __str__(self) -> str:
        spent = f"; the summary took {self.usage.total_tokens:,}" if self.usage.total_tokens else ""
        return f"from {self.before:,} to {self.after:,} tokens by {self.by}, saving {self.saved:,} a request{spent}"


@dataclass(frozen=True, slots=True)
class ContextWindow:
    """The use of a model's context window by a conversation, and the part of that which is sent.

    `limit` is the size of the window, if an overflow has revealed it. `tokens` is the size of the last request with its
    reply, which includes the first `counted` messages, and `called` its time. `calls` with their `usage`, the
    `overhead` of compactions, what they have `rewritten`, and what requests have `omitted` because of them are sums;
    `compacted` and `summarized` are the number of calls before the last compaction and the last summary. A request
    with the first `prepared` messages has been as short as it gets; one that is sent again after a rewind stays so.
    `tried` is the size of what the last summary was to replace, if that failed.
    """

    limit: int | None = None
    tokens: int = 0
    counted: int = 0
    called: float = 0.0
    cut: Cut | None = None  #: what is left out of requests
    calls: int = 0
    usage: TokenUsage = field(default_factory=TokenUsage)
    overhead: TokenUsage = field(default_factory=TokenUsage)
    rewritten: int = 0
    omitted: int = 0
    compacted: int = 0
    summarized: int = 0
    prepared: int = 0
    tried: int = 0

    @reducer(on=PromptRendered)
    def begin(self, event: PromptRendered) -> ContextWindow:
        return self if event.continues else replace(self, tokens=0, counted=0)

    @reducer(on=ModelCalled)
    def add(self, event: ModelCalled) -> ContextWindow:
        return replace(
            self,
            tokens=event.usage.total_tokens if event.usage.input_tokens else 0,
            counted=event.messages + 1,
            called=event.timestamp,
            calls=self.calls + 1,
            usage=self.usage + event.usage,
            omitted=self.omitted + (0 if self.cut is None else self.cut.omitted),
        )

    @reducer(on=Compacted)
    def shorten(self, event: Compacted) -> ContextWindow:
        return replace(
            self,
            limit=self.limit if event.window is None else event.window,
            tokens=event.after,
            counted=event.messages,
            cut=event.cut,
            overhead=self.overhead + event.usage,
            rewritten=self.rewritten + event.rewritten,
            compacted=self.calls,
            summarized=self.summarized if event.by in ("sections", "results") else self.calls,
            tried=self.tried if event.by in ("sections", "results") else 0,
        )


@dataclass(frozen=True, slots=True)
class ModelWindows:
    """The sizes of context windows that overflows have revealed, in tokens, by model.

    They belong to the models: a rewind keeps them, and runs inside one another share them.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)

    def of(self, model: str) -> int | None:
        """The size of a model's window, if it is known."""
        return self.sizes.get(model)

    def with_size(self, model: str, tokens: int) -> ModelWindows:
        """The sizes with that of one more model."""
        return ModelWindows({**self.sizes, model: tokens})

    @reducer(on=Compacted)
    def learn(self, event: Compacted) -> ModelWindows:
        return self if event.window is None else self.with_size(event.model, event.window)


@quick_init
@dataclass(frozen=True, slots=True)
class ToolInvoked(RunEvent):
    """A tool was called, or the call was refused; the event is kept even if the changes are rolled back.

    `text` is what the model read of the result, and `operator_text` what followed the results as a system message.
    `unchanged` names what a call with `approval="effects"` might have changed, but did not: it ran without a question.
    """

    name: str  #: the tool's name
    params: Any  #: the typed arguments
    result: ToolResult[Any]  #: the handler's result
    call_id: str  #: the id of the call
    arguments: str = ""  #: the JSON text of the arguments
    rolled_back: bool = False  #: True if its changes were undone
    duration: float = 0.0  #: in seconds
    section_key: str = ""  #: the section that offers the tool
    compensation: str = ""  #: the outcome of undoing effects outside, if that was needed
    text: str = ""
    operator_text: str = ""
    own_name: str = ""  #: the section's own name for the tool, if it was loaded late
    unchanged: tuple[str, ...] = ()

    def is_of(self, name: str) -> bool:
        """True if the tool was called by this name, or if it is this `section.tool`."""
        own_name = self.own_name or self.name
        return name == self.name or name in qualified_names(self.section_key, own_name)

    @property
    def success(self) -> bool:
        return self.result.success

    @property
    def disclosure(self) -> DisclosureRequest | None:
        """The sections that the call opens or closes; None for other tools."""
        return self.result.disclosure


@dataclass(frozen=True, slots=True)
class ToolsInjected(RunEvent):
    """Tools appeared in the middle of a conversation, by `route`; `definitions` are the tools as sent."""

    tool_names: tuple[str, ...]  #: the tools
    section_key: str  #: their section
    route: str = ""
    definitions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolsWithdrawn(RunEvent):
    """Tools may no longer be called because their section was closed."""

    tool_names: tuple[str, ...]  #: the tools
    section_key: str  #: their section
    route: str = ""  #: how the provider was informed


@dataclass(frozen=True, slots=True)
class HostedToolInvoked(RunEvent):
    """The provider ran a hosted tool in this run; `output` holds all of its results."""

    name: str  #: the tool's name
    kind: str  #: the kind that selects its codec
    output: Any


@dataclass(frozen=True, slots=True)
class PromptChanged(RunEvent):
    """A conversation continues with a prompt that differs from what the model has; a notice was sent."""

    changed_sections: tuple[str, ...] = ()  #: keys of sections with other text
    removed_sections: tuple[str, ...] = ()  #: keys of sections that are gone
    removed_tools: tuple[str, ...] = ()  #: names of tools that are gone


@dataclass(frozen=True, slots=True)
class ReasoningDropped(RunEvent):
    """The reasoning of earlier turns is no longer sent to the model, since its provider would not accept it."""

    reason: str  #: why


@dataclass(frozen=True, slots=True)
class CallDecided(RunEvent):
    """A call that waited was decided: "approve", "deny", "edit" or "answer", or "undecided" if the user went on."""

    call_id: str  #: the call
    decision: str  #: the decision
    by: str = ""  #: who decided
    reason: str = ""  #: why, if a reason was given


@dataclass(frozen=True, slots=True)
class GuardDecided(RunEvent):
    """A guard did not simply allow: `outcome` is "refuse", "replace", "retry", "ask" or "stop".

    `message` is its text, or the reason why it failed; a replaced value is not recorded here.
    """

    guard: str  #: the guard's name
    hook: str  #: the method that decided, such as before_tool
    outcome: str
    message: str = ""
    call_id: str = ""  #: the call, if it was about one


@dataclass(frozen=True, slots=True)
class ResourcesNotClosed(RunEvent):
    """Resources failed to close after a run; its answer was returned anyway."""

    message: str  #: the errors


@dataclass(frozen=True, slots=True)
class Rewound(RunEvent):
    """The conversation went back to a point, and the turns of this run from `turn` on no longer count.

    If `turn` is 0, neither does its message. The point was reached at the time `since`. With `back=False`, this was
    undone, and they count again. What they used is not given back.
    """

    turn: int = 0
    point: str = ""  #: the id of the point
    since: float = 0.0
    back: bool = True


@dataclass(frozen=True, slots=True)
class CheckpointFailed(RunEvent):
    """The changes of a call at `paths` cannot be taken back; the conversation can still go back without it."""

    reason: str  #: why
    call_id: str = ""  #: the call
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Undone:
    """A time of which the session still has the events, although the conversation has gone back to before it."""

    since: float
    until: float


RunStatus = Literal["completed", "waiting", "halted", "restarted", "failed", "recovered", "stopped", "suspended"]


@dataclass(frozen=True, slots=True)
class RunEnded(RunEvent):
    """An attempt of a run ended, and with it the run, unless it was "restarted", "recovered" or "suspended".

    It was "completed" with an answer, ended "waiting" for a person to decide about calls, was "stopped" from
    outside (a closed stream, a cancelled task, Ctrl-C), or "failed": `error` is the type of the exception and
    `reason` its text. To open the sections `section_keys`, it "halted" for its caller, or "restarted" by its main
    loop. After an error, it was "recovered" by the next adapter. A "suspended" run left the process that ran it
    durably; it continues elsewhere or later, or was cancelled. `usage` and `turns` are those of the run so far,
    `duration` is that of the attempt.
    """

    prompt_name: str  #: the name of the prompt
    status: RunStatus  #: how it ended
    prompt_ns: str = ""  #: the template's namespace
    prompt_key: str = ""  #: the template's key
    adapter: str = ""  #: the adapter's name
    model: str = ""  #: the model's name
    text: str = ""  #: the text of the answer
    output: Any = None  #: the typed answer
    reason: str = ""
    error: str = ""
    phase: str = ""  #: where it failed
    section_keys: tuple[str, ...] = ()
    usage: TokenUsage = field(default_factory=TokenUsage)
    turns: int = 0
    duration: float = 0.0


RUN_EVENTS: tuple[type[RunEvent], ...] = tuple(
    found for found in list(globals().values()) if isinstance(found, type) and RunEvent in found.__bases__
)
