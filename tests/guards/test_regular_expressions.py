"""The source has no regular expression that the supported versions of Python match differently.

Before 3.11.5, a possessively repeated group keeps what its last, failed round has read (gh-106052), and a group that
captures inside a possessive repeat raises SystemError or crashes (gh-101955).
"""

from __future__ import annotations

import ast
import importlib
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from re import _constants as codes, _parser as parser  # type: ignore[attr-defined]
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(file for folder in ("src", "scripts", "bench", "examples") for file in (ROOT / folder).rglob("*.py"))
SINGLE = {codes.LITERAL, codes.NOT_LITERAL, codes.ANY, codes.IN, codes.CATEGORY}
# A possessive repeat or an atomic group, if it is not something else: "{name}+" and "++" may come from two literals.
SUSPECT = re.compile(r"[*+?}][\"'\s]*\+|\(\?>")
# In place of a value that is known only at run time.
UNKNOWN = "(?:xx)"


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?:ab)++",
        r"(?:(?!x).)*+",
        r"(?:a|bc)?+",
        r"(?:ab){2,3}+",
        r"x(?:y(?:ab)++)",
        r"(?=(?:ab)++)",
        r"(a)++",
        r"(?>(a)b)",
    ],
)
def test_the_scan_finds(pattern: str) -> None:
    assert list(faults(parser.parse(pattern)))


@pytest.mark.parametrize("pattern", [r"[ab]++", r"\d*+", r".?+x", r"(?>(?:ab)+)", r"(a)+", r"(?:ab)+", r"a{2,3}+"])
def test_the_scan_accepts(pattern: str) -> None:
    assert not list(faults(parser.parse(pattern)))


def test_no_pattern_of_the_source_differs_between_versions() -> None:
    assert FILES
    found = [
        f"{file.relative_to(ROOT)}:{line}: {fault} in {pattern!r}"
        for file in FILES
        for line, pattern in literals(file)
        if (tree := parsed(pattern)) is not None
        for fault in faults(tree)
    ]
    assert found == []


def faults(tree: Any, *, atomic: bool = False) -> Iterator[str]:
    """The constructs to avoid in a parsed expression."""
    for code, value in tree:
        if code is codes.POSSESSIVE_REPEAT and (len(value[2]) != 1 or value[2][0][0] not in SINGLE):
            yield "a possessively repeated group: write (?>(?:...)+)"
        if code is codes.SUBPATTERN and value[0] is not None and atomic:
            yield "a capturing group inside an atomic group or a possessive repeat"
        inside = atomic or code in (codes.POSSESSIVE_REPEAT, codes.ATOMIC_GROUP)
        for part in subpatterns(value):
            yield from faults(part, atomic=inside)


def subpatterns(value: Any) -> Iterator[Any]:
    if isinstance(value, parser.SubPattern):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from subpatterns(part)


def parsed(pattern: str | bytes) -> Any:
    """The expression, or None for a text that is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return parser.parse(pattern, re.VERBOSE if "(?x" in str(pattern) else 0)
        except (re.error, OverflowError, RecursionError, AssertionError):
            return None


def literals(file: Path) -> Iterator[tuple[int, str | bytes]]:
    """Each text of a file that may be a pattern, with the names in it replaced by what they stand for."""
    source = file.read_text(encoding="utf-8")
    if not SUSPECT.search(source):
        return
    known = namespace(file)
    for node in outermost(ast.parse(source)):
        yield node.lineno, text_of(node, known)


def outermost(node: ast.AST) -> Iterator[ast.expr]:
    for child in ast.iter_child_nodes(node):
        if is_text(child):
            yield child
            # What stands between braces may have texts of its own.
            for value in ast.walk(child):
                if isinstance(value, ast.FormattedValue):
                    yield from outermost(value)
        else:
            yield from outermost(child)


def is_text(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return is_text(node.left) or is_text(node.right)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def text_of(node: ast.expr, known: dict[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if not any(isinstance(part, ast.Call) for part in ast.walk(node)):
        try:
            value = eval(compile(ast.Expression(node), "<pattern>", "eval"), dict(known))
            return value if isinstance(value, str | bytes) else UNKNOWN
        except (NameError, AttributeError, TypeError, LookupError, SyntaxError, ValueError):
            pass
    if isinstance(node, ast.BinOp):
        left, right = text_of(node.left, known), text_of(node.right, known)
        return left + right if type(left) is type(right) else UNKNOWN
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part, known) for part in node.values)
    return UNKNOWN


def namespace(file: Path) -> dict[str, Any]:
    """The names of the module, for patterns built of parts; none if an optional package is missing."""
    if not file.is_relative_to(ROOT / "src" / "weakincentives") or file.stem == "__main__":
        return {}
    name = ".".join(file.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
    try:
        return vars(importlib.import_module(name))
    except ImportError:
        return {}
