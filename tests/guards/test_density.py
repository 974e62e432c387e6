"""A ratchet: what makes code hard to read may only become less, in each package."""

from __future__ import annotations

from dataclasses import replace

from tests.guards.density import AIM, MEASURES, SLACK, Counts, Density, lowered, measured, recorded


def test_no_figure_of_a_package_rises() -> None:
    record = recorded()
    risen = []
    for package, density in measured().items():
        limits = record.get(package, AIM)
        for name in MEASURES:
            figure, limit = getattr(density, name), max(getattr(limits, name), getattr(AIM, name))
            if figure > limit:
                risen.append(f"{package}: {name} is {figure}, may be {limit}; name values, write loops, break lines")
    assert risen == []


def test_the_record_follows_figures_that_have_fallen() -> None:
    today = measured()
    assert recorded().keys() == today.keys(), "run python -m tests.guards.density --lower"
    stale = []
    for package, limits in recorded().items():
        for name in MEASURES:
            figure, limit = getattr(today[package], name), getattr(limits, name)
            if limit > getattr(AIM, name) and figure < limit - getattr(SLACK, name):
                stale.append(
                    f"{package}: {name} is {figure}, recorded {limit}; run python -m tests.guards.density --lower"
                )
    assert stale == []


def test_what_is_counted() -> None:
    counts = Counts()
    counts.add_module(
        """
def pick(self, a, b, c, d, e, f, g, h=None):
    found = [x if x else [y for y in a] for x in b]
    total = 1 if found else 2
    return total


"""
        + f"long = '{'x' * 100}'\n"
    )
    assert counts.density() == Density(
        comprehensions=400,  # two in five lines
        nested=200,
        ternaries=400,
        vague_names=20,  # found, of found, x, y, total, long
        long_lines=20,
        longest_function=4,
        many_parameters=100,
    )


def test_the_record_is_lowered_and_never_raised() -> None:
    before = {"session": replace(AIM, ternaries=30, nested=4), "gone": AIM}
    today = {"session": replace(AIM, ternaries=25, nested=5), "new": replace(AIM, ternaries=40)}
    assert lowered(before, today) == {
        "session": replace(AIM, ternaries=25, nested=4),
        "new": AIM,
    }
