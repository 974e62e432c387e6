"""Where the command line keeps overrides of prompts."""

from __future__ import annotations

import argparse

from weakincentives.cli.settings import default
from weakincentives.prompt.overrides import JsonPromptOverridesStore

FOLDER = ".wink/overrides"


def add_store_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", metavar="DIR", help=f"the folder of overrides [WINK_STORE] (default: {FOLDER})")


def open_store(arguments: argparse.Namespace) -> JsonPromptOverridesStore:
    return JsonPromptOverridesStore(arguments.store or default("store") or FOLDER)
