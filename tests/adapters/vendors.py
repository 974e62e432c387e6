"""The network adapters, each with the scripted server that it is tested against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.servers.anthropic_messages import MessagesServer
from tests.servers.chat_completions import ChatServer
from tests.servers.loopback import Loopback
from tests.servers.openai_responses import ResponsesServer

KEY = "sk-loopback-0123456789"


@dataclass(frozen=True)
class Vendor:
    """An adapter under test: its server, and how to make it, through the vendor's own SDK if it uses one."""

    name: str
    server: type[Loopback]
    adapter: Callable[..., Any]
    needs: str = ""

    @property
    def package(self) -> str:
        """The package without which the adapter cannot be made."""
        return self.needs or self.name

    def __str__(self) -> str:
        return self.name


def openai_adapter(server: Loopback, **options: Any) -> Any:
    import openai

    from weakincentives.adapters.openai import OpenAIAdapter

    model = options.pop("model", "gpt-5.6")
    return OpenAIAdapter(model, client=openai.OpenAI(api_key=KEY, base_url=f"{server.url}/v1"), **options)


def anthropic_adapter(server: Loopback, **options: Any) -> Any:
    import anthropic

    from weakincentives.adapters.anthropic import AnthropicAdapter

    model = options.pop("model", "claude-opus-5")
    return AnthropicAdapter(model, client=anthropic.Anthropic(api_key=KEY, base_url=server.url), **options)


def litellm_adapter(server: Loopback, **options: Any) -> Any:
    from weakincentives.adapters.litellm import LiteLLMAdapter

    parameters = {"api_base": server.url, "api_key": KEY, **options.pop("parameters", {})}
    return LiteLLMAdapter(options.pop("model", "openai/scripted"), parameters=parameters, **options)


def openai_chat_adapter(server: Loopback, **options: Any) -> Any:
    from weakincentives.adapters.openai_chat import OpenAIChatAdapter

    return OpenAIChatAdapter(options.pop("model", "scripted"), base_url=f"{server.url}/v1", api_key=KEY, **options)


OPENAI = Vendor("openai", ResponsesServer, openai_adapter)
ANTHROPIC = Vendor("anthropic", MessagesServer, anthropic_adapter)
SONNET = Vendor("anthropic", MessagesServer, partial(anthropic_adapter, model="claude-sonnet-5"))
LITELLM = Vendor("litellm", ChatServer, litellm_adapter)
OPENAI_CHAT = Vendor("openai chat", ChatServer, openai_chat_adapter, needs="httptools")
VENDORS = (OPENAI, ANTHROPIC, OPENAI_CHAT, LITELLM)
LEAN = (OPENAI, ANTHROPIC, OPENAI_CHAT)
ROUTED = (OPENAI, ANTHROPIC, SONNET)
"""Those with a route for new tools that keeps the beginning of a request."""

HOSTING = (OPENAI, ANTHROPIC, LITELLM)
"""Those with hosted tools of their own."""
