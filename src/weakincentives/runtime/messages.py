"""The conversation between our loop and a model, independent of any provider's wire format.

One flat `Message` keeps `session[Message]` a plain append-only slice: the whole conversation of a run, which any
adapter can encode and another process can continue.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Generic, Literal, NamedTuple, get_args

from weakincentives._base.display import Displayed, Shown, Table, lines, said, shortened
from weakincentives._base.frozen import quick_init
from weakincentives._base.generics import OutputT
from weakincentives.content import Content, Part, Text, parts_of, text_of
from weakincentives.errors import PromptEvaluationError
from weakincentives.limits import Deadline, TokenUsage
from weakincentives.prompt import HostedTool, OpenSectionsResult, StructuredOutputConfig, Tool
from weakincentives.runtime.calls.approval import PendingCall
from weakincentives.serde import dump
from weakincentives.session import Session

Role = Literal["system", "user", "assistant", "tool", "tools_added", "tools_removed"]
StopReason = Literal["end", "tool_calls", "length", "overflow", "refusal", "content_filter", "pause"]
Effort = Literal["none", "low", "medium", "high", "xhigh", "max"]
_ROLES = frozenset(get_args(Role))
PROMPT_TEXT = "prompt"
"""The kind of the system messages that the prompt makes, and of the user message that its user sections make."""
INSTRUCTIONS = "instructions"
"""The kind of the message with a section that begins to apply: a user message if its text has params.

Also of the user message with descriptions of tools that are too long for their definitions."""
READ_TEXT = "read"
"""The kind of the system message that shows what the model has read."""
CORRECTION = "correction"
"""The kind of the user message that asks for another answer, because the last did not fit the declared output."""
SUMMARY = "summary"
"""The kind of the message that stands for earlier exchanges: a user message with a summary, or the provider's own."""
EARLIER = "earlier"
"""The kind of the user message that repeats what the user said in exchanges that are summarized."""
_REWRITTEN = {("system", PROMPT_TEXT), ("system", INSTRUCTIONS), ("user", INSTRUCTIONS)}


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings that every provider has under some name; None leaves the choice to the model.

    A setting that the model does not support raises an error that names it, before the request. An adapter's
    `parameters=` are for everything else.
    """

    effort: Effort | None = None  #: how much the model reasons
    temperature: float | None = None  #: 0 for the most likely answer
    max_output_tokens: int | None = None  #: the longest reply
    show_reasoning: bool | None = None  #: stream and keep the reasoning, or its summary
    parallel_tool_calls: bool | None = None  #: allow several calls in one reply

    def __post_init__(self) -> None:
        if self.effort is not None and self.effort not in get_args(Effort):
            raise ValueError(f"effort must be one of {', '.join(get_args(Effort))}, got {self.effort!r}")
        if self.max_output_tokens is not None and self.max_output_tokens < 1:
            raise ValueError(f"max_output_tokens must be at least 1, got {self.max_output_tokens}")

    def merged(self, other: Settings | None) -> Settings:
        """These settings, overridden by what `other` sets."""
        if other is None:
            return self
        if not isinstance(other, Settings):
            raise TypeError(f"settings must be Settings, got {other!r}; pass for example Settings(temperature=0)")
        chosen = {f.name: value for f in fields(other) if (value := getattr(other, f.name)) is not None}
        return replace(self, **chosen)


@quick_init
@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's request to call a tool; `arguments` is the JSON text as the model wrote it."""

    id: str  #: the provider's id of the call
    name: str  #: the tool's name
    arguments: str


