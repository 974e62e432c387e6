"""MCP servers from PyPI, each generation of the protocol in a folder of its own."""

from __future__ import annotations

import os
import sys

import pytest

from tests.packages import SERVERS, is_installed
from weakincentives.mcp import StdioServer


def pypi_server(generation: str, module: str, *words: str) -> StdioServer:
    if not is_installed(generation):
        pytest.skip("needs MCP servers of PyPI: python -m tests.packages")
    env = {"PYTHONPATH": str(SERVERS / generation), "PATH": os.environ.get("PATH", os.defpath)}
    start = f"import sys; from {module} import main; sys.argv[1:] = {list(words)!r}; main()"
    return StdioServer(sys.executable, ["-c", start], env, start_timeout=120)
