"""Who can what: kinds of hosted tools, adapters and settings, all read from the codecs themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from weakincentives.adapters.hosted.setting import Rule, settings

# By name: a codec's error says who else can, and importing the others here would be a circle.
ADAPTERS: Mapping[str, str] = {
    "openai": "weakincentives.adapters.openai.codecs",
    "anthropic": "weakincentives.adapters.anthropic.codecs",
    "litellm": "weakincentives.adapters.litellm.codecs",
}


@dataclass(frozen=True, slots=True)
class Capability:
    """One kind of hosted tool: its settings, and for each adapter that has it the rules of those it honours."""

    kind: str
    settings: tuple[str, ...]
    adapters: Mapping[str, Mapping[str, Rule]] = field(default_factory=dict)

    def table(self) -> str:
        """A markdown table of settings and adapters."""
        rows = [("setting", *ADAPTERS), ("---",) * (len(ADAPTERS) + 1)]
        rows.append(("(the tool itself)", *("yes" if name in self.adapters else "no" for name in ADAPTERS)))
        for setting in self.settings:
            rules = [self.adapters[name].get(setting) if name in self.adapters else None for name in ADAPTERS]
            rows.append((f"`{setting}`", *("no" if rule is None else str(rule) for rule in rules)))
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def capabilities() -> tuple[Capability, ...]:
    """Every kind that some adapter has, with what each adapter honours."""
    kinds: dict[str, Capability] = {}
    for adapter, codec in _codecs():
        known = kinds.get(codec.kind) or Capability(codec.kind, settings(codec.config_type))
        adapters = {**known.adapters, adapter: codec.honours}
        kinds[codec.kind] = Capability(codec.kind, known.settings, adapters)
    return tuple(kinds.values())


def adapters_of(kind: str) -> tuple[str, ...]:
    """The adapters that have a kind."""
    return tuple(adapter for adapter, home in ADAPTERS.items() if kind in import_module(home).CODECS)


def adapters_with(kind: str, used: Mapping[str, object], setting: str) -> tuple[str, ...]:
    """The adapters that honour a setting of a kind with the value that it has among those used."""
    found = []
    for adapter, codec in _codecs():
        if codec.kind == kind and codec.objection(setting, used) is None:
            found.append(adapter)
    return tuple(found)


def _codecs() -> Iterator[tuple[str, Any]]:
    for adapter, home in ADAPTERS.items():
        for codec in import_module(home).CODECS.values():
            yield adapter, codec
