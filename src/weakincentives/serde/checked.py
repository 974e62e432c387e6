"""Loading tagged JSON from an untrusted source: nothing is built that the expected type does not declare.

The data is compared with the annotations of the classes it names before any of them is called.
"""

from __future__ import annotations

import collections.abc as abc
import types
import typing
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Annotated, Any, Literal, Union

from weakincentives.content import Blob
from weakincentives.errors import SerdeError
from weakincentives.serde.constraints import describe
from weakincentives.serde.records import bare, columns, field_types, is_pydantic_model, is_typed_dict
from weakincentives.serde.tagged import (
    TAG_TYPES,
    Failure,
    at,
    converted,
    find_class,
    is_declared,
    load_tagged,
    stored_name,
)

Check = Callable[[Any], None]
_types: ContextVar[Collection[type] | None] = ContextVar("weakincentives_types", default=None)

_ITEMS = frozenset(
    {list, tuple, set, frozenset, deque, abc.Sequence, abc.MutableSequence, abc.Set, abc.MutableSet}
    | {abc.Collection, abc.Container, abc.Iterable, abc.Reversible}
)
_PAIRS = frozenset({dict, OrderedDict, MappingProxyType, abc.Mapping, abc.MutableMapping})


def load_checked(
    annotation: Any, data: Any, blobs: dict[str, Blob] | None = None, types: Collection[type] | None = None
) -> Any:
    """Like `load_tagged`, for a value of the annotated type; a `SerdeError` says where the data differs from it.

    Where an annotation leaves the class open (`Any`, or a base class), every class of the program is accepted; with
    `types`, only these and those that the program has declared as data.
    """
    check_tagged(annotation, data, types)
    return load_tagged(data, blobs)


def check_tagged(annotation: Any, data: Any, types: Collection[type] | None = None) -> None:
    """Raise a `SerdeError` if `load_checked` would refuse the data."""
    token = _types.set(types)
    try:
        converted(lambda data: _check_for(annotation)(data), data, None, "data is nested too deeply")
    finally:
        _types.reset(token)


def _check_for(annotation: Any) -> Check:
    annotation = bare(annotation)
    while typing.get_origin(annotation) is Annotated:
        annotation = bare(typing.get_args(annotation)[0])
    return _make_check(annotation)


@lru_cache(maxsize=2048)
def _make_check(annotation: Any) -> Check:
    if annotation is Any or annotation is object:
        return _check_any
    origin = typing.get_origin(annotation) or annotation
    args = typing.get_args(annotation)
    if origin is Union or origin is types.UnionType:
        return partial(_check_union, annotation, [_check_for(arg) for arg in args])
    if origin is Literal:
        return partial(_check_literal, annotation, args)
    if origin in _PAIRS:
        check_content = partial(_check_pairs, *map(_check_for, args or (Any, Any)))
        return partial(_check_container, _PAIRS, origin, annotation, check_content)
    if origin is tuple and args and args[-1] is not Ellipsis:
        return partial(_check_fixed_tuple, annotation, [_check_for(arg) for arg in args])
    if origin in _ITEMS:
        check_content = partial(_check_items, _check_for(args[0] if args else Any))
        return partial(_check_container, _ITEMS, origin, annotation, check_content)
    # Values of Pydantic's own types may have other classes: an EmailStr is a str.
    if not isinstance(origin, type) or origin.__module__.partition(".")[0] == "pydantic":
        return _check_any
    if is_typed_dict(origin):
        return partial(_check_typed_dict, annotation)
    return partial(_check_instance, origin, annotation)


def _check_instance(cls: type, annotation: Any, data: Any) -> None:
    found, content = _split(data)
    if not _is_subclass(found, cls):
        raise _Mismatch(annotation, data)
    if found in _PAIRS:
        _check_pairs(_check_any, _check_any, content)
    elif found in _ITEMS:
        _check_items(_check_any, content)
    elif isinstance(data, dict):
        types = _types.get()
        if not (found is cls or found in _PLAIN or types is None or found in types or is_declared(found)):
            raise Failure(undeclared(found))
        _check_content(found, annotation if found is cls else found, content)


def undeclared(cls: type) -> str:
    """The error for a class that data names and the program has not declared."""
    name = stored_name(cls)
    return f"{name} is not declared as data; pass it in types=, or create the prompt or tool that uses it first"


_check_any: Check = partial(_check_instance, object, Any)


def _check_union(annotation: Any, options: Sequence[Check], data: Any) -> None:
    failures: list[Failure] = []
    for option in options:
        try:
            return option(data)
        except Failure as failure:
            failures.append(failure)
    # An option of the right class reports what is wrong inside.
    inner = (failure for failure in failures if failure.steps or not isinstance(failure, _Mismatch))
    raise next(inner, _Mismatch(annotation, data))


