"""Advise which sections to show in full and which to summarize, from recorded runs.

Costs are expected costs per run. Give prices that are missing or out of date as --price MODEL=INPUT,OUTPUT[,CACHED],
in US dollars per million tokens.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from weakincentives.cli.output import UsageError, plural, print_json, print_line, progress, report_damage, table

if TYPE_CHECKING:
    from weakincentives.limits import Prices
    from weakincentives.telemetry import PromptAdvice, SectionAdvice


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="RUNS.DB", help="the run file, as passed to record() or --record")
    parser.add_argument("--last", type=int, default=100, metavar="N", help="use the newest N runs (default: 100)")
    parser.add_argument("--prompt", default="", metavar="NS/KEY", help="only runs of this prompt")
    parser.add_argument(
        "--price",
        action="append",
        default=[],
        metavar="MODEL=IN,OUT[,CACHED]",
        help="the price of a model; repeatable",
    )
    parser.add_argument(
        "--missed", action="store_true", help="list the sections that stayed closed and may have been needed, and why"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    from weakincentives.telemetry import RunStore, advise, plain
    from weakincentives.telemetry.prices import AS_OF

    prices = dict(map(price, arguments.price))
    with RunStore(arguments.file) as store:
        advice = advise(store, last=arguments.last, prompt=arguments.prompt, prices=prices)
        damage = report_damage(arguments.file, store.problems)
    if arguments.json:
        prompts = [plain(prompt) | {"saved": prompt.saved} for prompt in advice.prompts]
        print_json({"prices_as_of": AS_OF, "runs": advice.runs, "prompts": prompts})
        return damage
    if not advice.prompts:
        progress("no successful runs, so there is nothing to advise")
        return damage
    if arguments.missed:
        print_line("\n\n".join(describe_missed(prompt) for prompt in advice.prompts))
        return damage
    print_line("\n\n".join(describe(prompt) for prompt in advice.prompts))
    if any(prompt.unit == "USD" for prompt in advice.prompts):
        progress(f"prices as of {AS_OF} unless given with --price")
    return damage


def describe(prompt: PromptAdvice) -> str:
    rows = [
        (
            "  " * section.key.count(".") + section.key,
            section.shown,
            f"{section.opened_runs}/{section.runs}",
            "-" if section.first_use is None else f"{section.first_use:g}",
            f"{section.full_tokens:,}",
            "-" if section.summary_tokens is None else f"{section.summary_tokens:,}",
            amount(section.cost_full, prompt.unit),
            amount(section.cost_summary, prompt.unit),
            section.advised or "-",
            "; ".join((section.reason, *section.findings)),
        )
        for section in prompt.sections
    ]
    heading = ("section", "shown", "opened", "at turn", "full", "summary", "cost full", "cost summary", "advice", "why")
    share = f" ({prompt.saved / prompt.cost:.0%} less)" if prompt.cost and prompt.saved else ""
    return "\n".join(
        [
            f"{prompt.prompt}: {plural(prompt.runs, 'run')}, costs in {prompt.unit}; {prompt.cache_first:.0%} of first "
            f"requests and {prompt.cache_again:.0%} of repeated tokens came from the cache",
            "",
            table(heading, rows, right=(2, 3, 4, 5, 6, 7)),
            "",
            f"These runs cost {amount(prompt.cost, prompt.unit)}; with the advice they would have cost "
            f"{amount(prompt.cost_advised, prompt.unit)}{share}.",
            *changes(prompt.sections),
        ]
    )


def describe_missed(prompt: PromptAdvice) -> str:
    heading = f"{prompt.prompt}: {plural(prompt.runs, 'run')}"
    rows = [(section.key, reason) for section in prompt.sections for reason in section.misses]
    if not rows:
        return f"{heading}; no section seems to have been missed"
    return "\n".join([heading, "", table(("section", "why it may have been needed"), rows)])


def changes(sections: tuple[SectionAdvice, ...]) -> list[str]:
    return [
        f"Change '{section.key}' to visibility=SectionVisibility.{section.advised.upper()}."
        for section in sections
        if section.advised and section.advised != section.shown
    ]


def amount(cost: float | None, unit: str) -> str:
    if cost is None:
        return "-"
    return f"${cost:.6f}" if unit == "USD" else f"{cost:,.0f}"


def price(text: str) -> tuple[str, Prices]:
    from weakincentives.limits import Prices

    model, _, numbers = text.rpartition("=")
    try:
        given = [float(number) for number in numbers.split(",")]
        if not model or len(given) not in (2, 3):
            raise ValueError
        return model, Prices(*given)
    except ValueError:
        raise UsageError(f"--price takes MODEL=INPUT,OUTPUT or MODEL=INPUT,OUTPUT,CACHED, got {text!r}") from None
