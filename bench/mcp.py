"""MCP servers with all their tools open, against servers as sections that open; and how long opening takes.

The tools are those that six real servers list (`mcp.lock.json`, written by `wink mcp lock`). Each of 30 questions needs
one or two servers; a scripted model opens what it needs, calls two tools of each, and answers. Requests are encoded
and cached as in `disclosure`. Only the times are measured with a server that runs.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.disclosure import Totals, WireAdapter, describe
from bench.row import Row
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.mcp import MCPSection, StdioServer, by_resource, read_lock
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, SectionVisibility, ToolResult
from weakincentives.runtime import MainLoop, ModelRequest, ToolCall, ToolInvoked
from weakincentives.session import Session

LOCK = Path(__file__).parent / "mcp.lock.json"
FILESYSTEM = Path(__file__).parents[1] / "tests/npm/node_modules/@modelcontextprotocol/server-filesystem/dist/index.js"
QUESTIONS = 30
PYTHON_SERVER = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("shop")

@server.tool()
def list_allowed_directories() -> str:
    "What there is."
    return "chairs"

server.run()
"""


class Listed(MCPSection):
    """A server of which only the listing is there."""

    def load(self, resources: Any) -> None:
        return None

    async def call(self, name: str, arguments: Mapping[str, Any], *, context: Any) -> ToolResult[Any]:
        return ToolResult(f"{name} was done: 42.")


def template(visibility: SectionVisibility, group: Any) -> PromptTemplate[None]:
    task = MarkdownSection(
        title="Task", key="task", template="Answer the question with the tools of the servers below."
    )
    servers = [
        Listed(
            key=key,
            title=listing.name or key,
            server=StdioServer("none"),
            lock=LOCK,
            visibility=visibility,
            summary=f"The {key} server, {len(listing.tools)} tools.",
            group=group,
        )
        for key, listing in read_lock(LOCK).items()
    ]
    return PromptTemplate(ns="bench", key="mcp", sections=[task, *servers])


def questions() -> list[list[tuple[str, str]]]:
    """The tools that each question needs, each with its server."""
    chance, listings = random.Random(7), read_lock(LOCK)
    return [
        [
            (key, tool.name)
            for key in chance.sample(sorted(listings), 1 + number % 2)
            for tool in chance.sample(listings[key].tools, 2)
        ]
        for number in range(QUESTIONS)
    ]


def script_for(needed: list[tuple[str, str]], blueprint: PromptTemplate[None]) -> Any:
    """A model that opens what it needs in one turn, calls one tool in each of the next, and answers."""
    homes = {tool.name: (node.key, tool) for node in blueprint.outline.nodes for tool in node.tools}
    opened: set[str] = set()
    waiting = [name for _, name in needed]

    def play(request: ModelRequest) -> list[ToolCall] | str:
        offered = {tool.name for tool in request.tools}
        to_open = dict.fromkeys(homes[name][0] for name in waiting if name not in offered)
        to_open = {key: None for key in to_open if key not in opened}
        if to_open:
            opened.update(to_open)
            return [call("read_section", section_key=key) for key in to_open]
        if not waiting:
            return "The answer is 42, as the servers say."
        name = waiting.pop(0)
        return [call(name, **example(homes[name][1].schema, homes[name][1].schema))]

    return play


def example(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    """Something that fits the schema."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            required = schema.get("required", ())
            return {name: example(schema["properties"][name], root) for name in required}
        case "array":
            return [example(schema.get("items", {}), root)]
        case "integer" | "number":
            return max(1, schema.get("minimum", 1))
        case "boolean":
            return True
    return "https://example.com" if schema.get("format") == "uri" else "something"


def measure(visibility: SectionVisibility, group: Any = None) -> Totals:
    totals, blueprint = Totals(), template(visibility, group)
    for needed in questions():
        adapter, session = WireAdapter(script_for(needed, blueprint), "additional_tools"), Session()
        MainLoop().execute(Prompt(blueprint), session=session, adapter=adapter)
        failed = [event for event in session[ToolInvoked] if not event.success]
        assert not failed, failed[0]
        totals.sent += adapter.totals.sent
        totals.cached += adapter.totals.cached
        totals.turns += adapter.totals.turns
    return totals


def seconds_to_first_call(server: StdioServer) -> float:
    """From the call that opens the section to the result of the first call on the server, best of three."""
    best = 60.0
    for _ in range(3):
        section = MCPSection(key="server", title="Server", server=server)
        script = [call("read_section", section_key="server"), call("list_allowed_directories"), "Done."]
        session = Session()
        with ScriptedAdapter(script) as adapter:
            adapter.evaluate(Prompt(ns="bench", key="opening", sections=[section]), session=session)
        opened, called = session[ToolInvoked].all()
        assert called.success, called
        best = min(best, called.timestamp - opened.timestamp + opened.duration)
    return best


def rows() -> Iterator[Row]:
    everything = measure(SectionVisibility.FULL)
    yield Row("all tools open: tokens sent", everything.sent, "tokens", note=describe(everything))
    for name, group in (("sections", None), ("sections in groups by resource", by_resource)):
        totals = measure(SectionVisibility.SUMMARY, group)
        sent, paid = totals.sent / everything.sent, totals.uncached / everything.uncached
        yield Row(f"{name}: sent", totals.sent, "tokens", ratio=sent, ratio_goal=0.5, baseline="all open")
        note = describe(totals)
        yield Row(
            f"{name}: uncached", totals.uncached, "tokens", ratio=paid, ratio_goal=0.5, baseline="all open", note=note
        )
    python = seconds_to_first_call(StdioServer(sys.executable, ["-c", PYTHON_SERVER]))
    yield Row("opening to first call, a Python server", python, "s", goal=3.0, note="wall time, mostly its imports")
    if FILESYSTEM.exists():
        node = seconds_to_first_call(StdioServer("node", [str(FILESYSTEM), "."]))
        yield Row("opening to first call, filesystem (Node)", node, "s", goal=1.5, note="wall time")
