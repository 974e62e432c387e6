"""Without its optional package, each part says which line to type."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

PREAMBLE = """
from tests.extras import hide_extras

hide_extras()
from weakincentives import MarkdownSection, Prompt, Session

prompt = Prompt(ns="t", key="t", sections=[MarkdownSection(key="a", title="A", template="Hi")])
"""

EVALUATE = "from weakincentives import {0}\n{0}({1}).evaluate(prompt, session=Session())"

USES = {
    "openai": EVALUATE.format("OpenAIAdapter", "'gpt-5.6'"),
    "openai-chat": EVALUATE.format("OpenAIChatAdapter", "'qwen3:8b', base_url='http://127.0.0.1:11434/v1'"),
    "anthropic": EVALUATE.format("AnthropicAdapter", "'claude-opus-5'"),
    "litellm": EVALUATE.format("LiteLLMAdapter", "'openai/gpt-5.6'"),
    "claude": EVALUATE.format("ClaudeAgentSDKAdapter", ""),
    "local": EVALUATE.format("LocalAdapter", ""),
    "gguf": "from weakincentives import LocalAdapter\nLocalAdapter('pyproject.toml')",
    "mcp": "from weakincentives.mcp import serve",
    "otel": "from weakincentives.telemetry import instrument\ninstrument()",
    "durable": "from weakincentives.durable import DurableClient\nDurableClient('triage').status('ticket-7')",
    "skills": "from weakincentives.skills import BUNDLED, skill_sections\nskill_sections(BUNDLED)",
    "ui": "from weakincentives.ui import Threads",
    "viewer": "from weakincentives.viewer import Viewer\nViewer('runs.db', port=0)",
}


@pytest.mark.parametrize("extra", USES)
def test_a_missing_extra_is_named_with_the_line_that_installs_it(extra: str) -> None:
    script = [sys.executable, "-c", PREAMBLE + USES[extra]]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"pip install 'weakincentives[{extra}]'" in done.stderr.strip().splitlines()[-1]


def test_every_extra_that_an_error_names_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = {
        name
        for path in (ROOT / "src").rglob("*.py")
        for names in re.findall(r"weakincentives\[([\w,-]+)\]", path.read_text(encoding="utf-8"))
        for name in names.split(",")
    }
    assert named <= set(extras)
