"""Programs in the real folder: what they change is kept, taken back, or moved into a branch."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until
from weakincentives._base.fence import working_for
from weakincentives._base.processes import marked_processes
from weakincentives.filesystem import (
    FilesystemError,
    FolderBusyError,
    HostFilesystem,
    NeedsFolderError,
    SnapshotError,
    StaleFilesError,
    tracking,
)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WINK_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def files(root: Path, state: Path) -> HostFilesystem:
    (root / "a.txt").write_text("old")
    (root / "d").mkdir()
    (root / "d" / "b.txt").write_text("b")
    return HostFilesystem(root, track_external=True, ignore=("cache",))


def spoil(root: Path | str) -> None:
    """What a program might do."""
    root = Path(root)
    (root / "a.txt").write_text("new")
    (root / "a.txt").chmod(0o600)
    (root / "d" / "b.txt").unlink()
    (root / "d").rmdir()
    (root / "made" / "deep").mkdir(parents=True)
    (root / "made" / "deep" / "c.bin").write_bytes(os.urandom(50_000))
    (root / "link").symlink_to("a.txt")


CHANGED = ("a.txt", "d", "d/b.txt", "link", "made", "made/deep", "made/deep/c.bin")


def tree(root: Path | str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted(Path(root).rglob("*")):
        name, status = path.relative_to(root).as_posix(), path.lstat()
        if path.is_symlink():
            found[name] = os.readlink(path)
        else:
            found[name] = (
                status.st_mode,
                path.read_bytes() if path.is_file() else b"",
                status.st_mtime_ns * path.is_file(),
            )
    return found


def test_what_programs_change_is_kept(files: HostFilesystem, root: Path) -> None:
    with files.programs("make") as run:
        spoil(run.folder)
        after = tree(root)
        assert run.keep() == CHANGED
    assert tree(root) == after


@pytest.mark.parametrize("ending", ["take_back", "close", "error"])
def test_what_programs_change_is_taken_back(files: HostFilesystem, root: Path, state: Path, ending: str) -> None:
    before = tree(root)
    try:
        with files.programs("make") as run:
            spoil(run.folder)
            if ending == "take_back":
                assert run.take_back() == CHANGED
            elif ending == "error":
                raise ZeroDivisionError
    except ZeroDivisionError:
        assert ending == "error"
    assert tree(root) == before
    assert [*state.rglob("journal-*"), *state.rglob("programs")] == []


def test_in_a_branch_the_folder_is_as_before_and_the_changes_are_in_the_branch(
    files: HostFilesystem, root: Path
) -> None:
    before = tree(root)
    branch = files.branch()
    with working_for(object()):
        mark = branch.begin_call()
        with branch.programs("make all") as run:
            spoil(run.folder)
            after = tree(root)
            assert run.keep() == CHANGED
        assert tree(root) == before
        assert branch.programs_run == ("make all",)
        changes = branch.changes_since(mark)
        assert tuple(change.path for change in changes) == CHANGED
    files.apply(changes)
    assert {name: value[:2] for name, value in tree(root).items()} == {name: value[:2] for name, value in after.items()}


def test_programs_for_a_branch_find_its_changes_in_the_folder(files: HostFilesystem, root: Path) -> None:
    before = tree(root)
    outer = files.branch()
    outer.write("a.txt", "from the outer branch")
    outer.write("cache/ignored.txt", "not tracked")
    branch = outer.branch()
    branch.write("b.txt", "from the branch")
    branch.delete("d", recursive=True)
    with branch.programs("make") as run:
        assert [path.read_text() for path in (root / "a.txt", root / "b.txt", root / "cache" / "ignored.txt")] == [
            "from the outer branch",
            "from the branch",
            "not tracked",
        ]
        assert not (root / "d").exists()
        (root / "a.txt").write_text("from the program")
        (root / "b.txt").unlink()
        assert run.keep() == ("a.txt", "b.txt")
    assert tree(root) == before
    assert branch.glob("**") == ("a.txt", "cache/ignored.txt")
    assert branch.read("a.txt") == "from the program"
    assert outer.glob("**") == ("a.txt", "cache/ignored.txt", "d/b.txt")


def test_a_branch_whose_base_has_changed_gets_no_programs(files: HostFilesystem, root: Path) -> None:
    branch = files.branch()
    branch.write("a.txt", "mine")
    branch.write("z.txt", "mine")
    (root / "a.txt").write_text("theirs")
    before = tree(root)
    with pytest.raises(StaleFilesError, match=r"'a\.txt'"):
        branch.programs("make")
    assert tree(root) == before
    files.programs("make").close()


@pytest.mark.parametrize("limit", ["MAX_TRACKED", "MAX_TRACKED_BYTES"])
def test_a_folder_that_is_too_large_cannot_be_tried_out(
    files: HostFilesystem, root: Path, monkeypatch: pytest.MonkeyPatch, limit: str, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracking, limit, 2)
    with pytest.raises(NeedsFolderError, match=r"cannot be taken back, because there are more than .*ignore="):
        files.branch().programs("make")
    with files.programs("make") as run:
        (root / "a.txt").write_text("new")
    assert files.read("a.txt") == "old"
    assert run.folder in caplog.text


def test_only_a_filesystem_that_tracks_others_runs_programs(root: Path) -> None:
    for fs in (HostFilesystem(root), HostFilesystem(root).branch()):
        with pytest.raises(FilesystemError, match="track_external=True"):
            fs.programs("make")


def test_programs_of_two_runs_work_one_after_the_other(files: HostFilesystem, root: Path) -> None:
    other = HostFilesystem(root, track_external=True)
    with files.programs("make") as run:
        with pytest.raises(FolderBusyError, match="another run"):
            other.programs("test", wait=0.01)
        thread = threading.Thread(target=lambda: other.programs("test", wait=20).close())
        thread.start()
        run.keep()
        thread.join(20)
        assert not thread.is_alive()


def test_programs_of_two_processes_work_one_after_the_other(files: HostFilesystem, root: Path) -> None:
    script = """
