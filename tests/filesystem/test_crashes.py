"""Processes that are killed while they work on files, or meet others there: all or nothing, and no loss for others."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

import pytest

from tests.filesystem.crashing import SCENARIOS
from weakincentives._base.fence import working_for
from weakincentives.filesystem import FileChange, HostFilesystem, JournalError, SnapshotError, StaleFilesError

PROJECT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WINK_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_work_that_is_killed_at_any_call_is_done_or_not_begun(tmp_path: Path, scenario: str, seed: int) -> None:
    command = [sys.executable, "-m", "tests.filesystem.crashing", str(tmp_path), scenario, str(seed)]
    ended = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    *violations, deaths = ended.stdout.splitlines() or [ended.stderr]
    assert violations == []
    assert deaths == "0 deaths" if scenario == "preview" else int(deaths.split()[0]) > 20


def die_applying(root: Path, count: int) -> None:
    """A process that applies changes of files, and dies when the last one has changed."""
    script = f"""
import os, signal, sys
from weakincentives.filesystem import FileChange, HostFilesystem
files = HostFilesystem(sys.argv[1])
unlink = os.unlink
def dying(*arguments, **options):
    unlink(*arguments, **options)
    if all(open(f"{{sys.argv[1]}}/{{n}}").read() == "new" for n in range({count})):
        os.kill(os.getpid(), signal.SIGKILL)
os.unlink = dying
files.apply([FileChange(str(number), b"old", b"new") for number in range({count})])
"""
    for number in range(count):
        (root / str(number)).write_text("old")
    ended = subprocess.run([sys.executable, "-c", script, str(root)], check=False)
    assert ended.returncode == -signal.SIGKILL


def test_what_was_left_behind_is_put_back_and_reported(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    die_applying(root, 3)
    assert (root / "0").read_text() == "new"
    files = HostFilesystem(root)
    assert {name: files.read(name) for name in files.glob("*")} == {"0": "old", "1": "old", "2": "old"}
    (recovery,) = files.recoveries
    assert (recovery.kind, recovery.paths, recovery.left_alone) == ("apply", ("0", "1", "2"), ())
    assert [record.getMessage() for record in caplog.records] == [f"{recovery} (in {root})"]
    assert HostFilesystem(root).recoveries == files.recoveries


def test_a_process_that_was_there_before_puts_back_what_another_left_before_its_next_call(root: Path) -> None:
    files = HostFilesystem(root)
    die_applying(root, 2)
    with working_for(object()):
        files.begin_call()
    assert (root / "0").read_text() == "old"


def test_what_others_have_changed_since_is_left_alone_and_named(root: Path) -> None:
    die_applying(root, 3)
    (root / "1").write_text("theirs")
    (recovery,) = HostFilesystem(root).recoveries
    assert (recovery.paths, recovery.left_alone) == (("0", "2"), ("1",))
    assert [(root / name).read_text() for name in "012"] == ["old", "theirs", "old"]
    assert recovery.saved_in is not None and Path(recovery.saved_in, "1").read_text() == "old"
    assert "'1'" in str(recovery)


def test_a_folder_that_has_taken_the_place_of_the_root_is_left_alone(root: Path) -> None:
    die_applying(root, 2)
    root.rename(root.with_name("elsewhere"))
    root.mkdir()
    (root / "0").write_text("new")
    (recovery,) = HostFilesystem(root).recoveries
    assert recovery.left_alone == ("0", "1")
    assert {path.name: path.read_text() for path in root.iterdir()} == {"0": "new"}


def test_a_journal_that_cannot_be_read_keeps_calls_from_beginning(root: Path, state: Path) -> None:
    die_applying(root, 2)
    (journal,) = state.rglob("journal-*")
    record = b"\x81\xa4kind\xa5other"
    journal.write_bytes(blake2b(record, digest_size=16).digest() + record)
    files = HostFilesystem(root)
    assert files.read("0") == "new"
    for begin in (files.begin_call, files.branch, files.snapshot, lambda: files.apply([])):
        with pytest.raises(JournalError, match=r"The undo journal .* cannot be read"):
            begin()


def test_what_nobody_has_used_for_a_month_is_deleted(root: Path, state: Path) -> None:
    die_applying(root, 2)
    (place,) = (state / "files").iterdir()
    shutil.rmtree(root)
    month = 31 * 24 * 3600
    os.utime(place, (time.time() - month, time.time() - month))
    root.with_name("another").mkdir()
    branch = HostFilesystem(root.with_name("another")).branch()
    branch.write("large", b"x" * (80 << 20))
    assert not place.exists()


def test_the_journal_of_a_process_that_lives_is_not_touched(root: Path) -> None:
    script = """
import os, sys
from weakincentives.filesystem import FileChange, HostFilesystem
files = HostFilesystem(sys.argv[1])
unlink = os.unlink
def waiting(name, *arguments, **options):
    unlink(name, *arguments, **options)
    if "journal" not in str(name) and "mutex" not in str(name) and not os.environ.get("MET"):
        os.environ["MET"] = "1"
        print("there", flush=True)
        input()
