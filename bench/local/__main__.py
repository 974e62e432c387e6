"""`python -m bench.local [--model GGUF] [--set test] [--schemas 500]`: the figures of docs/models/local.md."""

from __future__ import annotations

import argparse
import sys

from bench.local.desk import SETS, Outcome, Result, measure
from bench.local.schemas import run_schemas
from weakincentives.adapters.local import LocalAdapter


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.local", description="Measure the local adapter.")
    parser.add_argument("--model", help="a language model in a GGUF file")
    parser.add_argument("--replies", choices=("auto", "quote", "compose"), default="auto")
    parser.add_argument("--ranker", help="'words', or an embedding model in a GGUF file")
    parser.add_argument("--set", choices=SETS, action="append", help="which questions (default: all sets)")
    parser.add_argument("--limit", type=int, help="only the first so many questions are asked")
    parser.add_argument("--verbose", action="store_true", help="tell every question on stderr")
    parser.add_argument("--schemas", type=int, metavar="N", help="instead: N runs with random tools and outputs")
    arguments = parser.parse_args(argv)
    if arguments.schemas:
        with LocalAdapter(arguments.model, replies="compose") as adapter:
            return run_schemas(adapter, arguments.schemas)
    with LocalAdapter(arguments.model, replies=arguments.replies, ranker=arguments.ranker) as adapter:
        print(f"{adapter.model}, {'compose' if adapter.composes else 'quote'}, ranked by {adapter.relevance.name}\n")
        print(
            "| questions | right section first | opened | needed fact | in its own words "
            "| refused wrongly | refused rightly | sent | all open | s |"
        )
        print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
        for name in arguments.set or SETS:
            result = measure(adapter, name, report if arguments.verbose else None, arguments.limit)
            print(line(name, result), flush=True)
    return 0


def line(name: str, result: Result) -> str:
    counted = [f"{result.count(what)} ({result.share(what):.0f}%)" for what in ("section", "found", "fact", "composed")]
    refused = ["{} of {}".format(*result.refused(answerable=known)) for known in (True, False)]
    figures = [*counted, *refused, f"{result.tokens:,.0f}", f"{result.full:,}", f"{result.seconds:.1f}"]
    return f"| {len(result.answerable)} {name} | {' | '.join(figures)} |"


def report(outcome: Outcome) -> None:
    refused = "refused" if outcome.refused else "not refused"
    verdict = f"{'right' if outcome.section else 'wrong'} section, {'with' if outcome.fact else 'without'} the fact"
    print(f"{outcome.question}  ({verdict if outcome.wanted else refused}, {outcome.seconds:.1f} s)", file=sys.stderr)
    print(f"  opened {outcome.opened}, wanted {outcome.wanted}; called {outcome.called}", file=sys.stderr)
    print(f"  {outcome.answer}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
