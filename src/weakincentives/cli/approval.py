"""Calls that wait for a person: the question on the terminal, and the file with which their run goes on later."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from weakincentives._base.display import wrapped
from weakincentives.cli.output import UsageError, in_editor, json_text, plural, print_error, print_line, progress, stdin
from weakincentives.cli.questions import print_question
from weakincentives.errors import SessionError
from weakincentives.runtime import Answer, Approve, Deny, Edit, PendingCall
from weakincentives.runtime.spi import RunState
from weakincentives.session import Session, Snapshot
from weakincentives.telemetry import Redactor, continuation_file

if TYPE_CHECKING:
    from weakincentives.prompt import Prompt

Decision = Answer | Approve | Deny | Edit
WAITING = 3
"""The exit code of a run whose calls wait for a decision."""
HELP = """\
y              approve: it happens as shown
n [REASON]     deny: the model reads the reason
e [ARGUMENTS]  edit: the arguments as JSON, here or in your $EDITOR; what they change is shown again
a TEXT         answer: the model reads your text as the result, and the call does not happen
Ctrl-C         decide later"""
KEYS = {"approve": "y", "deny": "n", "edit": "e", "answer": "a"}
HELP_INDENT = " " * 15


class Asker:
    """Asks about calls on a terminal: `stream` is where the questions go."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @property
    def attended(self) -> bool:
        """True if there is a terminal to ask on."""
        return stdin().isatty() and self._stream.isatty()

    @property
    def _width(self) -> int | None:
        return shutil.get_terminal_size().columns if self._stream.isatty() else None

    def ask(self, call: PendingCall, left: int) -> Decision | None:
        """The decision about a call; None if it is to be decided later. `left` is the number of calls after it."""
        question = call.question
        more = f" ({left} more after it)" if left else ""
        self._show(wrapped(f"\n{question.words}{more}", self._width), "1")
        print_question(question, self._stream, self._width)
        self._show("")
        choices = ", ".join(f"{kind} ({KEYS[kind]})" for kind in question.answers)
        try:
            while True:
                line = self._line(f"{choices}, help (?): ")
                if line is None:
                    return None
                if (decision := self._decision(call, *line.strip().partition(" ")[::2])) is not None:
                    return decision
        except KeyboardInterrupt:
            self._show("")
            return None

    def show(self, call: PendingCall) -> None:
        """Print the question: the call, and what it would change."""
        self._show(wrapped(call.question.words, self._width), "1")
        print_question(call.question, self._stream, self._width)

    def _decision(self, call: PendingCall, key: str, words: str) -> Decision | None:
        try:
            match key.lower():
                case "y" | "yes" if "approve" in call.question.answers:
                    return Approve()
                case "n" | "no":
                    reason = words.strip() or self._line("reason (may be empty): ")
                    return None if reason is None else Deny(reason.strip())
                case "e" if "edit" in call.question.answers:
                    return Edit(self._arguments(call, words.strip()))
                case "a":
                    text = words.strip() or self._line("answer: ") or ""
                    return Answer(text.strip()) if text.strip() else None
        except (UsageError, ValueError) as error:
            self._show(wrapped(f"wink: {error}", self._width), "31")
            return None
        self._show(wrapped(HELP, self._width, HELP_INDENT), "2")
        return None

    def _arguments(self, call: PendingCall, written: str) -> dict[str, Any]:
        """The edited arguments: as written on the line, else from the editor, else from the next line."""
        if not written and (os.environ.get("VISUAL") or os.environ.get("EDITOR")):
            written = in_editor(
                json_text(json.loads(call.arguments or "{}")), "arguments.json", "write the arguments after the e"
            )
        elif not written:
            written = self._line("arguments as JSON: ") or ""
        arguments = json.loads(written)
        if not isinstance(arguments, dict):
            raise UsageError(f"the arguments must be a JSON object, got {written!r}")
        return arguments

    def _line(self, prompt: str) -> str | None:
        """A line that the person types; None at the end of the input."""
        *lines, last = wrapped(prompt, self._width).split("\n")
        for line in lines:
            self._show(line)
        prompt = f"{last.rstrip()} "
        if self._stream is sys.stdout:
            try:
                return input(prompt)  # With line editing, if readline was imported.
            except EOFError:
                self._show("")
                return None
        print_line(prompt, end="", stream=self._stream)
        return stdin().readline() or None

    def _show(self, text: str, style: str = "") -> None:
        print_line(text, style=style, stream=self._stream)


