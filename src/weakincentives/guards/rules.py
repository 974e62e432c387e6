"""The guards that come along: about the order and number of tool calls, files, and the answer."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from weakincentives.errors import PromptValidationError
from weakincentives.filesystem import Filesystem, InvalidPathError, NotFoundError
from weakincentives.prompt import Guard, ToolResult
from weakincentives.prompt.guards import Decided, GuardedCall, Outcome, Refuse, Retry
from weakincentives.runtime import GuardContext, GuardDecided, Message, ToolInvoked
from weakincentives.runtime.spi import RunState
from weakincentives.session import LogEntry


class RequiresTool(Guard):
    """No answer before this tool has succeeded in the run.

    A tool that is not offered under its own name, because other sections may have one of the same
    name, is required as `section.tool`.
    """

    def __init__(self, tool: str) -> None:
        self.tools = (_tool_name(self, tool),)

    def before_answer(self, answer: str, *, context: GuardContext) -> Outcome | None:
        (name,) = self.tools
        calls: list[ToolInvoked] = []
        for call in context.session[ToolInvoked].view():
            if call.success and _of_run(call.run_id, context):
                calls.append(call)
        if any(call.is_of(name) for call in calls):
            return None
        for call in calls:
            if call.own_name == name and not _is_declared(name, context):
                # Another server could list a tool of this name, too, and satisfy the guard.
                raise PromptValidationError(
                    f"RequiresTool('{name}') does not say of which section the tool is; write "
                    f"RequiresTool('{call.section_key}.{name}')."
                )
        return Retry(f"Call the tool '{name}' before you answer.")


class MaxCalls(Guard):
    """At most `limit` calls of this tool in a run and those inside it; calls that a guard refused do not count.

    Tools of several sections with the same own name count together.
    """

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
        session, caller = context.session, _caller(context)
        calls = {(caller, under_way.id) for under_way in context.running if under_way.name == call.name}
        for call_id in _earlier_in_turn(call, context):
            calls.add((caller, call_id))
        for event in session[ToolInvoked].view():
            own_name = event.own_name or event.name
            if own_name == call.name and _of_run(event.run_id, context):
                calls.add((event.run_id, event.call_id))
        for decided in session[GuardDecided].view():
            if decided.hook == "before_tool" and decided.outcome in ("refuse", "stop"):
                calls.discard((decided.run_id, decided.call_id))
        calls.discard((caller, call.id))
        return len(calls)


def _earlier_in_turn(call: GuardedCall, context: GuardContext) -> Iterator[str]:
    """The ids of the calls of the tool that stand before this one in its turn."""
    state = context.session[RunState].latest()
    for message in reversed(context.session[Message].view()):
        if message.tool_calls:
            ids: list[str] = []
            for made in message.tool_calls:
                if _own_name(made.name, state) == call.name:
                    ids.append(made.id)
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
    """The model has read or written a file with this content, or the characters of it from `start` to `end`.

    `call` is the run and the id of the call that has read it; what the model has written, it knows at once.
    """

    path: str
    digest: str
    start: int = 0
    end: int | None = None
    call: tuple[str, str] | None = None


class ReadBeforeWrite(Guard):
    """Files are read before they are changed, by the tools `read`, `write`, `edit` and `rm` of `VfsToolsSection`.

    To replace or delete a file, the model must have read all of it; to edit it, the text that it replaces; to append,
    the end. Reading counts from the next reply on: calls of one reply were written before any had a result. A new file
    may be written. A file that has changed since it was read, whoever changed it, must be read again.
    """

    tools = ("read", "write", "edit", "rm")
    needs_each_tool = False

    def before_tool(self, call: GuardedCall, *, context: GuardContext) -> Outcome | None:
        files = context.filesystem
        if call.name == "read" or files is None or _is_foreign(call):
            return None
        for path in _paths(files, call):
            seen = _Seen(context, files, path)
            position = seen.first_unseen(call)
            if position is not None:
                return Refuse(seen.problem(position))
            if call.name == "edit":
                seen.after_edit(call.params.old, call.params.new)
        return None

    def after_tool(self, call: GuardedCall, result: ToolResult[Any], *, context: GuardContext) -> None:
        files = context.filesystem
        if _is_foreign(call):
            return
        if not result.success or call.name not in ("read", "write") or files is None:
            return
        for path in _paths(files, call):
            text, digest = _content(files, path)
            if call.name == "write":
                # What it has appended to was checked before.
                context.session.dispatch(FileSeen(path, digest))
            else:
                start = _start_of_line(text, call.params.offset)
                end = start + len(result.value or "")
                if 0 < end < len(text) and text[end - 1] != "\n":
                    # Of a line that is too long for a result, nobody can read more.
                    end = _start_of_line(text, text.count("\n", 0, end) + 1)
                context.session.dispatch(FileSeen(path, digest, start, end, (_caller(context), call.id)))


def _is_foreign(call: GuardedCall) -> bool:
    """True for a tool from outside, such as an MCP server's, which has the name of one of these."""
    return isinstance(call.params, Mapping)


