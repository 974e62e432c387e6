"""HostFilesystem.branch(): everything is as it would be in the folder, and nothing of it is there."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

from weakincentives._base.fence import working_for
from weakincentives.filesystem import (
    FileChange,
    FilesystemError,
    HostFilesystem,
    InvalidPathError,
    NeedsFolderError,
    StaleFilesError,
)

NAMES = st.sampled_from(["a", "b", "c.txt", "ü"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
CONTENT = st.one_of(st.binary(max_size=5), st.just(b"\n" * 20_000))
MODES = st.sampled_from([0o700, 0o755, 0o640, 0o444, 0o2775])
TARGETS = st.sampled_from(["a", "b/a", "../a", "../../x", "/nowhere", "ü", "."])
RANDOM = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
ON_DISK = st.one_of(
    st.tuples(st.just("file"), PATHS, CONTENT, MODES),
    st.tuples(st.just("directory"), PATHS, st.none(), MODES),
    st.tuples(st.just("link"), PATHS, TARGETS, st.none()),
    st.tuples(st.just("hard link"), PATHS, PATHS, st.none()),
    st.tuples(st.just("pipe"), PATHS, st.none(), st.none()),
)
STEPS = st.one_of(
    st.tuples(st.sampled_from(["create", "overwrite", "append"]), PATHS, CONTENT),
    st.tuples(st.just("mkdir"), PATHS, st.booleans()),
    st.tuples(st.just("delete"), PATHS, st.booleans()),
    st.tuples(st.just("undone"), PATHS, CONTENT),
    st.tuples(st.just("again"), PATHS, CONTENT),
)
QUESTIONS = st.tuples(
    st.sampled_from(["read", "read_bytes", "list", "stat", "exists", "glob", "grep"]), st.one_of(PATHS, st.just("."))
)


@contextmanager
def folder() -> Iterator[Path]:
    root = Path(tempfile.mkdtemp())
    try:
        yield root
    finally:
        shutil.rmtree(root)


def prepare(root: Path, things: list[Any]) -> None:
    """Put things on the disk, where they can be put."""
    for kind, path, value, mode in things:
        target = root / path
        try:
            if target.is_fifo():
                continue
            if kind == "file":
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(value)
                target.chmod(mode & 0o777)
            elif kind == "directory":
                target.mkdir(parents=True, exist_ok=True)
                target.chmod(mode | 0o700)
            elif kind == "link":
                target.symlink_to(value)
            elif kind == "hard link":
                os.link(root / value, target, follow_symlinks=False)
            else:
                os.mkfifo(target)
        except OSError:
            continue


def tree(root: Path | str) -> dict[str, Any]:
    """Everything below a folder."""
    things: dict[str, Any] = {}
    for base, directories, files in os.walk(root):
        for name in directories + files:
            full = os.path.join(base, name)
            status = os.lstat(full)
            path = os.path.relpath(full, root)
            if stat.S_ISLNK(status.st_mode):
                things[path] = os.readlink(full)
            elif stat.S_ISREG(status.st_mode):
                things[path] = status.st_mode, Path(full).read_bytes()
            else:
                things[path] = status.st_mode
    return things


def identities(root: Path) -> dict[str, Any]:
    """What would show that something below a folder was touched."""
    found = {}
    for path in [".", *tree(root)]:
        status = os.lstat(root / path)
        found[path] = status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_mode
    return found


def outcome(fs: HostFilesystem, step: tuple[Any, ...]) -> str:
    """Do a step; returns how it ended."""
    name, path, *more = step
    try:
        if name in ("create", "overwrite", "append"):
            fs.write(path, more[0], mode=name)
        elif name == "mkdir":
            fs.mkdir(path, parents=more[0], exist_ok=more[0])
        elif name == "delete":
            fs.delete(path, recursive=more[0])
        elif name == "undone":
            saved = fs.snapshot()
            try:
                fs.delete(path, recursive=True)
                fs.write(f"{path}/new", more[0])
            finally:
                fs.restore(saved)
        else:
            fs.delete(path, recursive=True)
            fs.write(f"{path}/new", more[0])
    except FilesystemError as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def answer(fs: HostFilesystem, question: tuple[str, str]) -> Any:
    name, path = question
    try:
        if name in ("glob", "grep"):
            return getattr(fs, name)("**" if name == "glob" else "\n", path=path)
        value = getattr(fs, name)(path)
        return (value.path, value.kind, value.size) if name == "stat" else value
    except FilesystemError as error:
        return f"{type(error).__name__}: {error}"


@RANDOM
@given(
    things=st.lists(ON_DISK, max_size=8),
    steps=st.lists(STEPS, max_size=8),
    questions=st.lists(QUESTIONS, max_size=4),
    nested_at=st.integers(0, 8),
)
def test_a_branch_does_what_the_folder_would_do(
    things: list[Any], steps: list[Any], questions: list[Any], nested_at: int
) -> None:
    with folder() as root, folder() as twin_root:
        for place in (root, twin_root):
            prepare(place, things)
        before, touched = tree(root), identities(root)
        host, twin = HostFilesystem(root), HostFilesystem(twin_root)
        branch = host.branch()
        with working_for(object()):
            mark, twin_mark = branch.begin_call(), twin.begin_call()
            outer = branch
            for number, step in enumerate(steps):
                if number == nested_at:
                    # What a branch of the branch changes, applied to the branch, is as if it were done there.
                    inner = branch.branch()
                    inner_mark = inner.begin_call()
                    ended = outcome(inner, step)
                    assert ended == outcome(twin, step)
                    outer.apply(inner.changes_since(inner_mark))
                else:
                    assert outcome(branch, step) == outcome(twin, step)
                for question in questions:
                    assert answer(branch, question) == answer(twin, question)
            assert identities(root) == touched
            changes = branch.changes_since(mark)
            assert changes == twin.changes_since(twin_mark)
            after = tree(twin_root)
            host.apply(changes)
            assert tree(root) == after
            branch.restore(mark)
            assert branch.changes_since(mark) == ()
        assert before.keys() == identities(root).keys() - {"."} or changes


def test_nothing_of_a_branch_is_in_the_folder(root: Path) -> None:
    (root / "kept.txt").write_text("kept\n")
    (root / "d").mkdir()
    (root / "d" / "gone.txt").write_text("gone\n")
    touched = identities(root)
    branch = HostFilesystem(root).branch()
    branch.write("kept.txt", "changed\n")
    branch.write("new/file.txt", b"x" * 100_000)
    branch.delete("d", recursive=True)
    assert branch.glob("**") == ("kept.txt", "new/file.txt")
    assert branch.read("kept.txt") == "changed\n"
    assert identities(root) == touched


def test_what_a_branch_did_not_change_is_read_as_it_is_now(root: Path) -> None:
    (root / "mine").write_text("1")
    (root / "theirs").write_text("1")
    branch = HostFilesystem(root).branch()
    branch.write("mine", "2")
    for name in ("mine", "theirs", "later"):
        (root / name).write_text("3")
    assert {name: branch.read(name) for name in branch.glob("*")} == {"mine": "2", "theirs": "3", "later": "3"}


@pytest.mark.parametrize("theirs", [lambda file: file.write_text("theirs"), lambda file: file.unlink()])
def test_changes_of_a_branch_are_not_applied_to_a_file_that_others_have_changed(root: Path, theirs: Any) -> None:
    (root / "f").write_text("mine")
    host = HostFilesystem(root)
    branch = host.branch()
    with working_for(object()):
        mark = branch.begin_call()
        branch.write("f", f"{branch.read('f')} and more")
        changes = branch.changes_since(mark)
    theirs(root / "f")
    before = tree(root)
    with pytest.raises(StaleFilesError, match="'f'"):
        host.apply(changes)
    assert tree(root) == before


def test_a_branch_has_no_folder_for_programs(root: Path) -> None:
    branch = HostFilesystem(root).branch()
    with pytest.raises(NeedsFolderError, match="approval='call'"):
        _ = branch.root
    assert branch.is_branch and repr(branch) == f"HostFilesystem({str(root)!r}).branch()"
    assert HostFilesystem(root).root == str(root)


def test_branches_at_the_same_time_do_not_see_each_other(root: Path) -> None:
    host = HostFilesystem(root)
    host.write("shared", "0")
    one, two = host.branch(), host.branch()
    one.write("shared", "1")
    two.write("shared", "2")
    host.write("other", "3")
    assert [fs.read("shared") for fs in (host, one, two)] == ["0", "1", "2"]
    assert one.read("other") == two.read("other") == "3"


def test_a_directory_swapped_for_a_link_under_a_branch_never_leads_out(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "secret"
    outside.mkdir()
    (outside / "key").write_text("s3cret")
    (root / "d").mkdir()
    (root / "d" / "key").write_text("mine")
    branch = HostFilesystem(root).branch()
    branch.write("d/own", "x")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            os.rename(root / "d", root / "real")
            os.symlink(outside, root / "d")
            os.unlink(root / "d")
            os.rename(root / "real", root / "d")

    thread = threading.Thread(target=swap)
    thread.start()
    seen = set()
    try:
        for _ in range(500):
            for path in ("d/key", "d/own"):
                try:
                    seen.add(branch.read(path))
                except FilesystemError:
                    continue
    finally:
        stop.set()
        thread.join()
    assert seen <= {"mine", "x"}


def test_a_change_stays_in_its_branch_when_its_directory_goes(root: Path) -> None:
    (root / "d").mkdir()
    (root / "d" / "old").write_text("x")
    host = HostFilesystem(root)
    branch = host.branch()
    with working_for(object()):
        mark = branch.begin_call()
        branch.write("d/new", "y")
        changes = branch.changes_since(mark)
    shutil.rmtree(root / "d")
    assert branch.glob("**") == ("d/new",)
    host.apply(changes)
    assert tree(root).keys() == {"d", "d/new"}


def test_links_out_of_the_root_are_refused_in_a_branch(root: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("s3cret")
    (root / "link").symlink_to(tmp_path / "outside")
    branch = HostFilesystem(root).branch()
    branch.apply([FileChange("mine", None, os.fsencode(tmp_path / "outside"), "link")])
    for path in ("link", "mine"):
        for operation in (branch.read, branch.stat, lambda path: branch.write(path, "x")):
            with pytest.raises(InvalidPathError, match="leads out of the root"):
                operation(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_what_may_not_be_written_may_not_be_written_in_a_branch(root: Path) -> None:
    (root / "f").write_text("x")
    (root / "f").chmod(0o444)
    (root / "d").mkdir()
    (root / "d" / "f").write_text("x")
    (root / "d").chmod(0o555)
    branch = HostFilesystem(root).branch()
    for operation in (
        lambda: branch.write("f", "y"),
        lambda: branch.write("d/g", "y"),
        lambda: branch.mkdir("d/e"),
        lambda: branch.delete("d/f"),
    ):
        with pytest.raises(FilesystemError, match="Permission denied"):
            operation()
    (root / "d").chmod(0o755)


def test_large_contents_of_a_branch_are_outside_the_root_and_go_with_it(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINK_STATE", str(tmp_path / "state"))
    host = HostFilesystem(root)
    branch = host.branch()
    content = os.urandom(1000) * 50_000
    for name in ("one", "two"):
        branch.write(name, content)
    assert (branch.read_bytes("one"), branch.read_bytes("two")) == (content, content)
    assert os.listdir(root) == []
    (kept,) = (tmp_path / "state").rglob("contents-*")
    assert kept.stat().st_mode & 0o077 == kept.parent.stat().st_mode & 0o077 == 0
    del branch
    assert list((tmp_path / "state").rglob("contents-*")) == []
    del host
    assert list((tmp_path / "state" / "files").iterdir()) == []
