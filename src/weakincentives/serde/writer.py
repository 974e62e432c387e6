"""Values written as JSON: dataclasses, enums, mappings, dates and the like."""

from __future__ import annotations

import collections.abc as abc
from pathlib import PurePath
from typing import Any

import msgspec

from weakincentives.errors import Problem, SerdeError


def dump(value: Any) -> Any:
    """The value as dicts, lists and plain scalars; computed fields (`init=False`) are included."""
    try:
        return _lists(msgspec.to_builtins(value, str_keys=True, enc_hook=_to_json))
    except RecursionError:
        raise SerdeError((Problem("$", "value is nested too deeply or contains itself"),)) from None
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise SerdeError((Problem("$", f"cannot be written as JSON: {error}"),)) from None


def encode(value: Any) -> bytes:
    """The value as JSON text; NaN and infinities become null, as JSON has no word for them."""
    try:
        return msgspec.json.encode(value, enc_hook=_to_json)
    except RecursionError:
        raise SerdeError((Problem("$", "value is nested too deeply or contains itself"),)) from None
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise SerdeError((Problem("$", f"cannot be written as JSON: {error}"),)) from None


def _to_json(value: Any) -> Any:
    if type(value) in (list, tuple, frozenset):
        # msgspec writes these itself, unless they are keys.
        raise TypeError(f"a key of a mapping is a {type(value).__name__}; JSON has only text keys")
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
    """msgspec keeps tuples; JSON has only lists."""
    if type(value) is dict:
        return {key: _lists(item) for key, item in value.items()}
    if type(value) is list or type(value) is tuple:
        return [_lists(item) for item in value]
    return value
