"""Finding the CLI, its version, and whether it picks up tools that appear while it runs."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from weakincentives.adapters.claude_agent_sdk.permissions import permissions
from weakincentives.errors import PromptEvaluationError

MIN_VERSION = "2.1.325"
_INSTALL = "pip install 'weakincentives[claude]'"


@dataclass(frozen=True, slots=True)
class Cli:
    """A Claude Code executable and its version."""

    path: Path
    version: str


_disproved: set[Cli] = set()


def find_cli(cli_path: str | Path | None = None) -> Cli:
    """The CLI at this path, or in the SDK's wheel, or on PATH; raises if there is none or it is too old."""
    if sys.platform == "win32":
        raise PromptEvaluationError(
            "The Claude Agent SDK adapter runs on Linux and macOS; on Windows, run it under WSL.", phase="request"
        )
    path = Path(cli_path) if cli_path is not None else _bundled() or _on_path()
    if path is None or not path.is_file():
        where = "in the claude-agent-sdk wheel or on PATH" if path is None else f"at {path}"
        raise PromptEvaluationError(
            f"No Claude Code CLI {where}; run {_INSTALL} to get one, or pass cli_path=...",
            phase="request",
        )
    version = _version(path, path.stat().st_mtime_ns)
    if _numbers(version) < _numbers(MIN_VERSION):
        raise PromptEvaluationError(
            f"The Claude Code CLI at {path} is version {version}, but this adapter needs {MIN_VERSION} or newer; "
            f"run {_INSTALL} -U, or pass cli_path=...",
            phase="request",
        )
    return Cli(path, version)


def follows_list_changes(cli: Cli) -> bool:
    """Whether the CLI lists the tools again when told that they changed; measured once per process."""
    return cli not in _disproved and _probe(cli)


def disprove(cli: Cli) -> None:
    """Remember that a CLI did not list the tools again."""
    _disproved.add(cli)


@functools.cache
def _probe(cli: Cli) -> bool:
    if cli.version == MIN_VERSION:
        return True
    from weakincentives.adapters.claude_agent_sdk.channel import ClaudeChannel
    from weakincentives.adapters.claude_agent_sdk.conversation import Settings

    channel = ClaudeChannel(Settings(cli=cli.path, options=permissions(())))
    try:
        return channel.follows_list_changes()
    finally:
        channel.close()


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
