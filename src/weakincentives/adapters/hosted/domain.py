"""A filter of domains in the words that every provider takes."""

from __future__ import annotations

from weakincentives.tools import DomainFilter


def domain_lists(chosen: DomainFilter | None) -> dict[str, list[str]]:
    """The filter as fields of a declaration; nothing for an empty one."""
    if chosen is None:
        return {}
    named = {"allowed_domains": list(chosen.allowed), "blocked_domains": list(chosen.blocked)}
    return {name: domains for name, domains in named.items() if domains}