class Continuation:
    """The file beside the run file that keeps a session while its calls wait, for `--resume` in another process."""

    def __init__(self, runs: str, arguments: argparse.Namespace) -> None:
        self._runs = runs
        self._words = _without_message(arguments)
        kept = arguments.resume is not None and Path(arguments.resume).parent.suffix == ".waiting"
        self._file = Path(arguments.resume) if kept else None

    def update(self, session: Session) -> None:
        """Keep the session if calls wait in it; else remove what was kept."""
        run = session[RunState].latest()
        if not self._runs or run is None:
            return
        file, before = continuation_file(self._runs, run.run_id), self._file
        waits = session[PendingCall].latest() is not None
        if before is not None and (before != file or not waits):
            for each in (before, before.with_suffix(".command")):
                each.unlink(missing_ok=True)
        self._file = file if waits else None
        if self._file is None:
            return
        try:
            self._file.parent.mkdir(mode=0o700, exist_ok=True)
            _write_private(self._file, session.snapshot().to_json())
            _write_private(self._file.with_suffix(".command"), self.command)
        except OSError as error:
            progress(f"cannot keep the run while its calls wait: {error}")
            self._file = None

    def leave(self) -> None:
        """Let the file stay: what follows is another conversation."""
        self._file = None

    @property
    def command(self) -> str:
        return shlex.join(["wink", *self._words, "--resume", str(self._file)])

    def report(self, calls: Sequence[PendingCall], asker: Asker | None = None) -> int:
        """Name the calls that wait on stderr, and how to go on; with an asker, also what they would change."""
        print_error(f"wink: {plural(len(calls), 'call')} {'wait' if len(calls) > 1 else 'waits'} for a decision:")
        for call in calls:
            if asker is not None:
                asker.show(call)
            else:
                print_error(f"  {call.tool} ({call.call_id})")
        if self._file is None:
            progress("it is not kept in a file, so it cannot be continued; run it again on a terminal")
        else:
            progress(f"decide on a terminal: {Redactor().text(self.command)}", wrap=False)
        return WAITING


def _without_message(arguments: argparse.Namespace) -> list[str]:
    """The words of the command without the message and `--resume`, which its continuation has its own."""
    words: list[str] = list(arguments.words)
    if (message := getattr(arguments, "message", None)) in words:
        words.remove(message)
    if arguments.resume is not None:
        at = next(index for index, word in enumerate(words) if word.startswith("--res"))
        del words[at : at + (1 if "=" in words[at] else 2)]
    return words


def resume(session: Session, file: str, prompt: Prompt[Any]) -> None:
    """Restore a session from a file of `/save`, or of a run that waits."""
    try:
        saved = Snapshot.from_json(Path(file).read_bytes(), types=[object], lenient=True)
    except FileNotFoundError:
        raise UsageError(f"--resume: there is no file {file!r}; /save in the chat writes one") from None
    except SessionError as error:
        raise UsageError(f"--resume {file}: {error}") from None
    session.restore(saved)
    for problem in saved.problems:
        progress(f"left out of {file}: {problem}")
    last = session[RunState].latest()
    if last is not None and (last.prompt_ns, last.prompt_key) != (prompt.ns, prompt.key):
        other = f"{last.prompt_ns}/{last.prompt_key}"
        progress(f"{file} is a conversation with {other}, not {prompt.ns}/{prompt.key}")


def _write_private(file: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    draft = file.with_suffix(".new")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as target:
        target.write(text)
    draft.replace(file)
