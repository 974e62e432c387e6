"""Run a prompt on cases, compare two evaluations case by case, show them, make cases of recorded runs, check a judge;
alone it lists the evaluations.

CASES is a JSONL file, or module:variable. Without --scorer, the answer must contain what a case expects, and, if all
cases name sections, the run must open them. An interrupted evaluation continues where it stopped. With `-a recorded`,
the model replies as in the cases' recordings, and nothing is sent anywhere.

Exit codes: 0 all cases passed; 1 some did not (compare: a case that passed before fails now, or no case was scored in
both); 2 misuse, or a name that does not exist.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weakincentives._base.display import Table, one_line, shortened
from weakincentives.cli.commands import number, tag
from weakincentives.cli.output import (
    UsageError,
    Wait,
    dollars,
    meter,
    overwrite_echo,
    plural,
    print_json,
    print_line,
    print_prose,
    print_table,
    progress,
    reason,
)
from weakincentives.cli.recordings import FILE_HELP, RUNS, check_target, recorder, runs_file
from weakincentives.cli.selection import (
    add_adapter_option,
    add_store_option,
    made_by,
    make_adapter,
    resolve,
    selected_prompt,
)
from weakincentives.errors import WinkError
from weakincentives.prompt import Prompt, PromptTemplate, Tool

if TYPE_CHECKING:
    from weakincentives.evals import Case, CaseResult, Comparison, Evaluation, Judge
    from weakincentives.limits import Budget

STYLES = {"passed": "32", "failed": "31", "diverged": "33", "unscored": "33"}
RECORDED = "recorded"
SCORERS = "contains[=TEXT], equals, opened[=KEY], not_opened[=KEY], called=NAME, max_calls=N, max_tokens=N, max_cost=X"
LABELS = {"1": True, "true": True, "pass": True, "passed": True, "yes": True, "good": True, "c": True} | dict.fromkeys(
    ("0", "false", "fail", "failed", "no", "bad", "i"), False
)


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb")
    parser.set_defaults(verb="show")
    run = verbs.add_parser("run", help="run a prompt on cases and score the answers")
    _configure_run(run)
    compare = verbs.add_parser("compare", help="compare two evaluations case by case; B is judged against A")
    compare.add_argument("before", metavar="A", help="the name or id of an evaluation")
    compare.add_argument("after", metavar="B", help="the one to judge against it")
    compare.add_argument(
        "--judge", metavar="TEXT", help="also ask a model which answers meet this better, in both orders"
    )
    add_adapter_option(compare)
    show = verbs.add_parser("show", help="show one evaluation, or list all")
    show.add_argument("name", nargs="?", metavar="NAME", help="the name or id of an evaluation (default: list all)")
    cases = verbs.add_parser("cases", help="make cases of recorded runs, as JSONL")
    cases.add_argument("names", nargs="*", metavar="RUNS", help=f"run ids; a run file may come first (default: {RUNS})")
    cases.add_argument(
        "--where",
        action="append",
        default=[],
        type=tag,
        metavar="KEY=VALUE",
        help="only runs with this tag; repeatable",
    )
    cases.add_argument("--from", dest="source", metavar="CASES", help="convert this file of cases instead")
    cases.add_argument("--inspect", action="store_true", help="write samples of inspect-ai, without recordings")
    cases.add_argument("--output", "-o", metavar="FILE", help="write to a file instead of stdout")
    judge = verbs.add_parser("judge", help="compare a judge's verdicts with a person's labels")
    judge.add_argument("cases", metavar="CASES", help="cases with answers: of recorded runs, or with a field output")
    judge.add_argument("--labels", required=True, metavar="FILE", help="JSONL or CSV with the fields id and passed")
    judge.add_argument("--criterion", required=True, metavar="TEXT", help="what an answer must meet")
    add_adapter_option(judge)
    for verb in (run, compare, show, judge):
        verb.add_argument("--file", metavar="RUNS.DB", help=FILE_HELP)
        verb.add_argument("--json", action="store_true", help="print JSON")


def _configure_run(run: argparse.ArgumentParser) -> None:
    run.add_argument("cases", metavar="CASES", help="a JSONL file of cases, or module:variable")
    run.add_argument(
        "target", metavar="module:variable", help="a PromptTemplate, a Prompt, or a function that returns one"
    )
    add_adapter_option(run, also=f"{RECORDED}, ")
    run.add_argument("--name", help="the name of the evaluation (default: the prompt's)")
    run.add_argument(
        "--scorer",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help=f"{SCORERS}, or module:function; repeatable",
    )
    run.add_argument(
        "--repeats", type=number(1), default=1, metavar="N", help="run each case this many times (default: 1)"
    )
    run.add_argument(
        "--limit", type=number(1), default=4, metavar="N", help="run at most this many at a time (default: 4)"
    )
    run.add_argument(
        "--tools",
        choices=["live", "recorded", "recorded-or-read-only"],
        help="run tools, or return what the cases' recordings have (default: live; recorded with -a recorded)",
    )
    run.add_argument(
        "--decide",
        metavar="HOW",
        help="decide about calls that wait: approve, deny, or module:variable with a rule or a mapping by tool",
    )
    run.add_argument(
        "--again",
        nargs="?",
        const="all",
        choices=["all", "unscored"],
        help="run finished cases again, or only unscored ones",
    )
    run.add_argument(
        "--max-cost", type=number(0, kind=float), metavar="DOLLARS", help="start no further case once this is spent"
    )
    run.add_argument("--max-tokens", type=number(1), metavar="N", help="start no further case after this many tokens")
    run.add_argument(
        "--timeout",
        type=number(0.001, 1_000_000, kind=float),
        metavar="SECONDS",
        help="stop a case after this many seconds",
    )
    run.add_argument("--tag", help="apply the stored overrides with this tag")
    add_store_option(run)


def run(arguments: argparse.Namespace) -> int:
    return int(_VERBS[arguments.verb](arguments))


def run_cases(arguments: argparse.Namespace) -> int:
    from weakincentives.evals import CaseError, EvaluationBusyError, UnknownPriceError, evaluate

    cases = read_cases(arguments.cases)
    arguments.params = []
    prompt = selected_prompt(arguments)
    replayed = arguments.adapter == RECORDED
    scorers = [scorer for word in arguments.scorer for scorer in [make_scorer(word)]] or default_scorers(cases)
    total = _total_budget(arguments)
    file = _file_to_write(arguments)
    adapter: Any = RECORDED if replayed else make_adapter(arguments, progress=_read_quietly)
    tools: Any = arguments.tools or (RECORDED if replayed else "live")
    again: Any = {"all": True, "unscored": "unscored", None: False}[arguments.again]
    ran: list[CaseResult] = []

    def ran_one(done: int, total: int, result: CaseResult) -> None:
        ran.append(result)
        show_progress(done, total, result)

    label = f"running {plural(len(cases), 'case')}"
    name = arguments.name or f"{prompt.ns}/{prompt.key}"
    if arguments.tag and not arguments.name:
        name += f"@{arguments.tag}"
    count = len(cases) * arguments.repeats
    try:
        with Wait(label, shown=sys.stderr.isatty(), stream=sys.stderr, at_once=True):
            meter(f"0 of {count} cases", 0, count)
            evaluation = _with_notes(
                evaluate,
                cases,
                prompt,
                adapter,
                scorers,
                repeats=arguments.repeats,
                limit=arguments.limit,
                tools=tools,
                decisions=_decisions(arguments.decide),
                name=name,
                file=file,
                again=again,
                total=total,
                timeout=arguments.timeout,
                progress=ran_one,
            )
    except (CaseError, EvaluationBusyError) as error:
        raise UsageError(str(error)) from None
    except KeyboardInterrupt:
        overwrite_echo()
        progress("the same command goes on with the cases that are left")
        raise
    except UnknownPriceError as error:
        raise UsageError(f"--max-cost: the prices of model {error.model!r} are not listed; use --max-tokens") from None
    finally:
        if not replayed:
            adapter.close()
    _print_evaluation(evaluation, arguments)
    _note_missing(evaluation, file, ran=bool(ran))
    return 0 if evaluation.finished and all(each.verdict == "passed" for each in evaluation.results) else 1


def _total_budget(arguments: argparse.Namespace) -> Budget | None:
    from weakincentives.limits import Budget

    if arguments.max_cost is None and arguments.max_tokens is None:
        return None
    return Budget(max_cost=arguments.max_cost, max_total_tokens=arguments.max_tokens)


def _decisions(how: str | None) -> Any:
    """What decides about calls that wait for a person."""
    from weakincentives.evals import approve_all, deny_all

    rules = {None: None, "approve": approve_all, "deny": deny_all}
    return rules[how] if how in rules else resolve(str(how))


def _read_quietly(tokens: int, total: int) -> None:
    """The bar counts cases; what is read for one of them is not shown."""


def _with_notes(function: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Call a function, and print its warnings as a person reads them, without the line of code."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        progress(f"note: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        return function(*given, **named)


def _note_missing(evaluation: Evaluation, file: str, *, ran: bool) -> None:
    """Say why an earlier evaluation of this name was not continued, or why cases were not run."""
    from weakincentives.evals import list_evaluations

    same = [each for each in list_evaluations(file) if each.name == evaluation.name and each.id != evaluation.id]
    if same and not same[0].finished:
        progress(
            f"note: an earlier {evaluation.name!r} was not finished and not continued: its prompt, model, scorers or "
            f"cases differ (wink eval show {same[0].id})"
        )
    if not evaluation.finished:
        missing = len(evaluation.cases) * evaluation.repeats - len(evaluation.results)
        progress(f"{plural(missing, 'case')} not run: the limit was reached; run it again with a higher one")
    elif not ran:
        progress(f"no case was run: {evaluation.name!r} has all of them already; --again runs them again")


def show_progress(done: int, total: int, result: CaseResult) -> None:
    """A bar on a terminal; a line per case in a pipe."""
    if sys.stderr.isatty():
        meter(f"{done} of {total} cases", done, total)
    else:
        because = f": {shortened(result.reason, 500)}" if result.verdict != "passed" and result.reason else ""
        progress(one_line(f"{done}/{total} {result.case_id} {result.verdict}{because}"))


def compare_evaluations(arguments: argparse.Namespace) -> int:
    from weakincentives.evals import compare, load_evaluation

    file = runs_file(arguments.file)
    before, after = (load_evaluation(file, name) for name in (arguments.before, arguments.after))
    found = compare(before, after) if arguments.judge is None else _judged_pairs(before, after, arguments)
    if arguments.json:
        print_json(comparison_facts(found))
    else:
        print_comparison(found)
    return 1 if found.regressed or not found.cases else 0


def _judged_pairs(before: Evaluation, after: Evaluation, arguments: argparse.Namespace) -> Comparison:
    from weakincentives.evals import Judge, compare
    from weakincentives.evals.results import ResultFile

    with make_adapter(arguments) as adapter, ResultFile(runs_file(arguments.file)) as kept:
        judge = Judge(adapter, arguments.judge, pairs=True)
        judge.use(kept, after.model)
        return compare(before, after, judge=judge)


def print_comparison(found: Comparison) -> None:
    print_line(f"{found.names[1]} compared with {found.names[0]}\n")
    for shown in list(found._display()):
        if isinstance(shown, Table):
            print_line()
            print_table(shown)
        else:
            print_prose(str(shown))


def comparison_facts(found: Comparison) -> dict[str, Any]:
    from weakincentives.telemetry import plain

    facts: dict[str, Any] = plain(found)
    for each in facts["differing"]:
        each["runs"] = [result["run_id"] for result in each.pop("results")]
    return {**facts, "regressed": list(found.regressed), "text": found.text}


def show_evaluations(arguments: argparse.Namespace) -> int:
    from weakincentives.evals import list_evaluations, load_evaluation

    file = runs_file(arguments.file)
    if arguments.name is not None:
        _print_evaluation(load_evaluation(file, arguments.name), arguments)
        return 0
    found = list_evaluations(file)
    if arguments.json:
        print_json([_facts(each) for each in found])
        return 0
    if not found:
        print_prose(f"There are no evaluations in {file}; `wink eval run` makes one.")
        return 0
    rows = [
        (
            each.id,
            each.name,
            each.variant,
            each.model,
            f"{each.count('passed')} of {len(each.cases) * each.repeats}",
            str(each.count("diverged") + each.count("unscored")),
            "-" if each.mean is None else f"{each.mean:.2f}",
            "yes" if each.finished else "no",
        )
        for each in found
    ]
    heading = ("id", "name", "prompt", "model", "passed", "not scored", "mean", "finished")
    drop = ("not scored", "id", "finished", "model", "mean", "prompt")
    print_table(Table(heading, rows, right=("passed", "not scored", "mean"), drop=drop, flexible="name"))
    return 0


def make_cases(arguments: argparse.Namespace) -> int:
    from weakincentives.evals import Case, cases_from_runs

    names, file = list(arguments.names), runs_file()
    if names and Path(names[0]).is_file():
        file = names.pop(0)
    if arguments.source:
        cases = read_cases(arguments.source)
    else:
        cases = cases_from_runs(file, dict(arguments.where), run_ids=names)
        if not cases:
            raise UsageError(f"no answered run in {file} fits; `wink runs list` shows those it has")
    form = Case.as_inspect if arguments.inspect else Case.as_json
    check_target(file, arguments.output) if Path(file).exists() else None
    lines = [json.dumps(form(case)) for case in cases]
    if arguments.output is None:
        for line in lines:
            print_line(line)
        return 0
    try:
        Path(arguments.output).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {arguments.output}: {error.strerror}") from error
    progress(f"{plural(len(cases), 'case')} in {arguments.output}")
    return 0


def check_judge(arguments: argparse.Namespace) -> int:
    from dataclasses import replace

    from weakincentives.evals import Judge, counting_judges
    from weakincentives.evals.results import ResultFile

    labels = _labels(arguments.labels)
    cases = [case for case in read_cases(arguments.cases) if case.id in labels]
    if not cases:
        raise UsageError(f"no case of {arguments.cases} has a label in {arguments.labels}")
    answers = {case.id: _answer(case) for case in cases}
    if unknown := [label for label in labels if label not in answers]:
        progress(f"note: {plural(len(unknown), 'label')} without a case: {shortened(', '.join(unknown), 200)}")
    with make_adapter(arguments) as adapter, ResultFile(_file_to_write(arguments)) as kept:
        judge = Judge(adapter, arguments.criterion)
        judge.use(kept)
        with counting_judges() as spent:
            found = replace(judged(judge, cases, labels), cost=spent.cost)
    if arguments.json:
        from weakincentives.telemetry import plain

        print_json(plain(found))
        return 0
    shares = {"kappa": found.kappa, "sensitivity": found.sensitivity, "specificity": found.specificity}
    print_line(f"{plural(found.labelled + found.unscored, 'label')}, {found.unscored} not judged")
    for name, share in shares.items():
        print_line(f"{name}: {'-' if share is None else f'{share:.2f}'}")
    print_line(f"flips when asked twice: {found.flips}")
    if found.length_correlation is not None:
        print_line(f"correlation of verdict and length: {found.length_correlation:+.2f}")
    if found.cost:
        print_line(f"cost: {dollars(found.cost)}")
    return 0


def judged(judge: Judge, cases: Sequence[Case], labels: dict[str, bool]) -> Any:
    """Ask the judge about each answer, twice, and compare its verdicts with the labels."""
    from dataclasses import replace
    from statistics import StatisticsError, correlation

    from weakincentives.evals import Unscored, agreement

    truth, verdicts, lengths = list[bool](), list[bool](), list[int]()
    flips = unscored = 0
    for done, case in enumerate(cases, start=1):
        answer = _answer(case)
        try:
            first = judge.judge(case.question, answer, case.expected)
            second = judge.judge(case.question, answer, case.expected, fresh=True)
        except (WinkError, Unscored) as error:
            unscored += 1
            progress(f"{case.id} was not judged: {error}")
            continue
        truth.append(labels[case.id])
        verdicts.append(first.passed)
        lengths.append(len(answer))
        flips += first.passed != second.passed
        meter(f"{done} of {len(cases)} answers", done, len(cases))
    try:
        related: float | None = correlation([float(v) for v in verdicts], [float(n) for n in lengths])
    except StatisticsError:
        related = None
    return replace(agreement(truth, verdicts, flips, unscored), length_correlation=related)


def read_cases(target: str) -> tuple[Case, ...]:
    """The cases of a file, or those that a module has."""
    from weakincentives.evals import Case, CaseError, load_cases

    try:
        if Path(target).is_file():
            return load_cases(target)
        if ":" not in target:
            raise UsageError(f"there is no file {target!r}; CASES is a JSONL file, or module:variable")
        value: Any = resolve(target, tuple, list)
        if callable(value) and not isinstance(value, type | Tool):
            value = made_by(value, target)
        cases = tuple(value) if isinstance(value, Iterable) else ()
    except CaseError as error:
        raise UsageError(str(error)) from None
    if isinstance(value, Prompt | PromptTemplate):
        raise UsageError(f"{target!r} is a prompt, where CASES are expected: a JSONL file, or module:variable")
    if not cases or not all(isinstance(case, Case) for case in cases):
        raise UsageError(f"{target!r} must be a list of Case, or a function that returns one")
    return cases


def default_scorers(cases: Sequence[Case]) -> list[Any]:
    """The answer contains what is expected, and the sections are opened that the cases name."""
    from weakincentives.evals import contains, opened

    found = [contains()] if any(case.expected is not None for case in cases) else []
    found += [opened()] if all(case.metadata.get("sections") is not None for case in cases) else []
    if not found:
        raise UsageError(f"the cases expect nothing; give them 'expected' or 'sections', or pass --scorer: {SCORERS}")
    return found


def make_scorer(text: str) -> Any:
    """A scorer by its name, with its argument after an equals sign, or one of the user's own."""
    from weakincentives import evals

    name, given, value = text.partition("=")
    if ":" in name:
        found = resolve(text)
        found = found() if isinstance(found, type) else found
        if not callable(found):
            raise UsageError(
                f"--scorer {text}: a scorer is a function of the finished run, got {shortened(repr(found), 80)}"
            )
        return found
    plain_names = {"contains": str, "equals": str, "opened": str, "not_opened": str}
    needing = {"called": str, "max_calls": int, "max_tokens": int, "max_cost": float}
    if name not in {*plain_names, *needing}:
        raise UsageError(f"no scorer {name!r}; there are {SCORERS}, or module:function")
    if name in needing and not given:
        raise UsageError(f"--scorer {name} needs a value, as in {name}={'TOOL' if name == 'called' else 3}")
    try:
        return getattr(evals, name)(*([{**plain_names, **needing}[name](value)] if given else []))
    except ValueError:
        raise UsageError(f"--scorer {text}: {value!r} must be a number") from None


