"""Playgrounds: with the on-call prompt, and with a tool that needs approval."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scripts.viewer_runs import RESOLUTION, on_call_template
from weakincentives import MarkdownSection, Prompt, Tool, ToolContext, tool
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt.overrides import JsonPromptOverridesStore
from weakincentives.viewer import AdapterChoice, Playground

SCRIPT = [call("read_section", section_key="logs"), call("search_logs", service="a", pattern="b"), RESOLUTION]
SECRET = "sk-ant-api03-" + "a1B2" * 24


def on_call(folder: Path) -> Playground:
    return Playground(
        on_call_template(),
        adapters=[AdapterChoice("scripted"), AdapterChoice("openai", ("gpt-5.6",), True, "set OPENAI_API_KEY")],
        make_adapter=lambda name: ScriptedAdapter(SCRIPT, model=name.partition(":")[2] or "scripted"),
        overrides=JsonPromptOverridesStore(folder / "overrides"),
    )


@tool(approval="effects")
def pay(amount: int, to: str = "ann", *, context: ToolContext) -> str:
    "Pay an amount."
    assert context.filesystem is not None
    context.filesystem.write("log.txt", f"paid {amount} with {SECRET}\n", mode="append")
    return f"paid {amount}"


ask: Tool[Any, Any] = Tool(name="ask", description="Ask the user.", handler=None)
PAY = call("pay", amount=5)


def bills(files: InMemoryFilesystem) -> Prompt[None]:
    section = MarkdownSection(key="bills", title="Bills", template="Pay bills.", tools=[pay, ask])
    return Prompt(ns="tests", key="bills", sections=[section]).bind(resources={Filesystem: files})


def paying(folder: Path, files: InMemoryFilesystem | None = None, *script: Any) -> Playground:
    return Playground(
        bills(files or InMemoryFilesystem({"log.txt": "begin\n"})),
        adapters=[AdapterChoice("scripted")],
        make_adapter=lambda name: ScriptedAdapter(script or [PAY, "Done."]),
        overrides=JsonPromptOverridesStore(folder / "overrides"),
    )
