"""A temporary home for one run of the CLI: its files, its environment, and the lifeline that ends it.

It holds none of the user's own configuration, and nothing the CLI writes there outlives the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from weakincentives.adapters.claude_agent_sdk import guard

CREDENTIALS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "CLAUDE_CODE_OAUTH_TOKEN")
NETWORK = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "NODE_EXTRA_CA_CERTS")

_SET_BY_THE_SDK = (
    "CLAUDE_AGENT_SDK_VERSION",
    "CLAUDE_CODE_ENTRYPOINT",
    "CLAUDE_CODE_MAX_OUTPUT_TOKENS",
    "CLAUDE_CODE_SDK_READS_SESSION_STATE",
)

_QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_AUTOUPDATER": "1",
}

# Keep the CLI from hiding our tools behind a search, moving them to the background or timing them out.
_PLAIN_TOOLS = {
    "ENABLE_TOOL_SEARCH": "false",
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    "CLAUDE_CODE_DISABLE_MCP_TASK_BACKGROUND": "1",
    "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1",
    "MCP_CONNECTION_NONBLOCKING": "false",
    "MCP_TOOL_TIMEOUT": "86400000",
    "MAX_MCP_OUTPUT_TOKENS": "1000000",
    "CLAUDE_CODE_MAX_MCP_DESCRIPTION_LENGTH": "16384",
}

# Return a wrong answer to our loop at once, which asks for a correction itself.
_ONE_ATTEMPT = {"MAX_STRUCTURED_OUTPUT_RETRIES": "1"}

_NO_MEMORY = {"CLAUDE_CODE_DISABLE_CLAUDE_MDS": "1", "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1"}


class Home:
    """The folder of one run, with the script that starts the CLI; `remove` stops the CLI and deletes the folder."""

    def __init__(self, *, cli: Path, env: Mapping[str, str], own_home: bool = False) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="wink-claude-"))
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
            "env": {"LANG": "C.UTF-8", **places, **kept, **_QUIET, **_PLAIN_TOOLS, **_ONE_ATTEMPT, **env},
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
        """Close the lifeline: everything that still runs below the guard is killed."""
        if self._lifeline >= 0:
            # A word of goodbye tells the guard that we live on, and remove the home ourselves.
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
    found = {name: os.environ[name] for name in (*CREDENTIALS, *NETWORK) if name in os.environ}
    if api_key is not None:
        for name in CREDENTIALS[:2] + CREDENTIALS[3:]:
            found.pop(name, None)
        found["ANTHROPIC_API_KEY"] = api_key
    if base_url is not None:
        found["ANTHROPIC_BASE_URL"] = base_url
    return found
