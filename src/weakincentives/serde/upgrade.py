"""Stored values of classes that have changed since: tagged JSON rewritten for the classes of today."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, TypeAlias

from weakincentives.content import Blob
from weakincentives.errors import SerdeError
from weakincentives.serde.checked import load_checked
from weakincentives.serde.records import is_pydantic_model
from weakincentives.serde.tagged import Failure, at, converted, dump_tagged, find_class, stored_name

Upgrades: TypeAlias = Mapping[str, type | Callable[[Any], Any]]
"""By the name a class was stored under (`"shop:Refunded"`), its new class, or a function of the stored fields.

The function returns today's fields as a dict, or any other value to put in place of the instance. It is called for
every stored instance, also for those that already have today's fields.
"""


def upgrade_tagged(
    data: Any,
    upgrades: Upgrades,
    blobs: dict[str, Blob] | None = None,
    types: Collection[type] | None = None,
) -> Any:
    """Stored data as `dump_tagged` would write it today; the innermost values first."""
    if not upgrades:
        return data
    return converted(partial(_upgraded, upgrades, {} if blobs is None else blobs, types), data, blobs, "too deep")


def check_upgrades(upgrades: Upgrades) -> Upgrades:
    """The upgrades, if they have names of stored classes, and classes or functions."""
    for name, upgrade in upgrades.items():
        if not isinstance(name, str) or ":" not in name:
            raise TypeError(f"upgrades are named by the stored module and class, such as 'shop:Refunded', got {name!r}")
        if not callable(upgrade):
            raise TypeError(
                f"the upgrade of {name!r} must be its new class, or a function of the stored fields, got {upgrade!r}"
            )
    return upgrades


def named_types(upgrades: Upgrades) -> tuple[type, ...]:
    """The classes that upgrades name, which the program has so declared as data."""
    found = [each for each in check_upgrades(upgrades).values() if isinstance(each, type)]
    for name in upgrades:
        try:
            found.append(find_class(name))
        except Failure:
            continue
    return tuple(found)


def _upgraded(upgrades: Upgrades, blobs: dict[str, Blob], types: Collection[type] | None, data: Any) -> Any:
    again = partial(_upgraded, upgrades, blobs, types)
    if isinstance(data, list):
        return [at(index, again, item) for index, item in enumerate(data)]
    if not isinstance(data, dict):
        return data
    tag = data.get("$")
    if not isinstance(tag, str) or "v" not in data:
        return {name: at(name, again, item) for name, item in data.items()}
    if tag == "type":
        return {"$": tag, "v": _renamed(upgrades, data["v"])}
    content, tag = again(data["v"]), _renamed(upgrades, tag)
    if tag not in upgrades:
        return {"$": tag, "v": content}
    inner = content["fields"] if _is_pydantic(tag, content) else content
    try:
        stored = load_checked(Any, inner, blobs, types)
        result = upgrades[tag](stored)
        dumped = dump_tagged(result, blobs)
    except SerdeError as error:
        raise Failure(str(error)) from error
    except Exception as error:
        raise Failure(f"the upgrade of {tag} raised {type(error).__name__}: {error}") from error
    if type(result) is not type(stored):
        return dumped
    if inner is not content:
        known = set(content["set"]) | (result.keys() - inner.keys())
        dumped = {**content, "fields": dumped, "set": sorted(known & result.keys())}
    return {"$": tag, "v": dumped}


def _renamed(upgrades: Upgrades, name: Any) -> Any:
    passed = set()
    while isinstance(name, str) and name not in passed and isinstance(new := upgrades.get(name), type):
        passed.add(name)
        name = stored_name(new)
    return name


def _is_pydantic(tag: str, content: Any) -> bool:
    try:
        return is_pydantic_model(find_class(tag))
    except Failure:
        return isinstance(content, dict) and content.keys() >= {"fields", "set"}
