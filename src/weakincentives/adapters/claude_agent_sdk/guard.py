"""The process between us and the CLI: it starts the CLI in a clean environment and outlives neither of us.

It runs as a separate script (`python -I -S guard.py plan.json ...`), so it imports nothing from this package. The named
pipe in the plan is the lifeline: our process holds its writing end. When that closes, because a run was abandoned
(announced by a byte) or our process died, the guard kills the whole process tree below it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
from collections.abc import Callable

_SUBREAPER, _PARENT_DEATH_SIGNAL = 36, 1


def main(plan_path: str, arguments: list[str]) -> int:
    """Run the CLI until it ends or the lifeline closes; returns its exit status."""
    with open(plan_path, encoding="utf-8") as file:
        plan = json.load(file)
    os.unlink(plan_path)
    parent: int = plan["parent"]
    env: dict[str, str] = {name: os.environ[name] for name in plan["keep"] if name in os.environ} | plan["env"]
    lifeline = os.open(plan["lifeline"], os.O_RDONLY | os.O_NONBLOCK)
    with contextlib.suppress(PermissionError):
        os.setsid()
    control = _process_control()
    control(_SUBREAPER, 1)
    waker = _wake_on_signals()
    child = _start(plan["cli"], arguments, env, control)
    _release_standard_streams()
    status: int | None = None
    orphaned = False
    while status is None and not orphaned:
        ready, _, _ = select.select([lifeline, waker], [], [], 1.0)
        # A killed process closes its files before it stops being our parent.
        orphaned = os.getppid() != parent or (lifeline in ready and not os.read(lifeline, 1))
        if lifeline in ready or (waker in ready and _asked_to_stop(waker)):
            break
        status = _reap(child)
    _kill_tree(child)
    if orphaned or os.getppid() != parent:
        import shutil

        shutil.rmtree(plan["home"], ignore_errors=True)
    return 128 + signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status)


def _start(cli: str, arguments: list[str], env: dict[str, str], control: Callable[[int, int], None]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.setpgid(0, 0)
        control(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        os.execve(cli, [cli, *arguments], env)
    except OSError as error:
        os.write(2, f"cannot start {cli}: {error}\n".encode())
    os._exit(127)


def _process_control() -> Callable[[int, int], None]:
    if not sys.platform.startswith("linux"):
        return lambda option, value: None
    import ctypes

    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def control(option: int, value: int) -> None:
        prctl(option, ctypes.c_ulong(value), 0, 0, 0)

    return control


def _wake_on_signals() -> int:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda number, frame: None)
    return reader


def _asked_to_stop(waker: int) -> bool:
    return any(number != signal.SIGCHLD for number in os.read(waker, 512))


def _release_standard_streams() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)


def _reap(child: int) -> int | None:
    status: int | None = None
    while True:
        try:
            pid, ended = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == 0:
            return status
        if pid == child:
            status = ended


def _kill_tree(child: int) -> None:
    """Kill what is left. As the subreaper, we adopt every orphan, so once we have no child, nothing is left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    while True:
        for pid in _children() if os.path.isdir("/proc") else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _parent_of(pid) == os.getpid()]


def _parent_of(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
