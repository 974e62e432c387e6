"""Open recorded runs in the browser: what the model saw at every turn, section by section.

The page is served to this machine only and follows runs while they are recorded. With --export nothing is served: one
run is written to an HTML file that opens from disk.
"""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from weakincentives.cli.output import UsageError, print_line, progress, progress_bar
from weakincentives.cli.recordings import FILE_HELP, named_run, runs_file

if TYPE_CHECKING:
    from weakincentives.viewer import Viewer

BAR_FROM = 2_000


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", metavar="RUNS.DB", help=FILE_HELP)
    add_server_options(parser)
    parser.add_argument("--export", metavar="FILE", help="write one run to an HTML file instead of serving")
    parser.add_argument(
        "--run", metavar="ID", help="the run to export or open (default: export the newest, open the list)"
    )


def add_server_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, help="the port (default: 7410, or any free one if that is taken)")
    parser.add_argument("--no-open", action="store_true", help="print the address without opening a browser")


def run(arguments: argparse.Namespace) -> int:
    from weakincentives.telemetry import RunStore

    file = runs_file(arguments.file)
    with RunStore(file) as store:
        run_id = named_run(store, arguments.run).run_id if arguments.run or arguments.export else ""
    if arguments.export:
        return export(file, run_id, Path(arguments.export))
    return serve(file, run_id, port=arguments.port, browser=not arguments.no_open)


def export(path: str, run_id: str, target: Path) -> int:
    from weakincentives.viewer import export_run

    page = export_run(path, run_id, tell_progress)
    try:
        target.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}") from error
    progress(f"wrote run {run_id} to {target} ({len(page) / 1e6:.1f} MB)")
    return 0


def tell_progress(done: int, total: int) -> None:
    """How far the export is; a short run is written before anybody looks."""
    if total > BAR_FROM:
        tenths = 10 * done // total
        progress_bar(f"[{'#' * tenths}{'.' * (10 - tenths)}] {done:,} of {total:,} events", step=tenths)


def serve(path: str, run_id: str, *, port: int | None, browser: bool) -> int:
    from weakincentives.viewer import Viewer

    page = f"#/run/{quote(run_id, safe='')}" if run_id else ""
    return show(Viewer(path, port=port), page, f"Serving {path}; stop with Ctrl+C.", browser=browser)


def show(viewer: Viewer, page: str, notice: str, *, browser: bool) -> int:
    """Serve until interrupted; the page is the part of the address behind `#`."""

    def started() -> None:
        print_line(viewer.url + page)
        progress(notice)
        if browser:
            webbrowser.open(viewer.url + page)

    try:
        viewer.run(started)
    except KeyboardInterrupt:
        progress("stopped")
    return 0
