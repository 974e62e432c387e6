"""A ready-made section with a tool that runs programs in the prompt's workspace."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, TypeVar, Unpack

from weakincentives.errors import PromptValidationError, ToolValidationError
from weakincentives.filesystem import (
    Filesystem,
    FilesystemError,
    FolderBusyError,
    HostFilesystem,
    NeedsFolderError,
    ProgramRun,
)
from weakincentives.prompt import (
    Approvals,
    LateContent,
    SectionOptions,
    Timeouts,
    ToolContext,
    ToolResult,
    WorkspaceSection,
    by_tool,
    tool,
)
from weakincentives.resources import ResourceError, ScopedResourceContext

T = TypeVar("T")
__all__ = ["CommandResult", "CommandSection", "UnfitWorkspaceError"]

_TEMPLATE = """\
`run_command` runs a program in your workspace, as a list of arguments: there is no shell, so pipes, `&&`, wildcards and
variables do not work. The programs are: {programs}. A command that fails{late}
changes no file."""
INHERITED = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER")
MAX_LISTED = 20
# How long to wait for a killed process to be gone.
ENDING_SECONDS = 2.0
# How much longer the tool may take than its program, to find out what that has changed.
TOOL_SECONDS = 30.0
# How often to look whether the commands of other runs have ended.
BUSY_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The end of a command: its exit code (negative for a signal), its output, and the files it has changed."""

    exit_code: int | None
    output: str
    changed: tuple[str, ...] = ()

    def render(self) -> str:
        return self.output


class UnfitWorkspaceError(PromptValidationError):
    """The workspace cannot tell what a command has changed; raised in a run, it ends the run."""

    ends_run = True


class CommandSection(WorkspaceSection):
    """The tool `run_command`, which runs one of `programs` in the workspace, with a list of arguments and no shell.

        CommandSection(HostFilesystem("work", track_external=True), programs=["pytest", "ruff"], timeout=120)

    This is no sandbox: a program can do whatever your process can. A command has failed if its exit code is not among
    `success_codes`; the files that it changed in the workspace are then restored, also if your process dies meanwhile.
    It inherits a few variables, such as `PATH` and `HOME`, and gets those in `env`. Of its output, at most `max_output`
    bytes are returned. With `approval="effects"`, it runs, its changes are taken back, and a person sees them before
    they count. Commands in one workspace run one after the other.
    """

    loads_tools = False

    def __init__(
        self,
        filesystem: HostFilesystem | None = None,
        *,
        programs: Iterable[str],
        timeout: Timeouts = 60.0,
        approval: Approvals = None,
        env: Mapping[str, str] | None = None,
        success_codes: Collection[int] = (0,),
        max_output: int = 20_000,
        title: str = "Commands",
        key: str = "commands",
        template: str | None = None,
        **options: Unpack[SectionOptions[None]],
    ) -> None:
        if isinstance(programs, str) or not (names := tuple(programs)):
            raise PromptValidationError(f"CommandSection '{key}': programs= takes a list of names, got {programs!r}.")
        if max_output <= 0:
            raise PromptValidationError(f"CommandSection '{key}': max_output must be more than 0, got {max_output!r}.")
        whose, own = f"CommandSection '{key}'", ["run_command"]
        seconds = by_tool(whose, "timeout", timeout, own, 60.0)["run_command"]
        rule = by_tool(whose, "approval", approval, own, hosted=options.get("hosted_tools", ()))["run_command"]
        if filesystem is not None:
            _check(filesystem, key)
        self._programs = names
        self._timeout = seconds
        self._env = dict(env or {})
        self._success_codes = frozenset(success_codes)
        self._max_output = max_output
        if template is None:
            listed = ", ".join(f"`{name}`" for name in names).replace("$", "$$")
            late = "" if seconds is None else f" or takes longer than {seconds:g} seconds"
            template = _TEMPLATE.format(programs=listed, late=late)
        limit = None if seconds is None else seconds + TOOL_SECONDS
        run_command = tool(timeout=limit, approval=rule, changes=(Filesystem,))(self.run_command)
        run_command.needs_folder = True
        options["tools"] = (run_command, *options.get("tools", ()))
        super().__init__(filesystem, title=title, key=key, template=template, **options)

    def stored(self) -> LateContent:
        return LateContent()

    def load(self, resources: ScopedResourceContext) -> LateContent | None:
        """Check the workspace before the model sees the section."""
        with suppress(ResourceError):  # A filesystem that only a tool call can get is checked there.
            _check(resources.get(Filesystem), self.key)
        return None

    async def run_command(
        self,
        command: Annotated[list[str], "The program and its arguments, such as ['pytest', '-q', 'tests']."],
        path: Annotated[str, "Directory to run it in, relative to the root."] = ".",
        *,
        context: ToolContext,
    ) -> ToolResult[CommandResult]:
        """Run a program in the workspace and return its output and exit code."""
        if not command or command[0] not in self._programs:
            given = repr(command[0]) if command else "no program"
            raise ToolValidationError(f"{given} cannot be run; the programs are: {', '.join(self._programs)}")
        files = _check(context.filesystem, self.key)
        seconds = self._timeout
        if context.deadline is not None:
            left = max(0.0, context.deadline.remaining().total_seconds())
            seconds = left if seconds is None else min(seconds, left)
        try:
            files.list(path)
            folder, seconds_left = await _begun(files, shlex.join(command), seconds)
            try:
                code, output = await self._run(command, path, folder, seconds_left)
                return await self._result(folder, code, output, seconds)
            finally:
                await _in_thread(folder.close)
        except NeedsFolderError:
            # Too much to be taken back: a person is asked about the call itself.
            raise
        except FilesystemError as error:
            raise ToolValidationError(str(error)) from error
        except (OSError, ValueError) as error:
            raise ToolValidationError(f"{command[0]!r} cannot be started: {error}") from error

    async def _result(
        self, folder: ProgramRun, code: int | None, output: str, seconds: float | None
    ) -> ToolResult[CommandResult]:
        """Keep what the command has changed, or take it back if it has failed."""
        # A command that has removed the workspace itself has failed, whatever it says.
        success = code in self._success_codes and os.path.isdir(folder.folder)
        changed = await _in_thread(folder.keep if success else folder.take_back)
        ended = f"Stopped after {seconds:g} seconds" if code is None else f"Exit code {code}"
        message = f"{ended}{_changes(changed, kept=success)}."
        return ToolResult(message, CommandResult(code, output, changed), success)

    async def _run(
        self, command: list[str], path: str, folder: ProgramRun, seconds: float | None
    ) -> tuple[int | None, str]:
        """The exit code, None if the time is up, and the output."""
        loop = asyncio.get_running_loop()
        transport, running = await loop.subprocess_exec(
            lambda: _Running(loop, self._max_output),
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=os.path.join(folder.folder, path),
            env=_inherited() | self._env | folder.environment,
            start_new_session=True,
        )
        try:
            ended, _ = await asyncio.wait({running.exited}, timeout=seconds)
        finally:
            # Whatever the program has left running must not write to files that are restored.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(transport.get_pid(), signal.SIGKILL)
            await asyncio.wait({running.closed}, timeout=ENDING_SECONDS)
            transport.close()
        return transport.get_returncode() if ended else None, running.output()


