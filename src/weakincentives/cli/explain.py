"""Show what a run would show, hide and cost before you run it."""

from __future__ import annotations

import argparse

from weakincentives.cli import selection
from weakincentives.cli.adapter import add_adapter_option, make_adapter
from weakincentives.cli.output import print_json, print_line, terminal_width
from weakincentives.serde import dump


def configure(parser: argparse.ArgumentParser) -> None:
    selection.configure(parser)
    add_adapter_option(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    prompt = selection.selected_prompt(arguments)
    overrides = selection.opened(arguments, prompt)
    explanation = make_adapter(arguments).explain(prompt, visibility_overrides=overrides)
    if arguments.json:
        print_json(dump(explanation))
    else:
        print_line(explanation.render(terminal_width()))
    return 0
