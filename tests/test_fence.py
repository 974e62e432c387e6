"""Fences refuse the writes of work that has outlived its run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from weakincentives._base.fence import Fence, check_fence
from weakincentives.errors import AbandonedCallError
from weakincentives.filesystem import Filesystem, HostFilesystem, InMemoryFilesystem


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
    left = [1.0]
    with Fence(lambda: left[0]):
        check_fence()
        left[0] = 0.0
        with pytest.raises(AbandonedCallError):
            check_fence()


@pytest.mark.parametrize("change", [lambda fs: fs.write("a", "x"), lambda fs: fs.mkdir("d"), lambda fs: fs.delete("b")])
@pytest.mark.parametrize("on_disk", [False, True])
def test_files_refuse_the_writes_of_an_abandoned_call(change: Any, on_disk: bool, tmp_path: Path) -> None:
    files: Filesystem = HostFilesystem(tmp_path) if on_disk else InMemoryFilesystem()
    files.write("b", "kept")
    fence = Fence()
    fence.close()
    with fence, pytest.raises(AbandonedCallError):
        change(files)
    assert [entry.path for entry in files.list()] == ["b"]
