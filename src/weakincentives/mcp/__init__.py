"""Use MCP servers as sections, and serve templates as MCP servers; needs `weakincentives[mcp]`."""

from typing import TYPE_CHECKING

from weakincentives._base.imports import import_extra, lazy_front
from weakincentives.mcp.connection import (
    Elicitation,
    HttpServer,
    MCPServerError,
    Progress,
    StdioServer,
)
from weakincentives.mcp.listing import ListedSkill, ListedTool, Listing, SkillFile, lock_file, read_lock, write_lock
from weakincentives.mcp.section import MCPResult, MCPSection, by_prefix, by_resource, mcp_sections

if TYPE_CHECKING:
    from weakincentives.mcp.host import TemplateServer, serve

__all__ = [
    "Elicitation",
    "HttpServer",
    "ListedSkill",
    "ListedTool",
    "Listing",
    "MCPResult",
    "MCPSection",
    "MCPServerError",
    "Progress",
    "SkillFile",
    "StdioServer",
    "TemplateServer",
    "by_prefix",
    "by_resource",
    "lock_file",
    "mcp_sections",
    "read_lock",
    "serve",
    "write_lock",
]

_load = lazy_front(__name__, {"host": ["TemplateServer", "serve"]})


def __getattr__(name: str) -> object:
    if name in ("TemplateServer", "serve"):
        import_extra("mcp", "mcp", name)
    return _load(name)
