"""Work on files that is killed at every step: before and after each call that writes, flushes or renames something.

Run as a program of its own, because it forks: `python -m tests.filesystem.crashing FOLDER SCENARIO SEED`. It prints a
line for each violation, and the number of deaths at the end.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from weakincentives._base.fence import working_for
from weakincentives.filesystem import FileChange, FilesystemError, HostFilesystem, retreat
from weakincentives.filesystem.edits import edits_of

WRITING = ("write", "fsync", "rename", "replace", "link", "symlink", "unlink", "mkdir", "rmdir", "fchmod", "utime")
NAMES = ("a", "b", "c.txt", "ü")
LARGE = b"0123456789\n" * 3_000
Tree = dict[str, Any]


class Immortal:
    """Work inside `with immortal:` is not killed."""

    def __init__(self) -> None:
        self.entered = False

    def __enter__(self) -> None:
        self.entered = True

    def __exit__(self, *_: object) -> None:
        self.entered = False


immortal = Immortal()


def die_at(number: int, *, after: bool) -> None:
    """Die by SIGKILL before or after this call of those that write."""
    calls = 0
    lock = threading.Lock()

    def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            with lock:
                calls += not immortal.entered
                mine = 0 if immortal.entered else calls
            if mine == number and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = original(*arguments, **options)
            if mine == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call

    open_file = os.open

    def opening(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        opens = wrapped(open_file) if flags & os.O_CREAT else open_file
        return int(opens(path, flags, *arguments, **options))

    for name in WRITING:
        setattr(os, name, wrapped(getattr(os, name)))
    os.open = opening  # type: ignore[assignment]
    os.supports_dir_fd.add(opening)


def in_child(work: Callable[[], None], number: int = 0, *, after: bool = False) -> bool:
    """Do work in a process that dies at this call; True if it ended before."""
    child = os.fork()
    if child == 0:
        ended = 3
        try:
            die_at(number, after=after)
            work()
            ended = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(ended)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return False
    if os.WEXITSTATUS(status) != 0:
        raise SystemExit(f"the work failed: {status}")
    return True


def tree(root: Path) -> Tree:
    """Everything below a folder."""
    things: Tree = {}
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


def prepare(root: Path, chance: random.Random) -> None:
    """A folder with a few things of each kind."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for _ in range(chance.randrange(2, 8)):
        path = root.joinpath(*chance.choices(NAMES, k=chance.randrange(1, 3)))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            match chance.randrange(5):
                case 0:
                    path.mkdir(mode=0o750)
                case 1:
                    path.symlink_to(chance.choice(NAMES))
                case _:
                    path.write_bytes(chance.choice([b"", b"one\n", b"two\n", LARGE]))
                    path.chmod(chance.choice([0o644, 0o600, 0o755]))
        except OSError:
            continue


def change(files: HostFilesystem, chance: random.Random, steps: int) -> None:
    """A few random changes."""
    for _ in range(steps):
        path = "/".join(chance.choices(NAMES, k=chance.randrange(1, 4)))
        try:
            match chance.randrange(5):
                case 0:
                    files.delete(path, recursive=True)
                case 1:
                    files.mkdir(path, parents=True)
                case 2:
                    files.delete(path, recursive=True)
                    files.write(f"{path}/inner", b"x\n")
                case _:
                    files.write(path, chance.choice([b"three\n", b"", LARGE[::-1]]))
        except FilesystemError:
            continue


