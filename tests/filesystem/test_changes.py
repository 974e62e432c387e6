"""The changes of a call as data: captured, taken back, stored, shown, and applied on an unchanged base."""

import json
import os
import re
import shutil
import stat
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

from weakincentives import serde
from weakincentives._fence import Fence, working_for
from weakincentives.errors import AbandonedCallError
from weakincentives.filesystem import (
    FileChange,
    FilesystemError,
    HostFilesystem,
    InMemoryFilesystem,
    InvalidPathError,
    SnapshotError,
    StaleFilesError,
)
from weakincentives.session import Session

KINDS = ["memory", "host", "host-tracking"]
NAMES = st.sampled_from(["a", "b", "c.txt", "ü"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
CONTENT = st.one_of(st.text("ab\n\r", max_size=8).map(str.encode), st.binary(max_size=5), st.just("long"))
RANDOM = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)


@contextmanager
def files_of(kind):
    if kind == "memory":
        yield InMemoryFilesystem()
        return
    root = tempfile.mkdtemp()
    try:
        yield HostFilesystem(root, track_external=kind == "host-tracking", ignore=("c.txt",))
    finally:
        shutil.rmtree(root)


def tree(fs):
    """Everything there is, with modes where there are any."""
    if isinstance(fs, HostFilesystem):
        return dict(host_entries(fs.root, ""))
    return contents(fs)


def contents(fs):
    return {entry.path: fs.read_bytes(entry.path) if entry.kind == "file" else "directory" for entry in below(fs, ".")}


def below(fs, path):
    for entry in fs.list(path):
        yield entry
        if entry.kind == "directory":
            yield from below(fs, entry.path)


def host_entries(root, base):
    for name in sorted(os.listdir(os.path.join(root, base))):
        path = os.path.join(base, name)
        full = os.path.join(root, path)
        mode = os.lstat(full).st_mode
        if stat.S_ISLNK(mode):
            yield path, os.readlink(full)
            continue
        if stat.S_ISDIR(mode):
            yield path, mode
            yield from host_entries(root, path)
        else:
            with open(full, "rb") as file:
                yield path, (mode, file.read())


OPERATIONS = {
    "write": st.tuples(PATHS, CONTENT),
    "append": st.tuples(PATHS, CONTENT),
    "delete": st.tuples(PATHS),
    "mkdir": st.tuples(PATHS),
    "become_file": st.tuples(PATHS, CONTENT),
    "become_directory": st.tuples(PATHS, NAMES, CONTENT),
    "snapshot_and_restore": st.tuples(PATHS, CONTENT),
}
# The tracker ignores c.txt, which therefore only the filesystem itself changes.
TRACKED = PATHS.filter(lambda path: "c.txt" not in path)
OUTSIDE = {
    "chmod": st.tuples(TRACKED, st.sampled_from([0o700, 0o755, 0o640, 0o4755])),
    "link": st.tuples(TRACKED, st.sampled_from(["a", "b/a", "../x", "/nowhere", "ü"])),
    "external_write": st.tuples(TRACKED, CONTENT),
}


def perform(fs, name, path, *more):
    """One operation. It may be refused, and may have done a part of its work by then."""
    more = [b"\n" * 20_000 if each == "long" else each for each in more]
    full = os.path.join(fs.root, path) if isinstance(fs, HostFilesystem) else ""
    try:
        if name in ("write", "append"):
            fs.write(path, *more, mode={"write": "overwrite"}.get(name, name))
        elif name == "delete":
            fs.delete(path, recursive=True)
        elif name == "mkdir":
            fs.mkdir(path, parents=True)
        elif name == "become_file":
            fs.delete(path, recursive=True)
            fs.write(path, *more)
        elif name == "become_directory":
            fs.delete(path)
            fs.write(f"{path}/{more[0]}", more[1])
        elif name == "snapshot_and_restore":
            saved = fs.snapshot()
            fs.write(path, *more)
            fs.restore(saved)
        elif name == "chmod":
            if not os.path.islink(full):
                os.chmod(full, *more)
        elif name == "link":
            os.symlink(*more, full)
        else:
            with open(full, "wb") as file:
                file.write(*more)
    except (FilesystemError, OSError):
        pass


def operations(*names):
    choices = {**OPERATIONS, **OUTSIDE}
    return st.lists(st.one_of(*(st.tuples(st.just(name), choices[name]) for name in names)), max_size=10)


BEFORE = {kind: operations(*OPERATIONS, *(OUTSIDE if kind != "memory" else ())) for kind in KINDS}
DURING = {kind: operations(*OPERATIONS, *(OUTSIDE if kind == "host-tracking" else ())) for kind in KINDS}


def stored(changes):
    """The changes after a round trip through JSON."""
    loaded = serde.load_tagged(json.loads(json.dumps(serde.dump_tagged(changes))))
    assert loaded == changes
    assert [each.digest for each in loaded] == [each.digest for each in changes]
    return loaded


@pytest.mark.parametrize("kind", KINDS)
@RANDOM
@given(data=st.data())
def test_changes_are_taken_back_and_applied_byte_for_byte(kind, data):
    with files_of(kind) as fs:
        for name, arguments in data.draw(BEFORE[kind]):
            perform(fs, name, *arguments)
        start = tree(fs)
        with working_for(object()):
            mark = fs.begin_call()
            for name, arguments in data.draw(DURING[kind]):
                perform(fs, name, *arguments)
            end = tree(fs)
            changes = fs.changes_since(mark)
            assert [each.path for each in changes] == sorted(
                path for path in {**start, **end} if start.get(path) != end.get(path)
            )
            fs.restore(mark)
            assert tree(fs) == start
            assert fs.changes_since(mark) == ()
            changes = stored(changes)
            fs.apply(changes)
            assert tree(fs) == end
            assert fs.changes_since(mark) == changes
            fs.restore(mark)
            assert tree(fs) == start
        saved = fs.snapshot()
        for name in ("become_file", "write") if changes else ():
            perform(fs, name, data.draw(st.sampled_from([each.path for each in changes])), b"spoiled")
        here = tree(fs)
        if any(here.get(each.path) != start.get(each.path) for each in changes):
            with pytest.raises(StaleFilesError) as caught:
                fs.apply(changes)
            assert set(caught.value.paths) & {each.path for each in changes}
            assert tree(fs) == here
        fs.restore(saved)
        fs.apply(changes)
        assert tree(fs) == end
        fs.restore(saved)
        assert tree(fs) == start


@pytest.mark.parametrize("kind", KINDS)
@RANDOM
@given(
    steps=st.lists(
        st.tuples(st.booleans(), st.sampled_from(["write", "append", "delete", "mkdir"]), PATHS), max_size=14
    ),
    apart=st.booleans(),
    other_ends=st.booleans(),
)
def test_two_calls_at_once_change_only_their_own_files(kind, steps, apart, other_ends):
    with files_of(kind) as fs:
        calls = {True: object(), False: object()}
        for path in ("a/old", "b/old"):
            fs.write(path, "old")
        marks = {}
        for mine, call in calls.items():
            with working_for(call):
                marks[mine] = fs.begin_call()
        for number, (mine, name, path) in enumerate(steps):
            with working_for(calls[mine]):
                more = [f"{number}\n".encode()] if name in ("write", "append") else []
                perform(fs, name, f"{'ab'[mine]}/{path}" if apart else path, *more)
        if other_ends:
            del marks[False]
        end = contents(fs)
        with working_for(calls[True]):
            try:
                changes = fs.changes_since(marks[True])
            except StaleFilesError:
                assert other_ends and not apart
                return
            try:
                fs.restore(marks[True])
            except SnapshotError:
                # The other call has put a file where a directory has to come back.
                assert not apart
                return
            here = contents(fs)
            try:
                fs.apply(stored(changes))
            except StaleFilesError:
                assert contents(fs) == here
                assert not apart
                return
        for each in changes:
            here[each.path] = "directory" if each.after is not None and each.kind == "directory" else each.after
            for parent in Path(each.path).parents if each.after is not None else ():
                here.setdefault(str(parent), "directory")
        assert contents(fs) == {path: found for path, found in here.items() if found is not None and path != "."}
        if apart:
            assert contents(fs) == end
