"""A tagged form of JSON that preserves types: what is loaded equals what was dumped, class included.

Plain JSON values stay as they are. Anything else becomes `{"$": tag, "v": ...}`; a tag with a colon names a class.
Classes are looked up among those that the program has defined, in modules or in functions; nothing is imported.
"""

from __future__ import annotations

import enum
import sys
from base64 import b64decode, b64encode
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import MappingProxyType, NoneType
from typing import Any, TypeVar, cast
from uuid import UUID

import msgspec

from weakincentives.errors import FieldProblem, SerdeError
from weakincentives.serde.reader import field_path

T = TypeVar("T")
Dump = Callable[[Any], Any]
Load = Callable[[Any], Any]


def dump_tagged(value: Any) -> Any:
    """Convert a value to data that JSON can express and `load_tagged` turns back into an equal value."""
    try:
        return _dump(value)
    except _Failure as failure:
        raise SerdeError((failure.problem(),)) from None
    except RecursionError:
        raise SerdeError((FieldProblem("$", "value is nested too deeply or contains itself"),)) from None


def load_tagged(data: Any) -> Any:
    """Rebuild a value from `dump_tagged`; a `SerdeError` names a class that the program does not have."""
    try:
        return _load(data)
    except _Failure as failure:
        raise SerdeError((failure.problem(),)) from None
    except RecursionError:
        raise SerdeError((FieldProblem("$", "data is nested too deeply"),)) from None


def register_type(
    cls: type[T], dump: Callable[[T], Any] | None = None, load: Callable[[Any], T] | None = None
) -> type[T]:
    """Make a class known to `load_tagged`. Can be used as a decorator.

    Dataclasses, enums and named tuples need nothing else. For any other class pass `dump`, which converts an instance
    to something that can be dumped, and `load`, which converts it back.
    """
    name = _remember(cls)
    if dump is not None and load is not None:
        _DUMPERS[cls] = lambda value: {"$": name, "v": _dump(dump(value))}
        _LOADERS[name] = lambda data: load(_load(data))
    return cls


class _Failure(Exception):
    """A problem that collects its path while it propagates."""

    def __init__(self, message: str) -> None:
        self.message = message
        self.steps: list[str | int] = []

    def problem(self) -> FieldProblem:
        path = "$"
        for step in reversed(self.steps):
            path = f"{path}[{step}]" if isinstance(step, int) else field_path(path, step)
        return FieldProblem(path, self.message)


_KNOWN: dict[str, type] = {"builtins:NoneType": NoneType}
_DUMPERS: dict[type, Dump] = {}
_LOADERS: dict[str, Load] = {}


def _dump(value: Any) -> Any:
    cls = type(value)
    if cls is str:
        return value if value.isascii() else _dump_text(value)
    if cls is bool or value is None:
        return value
    dumper = _DUMPERS.get(cls)
    if dumper is None:
        dumper = _DUMPERS[cls] = _dumper_for(cls)
    return dumper(value)


def _load(data: Any) -> Any:
    cls = type(data)
    if cls is list:
        return _load_items(data)
    if cls is not dict:
        return data
    tag = data.get("$")
    if tag is None:
        return {key: _load_at(key, item) for key, item in data.items()}
    if "v" not in data or not isinstance(tag, str):
        raise _Failure("an object with '$' must have a text tag and 'v'")
    loader = _LOADERS.get(tag)
    if loader is None:
        loader = _LOADERS[tag] = _loader_for(tag)
    try:
        return loader(data["v"])
    except (_Failure, RecursionError):
        raise
    except Exception as error:
        raise _Failure(f"cannot be read as {tag}: {str(error) or type(error).__name__}") from error


def _load_at(step: str | int, data: Any) -> Any:
    try:
        return _load(data)
    except _Failure as failure:
        failure.steps.append(step)
        raise


def _dump_items(items: Any) -> list[Any]:
    dumped: list[Any] = []
    try:
        for item in items:
            dumped.append(_dump(item))
    except _Failure as failure:
        failure.steps.append(len(dumped))
        raise
    return dumped


def _dump_set(items: Any) -> list[Any]:
    """Sort the items, so that equal sets have equal text in every process."""
    return sorted(_dump_items(items), key=msgspec.json.encode)


def _load_items(items: Any) -> list[Any]:
    loaded: list[Any] = []
    try:
        for item in items:
            loaded.append(_load(item))
    except _Failure as failure:
        failure.steps.append(len(loaded))
        raise
    return loaded


