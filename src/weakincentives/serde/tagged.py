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
from contextvars import ContextVar
from dataclasses import is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from math import isfinite
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import MappingProxyType, NoneType
from typing import Any, TypeVar, get_args
from uuid import UUID
from weakref import WeakSet

import msgspec

from weakincentives.content import Blob
from weakincentives.errors import FieldProblem, SerdeError
from weakincentives.serde.annotations import is_pydantic, pydantic_model
from weakincentives.serde.constraints import field_path
from weakincentives.serde.nodes import read
from weakincentives.serde.records import columns, is_named_tuple, is_pydantic_model, is_struct

T = TypeVar("T")
Convert = Callable[[Any], Any]
LIBRARY = "weakincentives"
OWN_NAMES = f"{LIBRARY}:"
"""The beginning of the stored names of the library's own classes."""
_blobs: ContextVar[dict[str, Blob] | None] = ContextVar("weakincentives_blobs", default=None)


def dump_tagged(value: Any, blobs: dict[str, Blob] | None = None) -> Any:
    """Convert a value to data that JSON can express and `load_tagged` turns back into an equal value.

    With `blobs`, the bytes of media are put there once, by digest, instead of into the data.
    """
    return converted(_dump, value, blobs, "value is nested too deeply or contains itself")


def load_tagged(data: Any, blobs: dict[str, Blob] | None = None) -> Any:
    """Rebuild a value from `dump_tagged`; a `SerdeError` names a class that is not defined in the program."""
    return converted(_load, data, blobs, "data is nested too deeply")


def converted(convert: Convert, value: Any, blobs: dict[str, Blob] | None, too_deep: str) -> Any:
    """Convert a whole value; a `SerdeError` says where it failed."""
    token = _blobs.set(blobs)
    try:
        return convert(value)
    except Failure as failure:
        raise SerdeError((failure.problem(),)) from None
    except RecursionError:
        raise SerdeError((FieldProblem("$", too_deep),)) from None
    finally:
        _blobs.reset(token)


def register_type(
    cls: type[T], dump: Callable[[T], Any] | None = None, load: Callable[[Any], T] | None = None
) -> type[T]:
    """Make a class known to `load_tagged`. Can be used as a decorator.

    Dataclasses, Structs, Pydantic models, enums and named tuples need nothing else. For any other class pass `dump`,
    which converts an instance to something that can be dumped, and `load`, which converts it back.
    """
    name = _remember(cls)
    declare_type(cls)
    if dump is not None and load is not None:
        _DUMPERS[cls] = lambda value: {"$": name, "v": _dump(dump(value))}
        _LOADERS[name] = lambda data: load(_load(data))
    return cls


_declared: WeakSet[type] = WeakSet()


def declare_type(annotation: Any) -> None:
    """Record that the program has declared this class, or those in this annotation, as data of its own."""
    if isinstance(annotation, type):
        _declared.add(annotation)
    for part in get_args(annotation):
        declare_type(part)


def is_declared(cls: type) -> bool:
    """True if the class is data by declaration: as a slice, a log entry, params, an output or a tool's result."""
    return cls in _declared or cls.__module__.partition(".")[0] == LIBRARY


def own_constructors() -> list[str]:
    """The names of the program's dumped classes whose constructors run code of its own, which may refuse its values."""
    # A copy: another thread may be dumping a class for the first time.
    return [name for name, cls in list(_KNOWN.items()) if not name.startswith(OWN_NAMES) and _has_own_constructor(cls)]


def _has_own_constructor(cls: Any) -> bool:
    params = getattr(cls, "__dataclass_params__", None)
    return hasattr(cls, "__post_init__") or (params is not None and not params.init)


class Failure(Exception):
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
        return {key: at(key, _load, item) for key, item in data.items()}
    if "v" not in data or not isinstance(tag, str):
        raise Failure("an object with '$' must have a text tag and 'v'")
    loader = _LOADERS.get(tag)
    if loader is None:
        loader = _LOADERS[tag] = _loader_for(tag)
    try:
        return loader(data["v"])
    except (Failure, RecursionError):
        raise
    except Exception as error:
        raise Failure(f"cannot be read as {tag}: {str(error) or type(error).__name__}") from error


def at(step: str | int, convert: Convert, data: Any) -> Any:
    """Convert a part of a value; on failure, add the step that leads to it to the path."""
    try:
        return convert(data)
    except Failure as failure:
        failure.steps.append(step)
        raise


