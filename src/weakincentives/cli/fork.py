"""Continue a recorded run in the chat, from before the reply of one of its turns.

The conversation begins with what was sent then, with the sections that were open, and the model replies at once; the
recorded run stays as it is. The prompt is found in the module that made it, unless you name it. It may be run on
another adapter, and with other texts (--tag).
"""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from importlib import import_module

from weakincentives.cli import selection
from weakincentives.cli.chat import converse
from weakincentives.cli.commands import number
from weakincentives.cli.output import UsageError, plural, progress
from weakincentives.cli.recordings import FILE_HELP, add_record_option, named_run, runs_file
from weakincentives.prompt import Prompt, PromptTemplate
from weakincentives.runtime import Message
from weakincentives.telemetry import RunStore, RunSummary, session_at


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the id of a run, or its beginning")
    parser.add_argument("target", metavar="module:variable", nargs="?", help="its prompt, if it cannot be found")
    parser.add_argument("--turn", metavar="N", type=number(1), help="the turn to reply to again (default: the last)")
    parser.add_argument("--file", metavar="RUNS.DB", help=FILE_HELP)
    selection.add_prompt_options(parser)
    selection.add_adapter_option(parser)
    add_record_option(parser)
    parser.set_defaults(resume=None)


def run(arguments: argparse.Namespace) -> int:
    with RunStore(arguments.file or runs_file()) as store:
        found = named_run(store, arguments.run)
        arguments.target = arguments.target or _target(store, found)
        prompt = selection.selected_prompt(arguments)
        if (prompt.ns, prompt.key) != tuple(found.prompt.split("/", 1)):
            progress(f"{found.run_id} is a run of {found.prompt}, not of {prompt.ns}/{prompt.key}")
        turn = arguments.turn or found.turns
        session, params, missing = session_at(store, found.run_id, turn)
    types = prompt.template.outline.params_types
    given = selection.read_params([word for group in arguments.params for word in group], types)
    prompt.bind(*(each for each in params if type(each) in {*types} - {*map(type, given)}))
    for kind in dict.fromkeys(missing):
        progress(f"left out: {plural(missing.count(kind), 'event')} of {kind}, which cannot be read here")
    progress(f"from turn {turn} of {found.run_id}, after {plural(len(session[Message]), 'message')}")
    return converse(arguments, prompt, session, replies=True)


def _target(store: RunStore, run: RunSummary) -> str:
    """The prompt of a run as module:variable, if the module that made it has it in a variable."""
    rendered = store.turn(run.run_id, 1, with_messages=False).rendered
    module = "" if rendered is None else rendered.module
    if module and selection.module_exists(module):
        with redirect_stdout(sys.stderr):
            variables = vars(import_module(module))
        for name, value in variables.items():
            if isinstance(value, Prompt | PromptTemplate) and f"{value.ns}/{value.key}" == run.prompt:
                return f"{module}:{name}"
    where = f"in {module!r}" if module else "by the recording"
    raise UsageError(f"prompt {run.prompt} is not found {where}; name it: wink fork {run.run_id} module:variable")
