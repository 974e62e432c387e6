"""What running code gave."""

from __future__ import annotations

from dataclasses import dataclass

from weakincentives.prompt import HostedToolOutput
from weakincentives.tools.failure import HostedToolFailure


@dataclass(frozen=True, slots=True)
class CodeFile:
    """A file or image that code made: by id (in a container, where the provider says which), or by URL."""

    file_id: str = ""
    name: str = ""
    url: str = ""
    container_id: str = ""


@dataclass(frozen=True, slots=True)
class CodeExecution:
    """One piece of code and what came of it; None stands for what the provider does not say.

    `language` is `python`, `bash`, or `editor` for a file that was viewed or changed.
    """

    code: str
    stdout: str | None = None
    stderr: str | None = None
    exit_code: int | None = None
    language: str = "python"
    files: tuple[CodeFile, ...] = ()
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class CodeInterpreterResult(HostedToolOutput):
    """All code that a run executed, in order; the text of its answers, the files they point to, and what failed."""

    text: str
    executions: tuple[CodeExecution, ...] = ()
    files: tuple[CodeFile, ...] = ()
    errors: tuple[HostedToolFailure, ...] = ()

    @property
    def code(self) -> str:
        """All code, one piece after the other."""
        return "\n".join(execution.code for execution in self.executions)

    @property
    def stdout(self) -> str:
        return "".join(execution.stdout or "" for execution in self.executions)

    @property
    def stderr(self) -> str:
        return "".join(execution.stderr or "" for execution in self.executions)

    @property
    def exit_code(self) -> int | None:
        """The exit code of the last piece that has one."""
        codes = [execution.exit_code for execution in self.executions if execution.exit_code is not None]
        return codes[-1] if codes else None
