"""`import weakincentives` is light, and no import of the core loads an optional package."""

from __future__ import annotations

import subprocess
import sys

from tests.extras import EXTRAS

HEAVY = frozenset(EXTRAS) | {"anyio", "httpx", "httpx2", "numpy", "pydantic", "sqlalchemy"}


def loaded(statement: str) -> set[str]:
    """The modules that a fresh interpreter has after a statement."""
    script = f"{statement}\nimport sys\nprint(*sys.modules)"
    return set(subprocess.check_output([sys.executable, "-c", script], text=True).split())


def test_the_front_door_loads_at_most_a_hundred_modules() -> None:
    assert len(loaded("import weakincentives") - loaded("pass")) <= 100


def test_a_whole_first_program_loads_no_optional_package() -> None:
    names = "MainLoop, MarkdownSection, Prompt, PromptTemplate, ScriptedAdapter, Session, Tool"
    modules = loaded(f"from weakincentives import {names}")
    assert {name for name in modules if name.partition(".")[0] in HEAVY} == set()


def test_the_fronts_of_the_adapters_load_no_vendor_package() -> None:
    fronts = ("anthropic", "claude_agent_sdk", "litellm", "local", "openai", "openai_chat", "scripted")
    modules = loaded("\n".join(f"import weakincentives.adapters.{front}" for front in fronts))
    assert {name for name in modules if name.partition(".")[0] in HEAVY} == set()