def _each(convert: Convert, items: Any) -> list[Any]:
    converted: list[Any] = []
    try:
        for item in items:
            converted.append(convert(item))
    except Failure as failure:
        failure.steps.append(len(converted))
        raise
    return converted


_dump_items = partial(_each, _dump)
_load_items = partial(_each, _load)


def _dump_bytes(data: bytes | bytearray) -> str:
    return b64encode(data).decode()


def _dump_blob(blob: Blob) -> Any:
    apart = _blobs.get()
    if apart is None:
        return _dump_bytes(blob.data)
    apart[blob.digest] = blob
    return {"sha256": blob.digest}


def _load_blob(data: Any) -> Blob:
    if isinstance(data, str):
        return Blob(b64decode(data, validate=True))
    found = (_blobs.get() or {}).get(data["sha256"])
    if found is None:
        raise ValueError(f"the bytes with digest {data['sha256']} are missing")
    return found


def _dump_set(items: Any) -> list[Any]:
    """Sort the items, so that equal sets have equal text in every process."""
    return sorted(_dump_items(items), key=msgspec.json.encode)


def _dump_text(value: str) -> Any:
    """Keep text as it is, unless it contains lone surrogates, which JSON cannot express."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return {"$": "str", "v": _dump_bytes(value.encode("utf-8", "surrogatepass"))}
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
        except Failure as failure:
            failure.steps.append(key)
            raise
    return dumped


def _dump_pairs(value: Any) -> list[Any]:
    return [_dump_items(pair) for pair in value.items()]


def _dump_datetime(value: datetime) -> Any:
    zone = getattr(value.tzinfo, "key", None)
    if zone is not None:
        return [value.replace(tzinfo=None).isoformat(), value.fold, zone]
    return [value.isoformat(), 1] if value.fold else value.isoformat()


def _load_datetime(data: Any) -> datetime:
    if isinstance(data, str):
        return datetime.fromisoformat(data)
    value = datetime.fromisoformat(data[0]).replace(fold=data[1])
    if len(data) < 3:
        return value
    from zoneinfo import ZoneInfo

    return value.replace(tzinfo=ZoneInfo(data[2]))


def _tagger(tag: str, convert: Convert) -> Convert:
    return lambda value: {"$": tag, "v": convert(value)}


def _by_attributes(cls: type, *names: str) -> tuple[type, Convert, Convert]:
    return cls, lambda value: _dump_items(getattr(value, name) for name in names), lambda data: cls(*_load_items(data))


def _dumper_for(cls: type) -> Convert:
    if issubclass(cls, type):
        return _tagger("type", _remember)
    if issubclass(cls, Path):
        return _tagger("Path", str)
    found = _converters(cls)
    if found is None:
        way = "use a dataclass, or call serde.register_type(cls, dump=..., load=...)"
        if hasattr(cls, "get_secret_value"):
            name = cls.__name__
            way = f"use str, or store it as text: serde.register_type({name}, {name}.get_secret_value, {name})"
        raise Failure(f"{stored_name(cls)} cannot be serialised; {way}")
    return _tagger(_remember(cls), found[0])


def _loader_for(tag: str) -> Convert:
    found = _converters(find_class(tag))
    if found is None:
        raise Failure(f"{tag} cannot be loaded; call serde.register_type with dump= and load=")
    return found[1]


def _converters(cls: Any) -> tuple[Convert, Convert] | None:
    """Functions that write and read values of a class under its tag; None if `register_type` must supply them."""
    if issubclass(cls, enum.Enum):
        known = cls.__members__
        return (
            lambda value: value.name if value.name in known else _dump(value.value),
            lambda data: cls[data] if isinstance(data, str) and data in known else cls(_load(data)),
        )
    if is_pydantic_model(cls):
        return _dump_pydantic, partial(_load_pydantic, cls)
    if is_dataclass(cls) or is_struct(cls):
        settable = {column.name: column.init for column in columns(cls)}
        write = msgspec.structs.force_setattr if is_struct(cls) else object.__setattr__
        return partial(_dump_record, tuple(settable)), _record_loader(cls, settable, write)
    if is_named_tuple(cls):
        return _dump_items, lambda data: cls(*_load_items(data))
    if _is_pydantic_value(cls):
        return str, partial(read, pydantic_model(cls))
    if cls.__module__ == "ipaddress":
        return str, cls
    plain = next((plain for plain in (str, int, float, bytes) if issubclass(cls, plain)), None)
    return None if plain is None else (lambda value: _dump(plain(value)), lambda data: cls(_load(data)))


def _dump_record(names: tuple[str, ...], value: Any) -> Any:
    dumped = {}
    for name in names:
        try:
            dumped[name] = _dump(getattr(value, name))
        except Failure as failure:
            failure.steps.append(name)
            raise
    return dumped


def _is_pydantic_value(cls: type) -> bool:
    """True if Pydantic creates such values from text, such as URLs; false for types that hide their value."""
    own = cls.__module__.partition(".")[0] == "pydantic" and not issubclass(cls, str | int | float | bytes)
    return own and is_pydantic(cls) and not hasattr(cls, "get_secret_value")


def _dump_pydantic(value: Any) -> Any:
    """The fields, and the rest of a model's state."""
    state = value.__getstate__()
    dumped = {
        name: _dump_dict(found)
        for name, found in (
            ("fields", {name: state["__dict__"][name] for name in type(value).model_fields}),
            ("extra", state.get("__pydantic_extra__")),
            ("private", state.get("__pydantic_private__")),
        )
        if found is not None
    }
    return {**dumped, "set": sorted(state["__pydantic_fields_set__"])}


