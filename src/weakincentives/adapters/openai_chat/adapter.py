"""The adapter for servers that speak Chat Completions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack
from urllib.parse import urlsplit

from weakincentives.adapters.network import (
    NetworkAdapter,
    NetworkOptions,
    OwnTransport,
    check_address,
    own_endpoint,
)
from weakincentives.adapters.openai.wire import MAX_DESCRIPTION
from weakincentives.adapters.openai_chat.reply import with_call_ids
from weakincentives.adapters.openai_chat.wire import PROVIDER, ChatWire
from weakincentives.content import Audio, Image
from weakincentives.runtime import MediaSupport

PATH = "/chat/completions"
KEY_VARIABLES = {
    "api.deepseek.com": "DEEPSEEK_API_KEY",
    "api.groq.com": "GROQ_API_KEY",
    "api.openai.com": "OPENAI_API_KEY",
    "openrouter.ai": "OPENROUTER_API_KEY",
}
"""By host, over https alone, so that a key reaches only the server it belongs to."""

KEY_VARIABLE = "OPENAI_CHAT_API_KEY"
"""For every other server."""


class OpenAIChatAdapter(NetworkAdapter):
    """Evaluates prompts on any server that speaks Chat Completions, over the library's own connections.

        OpenAIChatAdapter("qwen3:8b", base_url="http://localhost:11434/v1").evaluate(prompt, session=session)

    Without `api_key`, the key of a well-known host is read from its own environment variable, and that of any other
    server from `OPENAI_CHAT_API_KEY`; a server that wants none gets none. `headers` are sent with each request, and
    `parameters` are further fields of it, such as `{"top_p": 0.9}`.
    """

    name = PROVIDER
    package = "httptools"
    extra = "openai-chat"
    wire_type = ChatWire
    max_tool_description = MAX_DESCRIPTION
    reserved = frozenset({"model", "messages", "tools", "stream", "stream_options", "response_format"})

    def __init__(
        self,
        model: str,  #: the model's name on that server
        *,
        base_url: str,  #: the server's address, up to `/v1`
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        **options: Unpack[NetworkOptions],
    ) -> None:
        super().__init__(model, **options)
        url = urlsplit(base_url)
        host = url.hostname or ""
        variable = KEY_VARIABLES.get(host if url.scheme == "https" else "", KEY_VARIABLE)
        self.key_hint = "check the key that is passed as api_key=" if api_key else f"set {variable} or pass api_key="
        if api_key is None and (api_key := os.environ.get(variable)):
            self.key_hint = f"check the key in {variable}, or pass api_key="
        self.base_url = base_url
        self._key = api_key
        self._sent = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._sent |= {name.lower(): value for name, value in (headers or {}).items()}
        self._origin = f"{model}@{check_address(base_url, PATH, self._sent)}"
        self._connection: OwnTransport | None = None
        # Other servers let the schema of the answer govern tool calls too, or refuse the combination.
        self._combines = host == "api.openai.com"
        self._lacks: set[str] = set()

    @property
    def identity(self) -> tuple[Any, ...]:
        return (*super().identity, self.base_url)

    @property
    def media(self) -> MediaSupport:
        """Everything the format can carry; the server refuses what its model does not accept."""
        return MediaSupport(
            images=tuple(dict.fromkeys(Image.types.values())),
            documents=("application/pdf",),
            audio=tuple(Audio.types.values()),
            document_urls=False,
        )

    def with_call_ids(self, items: Sequence[str], ids: Sequence[str]) -> tuple[str, ...]:
        return with_call_ids(items, ids)

    def close(self) -> None:
        """Close the idle connections; the adapter opens new ones when it is used again."""
        if self._connection is not None:
            self._connection.close()

    def _wire(self) -> ChatWire:
        return ChatWire(
            self.model,
            origin=self._origin,
            combines=self._combines,
            lacks=self._lacks,
            codecs=self.hosted_tool_codecs,
            parameters=self._parameters,
            media=self.media,
        )

    def _transport(self) -> OwnTransport:
        with self._lock:
            if self._connection is None:
                self._connection = OwnTransport(own_endpoint(self.base_url, PATH, self._sent), self.extra)
            return self._connection

    def _keys(self) -> Iterable[str | None]:
        yield self._key
        for value in self._sent.values():
            yield from (value, value.rpartition(" ")[2])
