"""The msgspec pass accepts only what the careful pass accepts, and reads it as the same value."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from typing import Any, Literal

from hypothesis import given, strategies as st

from weakincentives.errors import SerdeError
from weakincentives.serde import codec, dump, encode
from weakincentives.serde.nodes import read


class Mood(Enum):
    GOOD = "good"
    BAD = "bad"


@dataclass(frozen=True)
class Leaf:
    a: int
    b: float = 1.5
    c: Mood | None = None


@dataclass(frozen=True)
class Tree:
    name: str
    kind: Literal["x", 1]
    leaves: tuple[Leaf, ...] = ()
    below: Tree | None = None
    day: date | None = None
    table: dict[int, bool] = field(default_factory=dict)
    either: float | str = ""


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8"), max_size=5),
    st.sampled_from(["good", "x", "2026-01-01", "1"]),
)
keys = st.sampled_from(["a", "b", "c", "name", "kind", "leaves", "below", "day", "table", "either", "1", "other"])
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=5), max_leaves=12
)
leaves = st.fixed_dictionaries(
    {"a": st.integers() | scalars},
    optional={"b": scalars, "c": st.sampled_from(["good", "bad", None, 1]), "d": scalars},
)
trees = st.recursive(
    anything,
    lambda inner: st.fixed_dictionaries(
        {"name": st.text(max_size=3), "kind": st.sampled_from(["x", 1, True, "y"])},
        optional={
            "leaves": st.lists(leaves, max_size=2),
            "below": inner,
            "day": scalars,
            "table": st.dictionaries(st.sampled_from(["1", "-2", "x", "1.0", "01"]), scalars, max_size=2),
            "either": scalars,
        },
    ),
    max_leaves=4,
)


def outcome(work: Any) -> Any:
    try:
        return work()
    except SerdeError as error:
        return error.problems


@given(trees, st.booleans())
def test_both_passes_agree(data: Any, allow_extra: bool) -> None:
    tree = codec(Tree)
    careful = outcome(lambda: read(tree.node, data, allow_extra=allow_extra))
    assert outcome(lambda: tree.parse(data, allow_extra=allow_extra)) == careful
    try:
        text = encode(data)
    except SerdeError:
        return
    assert outcome(lambda: tree.decode(text, allow_extra=allow_extra)) == careful


@given(st.builds(Leaf, st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([None, *Mood])))
def test_dumped_values_read_back(leaf: Leaf) -> None:
    assert codec(Leaf).parse(dump(leaf)) == leaf
    assert codec(Leaf).decode(encode(leaf)) == leaf