class _Running(asyncio.SubprocessProtocol):
    """A running program: the beginning and the end of its output, and when it has exited and closed that."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self.exited: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self._half = max(1, limit // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self._left_out = 0

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        self._left_out += max(0, len(self._tail) - self._half)
        del self._tail[: -self._half]

    def process_exited(self) -> None:
        self.exited.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set_result(None)

    def output(self) -> str:
        if not self._left_out:
            return (self._head + self._tail).decode("utf-8", "replace")
        head, tail = (part.decode("utf-8", "replace") for part in (self._head, self._tail))
        return f"{head}\n[... {self._left_out:,} bytes left out ...]\n{tail}"


async def _begun(files: HostFilesystem, label: str, seconds: float | None) -> tuple[ProgramRun, float | None]:
    """The folder, once the commands of other runs have ended there, and the seconds that are left by then."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        left = None if seconds is None else began + seconds - loop.time()
        try:
            run = await _in_thread(partial(files.programs, label), drop=ProgramRun.close)
        except FolderBusyError:
            if left is not None and left < 0:
                raise
            await asyncio.sleep(BUSY_SECONDS)
        else:
            return run, left


async def _in_thread(work: Callable[[], T], drop: Callable[[T], object] | None = None) -> T:
    """The result of blocking work, which goes on to its end even if this task is cancelled.

    `drop` is then called with the result.
    """
    running = asyncio.ensure_future(asyncio.to_thread(work))
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return running.result()
    if drop is not None and running.exception() is None:
        await asyncio.to_thread(drop, running.result())
    raise cancelled


def _inherited() -> dict[str, str]:
    return {name: os.environ[name] for name in INHERITED if name in os.environ}


def _check(files: Filesystem | None, key: str) -> HostFilesystem:
    if isinstance(files, HostFilesystem) and files.tracks_external:
        return files
    raise UnfitWorkspaceError(
        f"CommandSection '{key}' needs HostFilesystem(root, track_external=True), so that what commands change is "
        f"found, got {files!r}; pass it to the section or to prompt.bind(resources={{Filesystem: ...}})."
    )


def _changes(changed: tuple[str, ...], *, kept: bool) -> str:
    if not changed:
        return ""
    if not kept:
        return f"; {len(changed)} changed path{'s were' if len(changed) > 1 else ' was'} restored"
    more = f" and {len(changed) - MAX_LISTED} more" if len(changed) > MAX_LISTED else ""
    return f"; changed {', '.join(changed[:MAX_LISTED])}{more}"
