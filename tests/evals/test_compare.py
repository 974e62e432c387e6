from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from weakincentives.adapters.scripted import ScriptedAdapter
from weakincentives.evals import (
    CaseResult,
    Evaluation,
    Judge,
    Preference,
    assert_at_least,
    assert_no_regression,
    compare,
)
from weakincentives.evals.intervals import (
    correlation,
    holm,
    interval,
    sign_test,
    smallest_difference,
    t_quantile,
)
from weakincentives.limits import TokenUsage
from weakincentives.runtime import ModelRequest


def evaluation(name: str, passes: list[Any], groups: list[str] | None = None, **more: Any) -> Evaluation:
    """An evaluation of cases c0, c1, ...; a list is a case with repeats, and a text is its verdict."""
    results = []
    for place, given_ in enumerate(passes):
        for repeat, passed in enumerate(given_ if isinstance(given_, list) else [given_]):
            verdict: Any = passed if isinstance(passed, str) else "passed" if passed else "failed"
            score = None if isinstance(passed, str) else float(passed)
            results.append(
                CaseResult(
                    f"c{place}",
                    repeat,
                    verdict,
                    score,
                    {} if score is None else {"contains": score},
                    "because",
                    f"{name}-{place}",
                    groups[place] if groups else "",
                    TokenUsage(100, 10),
                    more.get("cost"),
                    1.0,
                    "question",
                    f"answer of {name}",
                )
            )
    ids = tuple(f"c{place}" for place in range(len(passes)))
    return Evaluation(name, tuple(results), scorers=("contains",), cases=ids)


def test_wins_are_cases_that_the_second_passes_and_the_first_does_not() -> None:
    before = evaluation("a", [True, True, False, False, True], cost=0.1)
    after = evaluation("b", [True, False, True, True, "unscored"], cost=0.2)
    found = compare(before, after)
    assert (found.wins, found.losses, found.ties, found.cases, found.left_out) == (2, 1, 1, 4, 1)
    assert found.difference == pytest.approx(0.25)
    assert found.regressed == ("c1",)
    assert (found.cost.before, found.cost.after) == (pytest.approx(0.1), pytest.approx(0.2))
    assert "cost per case: $0.1000 -> $0.2000" in found.text


def test_diverged_cases_are_left_out() -> None:
    found = compare(evaluation("a", [True, True]), evaluation("b", ["diverged", True]))
    assert (found.cases, found.left_out, found.diverged) == (1, 1, (0, 1))


@pytest.mark.parametrize("won", [0, 1])
def test_too_few_disagreements_have_no_interval(won: int) -> None:
    before = evaluation("a", [False] * 40)
    found = compare(before, evaluation("b", [place < won for place in range(40)]))
    assert (found.low, found.high) == (None, None)
    assert "Too few disagreements" in found.text


def test_a_clear_difference_is_named_and_one_that_may_be_chance_is_not() -> None:
    before = evaluation("a", [False] * 40)
    assert compare(before, evaluation("b", [place < 12 for place in range(40)])).better
    small = compare(before, evaluation("b", [place < 3 for place in range(40)]))
    assert not small.better
    assert "no clear difference" in small.text
    assert compare(evaluation("a", [True] * 40), evaluation("b", [place > 12 for place in range(40)])).worse


@pytest.mark.parametrize(("count", "clear"), [(2, False), (5, False), (6, True), (40, True)])
def test_a_few_cases_that_all_move_one_way_may_be_chance(count: int, clear: bool) -> None:
    for won in (True, False):
        found = compare(evaluation("a", [not won] * count), evaluation("b", [won] * count))
        assert found.low is not None
        assert found.high is not None
        assert -1 <= found.low < found.high <= 1
        assert (found.better or found.worse) is clear


def test_an_interval_ends_where_scores_do() -> None:
    found = compare(evaluation("a", [True] * 8), evaluation("b", [True] + [False] * 7))
    assert found.low == -1.0
    assert found.worse


