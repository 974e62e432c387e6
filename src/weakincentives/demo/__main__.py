"""`python -m weakincentives.demo [QUESTION | NUMBER]`: the support desk, without a language model."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from contextlib import nullcontext
from pathlib import Path

from weakincentives.cli.browser import serve
from weakincentives.cli.commands import Parser
from weakincentives.cli.diagnostics import printable_diagnostics
from weakincentives.cli.output import Wait, print_error, print_line
from weakincentives.cli.progress import QUOTATION, STYLES, print_labelled, print_spent, print_story, showing
from weakincentives.cli.recordings import RUNS, recorder
from weakincentives.cli.selection import show_reading
from weakincentives.demo.desk import QUESTIONS, ask
from weakincentives.errors import WinkError
from weakincentives.runtime import PromptResponse, ProviderAdapter, ledger
from weakincentives.session import Session

ABOUT = "A support desk with a handbook of 27 sections, on this machine; the first request has one line of each."
LANGUAGE_MODEL = "./run --model  (fetches a language model, 1.1 GB, which picks the sentences of the answer)"


def main(argv: list[str] | None = None) -> int:
    arguments = parse(sys.argv[1:] if argv is None else argv)
    try:
        with printable_diagnostics(until_exit=argv is None):
            return show_questions() if arguments.list else answer(arguments)
    except BrokenPipeError:
        # The reader closed the pipe (`./run | head`); keep the interpreter from failing as it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ImportError, OSError, WinkError) as error:
        print_error(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def show_questions() -> int:
    for number, question in enumerate(QUESTIONS, start=1):
        print_line(f"{number}  {question}")
    return 0


def answer(arguments: argparse.Namespace) -> int:
    from weakincentives.adapters.local import LocalAdapter

    print_labelled("demo", ABOUT, STYLES["prompt"])
    recording = None if arguments.no_record else recorder(arguments.record)
    run_id = ""
    with LocalAdapter(arguments.model, progress=show_reading) as adapter, recording or nullcontext():
        for question in chosen(arguments.question):
            run_id = ask_desk(adapter, question).run_id
            print_line()
        composes = adapter.composes
    for label, command in next_commands(recorded=recording is not None):
        print_labelled(label, command)
    if not composes:
        print_labelled("", LANGUAGE_MODEL)
        print_line()
        print_labelled("note", QUOTATION, STYLES["quoted"])
    if recording is not None and arguments.view:
        print_line()
        print_labelled("view", "this run in the browser:")
        try:
            return serve(str(recording.path), run_id, port=arguments.port, browser=False)
        except ImportError as error:
            print_error(str(error))
    return 0


def ask_desk(adapter: ProviderAdapter, question: str) -> PromptResponse[None]:
    """Ask the desk a question and print what happens, as `wink runs show` does afterwards."""
    session = Session()
    started = time.monotonic()
    print_labelled("asked", question, "1")
    wait = Wait("model   reading the handbook…", shown=sys.stdout.isatty(), at_once=True)
    with wait, showing(session, lambda event: print_story(event, asked=question)):
        response = adapter.evaluate(ask(question), session=session)
    seconds = time.monotonic() - started
    tokens = ledger(session)
    print_spent(tokens.sent_tokens, tokens.turns, seconds, full=tokens.full_prompt_tokens)
    return response


def parse(argv: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="./run",
        description="Ask the demo's support desk; everything runs on this machine.",
        epilog='examples:\n  ./run 3\n  ./run "How long is the warranty?"\n  ./run --model',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("question", nargs="*", help="a question of your own, or numbers of --list (default: 1)")
    parser.add_argument("--list", action="store_true", help="print the questions to choose from")
    # `./run` itself handles the flag without a file.
    parser.add_argument(
        "--model",
        metavar="FILE.gguf",
        help="answer with this language model [WINK_LOCAL_MODEL]; without a file, fetch one first (1.1 GB, once)",
    )
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
    """The questions with these numbers, or the words as one question."""
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
    commands = [
        f"{wink} chat weakincentives.demo.desk:chat  (a conversation with the desk)",
        './run "your own question"  (or a number of ./run --list)',
    ]
    if recorded:
        commands.insert(0, f"{wink} runs show  (each turn: what the model saw, opened and called)")
    return [("next" if index == 0 else "", command) for index, command in enumerate(commands)]


if __name__ == "__main__":
    sys.exit(main())
