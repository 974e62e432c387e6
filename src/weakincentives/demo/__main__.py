"""`python -m weakincentives.demo [QUESTION | NUMBER]`: the support desk on the embedded model."""

from __future__ import annotations

import argparse
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path

from weakincentives.cli.recordings import RUNS, recorder
from weakincentives.cli.view import serve
from weakincentives.demo.desk import QUESTIONS


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

    screen, run_id = Screen(), ""
    recording = None if arguments.no_record else recorder(arguments.record)
    try:
        with LocalAdapter(arguments.model) as adapter, recording or nullcontext():
            show = Show(adapter, screen)
            for index, question in enumerate(chosen(arguments.question)):
                if index:
                    screen.blank()
                run_id = show.ask(question).run_id
    except (ImportError, OSError, WinkError) as error:
        print(printable(f"error: {error}", stream=sys.stderr), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    screen.blank()
    for label, command in next_commands(recorded=recording is not None):
        screen.say(label, command)
    if recording is None or not arguments.view:
        return 0
    screen.blank()
    try:
        return serve(str(recording.path), run_id, port=arguments.port, browser=False)
    except (ImportError, WinkError) as error:
        print(printable(f"no viewer: {error}", stream=sys.stderr), file=sys.stderr)
        return 0


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./run", description="Ask the demo's support desk; everything runs on this machine."
    )
    parser.add_argument("question", nargs="*", help="a question of your own, or numbers of --list (default: 1)")
    parser.add_argument("--list", action="store_true", help="print the questions to choose from")
    parser.add_argument("--model", metavar="FILE.gguf", help="another model [WINK_LOCAL_MODEL]")
    parser.add_argument("--record", metavar="FILE", help=f"where the run is recorded (default: {RUNS})")
    parser.add_argument("--no-record", action="store_true", help="record nothing")
    parser.add_argument(
        "--view",
        action=argparse.BooleanOptionalAction,
        default=sys.stdout.isatty(),
        help="serve the viewer afterwards (default: on a terminal)",
    )
    parser.add_argument("--port", type=int, help="the port of the viewer (default: 7410, or any free one)")
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


def next_commands(*, recorded: bool) -> list[tuple[str, str]]:
    """Commands to try next."""
    wink = "wink" if shutil.which("wink") else ".venv/bin/wink"
    if not Path(wink).exists() and wink != "wink":
        wink = f"{sys.executable} -m weakincentives.cli"
    look = [f"{wink} runs show  (each turn: what the model saw, opened and called)"] if recorded else []
    commands = [
        *look,
        f"{wink} chat weakincentives.demo.desk:chat  (a conversation with the desk)",
        './run "your own question"  (or a number of ./run --list)',
    ]
    return [("next" if index == 0 else "", command) for index, command in enumerate(commands)]


if __name__ == "__main__":
    sys.exit(main())
