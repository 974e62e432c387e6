"""Settings of a hosted tool: the fields of its config by dotted name, and how far a provider honours each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_type_hints


@dataclass(frozen=True, slots=True)
class Rule:
    """How a provider honours a setting: any value or only some, and never together with these other settings."""

    values: Collection[object] | None = None
    without: tuple[str, ...] = ()

    def __str__(self) -> str:
        said = []
        if isinstance(self.values, range):
            said.append(f"{self.values[0]} to {self.values[-1]}")
        elif self.values is not None:
            said.append(", ".join(str(value) for value in self.values))
        said += [f"not with `{other}`" for other in self.without]
        return "; ".join(said) or "yes"


HONOURED = Rule()


@cache
def settings(config_type: type[Any]) -> tuple[str, ...]:
    """Every setting of a config type, those of nested dataclasses by dotted name."""
    return tuple(_settings(config_type, ""))


def used(config: Any) -> Mapping[str, object]:
    """The settings that differ from their defaults, with their values."""
    return dict(_used(config, ""))


def _settings(config_type: type, prefix: str) -> Iterator[str]:
    for name, nested in _fields(config_type).items():
        if nested is None:
            yield prefix + name
        else:
            yield from _settings(nested, f"{prefix}{name}.")


def _used(config: Any, prefix: str) -> Iterator[tuple[str, object]]:
    config_type: type = type(config)
    nested = _fields(config_type)
    for field in fields(config):
        value = getattr(config, field.name)
        if nested[field.name] is not None:
            if value is not None:
                yield from _used(value, f"{prefix}{field.name}.")
            continue
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if default is MISSING or value != default:
            yield prefix + field.name, value


@cache
def _fields(config_type: type[Any]) -> Mapping[str, type | None]:
    """Each field with the dataclass of `X` or `X | None`; a choice between several is a setting by itself."""
    found: dict[str, type | None] = {}
    for name, hint in get_type_hints(config_type).items():
        kinds = [kind for kind in (get_args(hint) or (hint,)) if kind is not type(None)]
        one = kinds[0] if len(kinds) == 1 else None
        found[name] = one if isinstance(one, type) and is_dataclass(one) else None
    return found
