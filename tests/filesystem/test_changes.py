"""The changes of a call as data: captured, taken back, stored, shown, and applied on an unchanged base."""

import json
import os
import re
import shutil
import stat
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

from weakincentives import serde
from weakincentives._base.fence import Fence, working_for
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


@pytest.fixture(params=KINDS)
def fs(request):
    with files_of(request.param) as files:
        yield files


def changed(fs, work):
    """The changes that a call makes, taken back."""
    with working_for(object()):
        mark = fs.begin_call()
        work()
        changes = fs.changes_since(mark)
        fs.restore(mark)
    return changes


def test_a_change_has_the_content_before_and_after(fs):
    fs.write("old", "one\n")
    fs.write("gone", "x")

    def work():
        fs.write("old", "two\n")
        fs.delete("gone")
        fs.write("new/file", "three\n")
        fs.write("same", "x")
        fs.delete("same")

    found = [(each.path, each.kind, each.before, each.after) for each in changed(fs, work)]
    assert found == [
        ("gone", "file", b"x", None),
        ("new", "directory", None, b""),
        ("new/file", "file", None, b"three\n"),
        ("old", "file", b"one\n", b"two\n"),
    ]


def test_changes_of_others_that_are_not_based_on_the_same_files_do_not_matter(fs):
    first = changed(fs, lambda: fs.write("out/first", "1"))
    second = changed(fs, lambda: fs.write("out/second", "2"))
    fs.write("elsewhere", "x")
    fs.apply(first)
    fs.apply(second)
    assert contents(fs) == {"out": "directory", "out/first": b"1", "out/second": b"2", "elsewhere": b"x"}


SPOILED = {
    "a new file": (lambda fs: fs.write("made", "theirs"), ["made"]),
    "another content": (lambda fs: fs.write("kept", "theirs"), ["kept"]),
    "a missing file": (lambda fs: fs.delete("kept"), ["kept"]),
    "a file in a directory to be deleted": (lambda fs: fs.write("d/theirs", ""), ["d/theirs"]),
    "a file in place of a parent": (lambda fs: fs.write("new", ""), ["new"]),
    "two files": (lambda fs: [fs.delete("kept"), fs.write("made", "")], ["kept", "made"]),
}


@pytest.mark.parametrize("spoil", SPOILED)
def test_changes_apply_only_on_an_unchanged_base(fs, spoil):
    fs.write("kept", "mine")
    fs.mkdir("d")

    def work():
        fs.write("kept", "changed")
        fs.write("made", "mine")
        fs.delete("d")
        fs.mkdir("new")
        fs.write("new/file", "")

    changes = changed(fs, work)
    theirs, paths = SPOILED[spoil]
    theirs(fs)
    before = tree(fs)
    with pytest.raises(StaleFilesError, match=re.escape(", ".join(map(repr, paths)))) as caught:
        fs.apply(changes)
    assert caught.value.paths == tuple(paths)
    assert tree(fs) == before


def test_a_change_whose_base_is_forgotten_is_reported(fs):
    with working_for(object()):
        mark = fs.begin_call()
        fs.write("f", "mine")
    fs.write("f", "theirs")
    with pytest.raises(StaleFilesError, match="'f'"):
        fs.changes_since(mark)


@pytest.mark.parametrize("spoil", [lambda path: path.chmod(0o700), lambda path: [path.unlink(), os.mkfifo(path)]])
def test_another_mode_or_a_special_file_is_another_base(root, spoil):
    fs = HostFilesystem(root)
    fs.write("f", "mine")
    changes = changed(fs, lambda: fs.write("f", "changed"))
    spoil(root / "f")
    with pytest.raises(StaleFilesError, match="'f'"):
        fs.apply(changes)


def test_the_changes_of_a_run_inside_a_tool_are_changes_of_the_tool(fs):
    fs.write("f", "0")
    with working_for(object()):
        outer = fs.begin_call()
        with working_for(object()):
            inner = fs.begin_call()
            fs.write("f", "1")
            fs.write("g", "1")
        fs.write("f", "2")
        assert [(each.path, each.before, each.after) for each in fs.changes_since(inner)] == [
            ("f", b"0", b"1"),
            ("g", None, b"1"),
        ]
        assert [(each.path, each.before, each.after) for each in fs.changes_since(outer)] == [
            ("f", b"0", b"2"),
            ("g", None, b"1"),
        ]


def test_missing_parents_are_created_and_undone_with_the_call(fs):
    fs.mkdir("a/b", parents=True)
    changes = changed(fs, lambda: fs.write("a/b/c", "x"))
    fs.delete("a", recursive=True)
    with working_for(object()):
        mark = fs.begin_call()
        fs.apply(changes)
        assert contents(fs) == {"a": "directory", "a/b": "directory", "a/b/c": b"x"}
        fs.restore(mark)
    assert contents(fs) == {}