@quick_init
@dataclass(frozen=True, slots=True)
class Message(Displayed):
    """One step of a conversation.

    `kind` says which part of the loop wrote a system or user message; it is empty for what the user wrote.
    `items` are the provider's own output items as verbatim JSON texts: they are sent back unchanged to the same
    provider; for another, `text` and `tool_calls` are encoded instead. `tools_added` and `tools_removed` mark where in
    the conversation tools (by name, in `tools`) began or stopped being callable, with the section they belong to. The
    result of a search also has the `tools` that it found, if the provider's own tool carries it.
    `parts` is the content if it is more than text; `text` then describes them in words. `reasoning` is what the model
    showed of its reasoning. `rebased` marks an assistant message that was written under another system text: reasoning
    that its provider binds to that text is no longer valid. `key` is the sender's own id of a user message.
    """

    role: Role  #: system, user, assistant or tool
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    call_id: str = ""  #: of a tool result, the call
    name: str = ""  #: of a tool result, the tool
    kind: str = ""
    success: bool = True  #: of a tool result, False if the call failed
    tools: tuple[str, ...] = ()
    section_key: str = ""  #: the section that the message is about
    items: tuple[str, ...] = ()
    provider: str = ""  #: the provider that `items` belong to
    paused: bool = False  #: True if the provider paused the reply, to be continued
    rebased: bool = False
    parts: tuple[Part, ...] = ()
    reasoning: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        if self.role not in _ROLES:
            raise ValueError(f"Message role must be one of {', '.join(get_args(Role))}, got {self.role!r}")

    def with_text(self, text: str) -> Message:
        """The message with other words, and the media that it has."""
        if text == self.text:
            return self
        if not self.parts:
            return replace(self, text=text)
        parts = (Text(text), *(part for part in self.parts if not isinstance(part, Text)))
        return replace(self, text=text_of(parts), parts=parts)

    def _display(self) -> Iterator[Shown]:
        who = " ".join(part for part in (self.role, self.name, self.kind, "" if self.success else "failed") if part)
        calls = [f"{call.name}({call.arguments})" for call in self.tool_calls]
        yield said(who, "\n".join([*([self.text] if self.text else []), *calls, *self.tools]))

    @property
    def by_user(self) -> bool:
        """True for a message that the user sent."""
        return self.role == "user" and not self.kind

    @property
    def asks(self) -> bool:
        """True for the user's words: a message that the user sent, or the prompt's user sections."""
        return self.role == "user" and self.kind in ("", PROMPT_TEXT)


@quick_init
@dataclass(frozen=True, slots=True)
class ModelReply:
    """One reply from a model; `reasoning` is what it showed of its reasoning.

    `reasoning_dropped` says that its provider no longer accepted the reasoning of earlier turns.
    """

    text: str = ""  #: the text
    tool_calls: tuple[ToolCall, ...] = ()  #: the requested calls
    usage: TokenUsage = field(default_factory=TokenUsage)  #: tokens of the call
    stop_reason: StopReason = "end"  #: why the model stopped
    items: tuple[str, ...] = ()  #: the provider's output items, as JSON texts
    response_id: str = ""  #: the provider's id of the reply
    model: str = ""  #: the model that answered
    retries: int = 0  #: failed requests before it
    reasoning: str = ""
    reasoning_dropped: bool = False


class Namespace(NamedTuple):
    """The section that a deferred tool belongs to: its key, and what it is about."""

    key: str
    description: str


@quick_init
@dataclass(frozen=True, slots=True)
class ModelRequest:
    """Everything an adapter needs to call the model once.

    The results of a turn are in the order of its calls, also if some had to wait for a person.
    Within one run `tools`, `hosted_tools` and `messages` only grow at their ends, unless code replaces messages in the
    session, or another section's tool takes the name of one that was revoked before the run. An adapter may keep what
    it has encoded as long as they extend what it was sent (`session.extends`). The first `initial_tools` tools (and
    `initial_hosted_tools`) were there when the run began; the others appeared at a `tools_added` message. `revoked`
    names tools that were offered but may no longer be called. `deferred` are those of closed sections, by name: the
    provider withholds those of the first tools until its own search finds them; a search of ours has found the others.
    With `compaction`, the provider is to compact the messages by these instructions instead of answering: the reply has
    its items, and as text what can be read of them, or no items if it made none.
    """

    prompt_name: str  #: the name of the prompt
    messages: Sequence[Message]
    tools: tuple[Tool[Any, Any], ...] = ()
    hosted_tools: tuple[HostedTool[Any], ...] = ()
    initial_tools: int = 0
    initial_hosted_tools: int = 0
    revoked: frozenset[str] = frozenset()
    deferred: Mapping[str, Namespace] = field(default_factory=dict)
    output: StructuredOutputConfig | None = None  #: the type of the answer; None for text
    deadline: Deadline | None = None  #: when the call must have ended
    settings: Settings = Settings()  #: the model's settings
    compaction: str = ""


