"""Write recorded runs as ATIF trajectories, one JSON object per run, for Harbor, Phoenix, Braintrust and others.

A run is named by its id or the beginning of it; without one, all runs are written. `wink runs export` writes every
event instead, and `wink eval cases --inspect` writes runs as samples of inspect-ai.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from weakincentives.cli.output import UsageError, plural, progress
from weakincentives.cli.recordings import RUNS, check_target, file_and_runs, named_run


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names", nargs="*", metavar="RUN", help=f"the runs; a run file may come first [WINK_RECORD] (default: {RUNS})"
    )
    parser.add_argument("--atif", action="store_true", required=True, help="the format: ATIF v1.7")
    parser.add_argument("--output", "-o", metavar="FILE", help="write to a file instead of stdout")


def run(arguments: argparse.Namespace) -> int:
    from weakincentives.evals import trajectory
    from weakincentives.telemetry import RunStore

    file, names = file_and_runs(arguments.names)
    check_target(file, arguments.output)
    with RunStore(file) as store:
        wanted = [named_run(store, name).run_id for name in names]
        wanted = wanted or [run.run_id for run in store.list_runs(-1, order="started")]
        # JSON escapes keep lone surrogates and control characters out of the output.
        lines = (json.dumps(trajectory(store, run_id)) + "\n" for run_id in wanted)
        if not arguments.output:
            sys.stdout.writelines(lines)
            return 0
        try:
            Path(arguments.output).write_text("".join(lines), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write {arguments.output}: {error.strerror}") from error
    progress(f"{plural(len(wanted), 'run')} in {arguments.output}")
    return 0
