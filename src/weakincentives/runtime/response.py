"""What an evaluation gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic

from weakincentives._generics import OutputT
from weakincentives.limits import TokenUsage
from weakincentives.prompt.disclosure import OpenSectionsResult


# No slots: `PromptResponse[T](...)` on a frozen class with slots is a TypeError before CPython 3.12.2.
@dataclass(frozen=True)
class PromptResponse(Generic[OutputT]):
    """The answer: its text, the typed output if one was declared, and what it took.

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
