"""Full disks, read-only folders, hard links and races lose no file and change none outside the root."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.contrib.tools import VfsToolsSection
from weakincentives.errors import WinkError
from weakincentives.filesystem import FilesystemError, HostFilesystem, SnapshotError
from weakincentives.prompt import Prompt, PromptTemplate, ToolContext, ToolResult, tool
from weakincentives.session import Session

KILOBYTE = 1024
LARGE = b"0123456789abcdef" * 64 * 100


class Disk:
    """A small disk of its own, which can be filled and made read-only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.root = path / "root"

    def fill(self) -> None:
        with open(self.path / "filler", "wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(KILOBYTE))
            except OSError:
                pass

    def empty(self) -> None:
        (self.path / "filler").unlink()

    def remount(self, mode: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{mode}", str(self.path)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(path)]
    try:
        mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if mounted.returncode:
        pytest.skip(f"a disk can only be mounted by root: {mounted.stderr.strip()}")
    small = Disk(path)
    small.root.mkdir()
    try:
        yield small
    finally:
        subprocess.run(["umount", str(path)], check=True)


@pytest.fixture(params=[False, True], ids=["journal", "tracking"])
def fs(request: pytest.FixtureRequest, disk: Disk) -> HostFilesystem:
    return HostFilesystem(disk.root, track_external=request.param)


@pytest.mark.parametrize("content", [LARGE, b"short" * KILOBYTE], ids=["large", "small"])
def test_a_rollback_on_a_full_disk_keeps_the_file_and_says_where(
    fs: HostFilesystem, disk: Disk, content: bytes
) -> None:
    fs.write("notes/kept.bin", content)
    snapshot = fs.snapshot()
    fs.delete("notes/kept.bin")
    disk.fill()
    for _ in range(2):
        with pytest.raises(SnapshotError, match=r"'notes/kept\.bin' failed: No space left on device") as caught:
            fs.restore(snapshot)
        assert caught.value.saved_in in str(caught.value)
        assert Path(caught.value.saved_in, "notes/kept.bin").read_bytes() == content
    disk.empty()
    fs.restore(snapshot)
    assert fs.read_bytes("notes/kept.bin") == content
    assert not os.path.exists(caught.value.saved_in)


def test_no_snapshot_is_taken_of_a_half_restored_folder(fs: HostFilesystem, disk: Disk) -> None:
    fs.write("kept", LARGE)
    snapshot = fs.snapshot()
    fs.delete("kept")
    disk.fill()
    with pytest.raises(SnapshotError):
        fs.restore(snapshot)
    with pytest.raises(SnapshotError, match="Could not restore everything: 'kept' failed"):
        fs.snapshot()
    disk.empty()
    healed = fs.snapshot()
    assert fs.read_bytes("kept") == LARGE
    fs.write("kept", "changed")
    fs.restore(healed)
    assert fs.read_bytes("kept") == LARGE


def test_a_rollback_in_a_read_only_folder_fails_until_it_can_be_written(fs: HostFilesystem, disk: Disk) -> None:
    fs.write("a", "1")
    fs.write("b", "2")
    snapshot = fs.snapshot()
    fs.write("a", "changed")
    fs.delete("b")
    fs.write("c", "new")
    disk.remount("ro")
    with pytest.raises(SnapshotError, match="Read-only file system") as caught:
        fs.restore(snapshot)
    assert {path.name: path.read_text() for path in Path(caught.value.saved_in).iterdir()} == {"a": "1", "b": "2"}
    disk.remount("rw")
    fs.restore(snapshot)
    assert {path: fs.read(path) for path in fs.glob("**")} == {"a": "1", "b": "2"}


def test_a_file_written_after_a_failed_rollback_is_not_overwritten_by_the_next_snapshot(
    fs: HostFilesystem, disk: Disk
) -> None:
    fs.write("f", LARGE)
    snapshot = fs.snapshot()
    fs.delete("f")
    disk.fill()
    with pytest.raises(SnapshotError):
        fs.restore(snapshot)
    disk.empty()
    fs.write("f", "newer")
    fs.snapshot()
    assert fs.read("f") == "newer"
    fs.restore(snapshot)
    assert fs.read_bytes("f") == LARGE


def test_going_back_further_after_a_failed_rollback_restores_the_older_state(fs: HostFilesystem, disk: Disk) -> None:
    fs.write("f", b"old" * KILOBYTE * 10)
    first = fs.snapshot()
    fs.write("f", LARGE)
    fs.write("only-in-second", LARGE[:KILOBYTE])
    second = fs.snapshot()
    fs.delete("f")
    fs.delete("only-in-second")
    disk.fill()
    with pytest.raises(SnapshotError):
        fs.restore(second)
    disk.empty()
    fs.restore(first)
    assert {path: fs.read_bytes(path) for path in fs.glob("**")} == {"f": b"old" * KILOBYTE * 10}
    fs.restore(second)
    assert {path: fs.read_bytes(path) for path in fs.glob("**")} == {"f": LARGE, "only-in-second": LARGE[:KILOBYTE]}


def test_what_could_not_be_restored_outlives_the_process(disk: Disk, tmp_path: Path) -> None:
    script = f"""
import sys
from weakincentives.filesystem import HostFilesystem, SnapshotError
fs = HostFilesystem({str(disk.root)!r})
fs.write("f", b"x" * 100_000)
snapshot = fs.snapshot()
fs.delete("f")
open({str(disk.path / "full")!r}, "wb", buffering=0).write(bytes(200_000))
try:
    fs.restore(snapshot)
except SnapshotError as error:
    print(error.saved_in)
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip(), "f").read_bytes() == b"x" * 100_000


def test_a_failed_append_on_a_full_disk_leaves_the_file_as_it_was(fs: HostFilesystem, disk: Disk) -> None:
    fs.write("log", "first\n")
    with pytest.raises(FilesystemError, match="'log' failed: No space left on device"):
        fs.write("log", LARGE * 3, mode="append")
    assert fs.read("log") == "first\n"
    fs.write("log", "second\n", mode="append")
    assert fs.read("log") == "first\nsecond\n"


@pytest.mark.parametrize("mode", ["create", "overwrite"])
def test_a_failed_write_on_a_full_disk_leaves_nothing_behind(fs: HostFilesystem, disk: Disk, mode: str) -> None:
    fs.write("old", "kept")
    path = "new" if mode == "create" else "old"
    with pytest.raises(FilesystemError, match="No space left on device"):
        fs.write(path, LARGE * 3, mode=mode)
    assert [(entry.name, entry.size) for entry in fs.list()] == [("old", 4)]


def test_a_tool_whose_rollback_fails_does_not_lose_the_file(disk: Disk) -> None:
    @tool
    def spoil(context: ToolContext) -> ToolResult[None]:
        """Delete a file, fill the disk, fail."""
        context.filesystem.delete("notes")
        disk.fill()
        return ToolResult("It went wrong.", success=False)

    files = HostFilesystem(disk.root)
    files.write("notes", LARGE)
    template = PromptTemplate(ns="tests", key="spoil", sections=[VfsToolsSection(files, tools=[spoil])])
    with pytest.raises(WinkError, match=r"Could not restore .* No space left on device"):
        ScriptedAdapter([call("spoil"), "Done."]).evaluate(Prompt(template), session=Session())
    disk.empty()
    files.snapshot()
    assert files.read_bytes("notes") == LARGE


@pytest.mark.parametrize("track", [False, True])
def test_no_write_through_a_hard_link_changes_the_file_outside(tmp_path: Path, track: bool) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.write_text("secret")
    outside.chmod(0o640)
    fs = HostFilesystem(root, track_external=track)
    for mode in ("append", "overwrite"):
        os.link(outside, root / mode)
        snapshot = fs.snapshot()
        fs.write(mode, " and more", mode=mode)
        assert fs.read(mode) == ("secret and more" if mode == "append" else " and more")
        assert (root / mode).stat().st_mode & 0o777 == 0o640
        fs.restore(snapshot)
        assert fs.read(mode) == "secret"
    assert outside.read_text() == "secret"


def test_names_swapped_during_appends_never_lead_out(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.write_text("secret")
    fs, stop = HostFilesystem(root), threading.Event()

    def swap() -> None:
        spare = root / "spare"
        while not stop.is_set():
            for make in (lambda: spare.symlink_to(outside), lambda: os.link(outside, spare), spare.touch):
                make()
                os.replace(spare, root / "f")

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        for _ in range(3_000):
            try:
                fs.write("f", "x", mode="append")
            except FilesystemError:
                continue
    finally:
        stop.set()
        swapper.join()
    assert outside.read_text() == "secret"
