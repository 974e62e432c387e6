"""A folder with an agent in it, and `wink` run in it as a person would."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from weakincentives.cli import main

AGENT = """
from dataclasses import dataclass
from weakincentives import MarkdownSection, Prompt, PromptTemplate, SectionVisibility, tool

@dataclass(frozen=True)
class Guest:
    name: str
    nights: int = 1

@dataclass(frozen=True)
class Hotel:
    name: str = "Seaview"
    stars: int | None = None

@tool
def book(room: str) -> str:
    "Book a room."
    return f"booked {room}"

welcome = MarkdownSection[Guest](key="welcome", title="Welcome", template="Greet ${name} for ${nights} nights.")
house = MarkdownSection[Hotel](
    key="house", title="House", template="This is ${name}.", summary="About the house.",
    visibility=SectionVisibility.SUMMARY, tools=[book],
)
template = PromptTemplate(ns="hotel", key="desk", sections=[welcome, house])
answer = 42

def prompt():
    return Prompt(template)
"""


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    returncode: int
    stdout: str
    stderr: str


class Wink:
    """Calls the program in one folder, with nothing of the caller's settings."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *words: str, stdin: str = "", **environment: str) -> Done:
        with self._inside(environment), captured(stdin) as (out, err):
            code = main(words)
        return Done(code, out.getvalue(), err.getvalue())

    def json(self, *words: str, **environment: str) -> Any:
        return json.loads(self(*words, "--json", **environment).stdout)

    def process(self, *command: str, **environment: str) -> Done:
        """Any command in a process of its own; `python` is this interpreter."""
        words = [sys.executable if word == "python" else word for word in command]
        done = subprocess.run(
            words, cwd=self.folder, env=self._environment(environment), capture_output=True, text=True, check=False
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def _environment(self, added: dict[str, str]) -> dict[str, str]:
        return {**plain_environment(self.folder), **added}

    @contextmanager
    def _inside(self, added: dict[str, str]) -> Iterator[None]:
        environment, path, modules = dict(os.environ), list(sys.path), set(sys.modules)
        wanted = self._environment(added)
        os.environ.clear()
        os.environ.update(wanted)
        try:
            with chdir(self.folder):
                yield
        finally:
            os.environ.clear()
            os.environ.update(environment)
            sys.path[:] = path
            for name in set(sys.modules) - modules:
                if str(getattr(sys.modules[name], "__file__", "")).startswith(str(self.folder)):
                    del sys.modules[name]
            shutil.rmtree(self.folder / "__pycache__", ignore_errors=True)


def plain_environment(folder: Path) -> dict[str, str]:
    """The variables of this process without settings of `wink`, and with the folder as home."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WINK_", "XDG_", "NO_COLOR"))}
    return {**kept, "HOME": str(folder)}


@contextmanager
def captured(stdin: str) -> Iterator[tuple[StringIO, StringIO]]:
    before, sys.stdin = sys.stdin, StringIO(stdin)
    try:
        with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
            yield out, err
    finally:
        sys.stdin = before


@pytest.fixture
def wink(tmp_path: Path) -> Wink:
    (tmp_path / "desk.py").write_text(AGENT, encoding="utf-8")
    return Wink(tmp_path)
