"""`python -m weakincentives.demo [QUESTION | NUMBER]`: the support desk on the embedded model."""

from __future__ import annotations

import argparse
import shutil
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from weakincentives.demo.desk import QUESTIONS

RECORD = "demo.db"


def main(argv: list[str] | None = None) -> int:
    arguments = parse(sys.argv[1:] if argv is None else argv)
    if arguments.list:
        for number, question in enumerate(QUESTIONS, start=1):
            print(f"{number}  {question}")
        return 0
    from weakincentives.adapters.local import LocalAdapter
    from weakincentives.cli import printable
    from weakincentives.demo.show import Screen, Show
    from weakincentives.errors import WinkError

    screen = Screen()
    recorder = recording(None if arguments.no_record else arguments.record)
    try:
        with LocalAdapter(arguments.model, progress=screen.reading) as adapter, recorder:
            show = Show(adapter, screen)
            for index, question in enumerate(chosen(arguments.question)):
                if index:
                    screen.blank()
                show.ask(question)
            composes = adapter.composes
    except (ImportError, OSError, WinkError) as error:
        print(printable(f"error: {error}", stream=sys.stderr), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    screen.blank()
    for label, command in next_commands(arguments.record if not isinstance(recorder, nullcontext) else None):
        screen.say(label, command)
    if not composes:
        screen.say("", "./run --model  (fetches a larger model, 1.1 GB, which answers in its own words)")
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./run", description="Ask the demo's support desk; everything runs on this machine."
    )
    parser.add_argument("question", nargs="*", help="a question of your own, or numbers of --list (default: 1)")
    parser.add_argument("--list", action="store_true", help="print the questions to choose from")
    parser.add_argument("--model", metavar="FILE.gguf", help="another model [WINK_LOCAL_MODEL]")
    parser.add_argument(
        "--record", metavar="FILE", default=RECORD, help=f"where the run is recorded (default: {RECORD})"
    )
    parser.add_argument("--no-record", action="store_true", help="record nothing")
    arguments = parser.parse_args(argv)
    numbers = [int(word) for word in arguments.question if word.isdigit()]
    beyond = [number for number in numbers if not 1 <= number <= len(QUESTIONS)]
    if beyond and len(numbers) == len(arguments.question):
        parser.error(f"there is no question {beyond[0]}; --list shows 1 to {len(QUESTIONS)}")
    return arguments


def chosen(words: list[str]) -> list[str]:
    """The questions by number, or the words as one question."""
    if not words:
        return [QUESTIONS[0]]
    if all(word.isdigit() for word in words):
        return [QUESTIONS[int(word) - 1] for word in words]
    return [" ".join(words)]


def recording(file: str | None) -> AbstractContextManager[Any]:
    """A recorder for the file, or none where the file cannot be written."""
    if file is None:
        return nullcontext()
    from weakincentives.telemetry import record

    try:
        with Path(file).open("ab"):
            return record(file)
    except OSError:
        return nullcontext()


def next_commands(file: str | None) -> list[tuple[str, str]]:
    """Two commands to try next."""
    wink = "wink" if shutil.which("wink") else ".venv/bin/wink"
    if not Path(wink).exists() and wink != "wink":
        wink = f"{sys.executable} -m weakincentives.cli"
    look = [("next", f"{wink} runs show {file}  (each turn: what the model saw, opened and called)")] if file else []
    return [*look, ("" if look else "next", './run "your own question"  (or a number of ./run --list)')]


if __name__ == "__main__":
    sys.exit(main())
