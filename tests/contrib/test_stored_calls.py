"""Calls of the library's own tools wait in one process, and are read in another that has only declared the tools."""

from __future__ import annotations

import subprocess
import sys

import pytest

from weakincentives import MarkdownSection, Prompt, ScriptedAdapter, Session, call, run
from weakincentives.contrib.commands import CommandSection
from weakincentives.contrib.memory import MemorySection
from weakincentives.contrib.tools import VfsToolsSection
from weakincentives.filesystem import HostFilesystem, InMemoryFilesystem

READ = """
import sys
from weakincentives import Session, Snapshot
from weakincentives.contrib.commands import CommandSection
from weakincentives.contrib.memory import MemorySection
from weakincentives.contrib.tools import VfsToolsSection
from weakincentives.filesystem import HostFilesystem, InMemoryFilesystem
from weakincentives.runtime import PendingCall
DECLARED
session = Session()
session.restore(Snapshot.from_json(sys.stdin.read()))
(pending,) = session[PendingCall].all()
print(pending.params)
"""
