"""Many values of one dataclass as a table: names once, each distinct value once, then numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import msgspec


def pack_rows(items: Sequence[Any], dump: Callable[[Any], Any]) -> Any:
    """The items, all of one class, as plain data; `dump` turns a field into data."""
    cls = type(items[0])
    names = [field.name for field in fields(cls)]
    values: list[Any] = []
    known: dict[bytes, int] = {}

    def number(value: Any) -> int:
        data = dump(value)
        key = msgspec.json.encode(data)
        if key not in known:
            known[key] = len(values)
            values.append(data)
        return known[key]

    rows = [[number(getattr(item, name)) for name in names] for item in items]
    return {"class": f"{cls.__module__}:{cls.__qualname__}", "names": names, "values": values, "rows": rows}


def unpack_rows(table: Any) -> Any:
    """What `dump_tagged` makes of a tuple of the items."""
    values = table["values"]
    return {
        "$": "tuple",
        "v": [
            {"$": table["class"], "v": {name: values[at] for name, at in zip(table["names"], row, strict=True)}}
            for row in table["rows"]
        ],
    }