def test_changes_of_one_filesystem_apply_to_another_of_the_same_content(fs):
    other = InMemoryFilesystem({"a": "1"})
    fs.write("a", "1")
    other.apply(changed(fs, lambda: [fs.write("a", "2"), fs.write("b/c", "3")]))
    assert contents(other) == {"a": b"2", "b": "directory", "b/c": b"3"}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ([FileChange("../f", None, b"x")], InvalidPathError, "'..'"),
        ([FileChange("/f", None, b"x")], InvalidPathError, "absolute"),
        ([FileChange(".", b"", None, "directory")], InvalidPathError, "root"),
        ([FileChange("f", None, b"x"), FileChange("./f", None, b"y")], InvalidPathError, "twice"),
        ([FileChange("d", None, b""), FileChange("d/f", None, b"y")], StaleFilesError, "'d'"),
        (["f"], TypeError, "FileChange values, got str"),
    ],
)
def test_changes_that_cannot_be_meant_are_rejected(fs, changes, error, message):
    with pytest.raises(error, match=message):
        fs.apply([FileChange("good", None, b"x"), *changes])
    assert contents(fs) == {}


@pytest.mark.parametrize("arguments", [("f", "text", None), ("f", None, 1), ("f", None, b"", "pipe")])
def test_a_change_takes_bytes_and_a_kind(arguments):
    with pytest.raises((TypeError, ValueError), match="'f' must be"):
        FileChange(*arguments)


def test_a_mark_of_another_filesystem_or_of_no_call_is_rejected(fs):
    for mark in (fs.snapshot(), fs.begin_call(), None):
        with pytest.raises(SnapshotError, match="begin_call"):
            fs.changes_since(mark)
    with working_for(object()), pytest.raises(SnapshotError, match="begin_call"):
        fs.changes_since(InMemoryFilesystem().begin_call())


def test_a_stopped_call_applies_nothing(fs):
    with Fence() as fence:
        fence.close()
        with pytest.raises(AbandonedCallError):
            fs.apply([FileChange("f", None, b"x")])
    assert contents(fs) == {}


def test_files_in_memory_cannot_be_links():
    fs = InMemoryFilesystem()
    with pytest.raises(FilesystemError, match="'l' is a symbolic link"):
        fs.apply([FileChange("f", None, b"x"), FileChange("l", None, b"f", "link")])
    assert contents(fs) == {}


def test_changes_that_fail_halfway_are_taken_back(root):
    fs = HostFilesystem(root)
    fs.write("a", "old")
    os.chmod(root / "a", 0o750)
    before = tree(fs)
    impossible = FileChange("z", None, b"", "link")
    with pytest.raises(FilesystemError, match="nothing was changed: 'z'"):
        fs.apply([FileChange("a", b"old", b"new"), FileChange("d/b", None, b"x"), impossible])
    assert tree(fs) == before
    fs.apply([FileChange("a", b"old", b"new")])
    assert tree(fs) == {"a": (0o100750, b"new")}


