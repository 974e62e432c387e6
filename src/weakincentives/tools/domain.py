"""Domain names as providers take them: bare, without protocol, port or path."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from weakincentives.errors import PromptValidationError

_LABEL = r"[^\W_](?:(?:[^\W_]|-){0,61}[^\W_])?"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})+")
_PREFIX = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class DomainFilter:
    """Restricts a tool to some domains, or keeps it from some; not every provider takes both at once."""

    allowed: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "allowed", domains(self.allowed, "DomainFilter.allowed"))
        object.__setattr__(self, "blocked", domains(self.blocked, "DomainFilter.blocked"))
        both = sorted({name.lower() for name in self.allowed} & {name.lower() for name in self.blocked})
        if both:
            raise PromptValidationError(f"DomainFilter both allows and blocks {', '.join(both)}; keep one of the two.")


def domains(names: Iterable[str], where: str) -> tuple[str, ...]:
    """The names as a tuple, each of them a bare domain."""
    if isinstance(names, str):
        raise PromptValidationError(f"{where} is a tuple of domains, got the text {names!r}; write ({names!r},).")
    if not isinstance(names, Iterable):
        raise PromptValidationError(f"{where} is {names!r}; give a tuple of domains.")
    found = tuple(names)
    for name in found:
        if not isinstance(name, str) or not _DOMAIN.fullmatch(name):
            bare = re.split(r"[/:?#]", _PREFIX.sub("", name))[0] if isinstance(name, str) else ""
            way_out = f"write {bare!r}" if _DOMAIN.fullmatch(bare) else "write it like 'cdc.gov'"
            raise PromptValidationError(f"{where}: {name!r} is no bare domain; {way_out}.")
    return found