os.unlink = waiting
files.apply([FileChange(str(number), b"old", b"new") for number in range(3)])
print("done", flush=True)
"""
    for number in range(3):
        (root / str(number)).write_text("old")
    with subprocess.Popen(
        [sys.executable, "-c", script, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "there\n"
        opened: list[HostFilesystem] = []
        thread = threading.Thread(target=lambda: opened.append(HostFilesystem(root)))
        thread.start()
        # It waits for the other process to end what it has begun.
        thread.join(0.2)
        assert opened == []
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
        thread.join(20)
    assert opened[0].recoveries == ()
    assert {path.name: path.read_text() for path in root.iterdir()} == {"0": "new", "1": "new", "2": "new"}


WORKER = """
import os, random, sys
from weakincentives.filesystem import FileChange, FilesystemError, HostFilesystem
files, chance = HostFilesystem(sys.argv[1]), random.Random(int(sys.argv[2]))
os.fsync = lambda fd: None
while True:
    names = chance.sample([f"{number}" for number in range(6)], 3)
    try:
        before = [int(files.read(name)) for name in names]
        amounts = [chance.randrange(100), chance.randrange(100)]
        after = [before[0] + amounts[0], before[1] + amounts[1], before[2] - sum(amounts)]
        files.apply([
            FileChange(name, str(old).encode(), str(new).encode()) for name, old, new in zip(names, before, after)
        ])
        print("moved", flush=True)
    except (FilesystemError, ValueError):
        continue
"""


@contextmanager
def workers(root: Path, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that move amounts between the numbers in files, which keep their sum."""
    for number in range(6):
        (root / str(number)).write_text("1000")

    def start(seed: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", WORKER, str(root), str(seed)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    running = [start(seed) for seed in range(count)]
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.communicate()


def test_processes_that_are_killed_beside_each_other_lose_nothing(root: Path) -> None:
    chance = random.Random(1)
    for _ in range(4):
        with workers(root, 3) as processes:
            for process in processes:
                assert process.stdout is not None
                for _ in range(chance.randrange(1, 10)):
                    assert process.stdout.readline() == "moved\n"
                process.kill()
        files = HostFilesystem(root)
        files.begin_call()
        names = files.glob("*")
        assert (len(names), sum(int(files.read(name)) for name in names)) == (6, 6000)


class Neighbour:
    """Another program, which writes one number after the other to a file, and looks whether it stays."""

    def __init__(self, file: Path, replace: bool) -> None:
        self.file = file
        self.replace = replace
        self.lost: list[str] = []
        self.written = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Neighbour:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.written += 1
            if self.replace:
                spare = self.file.with_name("spare")
                spare.write_text(str(self.written))
                os.replace(spare, self.file)
            else:
                self.file.write_text(str(self.written))
            self._look()

    def _look(self) -> None:
        """The number must be there; what is to be replaced may be gone for a moment."""
        ends = time.monotonic() + 20
        while (now := self.file.read_text()).split(" ")[0] != str(self.written):
            if time.monotonic() > ends:
                self.lost.append(f"{self.written} became {now!r}")
                return
            time.sleep(random.random() / 2_000)


def applied(files: HostFilesystem, name: str) -> bool:
    """Append a word to a file, with another one, as a call would whose effects were approved."""
    text, other = files.read(name).split(" ")[0], files.read("other")
    if not text:
        # The other program is just writing it.
        return False
    changes = [
        FileChange(name, text.encode(), f"{text} applied".encode()),
        FileChange("other", other.encode(), f"{other}.".encode()),
    ]
    try:
        files.apply(changes)
    except StaleFilesError:
        assert files.read("other") == other
        return False
    return True


def rolled_back(files: HostFilesystem, name: str) -> bool:
    """Write two files in a call that fails."""
    other = files.read("other")
    with working_for(object()):
        mark = files.begin_call()
        try:
            text = files.read(name).split(" ")[0] or "0"
            files.apply([FileChange(name, text.encode(), f"{text} called".encode())])
        except StaleFilesError:
            return False
        files.write("other", "called")
        try:
            files.restore(mark)
        except SnapshotError as error:
            assert f"'{name}'" in str(error)
            return False
        finally:
            assert files.read("other") == other
    return True


@pytest.mark.parametrize("replace", [True, False], ids=["by another file", "in place"])
@pytest.mark.parametrize("act", [applied, rolled_back])
def test_what_another_program_writes_meanwhile_is_never_lost(
    root: Path, act: Callable[[HostFilesystem, str], bool], replace: bool
) -> None:
    (root / "a").write_text("0")
    (root / "other").write_text("")
    files = HostFilesystem(root)
    ended = {True: 0, False: 0}
    with Neighbour(root / "a", replace) as neighbour:
        ends = time.monotonic() + 1
        while time.monotonic() < ends:
            ended[act(files, "a")] += 1
    # Who has opened the file before it is exchanged, and writes after it was compared, is seen by no check.
    assert len(neighbour.lost) <= (0 if replace else 1)
    assert neighbour.written > 3