class Scenario:
    """Work that is killed: it begins with `start`, and the folder must be as before or as after it in the end."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.seed = seed
        prepare(root, random.Random(seed))
        self.before = tree(root)
        self.after = self.before

    def reset(self) -> None:
        prepare(self.root, random.Random(self.seed))

    def work(self) -> None:
        raise NotImplementedError

    def previewed(self, steps: int = 6) -> tuple[FileChange, ...]:
        """Changes, made in a branch."""
        branch = HostFilesystem(self.root).branch()
        with working_for(object()):
            mark = branch.begin_call()
            change(branch, random.Random(self.seed + 1), steps)
            return branch.changes_since(mark)


class Preview(Scenario):
    """Changes in a branch: nothing of them is ever in the folder."""

    def work(self) -> None:
        self.previewed(12)


class Application(Scenario):
    """Changes that are applied."""

    def __init__(self, root: Path, seed: int) -> None:
        super().__init__(root, seed)
        self.changes = self.previewed()
        HostFilesystem(root).apply(self.changes)
        self.after = tree(root)

    def work(self) -> None:
        HostFilesystem(self.root).apply(self.changes)


class Rollback(Scenario):
    """The rollback of a call that has failed: it is made, or not begun."""

    def __init__(self, root: Path, seed: int) -> None:
        super().__init__(root, seed)
        with working_for(object()):
            change(HostFilesystem(root), random.Random(seed + 1), 6)
        self.before, self.after = tree(root), self.before

    def work(self) -> None:
        files = HostFilesystem(self.root)
        with working_for(object()):
            with immortal:
                mark = files.begin_call()
                change(files, random.Random(self.seed + 1), 6)
            files.restore(mark)


class Rewind(Scenario):
    """Going back over what calls have written."""

    def __init__(self, root: Path, seed: int) -> None:
        super().__init__(root, seed)
        self.edits = self.make_edits()
        self.before, self.after = tree(root), self.before

    def make_edits(self) -> tuple[Any, ...]:
        files = HostFilesystem(self.root)
        with working_for(object()):
            mark = files.begin_call()
            change(files, random.Random(self.seed + 1), 6)
            return tuple(edits_of(files.nodes_since(mark)))

    def reset(self) -> None:
        super().reset()
        self.edits = self.make_edits()

    def work(self) -> None:
        files = HostFilesystem(self.root)
        retreat(self.edits, files.node).make(files)


class Program(Scenario):
    """A program in the folder, whose changes are kept."""

    def __init__(self, root: Path, seed: int) -> None:
        super().__init__(root, seed)
        self.work()
        self.after = tree(root)

    def files(self) -> HostFilesystem:
        return HostFilesystem(self.root, track_external=True, ignore=("c.txt",))

    def work(self) -> None:
        with self.files().programs("program") as run:
            self.spoil()
            run.keep()

    def spoil(self) -> None:
        """Change the folder as a program would, without the library."""
        chance = random.Random(self.seed + 1)
        for _ in range(6):
            path = self.root.joinpath(*chance.choices(("a", "b", "ü"), k=chance.randrange(1, 3)))
            try:
                match chance.randrange(4):
                    case 0:
                        shutil.rmtree(path)
                    case 1:
                        path.unlink()
                    case 2:
                        path.parent.mkdir(parents=True, exist_ok=True)
                        path.symlink_to("nowhere")
                    case _:
                        path.parent.mkdir(parents=True, exist_ok=True)
                        path.write_bytes(chance.choice([b"", b"four\n", LARGE]))
            except OSError:
                continue


class FailedProgram(Program):
    """A program in the folder that fails."""

    def work(self) -> None:
        with self.files().programs("program") as run:
            self.spoil()
            run.take_back()


class TriedProgram(Program):
    """A program for a branch: in the end, the folder is always as before."""

    def work(self) -> None:
        branch = self.files().branch()
        change(branch, random.Random(self.seed + 3), 4)
        with branch.programs("program") as run:
            self.spoil()
            run.keep()
        assert branch.programs_run == ("program",)


SCENARIOS: dict[str, type[Scenario]] = {
    "preview": Preview,
    "application": Application,
    "rollback": Rollback,
    "rewind": Rewind,
    "program": Program,
    "failed program": FailedProgram,
    "tried program": TriedProgram,
}


def violations(folder: Path, name: str, seed: int) -> Iterator[str]:
    """Kill the work at every call, and the recovery at a random one; yields what is wrong, and the deaths."""
    root, state = folder / "root", folder / "state"
    scenario = SCENARIOS[name](root, seed)
    chance = random.Random(seed + 2)
    deaths = 0
    for after in (False, True):
        number, ended = 0, False
        while not ended:
            number += 1
            scenario.reset()
            ended = in_child(scenario.work, number, after=after)
            deaths += not ended
            if name == "preview" and tree(root) != scenario.before:
                yield f"{name} {seed}: killed at {number}, and something is in the folder: {tree(root)}"
            while not in_child(lambda: opened(root), chance.randrange(1, 40), after=chance.random() < 0.5):
                deaths += 1
            in_child(lambda: opened(root))
            end = tree(root)
            if end not in (scenario.before, scenario.after) or (ended and end != scenario.after):
                yield f"{name} {seed}: killed at {number} {after=} {ended=}, and then {end}"
            # What this process itself has saved goes with the objects that have saved it.
            gc.collect()
            leftovers = [*state.rglob("journal-*"), *state.rglob("contents-*")]
            if leftovers:
                yield f"{name} {seed}: killed at {number}, and {leftovers} are left"
    yield f"{deaths} deaths"


def opened(root: Path) -> None:
    """Open the files, which puts back what was left behind."""
    HostFilesystem(root).begin_call()


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    place = Path(sys.argv[1])
    os.environ["WINK_STATE"] = str(place / "state")
    os.fsync = lambda fd: None

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise OSError("no guard")

    # Here, whoever opens the root puts everything back.
    subprocess.Popen = refuse  # type: ignore[assignment,misc]
    for line in violations(place, sys.argv[2], int(sys.argv[3])):
        print(line, flush=True)
