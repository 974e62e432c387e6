"""Talk to a prompt in the terminal; answers appear as they are written.

Every conversation is recorded. Lines that begin with / are commands, which /help lists. Ctrl-C stops an answer, Ctrl-D
leaves. Sections are named as they open, and Markdown is formatted. If a call needs approval, you are asked
about it; Ctrl-C leaves that for later. In a pipe each line of stdin is a message, answers go to stdout,
and everything else goes to stderr; calls that need approval are named there, and wait. If calls still wait at the end,
the exit code is 3.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from weakincentives._base.display import Table, shortened
from weakincentives.cli import selection
from weakincentives.cli.approval import Asker, Continuation, resume
from weakincentives.cli.commands import lacking_params
from weakincentives.cli.markdown import Setter
from weakincentives.cli.output import (
    UsageError,
    Wait,
    did_you_mean,
    erase_line,
    plural,
    print_error,
    print_line,
    print_prose,
    print_table,
    printable,
    progress,
    stdin,
    terminal_width,
)
from weakincentives.cli.progress import (
    LABEL,
    MAX_STEP,
    QUOTATION,
    STYLES,
    WIDTH,
    describe,
    quoted_sources,
    rank_of,
    used,
)
from weakincentives.cli.recordings import add_record_option, recorder, runs_file
from weakincentives.cli.selection import ADAPTER, add_adapter_option, make_adapter
from weakincentives.errors import ContextOverflowError, OutsideEffectsError, UnboundParamsError, WinkError
from weakincentives.prompt import Prompt, SectionVisibility, SetVisibilityOverride, with_ancestors
from weakincentives.runtime import (
    Completed,
    Conversation,
    Decisions,
    Message,
    ModelCalled,
    Point,
    PromptRendered,
    TextDelta,
    ToolInvoked,
    ToolsInjected,
    run_history,
)
from weakincentives.runtime.spi import SHOWS, DecisionError, TurnSection
from weakincentives.session import Session

MAX_WIDTH = 100
COMMANDS = {
    "/open KEY": "show a section in full from the next message on",
    "/why [KEY]": "what each section shows to the model, and why",
    "/decide": "ask again about the calls that wait for your decision",
    "/back [N]": "list the points of the conversation, or go back to one, with files and state; /back undo undoes it",
    "/again": "have the model reply again, after /back to a turn",
    "/fork [N]": "go on in a second conversation from a point, or from here; this one stays as it is",
    "/new": "start a new conversation with the same prompt",
    "/view": "open this conversation in the browser",
    "/save FILE": "write the conversation as Markdown (.md), or as JSON for --resume",
    "/help": "this list",
    "/quit": "leave, as Ctrl-D does",
}


def configure(parser: argparse.ArgumentParser) -> None:
    selection.configure(parser)
    add_adapter_option(parser)
    add_record_option(parser)
    parser.add_argument("--resume", metavar="FILE", help="continue a conversation that /save has written")


def run(arguments: argparse.Namespace) -> int:
    prompt = selection.selected_prompt(arguments)
    session = Session()
    if arguments.resume:
        resume(session, arguments.resume, prompt)
    return converse(arguments, prompt, session)


def converse(arguments: argparse.Namespace, prompt: Prompt[Any], session: Session, *, replies: bool = False) -> int:
    """Talk on a session; if it `replies`, the model begins."""
    opened = selection.opened(arguments, prompt)
    selection.check_params(prompt)
    recording = recorder(arguments.record)
    adapter = make_adapter(arguments)

    def begin(session: Session) -> Conversation[Any]:
        for path, visibility in opened.items():
            session.dispatch(SetVisibilityOverride(path, visibility))
        return Conversation(prompt, adapter=adapter, session=session)

    with recording or nullcontext(), ExitStack() as stack:
        file = "" if recording is None else runs_file(arguments.record)
        return Chat(begin, file, stack, Continuation(file, arguments)).talk(session, replies=replies)


class Chat:
    """A conversation between a person at a terminal, or lines from a pipe, and a model."""

    def __init__(
        self,
        begin: Callable[[Session], Conversation[Any]],
        file: str,
        stack: ExitStack,
        continuation: Continuation,
    ) -> None:
        self._conversations = stack.enter_context(ExitStack())
        self._begin = begin
        self._file = file
        self._stack = stack
        self._continuation = continuation
        self._asker = Asker(sys.stdout)
        self._opened: set[str] = set()
        self._viewer = ""
        self._failed = False

    def _start(self, chat: Conversation[Any]) -> None:
        self._conversations.close()
        self._chat = self._conversations.enter_context(chat)
        self._screen = Screen()

    def talk(self, session: Session, *, replies: bool = False) -> int:
        self._start(self._begin(session))
        self._greet()
        line: str | None = "/decide" if self._chat.pending else "/again" if replies else self._read()
        while line is not None:
            try:
                if line.startswith("/"):
                    if line.split()[0] in ("/quit", "/exit"):
                        break
                    self._command(*line.split(maxsplit=1))
                elif line.strip():
                    self._ask(line)
                    self._ask_person()
            except UnboundParamsError as error:
                self._screen.end()
                self._failed = True
                print_error(f"wink: {lacking_params(error)}")
            except (WinkError, ImportError) as error:
                self._screen.end()
                self._failed = True
                new = " /new starts a new conversation." if isinstance(error, ContextOverflowError) else ""
                print_error(f"wink: {error}{new}")
            line = self._read()
        if self._chat.pending:
            return self._continuation.report(self._chat.pending)
        return int(self._failed and not self._screen.interactive)

    def _greet(self) -> None:
        if not self._screen.interactive:
            return
        with suppress(ImportError):
            import readline  # noqa: F401  (gives input() line editing and history)
        prompt = self._chat.prompt
        sections = plural(len(prompt.template.outline.nodes), "section")
        print_prose(f"{prompt.name}: {sections}, {self._screen.mark} marks those that open. /help lists the commands.")
        if self._chat.adapter.name == ADAPTER:
            print_prose(QUOTATION, style="2")
        print_line()

    def _read(self) -> str | None:
        """The next line; None at the end of the input."""
        if not self._screen.interactive:
            line = stdin().readline()
            return line.removesuffix("\n") if line else None
        try:
            return input("> ")
        except EOFError:
            print_line()
            return None
        except KeyboardInterrupt:
            print_line("\n(Ctrl-D or /quit leaves)", style="2")
            return ""

    def _decide(self, _: str) -> None:
        if not self._chat.pending:
            raise UsageError("no call waits for a decision")
        self._ask_person()

    def _ask_person(self) -> None:
        """Ask about the calls that wait, one after the other, and go on with each decision."""
        while pending := self._chat.pending:
            self._continuation.update(self._chat.session)
            if not self._asker.attended:
                self._continuation.report(pending, Asker(sys.stderr))
                return
            decision = self._asker.ask(pending[0], len(pending) - 1)
            if decision is None:
                calls = plural(len(pending), "call")
                self._screen.line(f"waits   {calls}; /decide asks again, and a message goes on without", "33")
                self._screen.gap()
                return
            try:
                self._ask(None, {pending[0].question.id: decision})
            except DecisionError as error:
                print_error(f"wink: {error}")

    def _ask(self, message: str | None, decisions: Decisions | None = None) -> None:
        started, screen = time.monotonic(), self._screen
        # A typed answer may be rejected and written again, so only the final one is shown.
        typed = self._chat.prompt.template.structured_output is not None
        unsubscribe = self._chat.session.observe(screen.event)
        try:
            with screen.waiting(), self._chat.stream(message, decisions=decisions) as events:
                for event in events:
                    if isinstance(event, TextDelta) and not typed:
                        screen.write(event.text)
                    elif isinstance(event, Completed):
                        if typed:
                            screen.write(event.response.text)
                        screen.end()
                        if not event.response.pending:
                            screen.done(used(event.response, self._chat.session, time.monotonic() - started))
        except KeyboardInterrupt:
            screen.interrupt()
            screen.line("stopped; what was said so far stays in the conversation", "33")
            screen.gap()
            if not screen.interactive:
                raise
        finally:
            unsubscribe()
            self._continuation.update(self._chat.session)

    def _command(self, name: str, argument: str = "") -> None:
        commands = {
            "/open": self._open,
            "/why": self._why,
            "/decide": self._decide,
            "/back": self._back,
            "/again": self._again,
            "/fork": self._fork,
            "/new": self._new,
            "/view": self._view,
            "/save": self._save,
            "/help": self._help,
        }
        if name not in commands:
            raise UsageError(f"no command {name!r}; there are {', '.join(COMMANDS)}{did_you_mean(name, commands)}")
        commands[name](argument.strip())

    def _open(self, key: str) -> None:
        node = self._node(key)
        for path, visibility in with_ancestors({node.path: SectionVisibility.FULL}).items():
            self._chat.session.dispatch(SetVisibilityOverride(path, visibility))
        self._opened.add(node.key)
        tools = ", ".join(tool.name for tool in node.all_tools)
        self._screen.line(f"open    {key}{f', with {tools}' if tools else ''}", STYLES["open"])

    def _why(self, key: str) -> None:
        wanted = self._node(key).key if key else ""
        rows = [
            (section.key, SHOWS[section.seen], self._reason(section))
            for section in run_history(self._chat.session).now.sections
            if section.key == wanted or not (wanted or (section.seen == "summary" and section.decided_by == "declared"))
        ]
        if not rows:
            explanation = self._chat.adapter.explain(self._chat.prompt, session=self._chat.session)
            print_line(explanation.render(terminal_width()))
            return
        width = max(len("section"), *(len(key) for key, _, _ in rows))
        print_line(f"{'section':{width}}  shows    why", style="1")
        for key, shows, reason in rows:
            print_prose(f"{key:{width}}  {shows:7}  {reason}", indent=" " * (width + 11))
        if not wanted:
            print_line("all others are summaries, as declared", style="2")

    def _reason(self, section: TurnSection) -> str:
        """Who opened a section, when, and for which message; else what decided its visibility."""
        said, asked, turn, opened_by = self._chat.messages, "", 0, ""
        for message in said if section.call_id else ():
            if message.asks:
                asked, turn = message.text, 0
            turn += message.role == "assistant"
            # Adapters may number the calls of every run from one: the newest that names the section counts.
            calls = [call for call in message.tool_calls if call.id == section.call_id]
            if calls and (not opened_by or f'"{section.key}"' in calls[0].arguments):
                rank = rank_of(message, section.key)
                for_what = f", for {shortened(' '.join(asked.split()), 40)!r}" if asked else ""
                why = f": {section.reason}" if section.reason and not rank else ""
                opened_by = f"the model, turn {turn}{f' ({rank})' if rank else ''}{for_what}{why}"
        if opened_by:
            return opened_by
        if section.key in self._opened:
            return f"you, with /open{'; open from the next message on' if section.seen == 'summary' else ''}"
        if section.decided_by == "session":
            called = self._chat.session[ToolInvoked].where(lambda event: event.disclosure is not None)
            asked_for = any(section.key in event.disclosure.keys for event in called if event.disclosure)
            return f"the model: {section.reason}".rstrip(": ") if asked_for else "open since this conversation began"
        return "as declared" if section.decided_by == "declared" else f"{section.decided_by} {section.reason}".strip()

    def _new(self, _: str) -> None:
        if self._chat.pending:
            self._continuation.report(self._chat.pending)
            self._continuation.leave()
        self._opened.clear()
        self._start(self._begin(Session()))
        self._screen.line("new     conversation", "2")

    def _again(self, _: str) -> None:
        self._ask(None)
        self._ask_person()

    def _back(self, argument: str) -> None:
        if not argument:
            self._list_points()
            return
        place, _, anyway = argument.partition(" ")
        point = None if argument == "undo" else self._point(place)
        try:
            if point is None:
                report = self._chat.undo_rewind()
            else:
                report = self._chat.rewind(point, over_effects=anyway.strip() == "anyway")
        except OutsideEffectsError as error:
            names = ", ".join(f"{call.tool} ({call.call_id})" for call in error.outside)
            self._screen.line(f"outside {names}: these effects would stay", "33")
            self._screen.line(f"back    not done; /back {place} anyway goes back all the same", "2")
            return
        for change in report.files:
            self._screen.line(f"file    {change.path}", "2")
        for name, why in report.left_alone.items():
            self._screen.line(f"left    {name}: {why}", "33")
        for call in report.outside:
            self._screen.line(f"outside {call.tool} ({call.call_id}): its effects are not undone", "33")
        where = "undone" if point is None else self._named(point)
        where += "; /again repeats the request" if point is not None and point.kind == "turn" else ""
        self._screen.line(f"back    {where}", "2")
        self._continuation.update(self._chat.session)

    def _fork(self, argument: str) -> None:
        point = self._point(argument) if argument else None
        self._start(self._chat.fork(point))
        self._screen.line(f"fork    {'from here' if point is None else self._named(point)}", "2")

    def _list_points(self) -> None:
        points = self._chat.checkpoints()
        if not points:
            raise UsageError("there is no point to go back to yet")
        rows = [(f"{number}", self._named(point)) for number, point in enumerate(points, 1)]
        print_table(Table(("N", "back to"), rows, right=("N",), flexible="back to"))

    def _point(self, argument: str) -> Point:
        points = self._chat.checkpoints()
        if not argument.isdecimal() or not 1 <= int(argument) <= len(points):
            has = f"a number from 1 to {len(points)}" if points else "nothing yet: there is no point to go back to"
            raise UsageError(f"/back and /fork take {has}, got {argument!r}; /back lists the points")
        return points[int(argument) - 1]

    @staticmethod
    def _named(point: Point) -> str:
        if point.kind == "message":
            return f"before the message: {shortened(point.text, 60)}"
        return f"turn {point.turn} of the answer, before its reply"

    def _view(self, _: str) -> None:
        if not self._file:
            raise UsageError("this conversation is not recorded, so there is nothing to view; pass --record FILE")
        if not self._viewer:
            from weakincentives.cli.browser import open_page
            from weakincentives.viewer import Viewer

            # The list, not the run: a conversation is several runs, and the page follows new ones.
            self._viewer = self._stack.enter_context(Viewer(self._file)).url
            if self._screen.interactive:
                open_page(self._viewer, self._stack)
        print_line(self._viewer)

    def _save(self, name: str) -> None:
        if not name:
            raise UsageError("/save needs a FILE, such as chat.md or chat.json")
        if name.endswith(".md"):
            said = [each for each in self._chat.messages if each.text and (each.asks or each.role == "assistant")]
            text, then = "".join(f"**{each.role}**\n\n{each.text}\n\n" for each in said), ""
        else:
            text, then = self._chat.session.snapshot().to_json(), f"; --resume {name} continues it"
        try:
            Path(name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write {name}: {error.strerror}") from None
        progress(f"saved to {name}{then}", wrap=False)

    def _help(self, _: str) -> None:
        for command, purpose in COMMANDS.items():
            print_prose(f"{command:12}{purpose}", indent=" " * 12)

    def _node(self, key: str) -> Any:
        by_key = self._chat.prompt.template.outline.by_key
        if key not in by_key:
            raise UsageError(f"no section {key!r}; there are {', '.join(by_key)}{did_you_mean(key, by_key)}")
        return by_key[key]


class Screen:
    """The terminal: answers as they arrive, the steps between them, and how long the wait has been."""

    def __init__(self) -> None:
        self.interactive = stdin().isatty() and sys.stdout.isatty()
        self.mark = "▒" if printable("▒") == "▒" else "#"
        self._setter = Setter(self._put, self._width)
        self._within_line = self._stepped = False
        self._wait: Wait | None = None
        self._quoted: list[str] = []

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Show how long nothing has appeared, while the model and the tools work."""
        self._quoted, self._stepped = [], False
        with Wait("reading…", shown=self.interactive) as self._wait:
            try:
                yield
            finally:
                self._wait.hide()
        self._wait = None

    def event(self, event: Any) -> None:
        """Show a session event."""
        if isinstance(event, Message) and self.interactive:
            self._quoted = quoted_sources(event) or self._quoted
            return
        text = (
            None
            if isinstance(event, ModelCalled | PromptRendered)
            else describe(event, MAX_STEP if self.interactive else WIDTH)
        )
        if text is None:
            return
        style = "31" if isinstance(event, ToolInvoked) and not event.success else STYLES.get(text.split()[0], "")
        if self.interactive and isinstance(event, ToolInvoked) and event.disclosure is not None and event.success:
            reason = f": {event.disclosure.reason}" if event.disclosure.reason else ""
            did = "" if event.disclosure.action == "open" else f"{event.disclosure.action} "
            text = f"{self.mark} {did}{', '.join(event.disclosure.keys)}{reason}"
        elif self.interactive and isinstance(event, ToolsInjected):
            text = f"  with {', '.join(event.tool_names)}"
        self.end()
        self.line(text, style)

    def line(self, text: str, style: str = "") -> None:
        """Print a line that is not part of an answer; in a pipe it goes to stderr."""
        if not self.interactive:
            progress(text)
            return
        self._erase()
        self._stepped = True
        print_prose(text, style=style, indent=" " * LABEL)

    def done(self, text: str) -> None:
        """The one line of status that ends an exchange."""
        if not self.interactive:
            progress(f"done    {text}")
            return
        source = f"; quoted from {', '.join(self._quoted)}" if self._quoted else ""
        self.gap()
        self.line(f"done    {text}{source}", "2")
        self.gap()

    def gap(self) -> None:
        """An empty line between exchanges."""
        if self.interactive:
            self._erase()
            self._stepped = False
            print_line()

    def write(self, text: str) -> None:
        """Print more of the answer."""
        if self.interactive:
            if self._stepped:
                self.gap()
            if self._wait is not None:
                self._wait.pause()
            self._setter.feed(printable(text))
        else:
            print_line(text, end="")
            self._within_line = not text.endswith("\n")

    def end(self) -> None:
        """Finish the line that is being written."""
        self._setter.close()
        if self._within_line:
            print_line()
            self._within_line = False
        self._erase()

    def interrupt(self) -> None:
        """Finish after Ctrl-C, which the terminal has echoed as ^C: it is erased if it stands alone on a line."""
        within_line = self._setter.within_line or self._within_line
        self.end()
        if self.interactive and not within_line:
            erase_line()

    def _erase(self) -> None:
        if self._wait is not None:
            self._wait.hide()

    @staticmethod
    def _width() -> int:
        return min(terminal_width() or MAX_WIDTH, MAX_WIDTH)

    @staticmethod
    def _put(text: str, style: str) -> None:
        print_line(text, end="", style=style)
