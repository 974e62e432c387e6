"""List, show, edit and compare overrides of a prompt's texts, summaries and visibility; alone it lists them.

An override applies to the text it was written for. If the prompt has changed since, the override is stale: it is not
applied, `show` and `diff` report it, and their exit code is 1.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from weakincentives.cli.output import (
    UsageError,
    did_you_mean,
    in_editor,
    print_json,
    print_line,
    progress,
    reason,
    stdin,
)
from weakincentives.cli.selection import add_store_option, named_prompt, open_store
from weakincentives.prompt import SectionVisibility
from weakincentives.prompt.overrides import (
    FULL,
    LATEST,
    SUMMARY,
    JsonPromptOverridesStore,
    Kind,
    PromptDescriptor,
    PromptOverride,
    StaleOverride,
    check_override,
    diff,
)

DECLARED = "declared"


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb")
    listing = verbs.add_parser("list", help="list the stored overrides")
    show = verbs.add_parser("show", help="show what can be overridden in a prompt, and what is")
    compare = verbs.add_parser("diff", help="compare the overrides with the original texts")
    edit = verbs.add_parser("edit", help="override a section's text, summary or visibility, or a tool's description")
    for verb in (show, compare, edit):
        verb.add_argument("target", metavar="module:variable", help="the prompt")
    edit.add_argument("name", metavar="KEY", help="the key of the section, or with --tool the name of the tool")
    what = edit.add_mutually_exclusive_group()
    what.add_argument("--tool", action="store_true", help="KEY names a tool, whose description is edited")
    what.add_argument("--summary", action="store_true", help="edit the summary of the section")
    choices = [FULL.value, SUMMARY.value, DECLARED]
    what.add_argument(
        "--visibility",
        choices=choices,
        metavar="STATE",
        help=f"show the section as {FULL.value} or {SUMMARY.value}, or as {DECLARED} in the code",
    )
    edit.add_argument("--from", dest="source", metavar="FILE", help="take the text from a file, or - for stdin")
    edit.add_argument("--delete", action="store_true", help="remove the override")
    for verb in (show, compare, edit):
        verb.add_argument("--tag", default=LATEST, help=f"which set of overrides (default: {LATEST})")
    for verb in (listing, show, compare, edit):
        add_store_option(verb)
    for verb in (listing, show, compare):
        verb.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(verb="list")


def run(arguments: argparse.Namespace) -> int:
    store = open_store(arguments)
    if arguments.verb == "list":
        return list_all(store, as_json=arguments.json)
    descriptor = named_prompt(arguments.target).template.descriptor
    override = store.resolve(descriptor, arguments.tag) or descriptor.new_override(arguments.tag)
    if arguments.verb == "show":
        return show_one(descriptor, override, as_json=arguments.json)
    if arguments.verb == "diff":
        return compare_one(descriptor, override, as_json=arguments.json)
    return edit_one(store, descriptor, override, arguments)


def list_all(store: JsonPromptOverridesStore, *, as_json: bool) -> int:
    found = store.list()
    if as_json:
        print_json(
            [
                {
                    "ns": override.ns,
                    "key": override.key,
                    "tag": override.tag,
                    "sections": [".".join(path) for path in override.sections],
                    "tools": list(override.tools),
                    "summaries": [".".join(path) for path in override.summaries],
                    "visibility": {".".join(path): each.body for path, each in override.visibility.items()},
                }
                for override in found
            ]
        )
    for override in () if as_json else found:
        names = [
            *(".".join(path) for path in override.sections),
            *(f"summary {'.'.join(path)}" for path in override.summaries),
            *(f"visibility {'.'.join(path)} {each.body}" for path, each in override.visibility.items()),
            *(f"tool {name}" for name in override.tools),
        ]
        print_line(f"{override.ns}/{override.key}@{override.tag}: {', '.join(names) or 'empty'}")
    if not found:
        progress(f"no overrides in {store.root_dir}; `wink overrides edit module:variable KEY` stores one")
    return 0


def show_one(descriptor: PromptDescriptor, override: PromptOverride, *, as_json: bool) -> int:
    rows = states(descriptor, override)
    if as_json:
        print_json({"ns": descriptor.ns, "key": descriptor.key, "tag": override.tag, "texts": rows})
    else:
        width, kinds = (max((len(row[column]) for row in rows), default=0) for column in ("name", "kind"))
        for row in rows:
            detail = f": {row['detail']}" if row["detail"] else ""
            print_line(f"{row['kind'].ljust(kinds)}  {row['name'].ljust(width)}  {row['state']}{detail}")
    return int(any(row["state"] == "stale" for row in rows))


def states(descriptor: PromptDescriptor, override: PromptOverride) -> list[dict[str, Any]]:
    """One row per text: original, overridden, closed to overrides, or with a stale override.

    Summaries are listed where there are any, visibilities where they are overridden.
    """
    stale: dict[tuple[str, str], StaleOverride] = {
        (left_out.kind, left_out.name): left_out for left_out in check_override(descriptor, override).stale
    }
    overridden = {("section", ".".join(path)) for path in override.sections}
    overridden |= {("summary", ".".join(path)) for path in override.summaries}
    overridden |= {("visibility", ".".join(path)) for path in override.visibility}
    overridden |= {("tool", name) for name in override.tools}
    texts: dict[tuple[str, str], bool] = {}
    for path, section in descriptor.sections.items():
        key = ".".join(path)
        texts["section", key] = section.accepts_overrides
        if descriptor.summaries[path].source is not None:
            texts["summary", key] = descriptor.summaries[path].accepts_overrides
    for name, tool in descriptor.tools.items():
        texts["tool", name] = tool.accepts_overrides
    rows = []
    for kind, name in [*texts, *sorted(overridden - texts.keys())]:
        left_out = stale.get((kind, name))
        state = "original" if texts.get((kind, name), True) else "closed"
        if (kind, name) in overridden:
            state = "stale" if left_out else "overridden"
        rows.append({"kind": kind, "name": name, "state": state, "detail": left_out.detail if left_out else ""})
    return rows


def compare_one(descriptor: PromptDescriptor, override: PromptOverride, *, as_json: bool) -> int:
    text = diff(descriptor, override)
    stale = check_override(descriptor, override).stale
    if as_json:
        print_json({"diff": text, "stale": [str(left_out) for left_out in stale]})
    elif text:
        print_line(text, end="")
    else:
        progress(f"{override.ns}/{override.key}@{override.tag} changes no text")
    return int(bool(stale))


def edit_one(
    store: JsonPromptOverridesStore,
    descriptor: PromptDescriptor,
    override: PromptOverride,
    arguments: argparse.Namespace,
) -> int:
    name: str = arguments.name
    path = tuple(name.split("."))
    if not arguments.tool:
        path = next((known for known in descriptor.sections if ".".join(known) == name), path)
    kind: Kind = "section"
    if arguments.tool or arguments.summary or arguments.visibility:
        kind = "tool" if arguments.tool else "summary" if arguments.summary else "visibility"
    label = f"{kind} {name} of {descriptor.ns}/{descriptor.key}@{override.tag}"
    if kind == "visibility" and (arguments.delete or arguments.source):
        raise UsageError(f"--visibility takes neither --from nor --delete; pass --visibility {DECLARED} to remove it")

    if arguments.delete or arguments.visibility == DECLARED:
        kept = override.without(kind, name if kind == "tool" else path)
        if kept == override:
            raise UsageError(f"nothing is stored for {label}")
        store.upsert(kept)
        progress(f"removed {label}")
        return 0

    known = list(descriptor.tools) if kind == "tool" else [".".join(each) for each in descriptor.sections]
    if name not in known:
        what = "tool" if kind == "tool" else "section"
        has = f"it has {', '.join(known)}{did_you_mean(name, known)}"
        raise UsageError(f"{descriptor.ns}/{descriptor.key} has no {what} {name!r}; {has}")
    before = _current(descriptor, override, name, path, kind)
    after = arguments.visibility or _new_text(before, arguments.source)
    if not after.strip():
        raise UsageError(f"the new text of {label} is empty; pass --delete to return to the original")
    if after == before:
        progress(f"unchanged: {label}")
        return 0

    def change(stored: PromptOverride) -> PromptOverride:
        if kind == "tool":
            words = stored.tools.get(name)
            params = words.param_descriptions if words else {}
            return stored.with_tool(name, descriptor.override_tool(name, description=after, param_descriptions=params))
        if kind == "summary":
            return stored.with_summary(path, descriptor.override_summary(path, after))
        if kind == "visibility":
            changed = stored.with_visibility(path, descriptor.override_visibility(path, SectionVisibility(after)))
            for left_out in check_override(descriptor, changed).stale:
                if (left_out.kind, left_out.name) == (kind, name):
                    raise UsageError(f"{label}: {left_out.detail}")
            return changed
        return stored.with_section(path, descriptor.override_section(path, after))

    store.update(ns=descriptor.ns, key=descriptor.key, tag=override.tag, change=change)
    progress(f"stored {label} in {store.path_of(ns=descriptor.ns, key=descriptor.key, tag=override.tag)}")
    return 0


def _current(
    descriptor: PromptDescriptor, override: PromptOverride, name: str, path: tuple[str, ...], kind: Kind
) -> str:
    """The stored text, else the original."""
    if kind == "tool":
        words = override.tools.get(name)
        tool = descriptor.tools.get(name)
        return (words and words.description) or (tool.description if tool else "")
    stores = {"section": override.sections, "summary": override.summaries, "visibility": override.visibility}
    if (stored := stores[kind].get(path)) is not None:
        return stored.body
    described = {"section": descriptor.sections, "summary": descriptor.summaries, "visibility": descriptor.visibility}
    known = described[kind].get(path)
    return (known and known.source) or ""


def _new_text(before: str, source: str | None) -> str:
    if source == "-":
        return stdin().read().strip("\n")
    if source is not None:
        try:
            return Path(source).read_text(encoding="utf-8").strip("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--from {source}: {reason(error)}") from None
    if not (os.environ.get("VISUAL") or os.environ.get("EDITOR") or stdin().isatty()):
        raise UsageError("there is no terminal to edit in; pass --from FILE, or --from - for stdin")
    return in_editor(before, "override.md", "use --from FILE")
