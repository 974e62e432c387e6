"""Play with a prompt in the browser: open and close its sections, see text, tools, tokens and cache change, and run it.

Clicking a section shows it in full, as a summary, or not at all; other words for it become an override under a tag.
Runs are recorded and shown below. The page can write and spend, so it is served to this machine only, and only to who
has the token in the address.
"""

from __future__ import annotations

import argparse
import os
from contextlib import nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING

from weakincentives.cli.adapter import add_adapter_option, make_adapter
from weakincentives.cli.commands import default
from weakincentives.cli.recordings import add_record_option, recorder, runs_file
from weakincentives.cli.selection import add_store_option, named_prompt, open_store
from weakincentives.cli.view import add_server_options, show
from weakincentives.runtime import AdapterSpec, adapter_specs

if TYPE_CHECKING:
    from weakincentives.viewer import AdapterChoice


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", metavar="module:template", help="a PromptTemplate, a Prompt, or a function that returns one"
    )
    add_server_options(parser)
    add_adapter_option(parser)
    add_record_option(parser)
    add_store_option(parser)


def run(arguments: argparse.Namespace) -> int:
    from weakincentives.viewer import Playground, Viewer

    prompt = named_prompt(arguments.target)
    playground = Playground(
        prompt,
        adapters=choices(arguments.adapter or default("adapter")),
        make_adapter=lambda name: make_adapter(argparse.Namespace(adapter=name)),
        overrides=open_store(arguments),
    )
    file = runs_file(arguments.record)
    with recorder(arguments.record) or nullcontext():
        viewer = Viewer(file, port=arguments.port, playground=playground)
        notice = f"Playing with {arguments.target}; runs are recorded to {file}. Stop with Ctrl+C."
        return show(viewer, "#/play", notice, browser=not arguments.no_open)


def choices(given: str | None) -> list[AdapterChoice]:
    """The adapter that was asked for, then all others with what they lack."""
    from weakincentives.viewer import AdapterChoice

    found = [AdapterChoice(given)] if given else []
    for spec in adapter_specs():
        if spec.name != "scripted" and spec.provider != given:
            models = tuple(spec.prices)
            found.append(AdapterChoice(spec.provider, models, spec.requires_model, problem(spec)))
    return sorted(found, key=lambda choice: bool(choice.problem))


def problem(spec: AdapterSpec) -> str:
    """What the adapter lacks to run; empty if nothing is known to be missing."""
    if spec.package_needed and find_spec(spec.package_needed) is None:
        return f"pip install 'weakincentives[{spec.provider}]'"
    if spec.key_variable and not os.environ.get(spec.key_variable):
        return f"set {spec.key_variable}"
    return ""
