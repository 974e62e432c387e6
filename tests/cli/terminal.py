"""A real terminal of a given width, with `wink` running in it."""

from __future__ import annotations

import codecs
import os
import re
import select
import struct
from pathlib import Path

import pytest

from tests import warm
from tests.cli.conftest import plain_environment

pty = pytest.importorskip("pty", reason="needs a POSIX terminal")
fcntl = pytest.importorskip("fcntl", reason="needs a POSIX terminal")
termios = pytest.importorskip("termios", reason="needs a POSIX terminal")


def settled(shown: str) -> str:
    """The text without the line that says how long the wait has been, which a busy machine may show."""
    wait = r"(?:reading…|model   working…|\d+ of \d+ cases \[[#.]+\]) \d+ s"
    return re.sub(rf"\r\x1b\[2K(?:{wait})?", "", re.sub(rf"\x1b\[2m({wait})\x1b\[0m", r"\1", shown))


class Terminal:
    """Runs `wink` with these words; `read` waits for text, `type` sends a line."""

    def __init__(self, folder: Path, *words: str, columns: int = 80, **environment: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        variables = {**plain_environment(folder), "TERM": "xterm-256color", **environment}
        self._process = warm.start(
            *("-m", "weakincentives.cli", *words),
            cwd=folder,
            env={name: value for name, value in variables.items() if name not in ("COLUMNS", "LINES")},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            terminal=True,
            preload=["weakincentives.cli"],
        )
        os.close(theirs)
        self._seen = ""
        # A read may end within a character.
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)

    def read(self, until: str) -> str:
        """What appeared since the last call, up to and with this text."""
        while until not in self._seen:
            more = self._more()
            assert more, f"ended before {until!r}; it showed {self._seen!r}"
            self._seen += more
        end = self._seen.index(until) + len(until)
        shown, self._seen = self._seen[:end], self._seen[end:]
        return shown

    def type(self, line: str) -> None:
        os.write(self._ours, line.encode())

    def press(self, key: str, until: str) -> str:
        """Press a key until this text appears: a signal sent before readline waits for input is lost."""
        for _ in range(20):
            self.type(key)
            while until not in self._seen and select.select([self._ours], [], [], 3)[0]:
                more = self._more()
                assert more, f"ended before {until!r}; it showed {self._seen!r}"
                self._seen += more
            if until in self._seen:
                break
        return self.read(until)

    def rest(self) -> tuple[int, str]:
        """The exit code, and all that was still shown."""
        while more := self._more():
            self._seen += more
        return self._process.wait(), self._seen

    def _more(self) -> str:
        ready, _, _ = select.select([self._ours], [], [], 60)
        assert ready, f"nothing happened for a minute; it showed {self._seen!r}"
        try:
            read = os.read(self._ours, 65536)
        except OSError:  # The program has ended.
            return ""
        return (self._decode(read).replace("\r\n", "\n") or self._more()) if read else ""
