"""Constraints on values (bounds, lengths and patterns), and messages about values that violate them.

Constraints are declared in annotations or in field metadata:

    age: Annotated[int, msgspec.Meta(ge=0, le=150)]
    name: Annotated[str, annotated_types.MinLen(1)]
    code: str = field(metadata={"pattern": "^[A-Z]{3}$"})

They are part of JSON Schemas and are enforced when data is read. A type with a constraint that cannot be enforced is
rejected.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any

from weakincentives._base.display import shortened

BOUNDS = ("ge", "gt", "le", "lt", "multiple_of")
LENGTHS = ("min_length", "max_length")
NAMES = (*BOUNDS, *LENGTHS, "pattern")

_TIGHTER: dict[str, Callable[[Any, Any], Any]] = dict.fromkeys(("ge", "gt", "min_length"), max)
_TIGHTER |= dict.fromkeys(("le", "lt", "max_length"), min)
_COMPARE = {"ge": operator.ge, "gt": operator.gt, "le": operator.le, "lt": operator.lt}
_WORDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than", "multiple_of": "a multiple of"}
_PLURALS = {"entry": "entries"}
# A character class or an escaped character, or else syntax that JSON Schema lacks.
_PIECE = re.compile(r"\[\^?\]?(?:\\.|[^]\\])*\]|\\[^AZ1-9]|(\\[AZ1-9]|\(\?(?!:)|[*+?}]\+)", re.DOTALL)


class InvalidConstraint(Exception):
    """A constraint that cannot be honoured; the message says why."""


Constraints = Mapping[str, Any]
"""Constraints by name, each of `NAMES` at most once."""


def collect(annotated: Iterable[object], metadata: Mapping[Any, Any]) -> dict[str, Any]:
    """The constraints among the metadata of an `Annotated` type and of a dataclass field."""
    found: dict[str, Any] = {}
    for item in annotated:
        if type(item).__module__ == "annotated_types" and type(item).__name__ in ("Predicate", "Not", "Timezone"):
            raise InvalidConstraint(f"{item!r} has no form in JSON Schema; check it in __post_init__ instead")
        if getattr(item, "tz", None) is not None:
            raise InvalidConstraint("tz has no form in JSON Schema; check it in __post_init__ instead")
        found = merge(found, {name: value for name in NAMES if (value := getattr(item, name, None)) is not None})
    return merge(found, {name: metadata[name] for name in NAMES if metadata.get(name) is not None})


def merge(one: Constraints, other: Constraints) -> dict[str, Any]:
    """Both sets of constraints; of two bounds, the tighter one is kept."""
    merged = dict(one)
    for name, value in other.items():
        value = _checked(name, value)
        if name in merged and merged[name] != value:
            if name not in _TIGHTER:
                raise InvalidConstraint(f"{name} is given twice: {merged[name]!r} and {value!r}")
            value = _TIGHTER[name](merged[name], value)
        merged[name] = value
    _check_satisfiable(merged)
    return merged


def holds(constraints: Constraints, value: Any) -> bool:
    return all(_holds(name, limit, value) for name, limit in constraints.items())


def words(constraints: Constraints, unit: str = "item") -> str:
    """The constraints as part of a sentence: `at least 1, at most 10`. `unit` is what a length counts."""
    parts = [f"{_WORDS[name]} {constraints[name]}" for name in BOUNDS if name in constraints]
    least, most = (constraints.get(name) for name in LENGTHS)
    if least is not None and least == most:
        parts.append(f"exactly {_counted(least, unit)}")
    else:
        parts += [f"at least {_counted(least, unit)}"] if least is not None else []
        parts += [f"at most {_counted(most, unit)}"] if most is not None else []
    if "pattern" in constraints:
        parts.append(f"matching {constraints['pattern']}")
    return ", ".join(parts)


def _counted(number: int, unit: str) -> str:
    return f"{number} {unit if number == 1 else _PLURALS.get(unit, f'{unit}s')}"


def _holds(name: str, limit: Any, value: Any) -> bool:
    if name in _COMPARE:
        return bool(_COMPARE[name](value, limit))
    if name == "multiple_of":
        return _is_finite(value) and _is_multiple(value, limit)
    if name == "pattern":
        return re.search(limit, value) is not None
    length: int = len(value)
    return bool(length >= limit if name == "min_length" else length <= limit)


def _is_multiple(value: int | float, limit: int | float) -> bool:
    """True in binary or in the decimal form JSON uses, where 0.3 is a multiple of 0.1."""
    written = [Fraction(number if isinstance(number, int) else repr(number)) for number in (value, limit)]
    return Fraction(value) % Fraction(limit) == 0 or written[0] % written[1] == 0


def _is_finite(number: int | float) -> bool:
    return isinstance(number, int) or math.isfinite(number)


def _checked(name: str, value: Any) -> Any:
    if name == "pattern":
        pattern = value.pattern if isinstance(value, re.Pattern) else value
        return _checked_pattern(pattern)
    kinds = int if name in LENGTHS else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not _is_finite(value):
        raise InvalidConstraint(f"{name} must be {'an integer' if name in LENGTHS else 'a number'}, got {value!r}")
    if (name in LENGTHS and value < 0) or (name == "multiple_of" and value <= 0):
        raise InvalidConstraint(f"{name} must be {'zero or more' if name in LENGTHS else 'positive'}, got {value!r}")
    return value


def _checked_pattern(pattern: Any) -> str:
    try:
        re.compile(pattern)
    except (re.error, TypeError, RecursionError, OverflowError, Warning) as error:
        raise InvalidConstraint(f"pattern {pattern!r} is not a regular expression: {error}") from None
    if not isinstance(pattern, str):
        raise InvalidConstraint(f"pattern must be text, got {pattern!r}")
    foreign = next((piece[1] for piece in _PIECE.finditer(pattern) if piece[1]), None)
    if foreign:
        raise InvalidConstraint(
            f"pattern {pattern!r} uses {foreign!r}, but JSON Schema has no lookaround, named groups, flags, "
            "back-references, \\A, \\Z or possessive repetition"
        )
    return pattern


def _check_satisfiable(constraints: Constraints) -> None:
    low = max((constraints[name] for name in ("ge", "gt") if name in constraints), default=-math.inf)
    high = min((constraints[name] for name in ("le", "lt") if name in constraints), default=math.inf)
    least, most = constraints.get("min_length", 0), constraints.get("max_length", math.inf)
    if low > high or least > most:
        raise InvalidConstraint(f"no value is {words(constraints)}")


def field_path(path: str, name: str) -> str:
    return f"{path}.{name}" if name.isidentifier() and len(name) <= 100 else f"{path}[{quote(name)}]"


def quote(value: object) -> str:
    """A value as messages show it, always short."""
    if isinstance(value, str):
        return repr(shortened(value, 40))
    if isinstance(value, int) and abs(value) >= 10**40:
        return "a very large number"
    return shortened(repr(value), 100)


def describe(value: object) -> str:
    """A value of the wrong type, as messages refer to it."""
    match value:
        case None:
            return "null"
        case bool() | int() | float() | str():
            return f"{type(value).__name__} {quote(value)}"
        case Mapping():
            return "an object"
        case list() | tuple() | set() | frozenset():
            return "an array"
    return type(value).__name__
