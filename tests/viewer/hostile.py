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


END = "the end of it"
# Each shorter than what is shown only as raw text, so that all of it is laid out.
NESTED = {
    "quotes": f"{'>' * 1000} {END}",
    "quotes with blanks": f"{'> ' * 5000}{END}",
    "as many quotes as are laid out": f"{'>' * 39_900} {END}",
    "quotes that grow": "\n".join(f"{'>' * depth} deeper" for depth in range(250)) + f"\n\n{END}",
    "lists": "\n".join(f"{' ' * depth}- deeper" for depth in range(250)) + f"\n\n{END}",
    "numbered lists": "\n".join(f"{'  ' * depth}1. deeper" for depth in range(150)) + f"\n\n{END}",
    "lists in a line": f"{'- ' * 10_000}{END}",
    "lists in quotes": "\n".join(f"{'> - ' * (depth % 80)}x" for depth in range(160)) + f"\n\n{END}",
    "quotes in lists": "\n".join(f"{' ' * depth}{'- > ' * 20}x" for depth in range(150)) + f"\n\n{END}",
    "emphasis": f"{'*a **b ' * 400}{'** *' * 400} {END}",
    "stars": f"{'*' * 20_000}x{'*' * 10_000} {END}",
    "brackets": f"{'[' * 20_000}{']' * 15_000} {END}",
    "links": f"{'[a](http://' * 600} {END}",
    "ticks": f"{'`' * 30_000} {END}",
    "headings": f"{'# ' * 10_000}{END}",
    "cells": f"{'|' * 4_000}\n\n{END}",
    "beside a fence": f"```\na\n``` {END}",
    "fences": "```\n~~~\n" * 400 + END,
    "deep JSON": "[" * 3000 + f'"{END}"' + "]" * 3000,
    "deeper JSON": '{"a":' * 5000 + f'"{END}"' + "}" * 5000,
}


def record_nested_run(path: Path) -> None:
    """One turn for each: the model says it, and a tool returns it; each ends with the number of its turn."""
    tools = [Tool[Echo, None](name="echo", description="Echo.", handler=echo_only)]
    section = MarkdownSection(key="task", title="Task", template="Echo.", tools=tools)
    texts = [text.replace(END, f"{END} {turn}.") for turn, text in enumerate(NESTED.values(), start=1)]
    replies = [ModelReply(text=text, tool_calls=(ToolCall("1", "echo", json.dumps({"text": text})),)) for text in texts]
    with record(path):
        ScriptedAdapter([*replies, "Done."]).evaluate(Prompt(ns="t", key="t", sections=[section]), session=Session())


def echo_only(params: Echo, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult(message=params.text)


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
