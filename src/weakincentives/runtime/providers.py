"""The facts about an adapter that need neither its module nor its SDK.

Each adapter describes itself once, as `SPEC` in the front of its own package. The command line, the hosted tools, the
prices, the ledger and the prefix check read it from here. To add an adapter, add its package to `PACKAGES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

from weakincentives.limits import Prices

PACKAGES = ("local", "openai", "anthropic", "litellm", "claude_agent_sdk", "scripted")
"""The subpackages of `weakincentives.adapters`, in the order in which help and tables list them."""


@dataclass(frozen=True, slots=True)
class AdapterSpec:
    """One adapter: its class, how to name it, and facts about its provider.

    `provider` is the part before the colon in `openai:gpt-5.6`; `model` says what may follow ("MODEL", "FILE"), and
    `requires_model` whether it must. `hosted_tools` are the kinds that the `CODECS` of the package's `codecs` module
    encode, and `accepts_codecs` says whether a user may add more. Tools added by one of the `cache_safe_routes` leave
    the beginning of the request unchanged. `prefix_keys` are the fields of a request that a provider's prompt cache
    depends on, besides the conversation in `conversation_key`. `prices` are US dollars per million tokens.
    `package_needed` is the package the adapter imports; one of the environment variables `key_variables` holds its key.
    """

    name: str
    adapter: str
    provider: str
    model: str = "MODEL"
    requires_model: bool = True
    hosted_tools: tuple[str, ...] = ()
    accepts_codecs: bool = True
    cache_safe_routes: frozenset[str] = frozenset()
    prefix_keys: tuple[str, ...] = ()
    conversation_key: str = ""
    prices: Mapping[str, Prices] = field(default_factory=dict)
    package_needed: str = ""
    key_variables: tuple[str, ...] = ()

    @property
    def package(self) -> str:
        return f"weakincentives.adapters.{self.name}"

    @property
    def usage(self) -> str:
        """The adapter in one string, such as `openai:MODEL`."""
        return f"{self.provider}:{self.model}" if self.requires_model else f"{self.provider}[:{self.model}]"

    def load(self) -> Any:
        """The adapter's class."""
        return getattr(import_module(self.package), self.adapter)

    def codecs(self) -> Mapping[str, Any]:
        """The adapter's own codecs for hosted tools, by kind."""
        found: Mapping[str, Any] = import_module(f"{self.package}.codecs").CODECS if self.hosted_tools else {}
        return found


@cache
def adapter_specs() -> tuple[AdapterSpec, ...]:
    """The specs of all adapters of the library."""
    return tuple(import_module(f"weakincentives.adapters.{package}").SPEC for package in PACKAGES)


def adapter_spec(name: str) -> AdapterSpec | None:
    """The spec of the adapter with this name or provider; None for an adapter from outside the library."""
    return next((spec for spec in adapter_specs() if name in (spec.name, spec.provider)), None)


@cache
def cache_safe_routes() -> frozenset[str]:
    """The routes that keep each request an extension of the one before it, so that the prompt cache stays valid."""
    return frozenset().union(*(spec.cache_safe_routes for spec in adapter_specs()))