def _dump_text(value: str) -> Any:
    """Keep text as it is, unless it contains lone surrogates, which JSON cannot express."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return {"$": "str", "v": b64encode(value.encode("utf-8", "surrogatepass")).decode()}
    return value


def _dump_int(value: int) -> Any:
    return value if -(2**63) <= value < 2**63 else {"$": "int", "v": hex(value)}


def _dump_float(value: float) -> Any:
    return value if isfinite(value) else {"$": "float", "v": repr(value)}


def _dump_dict(value: dict[Any, Any]) -> Any:
    if "$" in value or not all(type(key) is str and (key.isascii() or _dump_text(key) is key) for key in value):
        return {"$": "dict", "v": _dump_pairs(value)}
    dumped = {}
    for key, item in value.items():
        try:
            dumped[key] = _dump(item)
        except _Failure as failure:
            failure.steps.append(key)
            raise
    return dumped


def _dump_pairs(value: Any) -> list[Any]:
    return [_dump_items(pair) for pair in value.items()]


def _dump_datetime(value: datetime) -> Any:
    zone = getattr(value.tzinfo, "key", None)
    if zone is not None:
        return {"$": "datetime", "v": [value.replace(tzinfo=None).isoformat(), value.fold, zone]}
    text = value.isoformat()
    return {"$": "datetime", "v": [text, 1] if value.fold else text}


def _load_datetime(data: Any) -> datetime:
    if isinstance(data, str):
        return datetime.fromisoformat(data)
    value = datetime.fromisoformat(data[0]).replace(fold=data[1])
    if len(data) < 3:
        return value
    from zoneinfo import ZoneInfo

    return value.replace(tzinfo=ZoneInfo(data[2]))


def _dump_time(value: time) -> Any:
    return {"$": "time", "v": [value.isoformat(), value.fold]}


def _load_time(data: Any) -> time:
    return time.fromisoformat(data[0]).replace(fold=data[1])


def _load_deque(data: Any) -> deque[Any]:
    return deque(_load_items(data[0]), data[1])


def _dump_type(value: type) -> Any:
    return {"$": "type", "v": _remember(value)}


def _tagger(tag: str, convert: Callable[[Any], Any]) -> Dump:
    return lambda value: {"$": tag, "v": convert(value)}


_DUMPERS.update(
    {
        int: _dump_int,
        float: _dump_float,
        list: _dump_items,
        dict: _dump_dict,
        datetime: _dump_datetime,
        time: _dump_time,
        tuple: _tagger("tuple", _dump_items),
        set: _tagger("set", _dump_set),
        frozenset: _tagger("frozenset", _dump_set),
        deque: _tagger("deque", lambda value: [_dump_items(value), value.maxlen]),
        OrderedDict: _tagger("OrderedDict", _dump_pairs),
        MappingProxyType: _tagger("mappingproxy", _dump_pairs),
        date: _tagger("date", date.isoformat),
        timedelta: _tagger("timedelta", lambda value: [value.days, value.seconds, value.microseconds]),
        UUID: _tagger("UUID", str),
        Decimal: _tagger("Decimal", str),
        PurePosixPath: _tagger("PurePosixPath", str),
        PureWindowsPath: _tagger("PureWindowsPath", str),
        bytes: _tagger("bytes", lambda value: b64encode(value).decode()),
        bytearray: _tagger("bytearray", lambda value: b64encode(value).decode()),
        complex: _tagger("complex", lambda value: [_dump_float(value.real), _dump_float(value.imag)]),
    }
)
_LOADERS.update(
    {
        "str": lambda data: b64decode(data).decode("utf-8", "surrogatepass"),
        "int": lambda data: int(data, 16),
        "float": float,
        "dict": lambda data: dict(_load_items(data)),
        "datetime": _load_datetime,
        "time": _load_time,
        "tuple": lambda data: tuple(_load_items(data)),
        "set": lambda data: set(_load_items(data)),
        "frozenset": lambda data: frozenset(_load_items(data)),
        "deque": _load_deque,
        "OrderedDict": lambda data: OrderedDict(_load_items(data)),
        "mappingproxy": lambda data: MappingProxyType(dict(_load_items(data))),
        "date": date.fromisoformat,
        "timedelta": lambda data: timedelta(*data),
        "UUID": UUID,
        "Decimal": Decimal,
        "Path": Path,
        "PurePosixPath": PurePosixPath,
        "PureWindowsPath": PureWindowsPath,
        "bytes": lambda data: b64decode(data, validate=True),
        "bytearray": lambda data: bytearray(b64decode(data, validate=True)),
        "complex": lambda data: complex(*_load_items(data)),
        "type": lambda data: _find(data),
    }
)


def _dumper_for(cls: type) -> Dump:
    if issubclass(cls, type):
        return _dump_type
    if issubclass(cls, Path):
        return _tagger("Path", str)
    if issubclass(cls, enum.Enum):
        return _tagger(
            _remember(cls), lambda value: value.name if value.name in cls.__members__ else _dump(value.value)
        )
    if is_dataclass(cls):
        return _record_dumper(cls, tuple(field.name for field in fields(cls)))
    if hasattr(cls, "__struct_fields__"):
        return _record_dumper(cls, cls.__struct_fields__)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return _tagger(_remember(cls), _dump_items)
    plain = next((plain for plain in (str, int, float, bytes) if issubclass(cls, plain)), None)
    if plain is not None:
        return _tagger(_remember(cls), lambda value: _dump(plain(value)))
    raise _Failure(
        f"{_name(cls)} cannot be serialised; use a dataclass, or call serde.register_type(cls, dump=..., load=...)"
    )


def _record_dumper(cls: type, names: tuple[str, ...]) -> Dump:
    tag = _remember(cls)

    def dump_record(value: Any) -> Any:
        dumped = {}
        for name in names:
            try:
                dumped[name] = _dump(getattr(value, name))
            except _Failure as failure:
                failure.steps.append(name)
                raise
        return {"$": tag, "v": dumped}

    return dump_record


def _loader_for(tag: str) -> Load:
    if ":" not in tag:
        raise _Failure(f"unknown tag {tag!r}")
    cls: Any = _find(tag)
    if issubclass(cls, enum.Enum):
        return lambda data: cls[data] if isinstance(data, str) and data in cls.__members__ else cls(_load(data))
    if is_dataclass(cls):
        return _record_loader(cls)
    if hasattr(cls, "__struct_fields__"):
        return lambda data: cls(**{name: _load_at(name, item) for name, item in data.items()})
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return lambda data: cls(*_load_items(data))
    if issubclass(cls, str | int | float | bytes):
        return lambda data: cls(_load(data))
    raise _Failure(f"{tag} cannot be loaded; call serde.register_type with dump= and load=")


def _record_loader(cls: Any) -> Load:
    settable = {field.name: field.init for field in fields(cls)}
    # The constructor may change or compute fields, so the dumped values are set again afterwards.
    rewrite = hasattr(cls, "__post_init__") or not all(settable.values())

    def load_record(data: Any) -> Any:
        arguments = {}
        loaded = {}
        for name, item in data.items():
            if name not in settable:
                raise _Failure(f"{_name(cls)} has no field {name!r}")
            value = loaded[name] = _load_at(name, item)
            if settable[name]:
                arguments[name] = value
        record = cls(**arguments)
        if rewrite:
            for name, value in loaded.items():
                object.__setattr__(record, name, value)
        return record

    return load_record


def _name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _remember(cls: type) -> str:
    name = _name(cls)
    known = _KNOWN.get(name)
    if known is not cls:
        _KNOWN[name] = cls
        _LOADERS.pop(name, None)
        if known is not None:
            _DUMPERS.pop(known, None)
    return name


def _find(name: str) -> type:
    known = _KNOWN.get(name)
    if known is not None:
        return known
    module_name, _, qualname = name.partition(":")
    # Not getattr: a module's __getattr__ may import other modules.
    found: Any = sys.modules.get(module_name)
    for part in qualname.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    if not isinstance(found, type):
        found = _find_defined(module_name, qualname)
    if found is None:
        raise _Failure(f"unknown type {name}; import the module that defines it, or call serde.register_type first")
    return cast(type, found)


def _find_defined(module_name: str, qualname: str) -> type | None:
    """The newest class of this name that is not a module attribute: defined in a function, or by `make_dataclass`."""
    newest: type | None = None
    pending: list[type] = [object]
    visited: set[type] = set()
    while pending:
        below: list[type] = type.__subclasses__(pending.pop())
        for cls in below:
            if cls not in visited:
                visited.add(cls)
                pending.append(cls)
                if cls.__qualname__ == qualname and cls.__module__ == module_name:
                    newest = cls
    return newest
