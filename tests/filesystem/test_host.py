import gc
import os
import threading

import pytest

from weakincentives.filesystem import (
    AlreadyExistsError,
    FilesystemError,
    HostFilesystem,
    InvalidPathError,
    NotFoundError,
    SnapshotError,
)


@pytest.fixture
def fs(root):
    return HostFilesystem(root)


@pytest.fixture
def outside(tmp_path):
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("s3cret")
    return secret


def operations(fs, path):
    yield lambda: fs.read(path)
    yield lambda: fs.read_bytes(path)
    yield lambda: fs.write(path, "overwritten")
    yield lambda: fs.write(path, "appended", mode="append")
    yield lambda: fs.stat(path)
    yield lambda: fs.exists(path)
    yield lambda: fs.grep("s", path=path)


@pytest.mark.parametrize("target", ["../secret/key", "{outside}/key", "sub/../../secret/key"])
def test_a_link_to_a_file_outside_is_refused(fs, root, outside, target):
    (root / "sub").mkdir()
    (root / "link").symlink_to(target.format(outside=outside))
    for operation in operations(fs, "link"):
        with pytest.raises(InvalidPathError, match="'link' is a symbolic link that leads out of the root"):
            operation()
    assert (outside / "key").read_text() == "s3cret"


def test_a_link_to_a_directory_outside_is_refused(fs, root, outside):
    (root / "link").symlink_to(outside)
    for operation in (*operations(fs, "link/key"), lambda: fs.write("link/new", "x"), lambda: fs.mkdir("link/new")):
        with pytest.raises(InvalidPathError, match="leads out of the root"):
            operation()
    for operation in (lambda: fs.list("link"), lambda: fs.glob("*", path="link"), lambda: fs.delete("link/key")):
        with pytest.raises(InvalidPathError, match="leads out of the root"):
            operation()
    assert sorted(os.listdir(outside)) == ["key"]


def test_a_link_whose_prefix_only_looks_like_the_root_is_refused(fs, root):
    twin = root.parent / "root-twin"
    twin.mkdir()
    (twin / "key").write_text("x")
    (root / "link").symlink_to(twin / "key")
    with pytest.raises(InvalidPathError, match="leads out"):
        fs.read("link")


def test_walks_do_not_follow_links(fs, root, outside):
    (root / "out").symlink_to(outside)
    (root / "key").symlink_to(outside / "key")
    (root / "loop").symlink_to(".")
    (root / "mine").write_text("s3cret of mine")
    assert fs.glob("**") == ("mine",)
    assert [match.path for match in fs.grep("s3cret")] == ["mine"]
    assert [(entry.name, entry.kind) for entry in fs.list()] == [
        ("key", "symlink"),
        ("loop", "symlink"),
        ("mine", "file"),
        ("out", "symlink"),
    ]


def test_links_that_stay_inside_are_followed(fs, root):
    (root / "real").mkdir()
    (root / "relative").symlink_to("real")
    (root / "absolute").symlink_to(root / "real")
    (root / "up").symlink_to("real/../real/f")
    (root / "here").symlink_to("real/..")
    fs.write("relative/f", "x")
    assert [fs.read(path) for path in ("real/f", "absolute/f", "up", "here/up")] == ["x"] * 4
    assert fs.stat("up").kind == "file"
    assert fs.stat("here").kind == "directory"


def test_deleting_a_link_leaves_what_it_points_to(fs, root, outside):
    (root / "d").mkdir()
    (root / "d" / "link").symlink_to(outside)
    fs.delete("d/link")
    assert os.listdir(root / "d") == []
    (root / "d" / "link").symlink_to(outside)
    fs.delete("d", recursive=True)
    assert (outside / "key").read_text() == "s3cret"


def test_links_in_a_circle_are_refused(fs, root):
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    with pytest.raises(InvalidPathError, match="too many symbolic links"):
        fs.read("a")


def test_a_dangling_link_inside_can_be_written_through(fs, root):
    (root / "link").symlink_to("target")
    assert not fs.exists("link")
    snapshot = fs.snapshot()
    fs.write("link", "x")
    assert (root / "target").read_text() == "x"
    fs.restore(snapshot)
    assert sorted(os.listdir(root)) == ["link"]


def test_a_directory_swapped_for_a_link_while_in_use_never_leads_out(fs, root, outside):
    (root / "d").mkdir()
    (root / "d" / "key").write_text("mine")
    stop = threading.Event()

    def swap():
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
            try:
                seen.add(fs.read("d/key"))
            except (InvalidPathError, NotFoundError):
                continue
    finally:
        stop.set()
        thread.join()
    assert seen <= {"mine"}


def test_special_files_are_refused_without_waiting(fs, root):
    os.mkfifo(root / "pipe")
    for operation in (lambda: fs.read("pipe"), lambda: fs.write("pipe", "x")):
        with pytest.raises(FilesystemError, match="'pipe' is neither a file nor a directory"):
            operation()
    assert fs.list()[0].kind == "other"
    assert fs.grep("x") == ()


