"""Facts about adapters, known without importing them or their SDKs.

An adapter describes itself once, as an `AdapterSpec` that its distribution declares as an entry point, under the name
of the provider:

    [project.entry-points."weakincentives.adapters"]
    openai = "weakincentives.adapters.openai:SPEC"

The command line, the hosted tools, the prices, the ledger and the prefix check read the specs from here.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

from weakincentives.limits import Prices

GROUP = "weakincentives.adapters"
_PLACED = re.compile(r"(.+)@(https?://.+)")
# When the prices in the adapters' specs were taken from litellm 1.108. They exclude surcharges for cache writes (the
# usage in a reply does not distinguish such tokens), for very long prompts and for faster service.
AS_OF = "2026-11"
_DATED = re.compile(r"[-@](?:\d{8}|\d{4}-\d{2}-\d{2}|latest)$")


@dataclass(frozen=True, slots=True)
class AdapterSpec:
    """One adapter: its class, how to name it, and facts about its provider.

    `package` contains the class `adapter`, whose `name` is this one, and a module `codecs` if there are `hosted_tools`:
    the kinds that its `CODECS` encode. A user may add more if it `accepts_codecs`. `provider` is the part before the
    colon in `openai:gpt-5.6`; `model` stands for what may follow it ("MODEL", "FILE"), or must if it `requires_model`.
    With "@URL" in it, the address of a server may follow the model, as the option `base_url`. `options` are arguments
    that the provider's name stands for.
    `vendor` is the name of the provider in telemetry, if it is not the adapter's. An adapter that is `in_process` loads
    its model into this process, and reports how much of a prompt it has read to its option `progress`.

    Tools added by one of the `cache_safe_routes` leave the beginning of the request unchanged. `prefix_keys` are the
    fields of a request that a provider's prompt cache depends on, besides the conversation in `conversation_key` and
    without fields named `cache_marker`. A listed tool that has the field `deferred_marker` is not part of it until the
    conversation refers to it. A listed tool has its name below `tool_key`, if there is one. `prices` are US dollars per
    million tokens, and `shut_down` has the dates on which the provider shuts down models. `package_needed` is the
    package the adapter imports, `extra` what installs it if that is not named like the provider; one of the environment
    variables `key_variables` holds its key.
    """

    name: str
    package: str
    adapter: str
    provider: str
    model: str = "MODEL"
    requires_model: bool = True
    vendor: str = ""
    in_process: bool = False
    hosted_tools: tuple[str, ...] = ()
    accepts_codecs: bool = True
    cache_safe_routes: frozenset[str] = frozenset()
    prefix_keys: tuple[str, ...] = ()
    conversation_key: str = ""
    cache_marker: str = ""
    deferred_marker: str = ""
    tool_key: str = ""
    prices: Mapping[str, Prices] = field(default_factory=dict)
    shut_down: Mapping[str, str] = field(default_factory=dict)
    package_needed: str = ""
    extra: str = ""
    key_variables: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def usage(self) -> str:
        """The adapter in one string, such as `openai:MODEL`."""
        return f"{self.provider}:{self.model}" if self.requires_model else f"{self.provider}[:{self.model}]"

    def load(self) -> Any:
        """The adapter's class."""
        return getattr(import_module(self.package), self.adapter)

    def create(self, model: str, **options: Any) -> Any:
        """The adapter for a model, written as in `usage`."""
        if "@URL" in self.model and (placed := _PLACED.fullmatch(model)):
            model, options["base_url"] = placed.groups()
        chosen = {**self.options, **options}
        if "@URL" in self.model and "base_url" not in chosen:
            raise ValueError(
                f"the adapter '{self.provider}' needs the address of a server, as in '{self.provider}:MODEL@http://HOST/v1'"
            )
        return self.load()(model, **chosen) if model else self.load()(**chosen)

    def codecs(self) -> Mapping[str, Any]:
        """The adapter's own codecs for hosted tools, by kind."""
        found: Mapping[str, Any] = import_module(f"{self.package}.codecs").CODECS if self.hosted_tools else {}
        return found


@cache
def adapter_specs() -> tuple[AdapterSpec, ...]:
    """The specs of all installed adapters, by name, after those that need no provider.

    An adapter that cannot be loaded is left out, with a warning.
    """
    from importlib.metadata import entry_points  # Takes long to import, and most programs name no adapter.

    found: dict[str, AdapterSpec] = {}
    # Nobody can replace an adapter of the library by declaring another under its name.
    for point in sorted(entry_points(group=GROUP), key=lambda point: not point.value.startswith(GROUP)):
        try:
            spec = point.load()
            if not isinstance(spec, AdapterSpec) or spec.provider != point.name:
                raise TypeError(f"it must be an AdapterSpec with provider='{point.name}', got {spec!r}")
        except Exception as error:
            warnings.warn(f"The adapter '{point.name}' ({point.value}) cannot be loaded: {error}", stacklevel=2)
        else:
            found.setdefault(point.name, spec)
    return tuple(sorted(found.values(), key=lambda spec: (not spec.in_process, spec.name)))


def adapter_spec(name: str) -> AdapterSpec | None:
    """The spec of the adapter with this name or provider; None if there is none."""
    return next((spec for spec in adapter_specs() if name in (spec.name, spec.provider)), None)


@cache
def cache_safe_routes() -> frozenset[str]:
    """The routes that keep each request an extension of the one before it, so that the prompt cache stays valid."""
    return frozenset().union(*(spec.cache_safe_routes for spec in adapter_specs()))


@cache
def known_prices() -> Mapping[str, Prices]:
    """The prices of every model listed in an adapter's spec."""
    return {model: prices for spec in adapter_specs() for model, prices in spec.prices.items()}


def prices_for(model: str, own: Mapping[str, Prices] | None = None) -> Prices | None:
    """The prices of a model, by its name with or without a date or a provider prefix; None if unknown.

    `own` prices take precedence over the known ones.
    """
    table = {**known_prices(), **own} if own else known_prices()
    name = model.rpartition("/")[2]
    for candidate in (model, name, _DATED.sub("", name)):
        if candidate in table:
            return table[candidate]
    return None