def _check_literal(annotation: Any, values: tuple[Any, ...], data: Any) -> None:
    if isinstance(data, dict):
        matches = _split(data)[0] in {type(value) for value in values}
    else:
        matches = any(type(value) is type(data) and value == data for value in values)
    if not matches:
        raise _Mismatch(annotation, data)


def _check_typed_dict(annotation: Any, data: Any) -> None:
    found, content = _split(data)
    if found is not dict or not isinstance(content, dict):
        raise _Mismatch(annotation, data)
    _check_content(dict, annotation, content)


def _check_container(kinds: frozenset[Any], cls: type, annotation: Any, check_content: Check, data: Any) -> None:
    found, content = _split(data)
    if found not in kinds or not issubclass(found, cls):
        raise _Mismatch(annotation, data)
    check_content(content)


def _check_fixed_tuple(annotation: Any, checks: Sequence[Check], data: Any) -> None:
    found, content = _split(data)
    if found is not tuple or not isinstance(content, list) or len(content) != len(checks):
        raise _Mismatch(annotation, data)
    for index, (check, item) in enumerate(zip(checks, content, strict=True)):
        at(index, check, item)


def _check_items(check: Check, content: Any) -> None:
    if not isinstance(content, list):
        raise Failure(f"expected a list of items, got {describe(content)}")
    for index, item in enumerate(content):
        at(index, check, item)


def _check_pairs(check_key: Check, check_value: Check, content: Any) -> None:
    if isinstance(content, dict):
        for key, value in content.items():
            check_key(key)
            at(key, check_value, value)
        return
    if not isinstance(content, list):
        raise Failure(f"expected a list of pairs, got {describe(content)}")
    for index, pair in enumerate(content):
        if not isinstance(pair, list) or len(pair) != 2:
            raise Failure(f"expected a key and a value, got {describe(pair)}")
        at(index, check_key, pair[0])
        at(index, check_value, pair[1])


def _check_content(cls: type, annotation: Any, content: Any) -> None:
    """Check the data a class is to be built from."""
    checks = _field_checks(annotation)
    if is_pydantic_model(cls) and isinstance(content, dict):
        # Its other parts, such as private attributes, have no annotation to compare them with.
        for name in content.keys() - {"fields"}:
            at(name, _check_any, content[name])
        content = content.get("fields")
    if checks is None:
        if cls not in _PLAIN:
            _check_any(content)
    elif isinstance(content, dict):
        for name, value in content.items():
            if name not in checks:
                raise Failure(f"{cls.__qualname__} has no field {name!r}")
            at(name, checks[name], value)
    elif isinstance(content, list):
        for index, (check, value) in enumerate(zip(checks.values(), content, strict=False)):
            at(index, check, value)
    else:
        raise Failure(f"expected the fields of {cls.__qualname__}, got {describe(content)}")


@lru_cache(maxsize=2048)
def _field_checks(annotation: Any) -> dict[str, Check] | None:
    """The checks of a class's fields, in order; None if it has none. Unresolvable annotations accept anything."""
    cls: Any = typing.get_origin(annotation) or annotation
    names = [column.name for column in columns(cls)]
    if not names:
        return None
    hints: dict[str, Any] = {}
    for name in names:
        try:
            hints |= field_types(annotation, cls, frozenset({name}))[0]
        except SerdeError:
            hints[name] = Any
    return {name: _check_for(hints.get(name, Any)) for name in names}


def _split(data: Any) -> tuple[type, Any]:
    """The class that data is loaded as, and the data it is built from."""
    if not isinstance(data, dict):
        return type(data), data
    if "$" not in data:
        return dict, data
    tag = data["$"]
    if not isinstance(tag, str) or "v" not in data:
        raise Failure("an object with '$' must have a text tag and 'v'")
    known = TAG_TYPES.get(tag)
    if known is deque and isinstance(data["v"], list) and data["v"]:
        return deque, data["v"][0]
    return find_class(tag) if known is None else known, data["v"]


def _is_subclass(found: type, cls: type) -> bool:
    if cls is float and found is int:
        return True
    try:
        return issubclass(found, cls)
    except TypeError:
        # A protocol that cannot be checked at run time.
        return True


class _Mismatch(Failure):
    """The data is not of the annotated type."""

    def __init__(self, annotation: Any, data: Any) -> None:
        expected = annotation.__qualname__ if isinstance(annotation, type) else str(annotation).removeprefix("typing.")
        found = f"a {data['$']}" if isinstance(data, dict) and "$" in data else describe(data)
        super().__init__(f"expected {expected}, got {found}")


_PLAIN = frozenset(TAG_TYPES.values())
