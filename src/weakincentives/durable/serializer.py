"""Durable values as tagged JSON: readable in the database, and never a pickle.

Types are looked up among those the program has loaded; nothing is imported because a row names it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from weakincentives.durable.errors import RemoteError
from weakincentives.errors import SerdeError
from weakincentives.serde import dump_tagged, load_tagged

_EXCEPTION = "$exception"


class TaggedSerializer:
    """Serializes requests, step outcomes, results and exceptions for the engine."""

    def name(self) -> str:
        return "wink_tagged_json"

    def serialize(self, data: Any) -> str:
        value = _dump_exception(data) if isinstance(data, BaseException) else dump_tagged(data)
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)

    def deserialize(self, serialized_data: str) -> Any:
        value = json.loads(serialized_data)
        if isinstance(value, dict) and value.keys() == {_EXCEPTION}:
            return _load_exception(value[_EXCEPTION])
        return load_tagged(value)


def _dump_exception(error: BaseException) -> dict[str, Any]:
    kind = type(error)
    return {
        _EXCEPTION: {
            "type": f"{kind.__module__}:{kind.__qualname__}",
            "message": str(error),
            "args": [_dump_or_describe(value) for value in error.args],
            "state": {name: _dump_or_describe(value) for name, value in vars(error).items()},
        }
    }


def _dump_or_describe(value: Any) -> Any:
    try:
        return dump_tagged(value)
    except SerdeError:
        return repr(value)


def _load_exception(data: dict[str, Any]) -> BaseException:
    module, _, qualname = data["type"].partition(":")
    kind: Any = sys.modules.get(module)
    for part in qualname.split("."):
        kind = getattr(kind, part, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return RemoteError(f"{data['type']}: {data['message']}", type_name=data["type"])
    error = kind.__new__(kind)
    error.args = tuple(load_tagged(data["args"]))
    vars(error).update(load_tagged(data["state"]))
    return error
