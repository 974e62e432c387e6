"""Advise which sections to show in full and which to summarize, from recorded runs.

What to change comes first, and the prompt where it saves most. Sections without advice are only counted, unless you
pass --all. Costs are expected costs per run. Give prices that are
missing or out of date as --price MODEL=INPUT,OUTPUT[,CACHED], in US dollars per million tokens.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from weakincentives._base.display import Table
from weakincentives.cli.commands import number
from weakincentives.cli.output import (
    UsageError,
    did_you_mean,
    plural,
    print_json,
    print_line,
    print_prose,
    print_table,
    progress,
    report_damage,
)
from weakincentives.cli.recordings import FILE_HELP, runs_file

if TYPE_CHECKING:
    from weakincentives.limits import Prices
    from weakincentives.telemetry import PromptAdvice, SectionAdvice


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", metavar="RUNS.DB", help=FILE_HELP)
    parser.add_argument("--last", type=number(1), default=100, metavar="N", help="use the newest N runs (default: 100)")
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
    parser.add_argument("--all", action="store_true", help="list sections without advice as well")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    from weakincentives.telemetry import AS_OF, RunStore, advise, plain

    prices = dict(map(price, arguments.price))
    file = runs_file(arguments.file)
    with RunStore(file) as store:
        advice = advise(store, last=arguments.last, prompt=arguments.prompt, prices=prices)
        if arguments.prompt and not advice.prompts:
            known = [group["key"] for group in store.groups("prompt")]
            if arguments.prompt not in known:
                hint = did_you_mean(arguments.prompt, known)
                raise UsageError(f"no runs of {arguments.prompt!r}; there are runs of {', '.join(known)}{hint}")
        damage = report_damage(file, store.problems)
    if arguments.json:
        prompts = [plain(prompt) | {"saved": prompt.saved} for prompt in advice.prompts]
        print_json({"prices_as_of": AS_OF, "runs": advice.runs, "prompts": prompts})
        return damage
    if not advice.prompts:
        progress("no successful runs, so there is nothing to advise")
        return damage
    if arguments.missed:
        for prompt in advice.prompts:
            print_missed(prompt)
        return damage
    for index, prompt in enumerate(sorted(advice.prompts, key=by_saving)):
        if index:
            print_line()
        print_advice(prompt, every=arguments.all)
    if any(prompt.unit == "USD" for prompt in advice.prompts):
        progress(f"prices as of {AS_OF} unless given with --price")
    return damage


def print_advice(prompt: PromptAdvice, *, every: bool) -> None:
    """Print what to change and what that saves, then the reasons by section."""
    changes = list(filter(changed, prompt.sections))
    print_prose(f"{prompt.prompt}: {outcome(prompt, advised=bool(changes))}", style="1")
    for section in changes:
        do = "Keep" if section.shown == "mixed" else "Change"
        whole = " in every run" if section.shown == "mixed" else ""
        to = f"visibility=SectionVisibility.{section.advised.upper()}"
        print_prose(f"{do} '{section.key}' {'at' if whole else 'to'} {to}{whole}.", style="1")
    shown = [section for section in prompt.sections if every or changed(section) or section.misses]
    if shown:
        print_line()
        print_sections(shown, prompt.unit)
    print_line()
    if fine := len(prompt.sections) - len(shown) if is_enough(prompt) else 0:
        noun = "other section" if shown else "section"
        print_line(f"{plural(fine, noun)} {'is' if fine == 1 else 'are'} best left as declared.")
    counted = "" if prompt.unit == "USD" else "An output token counts as 5 input tokens, a cached one as 0.1. "
    cache = "No cache was reported."
    if prompt.cache_first or prompt.cache_again:
        first, again = f"{prompt.cache_first:.0%} of first requests", f"{prompt.cache_again:.0%} of repeated tokens"
        cache = f"{first} and {again} came from the cache."
    print_prose(f"{counted}{cache}", style="2")


def outcome(prompt: PromptAdvice, *, advised: bool) -> str:
    """What the runs of a prompt cost, and would have cost with the advice, if there is some."""
    from weakincentives.telemetry import MIN_RUNS

    cost = f"{plural(prompt.runs, 'run')} cost {with_unit(prompt.cost, prompt.unit)}"
    if advised:
        share = f", {prompt.saved / prompt.cost:.0%} less" if prompt.cost and prompt.saved else ""
        return f"{cost}; with this advice {with_unit(prompt.cost_advised, prompt.unit)}{share}"
    return f"{cost}; {'nothing to change' if is_enough(prompt) else f'advice needs at least {MIN_RUNS} runs'}"


def print_sections(sections: Sequence[SectionAdvice], unit: str) -> None:
    rows = [
        (
            "  " * section.key.count(".") + section.key,
            section.shown,
            f"{section.opened_runs}/{section.runs}",
            "-" if section.first_use is None else f"{section.first_use:g}",
            "-" if section.full_tokens is None else f"{section.full_tokens:,}",
            "-" if section.summary_tokens is None else f"{section.summary_tokens:,}",
            amount(section.cost_full, unit),
            amount(section.cost_summary, unit),
            section.advised or "-",
            "; ".join((section.reason, *section.findings)),
        )
        for section in sections
    ]
    heading = ("section", "shown", "opened", "at turn", "full", "summary", "cost full", "cost summary", "advice", "why")
    drop = ("cost summary", "cost full", "at turn", "summary", "full", "opened", "shown", "why")
    print_table(Table(heading, rows, heading[2:8], drop=drop, flexible="why"), styles={"full": "32", "summary": "36"})


def is_enough(prompt: PromptAdvice) -> bool:
    from weakincentives.telemetry import MIN_RUNS

    return prompt.runs >= MIN_RUNS


def by_saving(prompt: PromptAdvice) -> tuple[bool, float]:
    """The order of prompts: the largest share saved first, those with too few runs last."""
    return not is_enough(prompt), -(prompt.saved / prompt.cost if prompt.cost else 0.0)


def changed(section: SectionAdvice) -> bool:
    return bool(section.advised) and section.advised != section.shown


def print_missed(prompt: PromptAdvice) -> None:
    heading = f"{prompt.prompt}: {plural(prompt.runs, 'run')}"
    rows = [(section.key, reason) for section in prompt.sections for reason in section.misses]
    if not rows:
        print_line(f"{heading}; no section seems to have been missed")
        return
    print_line(f"{heading}\n")
    print_table(Table(("section", "why it may have been needed"), rows, flexible="why it may have been needed"))


def amount(cost: float | None, unit: str) -> str:
    if cost is None:
        return "-"
    return f"${cost:.6f}" if unit == "USD" else f"{cost:,.0f}"


def with_unit(cost: float, unit: str) -> str:
    return amount(cost, unit) if unit == "USD" else f"{amount(cost, unit)} {unit}"


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
