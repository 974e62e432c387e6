"""Make a starter project: an agent with sections and a tool, a test for it, and the commands to try."""

from __future__ import annotations

import argparse
import re
from importlib.resources import files
from pathlib import Path

from weakincentives.cli.output import UsageError, print_line, progress

STARTER = files("weakincentives.cli") / "starter"
FILES = ("agent.py", "test_agent.py", "README.md", "pyproject.toml")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the folder to make, which is also the project's name")


def run(arguments: argparse.Namespace) -> int:
    folder = Path(arguments.name)
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")
    if not name:
        raise UsageError(f"NAME must have letters or digits, got {arguments.name!r}")
    taken = [file for file in FILES if (folder / file).exists()]
    if taken:
        raise UsageError(f"{folder / taken[0]} exists already; choose another NAME")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in FILES:
            text = (STARTER / f"{file}.txt").read_text(encoding="utf-8")
            (folder / file).write_text(text.replace("NAME", name), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror}") from error
    progress(f"made {folder} with {', '.join(FILES)}; next:")
    print_line(f"cd {folder}\nwink chat agent:template")
    return 0