def test_changes_do_not_reach_through_links(root, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    fs = HostFilesystem(root)
    change = changed(fs, lambda: fs.write("d/f", "x"))[1:]
    (root / "d").symlink_to(outside)
    with pytest.raises(StaleFilesError, match="'d'"):
        fs.apply(change)
    assert os.listdir(outside) == []


def test_a_session_keeps_equal_contents_once():
    content = b"0123456789" * 1000
    changes = tuple(FileChange(f"f{number}", None, content) for number in range(5))
    session = Session()
    for change in changes:
        session[FileChange].append(change)
    text = session.snapshot().to_json()
    assert len(text) < 2 * len(content)
    assert type(session.snapshot()).from_json(text)[FileChange] == changes


def test_what_is_no_file_cannot_be_stored(root):
    fs = HostFilesystem(root, track_external=True)
    fs.write("f", "x")
    with working_for(object()):
        mark = fs.begin_call()
        (root / "f").unlink()
        os.mkfifo(root / "f")
        with pytest.raises(SnapshotError, match="'f'"):
            fs.changes_since(mark)
        fs.restore(mark)
    assert fs.read("f") == "x"


def patched(before, diff):
    """The text after the hunks of a unified diff, whose context must match."""
    lines, result, position = re.findall(".*\n|.+", before), [], 0
    diff = diff.replace("\n\\ No newline at end of file\n", "\0")
    for line in re.findall("[^\n\0]*[\n\0]", diff)[2:]:
        if found := re.match(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", line):
            start = int(found[1]) - (found[2] != "0")
            result += lines[position:start]
            position = start
            assert len(result) == int(found[3]) - (found[4] != "0")
            continue
        sign, text = line[0], line[1:].rstrip("\0")
        if sign in " -":
            assert lines[position] == text
            position += 1
        if sign in " +":
            result.append(text)
    return "".join([*result, *lines[position:]])


TEXTS = st.lists(st.sampled_from(["", "a", "b", "c", "+", "-", "@@", "\\", "x\ry", "\u2028", "ü"]), max_size=30).map(
    "\n".join
)


@RANDOM
@given(before=TEXTS, after=TEXTS)
def test_a_diff_leads_from_the_text_before_to_the_text_after(before, after):
    diff = FileChange("f", before.encode(), after.encode()).diff
    assert before == after or patched(before, diff) == after


def test_a_diff_of_many_lines_leads_to_the_text_after_too():
    before = "".join(f"{number}\n" for number in range(3000))
    after = before.replace("2\n", "two\n")
    assert patched(before, FileChange("f", before.encode(), after.encode()).diff) == after


DIFFS = {
    "changed": (FileChange("d/f", b"a\nb\n", b"a\nc\n"), "--- a/d/f\n+++ b/d/f\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n"),
    "created": (FileChange("f", None, b"a\n"), "--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+a\n"),
    "created empty": (FileChange("f", None, b""), "--- /dev/null\n+++ b/f\n"),
    "deleted": (FileChange("f", b"a\n", None), "--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n"),
    "no newline": (
        FileChange("f", b"a", b"a\n"),
        "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n",
    ),
    "bytes": (
        FileChange("f", None, b"\xff" * 2000),
        "f: absent -> 2,000 bytes, sha256 198132709635\n",
    ),
    "directory": (FileChange("d", None, b"", "directory", 0o755), "d: absent -> directory, mode 755\n"),
    "link": (FileChange("l", b"a", b"b", "link"), "l: link to 'a' -> link to 'b'\n"),
    "executable": (
        FileChange("f", b"a\n", b"a\n", mode=0o755, mode_before=0o644),
        "f: 2 bytes, sha256 87428fc52280, mode 644 -> 2 bytes, sha256 87428fc52280, mode 755\n",
    ),
    "another kind": (
        FileChange("f", b"a\n", b"", "directory", kind_before="file"),
        "f: 2 bytes, sha256 87428fc52280 -> directory\n--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n",
    ),
    "a name with a line break": (
        FileChange("f\n+++ b/g", None, b"a\n"),
        "--- /dev/null\n+++ 'b/f\\n+++ b/g'\n@@ -0,0 +1 @@\n+a\n",
    ),
}


@pytest.mark.parametrize("name", DIFFS)
def test_a_diff_shows(name):
    change, expected = DIFFS[name]
    assert change.diff == expected


def test_a_long_diff_is_cut_and_says_so():
    diff = FileChange("f", None, b"x, " * 50_000).diff
    assert len(diff) < 101_000
    assert re.search(
        r"\n\[50,0\d\d more characters of this diff are not shown; f: absent -> 150,000 bytes, sha256", diff
    )


def test_the_digest_covers_everything_a_change_does():
    change = FileChange("f", b"a", b"b", mode=0o644, mode_before=0o644)
    others = [
        replace(change, **{name: value})
        for name, value in (
            ("path", "g"),
            ("before", b"c"),
            ("before", None),
            ("after", b""),
            ("after", None),
            ("kind", "link"),
            ("mode", 0o755),
            ("kind_before", "link"),
            ("mode_before", 0o755),
        )
    ]
    assert len({each.digest for each in [change, *others]}) == 10
    assert change.digest == replace(change).digest


@pytest.mark.parametrize("distance", range(-60, 20, 16))
def test_no_part_of_a_secret_is_left_where_a_long_diff_is_cut(distance: int) -> None:
    from weakincentives.telemetry import Redactor

    token = "ghp_" + "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8"
    text = "x " * ((100_000 + distance) // 2) + token + " x" * 10_000
    assert "ghp_A1b2" not in Redactor().text(FileChange("f", None, text.encode()).diff)


def steps_of_diff(before: str, after: str) -> int:
    """How many lines of Python a diff takes."""
    steps = 0

    def count(frame: Any, event: str, argument: Any) -> Any:
        nonlocal steps
        steps += event == "line"
        return count

    change = FileChange("notes.txt", before.encode(), after.encode())
    sys.settrace(count)
    try:
        assert change.diff
    finally:
        sys.settrace(None)
    return steps


@pytest.mark.parametrize(
    ("before", "after"),
    [("a\n", "b\n"), ("a\nb\n", "b\na\n"), ("same\n", "same\n"), ("ab", "cd"), ("\n", "x\n")],
    ids=["other", "turned", "one line apart", "one line", "empty lines"],
)
def test_a_diff_of_a_huge_file_takes_no_more_steps_than_that_of_a_large_one(before: str, after: str) -> None:
    large, huge = [
        steps_of_diff(before * size + "end\n", after * (size // 2) + "new\n" + after * (size // 2) + "end\n")
        for size in (80_000, 800_000)
    ]
    assert huge < large + 1_000


def test_lines_in_common_at_both_ends_of_a_huge_file_are_not_shown() -> None:
    same = "line\n" * 600_000
    change = FileChange("a.txt", f"{same}old\n{same}".encode(), f"{same}new\n{same}".encode())
    context = " line\n" * 3
    hunk = f"@@ -599998,7 +599998,7 @@\n{context}-old\n+new\n{context}"
    assert change.diff == f"--- a/a.txt\n+++ b/a.txt\n{hunk}"
