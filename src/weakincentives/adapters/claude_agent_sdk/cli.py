"""Finds the CLI, sets which built-in tools and options it may use, and creates a temporary home for each run.

A home holds none of the user's own configuration, and nothing the CLI writes there outlives the run.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from weakincentives.adapters.claude_agent_sdk import guard
from weakincentives.adapters.claude_agent_sdk.wire import PREFIX, SERVER_NAME
from weakincentives.errors import PromptEvaluationError
from weakincentives.runtime import Compaction

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

KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN")
NETWORK = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "NODE_EXTRA_CA_CERTS")

_SET_BY_THE_SDK = (
    "CLAUDE_AGENT_SDK_VERSION",
    "CLAUDE_CODE_ENTRYPOINT",
    "CLAUDE_CODE_MAX_OUTPUT_TOKENS",
    "CLAUDE_CODE_SDK_READS_SESSION_STATE",
)

_ENVIRONMENT = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_AUTOUPDATER": "1",
    # Keep the CLI from hiding our tools behind a search, moving them to the background or timing them out.
    "ENABLE_TOOL_SEARCH": "false",
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    "CLAUDE_CODE_DISABLE_MCP_TASK_BACKGROUND": "1",
    "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1",
    "MCP_CONNECTION_NONBLOCKING": "false",
    "MCP_TOOL_TIMEOUT": "86400000",
    "MAX_MCP_OUTPUT_TOKENS": "1000000",
    "CLAUDE_CODE_MAX_MCP_DESCRIPTION_LENGTH": "16384",
    # Return an invalid answer to our loop right away; the loop asks for the correction itself.
    "MAX_STRUCTURED_OUTPUT_RETRIES": "1",
}
_NO_MEMORY = {"CLAUDE_CODE_DISABLE_CLAUDE_MDS": "1", "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1"}


@dataclass(frozen=True, slots=True)
class Cli:
    """A Claude Code executable and its version."""

    path: Path
    version: str


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


def compaction_variables(compaction: Compaction | None) -> dict[str, str]:
    """The CLI's own settings for when it compacts a conversation; it chooses what, and which model summarizes."""
    if compaction is None:
        return {}
    window = {} if compaction.window is None else {"CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(compaction.window)}
    return {"CLAUDE_AUTOCOMPACT_PCT_OVERRIDE": str(max(1, round(100 * compaction.at))), **window}


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


def approval_rules(given: Mapping[str, Any], cli_tools: Sequence[str]) -> dict[str, Any]:
    """The approval rules for the CLI's own tools, by name; rejects what cannot be kept."""
    if not isinstance(given, Mapping):
        raise ValueError(f"cli_tool_approval must map names of tools to 'call' or a function, got {given!r}")
    allowed = list(dict.fromkeys(tool.partition("(")[0] for tool in cli_tools))
    for name, rule in given.items():
        if name not in allowed:
            listed = ", ".join(allowed) or "none"
            raise ValueError(f"cli_tool_approval names {name!r}, which is not in allowed_cli_tools: {listed}")
        if rule == "effects":
            raise ValueError(
                f"cli_tool_approval of {name!r} may not be 'effects': the CLI runs its own tools outside of our "
                "transactions, so there is nothing to show and take back; use 'call', or offer a tool of your own"
            )
        if rule != "call" and (isinstance(rule, type) or not callable(rule)):
            raise ValueError(f"cli_tool_approval of {name!r} must be 'call' or a function of the input, got {rule!r}")
    return dict(given)


def hooks_for_cli_tools(hooks: Mapping[Any, Sequence[Any]]) -> dict[Any, list[Any]]:
    """The hooks, with `PreToolUse` skipped for our tools: our own loop has already started such a call."""
    return {
        event: [replace(matcher, hooks=[_skipping_our_tools(hook) for hook in matcher.hooks]) for matcher in matchers]
        if event == "PreToolUse"
        else list(matchers)
        for event, matchers in hooks.items()
    }


class Home:
    """The folder of one run, with the script that starts the CLI; `remove` stops the CLI and deletes the folder."""

    def __init__(self, *, cli: Path, env: Mapping[str, str], own_home: bool = False) -> None:
        self.path, self._lifeline = Path(tempfile.mkdtemp(prefix="wink-claude-")), -1
        try:
            self._fill(cli, env, own_home)
        except BaseException:
            self.remove()
            raise

    def _fill(self, cli: Path, env: Mapping[str, str], own_home: bool) -> None:
        self.workspace = self._folder("workspace")
        self.launcher = self.path / "claude"
        self._lifeline = self._open_lifeline()
        temporary = str(self._folder("tmp"))
        places = {"TMPDIR": temporary, "CLAUDE_CODE_TMPDIR": temporary, "PATH": os.environ.get("PATH", os.defpath)}
        if own_home:
            kept = {name: os.environ[name] for name in ("HOME", "CLAUDE_CONFIG_DIR") if name in os.environ}
        else:
            kept = {"HOME": str(self._folder("home")), **_NO_MEMORY}
        plan = {
            "parent": os.getpid(),
            "home": str(self.path),
            "lifeline": str(self.path / "lifeline"),
            "cli": str(cli),
            "keep": _SET_BY_THE_SDK,
            "env": {"LANG": "C.UTF-8", **places, **kept, **_ENVIRONMENT, **env},
        }
        plan_path = self.write("plan.json", json.dumps(plan))
        command = [sys.executable, "-I", "-S", guard.__file__, str(plan_path)]
        self.launcher.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n', encoding="utf-8")
        self.launcher.chmod(0o700)

    def write(self, name: str, text: str) -> Path:
        """Write a file for the CLI that only this user can read."""
        path = self.path / name
        path.write_text(text, encoding="utf-8")
        return path

    def cut(self) -> None:
        """Close the lifeline: every process still running under the guard is killed."""
        if self._lifeline >= 0:
            # This byte tells the guard that our process is still alive and will remove the home.
            with contextlib.suppress(BrokenPipeError):
                os.write(self._lifeline, b".")
            os.close(self._lifeline)
            self._lifeline = -1

    def remove(self) -> None:
        self.cut()
        shutil.rmtree(self.path, ignore_errors=True)

    def _folder(self, name: str) -> Path:
        path = self.path / name
        path.mkdir()
        return path

    def _open_lifeline(self) -> int:
        path = self.path / "lifeline"
        os.mkfifo(path, 0o600)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with contextlib.closing(os.fdopen(reader, "rb", buffering=0)):
            return os.open(path, os.O_WRONLY | os.O_NONBLOCK)


def credentials(api_key: str | None, base_url: str | None) -> dict[str, str]:
    """The credentials for the service: our arguments, or else the SDK's environment variables."""
    found = {name: os.environ[name] for name in (*KEYS, "ANTHROPIC_BASE_URL", *NETWORK) if name in os.environ}
    if api_key is not None:
        for name in KEYS:
            found.pop(name, None)
        found["ANTHROPIC_API_KEY"] = api_key
    if base_url is not None:
        found["ANTHROPIC_BASE_URL"] = base_url
    return found


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
        with tempfile.TemporaryDirectory(prefix="wink-claude-") as home:
            env = {"LANG": "C.UTF-8", "PATH": os.environ.get("PATH", os.defpath), "HOME": home}
            command = [str(path), "--version"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, env=env)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PromptEvaluationError(f"The Claude Code CLI at {path} does not run: {error}", phase="request") from error
    found = re.search(r"\d+\.\d+\.\d+", done.stdout)
    return found[0] if found else "0.0.0"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _skipping_our_tools(hook: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def for_cli_tools(data: Mapping[str, Any], call_id: str | None, context: Any) -> Any:
        if str(data.get("tool_name", "")).startswith(PREFIX):
            return {}
        return await hook(data, call_id, context)

    return for_cli_tools
