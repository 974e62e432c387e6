"""Types with named fields, and values written as JSON.

Such types are dataclasses, msgspec Structs, Pydantic models, TypedDicts and NamedTuples.
"""

from __future__ import annotations

import collections.abc as abc
import operator
import re
import sys
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from pathlib import PurePath
from types import FrameType, MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar, Union

import msgspec

from weakincentives._base.annotations import class_annotations
from weakincentives.errors import FieldProblem, SerdeError


class UnresolvedType(SerdeError):
    """An annotation names something that is not defined, or not yet."""


class Column(NamedTuple):
    """A field: `name` in Python, `key` in JSON. An `optional` field has no default and may be absent."""

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
    """The fields of a class in order, including computed ones (`init=False`)."""
    return _columns(cls) or ()


def field_value(record: Any, name: str) -> Any:
    """The value of a field; in a TypedDict, that is an item."""
    return record[name] if type(record) is dict else getattr(record, name)


def is_instance(value: object, cls: type) -> bool:
    """True if a value is an instance of a class; for a TypedDict, if it is a dict with its keys."""
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
    # Not `typing.is_typeddict`, which does not recognise those of typing_extensions.
    return issubclass(cls, dict) and hasattr(cls, "__required_keys__") and hasattr(cls, "__total__")


def field_types(annotation: Any, cls: type, names: frozenset[str]) -> tuple[dict[str, Any], bool]:
    """The types of the named fields of `cls` (or `Cls[Arg]`), and whether one came from a caller's local scope."""
    types: dict[str, Any] = {}
    arguments = _arguments_by_class(annotation, cls)
    local = False
    for base in reversed(cls.__mro__):
        for name, hint in class_annotations(base).items():
            if name not in names:
                continue
            resolved, from_caller = _resolve(base, name, hint)
            local = local or from_caller
            types[name] = _substitute(resolved, arguments.get(base, {}))
    return types, local


def bare(annotation: Any) -> Any:
    """The type behind a type variable, a `NewType`, an alias or a qualifier such as `Final`."""
    if isinstance(annotation, TypeVar):
        if annotation.__constraints__:
            return Union[annotation.__constraints__]  # noqa: UP007
        return Any if annotation.__bound__ is None else bare(annotation.__bound__)
    if isinstance(annotation, typing.NewType):
        return bare(annotation.__supertype__)
    if type(annotation).__name__ == "TypeAliasType":
        return bare(annotation.__value__)
    origin = typing.get_origin(annotation)
    if origin in _QUALIFIERS or str(origin).endswith(".ReadOnly"):
        return bare(typing.get_args(annotation)[0])
    return annotation


def dump(value: Any) -> Any:
    """The value as dicts, lists and plain scalars, including computed fields (`init=False`)."""
    return _lists(_written(msgspec.to_builtins, value, str_keys=True, enc_hook=_to_json))


def encode(value: Any, *, as_input: bool = False) -> bytes:
    """The value as JSON text. NaN and infinities become null, because JSON cannot express them.

    A Pydantic model is written as it is shown, or `as_input`: under the names it is read by, without computed fields.
    """
    text: bytes = _written(msgspec.json.encode, value, enc_hook=_to_input if as_input else _to_json)
    return text


def _written(write: Callable[..., Any], value: Any, **options: Any) -> Any:
    try:
        return write(_with_objects(value), **options)
    except RecursionError:
        raise SerdeError((FieldProblem("$", "value is nested too deeply or contains itself"),)) from None
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise SerdeError((FieldProblem("$", f"cannot be written as JSON: {error}"),)) from None


_FACTORY = type(msgspec.defstruct("_", [("x", list, msgspec.field(default_factory=list))]).__struct_defaults__[0])
_QUALIFIERS = frozenset({typing.Final, typing.Required, typing.NotRequired})
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
        hints = class_annotations(cls)
        return tuple(Column(name, name, optional=not _is_required(cls, name, hints[name])) for name in hints)
    return None


def _pydantic_columns(cls: Any) -> Iterator[Column]:
    for name, info in cls.model_fields.items():
        metadata = {} if info.description is None else {"description": info.description}
        aliases = getattr(info.validation_alias, "choices", [info.validation_alias])
        key = next((alias for alias in aliases if isinstance(alias, str)), info.alias or name)
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


def _is_required(cls: Any, name: str, hint: Any) -> bool:
    """True if a TypedDict must have a key. Under `from __future__ import annotations` only the text shows it."""
    text = _QUALIFIER.match(getattr(hint, "__forward_arg__", ""))
    if text is not None:
        return text[1] == "Required"
    return typing.get_origin(hint) is typing.Required or name in cls.__required_keys__