def seen(sizes: list[int], share: float, together: float, difference: float, trials: int = 600) -> float:
    """How often the interval shows a difference; a case moves as its group does with the chance `together`."""
    drawn, found = random.Random(3), 0

    def case() -> float:
        value = drawn.random()
        return 1.0 if value < (share + difference) / 2 else -1.0 if value < share else 0.0

    for _ in range(trials):
        commons = [(case(), size) for size in sizes]
        groups = [[common if drawn.random() < together else case() for _ in range(size)] for common, size in commons]
        made = interval(groups)
        found += made.low is not None and made.high is not None and (made.low > 0 or made.high < 0)
    return found / trials


@pytest.mark.parametrize(("count", "share"), [(8, 1.0), (20, 0.5), (29, 0.3), (29, 1.0), (30, 0.3), (50, 0.17)])
def test_the_smallest_difference_is_seen_in_four_of_five_evaluations(count: int, share: float) -> None:
    found = smallest_difference([1] * count, share)
    assert found is not None
    trials = 600 if count < 30 else 150
    assert 0.75 < seen([1] * count, share, 0.0, found, trials) < 0.85


@pytest.mark.parametrize("together", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(
    ("sizes", "share"), [([5] * 8, 0.5), ([2, 4, 9] * 4, 0.3), ([5] * 20, 0.4), ([2, 4, 9] * 10, 0.3)]
)
def test_the_smallest_difference_of_groups_is_seen_in_four_of_five(
    sizes: list[int], share: float, together: float
) -> None:
    found = smallest_difference(sizes, share, together=together**2)
    if found is None:
        assert seen(sizes, share, together, share) < 0.85
    else:
        assert 0.75 < seen(sizes, share, together, found) < 0.85


@pytest.mark.parametrize("sizes", [[5] * 8, [2, 4, 9] * 4, [5] * 20])
@pytest.mark.parametrize("together", [0.0, 0.5, 1.0])
def test_groups_without_a_difference_rarely_seem_to_have_one(sizes: list[int], together: float) -> None:
    assert seen(sizes, 0.3, together, 0.0) < 0.075


def test_what_too_few_cases_or_groups_cannot_show_has_no_smallest_difference() -> None:
    assert smallest_difference([1] * 5, 1.0) is None
    assert smallest_difference([1] * 30, 0.22) is None
    assert smallest_difference([5] * 8, 0.5, together=1.0) is None
    assert smallest_difference([40], 0.5) is None
    assert smallest_difference([1] * 40, 0.0) is None


def test_cases_that_move_together_need_a_larger_difference() -> None:
    apart, half, together = (smallest_difference([5] * 30, 0.3, together=each) for each in (0.0, 0.25, 1.0))
    assert apart is not None
    assert half is not None
    assert together is not None
    assert apart < half < together
    assert together == pytest.approx(smallest_difference([1] * 30, 0.3), abs=0.01)


@pytest.mark.parametrize("together", [0.0, 0.5, 1.0])
def test_the_correlation_of_a_group_is_found_in_the_differences(together: float) -> None:
    drawn, groups = random.Random(5), []
    for size in [2, 4, 9] * 400:
        common = drawn.choice([1.0, 0.0, -1.0])
        groups.append([common if drawn.random() < together else drawn.choice([1.0, 0.0, -1.0]) for _ in range(size)])
    assert correlation(groups, 0.0) == pytest.approx(together**2, abs=0.05)
    assert correlation([[1.0, 1.0], [1.0, 1.0]], 1.0) == 0.0


def test_what_cannot_be_compared_is_said() -> None:
    nothing = compare(evaluation("a", ["unscored"] * 3), evaluation("b", [True] * 3))
    assert nothing.text == "No case was scored in both; 3 left out."
    groups = ["one"] * 40
    flags = [place % 2 == 0 for place in range(40)]
    one = compare(evaluation("a", flags, groups), evaluation("b", [True] * 40, groups))
    assert "+50 points, all in one group: cases of one source say nothing about others." in one.text
    assert (one.low, one.smallest) == (None, None)
    other = replace(evaluation("b", [True] * 3), scorers=("contains", "polite"))
    assert "Only one of the two is scored by polite" in compare(evaluation("a", [True] * 3), other).text


def test_the_cost_of_judges_is_not_that_of_the_prompt() -> None:
    before, after = evaluation("a", [True, True], cost=0.1), evaluation("b", [True, True], cost=0.3)
    judged = [replace(each, judge_cost=0.2, judge_usage=TokenUsage(60, 0)) for each in after.results]
    found = compare(before, replace(after, results=tuple(judged)))
    assert (found.cost.before, found.cost.after) == (pytest.approx(0.1), pytest.approx(0.1))
    assert (found.tokens.before, found.tokens.after) == (110, 50)


def test_the_text_says_what_so_many_cases_could_show() -> None:
    before = evaluation("a", [place % 2 == 0 for place in range(60)])
    after = evaluation("b", [place % 2 == 0 or place % 3 == 0 for place in range(60)])
    found = compare(before, after)
    assert found.smallest == pytest.approx(0.139, abs=1e-3)
    assert "could show 14 points; seen: 17" in found.text
    rare = compare(before, evaluation("c", [place % 2 == 0 or place % 15 == 0 for place in range(60)]))
    assert "too few to show a difference" in rare.text


def test_cases_of_one_group_count_as_one_source() -> None:
    flags = [place < 20 for place in range(60)]
    alone = compare(evaluation("a", [False] * 60), evaluation("b", flags))
    groups = [str(place // 10) for place in range(60)]
    together = compare(evaluation("a", [False] * 60, groups), evaluation("b", flags, groups))
    assert alone.better
    assert not together.better
    assert [(each.group, each.cases, each.after) for each in together.groups][:2] == [("0", 10, 1.0), ("1", 10, 1.0)]
    assert together.smallest is None or (alone.smallest is not None and together.smallest > alone.smallest)


def test_repeats_are_averaged_before_cases_are_compared() -> None:
    found = compare(evaluation("a", [[True, False], [True, True]]), evaluation("b", [[True, True], [True, False]]))
    assert (found.cases, found.difference) == (2, 0.0)
    assert (found.wins, found.losses) == (1, 1)


def test_the_same_comparison_gives_the_same_interval() -> None:
    before, after = evaluation("a", [False] * 50), evaluation("b", [place % 4 == 0 for place in range(50)])
    assert compare(before, after) == compare(before, after)


def test_several_scorers_are_adjusted_by_holm() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == {"a": 0.03, "c": 0.06, "b": 0.06}
    assert holm({}) == {}


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_adjusted_p_values_are_never_smaller_and_keep_their_order(values: list[float]) -> None:
    given_ = {str(place): value for place, value in enumerate(values)}
    found = holm(given_)
    assert all(found[name] >= given_[name] for name in given_)
    ordered = sorted(given_, key=lambda name: given_[name])
    assert all(found[one] <= found[other] for one, other in itertools.pairwise(ordered))


@given(st.lists(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=1, max_size=4), min_size=2, max_size=40))
def test_an_interval_contains_its_mean_and_turns_with_the_sign(groups: list[list[float]]) -> None:
    found, turned = interval(groups), interval([[-value for value in group] for group in groups])
    assert found.mean == pytest.approx(-turned.mean)
    if found.low is not None and found.high is not None:
        assert found.low <= found.mean <= found.high
        assert turned.low is not None
        if len(groups) < 30:
            assert found.low == pytest.approx(-(turned.high or 0.0))


def test_quantiles_are_those_of_the_tables() -> None:
    assert t_quantile(0.975, 11) == pytest.approx(2.201, abs=1e-3)
    assert t_quantile(0.975, 7) == pytest.approx(2.365, abs=1e-3)
    assert t_quantile(0.8, 10_000) == pytest.approx(0.842, abs=1e-3)
    assert sign_test(5, 0) == 1 / 32
    assert sign_test(0, 0) == 1.0


@pytest.mark.parametrize(
    ("count", "share", "points"), [(100, 0.1, 0.09), (100, 0.5, 0.19), (1000, 0.3, 0.05), (30, 0.1, None)]
)
def test_the_smallest_difference_is_that_of_the_tables(count: int, share: float, points: float | None) -> None:
    found = smallest_difference([1] * count, share)
    assert found == (None if points is None else pytest.approx(points, abs=0.01))


def test_no_regression_names_the_cases_that_fail_now() -> None:
    before, after = evaluation("a", [True, True, False]), evaluation("b", [True, False, False])
    assert_no_regression(before, before)
    with pytest.raises(
        AssertionError, match=r"1 of \d+ cases that passed in 'a' do not any more:\nc1: failed; because"
    ):
        assert_no_regression(before, after)
    with pytest.raises(AssertionError, match="c1: not in 'b'"):
        assert_no_regression(evaluation("a", [True, True]), evaluation("b", [True]))


def test_a_threshold_is_held_by_the_lower_bound() -> None:
    drawn = random.Random(1)
    many = evaluation("a", [drawn.random() < 0.95 for _ in range(300)])
    assert_at_least(many, 0.85)
    with pytest.raises(AssertionError, match="may be as low as"):
        assert_at_least(evaluation("a", [True] * 18 + [False] * 2), 0.85)
    with pytest.raises(AssertionError, match=r"may be as low as 0\.70"):
        assert_at_least(evaluation("a", [True] * 10), 0.85)
    with pytest.raises(AssertionError, match="no case"):
        assert_at_least(evaluation("a", ["unscored"]), 0.5)


def test_pairs_are_asked_in_both_orders_and_a_flip_is_a_tie() -> None:
    def always_first(request: ModelRequest) -> Preference:
        return Preference("it is first", "first")

    def knows(request: ModelRequest) -> Preference:
        text = request.messages[-1].text
        return Preference("b", "second" if text.index("answer of b") > text.index("answer of a") else "first")

    before, after = evaluation("a", [True, True]), evaluation("b", [True, True])
    biased = compare(before, after, judge=Judge(ScriptedAdapter(always_first), "It is good.", pairs=True)).preferences
    assert biased is not None
    assert (biased.wins, biased.losses, biased.ties, biased.flips) == (0, 0, 2, 2)
    honest = compare(before, after, judge=Judge(ScriptedAdapter(knows), "It is good.", pairs=True)).preferences
    assert honest is not None
    assert (honest.wins, honest.losses, honest.ties, honest.flips) == (2, 0, 0, 0)


def test_cases_outside_the_pass_rate_are_named_in_a_warning() -> None:
    with pytest.warns(UserWarning, match="1 results of 'a' are not in the pass rate: c40 diverged"):
        assert_at_least(evaluation("a", [True] * 40 + ["diverged"]), 0.9)


def test_a_regression_of_repeats_counts_cases() -> None:
    before, after = evaluation("a", [[True, True], True]), evaluation("b", [[False, False], True])
    with pytest.raises(AssertionError, match=r"1 of 2 cases that passed in 'a' do not any more"):
        assert_no_regression(before, after)


def test_pairs_without_a_verdict_are_counted_and_left_out() -> None:
    judge = Judge(ScriptedAdapter(lambda request: "no verdict"), "It is polite.", pairs=True)
    found = compare(evaluation("a", [True]), evaluation("b", [True]), judge=judge)
    assert found.preferences is not None
    assert (found.preferences.ties, found.preferences.unscored) == (0, 1)
    assert "judged in pairs: 0 better, 0 worse, 0 tied (0 by a flip), 1 not judged" in found.text
