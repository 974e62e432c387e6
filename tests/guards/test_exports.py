"""What a front has in `__all__` can be imported from it, and is what type checkers see."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

import weakincentives

PACKAGE = Path(weakincentives.__file__).parent
FRONTS = sorted(
    ".".join(path.parent.relative_to(PACKAGE.parent).parts)
    for path in PACKAGE.rglob("__init__.py")
    if "__all__" in path.read_text(encoding="utf-8")
)


def source(front: str) -> str:
    return (PACKAGE.parent / Path(*front.split(".")) / "__init__.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("front", FRONTS)
def test_every_name_of_a_front_can_be_imported(front: str) -> None:
    module = import_module(front)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


@pytest.mark.parametrize("front", [front for front in FRONTS if "public_names(" in source(front)])
def test_a_front_has_the_names_that_type_checkers_see(front: str) -> None:
    imports = [node for node in ast.walk(ast.parse(source(front))) if isinstance(node, ast.ImportFrom)]
    seen = [alias.asname for node in imports for alias in node.names if alias.asname == alias.name]
    assert sorted(filter(None, seen)) == import_module(front).__all__


@pytest.mark.parametrize("front", FRONTS)
def test_a_front_lists_each_name_once(front: str) -> None:
    names = list(import_module(front).__all__)
    assert len(names) == len(set(names))


def test_type_checkers_see_the_names_that_the_front_door_has() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    names = {
        (node.module or "").removeprefix("weakincentives."): [alias.name for alias in node.names]
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
    }
    assert names == weakincentives._NAMES


def test_dir_shows_the_names_of_the_front_door() -> None:
    assert set(weakincentives.__all__) <= set(dir(weakincentives))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Promt'"):
        weakincentives.Promt  # noqa: B018


def test_the_front_of_prompts_hides_no_module_of_its_own() -> None:
    names = set(weakincentives.prompt.__all__)
    modules = {path.stem for path in Path(str(weakincentives.prompt.__file__)).parent.iterdir()}
    assert not names & modules
