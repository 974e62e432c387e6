"""Advisor: a stronger model that the model may ask during its turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weakincentives.errors import PromptValidationError
from weakincentives.prompt import HostedTool, HostedToolConfig, HostedToolOutput
from weakincentives.tools.hosted import HostedToolFailure, HostedToolSection, check_bool, check_positive

__all__ = [
    "Advice",
    "AdvisorConfig",
    "AdvisorResult",
    "AdvisorSection",
    "HostedToolFailure",
    "advisor_tool",
]

_TEMPLATE = """
You can ask an advisor, a stronger model that reads this conversation. Ask before you commit to a plan that is hard to
undo, when you are stuck, and before you call a long task done.
"""


@dataclass(frozen=True, slots=True)
class AdvisorConfig(HostedToolConfig):
    """The advisor's model, how often it may be asked, how much it may write, and whether its prompt is cached."""

    model: str
    max_uses: int | None = None
    max_tokens: int | None = None
    use_cache: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model.strip():
            raise PromptValidationError(f"AdvisorConfig.model must be the name of a model, got {self.model!r}.")
        check_positive(self.max_uses, "AdvisorConfig.max_uses")
        check_positive(self.max_tokens, "AdvisorConfig.max_tokens")
        check_bool(self.use_cache, "AdvisorConfig.use_cache")


@dataclass(frozen=True, slots=True)
class Advice:
    """An answer of the advisor; the text is empty if the provider encrypts it, and `complete` unless it was cut off."""

    text: str = ""
    complete: bool = True


@dataclass(frozen=True, slots=True)
class AdvisorResult(HostedToolOutput):
    """Everything that an advisor answered in a run, in order, with the text of the run's answers, and failures."""

    text: str
    advice: tuple[Advice, ...] = ()
    errors: tuple[HostedToolFailure, ...] = ()


def advisor_tool(config: AdvisorConfig, *, name: str = "advisor") -> HostedTool[AdvisorConfig]:
    """An advisor with this configuration; its result is `response.hosted_outputs[name]`."""
    return HostedTool(kind="advisor", name=name, description="Ask a stronger model for advice.", config=config)


class AdvisorSection(HostedToolSection):
    """A section that lets the model ask a stronger one."""

    default_title, default_template = "Advisor", _TEMPLATE

    def __init__(self, config: AdvisorConfig, *, name: str = "advisor", **options: Any) -> None:
        super().__init__(advisor_tool(config, name=name), **options)
