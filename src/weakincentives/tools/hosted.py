"""What the kinds of hosted tools share: the section, the domain filter, and failures at the provider."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from weakincentives.errors import PromptValidationError
from weakincentives.prompt import HostedTool, MarkdownSection
from weakincentives.tools.validation import check_domains

FailureCode = Literal[
    "failed",
    "incomplete",
    "invalid_input",
    "limit_reached",
    "malformed",
    "not_allowed",
    "not_found",
    "rate_limited",
    "timeout",
    "too_large",
    "unavailable",
    "unsupported",
]


@dataclass(frozen=True, slots=True)
class HostedToolFailure:
    """A call that failed at the provider: `code` is the same for all providers, `provider_code` is its own.

    `malformed` means that an item of the provider could not be read; the rest of the output is intact.
    """

    code: FailureCode
    provider_code: str = ""
    message: str = ""
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class DomainFilter:
    """Allows or blocks domains for a tool. Not every provider supports both at once."""

    allowed: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "allowed", check_domains(self.allowed, "DomainFilter.allowed"))
        object.__setattr__(self, "blocked", check_domains(self.blocked, "DomainFilter.blocked"))
        both = sorted({name.lower() for name in self.allowed} & {name.lower() for name in self.blocked})
        if both:
            raise PromptValidationError(f"DomainFilter both allows and blocks {', '.join(both)}; remove one.")


class HostedToolSection(MarkdownSection[None]):
    """Describes a hosted tool in markdown and offers it while the section is shown in full.

    Takes the options of every section: `summary=`, `visibility=`, `enabled=`, `children=` and so on.
    """

    def __init__(self, tool: HostedTool[Any], *, title: str, key: str, template: str, **options: Any) -> None:
        super().__init__(title=title, key=key, template=template, hosted_tools=(tool,), **options)
