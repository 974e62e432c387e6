"""Servers that people use, from npm and PyPI, as sections."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.disclosure.desk import answers, tool_names
from tests.mcp.servers import pypi_server
from tests.npm_support import NpmModules
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.content import Image, Text
from weakincentives.mcp import MCPSection, StdioServer, by_resource
from weakincentives.prompt import Prompt
from weakincentives.runtime import Message
from weakincentives.session import Session

pytestmark = pytest.mark.slow
READ = call("read_section", section_key="server")


def run(server: Any, *script: Any, **options: Any) -> tuple[ScriptedAdapter, Session]:
    made = MCPSection(key="server", title="Server", server=server, **options)
    session = Session()
    with ScriptedAdapter([READ, *script, "Done."]) as adapter:
        adapter.evaluate(Prompt(ns="tests", key="real", sections=[made]), session=session)
    return adapter, session


def npm_server(npm: NpmModules, name: str, *words: str, **env: str) -> StdioServer:
    script = npm.folder / "node_modules" / "@modelcontextprotocol" / f"server-{name}" / "dist" / "index.js"
    return StdioServer(npm.node, [str(script), *words], env, start_timeout=120)


def test_filesystem_reads_and_writes_files(npm_modules: NpmModules, tmp_path: Path) -> None:
    server = npm_server(npm_modules, "filesystem", str(tmp_path))
    file, outside = str(tmp_path / "note.txt"), "/etc/passwd"
    adapter, session = run(
        server,
        call("write_file", path=file, content="milk"),
        call("read_text_file", path=file, head=1),
        call("read_text_file", path=file, head="x"),
        call("read_text_file", path=outside),
    )
    assert len(adapter.requests[1].tools) == 15
    written, read, wrong, refused = answers(session)[1:]
    assert (written[0], read) == (True, (True, "milk"))
    assert wrong == (False, "Invalid arguments for 'read_text_file': head: expected number, got str 'x'")
    assert refused[0] is False and "outside allowed directories" in refused[1]


def test_filesystem_with_a_filter_offers_the_tools_that_only_read(npm_modules: NpmModules, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("milk")
    server = npm_server(npm_modules, "filesystem", str(tmp_path))
    read, write = call("read_text_file", path=str(tmp_path / "note.txt")), call("write_file", path="x", content="y")
    adapter, session = run(server, read, write, include=["read_*", "list_*"], exclude=["*_media_*", "list_allowed*"])
    assert tool_names(adapter.requests[1].tools) == [
        "read_section",
        "read_file",
        "read_text_file",
        "read_multiple_files",
        "list_directory",
        "list_directory_with_sizes",
    ]
    (_, read_result, refused) = answers(session)
    assert read_result == (True, "milk") and refused[0] is False
    assert [file.name for file in tmp_path.iterdir()] == ["note.txt"]


def test_filesystem_in_groups_offers_only_the_tools_of_what_is_opened(npm_modules: NpmModules, tmp_path: Path) -> None:
    server = npm_server(npm_modules, "filesystem", str(tmp_path))
    opened = call("read_section", section_key="server.directory")
    adapter, session = run(server, opened, call("list_directory", path=str(tmp_path)), group=by_resource)
    assert tool_names(adapter.requests[1].tools) == ["read_section"]
    assert tool_names(adapter.requests[2].tools) == ["read_section", "create_directory", "list_directory"]
    assert answers(session)[-1][0]


def test_everything_returns_pictures_structures_and_resources(npm_modules: NpmModules) -> None:
    server = npm_server(npm_modules, "everything")
    _, session = run(
        server,
        call("get-sum", a=2, b=3),
        call("get-tiny-image"),
        call("get-structured-content", location="New York"),
        call("get-resource-reference", resourceType="Text", resourceId=1),
    )
    summed, image, structured, resource = [message for message in session[Message] if message.role == "tool"][1:]
    assert "is 5" in summed.text
    assert [type(part) for part in image.parts] == [Text, Image]
    assert '"temperature"' in structured.text
    assert "[resource demo://resource" in resource.text


def test_everything_reports_progress_and_asks_the_user(npm_modules: NpmModules) -> None:
    heard: list[Any] = []
    _, session = run(
        npm_server(npm_modules, "everything"),
        call("trigger-long-running-operation", duration=1, steps=2),
        call("trigger-elicitation-request"),
        on_progress=heard.append,
        on_elicit=lambda asked: {"name": "Ann"},
    )
    assert [(one.done, one.total) for one in heard] == [(1, 2), (2, 2)]
    assert "Ann" in answers(session)[-1][1]


def test_memory_keeps_what_it_is_told(npm_modules: NpmModules, tmp_path: Path) -> None:
    server = npm_server(npm_modules, "memory", MEMORY_FILE_PATH=str(tmp_path / "memory.jsonl"))
    chair = {"name": "chair", "entityType": "thing", "observations": ["has four legs"]}
    _, session = run(server, call("create_entities", entities=[chair]), call("search_nodes", query="chair"))
    assert "has four legs" in answers(session)[-1][1]
    assert "four legs" in (tmp_path / "memory.jsonl").read_text()


def test_time_converts_between_zones() -> None:
    server = pypi_server("2026", "mcp_server_time")
    asked = call("convert_time", source_timezone="UTC", time="12:00", target_timezone="Asia/Tokyo")
    _, session = run(server, asked)
    assert "21:00" in answers(session)[-1][1]


def test_git_shows_the_state_of_a_repository(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    server = pypi_server("2026", "mcp_server_git", "--repository", str(tmp_path))
    adapter, session = run(server, call("git_status", repo_path=str(tmp_path)))
    assert len(adapter.requests[1].tools) == 13
    assert "No commits yet" in answers(session)[-1][1]


def test_sqlite_of_the_older_generation_answers_queries(tmp_path: Path) -> None:
    server = pypi_server("2025", "mcp_server_sqlite", "--db-path", str(tmp_path / "shop.db"))
    _, session = run(
        server,
        call("create_table", query="CREATE TABLE items (name TEXT)"),
        call("write_query", query="INSERT INTO items VALUES ('chair')"),
        call("read_query", query="SELECT name FROM items"),
    )
    assert answers(session)[-1] == (True, "[{'name': 'chair'}]")
