"""An MCP server for tests, in both generations of the protocol: `python shop.py`, or its `server` over HTTP.

Environment variables say how it behaves: SHOP_TOOLS adds tools, SHOP_LOG is a file for what it notices.
"""

from __future__ import annotations

import asyncio
import base64
import os
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

PNG = b"\x89PNG\r\n\x1a\n" + bytes(32)
TEXT = {"type": "string"}
ASKED = {"type": "object", "properties": {"colour": TEXT}, "required": ["colour"]}
TOOLS = {
    "get_stock": {"item": TEXT},
    "list_items": {},
    "add_item": {"item": TEXT},
    "remove_item": {"item": TEXT},
    "show_picture": {},
    "choose_colour": {},
    "wait": {},
    "crash": {},
    "read_variable": {"name": TEXT},
}
items: list[str] = ["chair"]


def note(text: str) -> None:
    if path := os.environ.get("SHOP_LOG"):
        with Path(path).open("a") as log:
            log.write(f"{text}\n")


def declared(name: str, properties: dict[str, Any]) -> types.Tool:
    return types.Tool(
        name=name,
        description=f"Does {name}.",
        input_schema={"type": "object", "properties": properties, "required": list(properties)},
        annotations=types.ToolAnnotations(read_only_hint=name.startswith(("get", "list"))),
    )


async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
    """Four tools on a page."""
    added: dict[str, dict[str, Any]] = {name: {} for name in os.environ.get("SHOP_TOOLS", "").split()}
    tools = [declared(name, properties) for name, properties in {**TOOLS, **added}.items()]
    start = int((params and params.cursor) or 0)
    following = str(start + 4) if start + 4 < len(tools) else None
    return types.ListToolsResult(tools=tools[start : start + 4], next_cursor=following)


async def call_tool(context: Any, params: types.CallToolRequestParams) -> Any:
    arguments = params.arguments or {}
    match params.name:
        case "get_stock":
            return said(f"{arguments['item']}: 3", structured={"stock": 3})
        case "list_items":
            return said("", structured={"items": items})
        case "add_item":
            items.append(arguments["item"])
            return said("The shelf broke.", is_error=arguments["item"] == "piano")
        case "remove_item":
            items.remove(arguments["item"])
            note(f"removed {arguments['item']}")
            return said("Removed.")
        case "show_picture":
            picture = types.ImageContent(type="image", data=base64.b64encode(PNG).decode(), mime_type="image/png")
            link = types.ResourceLink(type="resource_link", name="chair", uri="shop://chair", description="A chair.")
            text = types.TextResourceContents(uri="shop://manual", text="Sit down.")
            return types.CallToolResult(content=[picture, link, types.EmbeddedResource(type="resource", resource=text)])
        case "choose_colour":
            return await choose_colour(context, params)
        case "wait":
            return await wait(context)
        case "crash":
            os._exit(1)
        case "read_variable":
            return said(os.environ.get(arguments["name"], "not set"))
    return said("", is_error=True)


async def choose_colour(context: Any, params: Any) -> Any:
    asked = types.ElicitRequestFormParams(message="Which colour?", requested_schema=ASKED)
    if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        answer = await context.session.elicit_form("Which colour?", ASKED)
    elif not params.input_responses:
        request = types.ElicitRequest(method="elicitation/create", params=asked)
        return types.InputRequiredResult(input_requests={"colour": request}, result_type="input_required")
    else:
        answer = params.input_responses["colour"]
    return said(f"{answer.action}: {(answer.content or {}).get('colour')}")


async def wait(context: Any) -> Any:
    await context.session.report_progress(1, 2, "halfway")
    note("waiting")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        note("cancelled")
        raise
    return said("waited")


def said(text: str, *, structured: Any = None, is_error: bool = False) -> types.CallToolResult:
    content: list[Any] = [types.TextContent(type="text", text=text)] if text else []
    return types.CallToolResult(content=content, structured_content=structured, is_error=is_error)


def make_server() -> Server[Any]:
    return Server(
        "shop", version="1.0", instructions="Prices are in $.", on_list_tools=list_tools, on_call_tool=call_tool
    )


async def main() -> None:
    server = make_server()
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(main())