def _print_evaluation(evaluation: Evaluation, arguments: argparse.Namespace) -> None:
    from weakincentives.evals.results import results_table

    if arguments.json:
        print_json(_facts(evaluation))
        return
    print_table(results_table(evaluation.results), styles=STYLES)
    print_prose(f"\n{evaluation}")
    if evaluation.tag:
        print_prose(f"prompt: {evaluation.variant}")


def _facts(evaluation: Evaluation) -> dict[str, Any]:
    from weakincentives.telemetry import plain

    names = ("variant", "mean", "pass_rate", "finished", "cost", "judge_cost")
    return {**plain(evaluation), **{name: getattr(evaluation, name) for name in names}}


def _file_to_write(arguments: argparse.Namespace) -> str:
    file = runs_file(arguments.file)
    if file == RUNS and recorder() is None:
        raise UsageError(f"results need a run file; {RUNS} cannot be written, pass --file RUNS.DB")
    return file


def _answer(case: Case) -> str:
    found = (case.recording or {}).get("answer") or next(
        (case.metadata[name] for name in ("output", "actual_output") if case.metadata.get(name)), None
    )
    if not found:
        raise UsageError(f"case {case.id!r} has no answer; make cases of recorded runs, or add a field 'output'")
    return str(found)


def _labels(file: str) -> dict[str, bool]:
    try:
        with open(file, encoding="utf-8-sig", newline="") as source:
            lines: Any = (
                list(csv.DictReader(source))
                if file.endswith(".csv")
                else [json.loads(line) for line in source if line.strip()]
            )
    except (OSError, ValueError) as error:
        raise UsageError(f"--labels {file}: {reason(error)}") from None
    found: dict[str, bool] = {}
    for line in lines:
        label = str(next((line[name] for name in ("passed", "label", "score") if name in line), "")).lower()
        if "id" not in line or label not in LABELS:
            raise UsageError(f"--labels {file}: each line needs id and passed (true or false), got {line!r}")
        found[str(line["id"])] = LABELS[label]
    return found


_VERBS = {
    "run": run_cases,
    "compare": compare_evaluations,
    "show": show_evaluations,
    "cases": make_cases,
    "judge": check_judge,
}
