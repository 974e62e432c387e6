"""Continue a recorded run in the chat, from before the reply of one of its turns.

The conversation begins with what was sent then, with the sections that were open, and the model replies at once; the
recorded run stays as it is. You name the prompt: nothing is imported because a recording names it. It may be run on
another adapter, and with other texts (--tag).
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from itertools import chain
from typing import Any

from weakincentives.cli import selection
from weakincentives.cli.chat import converse
from weakincentives.cli.commands import number
from weakincentives.cli.output import UsageError, plural, progress
from weakincentives.cli.recordings import FILE_HELP, add_record_option, named_run, runs_file
from weakincentives.prompt import Prompt
from weakincentives.runtime import Message
from weakincentives.telemetry import RunStore, RunSummary, session_at

_MODULE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the id of a run, or its beginning")
    parser.add_argument("target", metavar="module:variable", nargs="?", help="its prompt")
    parser.add_argument("--turn", metavar="N", type=number(1), help="the turn to reply to again (default: the last)")
    parser.add_argument("--file", metavar="RUNS.DB", help=FILE_HELP)
    selection.add_prompt_options(parser)
    selection.add_adapter_option(parser)
    add_record_option(parser)
    parser.set_defaults(resume=None)


def run(arguments: argparse.Namespace) -> int:
    with RunStore(arguments.file or runs_file()) as store:
        recorded = named_run(store, arguments.run)
        if arguments.target is None:
            command = _command(store, recorded, arguments.run, arguments.words[1:])
            raise UsageError(f"name the prompt {recorded.prompt} of this run: {command}")
        prompt = selection.selected_prompt(arguments)
        if f"{prompt.ns}/{prompt.key}" != recorded.prompt:
            progress(f"{recorded.run_id} is a run of {recorded.prompt}, not of {prompt.ns}/{prompt.key}")
        turn = arguments.turn or recorded.turns
        session, params, missing = session_at(store, recorded.run_id, turn)
    _bind_recorded(prompt, params, arguments)
    for kind in dict.fromkeys(missing):
        progress(f"left out: {plural(missing.count(kind), 'event')} of {kind}, which cannot be read here")
    progress(f"from turn {turn} of {recorded.run_id}, after {plural(len(session[Message]), 'message')}")
    return converse(arguments, prompt, session, replies=True)


def _bind_recorded(prompt: Prompt[Any], params: Sequence[Any], arguments: argparse.Namespace) -> None:
    """Bind the recorded params that the prompt still takes and that the command line does not replace."""
    types = prompt.template.outline.params_types
    words = list(chain.from_iterable(arguments.params))
    replaced = set(map(type, selection.read_params(words, types)))
    for value in params:
        if type(value) in types and type(value) not in replaced:
            prompt.bind(value)


def _command(store: RunStore, run: RunSummary, name: str, words: Sequence[str]) -> str:
    """The command to type, with the module that the recording names: a guess, which only a person may act on."""
    rendered = store.turn(run.run_id, 1, with_messages=False).rendered
    target = "module:variable"
    if rendered is not None and _MODULE.fullmatch(str(rendered.module)):
        target = f"{rendered.module}:VARIABLE"
    options = list(words)
    options.remove(name)
    return shlex.join(["wink", "fork", name, target, *options])
