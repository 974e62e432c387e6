"""Commands that work on one prompt: run it, render it, explain it.

`render` needs no runtime or adapter, so `run` and `explain` import them on demand.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from weakincentives.cli import selection
from weakincentives.cli.commands import number, tag
from weakincentives.cli.output import (
    UsageError,
    Wait,
    print_error,
    print_json,
    print_line,
    print_text,
    progress,
    terminal_width,
)
from weakincentives.cli.recordings import add_record_option, recorder
from weakincentives.limits import Budget, Deadline
from weakincentives.prompt import AnyTool, SetVisibilityOverride
from weakincentives.serde import dump, encode

if TYPE_CHECKING:
    from weakincentives.cli.approval import Asker, Continuation
    from weakincentives.runtime import Conversation, PromptResponse
    from weakincentives.session import Session

RUN = """\
Run a prompt on a model and print its answer.

Structured output is printed as JSON; progress goes to stderr. If a call needs approval, you are asked on the terminal,
with what the call would change. Without a terminal the call is named on stderr with the command that continues the run,
and the exit code is 3.
"""
RENDER = "Print a prompt exactly as a model would first see it."
EXPLAIN = "Show what a run would show, hide and cost before you run it."


def configure_run(parser: argparse.ArgumentParser) -> None:
    selection.configure(parser)
    parser.add_argument("message", nargs="?", metavar="MESSAGE", help="the user's message, sent after the prompt")
    selection.add_adapter_option(parser)
    parser.add_argument(
        "--deadline", type=number(0, 10**9, kind=float), metavar="SECONDS", help="stop after this many seconds"
    )
    parser.add_argument(
        "--max-tokens", type=number(1), metavar="N", help="make no further model call after this many tokens"
    )
    parser.add_argument(
        "--max-turns", type=number(1), default=50, metavar="N", help="stop after this many model calls (default: 50)"
    )
    parser.add_argument("--resume", metavar="FILE", help="continue a run that waits for a decision")
    parser.add_argument(
        "--run-tag",
        action="append",
        default=[],
        type=tag,
        metavar="KEY=VALUE",
        help="a tag of the run, for `wink runs list --where`; repeatable",
    )
    add_record_option(parser)
    parser.add_argument("--no-record", action="store_true", help="record nothing")
    parser.add_argument("--quiet", "-q", action="store_true", help="print no progress")
    parser.add_argument("--json", action="store_true", help="print the answer, usage and tool calls as JSON")


def run_run(arguments: argparse.Namespace) -> int:
    from weakincentives.cli.approval import Asker, Continuation, resume
    from weakincentives.cli.progress import reporting, used
    from weakincentives.runtime import Conversation
    from weakincentives.session import Session

    if arguments.message is None:
        arguments.message = selection.take_message(arguments)
    prompt = selection.selected_prompt(arguments)
    try:
        session = Session(tags=dict(arguments.run_tag))
    except ValueError as error:
        raise UsageError(f"--run-tag: {error}") from None
    if arguments.resume:
        resume(session, arguments.resume, prompt)
    for path, visibility in selection.opened(arguments, prompt).items():
        session.dispatch(SetVisibilityOverride(path, visibility))
    budget = Budget(max_total_tokens=arguments.max_tokens, max_turns=arguments.max_turns)
    chat = Conversation(prompt, adapter=selection.make_adapter(arguments), session=session, budget=budget)
    recording = None if arguments.no_record else recorder(arguments.record)
    started = time.monotonic()
    continuation = Continuation("" if recording is None else str(recording.path), arguments)
    asker = Asker(sys.stderr)
    with recording or nullcontext(), reporting(session, quiet=arguments.quiet):
        response = _decided(chat, asker, continuation, arguments)
    seconds = time.monotonic() - started

    if response.pending:
        if arguments.json:
            print_json(_described(response, session, seconds))
        return continuation.report(response.pending, None if asker.attended else asker)
    if arguments.json:
        print_json(_described(response, session, seconds))
    elif response.output is None:
        print_text(response.text)
    else:
        print_text(encode(response.output).decode(), wrap=False)
    if not arguments.quiet:
        progress(f"done    {used(response, session, seconds)}")
    return 0


def _decided(
    chat: Conversation[Any], asker: Asker, continuation: Continuation, arguments: argparse.Namespace
) -> PromptResponse[Any]:
    """The response to the message, with the decisions of the person at the terminal; some calls may still wait."""
    from weakincentives.runtime.spi import DecisionError

    def deadline() -> Deadline | None:
        return None if arguments.deadline is None else Deadline.after(arguments.deadline)

    try:
        with _waiting(arguments):
            if chat.pending and not arguments.message:
                response = chat.decide({}, deadline=deadline())
            else:
                response = chat.send(arguments.message or None, deadline=deadline())
        continuation.update(chat.session)
        while (pending := chat.pending) and asker.attended:
            call = pending[0]
            decision = asker.ask(call, len(pending) - 1)
            if decision is None:
                break
            try:
                with _waiting(arguments):
                    response = chat.decide({call.question.id: decision}, deadline=deadline())
            except DecisionError as error:
                print_error(f"wink: {error}")
            continuation.update(chat.session)
        return response
    finally:
        continuation.update(chat.session)


def _waiting(arguments: argparse.Namespace) -> Wait:
    """A line that says how long the model and the tools have been at work."""
    return Wait("model   working…", shown=sys.stderr.isatty() and not arguments.quiet, stream=sys.stderr)


def configure_render(parser: argparse.ArgumentParser) -> None:
    selection.configure(parser)
    parser.add_argument("--tools", action="store_true", help="list the tools below the text")
    parser.add_argument("--json", action="store_true", help="print text, tools and spans as JSON")


def run_render(arguments: argparse.Namespace) -> int:
    prompt = selection.selected_prompt(arguments)
    rendered = prompt.render(visibility_overrides=selection.opened(arguments, prompt))
    if arguments.json:
        print_json(
            {
                "name": rendered.prompt_name,
                "text": rendered.text,
                "tools": [
                    {"name": tool.name, "description": tool.description, "parameters": tool.schema}
                    for tool in rendered.tools
                ],
                "hosted_tools": [{"name": tool.name, "kind": tool.kind} for tool in rendered.hosted_tools],
                "spans": [dump(span) for span in rendered.spans],
                "output_schema": rendered.structured_output and rendered.structured_output.schema,
            }
        )
        return 0
    print_text(rendered.text)
    if arguments.tools:
        tools: list[AnyTool] = [*rendered.tools, *rendered.hosted_tools]
        for tool in tools:
            print_text(f"\n[tool] {tool.name}: {tool.description}")
    return 0


def configure_explain(parser: argparse.ArgumentParser) -> None:
    selection.configure(parser)
    selection.add_adapter_option(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_explain(arguments: argparse.Namespace) -> int:
    prompt = selection.selected_prompt(arguments)
    overrides = selection.opened(arguments, prompt)
    explanation = selection.make_adapter(arguments).explain(prompt, visibility_overrides=overrides)
    if arguments.json:
        print_json(dump(explanation))
    else:
        print_line(explanation.render(terminal_width()))
    return 0


def _described(response: PromptResponse[Any], session: Session, seconds: float) -> dict[str, Any]:
    from weakincentives.runtime import ToolInvoked, run_history

    invoked = session[ToolInvoked].where(lambda event: not event.parent_run_id)
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
        "pending": [{"call_id": call.call_id, **call.question.data} for call in response.pending],
        "tools": [{"name": event.name, "arguments": event.arguments, "success": event.success} for event in invoked],
    }
