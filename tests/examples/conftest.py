"""`npx` and `uvx` for the examples: they run what the set-up has installed, without the network."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from tests.npm_support import NpmModules
from tests.packages import SERVERS, is_installed

START = "import sys; from {module} import main; sys.exit(main())"


@pytest.fixture
def mcp_launchers(npm_modules: NpmModules, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launchers on the path that start the installed server of the same name."""
    if not all(is_installed(generation) for generation in ("2025", "2026")):
        pytest.skip("needs MCP servers of PyPI: python -m tests.packages")
    modules = npm_modules.folder / "node_modules"
    npm = {
        f"@modelcontextprotocol/server-{name}": [
            npm_modules.node,
            str(modules / "@modelcontextprotocol" / f"server-{name}" / "dist" / "index.js"),
        ]
        for name in ("filesystem", "memory")
    }
    generations = {"git": "2026", "time": "2026", "sqlite": "2025"}
    pypi = {
        f"mcp-server-{name}": [
            "env",
            f"PYTHONPATH={SERVERS / generation}",
            sys.executable,
            "-c",
            START.format(module=f"mcp_server_{name}"),
        ]
        for name, generation in generations.items()
    }
    folder = tmp_path / "launchers"
    folder.mkdir()
    for name, known in (("npx", npm), ("uvx", pypi)):
        cases = "\n".join(
            f'    {server}[@=]*) shift; exec {shlex.join(command)} "$@" ;;' for server, command in known.items()
        )
        script = f'#!/bin/sh\nwhile [ $# -gt 0 ]; do\n  case "$1" in\n{cases}\n  esac\n  shift\ndone\nexit 64\n'
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
