"""Writing values as JSON."""

from __future__ import annotations

import collections.abc as abc
from pathlib import PurePath
from typing import Any

import msgspec

from weakincentives.errors import FieldProblem, SerdeError


def dump(value: Any) -> Any:
    """The value as dicts, lists and plain scalars, including computed fields (`init=False`)."""
    try:
        return _lists(msgspec.to_builtins(value, str_keys=True, enc_hook=_to_json))
    except RecursionError:
        raise SerdeError((FieldProblem("$", "value is nested too deeply or contains itself"),)) from None
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise SerdeError((FieldProblem("$", f"cannot be written as JSON: {error}"),)) from None


def encode(value: Any) -> bytes:
    """The value as JSON text. NaN and infinities become null, because JSON cannot express them."""
    try:
        return msgspec.json.encode(value, enc_hook=_to_json)
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
    raise TypeError(f"{type(value).__qualname__} has no JSON form; use a dataclass, a mapping or a plain value")


def _lists(value: Any) -> Any:
    """Turn the tuples that msgspec keeps into lists."""
    if type(value) is dict:
        return {key: _lists(item) for key, item in value.items()}
    if type(value) is list or type(value) is tuple:
        return [_lists(item) for item in value]
    return value
