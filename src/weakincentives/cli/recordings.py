"""The run file that commands write to and read from, by default `.wink/runs.db`."""

from __future__ import annotations

import argparse
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from weakincentives.cli.commands import default
from weakincentives.cli.output import UsageError, progress

if TYPE_CHECKING:
    from weakincentives.telemetry import Recorder, RunStore, RunSummary

RUNS = ".wink/runs.db"
FILE_HELP = f"the run file [WINK_RECORD] (default: {RUNS})"


def add_record_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--record", metavar="FILE", help=f"record to this file [WINK_RECORD] (default: {RUNS})")


def runs_file(given: str | None = None) -> str:
    """The run file from the arguments, else from the settings, else the default."""
    return given or default("record") or RUNS


def recorder(given: str | None = None) -> Recorder | None:
    """A recorder for the run file; None, with a warning, if the default file cannot be written."""
    from weakincentives.telemetry import record

    file = runs_file(given)
    if file == RUNS:
        try:
            Path(RUNS).parent.mkdir(exist_ok=True)
            # Overrides in the same folder belong in version control; conversations do not.
            ignored = Path(RUNS).with_name(".gitignore")
            if not ignored.exists():
                ignored.write_text("runs.db*\n", encoding="utf-8")
            with Path(RUNS).open("ab"):
                pass
        except OSError as error:
            progress(f"not recorded: cannot write {RUNS} ({error.strerror}); pass --record FILE")
            return None
    return record(file)


def file_and_runs(words: list[str]) -> tuple[str, list[str]]:
    """The run file and the runs that the words name; a first word that names no file is a run of the default file."""
    if words and Path(words[0]).is_file():
        return words[0], words[1:]
    file = runs_file()
    # It may be a file that is missing, or a durable run: its id contains a slash, and its key may contain dots.
    if words and ("." in words[0] or "/" in words[0]):
        from weakincentives.telemetry import RunFileError, RunNotFoundError, RunStore

        try:
            with RunStore(file) as store:
                named_run(store, words[0])
        except (RunFileError, RunNotFoundError) as error:
            raise UsageError(f"there is no file {words[0]!r}, nor one run of that name: {error}") from None
    return file, words


def check_target(file: str | Path, target: str | Path | None) -> None:
    """Refuse to write an export over the run file that it comes from."""
    if target and Path(target).exists() and Path(target).samefile(file):
        raise UsageError(f"{target} is the run file itself; name another file to write to")


def named_run(store: RunStore, name: str | None = None) -> RunSummary:
    """The run whose id is or begins with this name; without a name, the newest."""
    if name is not None:
        from weakincentives.telemetry import RunNotFoundError

        try:
            return store.run(name)
        except RunNotFoundError as error:
            known = {run.run_id[: max(len(name), 4)]: run.run_id for run in store.list_runs(200)}
            # If it is the beginning of several, the error names some.
            close = [] if any(key.startswith(name) for key in known) else get_close_matches(name, known, n=1)
            hint = f"; did you mean {known[close[0]]!r}?" if close else ""
            raise RunNotFoundError(f"{str(error).rstrip('.')}{hint}") from None
    newest = store.list_runs(1)
    if not newest:
        raise UsageError(f"there are no runs in {store.path}")
    return newest[0]


def question(store: RunStore, run_id: str) -> str:
    """The user's message before the first reply of a run, or an empty string."""
    from weakincentives.telemetry import question_in

    said = ""
    for recorded in store.of_kinds(run_id, ["Message"], limit=8):
        if getattr(recorded.event, "role", "") == "assistant":
            break
        said = question_in(recorded.event) or said
    return said
