"""A run whose every text tries to be something else than text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from weakincentives import MarkdownSection, Prompt, PromptTemplate, Session, Tool, ToolContext, ToolResult
from weakincentives.adapters.scripted import ScriptedAdapter
from weakincentives.runtime import ModelReply, ToolCall
from weakincentives.telemetry import record

SCRIPT = "</script><script>window.pwned = 1; alert('pwned')</script>"
IMAGE = "<img src=x onerror=\"window.pwned = 1; alert('pwned')\">"
ANSI = "\x1b[31mred\x1b[0m\x07\x00"
TURNED = "user\u202egnp.exe"
BROKEN = "half a pair: \ud83d, and bytes \udcff\udcfe"
LINE = "x" * 1_000_000
ALL = f"{SCRIPT} {IMAGE} {ANSI} {TURNED} {BROKEN} javascript:alert(1)"


@dataclass(frozen=True)
class Echo:
    text: str


def echo(params: Echo, *, context: ToolContext) -> ToolResult[str]:
    return ToolResult(message=f"{params.text} {BROKEN}\n{LINE}", value=params.text)


def record_hostile_run(path: Path) -> None:
    """Two turns; the second fails with a message of the same kind."""
    template = PromptTemplate(
        ns="<b>hostile</b>",
        key="run",
        name=f"hostile {SCRIPT}",
        sections=[
            MarkdownSection(key="attack", title=f"Attack {IMAGE}", template=f"{SCRIPT}\n{IMAGE}\n{ANSI}\n{TURNED}"),
            MarkdownSection(
                key="long",
                title="Long",
                template=LINE,
                tools=[Tool[Echo, str](name="echo", description=SCRIPT, handler=echo)],
            ),
        ],
    )
    arguments = json.dumps({"text": f"{SCRIPT} {IMAGE} {ANSI} {TURNED}"})
    replies = [
        ModelReply(text=ALL, tool_calls=(ToolCall("1", "echo", arguments),), stop_reason="tool_calls", model=IMAGE),
        ModelReply(text=f"{LINE} {SCRIPT}", stop_reason="end"),
        RuntimeError(ALL),
    ]
    with record(path):
        ScriptedAdapter(replies).evaluate(Prompt(template), session=Session())
