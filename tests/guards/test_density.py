"""A ratchet: what makes code hard to read may only become less, in each package and in all of them together."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.guards.density import (
    ADVICE,
    AIM,
    MEASURES,
    TOTAL,
    Counts,
    Density,
    lowered,
    measured,
    measured_modules,
    recorded,
    risen,
    stale,
    with_moved,
)
from tests.rounds import rounds

PLAIN = """
def plain(first, second):
    total = first
    for number in second:
        total += number
    return total
"""
DENSE = """
def pick(self, a, b, c, d, e, f, g, h=None):
    found = [x if x else [y for y in a] for x in b]
    total = 1 if found else 2
    return total


"""
LONG = "long = '" + "x" * 100 + "'\n"
FOLDERS = ("", "adapters", "adapters/openai", "adapters/network", "runtime", "runtime/deep/deeper", "session")


def write_package(folder: Path, dense: tuple[str, ...] = ()) -> Path:
    """A package with a plain module in each folder, and a dense one in these."""
    source = folder / "shop"
    for name in FOLDERS:
        (source / name).mkdir(parents=True, exist_ok=True)
        (source / name / "plain.py").write_text(PLAIN * 20)
    for name in dense:
        (source / name / "dense.py").write_text(DENSE + LONG)
    return source


def test_no_figure_of_a_package_rises() -> None:
    assert risen(recorded(), measured()) == []


def test_the_record_follows_figures_that_have_fallen() -> None:
    assert stale(recorded(), measured()) == []


def test_what_is_counted() -> None:
    counts = Counts()
    counts.add_module(DENSE + LONG)
    assert counts.density() == Density(
        comprehensions=400,  # two in five lines
        nested=200,
        ternaries=400,
        vague_names=20,  # found, of found, x, y, total, long
        long_lines=20,
        longest_function=4,
        many_parameters=100,
    )


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_dense_module_fails_in_every_folder_for_its_package_and_in_all(tmp_path: Path, folder: str) -> None:
    before = measured(write_package(tmp_path / "before"))
    after = measured(write_package(tmp_path / "after", dense=(folder,)))
    package = folder.partition("/")[0] or "shop"
    assert {problem.partition(":")[0] for problem in risen(before, after)} == {TOTAL, package}
    assert lowered(before, after) == before


@pytest.mark.parametrize("seed", range(rounds(5, 20)))
def test_the_total_is_that_of_all_modules(tmp_path: Path, seed: int) -> None:
    drawn = random.Random(seed)
    source = write_package(tmp_path, tuple(drawn.sample(FOLDERS, drawn.randint(0, len(FOLDERS)))))
    counts = Counts()
    for path in source.rglob("*.py"):
        counts.add_module(path.read_text())
    assert measured(source)[TOTAL] == counts.density()


def test_the_record_is_lowered_and_never_raised() -> None:
    before = {"session": replace(AIM, ternaries=30, nested=4), "gone": AIM}
    today = {"session": replace(AIM, ternaries=25, nested=5), "new": replace(AIM, ternaries=40)}
    assert lowered(before, today) == {
        "session": replace(AIM, ternaries=25, nested=4),
        "new": AIM,
    }


@pytest.mark.parametrize("measure", MEASURES)
def test_each_figure_of_each_package_is_compared(measure: str) -> None:
    before = {"session": AIM, TOTAL: AIM}
    for package in before:
        higher = replace(AIM, **{measure: getattr(AIM, measure) + 0.1})
        (problem,) = risen(before, {**before, package: higher})
        assert problem.startswith(f"{package}: {measure} is {getattr(higher, measure)}")
        assert ADVICE[measure] in problem and f"--modules {package}" in problem


def test_the_modules_of_a_package_are_measured_one_by_one(tmp_path: Path) -> None:
    source = write_package(tmp_path, dense=("adapters/openai", "session"))
    figures = measured_modules("adapters", source)
    assert {*figures} == {
        "adapters/plain.py",
        "adapters/openai/plain.py",
        "adapters/network/plain.py",
        "adapters/openai/dense.py",
    }
    assert max(figures, key=ternaries_of(figures)) == "adapters/openai/dense.py"
    assert {*measured_modules(TOTAL, source)} > {*figures}


def ternaries_of(figures: dict[str, Density]) -> Callable[[str], float]:
    return lambda name: figures[name].ternaries


def test_a_package_that_has_moved_keeps_its_figures_and_a_new_one_has_to_reach_the_aims() -> None:
    dense, total = replace(AIM, ternaries=40), replace(AIM, ternaries=30)
    before, today = {TOTAL: total, "old": dense}, {TOTAL: total, "new": dense}
    assert stale(before, today) == [
        "new is not in the record; run python -m tests.guards.density --lower",
        "old is gone; run python -m tests.guards.density --lower",
    ]
    assert risen(lowered(before, today), today) != []
    assert with_moved(before, today, ["new"]) == today


def test_moving_code_does_not_raise_the_total() -> None:
    before = {TOTAL: replace(AIM, ternaries=30), "old": replace(AIM, ternaries=40)}
    today = {TOTAL: replace(AIM, ternaries=31), "new": replace(AIM, ternaries=41)}
    with pytest.raises(ValueError, match=r"harder to read: \(all\): ternaries is 31, may be 30"):
        with_moved(before, today, ["new"])
    with pytest.raises(ValueError, match="its figures only fall"):
        with_moved(before, today, [TOTAL])
    with pytest.raises(ValueError, match="there is no package old"):
        with_moved(before, today, ["old"])
