"""The guards that come along: about the order and number of tool calls, files, and the answer."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from weakincentives.errors import PromptValidationError
from weakincentives.filesystem import Filesystem, InvalidPathError, NotFoundError
from weakincentives.prompt import Guard, ToolResult
from weakincentives.prompt.guards import Decided, GuardedCall, Outcome, Refuse, Retry
from weakincentives.runtime import GuardContext, GuardDecided, Message, ToolInvoked
from weakincentives.runtime.spi import Run
from weakincentives.session import LogEntry


class RequiresTool(Guard):
    """No answer before this tool has succeeded in the run."""

    def __init__(self, tool: str) -> None:
        self.tools = (_tool_name(self, tool),)

    def before_answer(self, answer: str, *, context: GuardContext) -> Outcome | None:
        (name,) = self.tools
        for event in context.session[ToolInvoked].view():
            if event.name == name and event.success and _of_run(event.run_id, context):
                return None
        return Retry(f"Call the tool '{name}' before you answer.")


class MaxCalls(Guard):
    """At most `limit` calls of this tool in a run and those inside it; calls that a guard refused do not count."""

    def __init__(self, tool: str, limit: int) -> None:
        self.tools = (_tool_name(self, tool),)
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
            raise PromptValidationError(f"MaxCalls('{tool}'): the limit must be 0 or more, got {limit!r}.")
        self.limit = limit

    def before_tool(self, call: GuardedCall, *, context: GuardContext) -> Outcome | None:
        if self._calls_before(call, context) < self.limit:
            return None
        times = "once" if self.limit == 1 else f"{self.limit} times"
        return Refuse(f"The tool '{call.name}' may be called {times} in a run; go on without it.")

    def _calls_before(self, call: GuardedCall, context: GuardContext) -> int:
        """The other calls of the tool: those that were made, wherever they stand, and those whose turn comes before.

        The latter may be running, or wait for a person. In a run inside the guard's, the conversation is that of the
        inner run, so the calls are told apart by the run that makes them.
        """
        session = context.session
        run = session[Run].latest()
        caller = context.run_id if run is None else run.run_id
        calls = {(caller, under_way.id) for under_way in context.running if under_way.name == call.name}
        calls.update((caller, call_id) for call_id in _earlier_in_turn(call, session[Message].view()))
        for event in session[ToolInvoked].view():
            if event.name == call.name and _of_run(event.run_id, context):
                calls.add((event.run_id, event.call_id))
        for decided in session[GuardDecided].view():
            if decided.hook == "before_tool" and decided.outcome in ("refuse", "stop"):
                calls.discard((decided.run_id, decided.call_id))
        calls.discard((caller, call.id))
        return len(calls)


def _earlier_in_turn(call: GuardedCall, messages: Sequence[Message]) -> Iterator[str]:
    """The ids of the calls of the tool that stand before this one in its turn."""
    for message in reversed(messages):
        if message.tool_calls:
            ids = [made.id for made in message.tool_calls if made.name == call.name]
            yield from ids[: ids.index(call.id)] if call.id in ids else ()
            return


class OutputCheck(Guard):
    """Check the answer with a function of the typed output, or of the text if none is declared.

    It returns None if the answer is right, or else the feedback with which the model answers again; sync or async.
    """

    def __init__(self, function: Callable[[Any], str | Awaitable[str | None] | None], *, hold: bool = False) -> None:
        if not callable(function):
            raise PromptValidationError(f"OutputCheck takes a function of the output, got {function!r}.")
        self.function = function
        self.hold = hold

    def before_answer(self, answer: str, *, context: GuardContext) -> Decided:
        feedback: Any = self.function(answer if context.output is None else context.output)
        return _later(feedback) if inspect.isawaitable(feedback) else _feedback(feedback)


async def _later(feedback: Awaitable[Any]) -> Outcome | None:
    return _feedback(await feedback)


def _feedback(feedback: Any) -> Outcome | None:
    return None if feedback is None else Retry(feedback)


@dataclass(frozen=True, slots=True)
class FileSeen(LogEntry):
    """The model has read or written a file with this content."""

    path: str
    digest: str


class ReadBeforeWrite(Guard):
    """Files are read before they are changed, by the tools `read`, `write`, `edit` and `rm` of `VfsToolsSection`.

    A new file may be written. A file that has changed since it was read, whoever changed it, must be read again.
    """

    tools = ("read", "write", "edit", "rm")

    def before_tool(self, call: GuardedCall, *, context: GuardContext) -> Outcome | None:
        files = context.filesystem
        if call.name == "read" or files is None:
            return None
        seen = {(each.path, each.digest) for each in context.session[FileSeen].view()}
        unread = [path for path, digest in _contents(files, call) if (path, digest) not in seen]
        if not unread:
            return None
        return Refuse(f"Read {unread[0]!r} before you change it: you have not seen what it contains now.")

    def after_tool(self, call: GuardedCall, result: ToolResult[Any], *, context: GuardContext) -> None:
        files = context.filesystem
        if result.success and call.name != "rm" and files is not None:
            for path, digest in _contents(files, call):
                context.session.dispatch(FileSeen(path, digest))


def _contents(files: Filesystem, call: GuardedCall) -> Iterator[tuple[str, str]]:
    """The path of the call's file with a digest of its content, or those of all files in its directory."""
    try:
        found = files.stat(call.params.path)
    except (NotFoundError, InvalidPathError):
        return
    for path in files.glob("**", path=found.path) if found.kind == "directory" else (found.path,):
        yield path, hashlib.blake2b(files.read_bytes(path), digest_size=16).hexdigest()


def _tool_name(guard: Guard, name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise PromptValidationError(f"{guard.name} takes the name of a tool, got {name!r}.")
    return name


def _of_run(run_id: str, context: GuardContext) -> bool:
    """True for events of this run, and of runs inside it."""
    return run_id == context.run_id or run_id.startswith(f"{context.run_id}/")
