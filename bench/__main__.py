"""`python -m bench [topic ...] [--json] [--save]`: measure, print the table, exit 1 if a goal does not hold."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from pathlib import Path

from bench.row import Row
from bench.table import as_json, lines
from bench.topics import is_slow, load, names

RESULTS = Path(__file__).parent / "RESULTS.md"


def main(argv: list[str] | None = None) -> int:
    known = names()
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure what the library costs (CPU time).")
    parser.add_argument("topic", nargs="*", help=f"any of: {', '.join(known)} (default: all that are not slow)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--save", action="store_true", help=f"also write the tables to bench/{RESULTS.name}")
    parser.add_argument(
        "--data", type=Path, help="folder of disclosure data, which the topics finding, fusion and schemas read"
    )
    arguments = parser.parse_args(argv)
    if arguments.data is not None:
        os.environ["WINK_BENCH_DATA"] = str(arguments.data)
    if unknown := [name for name in arguments.topic if name not in known]:
        parser.error(f"no such topic: {', '.join(unknown)}; there are {', '.join(known)}")

    results: dict[str, list[Row]] = {}
    for name in arguments.topic or known:
        try:
            topic = load(name)
            if topic is None or (is_slow(topic) and not arguments.topic):
                continue
            print(f"measuring {name} ...", file=sys.stderr, flush=True)
            results[name] = list(topic.rows())
        except (ImportError, FileNotFoundError) as error:
            print(f"skipped {name}: {error}", file=sys.stderr)
            continue
        if not arguments.json:
            print(f"\n{name}\n", *lines(results[name]), sep="\n", flush=True)
    if arguments.json:
        print(as_json(results))
    if arguments.save:
        save(results)
    return int(any(row.ok is False for rows in results.values() for row in rows))


def save(results: dict[str, list[Row]]) -> None:
    """Replace the measured topics in the results page and keep the others."""
    sections = {}
    if RESULTS.exists():
        for block in RESULTS.read_text(encoding="utf-8").split("\n## ")[1:]:
            name, _, body = block.partition("\n")
            sections[name] = body.strip()
    machine = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}."
    for name, rows in results.items():
        sections[name] = "\n".join([machine, "", *lines(rows)])
    page = "# Measured\n\nCPU time, best of several rounds; written by `python -m bench --save`.\n"
    for name in sorted(sections):
        page += f"\n## {name}\n\n{sections[name]}\n"
    RESULTS.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