# No slots: `PromptResponse[T](...)` on a frozen class with slots is a TypeError before CPython 3.12.2.
@dataclass(frozen=True, repr=False)
class PromptResponse(Displayed, Generic[OutputT]):
    """The answer of a run: its text, the typed output if one was declared, and the tokens it used.

    `halt` is set if the model asked to open sections under `OpenAndHalt`; there is no output then. `session` is set by
    `run`. If calls wait for a person, the run has ended with them `pending`: decide about them with
    `run(..., session=, decisions={call_id: Approve()})`.
    """

    prompt_name: str  #: the name of the prompt
    text: str  #: the text of the answer
    output: OutputT | None = None  #: the typed answer, if the prompt declares a type
    halt: OpenSectionsResult | None = None
    hosted_outputs: Mapping[str, Any] = field(default_factory=dict)  #: results of hosted tools, by tool name
    usage: TokenUsage = field(default_factory=TokenUsage)  #: tokens of all model calls
    turns: int = 0  #: the number of model calls
    run_id: str = ""  #: the id of the run
    conversation_id: str = ""  #: the conversation that the run is part of
    session: Session | None = field(default=None, compare=False)
    pending: tuple[PendingCall, ...] = ()

    def __repr__(self) -> str:
        answer = self.text if self.output is None else repr(self.output)
        return f"<PromptResponse of {self.prompt_name!r}: {shortened(answer, 100)!r}, {self._spent()}>"

    def _display(self) -> Iterator[Shown]:
        fields = None if self.output is None else dump(self.output)
        if isinstance(fields, Mapping):
            written = (value if isinstance(value, str) else json.dumps(value) for value in fields.values())
            yield Table(("field", "value"), list(zip(fields, written, strict=True)))
        else:
            yield self.text if fields is None else json.dumps(fields, indent=2)
        for call in self.pending:
            question = call.question
            yield f"waits for a decision, decisions={{{question.id!r}: Approve()}}: {question.words}"
            for part in question.parts:
                yield lines((line.kind, line.text) for line in part.lines)
        if self.halt is not None:
            yield f"halted to open {', '.join('.'.join(path) for path in self.halt.requested_overrides)}"
        yield f"{self.prompt_name}, {self._spent()}; if it was recorded: wink view --run {self.run_id}"

    def _spent(self) -> str:
        turns = f"{self.turns} turn{'' if self.turns == 1 else 's'}"
        usage = self.usage
        return f"{turns}, {usage.input_tokens:,} tokens in, {usage.output_tokens:,} out, run {self.run_id}"

    def require_output(self) -> OutputT:
        """The typed output; raises a `PromptEvaluationError` that says why if there is none."""
        if self.output is not None:
            return self.output
        why = "the prompt declares none; write PromptTemplate[MyDataclass]"
        if self.pending:
            calls = ", ".join(f"'{call.call_id}' ({call.tool})" for call in self.pending)
            why = f"calls wait for a decision: {calls}; pass decisions="
        elif self.halt is not None:
            keys = ", ".join(".".join(path) for path in self.halt.requested_overrides)
            why = f"the run halted, for the caller to open {keys}; evaluate again with these open, or use MainLoop"
        raise PromptEvaluationError(
            f"'{self.prompt_name}' has no output: {why}.", prompt_name=self.prompt_name, phase="response"
        )


def user_message(content: Content, *, kind: str = "") -> Message:
    """A message with the user's content."""
    parts = parts_of(content)
    if not parts:
        raise ValueError("A user message needs some content, got nothing; call send() without content instead")
    if len(parts) == 1 and isinstance(parts[0], Text):
        return Message("user", parts[0].text, kind=kind)
    return Message("user", text_of(parts), parts=parts, kind=kind)


def without_answer(messages: Sequence[Message]) -> list[Message]:
    """The messages without the last answer, but with every tool call: what tools did stays done."""
    kept = list(messages)
    while kept and not kept[-1].tool_calls and (kept[-1].role == "assistant" or kept[-1].kind == CORRECTION):
        kept.pop()
    return kept


def last_exchange(messages: Sequence[Message]) -> int:
    """The index after the last assistant message; 0 if there is none."""
    return next((index for index in range(len(messages), 0, -1) if messages[index - 1].role == "assistant"), 0)


