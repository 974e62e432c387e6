"""Fences refuse the writes of work that has outlived its run."""

from __future__ import annotations

import pytest

from weakincentives._fence import Fence, check_fence
from weakincentives.errors import AbandonedCallError


def test_only_what_is_inside_a_closed_fence_is_refused() -> None:
    fence = Fence()
    with fence:
        check_fence()
        fence.close()
        with pytest.raises(AbandonedCallError, match="was abandoned"):
            check_fence()
    check_fence()


def test_what_is_inside_an_inner_fence_is_refused_when_the_outer_one_closes() -> None:
    outer, inner = Fence(), Fence()
    with outer, inner:
        outer.close()
        with pytest.raises(AbandonedCallError):
            check_fence()


def test_a_fence_entered_twice_leaves_nothing_behind() -> None:
    fence = Fence()
    with fence, fence:
        assert not fence.closed
    fence.close()
    check_fence()


def test_a_fence_closes_when_its_time_is_over() -> None:
    over: list[bool] = []
    with Fence(lambda: bool(over)):
        check_fence()
        over.append(True)
        with pytest.raises(AbandonedCallError):
            check_fence()
