"""The effects of the loop: what it needs done, and by which it is answered.

A driver performs them: at once, on an event loop, as recorded steps, or in a test one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from weakincentives.prompt import SectionPath
from weakincentives.runtime.messages import Message, ModelReply, ModelRequest, ToolCall
from weakincentives.runtime.model import Model


@dataclass(frozen=True, slots=True)
class CallModel:
    """An effect: send the request; the driver answers with a `ModelReply`."""

    request: ModelRequest


@dataclass(frozen=True, slots=True)
class RunTools:
    """An effect: run these calls; the driver answers with a `ToolExecutionOutcome` or `Waits` for each that ran.

    If there is more than one call, they may run at the same time.
    """

    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class LoadSections:
    """An effect: load these open sections, whose tools are not known yet.

    The driver answers with the errors of those that could not be loaded, by path.
    """

    paths: tuple[SectionPath, ...]


@dataclass(frozen=True, slots=True)
class AskGuards:
    """An effect: take these steps, in which the guards of a hook decide; the driver answers with their `Verdict`."""

    hook: str
    steps: Callable[[], Generator[Any, Any, Any]]


@dataclass(frozen=True, slots=True)
class Summarize:
    """An effect: have these messages summarized; the driver answers with a `ModelReply`.

    The request goes to the run's own model, or to that of the `adapter`; a `function` gets the messages instead.
    """

    request: ModelRequest
    adapter: Model | None = None
    function: Callable[[Sequence[Message]], Any] | None = None

    def steps(self) -> Generator[Any, Any, ModelReply]:
        """Call the function."""
        assert self.function is not None
        text = yield partial(self.function, self.request.messages)
        return ModelReply(text if isinstance(text, str) else "")


@dataclass(frozen=True, slots=True)
class Compute:
    """An effect: call a function that takes a while and changes nothing; the driver answers with what it returns.

    An event loop has it called in a thread. It is not recorded: a replay computes it again.
    """

    function: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class UseModel:
    """An effect: leave the channel of the model before, which ended with `error`, and open one to this model.

    A model that evaluates prompts `itself` needs none.
    """

    model: Model
    error: BaseException | None = None
    itself: bool = False


@dataclass(frozen=True, slots=True)
class Evaluate:
    """An effect: have the model evaluate the prompt by itself; the driver answers with its `PromptResponse`."""

    model: Model


Effect = CallModel | RunTools | LoadSections | AskGuards | Summarize | Compute | UseModel | Evaluate