import sys
from weakincentives.filesystem import FolderBusyError, HostFilesystem
try:
    HostFilesystem(sys.argv[1], track_external=True).programs("test").close()
    print("worked")
except FolderBusyError:
    print("busy")
"""
    command = [sys.executable, "-c", script, str(root)]
    with files.programs("make") as run:
        assert subprocess.check_output(command, text=True) == "busy\n"
        # A process that is part of the program is not kept out.
        environment = {**os.environ, **run.environment}
        assert subprocess.check_output(command, text=True, env=environment) == "worked\n"
    assert subprocess.check_output(command, text=True) == "worked\n"


def test_what_other_runs_write_meanwhile_is_theirs(files: HostFilesystem, root: Path) -> None:
    script = """
import sys
from weakincentives.filesystem import FileChange, HostFilesystem
files = HostFilesystem(sys.argv[1])
files.write("process.txt", "theirs")
files.apply([FileChange("one", None, b"theirs"), FileChange("two", None, b"theirs")])
"""
    other = HostFilesystem(root)
    with working_for(object()), files.programs("make") as run:
        (root / "a.txt").write_text("new")
        files.write("own.txt", "of the same call")

        def write() -> None:
            other.write("thread.txt", "theirs")

        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
        subprocess.run([sys.executable, "-c", script, str(root)], check=True)
        assert run.take_back() == ("a.txt", "own.txt")
    assert files.glob("*") == ("a.txt", "one", "process.txt", "thread.txt", "two")
    assert files.read("a.txt") == "old"


def test_what_another_program_writes_while_it_is_taken_back_is_left_alone(
    files: HostFilesystem, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes_to = tracking.Tracker.changes_to

    def changes_to_and_write(self: Any, before: Any) -> Any:
        changes = changes_to(self, before)
        (root / "a.txt").write_text("theirs")
        return changes

    with files.programs("make") as run:
        spoil(root)
        monkeypatch.setattr(tracking.Tracker, "changes_to", changes_to_and_write)
        with pytest.raises(SnapshotError, match=r"others have changed 'a\.txt', which was left alone"):
            run.take_back()
    assert (files.read("a.txt"), files.exists("made"), files.read("d/b.txt")) == ("theirs", False, "b")


def test_sockets_and_pipes_that_programs_leave_are_removed(files: HostFilesystem, root: Path) -> None:
    os.mkfifo(root / "there")
    with files.programs("make"):
        os.mkfifo(root / "made")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.path.relpath(root / "server"))
    assert sorted(path.name for path in root.iterdir()) == ["a.txt", "d", "there"]
    branch = files.branch()
    with branch.programs("make") as run:
        os.mkfifo(root / "made")
        with pytest.raises(SnapshotError, match="'made' cannot be kept: "):
            run.keep()
    assert sorted(path.name for path in root.iterdir()) == ["a.txt", "d", "there"]


def test_a_root_that_programs_remove_comes_back(files: HostFilesystem, root: Path) -> None:
    before = tree(root)
    with files.programs("make"):
        subprocess.run(["rm", "-rf", str(root)], check=True)
    assert tree(root) == before


WORKER = """
import os, subprocess, sys, time
from weakincentives.filesystem import HostFilesystem
files = HostFilesystem(sys.argv[1], track_external=True)
if sys.argv[3] == "branch":
    files = files.branch()
    files.write("branch.txt", "only for the program")
