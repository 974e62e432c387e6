"""One spec per adapter, found by its entry point, is what the rest of the library reads."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import weakincentives
from weakincentives.runtime import AdapterSpec, ProviderAdapter
from weakincentives.runtime.providers import GROUP
from weakincentives.runtime.spi import adapter_spec, adapter_specs, cache_safe_routes

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.mark.parametrize("spec", adapter_specs(), ids=lambda spec: spec.provider)
def test_a_spec_describes_the_adapter_of_its_package(spec: AdapterSpec) -> None:
    adapter = spec.load()
    assert issubclass(adapter, ProviderAdapter)
    assert (adapter.__name__, adapter.name) == (spec.adapter, spec.name)


@pytest.mark.parametrize("spec", adapter_specs(), ids=lambda spec: spec.provider)
def test_every_adapter_is_at_the_front_door(spec: AdapterSpec) -> None:
    assert getattr(weakincentives, spec.adapter) is spec.load()


def test_an_adapter_is_found_by_its_name_and_by_its_provider() -> None:
    claude = adapter_spec("claude")
    assert claude is not None and claude is adapter_spec("claude_agent_sdk")
    assert (claude.usage, adapter_spec("openai").usage) == ("claude[:MODEL]", "openai:MODEL")  # type: ignore[union-attr]
    assert adapter_spec("nobody") is None


def test_the_project_declares_an_entry_point_for_each_package_of_an_adapter() -> None:
    from importlib import import_module
    from pkgutil import iter_modules

    adapters = import_module("weakincentives.adapters")
    shared = {"hosted", "network", "selection", "scripted", "wrapped"}
    packages = {module.name for module in iter_modules(adapters.__path__)} - shared
    declared = tomllib.loads(PROJECT.read_text())["project"]["entry-points"][GROUP]
    assert {f"{adapters.__name__}.{name}:SPEC" for name in packages} <= set(declared.values())
    homes = {value.partition(":")[0] for value in declared.values()}
    assert homes == {f"{adapters.__name__}.{name}" for name in packages}
    assert declared.keys() == {spec.provider for spec in adapter_specs()}


SHOUTING = """
from weakincentives.runtime import AdapterSpec, Channel, ModelReply, ProviderAdapter

SPEC = AdapterSpec(name="shouting", package=__name__, adapter="ShoutingAdapter", provider="shout")
NAMESAKE = AdapterSpec(name="other", package=__name__, adapter="ShoutingAdapter", provider="openai")


class ShoutingChannel(Channel):
    def call(self, request):
        return ModelReply(request.messages[-1].text.upper())


class ShoutingAdapter(ProviderAdapter):
    name = "shouting"

    def channel(self):
        return ShoutingChannel()
"""


def run_beside(folder: Path, script: str, **points: str) -> subprocess.CompletedProcess[str]:
    """Run a script in an environment where another distribution declares these entry points."""
    metadata = folder / "shouting-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: shouting\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{GROUP}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()))
    (folder / "shouting.py").write_text(SHOUTING)
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)


def test_another_distribution_can_bring_an_adapter(tmp_path: Path) -> None:
    script = (
        "from weakincentives import MarkdownSection, Prompt, PromptTemplate, Session, adapter_for\n"
        "section = MarkdownSection(key='hi', title='Hi', template='Say hello.')\n"
        "prompt = Prompt(PromptTemplate(ns='t', key='hi', sections=[section]))\n"
        "print(adapter_for('shout:loud-1').evaluate(prompt, session=Session()).text)"
    )
    done = run_beside(tmp_path, script, shout="shouting:SPEC")
    assert (done.stdout, done.stderr) == ("## 1. HI\n\nSAY HELLO.\n", "")


def test_an_adapter_that_cannot_be_loaded_is_a_warning(tmp_path: Path) -> None:
    script = "from weakincentives.runtime.spi import adapter_specs; print(*[spec.provider for spec in adapter_specs()])"
    done = run_beside(tmp_path, script, gone="nowhere:SPEC", wrong="shouting:ShoutingAdapter", louder="shouting:SPEC")
    assert done.stdout.split() == [spec.provider for spec in adapter_specs()]
    assert "The adapter 'gone' (nowhere:SPEC) cannot be loaded: No module named 'nowhere'" in done.stderr
    for name in ("wrong", "louder"):
        assert f"cannot be loaded: it must be an AdapterSpec with provider='{name}', got " in done.stderr


def test_an_adapter_of_the_library_keeps_its_name(tmp_path: Path) -> None:
    script = "from weakincentives.runtime.spi import adapter_spec; print(adapter_spec('openai').name)"
    done = run_beside(tmp_path, script, openai="shouting:NAMESAKE")
    assert (done.stdout, done.stderr) == ("openai\n", "")


def test_the_routes_that_keep_the_prompt_cache_come_from_the_specs() -> None:
    assert cache_safe_routes() == {"additional_tools", "tool_addition", "tool_reference", "tool_search"}


def test_reading_the_specs_loads_tables_of_models_and_no_adapter() -> None:
    script = (
        "import sys; from weakincentives.runtime.spi import adapter_specs; adapter_specs()\n"
        "print(*[name for name in sys.modules if name.startswith('weakincentives.adapters.') and name.count('.') > 2])"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True).split() == [
        "weakincentives.adapters.anthropic.models",
        "weakincentives.adapters.openai.models",
    ]
