"""Claude Code, the real command line, as the host of a served template; its model is a script."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import claude_agent_sdk as sdk
import pytest
import uvicorn

from tests import warm
from tests.mcp.desk import template
from tests.mcp.servers import PRELOAD
from tests.servers.claude_cli import CliServer, call, say
from weakincentives.mcp import serve

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["stdio", "http"])
def served(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "stdio":
        words = ["-m", "weakincentives.cli", "mcp", "serve", "tests.mcp.desk:template"]
        program, *arguments = warm.command(*words, preload=PRELOAD)
        yield {"type": "stdio", "command": program, "args": arguments, "env": {"PYTHONPATH": str(ROOT)}}
        return
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(serve(template).app, log_config=None, timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield {"type": "http", "url": f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"}
        server.should_exit = True
        thread.join()


def ask(api: CliServer, served: Any, home: Path, **env: str) -> None:
    options = sdk.ClaudeAgentOptions(
        mcp_servers={"wink": served},
        strict_mcp_config=True,
        setting_sources=[],
        allowed_tools=["mcp__wink"],
        model="claude-sonnet-5",
        cwd=home,
        env={
            "HOME": str(home),
            "ANTHROPIC_BASE_URL": api.url,
            "ANTHROPIC_API_KEY": "not-a-key",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "MCP_CONNECTION_NONBLOCKING": "false",
            **env,
        },
    )

    async def run() -> None:
        async for _ in sdk.query(prompt="Keep milk.", options=options):
            pass

    asyncio.run(run())


SCRIPT = [call("read_section", section_key="notes"), call("keep", text="milk"), say("Kept.")]


def test_the_tools_of_an_opened_section_are_there_in_the_next_request(served: Any, tmp_path: Path) -> None:
    with CliServer(SCRIPT) as api:
        ask(api, served, tmp_path, ENABLE_TOOL_SEARCH="false")
        ours = [sorted(offer & {"read_section", "keep", "paint"}) for offer in api.offers]
        assert ours == [["read_section"], ["keep", "paint", "read_section"], ["keep", "paint", "read_section"]]
        assert "Kept milk." in str(api.results())
        assert "Help with notes." in str(api.requests[0].json)


def test_a_host_that_searches_for_tools_is_told_of_them_in_the_next_request(served: Any, tmp_path: Path) -> None:
    with CliServer(SCRIPT) as api:
        ask(api, served, tmp_path)
        told = ["mcp__wink__keep" in str(request.json["messages"]) for request in api.requests[:2]]
        assert told == [False, True]
        assert "Kept milk." in str(api.results())
