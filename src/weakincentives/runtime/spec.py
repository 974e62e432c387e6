"""What the caller of a run has asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from weakincentives.limits import Budget, Deadline, Spent
from weakincentives.prompt import BoundPrompt, LoadedSections, Overrides, Tool
from weakincentives.prompt.resources import PromptResources
from weakincentives.runtime.messages import Message, Settings
from weakincentives.runtime.model import Model
from weakincentives.runtime.window.rules import Compaction

Beginning = Literal["new", "resume", "exchange"]
"""How a run begins: a new conversation, the run in the session once more, or the next exchange of its conversation."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunSpec:
    """What the caller of a run has asked for; it never changes.

    The run is tried on the `models`, one after another until one works. `resources` is where the resources that the
    caller holds open are found, and `loaded` has what sections have loaded in earlier runs of the conversation.
    `total` limits the conversation, which had spent `spent_before`. If `max_expansions` is a number, the run restarts
    as often to open sections; otherwise its caller opens them. `message` is the user's next. `decisions` are about
    calls that wait. `tools` are offered besides those of the prompt, and `handler_of` replaces the handlers of tools,
    for a replay. A model that evaluates prompts by itself does so, unless it is that which was `asked`. `parents` are
    the runs that this one is inside of, outermost first, at this `depth`; `call_key` is the idempotency key of its
    call.
    """

    prompt: BoundPrompt[Any]
    models: tuple[Model, ...]
    resources: PromptResources
    loaded: LoadedSections | None = None
    budget: Budget | None = None
    deadline: Deadline | None = None
    total: Budget | None = None
    spent_before: Spent | None = None
    settings: Settings = field(default_factory=Settings)
    compaction: Compaction | None = None
    visibility_overrides: Overrides | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    tools: tuple[Tool[Any, Any], ...] = ()
    max_expansions: int | None = None
    beginning: Beginning = "new"
    in_conversation: bool = False
    message: Message | None = None
    decisions: Mapping[str, Any] = field(default_factory=dict)
    handler_of: Callable[[Tool[Any, Any]], Callable[..., Any]] | None = None
    asked: Model | None = None
    run_id: str = ""
    conversation_id: str = ""
    parents: tuple[str, ...] = ()
    depth: int = 0
    call_key: str = ""
