"""The conversation between our loop and a model, in nobody's wire format.

One flat `Message` keeps `session[Message]` a plain append-only slice: the whole conversation of a run, which any
adapter can encode and another process can continue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from weakincentives.limits import Deadline, TokenUsage
from weakincentives.prompt.hosted import HostedTool
from weakincentives.prompt.output import StructuredOutputConfig
from weakincentives.prompt.tool import Tool

Role = Literal["system", "user", "assistant", "tool", "tools_added", "tools_removed"]
StopReason = Literal["end", "tool_calls", "length", "refusal", "content_filter", "pause"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's wish to call a tool; `arguments` is the JSON text as the model wrote it."""

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
    """What a model answered, once."""

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
    """All that an adapter needs to ask the model once.

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