def _resolve(cls: type, field: str, hint: Any) -> tuple[Any, bool]:
    holder = type("Holder", (), {"__annotations__": {field: hint}})
    known: dict[str, Any] = {cls.__name__: cls, **vars(cls)}
    module = sys.modules.get(cls.__module__)
    names = vars(module) if module is not None else {}
    from_caller = isinstance(hint, str) and cls.__name__ in hint and names.get(cls.__name__) is not cls
    while True:
        try:
            hints = typing.get_type_hints(holder, globalns=names, localns=known, include_extras=True)
            return hints[field], from_caller
        except NameError as error:
            frame = _frame_with_local(error.name, names)
            if frame is None:
                way_out = "define the type at module level"
                if isinstance(hint, str):
                    way_out += " or remove 'from __future__ import annotations'"
                text = getattr(hint, "__forward_arg__", hint)
                message = f"annotation {text!r} cannot be resolved: {error}; {way_out}"
                raise UnresolvedType((FieldProblem(f"{cls.__qualname__}.{field}", message),)) from None
            known[str(error.name)] = frame.f_locals[str(error.name)]
            from_caller = True
        except Exception as error:
            message = f"annotation {hint!r} cannot be resolved: {error}"
            raise SerdeError((FieldProblem(f"{cls.__qualname__}.{field}", message),)) from error


def _frame_with_local(name: str | None, module: dict[str, Any]) -> FrameType | None:
    """The nearest caller in `module` with a local variable `name`: a function that defines classes inside itself."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (frame.f_globals is not module or name not in frame.f_locals):
        frame = frame.f_back
    return frame


def _arguments_by_class(annotation: Any, cls: type) -> dict[type, dict[TypeVar, Any]]:
    """The type arguments of each generic class that `cls` inherits from."""
    found: dict[type, dict[TypeVar, Any]] = {}

    def visit(origin: type, args: tuple[Any, ...]) -> None:
        parameters = getattr(origin, "__parameters__", ())
        filled = dict(zip(parameters, args, strict=False))
        found.setdefault(origin, filled)
        for base in origin.__dict__.get("__orig_bases__", ()):
            base_origin = typing.get_origin(base)
            if isinstance(base_origin, type) and base_origin is not Generic:
                visit(base_origin, tuple(_substitute(arg, filled) for arg in typing.get_args(base)))

    for base in cls.__mro__:
        if base not in found:
            visit(base, typing.get_args(annotation) if base is cls else ())
    return found


def _substitute(hint: Any, filled: dict[TypeVar, Any]) -> Any:
    if isinstance(hint, TypeVar):
        return filled.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    if not parameters or isinstance(hint, type) or not filled:
        return hint
    return hint[tuple(filled.get(parameter, parameter) for parameter in parameters)]


def _to_json(value: Any) -> Any:
    if type(value) in (list, tuple, frozenset):
        # msgspec passes these to the hook only if they are keys.
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


def _to_input(value: Any) -> Any:
    if not is_pydantic_model(type(value)):
        return _to_json(value)
    return sys.modules["pydantic_core"].to_jsonable_python(_input_parts(value), by_alias=True, round_trip=True)


def _input_parts(value: Any) -> Any:
    cls: Any = type(value)
    if is_pydantic_model(cls):
        parts = {column.key: _input_parts(getattr(value, column.name)) for column in columns(cls)}
        return parts["root"] if cls.__pydantic_root_model__ else parts | (value.model_extra or {})
    if isinstance(value, abc.Mapping):
        return {key: _input_parts(item) for key, item in value.items()}
    if cls in _ARRAYS:
        return [_input_parts(item) for item in value]
    return value.get_secret_value() if hasattr(value, "get_secret_value") else value


_ARRAYS = (list, tuple, set, frozenset)
_SCALARS = frozenset({str, int, float, bool, type(None), bytes})


def _with_objects(value: Any) -> Any:
    """The value with an object in place of each named tuple, which msgspec would write as an array of values."""
    cls: Any = type(value)
    parts_of = _parts_of(cls)
    if parts_of is None:
        return value
    old = new = parts_of(value)
    if not _SCALARS.issuperset(map(type, old)):
        new = [item if type(item) in _SCALARS else _with_objects(item) for item in old]
    if (new is old or all(map(operator.is_, new, old))) and not is_named_tuple(cls):
        return value
    if cls in _ARRAYS:
        return new
    known = columns(cls)
    if not known:
        return dict(zip(value, new, strict=True))
    tag = cls.__struct_config__ if is_struct(cls) else None
    tagged = {} if tag is None or tag.tag is None else {tag.tag_field: tag.tag}
    return tagged | {column.key: item for column, item in zip(known, new, strict=True)}


@lru_cache(maxsize=2048)
def _parts_of(cls: type) -> Callable[[Any], Collection[Any]] | None:
    """A function that returns the parts of a value that may be named tuples; None if there are none."""
    if cls in _ARRAYS:
        return lambda value: value
    names = [column.name for column in columns(cls)]
    if not names:
        return (lambda value: value.values()) if issubclass(cls, abc.Mapping) else None
    if is_pydantic_model(cls):
        return None
    read = operator.attrgetter(*names)
    return read if len(names) > 1 else lambda value: (read(value),)


def _lists(value: Any) -> Any:
    """Turn the tuples that msgspec keeps into lists."""
    if type(value) is dict:
        return {key: _lists(item) for key, item in value.items()}
    if type(value) is list or type(value) is tuple:
        return [_lists(item) for item in value]
    return value
