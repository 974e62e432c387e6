import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, replace
from typing import get_type_hints

import pytest

from weakincentives._base.frozen import quick_init


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamped:
    at: float = 0.0


@quick_init
@dataclass(frozen=True, slots=True)
class Quick(Stamped):
    name: str
    count: int = 1
    tags: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError("count must be zero or more")


@dataclass(frozen=True, slots=True)
class Plain(Stamped):
    name: str
    count: int = 1
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Derived(Quick):
    more: str = ""


class Renamed(Quick):
    pass


def test_its_fields_are_those_that_were_given_and_the_defaults() -> None:
    assert Quick("a", tags=["x"], at=2.0) == Quick(name="a", count=1, tags=["x"], at=2.0)
    assert repr(Quick("a")) == "Quick(at=0.0, name='a', count=1, tags=[])"
    assert Quick("a").tags is not Quick("a").tags


def test_it_is_frozen_and_of_its_own_class() -> None:
    quick = Quick("a")
    assert type(quick) is Quick
    with pytest.raises(FrozenInstanceError):
        quick.name = "b"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del quick.name


def test_it_is_checked_after_it_was_filled() -> None:
    with pytest.raises(ValueError, match="count must be zero or more"):
        Quick("a", count=-1)
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'name'"):
        Quick()  # type: ignore[call-arg]


def test_its_signature_is_that_of_the_dataclass() -> None:
    ours, plain = inspect.signature(Quick), inspect.signature(Plain)
    assert ours.parameters.keys() == plain.parameters.keys()
    assert [each.kind for each in ours.parameters.values()] == [each.kind for each in plain.parameters.values()]
    assert get_type_hints(Quick.__init__) == get_type_hints(Plain.__init__)


def test_a_field_that_is_no_parameter_is_refused() -> None:
    with pytest.raises(TypeError, match="quick_init needs every field of Partial"):

        @quick_init
        @dataclass(frozen=True, slots=True)
        class Partial:
            name: str = field(default="", init=False)


def test_it_can_be_copied_replaced_and_pickled() -> None:
    quick = Quick("a", at=1.0)
    assert replace(quick, count=2) == Quick("a", 2, at=1.0)
    assert copy.deepcopy(quick) == pickle.loads(pickle.dumps(quick)) == quick


def test_subclasses_are_created_as_themselves() -> None:
    derived, renamed = Derived("a", more="b"), Renamed("a", at=3.0)
    assert (type(derived), derived.name, derived.more) == (Derived, "a", "b")
    assert (type(renamed), renamed.name, renamed.at) == (Renamed, "a", 3.0)
