"""Where the CLI is, and whether it is one that this adapter can drive."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from weakincentives.errors import PromptEvaluationError

OLDEST = "2.1.325"
_INSTALL = "pip install 'weakincentives[claude]'"


@dataclass(frozen=True, slots=True)
class Cli:
    """A Claude Code program of a known version."""

    path: Path
    version: str


def find_cli(cli_path: str | Path | None = None) -> Cli:
    """The CLI at this path, else the one in the SDK's wheel, else the one on PATH; raises if missing or too old."""
    if sys.platform == "win32":
        raise PromptEvaluationError(
            "The Claude Agent SDK adapter runs on Linux and macOS; on Windows use it under WSL.", phase="request"
        )
    path = Path(cli_path) if cli_path is not None else _bundled() or _on_path()
    if path is None or not path.is_file():
        where = "in the claude-agent-sdk wheel or on PATH" if path is None else f"at {path}"
        raise PromptEvaluationError(
            f"No Claude Code CLI {where}; {_INSTALL} brings one for common platforms, or pass cli_path=...",
            phase="request",
        )
    version = _version(path, path.stat().st_mtime_ns)
    if _numbers(version) < _numbers(OLDEST):
        raise PromptEvaluationError(
            f"The Claude Code CLI at {path} is version {version}, and this adapter needs {OLDEST} or newer; "
            f"{_INSTALL} -U brings one, or pass cli_path=...",
            phase="request",
        )
    return Cli(path, version)


def _bundled() -> Path | None:
    root = metadata.distribution("claude-agent-sdk").locate_file("claude_agent_sdk")
    path = Path(str(root)) / "_bundled" / "claude"
    return path if path.is_file() else None


def _on_path() -> Path | None:
    found = shutil.which("claude")
    return Path(found) if found else None


@functools.cache
def _version(path: Path, changed: int) -> str:
    noted = path.with_name("claude.version")
    if noted.is_file():
        return noted.read_text(encoding="utf-8").split()[0]
    try:
        printed = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PromptEvaluationError(f"The Claude Code CLI at {path} does not run: {error}", phase="request") from error
    found = re.search(r"\d+\.\d+\.\d+", printed)
    return found[0] if found else "0.0.0"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
