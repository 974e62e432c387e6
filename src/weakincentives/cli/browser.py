"""Commands that open a page in the browser, to view recorded runs or to experiment with a prompt.

Viewing needs only the run file; what the playground needs is imported on demand.
"""

from __future__ import annotations

import argparse
import os
import webbrowser
from contextlib import ExitStack, nullcontext
from html import escape
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from urllib.parse import quote

from weakincentives.cli.commands import PORT, default
from weakincentives.cli.output import UsageError, meter, overwrite_echo, print_line, progress
from weakincentives.cli.recordings import FILE_HELP, add_record_option, check_target, named_run, recorder, runs_file

if TYPE_CHECKING:
    from weakincentives.runtime import AdapterSpec
    from weakincentives.viewer import AdapterChoice, Viewer

VIEW = """\
Open recorded runs in the browser: what the model saw at every turn, section by section.

The page is served to this machine only, to whoever has the token in the address, and follows runs while they are
recorded. With --export nothing is served: one run is written to an HTML file that opens from disk.
"""
PLAY = """\
Play with a prompt in the browser: open and close its sections, see text, tools, tokens and cache change, and run it.

A switch shows each section in full, as a summary, or not at all; edited text becomes an override under a tag.
Runs are recorded and shown below. The page can write and spend, so it is served to this machine only, and only to
whoever has the token in the address.
"""


def configure_view(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", metavar="RUNS.DB", help=FILE_HELP)
    _add_server_options(parser)
    parser.add_argument("--export", metavar="FILE", help="write one run to an HTML file instead of serving")
    parser.add_argument(
        "--run", metavar="ID", help="the run to export or open (default: export the newest, open the list)"
    )
    parser.add_argument(
        "--database-url", metavar="URL", help="decide about durable runs on their pages: a file or postgresql://..."
    )


def run_view(arguments: argparse.Namespace) -> int:
    from weakincentives.telemetry import RunStore

    file = runs_file(arguments.file)
    with RunStore(file) as store:
        is_named = arguments.run is not None or arguments.export is not None
        run_id = named_run(store, arguments.run).run_id if is_named else ""
    if arguments.export is not None:
        return _export(file, run_id, Path(arguments.export))
    return serve(file, run_id, port=arguments.port, browser=not arguments.no_open, database_url=arguments.database_url)


def serve(path: str, run_id: str, *, port: int | None, browser: bool, database_url: str | None = None) -> int:
    from weakincentives.viewer import Viewer

    page = f"#/run/{quote(run_id, safe='')}" if run_id else ""
    viewer = Viewer(path, port=port, database_url=database_url)
    return _show(viewer, page, f"Serving {path}; stop with Ctrl-C.", browser=browser)


def configure_play(parser: argparse.ArgumentParser) -> None:
    from weakincentives.cli.selection import add_adapter_option, add_store_option

    parser.add_argument(
        "target", metavar="module:variable", help="a PromptTemplate, a Prompt, or a function that returns one"
    )
    _add_server_options(parser)
    add_adapter_option(parser)
    add_record_option(parser)
    add_store_option(parser)


def run_play(arguments: argparse.Namespace) -> int:
    from weakincentives.cli.selection import make_adapter, named_prompt, open_store
    from weakincentives.viewer import Playground, Viewer

    prompt = named_prompt(arguments.target)
    given = arguments.adapter or default("adapter")
    if given:
        make_adapter(argparse.Namespace(adapter=given))  # Refuses one that cannot be had before anything is served.
    playground = Playground(
        prompt,
        adapters=_choices(given),
        make_adapter=lambda name: make_adapter(argparse.Namespace(adapter=name)),
        overrides=open_store(arguments),
    )
    file = runs_file(arguments.record)
    with recorder(arguments.record) or nullcontext():
        viewer = Viewer(file, port=arguments.port, playground=playground)
        notice = f"Playing with {arguments.target}; runs are recorded to {file}. Stop with Ctrl-C."
        return _show(viewer, "#/play", notice, browser=not arguments.no_open)


def _add_server_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=PORT, help="the port (default: 7410, or any free one if that is taken)")
    parser.add_argument("--no-open", action="store_true", help="print the address without opening a browser")


def _export(path: str, run_id: str, target: Path) -> int:
    from weakincentives.viewer import export_run

    check_target(path, target)
    page = export_run(path, run_id, lambda done, total: meter(f"writing {done:,} of {total:,} events", done, total))
    try:
        target.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}") from error
    progress(f"wrote run {run_id} to {target} ({len(page) / 1e6:.1f} MB)")
    return 0


def _show(viewer: Viewer, page: str, notice: str, *, browser: bool) -> int:
    """Serve until interrupted; `page` is the URL's fragment, after `#`."""

    def started() -> None:
        print_line(viewer.url + page)
        progress(notice)
        if browser:
            open_page(viewer.url + page, stack)

    with ExitStack() as stack:
        try:
            viewer.run(started)
        except KeyboardInterrupt:
            overwrite_echo()
            progress("stopped")
    return 0


def open_page(url: str, stack: ExitStack) -> None:
    """Open a URL that contains a token in the browser.

    Other users can read the arguments of a browser, so it is given a private file that forwards to the URL; the file
    is deleted when the stack is closed.
    """
    page = Path(stack.enter_context(TemporaryDirectory(prefix="wink-"))) / "open.html"
    page.touch(0o600)
    page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(url)}">', encoding="utf-8")
    webbrowser.open(page.as_uri())


def _choices(given: str | None) -> list[AdapterChoice]:
    """The requested adapter, then all others with what they lack."""
    from weakincentives.runtime.spi import adapter_specs
    from weakincentives.viewer import AdapterChoice

    found = [AdapterChoice(given)] if given else []
    for spec in adapter_specs():
        if spec.provider != given:
            models = tuple(spec.prices)
            found.append(AdapterChoice(spec.provider, models, spec.requires_model, _problem(spec)))
    return sorted(found, key=lambda choice: bool(choice.problem))


def _problem(spec: AdapterSpec) -> str:
    """The reason why the adapter cannot run; empty if none is known."""
    if spec.package_needed and find_spec(spec.package_needed) is None:
        return f"pip install 'weakincentives[{spec.extra or spec.provider}]'"
    if spec.key_variables and not any(map(os.environ.get, spec.key_variables)):
        return f"set {spec.key_variables[0]}"
    return ""
