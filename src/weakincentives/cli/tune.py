"""Propose better summaries for the sections that cases miss.

Candidates are chosen on one half of the cases and tested once on the other. If they find more there, they are stored as
an override with a tag, pinned to the texts that they replace; `wink overrides diff` shows them. The sections that a
case needs are its field `sections`, or those that its recorded run opened. No model is needed: questions are ranked
again. With --adapter, a model adds candidates. If the tag has an override already, tuning starts from its summaries.

Exit codes: 0 adopted, or nothing to improve; 1 not adopted; 2 misuse, or a name that does not exist.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from weakincentives._base.display import Table
from weakincentives.cli.commands import number
from weakincentives.cli.eval import read_cases
from weakincentives.cli.output import UsageError, plural, print_json, print_line, print_prose, print_table, progress
from weakincentives.cli.selection import add_adapter_option, add_store_option, make_adapter, named_prompt, open_store

if TYPE_CHECKING:
    from weakincentives.evals import Tuning

LOG = ".wink/tuning.jsonl"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", metavar="module:variable", help="a PromptTemplate, a Prompt, or a function that returns one"
    )
    parser.add_argument("cases", metavar="CASES", help="a JSONL file of cases, or module:variable")
    parser.add_argument("--propose", action="store_true", help="print what would be changed, and store nothing")
    parser.add_argument("--tag", default="tuned", help="the tag of the override (default: tuned)")
    parser.add_argument(
        "--by",
        choices=["ranking", "summaries"],
        help="rank by all of a section's text, or by titles and summaries alone (default: as the prompt searches)",
    )
    parser.add_argument(
        "--within", type=number(1), default=5, metavar="K", help="found means among the first K (default: 5)"
    )
    add_adapter_option(parser, unset="(default: no model proposes)")
    add_store_option(parser)
    parser.add_argument("--log", default=LOG, metavar="FILE", help=f"every candidate and its score (default: {LOG})")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    from weakincentives.evals import CaseError, ModelProposer, tune

    prompt, cases = named_prompt(arguments.target), read_cases(arguments.cases)
    store = open_store(arguments)
    if store.resolve(prompt.template.descriptor, arguments.tag) is not None:
        prompt = prompt.with_overrides(store, arguments.tag)
    proposer = None if arguments.adapter is None else ModelProposer(make_adapter(arguments))
    try:
        found = tune(prompt, cases, tag=arguments.tag, by=arguments.by, within=arguments.within, propose=proposer)
    except CaseError as error:
        raise UsageError(str(error)) from None
    for failure in proposer.failures[:3] if proposer is not None else ():
        progress(f"the model proposed nothing for {failure}")
    _write_log(arguments.log, found)
    stored = found.adopted and not arguments.propose and found.override is not None
    if stored and found.override is not None:
        store.upsert(found.override)
    if arguments.json:
        print_json(_facts(found))
    else:
        _print(found, arguments, stored=stored)
    return 0 if found.adopted or not found.summaries else 1


def _print(found: Tuning, arguments: argparse.Namespace, *, stored: bool) -> None:
    if found.summaries:
        rows = [(key, text) for key, text in found.summaries.items()]
        print_table(Table(("section", "summary"), rows, flexible="summary"))
        print_line()
    for line in found.text.split("\n"):
        print_prose(line)
    print_line(f"{arguments.log} lists what was tried ({plural(len(found.log), 'candidate')})")
    if stored:
        print_line(
            f"stored with the tag {arguments.tag!r}: wink overrides diff {arguments.target} --tag {arguments.tag}"
        )
    elif found.adopted:
        print_line("nothing was stored, because of --propose")


def _write_log(file: str, found: Tuning) -> None:
    from weakincentives.telemetry import plain

    Path(file).parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(plain(candidate)) for candidate in found.log]
    Path(file).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _facts(found: Tuning) -> dict[str, object]:
    from weakincentives.telemetry import plain

    names = ("adopted", "reason", "summaries", "before", "after", "wins", "losses", "p", "held", "tokens")
    return {name: plain(getattr(found, name)) for name in names}