with files.programs("make all") as run:
    program = subprocess.Popen(
        [sys.executable, "-c", sys.argv[2]],
        cwd=run.folder,
        env={**os.environ, **run.environment},
        start_new_session=True,
    )
    print(program.pid, flush=True)
    program.wait()
    time.sleep(60)
"""
# It leaves its session, kills who started it, and goes on writing.
PROGRAM = """
import os, signal, subprocess, sys, time
open("a.txt", "w").write("evil")
if os.fork() == 0:
    os.setsid()
    number = 0
    while True:
        number += 1
        open(f"evil-{number % 50}.txt", "w").write("evil")
        time.sleep(0.001)
KILL
time.sleep(60)
"""


def started(root: Path, kill: str = "", kind: str = "folder") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WORKER, str(root), PROGRAM.replace("KILL", kill), kind]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    worker.stdout.readline()
    return worker


def files_named(folder: Path, beginning: str) -> list[str]:
    """The files whose name begins so, while others may be deleted."""
    names: list[str] = []
    for _, _, files in os.walk(folder):
        names.extend(name for name in files if name.startswith(beginning))
    return names


@pytest.mark.parametrize("kind", ["folder", "branch"])
@pytest.mark.parametrize("killer", ["another", "the program"])
def test_if_the_process_dies_its_programs_are_killed_and_everything_is_put_back_at_once(
    files: HostFilesystem, root: Path, state: Path, kind: str, killer: str
) -> None:
    before = tree(root)
    worker = started(root, "os.kill(os.getppid(), signal.SIGKILL)" if killer == "the program" else "", kind)
    if killer == "another":
        until(lambda: (root / "evil-1.txt").exists())
        worker.kill()
    worker.communicate()
    assert worker.returncode == -signal.SIGKILL
    # Nobody opens the root: the guard of the dead process does it.
    until(lambda: not files_named(state, "journal-") and files_named(state, "report-"))
    assert tree(root) == before
    (recovery,) = HostFilesystem(root).recoveries
    assert (recovery.kind, recovery.label, recovery.left_alone) == ("program", "make all", ())
    assert "a.txt" in recovery.paths and "ran 'make all'" in str(recovery)
    assert recovery.saved_in is not None and Path(recovery.saved_in, "a.txt").read_text() == "evil"
    assert [*state.rglob("report-*")] == []


@pytest.mark.parametrize("kind", ["folder", "branch"])
def test_without_its_guard_too_everything_is_put_back_before_anything_else_begins(
    files: HostFilesystem, root: Path, kind: str
) -> None:
    before = tree(root)
    worker = started(root, kind=kind)
    until(lambda: (root / "evil-1.txt").exists())
    children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
    guards = [int(pid) for pid in children if b"guardian" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(guards) == 1
    for pid in [*guards, worker.pid]:
        os.kill(pid, signal.SIGKILL)
    worker.wait()
    assert worker.stdout is not None
    worker.stdout.close()
    variable = b"WINK_PROGRAM_"
    (root / "evil-1.txt").write_text("evil")
    with working_for(object()):
        files.begin_call()
    assert tree(root) == before
    (recovery,) = files.recoveries
    assert (recovery.kind, recovery.label) == ("program", "make all")
    survivors = [
        pid
        for pid in os.listdir("/proc")
        if pid.isdigit() and variable in _environment(pid) and str(root).encode() in _environment(pid)
    ]
    assert survivors == []


def _environment(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def test_programs_that_go_on_are_killed_before_their_changes_are_kept_or_taken_back(
    files: HostFilesystem, root: Path
) -> None:
    script = "import os, time\nif os.fork(): os._exit(0)\nos.setsid()\ntime.sleep(60)"
    with files.programs("make") as run:
        environment = {**os.environ, **run.environment}
        subprocess.run([sys.executable, "-c", script], env=environment, cwd=run.folder, check=True)
        (name,) = (name for name in run.environment if name.startswith("WINK_PROGRAM_"))
        assert len(marked_processes(name, "1")) == 1
        run.keep()
    assert marked_processes(name, "1") == []