def _load_pydantic(cls: Any, data: Any) -> Any:
    """A model in the dumped state, which its validators have already checked."""
    values = at("fields", _load, data["fields"])
    if unknown := [name for name in values if name not in cls.model_fields]:
        raise Failure(f"{stored_name(cls)} has no field {unknown[0]!r}")
    for name, info in cls.model_fields.items():
        if name not in values:
            if info.is_required():
                raise Failure(f"{stored_name(cls)} needs the field {name!r}")
            values[name] = info.get_default(call_default_factory=True)
    record = cls.__new__(cls)
    state = {"__dict__": values, "__pydantic_fields_set__": set(data["set"])}
    for name in ("extra", "private"):
        state[f"__pydantic_{name}__"] = at(name, _load, data.get(name))
    record.__setstate__(state)
    return record


def _record_loader(cls: Any, settable: dict[str, bool], write: Callable[[Any, str, Any], None]) -> Convert:
    # The constructor may change or compute fields, so the dumped values are set again afterwards.
    rewrite = hasattr(cls, "__post_init__") or not all(settable.values())

    def load_record(data: Any) -> Any:
        arguments = {}
        loaded = {}
        for name, item in data.items():
            if name not in settable:
                raise Failure(f"{stored_name(cls)} has no field {name!r}")
            value = loaded[name] = at(name, _load, item)
            if settable[name]:
                arguments[name] = value
        record = cls(**arguments)
        if rewrite:
            for name, value in loaded.items():
                write(record, name, value)
        return record

    return load_record


def stored_name(cls: type) -> str:
    """The stored name of a class. Names of the library's own classes do not say in which module they are."""
    if _is_own_module(cls.__module__):
        return f"{OWN_NAMES}{cls.__qualname__}"
    return f"{cls.__module__}:{cls.__qualname__}"


def _is_own_module(module_name: str | None) -> bool:
    """True for modules of the library; the demo is a user's program.

    A class that `exec` makes may have no module.
    """
    if module_name is None:
        return False
    in_demo = f"{module_name}.".startswith(f"{LIBRARY}.demo.")
    return module_name.startswith(f"{LIBRARY}.") and not in_demo


def _remember(cls: type) -> str:
    name = stored_name(cls)
    known = _KNOWN.get(name)
    if known is not cls:
        _KNOWN[name] = cls
        _LOADERS.pop(name, None)
        if known is not None:
            _DUMPERS.pop(known, None)
    return name


def find_class(name: str) -> type:
    """The class that a tag names, among those that the program has defined."""
    if ":" not in name:
        raise Failure(f"unknown tag {name!r}")
    known = _KNOWN.get(name)
    if known is not None:
        return known
    module_name, _, qualname = name.partition(":")
    if module_name == LIBRARY:
        cls = _own_class(qualname) or _defined(_is_own_module, qualname)
    else:
        cls = _member(sys.modules.get(module_name), qualname)
        # Code that the program does not run defines nothing.
        if cls is None and module_name in sys.modules:
            cls = _defined(module_name.__eq__, qualname)
    if cls is None:
        raise Failure(f"unknown type {name}; import the module that defines it, or call serde.register_type first")
    return cls


