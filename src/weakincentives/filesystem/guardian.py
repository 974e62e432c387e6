"""Putting back at once what a process left behind that died while its programs ran."""

from __future__ import annotations

import time

import msgspec

from weakincentives.filesystem.host import HostFilesystem
from weakincentives.filesystem.journals import JournalFolder
from weakincentives.filesystem.protocol import FilesystemError

ATTEMPTS = 100
PAUSE = 0.05


def put_back(root: str) -> None:
    """Open a root, which puts back what was left, and leave reports on that for whoever opens it next.

    It may take a moment until the locks of a process that dies are gone.
    """
    journals = JournalFolder(root)
    for _ in range(ATTEMPTS):
        try:
            files = HostFilesystem(root)
        except FilesystemError:
            files = None
        for recovery in () if files is None else files.recoveries:
            journals.leave_report(msgspec.json.encode(recovery))
        if files is not None and not journals.has_leftovers():
            return
        del files
        time.sleep(PAUSE)
