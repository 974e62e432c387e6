"""Processes that have inherited a mark in their environment, also those that have left their group."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

PAUSE = 0.005


def marked_processes(variable: str, mark: str) -> list[int]:
    """The processes of this user that have `variable=mark` in their environment, wherever /proc tells that."""
    pids: list[int] = []
    entry = f"{variable}={mark}".encode()
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    for name in names:
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                if entry in file.read().split(b"\0"):
                    pids.append(int(name))
    return pids


def kill_marked(variable: str, mark: str, seconds: float) -> bool:
    """Kill these processes, and what they start meanwhile; False if some are left when the time is over."""
    ends = time.monotonic() + seconds
    while pids := marked_processes(variable, mark):
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > ends:
            return False
        time.sleep(PAUSE)
    return True
