"""The adapter for every model LiteLLM reaches, through LiteLLM's own functions or a user's Router."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Unpack

import msgspec

from weakincentives._base.imports import import_extra
from weakincentives.adapters.litellm.models import VENDORS, VendorFacts, claude_facts, vendor_of
from weakincentives.adapters.litellm.reply import SERVER_CALL
from weakincentives.adapters.litellm.wire import PROVIDER, ChatWire
from weakincentives.adapters.network import (
    ClientOptions,
    ClientStream,
    EncodedRequest,
    NetworkAdapter,
    Response,
    Stream,
    TransportError,
    encode,
    within,
)
from weakincentives.adapters.openai.wire import MAX_DESCRIPTION
from weakincentives.adapters.openai_chat.reply import with_call_ids
from weakincentives.content import Audio, Image
from weakincentives.runtime import HostedToolCodec, MediaSupport, Message, ModelRequest

END = b"[DONE]"

# LiteLLM reads these on import: do not fetch price lists, do not load a stray .env file.
_SETTINGS = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_MODE": "PRODUCTION",
}


class LiteLLMAdapter(NetworkAdapter):
    """Evaluates prompts on any model that LiteLLM supports.

        LiteLLMAdapter("gemini/gemini-3-pro").evaluate(prompt, session=session)

    `client` may be a `litellm.Router`. Keys come from the provider's environment variables, as LiteLLM reads them, or
    from `parameters`, passed unchanged to `litellm.completion`: `{"api_key": ..., "api_base": ..., "temperature": 0}`.
    """

    name = PROVIDER
    package = "litellm"
    wire_type = ChatWire
    max_tool_description = MAX_DESCRIPTION

    def __init__(self, model: str, **options: Unpack[ClientOptions]) -> None:
        super().__init__(model, **options)

    @property
    def supports_operator_text(self) -> bool:
        vendor = vendor_of(self.model)
        return vendor.operator_text or (vendor.name == "anthropic" and claude_facts(self.model).system_messages)

    @cached_property
    def media(self) -> MediaSupport:
        """The media in LiteLLM's table of models; an unknown model is assumed to accept everything."""
        known: Mapping[str, Any] = {}
        with suppress(Exception):
            known = litellm().get_model_info(self.model)
        # A Router registers its model names in the table without any details.
        if not known.get("mode"):
            known = dict.fromkeys(("supports_vision", "supports_pdf_input", "supports_audio_input"), True)
        audio = vendor_of(self.model).audio
        hears = known.get("supports_audio_input") if audio is None else audio
        return MediaSupport(
            images=tuple(dict.fromkeys(Image.types.values())) if known.get("supports_vision") else (),
            documents=("application/pdf",) if known.get("supports_pdf_input") else (),
            audio=tuple(Audio.types.values()) if hears else (),
            document_urls=False,
        )

    def binds_reasoning(self, message: Message) -> bool:
        return (
            message.provider == PROVIDER
            and claude_facts(self.model).binds_thinking
            and any('"thinking_blocks"' in item for item in message.items)
        )

    def with_call_ids(self, items: Sequence[str], ids: Sequence[str]) -> tuple[str, ...]:
        return with_call_ids(items, ids, run_by_provider=SERVER_CALL)

    def default_codecs(self) -> Mapping[str, HostedToolCodec[Any, Any]]:
        from weakincentives.adapters.litellm.codecs import LiteLLMWebSearchCodec

        return {"web_search": LiteLLMWebSearchCodec(self.model)}

    def count_request(self, request: ModelRequest) -> int:
        """The tokens of a request, as LiteLLM estimates them for the model."""
        body = msgspec.json.decode(self._wire().encode_request(request).body())
        return int(litellm().token_counter(self.model, messages=body["messages"], tools=body.get("tools")))

    def _wire(self) -> ChatWire:
        return ChatWire(
            self.model, codecs=self.hosted_tool_codecs, media=self.media, first_user_turn=self._needs_user_turn
        )

    def _transport(self) -> LiteLLMTransport:
        return LiteLLMTransport(self._client or litellm(), self._parameters)

    @cached_property
    def _needs_user_turn(self) -> bool:
        if self._client is not None:
            return True
        module = litellm()
        try:
            provider = module.get_llm_provider(self.model, api_base=self._parameters.get("api_base"))[1]
        except Exception:
            # LiteLLM does not know the provider; an extra user turn does no harm.
            return True
        return VENDORS.get(provider, VendorFacts()).first_user_turn

    def _keys(self) -> Iterable[str | None]:
        yield self._parameters.get("api_key")
        for name, value in os.environ.items():
            if name.endswith(("_API_KEY", "_TOKEN", "_SECRET", "_SECRET_ACCESS_KEY")):
                yield value


