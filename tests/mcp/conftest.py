"""MCP servers from PyPI, each generation of the protocol in a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from weakincentives.mcp import StdioServer

FOLDER = Path(__file__).parent / ".servers"
PACKAGES = {
    "2026": ("mcp-server-time==2026.10.19", "mcp-server-git==2026.10.19"),
    # It fails on mcp 2, though it does not say so.
    "2025": ("mcp-server-sqlite==2025.4.25", "mcp==1.30.0"),
}


def installed(generation: str) -> Path:
    """The folder with the servers of one generation; they must not share our environment."""
    wanted, folder = PACKAGES[generation], FOLDER / generation
    done = folder / "installed.txt"
    if not done.exists() or done.read_text() != " ".join(wanted):
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", str(folder), *wanted]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            pytest.skip(f"needs MCP servers of PyPI, and pip failed: {result.stderr.strip()[-300:]}")
        done.write_text(" ".join(wanted))
    return folder


def pypi_server(generation: str, module: str, *words: str) -> StdioServer:
    env = {"PYTHONPATH": str(installed(generation)), "PATH": os.environ.get("PATH", os.defpath)}
    start = f"import sys; from {module} import main; sys.argv[1:] = {list(words)!r}; main()"
    return StdioServer(sys.executable, ["-c", start], env, start_timeout=120)
