"""A playground with the on-call prompt."""

from __future__ import annotations

from pathlib import Path

from scripts.viewer_runs import RESOLUTION, on_call_template
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.prompt.overrides import JsonPromptOverridesStore
from weakincentives.viewer import AdapterChoice, Playground

SCRIPT = [call("read_section", section_key="logs"), call("search_logs", service="a", pattern="b"), RESOLUTION]


def on_call(folder: Path) -> Playground:
    return Playground(
        on_call_template(),
        adapters=[AdapterChoice("scripted"), AdapterChoice("openai", ("gpt-5.6",), True, "set OPENAI_API_KEY")],
        make_adapter=lambda name: ScriptedAdapter(SCRIPT, model=name.partition(":")[2] or "scripted"),
        overrides=JsonPromptOverridesStore(folder / "overrides"),
    )
