"""The common parts of our MCP servers: a list of tools that changes while they run, and parts as content."""

from __future__ import annotations

import base64
from typing import Any

import mcp_types as types
from mcp.server import NotificationOptions, Server
from mcp.server.context import ServerRequestContext
from mcp.server.models import InitializationOptions
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from weakincentives.content import Audio, Image, Media, Part

# The field of a request's `_meta` in which Claude Code sends the id of the model's call.
CALL_ID = "claudecode/toolUseId"
# The `_meta` of a tool that asks Claude Code to show it at once and to pass on large results whole.
TOOL_META = {"anthropic/alwaysLoad": True, "anthropic/maxResultSizeChars": 500_000}
Context = ServerRequestContext[Any, Any]


class AnnouncingServer(Server[Any]):
    """A server that announces, to clients of the older protocol too, that its list may change."""

    def create_initialization_options(
        self, notification_options: NotificationOptions | None = None, *args: Any, **kwargs: Any
    ) -> InitializationOptions:
        return super().create_initialization_options(NotificationOptions(tools_changed=True), *args, **kwargs)


class Listener:
    """A client that is notified of a changed list of tools, in the protocol that it uses.

    `listens` says that it can be: it has subscribed, or uses the older protocol, in which every client is notified.
    """

    def __init__(self) -> None:
        self.listens = False
        self._bus = InMemorySubscriptionBus()
        self._handler = ListenHandler(self._bus)
        self._older_session: ServerSession | None = None

    async def listen(self, context: Context, params: Any) -> Any:
        self.listens = True
        return await self._handler(context, params)

    def listed(self, context: Context) -> None:
        """Note that the client has listed the tools."""
        if is_older(context):
            self._older_session, self.listens = context.session, True

    async def notify(self) -> None:
        await self._bus.publish(ToolsListChanged())
        if self._older_session is not None:
            await self._older_session.send_tool_list_changed()


def is_older(context: Context) -> bool:
    """True if the client uses the older protocol, which has sessions."""
    return context.protocol_version not in MODERN_PROTOCOL_VERSIONS


def content_block(part: Part) -> types.ContentBlock:
    """A part of a tool's result; media that the server does not hold are described."""
    if not isinstance(part, Media) or part.blob is None:
        return types.TextContent(type="text", text=str(part))
    data = base64.b64encode(part.data).decode()
    if isinstance(part, Image):
        return types.ImageContent(type="image", data=data, mime_type=part.media_type)
    if isinstance(part, Audio):
        return types.AudioContent(type="audio", data=data, mime_type=part.media_type)
    uri = f"attachment:{part.name or part.blob.digest}"
    blob = types.BlobResourceContents(uri=uri, blob=data, mime_type=part.media_type)
    return types.EmbeddedResource(type="resource", resource=blob)
