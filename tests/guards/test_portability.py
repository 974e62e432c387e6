"""Without what only POSIX systems have, the core can be imported and used, and the rest says what it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Python's own modules are imported before, because they know which system they are on.
WITHOUT_POSIX = """
import asyncio, http.server, importlib, logging.handlers, multiprocessing, os, pkgutil, signal, socket, subprocess, sys
import sqlite3, ssl, tempfile
from tests.extras import EXTRAS, hide_extras

hide_extras()
for module in "_posixsubprocess curses fcntl grp pty pwd readline resource syslog termios tty".split():
    sys.modules[module] = None
ONLY_POSIX = {
    os: "O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK WNOHANG chown fchmod fork forkpty getegid geteuid "
    "getgid getloadavg getpgid getuid killpg mkfifo openpty register_at_fork sched_getaffinity setpgid "
    "setsid sysconf uname wait4",
    signal: "SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 "
    "SIGWINCH alarm pthread_sigmask setitimer sigwait",
    socket: "AF_UNIX",
}
for module, names in ONLY_POSIX.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
os.supports_dir_fd = set()
"""

IMPORT = """
import weakincentives

for module in pkgutil.walk_packages(weakincentives.__path__, "weakincentives."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            assert error.name.partition(".")[0] in EXTRAS, f"{module.name} needs {error.name}"
"""

USE = """
from weakincentives import MarkdownSection, Prompt, Session, tool
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.cli import main
from weakincentives.filesystem import FilesystemError, HostFilesystem

@tool
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

prompt = Prompt(ns="t", key="t", sections=[MarkdownSection(key="a", title="A", template="Add.", tools=[add])])
session = Session()
print(ScriptedAdapter([call("add", a=1, b=2), "3"]).evaluate(prompt, session=session).text)
main(["--version"])
try:
    HostFilesystem(".")
except FilesystemError as error:
    print(error)
"""


def run_without_posix(code: str) -> list[str]:
    command = [sys.executable, "-c", WITHOUT_POSIX + code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_every_module_can_be_imported_on_a_system_that_is_not_posix() -> None:
    assert run_without_posix(IMPORT) == []


def test_a_prompt_runs_on_a_system_that_is_not_posix_and_host_files_say_what_they_need() -> None:
    answer, version, refusal = run_without_posix(USE)
    assert answer == "3" and version.startswith("wink ")
    assert refusal == "HostFilesystem needs a POSIX system; use InMemoryFilesystem here"
