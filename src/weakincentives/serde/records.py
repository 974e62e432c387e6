"""Types with named fields: dataclasses, msgspec Structs, Pydantic models, TypedDicts and NamedTuples."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec


class Column(NamedTuple):
    """A field: `name` in Python, `key` in JSON. One that is `optional` has no default and may be absent."""

    name: str
    key: str
    default: Any = MISSING
    default_factory: Any = MISSING
    metadata: Mapping[Any, Any] = MappingProxyType({})
    init: bool = True
    optional: bool = False

    @property
    def required(self) -> bool:
        return self.default is MISSING and self.default_factory is MISSING and not self.optional


def is_record(cls: object) -> bool:
    return isinstance(cls, type) and _columns(cls) is not None


def columns(cls: type) -> tuple[Column, ...]:
    """The fields of a class in their order, those that are computed (`init=False`) included."""
    return _columns(cls) or ()


def field_value(record: Any, name: str) -> Any:
    """The value of a field; a TypedDict's are items."""
    return record[name] if type(record) is dict else getattr(record, name)


def is_instance(value: object, cls: type) -> bool:
    """Whether a value is of a class; of a TypedDict, whether it is a dict with its keys."""
    if not is_typed_dict(cls):
        return isinstance(value, cls)
    known = columns(cls)
    return isinstance(value, dict) and {c.key for c in known if c.required} <= value.keys() <= {c.key for c in known}


def is_pydantic_model(cls: type) -> bool:
    return hasattr(cls, "__pydantic_validator__") and hasattr(cls, "model_fields")


def is_struct(cls: type) -> bool:
    return hasattr(cls, "__struct_fields__")


def is_named_tuple(cls: type) -> bool:
    return issubclass(cls, tuple) and hasattr(cls, "_fields")


def is_typed_dict(cls: type) -> bool:
    # Not `typing.is_typeddict`, which does not know those of typing_extensions.
    return issubclass(cls, dict) and hasattr(cls, "__required_keys__") and hasattr(cls, "__total__")


_FACTORY = type(msgspec.defstruct("_", [("x", list, msgspec.field(default_factory=list))]).__struct_defaults__[0])
_QUALIFIER = re.compile(r"(?:\w+\.)*(NotRequired|Required)\[")


@lru_cache(maxsize=2048)
def _columns(cls: Any) -> tuple[Column, ...] | None:
    if is_pydantic_model(cls):
        return tuple(_pydantic_columns(cls))
    if is_dataclass(cls):
        return tuple(
            Column(each.name, each.name, each.default, each.default_factory, each.metadata, each.init)
            for each in fields(cls)
        )
    if is_struct(cls):
        return tuple(_struct_columns(cls))
    if is_named_tuple(cls):
        return tuple(Column(name, name, cls._field_defaults.get(name, MISSING)) for name in cls._fields)
    if is_typed_dict(cls):
        return tuple(Column(name, name, optional=not _is_required(cls, name)) for name in cls.__annotations__)
    return None


def _pydantic_columns(cls: Any) -> Iterator[Column]:
    for name, info in cls.model_fields.items():
        metadata = {} if info.description is None else {"description": info.description}
        key = info.validation_alias if isinstance(info.validation_alias, str) else info.alias or name
        yield Column(name, key, metadata=metadata, optional=not info.is_required())


def _struct_columns(cls: Any) -> Iterator[Column]:
    defaults = cls.__struct_defaults__
    unset = (msgspec.NODEFAULT,) * (len(cls.__struct_fields__) - len(defaults))
    for name, key, default in zip(cls.__struct_fields__, cls.__struct_encode_fields__, unset + defaults, strict=True):
        if default is msgspec.NODEFAULT:
            yield Column(name, key)
        elif default is msgspec.UNSET:
            yield Column(name, key, optional=True)
        elif type(default) is _FACTORY:
            yield Column(name, key, default_factory=default.factory)
        else:
            yield Column(name, key, default)


def _is_required(cls: Any, name: str) -> bool:
    """Whether a TypedDict must have a key. Under `from __future__ import annotations` only the text says so."""
    hint = cls.__annotations__[name]
    text = _QUALIFIER.match(getattr(hint, "__forward_arg__", ""))
    if text is not None:
        return text[1] == "Required"
    return typing.get_origin(hint) is typing.Required or name in cls.__required_keys__