def litellm() -> Any:
    """The package, imported without the network."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    module: Any = import_extra("litellm", "litellm", "LiteLLMAdapter")
    module.suppress_debug_info = True
    return module


class LiteLLMTransport:
    """Calls `completion` and `acompletion` of the package or of a Router, with their own retries turned off."""

    def __init__(self, client: Any, options: Mapping[str, Any]) -> None:
        self._client = client
        self._options = {**options, "num_retries": 0, "max_retries": 0}

    async def open(
        self, request: EncodedRequest, timeout: float | None, *, whole: bool, awaits: bool
    ) -> Response | Stream:
        async def complete() -> Any:
            arguments = self._arguments(request, timeout)
            return await self._client.acompletion(**arguments) if awaits else self._client.completion(**arguments)

        try:
            answer = await within(timeout, complete, blocks=not awaits, awaits=awaits)
            if whole:
                return Response(200, {}, _json(answer))
            chunks: Any = aiter(answer) if awaits else iter(answer)
            end = getattr(chunks, "aclose", _nothing) if awaits else getattr(chunks, "close", lambda: None)
            return ClientStream(_batches(chunks, awaits=awaits), end, _failure, blocks=not awaits, awaits=awaits)
        except Exception as error:
            return _answer(error)

    def _arguments(self, request: EncodedRequest, timeout: float | None) -> dict[str, Any]:
        # Decoded for each request, since some of LiteLLM's providers change the messages they are given.
        arguments = {**self._options, **msgspec.json.decode(request.body())}
        if timeout is not None:
            arguments["timeout"] = timeout
        return arguments


async def _batches(chunks: Any, *, awaits: bool) -> AsyncGenerator[list[bytes], None]:
    if awaits:
        async for chunk in chunks:
            yield [_json(chunk)]
    else:
        for chunk in chunks:
            yield [_json(chunk)]
    yield [END]


async def _nothing() -> None:
    """For streams that cannot be closed."""


def _json(model: Any) -> bytes:
    return encode(model.model_dump(exclude_none=True, mode="json"))


def _answer(error: Exception) -> Response:
    """A LiteLLM status error as the response it stands for; raises any other error."""
    status = getattr(error, "status_code", None)
    if not isinstance(status, int):
        raise _failure(error) from None
    headers = getattr(error, "litellm_response_headers", None) or getattr(
        getattr(error, "response", None), "headers", None
    )
    found = {str(name).lower(): str(value) for name, value in dict(headers or {}).items()}
    body = getattr(error, "body", None)
    code = getattr(error, "code", None)
    payload = {"error": {"message": str(error), "type": type(error).__name__, "code": code, "body": body}}
    return Response(status, found, encode(payload))


def _failure(error: Exception) -> Exception:
    if isinstance(error, TimeoutError):
        return TransportError("the server did not answer in time")
    if type(error).__module__.partition(".")[0] in ("litellm", "openai", "httpx", "httpx2", "aiohttp") or isinstance(
        error, OSError
    ):
        return TransportError(f"litellm failed: {error}")
    return error
