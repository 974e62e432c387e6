"""Writing values as JSON."""

from __future__ import annotations

import collections.abc as abc
import operator
import sys
from pathlib import PurePath
from typing import Any

import msgspec

from weakincentives.errors import FieldProblem, SerdeError
from weakincentives.serde.records import columns, is_named_tuple, is_pydantic_model, is_struct


def dump(value: Any) -> Any:
    """The value as dicts, lists and plain scalars, including computed fields (`init=False`)."""
    try:
        return _lists(msgspec.to_builtins(_with_objects(value), str_keys=True, enc_hook=_to_json))
    except RecursionError:
        raise SerdeError((FieldProblem("$", "value is nested too deeply or contains itself"),)) from None
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise SerdeError((FieldProblem("$", f"cannot be written as JSON: {error}"),)) from None


def encode(value: Any) -> bytes:
    """The value as JSON text. NaN and infinities become null, because JSON cannot express them."""
    try:
        return msgspec.json.encode(_with_objects(value), enc_hook=_to_json)
    except RecursionError:
        raise SerdeError((FieldProblem("$", "value is nested too deeply or contains itself"),)) from None
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise SerdeError((FieldProblem("$", f"cannot be written as JSON: {error}"),)) from None


def _to_json(value: Any) -> Any:
    if type(value) in (list, tuple, frozenset):
        # msgspec only asks about these if they are keys.
        raise TypeError(f"the keys of a mapping must be text in JSON, got a {type(value).__name__}")
    if isinstance(value, abc.Mapping):
        return dict(value)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, type):
        return value.__qualname__
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, abc.Set | abc.Sequence):
        return list(value)
    if is_pydantic_model(type(value)) or type(value).__module__.partition(".")[0] == "pydantic":
        return sys.modules["pydantic_core"].to_jsonable_python(value, by_alias=True)
    raise TypeError(f"{type(value).__qualname__} has no JSON form; use a dataclass, a mapping or a plain value")


_SCALARS = frozenset({str, int, float, bool, type(None), bytes})


def _with_objects(value: Any) -> Any:
    """The value with an object in place of each named tuple, which msgspec would write as an array of values."""
    cls = type(value)
    if cls in (list, tuple, set, frozenset):
        items = [item if type(item) in _SCALARS else _with_objects(item) for item in value]
        return value if all(map(operator.is_, items, value)) else items
    known = columns(cls)
    if not known and isinstance(value, abc.Mapping):
        entries = {key: item if type(item) in _SCALARS else _with_objects(item) for key, item in value.items()}
        return value if all(map(operator.is_, entries.values(), value.values())) else entries
    if not known or is_pydantic_model(cls):
        return value
    old = [getattr(value, column.name) for column in known]
    new = [item if type(item) in _SCALARS else _with_objects(item) for item in old]
    if not is_named_tuple(cls) and all(map(operator.is_, new, old)):
        return value
    tag = cls.__struct_config__ if is_struct(cls) else None
    tagged = {} if tag is None or tag.tag is None else {tag.tag_field: tag.tag}
    return tagged | {column.key: item for column, item in zip(known, new, strict=True)}


def _lists(value: Any) -> Any:
    """Turn the tuples that msgspec keeps into lists."""
    if type(value) is dict:
        return {key: _lists(item) for key, item in value.items()}
    if type(value) is list or type(value) is tuple:
        return [_lists(item) for item in value]
    return value
