"""The prompt a command works on: `module:variable`, its params, its overrides and the sections to open."""

from __future__ import annotations

import argparse
from typing import Any

from weakincentives.cli.output import UsageError, did_you_mean, progress
from weakincentives.cli.params import read_params
from weakincentives.cli.settings import default
from weakincentives.cli.target import resolve
from weakincentives.prompt import Prompt, PromptTemplate, SectionPath, SectionVisibility, Tool, with_ancestors
from weakincentives.prompt.overrides import LATEST, JsonPromptOverridesStore

OVERRIDES = ".wink/overrides"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", metavar="module:variable", help="a PromptTemplate, a Prompt, or a function that returns one"
    )
    add_params_option(parser)
    parser.add_argument(
        "--open", metavar="KEY", action="append", default=[], help="show this section in full; repeatable"
    )
    parser.add_argument("--tag", help="apply the stored overrides with this tag")
    add_store_option(parser)


def add_params_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--params",
        "-p",
        metavar="FIELD=VALUE",
        action="append",
        nargs="+",
        default=[],
        help="params of the prompt: field=value, Type.field=value or @file.json; repeatable",
    )


def selected_prompt(arguments: argparse.Namespace) -> Prompt[Any]:
    """The prompt the arguments name, with its params bound."""
    words = [word for group in arguments.params for word in group]
    found = named_prompt(arguments.target)
    if isinstance(found, PromptTemplate):
        store = open_store(arguments) if arguments.tag else None
        if store is not None and store.resolve(found.descriptor, arguments.tag) is None:
            tags = ", ".join(stored.tag for stored in store.list(ns=found.ns, key=found.key)) or "none"
            progress(f"no override of {found.ns}/{found.key} has the tag {arguments.tag!r}; stored tags: {tags}")
        found = Prompt(found, overrides_store=store, overrides_tag=arguments.tag or LATEST)
    elif arguments.tag:
        raise UsageError(f"--tag needs a PromptTemplate; {arguments.target!r} is a Prompt, which has its own store")
    return found.bind(*read_params(words, found.template.outline.params_types))


def named_template(target: str) -> PromptTemplate[Any]:
    found = named_prompt(target)
    return found.template if isinstance(found, Prompt) else found


def named_prompt(target: str) -> Prompt[Any] | PromptTemplate[Any]:
    found = resolve(target)
    if callable(found) and not isinstance(found, type | Tool):
        found = found()
    if isinstance(found, Prompt | PromptTemplate):
        return found
    raise UsageError(
        f"{target!r} must be a PromptTemplate, a Prompt or a function that returns one, got a {type(found).__name__}"
    )


def opened(arguments: argparse.Namespace, prompt: Prompt[Any]) -> dict[SectionPath, SectionVisibility]:
    """The sections of `--open`, with the ancestors that have to be open for them to appear."""
    by_key = prompt.template.outline.by_key
    unknown = [key for key in arguments.open if key not in by_key]
    if unknown:
        hint = did_you_mean(unknown[0], by_key)
        raise UsageError(f"--open {unknown[0]}: no such section; there are {', '.join(by_key)}{hint}")
    return with_ancestors({by_key[key].path: SectionVisibility.FULL for key in arguments.open})


def add_store_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", metavar="DIR", help=f"the folder of overrides [WINK_STORE] (default: {OVERRIDES})")


def open_store(arguments: argparse.Namespace) -> JsonPromptOverridesStore:
    return JsonPromptOverridesStore(arguments.store or default("store") or OVERRIDES)