class _Seen:
    """The parts of a file's content that the model knows."""

    def __init__(self, context: GuardContext, files: Filesystem, path: str) -> None:
        self._session = context.session
        self._path = path
        self._text, digest = _content(files, path)
        size = len(self._text)
        caller = _caller(context)
        unread_calls = {(caller, call_id) for call_id in _ids_of_reply(context.session[Message].view())}
        self._parts: list[tuple[int, int]] = []
        for entry in sorted(context.session[FileSeen].view(), key=lambda entry: entry.start):
            is_same = (entry.path, entry.digest) == (path, digest)
            if is_same and entry.call not in unread_calls:
                self._add(entry.start, size if entry.end is None else min(entry.end, size))

    def _add(self, start: int, end: int) -> None:
        if self._parts and start <= self._parts[-1][1]:
            before, last = self._parts[-1]
            self._parts[-1] = before, max(last, end)
        else:
            self._parts.append((start, end))

    def first_unseen(self, call: GuardedCall) -> int | None:
        """The first character that the call would change, or must know, and the model has not seen."""
        size = len(self._text)
        if call.name == "edit":
            return self._first_outside(_occurrences(self._text, call.params.old))
        if call.name == "write" and call.params.mode == "append":
            return self._first_outside([(max(0, size - 1), size)])
        return self._first_outside([(0, size)])

    def _first_outside(self, needed: Iterable[tuple[int, int]]) -> int | None:
        if not self._parts:
            return 0
        for start, end in needed:
            for seen_start, seen_end in self._parts:
                if seen_start <= start < seen_end:
                    start = seen_end
            if start < end:
                return start
        return None

    def problem(self, position: int) -> str:
        if not self._parts:
            return f"Read {self._path!r} before you change it: you have not seen what it contains now."
        line = self._text.count("\n", 0, position) + 1
        return f"Read the rest of {self._path!r} before you change it: you have not seen line {line}."

    def after_edit(self, old: str, new: str) -> None:
        """Note what the model knows of the content that an edit makes."""
        places = _occurrences(self._text, old)
        edited = self._text.replace(old, new) if old else self._text
        digest = _digest(edited.encode())
        for start, end in self._parts:
            before = sum(place_end <= start for _, place_end in places)
            inside = sum(start <= place_start < end for place_start, _ in places)
            longer = len(new) - len(old)
            shifted = start + before * longer
            entry = FileSeen(self._path, digest, shifted, end + (before + inside) * longer)
            self._session.dispatch(entry)


def _ids_of_reply(messages: Sequence[Message]) -> list[str]:
    """The ids of the calls of the last reply that has some."""
    for message in reversed(messages):
        if message.tool_calls:
            return [call.id for call in message.tool_calls]
    return []


def _occurrences(text: str, part: str) -> list[tuple[int, int]]:
    places: list[tuple[int, int]] = []
    start = text.find(part) if part else -1
    while start >= 0:
        places.append((start, start + len(part)))
        start = text.find(part, start + len(part))
    return places


def _start_of_line(text: str, number: int) -> int:
    """The position at which the line after this many begins."""
    start = 0
    for _ in range(number):
        start = text.find("\n", start) + 1
        if start == 0:
            return len(text)
    return start


def _paths(files: Filesystem, call: GuardedCall) -> Iterator[str]:
    """The path of the call's file, or those of all files in its directory; none if there is no such file."""
    try:
        entry = files.stat(call.params.path)
    except (NotFoundError, InvalidPathError):
        return
    yield from files.glob("**", path=entry.path) if entry.kind == "directory" else (entry.path,)


def _content(files: Filesystem, path: str) -> tuple[str, str]:
    """The text of a file, and a digest of its bytes."""
    data = files.read_bytes(path)
    return data.decode("utf-8", "replace"), _digest(data)


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _is_declared(name: str, context: GuardContext) -> bool:
    """True if a section, open or closed, has a tool that is offered under this name."""
    tools = chain.from_iterable(node.tools for node in context.view.outline.nodes)
    return any(tool.name == name for tool in tools)


def _own_name(name: str, state: RunState | None) -> str:
    """The name that the section of a tool has given it."""
    if state is None:
        return name
    return state.own_name(name)


def _tool_name(guard: Guard, name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise PromptValidationError(f"{guard.name} takes the name of a tool, got {name!r}.")
    return name


def _caller(context: GuardContext) -> str:
    """The run that makes the call: the guard's, or one inside it."""
    state = context.session[RunState].latest()
    if state is None:
        return context.run_id
    return state.run_id


def _of_run(run_id: str, context: GuardContext) -> bool:
    """True for events of this run, and of runs inside it."""
    return run_id == context.run_id or run_id.startswith(f"{context.run_id}/")