def _member(module: Any, qualname: str) -> type | None:
    """The class of this name in a module."""
    member: Any = module
    for part in qualname.split("."):
        # Not getattr: a module's __getattr__ may import other modules.
        member = getattr(member, "__dict__", {}).get(part)
    return member if isinstance(member, type) else None


def _own_class(qualname: str) -> type | None:
    """The library's class of this name, in whichever of its modules; a test checks that there is only one."""
    # A copy: another thread may be importing a module.
    for module_name, module in list(sys.modules.items()):
        if not _is_own_module(module_name):
            continue
        cls = _member(module, qualname)
        if cls is not None and _is_own_module(cls.__module__):
            return cls
    return None


def _defined(is_its_module: Callable[[str], bool], qualname: str) -> type | None:
    """The newest class of this name that is not a module attribute: defined in a function, or by `make_dataclass`."""
    newest: type | None = None
    # By identity: metaclasses define equality and hashes, and that of `typing.Union` warns from Python 3.14 on.
    visited: dict[int, type] = {id(object): object}
    pending: list[type] = [object]
    while pending:
        subclasses: list[type] = type.__subclasses__(pending.pop())
        for cls in subclasses:
            if id(cls) in visited:
                continue
            visited[id(cls)] = cls
            pending.append(cls)
            # A class may have any attributes: only a text is the name of a module.
            module_name = cls.__module__
            is_named = cls.__qualname__ == qualname and isinstance(module_name, str)
            if is_named and is_its_module(module_name):
                newest = cls
    return newest


# Each tag that does not name a class: its type, how a value is written under it, and how it is read. If no writer is
# given, only some values of the type have a tag.
_TAGS: dict[str, tuple[type, Convert | None, Convert]] = {
    "str": (str, None, lambda data: b64decode(data).decode("utf-8", "surrogatepass")),
    "int": (int, None, lambda data: int(data, 16)),
    "float": (float, None, float),
    "dict": (dict, None, lambda data: dict(_load_items(data))),
    "datetime": (datetime, _dump_datetime, _load_datetime),
    "time": (
        time,
        lambda value: [value.isoformat(), value.fold],
        lambda data: time.fromisoformat(data[0]).replace(fold=data[1]),
    ),
    "tuple": (tuple, _dump_items, lambda data: tuple(_load_items(data))),
    "set": (set, _dump_set, lambda data: set(_load_items(data))),
    "frozenset": (frozenset, _dump_set, lambda data: frozenset(_load_items(data))),
    "deque": (
        deque,
        lambda value: [_dump_items(value), value.maxlen],
        lambda data: deque(_load_items(data[0]), data[1]),
    ),
    "OrderedDict": (OrderedDict, _dump_pairs, lambda data: OrderedDict(_load_items(data))),
    "mappingproxy": (MappingProxyType, _dump_pairs, lambda data: MappingProxyType(dict(_load_items(data)))),
    "date": (date, date.isoformat, date.fromisoformat),
    "timedelta": _by_attributes(timedelta, "days", "seconds", "microseconds"),
    **{cls.__name__: (cls, str, cls) for cls in (UUID, Decimal, Path, PurePosixPath, PureWindowsPath)},
    "bytes": (bytes, _dump_bytes, lambda data: b64decode(data, validate=True)),
    "blob": (Blob, _dump_blob, _load_blob),
    "bytearray": (bytearray, _dump_bytes, lambda data: bytearray(b64decode(data, validate=True))),
    "unset": (msgspec.UnsetType, lambda value: None, lambda data: msgspec.UNSET),
    "complex": _by_attributes(complex, "real", "imag"),
    "type": (type, _remember, find_class),
}
TAG_TYPES = {tag: cls for tag, (cls, _, _) in _TAGS.items()}
_LOADERS = {tag: load for tag, (_, _, load) in _TAGS.items()}
_DUMPERS: dict[type, Convert] = {int: _dump_int, float: _dump_float, list: _dump_items, dict: _dump_dict}
_DUMPERS |= {cls: _tagger(tag, write) for tag, (cls, write, _) in _TAGS.items() if write is not None}
