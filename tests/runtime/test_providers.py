"""One spec per adapter, in its own package, is what the rest of the library reads."""

from __future__ import annotations

import subprocess
import sys

import pytest

import weakincentives
from weakincentives.runtime import AdapterSpec, ProviderAdapter, adapter_spec, adapter_specs, cache_safe_routes
from weakincentives.runtime.providers import PACKAGES


@pytest.mark.parametrize("spec", adapter_specs(), ids=lambda spec: spec.name)
def test_a_spec_describes_the_adapter_of_its_package(spec: AdapterSpec) -> None:
    adapter = spec.load()
    assert issubclass(adapter, ProviderAdapter)
    assert (adapter.__name__, adapter.name) == (spec.adapter, spec.name)


@pytest.mark.parametrize("spec", adapter_specs(), ids=lambda spec: spec.name)
def test_every_adapter_is_at_the_front_door(spec: AdapterSpec) -> None:
    assert getattr(weakincentives, spec.adapter) is spec.load()


def test_an_adapter_is_found_by_its_name_and_by_its_provider() -> None:
    claude = adapter_spec("claude")
    assert claude is not None and claude is adapter_spec("claude_agent_sdk")
    assert (claude.usage, adapter_spec("openai").usage) == ("claude[:MODEL]", "openai:MODEL")  # type: ignore[union-attr]
    assert adapter_spec("nobody") is None


def test_the_packages_of_the_adapters_are_all_registered() -> None:
    from importlib import import_module
    from pkgutil import iter_modules

    adapters = import_module("weakincentives.adapters")
    shared = {"hosted", "network", "selection"}
    assert {module.name for module in iter_modules(adapters.__path__)} - shared == set(PACKAGES)


def test_the_routes_that_keep_the_prompt_cache_come_from_the_specs() -> None:
    assert cache_safe_routes() == {"additional_tools", "tool_addition", "tool_search"}


def test_reading_the_specs_loads_tables_of_models_and_no_adapter() -> None:
    script = (
        "import sys; from weakincentives.runtime import adapter_specs; adapter_specs()\n"
        "print(*[name for name in sys.modules if name.startswith('weakincentives.adapters.') and name.count('.') > 2])"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True).split() == [
        "weakincentives.adapters.openai.models",
        "weakincentives.adapters.anthropic.models",
    ]
