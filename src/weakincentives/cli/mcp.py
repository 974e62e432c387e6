"""Serve a prompt to MCP hosts, or lock what the MCP servers of a config file list.

`serve` uses standard input and output, or with --http a port. `lock` starts every server of the config and
writes what it lists beside it, so that wink explain and prices know the tools without starting a server.
"""

from __future__ import annotations

import argparse
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

from weakincentives._base.display import Table
from weakincentives.cli.commands import default, number
from weakincentives.cli.output import UsageError, overwrite_echo, plural, print_error, print_table, progress, stdin
from weakincentives.cli.recordings import recorder
from weakincentives.cli.selection import add_params_option, named_prompt, read_params


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True)
    server = verbs.add_parser("serve", help="offer a prompt to an MCP host")
    server.add_argument(
        "target", metavar="module:variable", help="a PromptTemplate, a Prompt, or a function that returns one"
    )
    add_params_option(server)
    server.add_argument("--http", type=number(1, 65535), metavar="PORT", help="serve at http://127.0.0.1:PORT/mcp")
    server.add_argument("--record", metavar="FILE", help="record what hosts do [WINK_RECORD]")
    lock = verbs.add_parser("lock", help="write the tools that every server of a config lists")
    lock.add_argument(
        "config", nargs="?", metavar="CONFIG", default=".mcp.json", help="the config file (default: .mcp.json)"
    )
    lock.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a listing has changed")


def run(arguments: argparse.Namespace) -> int:
    return serve(arguments) if arguments.verb == "serve" else lock(arguments)


def serve(arguments: argparse.Namespace) -> int:
    from weakincentives.mcp import serve

    prompt = named_prompt(arguments.target)
    words = [word for group in arguments.params for word in group]
    server = serve(prompt, *read_params(words, prompt.template.outline.params_types))
    file = arguments.record or default("record")
    with (recorder(file) if file else None) or nullcontext():
        if arguments.http is None:
            if stdin().isatty():
                # The thread that reads standard input would keep an exception waiting for the next line.
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                progress(f"serving {prompt.name} on standard input and output, for an MCP host; stop with Ctrl-C")
            server.run_stdio()
        else:
            import uvicorn

            progress(f"serving {prompt.name} at http://127.0.0.1:{arguments.http}/mcp; stop with Ctrl-C")
            uvicorn.run(server.app, port=arguments.http, log_level="warning")
            overwrite_echo()
            progress("stopped")
    return 0


def lock(arguments: argparse.Namespace) -> int:
    from weakincentives.mcp import Listing, MCPSection, MCPServerError, lock_file, mcp_sections, read_lock, write_lock

    def listed(section: MCPSection) -> Listing | MCPServerError:
        try:
            return section.listing()
        except MCPServerError as error:
            return error

    if not os.path.isfile(arguments.config):
        raise UsageError(f'there is no config {arguments.config!r}; write one with "mcpServers", or name the file')
    path = lock_file(arguments.config)
    # The first start may have to install the server.
    sections, before = mcp_sections(arguments.config, start_timeout=120.0), read_lock(path)
    with ThreadPoolExecutor() as pool:
        found = dict(zip([section.key for section in sections], pool.map(listed, sections), strict=True))
    listings = {key: listing for key, listing in found.items() if isinstance(listing, Listing)}
    kept = {key: before[key] for key in found.keys() - listings.keys() if key in before}
    rows = []
    for key, listing in found.items():
        if not isinstance(listing, Listing):
            rows.append((key, "", "failed"))
            continue
        changes = listing.changed_from(before.get(key, Listing()))
        words = "; ".join(f"{name} {how}" for name, how in changes.items()) if key in before else "new"
        rows.append((key, plural(len(listing.tools), "tool"), words or "unchanged"))
    print_table(Table(("server", "tools", "changes"), rows, flexible="changes"), styles={"failed": "31"})
    for listing in found.values():
        if not isinstance(listing, Listing):
            print_error(f"wink: {listing}")
    if not arguments.check:
        write_lock(path, {**kept, **listings})
        progress(f"wrote {path}")
    failed = len(listings) < len(found)
    return int(failed or (arguments.check and {**kept, **listings} != before))
