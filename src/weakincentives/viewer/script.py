"""A recorded run as a test: its replies as the script of a `ScriptedAdapter`."""

from __future__ import annotations

import json
import re
from pprint import pformat
from typing import Any

from weakincentives.runtime import Message, ToolCall
from weakincentives.telemetry import RunStore, RunSummary

_TEST = """\
from weakincentives import MainLoop, Session
from weakincentives.adapters.scripted import ScriptedAdapter, call
{imports}
SCRIPT = [
{lines}
]


def test_{name}_as_recorded() -> None:
    prompt = ...  # the prompt {prompt!r} with its params bound
    with ScriptedAdapter(SCRIPT) as adapter:
        response = MainLoop().execute(prompt, session=Session(), adapter=adapter)
    assert response.text == (
        {answer}
    )
"""


def script_of(store: RunStore, run: RunSummary) -> str:
    """A test that plays the replies of the run again; what the prompt was bound to is for its reader to fill in."""
    replies = [
        recorded.event
        for recorded in store.of_kinds(run.run_id, ["Message"])
        if isinstance(recorded.event, Message) and recorded.event.role == "assistant" and not recorded.event.rebased
    ]
    lines = [_reply(reply) for reply in replies]
    used = [name for name in ("ModelReply", "ToolCall") if any(f"{name}(" in line for line in lines)]
    return _TEST.format(
        imports=f"from weakincentives.runtime import {', '.join(used)}\n" if used else "",
        lines="\n".join(f"    {line}," for line in lines),
        name=re.sub(r"\W+", "_", run.prompt_name or run.run_id).strip("_").lower(),
        prompt=run.prompt,
        answer=_literal(replies[-1].text if replies else "", 8),
    )


def _reply(reply: Message) -> str:
    if not reply.tool_calls:
        return _literal(reply.text, 4)
    if reply.text:
        made = "".join(f"ToolCall({call.id!r}, {call.name!r}, {call.arguments!r}), " for call in reply.tool_calls)
        return f'ModelReply({_literal(reply.text, 4)}, ({made.strip()}), stop_reason="tool_calls")'
    calls = [_call(call) for call in reply.tool_calls]
    return calls[0] if len(calls) == 1 else f"[{', '.join(calls)}]"


def _call(call: ToolCall) -> str:
    try:
        arguments: Any = json.loads(call.arguments or "{}")
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict) or not all(key.isidentifier() for key in arguments):
        return f"ToolCall({call.id!r}, {call.name!r}, {call.arguments!r})"
    return f"call({', '.join([json.dumps(call.name), *(f'{key}={value!r}' for key, value in arguments.items())])})"


def _literal(text: str, indent: int) -> str:
    """A string in as many lines as it needs."""
    wrapped = pformat(text, width=100).strip("()")
    lines = [line.strip() for line in wrapped.splitlines()]
    if len(lines) == 1:
        return lines[0]
    margin = " " * indent
    return "(\n" + "\n".join(f"{margin}    {line}" for line in lines) + f"\n{margin})"
