"""The conversation between our loop and a model, in no provider's wire format.

One flat `Message` keeps `session[Message]` a plain append-only slice: the whole conversation of a run, which any
adapter can encode and another process can continue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal

from weakincentives._generics import OutputT
from weakincentives.errors import PromptEvaluationError
from weakincentives.limits import Deadline, TokenUsage
from weakincentives.prompt import HostedTool, OpenSectionsResult, StructuredOutputConfig, Tool

Role = Literal["system", "user", "assistant", "tool", "tools_added", "tools_removed"]
StopReason = Literal["end", "tool_calls", "length", "refusal", "content_filter", "pause"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's request to call a tool; `arguments` is the JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One step of a conversation.

    `items` are the provider's own output items as verbatim JSON texts: the same provider gets them back untouched,
    another one encodes `text` and `tool_calls` instead. `tools_added` and `tools_removed` mark where in the
    conversation tools (by name, in `tools`) began or stopped being callable, with the section they belong to.
    """

    role: Role
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    name: str = ""
    success: bool = True
    tools: tuple[str, ...] = ()
    section_key: str = ""
    items: tuple[str, ...] = ()
    provider: str = ""
    paused: bool = False


@dataclass(frozen=True, slots=True)
class ModelReply:
    """One answer of a model."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    usage: TokenUsage = field(default_factory=TokenUsage)
    stop_reason: StopReason = "end"
    items: tuple[str, ...] = ()
    response_id: str = ""
    model: str = ""
    retries: int = 0


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """Everything an adapter needs to call the model once.

    Within one run `messages`, `tools` and `hosted_tools` only grow at their ends, so an adapter may keep what it has
    encoded. The first `initial_tools` tools (and `initial_hosted_tools`) were there when the run began; the others
    appeared at a `tools_added` message. `revoked` names tools that were offered and may no longer be called.
    """

    prompt_name: str
    messages: Sequence[Message]
    tools: tuple[Tool[Any, Any], ...] = ()
    hosted_tools: tuple[HostedTool[Any], ...] = ()
    initial_tools: int = 0
    initial_hosted_tools: int = 0
    revoked: frozenset[str] = frozenset()
    output: StructuredOutputConfig | None = None
    deadline: Deadline | None = None


@dataclass(frozen=True, slots=True)
class CallModel:
    """An effect: send the request; the driver answers with a `ModelReply`."""

    request: ModelRequest


@dataclass(frozen=True, slots=True)
class RunTools:
    """An effect: run these calls; the driver answers with a `ToolExecutionOutcome` for each that ran.

    More than one call means that all are read-only, so that they may run side by side.
    """

    calls: tuple[ToolCall, ...]


Effect = CallModel | RunTools


# No slots: `PromptResponse[T](...)` on a frozen class with slots is a TypeError before CPython 3.12.2.
@dataclass(frozen=True)
class PromptResponse(Generic[OutputT]):
    """The answer of a run: its text, the typed output if one was declared, and what it cost.

    `halt` is set when the model asked to open sections under `OpenAndHalt`; there is no output then.
    """

    prompt_name: str
    text: str
    output: OutputT | None = None
    halt: OpenSectionsResult | None = None
    hosted_outputs: Mapping[str, Any] = field(default_factory=dict)
    usage: TokenUsage = field(default_factory=TokenUsage)
    turns: int = 0
    run_id: str = ""

    def require_output(self) -> OutputT:
        """The typed output; without one, a `PromptEvaluationError` that says why."""
        if self.output is not None:
            return self.output
        why = "the prompt declares none; write PromptTemplate[MyDataclass]"
        if self.halt is not None:
            keys = ", ".join(".".join(path) for path in self.halt.requested_overrides)
            why = f"the run halted, for the caller to open {keys}; evaluate again with these open, or use MainLoop"
        raise PromptEvaluationError(
            f"'{self.prompt_name}' has no output: {why}.", prompt_name=self.prompt_name, phase="response"
        )


def unanswered_calls(messages: Sequence[Message]) -> tuple[ToolCall, ...]:
    """Calls of the last turn whose results are not in the conversation yet."""
    answered: set[str] = set()
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if message.role == "assistant":
            return tuple(call for call in message.tool_calls if call.id not in answered)
        answered.add(message.call_id)
    return ()


def text_before_pauses(messages: Sequence[Message]) -> str:
    """What the model had written of its answer (the last message) before the provider paused it."""
    texts: list[str] = []
    for index in range(len(messages) - 2, -1, -1):
        if not messages[index].paused:
            break
        texts.append(messages[index].text)
    return "".join(reversed(texts))
