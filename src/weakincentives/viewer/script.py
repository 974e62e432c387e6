"""A recorded run as a test: its replies as the script of a `ScriptedAdapter`."""

from __future__ import annotations

import json
import re

from weakincentives.runtime import Message, ToolCall
from weakincentives.telemetry import RunStore, RunSummary

_TEST = """\
from weakincentives import MainLoop, Session
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.runtime import ModelReply, ToolCall

SCRIPT = [
{lines}
]


def test_{name}_as_recorded() -> None:
    prompt = ...  # the prompt {prompt!r} with its params bound
    with ScriptedAdapter(SCRIPT) as adapter:
        response = MainLoop().execute(prompt, session=Session(), adapter=adapter)
    assert response.text == {answer!r}
"""


def script_of(store: RunStore, run: RunSummary) -> str:
    """A test that plays the replies of the run again; what the prompt was bound to is for its reader to fill in."""
    messages = (recorded.event for recorded in store.of_kinds(run.run_id, ["Message"]))
    said = [one for one in messages if isinstance(one, Message) and one.role == "assistant" and not one.rebased]
    name = re.sub(r"\W+", "_", run.prompt_name or run.run_id).strip("_").lower()
    lines = "\n".join(f"    {_reply(reply)}," for reply in said)
    return _TEST.format(lines=lines, name=name, prompt=run.prompt, answer=said[-1].text if said else "")


def _reply(reply: Message) -> str:
    if not reply.tool_calls:
        return repr(reply.text)
    if reply.text:
        return f'ModelReply({reply.text!r}, {reply.tool_calls!r}, stop_reason="tool_calls")'
    calls = ", ".join(map(_call, reply.tool_calls))
    return calls if len(reply.tool_calls) == 1 else f"[{calls}]"


def _call(call: ToolCall) -> str:
    try:
        given = json.loads(call.arguments or "{}").items()
    except (ValueError, AttributeError):
        return repr(call)
    if not all(key.isidentifier() for key, _ in given):
        return repr(call)
    return f"call({', '.join([json.dumps(call.name), *(f'{key}={value!r}' for key, value in given)])})"
