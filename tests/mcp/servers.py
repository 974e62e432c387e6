"""MCP servers that run as programs: our own in Python, which start at once, and those of PyPI."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import warm
from tests.packages import SERVERS, is_installed
from weakincentives.mcp import StdioServer

if TYPE_CHECKING:
    from mcp import StdioServerParameters

# Imported once for all servers.
PRELOAD = ("mcp.server", "mcp.server.stdio", "weakincentives.cli", "weakincentives.mcp")


def python_server(*words: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> StdioServer:
    """The server that `python *words` starts."""
    program, *arguments = warm.command(*words, preload=PRELOAD)
    return StdioServer(program, arguments, env, cwd, start_timeout=120)


def python_parameters(*words: str, cwd: Path) -> StdioServerParameters:
    """The same server, for a client of the MCP package."""
    from mcp import StdioServerParameters

    program, *arguments = warm.command(*words, preload=PRELOAD)
    return StdioServerParameters(command=program, args=arguments, cwd=cwd)


def pypi_server(generation: str, module: str, *words: str) -> StdioServer:
    """A server of PyPI, each generation of the protocol in a folder of its own."""
    if not is_installed(generation):
        pytest.skip("needs MCP servers of PyPI: python -m tests.packages")
    env = {"PYTHONPATH": str(SERVERS / generation), "PATH": os.environ.get("PATH", os.defpath)}
    start = f"import sys; from {module} import main; sys.argv[1:] = {list(words)!r}; main()"
    return StdioServer(sys.executable, ["-c", start], env, start_timeout=120)
