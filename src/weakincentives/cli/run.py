"""Run a prompt on a model and print its answer.

Structured output is printed as JSON; progress goes to stderr.
"""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext
from typing import Any

from weakincentives.cli import selection
from weakincentives.cli.adapter import add_adapter_option, make_adapter
from weakincentives.cli.output import plural, print_json, print_text, progress
from weakincentives.cli.progress import reporting
from weakincentives.cli.recordings import add_record_option, recorder
from weakincentives.limits import Budget, Deadline
from weakincentives.prompt import SetVisibilityOverride
from weakincentives.runtime import Conversation, PromptResponse, ToolInvoked, run_history
from weakincentives.serde import dump, encode
from weakincentives.session import Session


def configure(parser: argparse.ArgumentParser) -> None:
    selection.configure(parser)
    parser.add_argument("message", nargs="?", metavar="MESSAGE", help="what the user says, after the prompt")
    add_adapter_option(parser)
    parser.add_argument("--deadline", type=float, metavar="SECONDS", help="stop after this many seconds")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="stop before the run uses more tokens than this")
    parser.add_argument("--max-turns", type=int, metavar="N", help="stop after this many model calls")
    add_record_option(parser)
    parser.add_argument("--no-record", action="store_true", help="record nothing")
    parser.add_argument("--quiet", "-q", action="store_true", help="print no progress")
    parser.add_argument("--json", action="store_true", help="print the answer, usage and tool calls as JSON")


def run(arguments: argparse.Namespace) -> int:
    prompt = selection.selected_prompt(arguments)
    session = Session()
    for path, visibility in selection.opened(arguments, prompt).items():
        session.dispatch(SetVisibilityOverride(path, visibility))
    deadline = Deadline.after(arguments.deadline) if arguments.deadline else None
    budget = Budget(max_total_tokens=arguments.max_tokens, max_turns=arguments.max_turns)
    chat = Conversation(prompt, adapter=make_adapter(arguments), session=session, budget=budget)
    recording = None if arguments.no_record else recorder(arguments.record)
    started = time.monotonic()
    with recording or nullcontext(), reporting(session, quiet=arguments.quiet):
        response = chat.send(arguments.message or None, deadline=deadline)
    seconds = time.monotonic() - started

    if arguments.json:
        print_json(described(response, session, seconds))
    elif response.output is None:
        print_text(response.text)
    else:
        print_text(encode(response.output).decode())
    if not arguments.quiet:
        usage = response.usage
        progress(f"done    {plural(response.turns, 'turn')}, {usage.total_tokens:,} tokens, {seconds:.1f} s")
    return 0


def described(response: PromptResponse[Any], session: Session, seconds: float) -> dict[str, Any]:
    invoked = session[ToolInvoked].all()
    opened = [step for step in run_history(session).steps if step.kind == "open" and step.success]
    return {
        "prompt": response.prompt_name,
        "run_id": response.run_id,
        "text": response.text,
        "output": dump(response.output),
        "turns": response.turns,
        "seconds": round(seconds, 3),
        "usage": dump(response.usage),
        "opened": [key for step in opened for key in step.sections],
        "tools": [{"name": event.name, "arguments": event.arguments, "success": event.success} for event in invoked],
    }
