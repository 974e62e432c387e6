"""All the ways to reach a server: our connections or a client's, blocking or awaited, streamed or not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx2
import openai

from tests.adapters.tools import SYSTEM, ask
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.runtime import ModelReply, ModelRequest

KEY = "sk-attack/0123+456789"
OK = (
    b'{"id":"r","object":"response","model":"m","status":"completed","output":[{"type":"message","id":"m",'
    b'"role":"assistant","status":"completed","content":[{"type":"output_text","text":"fine","annotations":[]}]}]}'
)
DONE = b'data: {"type":"response.completed","response":' + OK + b"}\n\n"


@dataclass(frozen=True)
class Way:
    """One of them; `own` is a client with a transport of its own."""

    own: bool
    awaited: bool
    streamed: bool

    def __str__(self) -> str:
        return f"{'own client' if self.own else 'direct'}-{'async' if self.awaited else 'sync'}" + (
            "-stream" if self.streamed else ""
        )

    def ask(self, url: str, request: ModelRequest | None = None, **options: Any) -> ModelReply:
        """The reply to a request."""
        request = request or ask([SYSTEM])
        if self.awaited:
            return asyncio.run(self._ask_async(url, request, options))
        with self._client(url) as client, OpenAIAdapter("m", client=client, **options) as adapter:
            assert adapter.uses_own_connections is not self.own
            channel = adapter.channel()
            return list(channel.stream(request))[-1] if self.streamed else channel.call(request)  # type: ignore[return-value]

    async def _ask_async(self, url: str, request: ModelRequest, options: dict[str, Any]) -> ModelReply:
        async with self._client(url) as client:
            with OpenAIAdapter("m", client=client, **options) as adapter:
                assert adapter.uses_own_connections is not self.own
                channel = adapter.channel()
                if not self.streamed:
                    return await channel.call_async(request)
                return [part async for part in channel.stream_async(request)][-1]  # type: ignore[return-value]

    def _client(self, url: str) -> Any:
        made: Callable[..., Any] = openai.AsyncOpenAI if self.awaited else openai.OpenAI
        if not self.own:
            return made(api_key=KEY, base_url=url, timeout=20)
        http: Any = (
            httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport())
            if self.awaited
            else httpx2.Client(transport=httpx2.HTTPTransport())
        )
        return made(api_key=KEY, base_url=url, http_client=http, timeout=20)


ALL = [Way(own, awaited, streamed) for own in (False, True) for awaited in (False, True) for streamed in (False, True)]
WHOLE = [way for way in ALL if not way.streamed]
STREAMED = [way for way in ALL if way.streamed]
DIRECT = [way for way in ALL if not way.own]
