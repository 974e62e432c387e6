"""The parts that all kinds of hosted tools share: section, domain filter, provider failures, and checks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from weakincentives.errors import PromptValidationError
from weakincentives.prompt import HostedTool, MarkdownSection

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
_LABEL = r"[^\W_](?:(?:[^\W_]|-){0,61}[^\W_])?"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})+")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class HostedToolFailure:
    """A call that failed at the provider: `code` is common to all providers, `provider_code` is the provider's own.

    `malformed` means that an item from the provider could not be read; the rest of the output is intact.
    """

    code: FailureCode
    provider_code: str = ""
    message: str = ""  #: the provider's text
    call_id: str = ""  #: the id of the call


@dataclass(frozen=True, slots=True)
class DomainFilter:
    """Allows or blocks domains for a tool. Not every provider supports both at once."""

    allowed: tuple[str, ...] = ()  #: only these domains
    blocked: tuple[str, ...] = ()  #: all but these domains

    def __post_init__(self) -> None:
        object.__setattr__(self, "allowed", check_domains(self.allowed, "DomainFilter.allowed"))
        object.__setattr__(self, "blocked", check_domains(self.blocked, "DomainFilter.blocked"))
        both = sorted({name.lower() for name in self.allowed} & {name.lower() for name in self.blocked})
        if both:
            raise PromptValidationError(f"DomainFilter both allows and blocks {', '.join(both)}; remove one.")


class HostedToolSection(MarkdownSection[None]):
    """Describes a hosted tool in Markdown and offers it while the section is shown in full.

    Accepts the options of every section (`summary=`, `visibility=`, `enabled=`, `children=` and so on), and `key=`,
    `title=` and `template=`, which have defaults for each kind of tool.
    """

    default_title: ClassVar[str] = ""
    default_template: ClassVar[str] = ""

    def __init__(self, tool: HostedTool[Any], **options: Any) -> None:
        defaults = {"key": tool.kind, "title": self.default_title, "template": self.default_template}
        super().__init__(**{**defaults, **options}, hosted_tools=(tool,))


def check_type(value: object, types: type | tuple[type, ...], field: str, expected: str) -> None:
    """Raise unless the value is None or an instance of one of these types."""
    if value is not None and not isinstance(value, types):
        raise PromptValidationError(f"{field} must be {expected}, got {value!r}.")


def check_bool(value: object, field: str) -> None:
    if not isinstance(value, bool):
        raise PromptValidationError(f"{field} must be True or False, got {value!r}.")


def check_positive(value: int | None, field: str) -> None:
    """Raise unless the value is None or a positive integer."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PromptValidationError(f"{field} must be a positive integer or None, got {value!r}.")


def check_texts(values: Iterable[str], field: str) -> tuple[str, ...]:
    """Return the values as a tuple; raise unless each is non-empty text."""
    found = _check_tuple(values, field, "texts")
    for value in found:
        if not isinstance(value, str) or not value:
            raise PromptValidationError(f"{field} must contain non-empty texts, got {value!r}.")
    return found


def check_domains(names: Iterable[str], field: str) -> tuple[str, ...]:
    """Return the names as a tuple; raise unless each is a bare domain, without scheme, port or path."""
    found = _check_tuple(names, field, "domains")
    for name in found:
        if not isinstance(name, str) or not _DOMAIN.fullmatch(name):
            bare = re.split(r"[/:?#]", _SCHEME.sub("", name))[0] if isinstance(name, str) else ""
            hint = f"write {bare!r}" if _DOMAIN.fullmatch(bare) else "write it like 'cdc.gov'"
            raise PromptValidationError(f"{field} must contain bare domains, got {name!r}; {hint}.")
    return found


def _check_tuple(values: Iterable[str], field: str, items: str) -> tuple[str, ...]:
    if isinstance(values, str):
        raise PromptValidationError(f"{field} must be a tuple of {items}, got a text; write ({values!r},).")
    if not isinstance(values, Iterable):
        raise PromptValidationError(f"{field} must be a tuple of {items}, got {values!r}.")
    return tuple(values)
