"""Approval of the tools of ready-made sections: files, commands and MCP servers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.mcp.servers import python_server
from weakincentives import (
    Approve,
    Deny,
    Prompt,
    PromptValidationError,
    ScriptedAdapter,
    Session,
    call,
    run,
)
from weakincentives.contrib.commands import CommandSection
from weakincentives.contrib.tools import VfsToolsSection
from weakincentives.filesystem import HostFilesystem, InMemoryFilesystem
from weakincentives.mcp import ListedTool, Listing, MCPSection, lock_file, mcp_sections, write_lock
from weakincentives.prompt import SectionVisibility
from weakincentives.runtime import ToolInvoked
from weakincentives.tools.web_search import WebSearchSection

SHOP = python_server(str(Path(__file__).parents[1] / "mcp" / "shop.py"))
READ, WRITE = call("read", path="a.txt"), call("write", path="b.txt", content="new\n")


def hosted() -> Any:
    return WebSearchSection().hosted_tools()


@pytest.mark.parametrize(
    ("approval", "asked"),
    [
        (None, []),
        ("call", ["read", "write"]),
        ("effects", ["write"]),
        ({"read": "call"}, ["read"]),
        ({"write": "effects", "rm": "call"}, ["write"]),
        (lambda params: "call" if params.path == "b.txt" else None, ["write"]),
        (lambda params, *, session: "effects", ["write"]),
        (lambda params: "call" if params.path == "a.txt" else "effects", ["read", "write"]),
    ],
    ids=["none", "call", "effects", "read", "write", "rule", "rule of effects", "rule of both"],
)
def test_file_tools_ask_for_all_or_by_name(approval: Any, asked: list[str]) -> None:
    files, session = InMemoryFilesystem({"a.txt": "old\n"}), Session()
    prompt = Prompt(ns="tests", key="files", sections=[VfsToolsSection(files, approval=approval)])
    adapter = ScriptedAdapter([[READ, WRITE], "Done."])
    response = run(prompt, adapter, session=session)
    assert [each.tool for each in response.pending] == asked
    assert files.exists("b.txt") is ("write" not in asked)
    if asked:
        decisions = {each.call_id: Approve() for each in response.pending}
        response = run(prompt, adapter, session=session, decisions=decisions)
    assert (response.text, files.read("b.txt")) == ("Done.", "new\n")
    assert all(event.success for event in session[ToolInvoked])


def test_a_command_asks_with_the_files_that_it_has_changed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old\n")
    files = HostFilesystem(tmp_path, track_external=True)
    section = CommandSection(files, programs=[sys.executable], approval="effects")
    prompt, session = Prompt(ns="tests", key="commands", sections=[section]), Session()
    code = "open('a.txt', 'a').write('new\\n')"
    adapter = ScriptedAdapter([call("run_command", command=[sys.executable, "-c", code]), "Done.", "Well."])
    (pending,) = run(prompt, adapter, session=session).pending
    assert "+new" in pending.text
    assert (tmp_path / "a.txt").read_text() == "old\n"
    assert run(prompt, adapter, session=session, decisions={pending.call_id: Approve()}).text == "Done."
    assert (tmp_path / "a.txt").read_text() == "old\nnew\n"


@pytest.mark.slow
@pytest.mark.parametrize("decision", [Approve(), Deny("no")])
@pytest.mark.parametrize(
    "approval",
    ["call", {"add_item": "call"}, lambda arguments, session: "call" if arguments.get("item") == "table" else None],
    ids=["call", "by name", "rule"],
)
def test_the_tools_of_a_server_wait_and_then_run_once(approval: Any, decision: Any, tmp_path: Path) -> None:
    section = MCPSection(key="shop", title="Shop", server=SHOP, approval=approval, visibility=SectionVisibility.FULL)
    prompt, session = Prompt(ns="tests", key="shop", sections=[section]), Session()
    adapter = ScriptedAdapter([call("add_item", item="table"), "Done."])
    (pending,) = run(prompt, adapter, session=session).pending
    assert (pending.tool, pending.params, pending.section_key) == ("add_item", {"item": "table"}, "shop")
    assert not session[ToolInvoked].all()
    assert run(prompt, adapter, session=session, decisions={pending.call_id: decision}).text == "Done."
    (invoked,) = session[ToolInvoked].all()
    assert invoked.success is isinstance(decision, Approve)


@pytest.mark.slow
def test_a_rule_that_wants_the_effects_of_a_server_runs_nothing() -> None:
    section = MCPSection(
        key="shop",
        title="Shop",
        server=SHOP,
        approval=lambda arguments: "effects",
        visibility=SectionVisibility.FULL,
    )
    prompt, session = Prompt(ns="tests", key="shop", sections=[section]), Session()
    run(prompt, ScriptedAdapter([call("add_item", item="table"), "Done."]), session=session)
    (invoked,) = session[ToolInvoked].all()
    assert "was not run, because its approval rule failed: it returned 'effects', but what an MCP tool" in invoked.text


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: VfsToolsSection(approval="ask"), "VfsToolsSection 'vfs': approval must be 'call', 'effects' or a"),
        (lambda: VfsToolsSection(approval={"wirte": "call"}), "names 'wirte', which is none of its tools: ls, read"),
        (lambda: VfsToolsSection(approval={"read": "effects"}), "Tool 'read': it is read_only, so it has no effects"),
        (lambda: VfsToolsSection(approval={"write": True}), "approval of tool 'write' must be 'call', 'effects' or"),
        (
            lambda: VfsToolsSection(approval={"web_search": "call"}, hosted_tools=hosted()),
            "approval= names 'web_search', a hosted tool, which the provider runs by itself; leave it out, or do not",
        ),
        (
            lambda: CommandSection(programs=["ls"], approval={"ls": "call"}),
            "names 'ls', which is none of its tools: run_command",
        ),
        (
            lambda: MCPSection(key="shop", title="Shop", server=SHOP, approval="effects"),
            "MCPSection 'shop': what an MCP tool does happens on the server, so its effects cannot be taken back and "
            "shown; use approval='call'",
        ),
        (
            lambda: MCPSection(key="shop", title="Shop", server=SHOP, approval={"add_item": "effects"}),
            "what an MCP tool does happens on the server",
        ),
    ],
)
def test_an_approval_that_cannot_be_is_an_error_that_says_why(make: Any, problem: str) -> None:
    with pytest.raises(PromptValidationError, match=problem):
        make()


def test_the_servers_of_a_config_take_approval_by_tool_name_or_in_their_entries(tmp_path: Path) -> None:
    config = tmp_path / ".mcp.json"
    entry = {"command": SHOP.command, "args": [*SHOP.args]}
    config.write_text(json.dumps({"mcpServers": {"one": entry, "two": {**entry, "approval": {"buy": "call"}}}}))
    with pytest.raises(PromptValidationError, match="approval= by tool name needs a lock file with the tools of every"):
        mcp_sections(config, approval={"sell": "call"})
    listed = {"one": ["sell", "look"], "two": ["buy", "peek"]}
    listings = {
        key: Listing(tools=tuple(ListedTool(name, name, {"type": "object"}) for name in names))
        for key, names in listed.items()
    }
    write_lock(lock_file(config), listings)
    found = {
        tool.name: tool.approval
        for section in mcp_sections(config, approval={"sell": "call", "peek": "call"})
        for tool in section.stored().tools  # type: ignore[union-attr]
    }
    assert found == {"sell": "call", "look": None, "buy": "call", "peek": None}
    with pytest.raises(PromptValidationError, match="approval= names 'selll', which is none of its tools"):
        mcp_sections(config, approval={"selll": "call"})
    config.write_text(json.dumps({"mcpServers": {"one": {**entry, "approval": 1}}}))
    with pytest.raises(PromptValidationError, match='"approval" of server \'one\' must be the text "call"'):
        mcp_sections(config)
