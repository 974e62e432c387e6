"""HostFilesystem(track_external=True): what other processes did is restored as well."""

import os
import shutil
import tempfile

import pytest

from weakincentives._base.fence import working_for
from weakincentives.filesystem import HostFilesystem, SnapshotError


@pytest.fixture
def fs(root):
    return HostFilesystem(root, track_external=True, ignore=("node_modules", "*.log", "data/raw"))


def test_changes_of_another_process_are_restored(fs, root):
    (root / "edited").write_text("old")
    (root / "deleted").write_text("old")
    (root / "d").mkdir()
    (root / "d" / "link").symlink_to("edited")
    (root / "mode").write_text("x")
    snapshot = fs.snapshot()
    (root / "edited").write_text("new")
    (root / "deleted").unlink()
    (root / "made").mkdir()
    (root / "made" / "f").write_text("x")
    (root / "d" / "link").unlink()
    (root / "d" / "link").write_text("a file")
    (root / "mode").chmod(0o700)
    fs.restore(snapshot)
    assert sorted(os.listdir(root)) == ["d", "deleted", "edited", "mode"]
    assert ((root / "edited").read_text(), (root / "deleted").read_text()) == ("old", "old")
    assert os.readlink(root / "d" / "link") == "edited"
    assert os.stat(root / "mode").st_mode & 0o777 != 0o700


@pytest.mark.parametrize("target", ["other", "nowhere"])
def test_a_directory_that_became_a_link_is_restored(fs, root, target):
    fs.write("d/f", "mine")
    fs.write("other/f", "theirs")
    snapshot = fs.snapshot()
    shutil.rmtree(root / "d")
    (root / "d").symlink_to(target)
    fs.restore(snapshot)
    assert not (root / "d").is_symlink()
    assert (fs.read("d/f"), fs.read("other/f")) == ("mine", "theirs")


def test_a_file_that_others_changed_before_the_call_wrote_its_old_content_stays_that(fs, root):
    (root / "f").write_text("old")
    with working_for(object()):
        mark = fs.begin_call()
        (root / "f").write_text("new")
        fs.write("f", "old")
        assert fs.changes_since(mark) == ()
        fs.restore(mark)
    assert fs.read("f") == "old"


def test_an_edit_that_keeps_size_and_times_is_seen(fs, root):
    path = root / "f"
    path.write_text("old")
    os.utime(path, ns=(1, 1))
    fs.snapshot()
    snapshot = fs.snapshot()
    path.write_text("new")
    os.utime(path, ns=(1, 1))
    fs.restore(snapshot)
    assert path.read_text() == "old"


def test_ignored_paths_are_left_to_others_but_own_changes_are_undone(fs, root):
    (root / "data").mkdir()
    fs.write("app.log", "mine")
    snapshot = fs.snapshot()
    fs.write("app.log", "changed")
    for path in ("node_modules/x/y", "deep/other.log", "data/raw/f", "data/seen"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("theirs")
    fs.restore(snapshot)
    assert fs.glob("**") == ("app.log", "data/raw/f", "deep/other.log", "node_modules/x/y")
    assert fs.read("app.log") == "mine"


def test_large_files_are_restored(fs, root):
    (root / "big").write_bytes(b"1" * 600_000)
    snapshot = fs.snapshot()
    (root / "big").write_bytes(b"1" * 599_999 + b"2")
    fs.restore(snapshot)
    assert (root / "big").read_bytes() == b"1" * 600_000


def test_files_that_did_not_change_are_not_touched(fs, root):
    (root / "f").write_text("x")
    before = os.stat(root / "f")
    snapshot = fs.snapshot()
    (root / "g").write_text("y")
    fs.restore(snapshot)
    after = os.stat(root / "f")
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)


def test_an_ignored_path_comes_back_where_a_file_took_the_place_of_its_directory(fs, root):
    before = fs.snapshot()
    fs.write("d/app.log", "mine")
    after = fs.snapshot()
    fs.restore(before)
    assert os.listdir(root) == []
    (root / "d").write_text("a file")
    fs.restore(after)
    assert fs.read("d/app.log") == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unreadable for root")
@pytest.mark.parametrize("path", ["file", "directory"])
def test_what_cannot_be_read_cannot_be_tracked(fs, root, path):
    (root / "file").write_text("x")
    (root / "directory").mkdir()
    (root / path).chmod(0)
    try:
        with pytest.raises(SnapshotError, match=f"'{path}' cannot be saved .* add it to ignore="):
            fs.snapshot()
    finally:
        (root / path).chmod(0o700)


def test_a_directory_that_forbids_writing_comes_back_with_what_was_in_it(fs, root):
    (root / "d").mkdir()
    (root / "d" / "f").write_text("x")
    (root / "d").chmod(0o500)
    snapshot = fs.snapshot()
    (root / "d").chmod(0o700)
    shutil.rmtree(root / "d")
    fs.restore(snapshot)
    assert os.stat(root / "d").st_mode & 0o777 == 0o500
    assert fs.read("d/f") == "x"
    (root / "d").chmod(0o700)


def test_what_differs_from_a_snapshot_is_named_whoever_changed_it(fs, root):
    (root / "edited").write_text("old")
    (root / "gone").write_text("old")
    (root / "same").write_text("same")
    snapshot = fs.snapshot()
    assert fs.tracks_external and fs.changed_since(snapshot) == ()
    (root / "edited").write_text("new")
    (root / "gone").unlink()
    (root / "same").write_text("same")
    (root / "a.log").write_text("ignored")
    fs.write("made/f", "x")
    assert fs.changed_since(snapshot) == ("edited", "gone", "made", "made/f")
    fs.restore(snapshot)
    assert fs.changed_since(snapshot) == ()


def test_a_filesystem_that_does_not_track_others_cannot_name_changes(root):
    fs = HostFilesystem(root)
    assert not fs.tracks_external
    with pytest.raises(SnapshotError, match="track_external=True"):
        fs.changed_since(fs.snapshot())


def test_a_root_that_was_removed_comes_back_with_its_files(fs, root):
    (root / "deep").mkdir()
    (root / "deep" / "a.txt").write_text("a")
    before = fs.snapshot()
    shutil.rmtree(root)
    assert fs.changed_since(before) == ("deep", "deep/a.txt")
    fs.restore(before)
    assert fs.read("deep/a.txt") == "a"


def test_a_sparse_file_does_not_fill_the_disk(fs, root):
    with (root / "huge").open("wb") as file:
        try:
            file.truncate(shutil.disk_usage(tempfile.gettempdir()).free + (1 << 40))
        except OSError:
            pytest.skip("the file system has no files of this size")
    with pytest.raises(SnapshotError, match=r"'huge' cannot be saved \(No space left on device\)"):
        fs.snapshot()
    (root / "huge").unlink()
    fs.restore(fs.snapshot())
