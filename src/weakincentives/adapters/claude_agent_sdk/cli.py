"""The CLI: where it is, whether it picks up tools that appear, which tools of its own it may use, and its options."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from weakincentives.adapters.claude_agent_sdk.wire import PREFIX, SERVER_NAME
from weakincentives.errors import PromptEvaluationError

MIN_VERSION = "2.1.325"
_INSTALL = "pip install 'weakincentives[claude]'"

# Reading is governed by rules on Read, writing by rules on Edit, whichever tool does it.
_FILE_RULES = {
    "Read": "Read(./**)",
    "Glob": "Read(./**)",
    "Grep": "Read(./**)",
    "Edit": "Edit(./**)",
    "Write": "Edit(./**)",
    "NotebookEdit": "Edit(./**)",
}

_SET_BY_THE_ADAPTER = {
    "allowed_tools": "allowed_cli_tools=",
    "cli_path": "cli_path=",
    "cwd": "a HostFilesystem in the prompt's resources",
    "env": "env=",
    "hooks": "hooks=",
    "include_partial_messages": "nothing, it is always on",
    "mcp_servers": "tools in the prompt's sections",
    "model": "the first argument",
    "output_format": "PromptTemplate[Output]",
    "setting_sources": "setting_sources=",
    "strict_mcp_config": "nothing, it is always on",
    "system_prompt": "the prompt itself",
    "tools": "allowed_cli_tools=",
}


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
    path = Path(cli_path) if cli_path is not None else _bundled()
    if path is None and (found := shutil.which("claude")):
        path = Path(found)
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


def permissions(cli_tools: Sequence[str]) -> dict[str, Any]:
    """The SDK's options that allow these tools of the CLI and all of ours.

    A file tool given by its plain name is confined to the workspace. A rule such as `Bash(git log:*)` is passed on.
    """
    tools = dict.fromkeys(tool.partition("(")[0] for tool in cli_tools)
    rules = dict.fromkeys(_FILE_RULES.get(tool, tool) for tool in cli_tools)
    return {
        "tools": list(tools),
        "allowed_tools": [f"mcp__{SERVER_NAME}", *rules],
        "permission_mode": "dontAsk",
    }


def check_options(options: Mapping[str, Any]) -> None:
    """Reject options that the adapter sets itself, and say what to use instead."""
    for name in options:
        if name in _SET_BY_THE_ADAPTER:
            raise ValueError(f"sdk_options may not set {name!r}; use {_SET_BY_THE_ADAPTER[name]}")


def require_names(given: Iterable[str], where: str, known: Sequence[str] = ()) -> tuple[str, ...]:
    """The names as a tuple; rejects a single string, and names that are not in `known`."""
    if isinstance(given, str):
        raise ValueError(f"{where} must be a tuple of names, got the string {given!r}; write ({given!r},)")
    found = tuple(given)
    for name in found:
        if known and name not in known:
            raise ValueError(f"{where} may contain {', '.join(known)}, got {name!r}")
    return found


def hooks_for_cli_tools(hooks: Mapping[Any, Sequence[Any]]) -> dict[Any, list[Any]]:
    """The hooks, with `PreToolUse` skipped for our tools: our own loop has already started such a call."""
    return {
        event: [replace(matcher, hooks=[_skipping_our_tools(hook) for hook in matcher.hooks]) for matcher in matchers]
        if event == "PreToolUse"
        else list(matchers)
        for event, matchers in hooks.items()
    }


def _skipping_our_tools(hook: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def for_cli_tools(data: Mapping[str, Any], call_id: str | None, context: Any) -> Any:
        if str(data.get("tool_name", "")).startswith(PREFIX):
            return {}
        return await hook(data, call_id, context)

    return for_cli_tools