def test_the_root_must_be_a_directory(root):
    with pytest.raises(NotFoundError, match="is not a directory; create it first"):
        HostFilesystem(root / "nowhere")


def test_the_root_may_be_reached_through_a_link(tmp_path, root):
    (tmp_path / "alias").symlink_to(root)
    fs = HostFilesystem(tmp_path / "alias")
    fs.write("f", "x")
    assert fs.root == os.path.realpath(root)
    assert (root / "f").read_text() == "x"


def test_a_name_that_is_too_long_is_refused(fs):
    with pytest.raises(InvalidPathError, match="too long"):
        fs.write("x" * 300, "")


def test_overwriting_keeps_the_mode_and_leaves_nothing_behind(fs, root):
    (root / "run").write_text("old")
    (root / "run").chmod(0o750)
    fs.write("run", "new")
    assert os.stat(root / "run").st_mode & 0o777 == 0o750
    assert os.listdir(root) == ["run"]


def test_create_does_not_touch_what_another_process_made(fs, root):
    (root / "f").write_text("theirs")
    with pytest.raises(AlreadyExistsError):
        fs.write("f", "mine", mode="create")
    assert (root / "f").read_text() == "theirs"


def test_restore_brings_back_modes_times_and_links(fs, root):
    script = root / "d" / "run"
    script.parent.mkdir(mode=0o700)
    script.write_text("x")
    script.chmod(0o755)
    os.utime(script, ns=(5, 1_000_000_000))
    (root / "d" / "link").symlink_to("/nowhere")
    snapshot = fs.snapshot()
    fs.delete("d", recursive=True)
    fs.restore(snapshot)
    status = os.stat(script)
    assert (status.st_mode & 0o777, status.st_mtime_ns) == (0o755, 1_000_000_000)
    assert os.stat(script.parent).st_mode & 0o777 == 0o700
    assert os.readlink(root / "d" / "link") == "/nowhere"


def test_restore_leaves_alone_what_another_process_did(fs, root):
    fs.write("mine/f", "1")
    snapshot = fs.snapshot()
    fs.write("new/f", "2")
    (root / "new" / "theirs").write_text("kept")
    (root / "other").write_text("kept")
    fs.restore(snapshot)
    assert sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()) == [
        "mine/f",
        "new/theirs",
        "other",
    ]


def test_what_cannot_be_restored_is_named_and_the_rest_is_restored(fs, root):
    fs.write("a", "old")
    fs.write("b", "old")
    snapshot = fs.snapshot()
    fs.write("b", "new")
    fs.delete("a")
    (root / "a").mkdir()
    (root / "a" / "theirs").write_text("kept")
    with pytest.raises(SnapshotError, match="Could not restore everything: 'a' is not empty"):
        fs.restore(snapshot)
    assert (fs.read("b"), fs.read("a/theirs")) == ("old", "kept")


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("WINK_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def test_large_files_are_saved_outside_the_root_and_forgotten_with_the_snapshot(state, root):
    fs = HostFilesystem(root)
    fs.write("big", b"1" * 100_000)
    snapshot = fs.snapshot()
    fs.write("big", b"2" * 100_000)
    (saved,) = state.rglob("contents-*")
    assert (saved.stat().st_size, saved.parent.stat().st_mode & 0o077) == (100_000, 0)
    assert os.listdir(root) == ["big"]
    fs.restore(snapshot)
    assert fs.read_bytes("big") == b"1" * 100_000
    fs.write("big", "3")
    del snapshot
    fs.write("big", "4")
    gc.collect()
    assert list(state.rglob("contents-*")) == []
    fs.close()
    del fs
    assert list((state / "files").iterdir()) == []


def test_nothing_is_saved_while_no_snapshot_is_held(state, root):
    fs = HostFilesystem(root)
    fs.write("big", b"1" * 100_000)
    fs.snapshot()
    fs.write("big", b"2" * 100_000)
    assert not state.exists()


def test_a_closed_filesystem_forgets_its_snapshots(fs):
    fs.write("f", "1")
    snapshot = fs.snapshot()
    fs.close()
    with pytest.raises(SnapshotError, match="not taken from this filesystem"):
        fs.restore(snapshot)
    assert fs.read("f") == "1"


def test_no_file_descriptor_is_left_open(fs, root):
    fs.write("a/b/c", "x\n" * 10)
    (root / "out").symlink_to("/")
    for attempt in range(4):
        if attempt == 1:
            # The first time, it locks a folder for what it saves.
            before = len(os.listdir("/dev/fd"))
        snapshot = fs.snapshot()
        fs.read("a/b/c", limit=1)
        fs.grep("x", limit=1)
        fs.glob("**")
        fs.delete("a", recursive=True)
        fs.restore(snapshot)
        for path in ("out/etc", "missing/x", "a/b/c/d", "a"):
            with pytest.raises(FilesystemError):
                fs.read(path)
    assert len(os.listdir("/dev/fd")) == before