def assistant_messages(messages: Iterable[Message]) -> list[Message]:
    """The model's messages; a restart keeps all of them."""
    return [message for message in messages if message.role == "assistant"]


def unanswered_calls(messages: Sequence[Message]) -> tuple[ToolCall, ...]:
    """Calls of the last turn whose results are not in the conversation yet."""
    start = last_exchange(messages)
    answered = {message.call_id for message in messages[start:]}
    return tuple(call for call in messages[start - 1].tool_calls if call.id not in answered) if start else ()


def failed_results(calls: Iterable[ToolCall], text: str) -> list[Message]:
    """The results of calls that were not made or not finished; every provider requires a result for each call."""
    return [Message("tool", text, call_id=call.id, name=call.name, success=False) for call in calls]


def result_place(messages: Sequence[Message], result: Message) -> int:
    """The index of the last turn's first result of a later call than this one's; else the end."""
    start = last_exchange(messages)
    calls = [call.id for call in messages[start - 1].tool_calls] if start else []
    if result.call_id in calls:
        later = calls[calls.index(result.call_id) + 1 :]
        for index in range(start, len(messages)):
            if messages[index].role == "tool" and messages[index].call_id in later:
                return index
    return len(messages)


def with_results(messages: Sequence[Message], results: Iterable[Message]) -> list[Message]:
    """Insert tool results into the last exchange: in the order of the calls, before user messages."""
    start = last_exchange(messages)
    tail = sorted(messages[start:], key=lambda message: message.role != "tool")
    ordered = [*messages[:start], *tail]
    for result in results:
        end = start
        while end < len(ordered) and ordered[end].role == "tool":
            end += 1
        ordered.insert(min(end, result_place(ordered, result)), result)
    return ordered


def results_before_user(messages: Sequence[Message]) -> list[Message] | None:
    """The conversation with the results of the last turn moved before later user messages.

    A user message sent while calls are open cancels them: they are not run. None means that nothing has to change.
    """
    tail = messages[last_exchange(messages) :]
    spoken = next((index for index, message in enumerate(tail) if message.role == "user"), len(tail))
    open_calls = unanswered_calls(messages) if spoken < len(tail) else ()
    if not open_calls and not any(message.role == "tool" for message in tail[spoken:]):
        return None
    return with_results(messages, failed_results(open_calls, "Not run: the user spoke before this call was made."))


def outlasts_restart(message: Message) -> bool:
    """True unless a restart, which replaces the system text and the tools, writes the message again."""
    return message.role not in ("tools_added", "tools_removed") and (message.role, message.kind) not in _REWRITTEN


def rebased(messages: Iterable[Message]) -> list[Message]:
    """The messages kept when the system text and the tools are replaced."""
    kept = filter(outlasts_restart, messages)
    return [replace(message, rebased=True) if message.role == "assistant" else message for message in kept]


def with_prompt_message(messages: list[Message], turn: Message | None, *, restarts: bool) -> list[Message]:
    """The messages with the prompt's user sections: first, or if there are some already, in place of the last.

    Unless the prompt restarts, those that are there are another prompt's, and these come last.
    """
    if turn is None:
        return messages
    said = [at for at, message in enumerate(messages) if (message.role, message.kind) == ("user", PROMPT_TEXT)]
    if not said:
        return [turn, *messages]
    return [*messages[: said[-1]], turn, *messages[said[-1] + 1 :]] if restarts else [*messages, turn]


def unanswered_words(messages: Sequence[Message]) -> list[Message]:
    """The user's trailing messages."""
    start = next((i for i in range(len(messages), 0, -1) if messages[i - 1].role != "user"), 0)
    return [message for message in messages[start:] if message.by_user]


def user_words(messages: Sequence[Message]) -> str:
    """The user's messages since the last answer that they follow, oldest first."""
    words: list[str] = []
    for message in reversed(messages):
        if message.asks:
            words.insert(0, message.text)
        elif message.role == "assistant" and words:
            break
    return "\n\n".join(words)


def text_before_pauses(messages: Sequence[Message]) -> str:
    """The text of the answer that follows these messages, written before the provider paused it."""
    start = len(messages)
    while start and messages[start - 1].paused:
        start -= 1
    return "".join(message.text for message in messages[start:])
