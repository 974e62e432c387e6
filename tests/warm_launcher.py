"""Starts a program in a fork of `tests.warm` with the streams of this process, and ends as it does.

Without a server of forks, it becomes an interpreter that runs the program.
"""

import os
import signal
import socket
import sys

address, preload, *words = sys.argv[1:]


def quoted(text: str) -> str:
    """The text in JSON, without importing what does that."""
    escaped = "".join(char if char >= " " and char not in '"\\' else f"\\u{ord(char):04x}" for char in text)
    return f'"{escaped}"'


def listed(texts: list[str]) -> str:
    return f"[{', '.join(map(quoted, texts))}]"


variables = ", ".join(f"{quoted(name)}: {quoted(value)}" for name, value in os.environ.items())
modules = listed(preload.split(",") if preload else [])
request = (
    f'{{"words": {listed(words)}, "preload": {modules}, "cwd": {quoted(os.getcwd())}, "env": {{{variables}}}, '
    '"terminal": false}\n'
)
connection = socket.socket(socket.AF_UNIX)
try:
    connection.connect(address)
except OSError:
    os.execv(sys.executable, [sys.executable, *words])
socket.send_fds(connection, [request.encode("utf-8", "surrogateescape")], [0, 1, 2])
replies = connection.makefile()
child = int(replies.readline())
# The streams are those of the program alone: it closes them when it ends, or as it likes.
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda number, frame: os.kill(child, number))
with open(os.devnull, "r+b") as nothing:
    for stream in (0, 1, 2):
        os.dup2(nothing.fileno(), stream)
status = int(replies.readline() or -signal.SIGKILL)
if status < 0:
    signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
