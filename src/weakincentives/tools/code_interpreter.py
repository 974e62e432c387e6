"""Code interpreter: the provider runs the model's code in a sandbox."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from weakincentives.errors import PromptValidationError
from weakincentives.prompt import HostedTool, HostedToolConfig, HostedToolOutput
from weakincentives.tools.hosted import (
    HostedToolFailure as HostedToolFailure,
    HostedToolSection,
    check_domains,
    check_positive,
    check_texts,
    check_type,
)

_TEMPLATE = """
You can run code in a sandbox. Use it for arithmetic, data, and anything that is easier to compute than to guess; say
what came out, not only what you expected.
"""


@dataclass(frozen=True, slots=True)
class CodeInterpreterConfig(HostedToolConfig):
    """The limits of the code, and the container it runs in: an existing one by id, or a new one with these settings.

    None leaves a setting to the provider. `allowed_domains` limits network access to these domains; an empty tuple
    denies it.
    """

    allowed_languages: tuple[str, ...] | None = None
    timeout_seconds: int | None = None
    container_id: str | None = None
    file_ids: tuple[str, ...] = ()
    memory_gb: int | None = None
    allowed_domains: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.allowed_languages is not None:
            languages = check_texts(self.allowed_languages, "CodeInterpreterConfig.allowed_languages")
            object.__setattr__(self, "allowed_languages", languages)
            if not languages:
                raise PromptValidationError("CodeInterpreterConfig.allowed_languages must name at least one language.")
        check_positive(self.timeout_seconds, "CodeInterpreterConfig.timeout_seconds")
        check_type(self.container_id, str, "CodeInterpreterConfig.container_id", "the id of a container or None")
        if self.container_id == "":
            raise PromptValidationError(
                "CodeInterpreterConfig.container_id must not be empty; leave it out for a new container."
            )
        object.__setattr__(self, "file_ids", check_texts(self.file_ids, "CodeInterpreterConfig.file_ids"))
        if self.allowed_domains is not None:
            domains = check_domains(self.allowed_domains, "CodeInterpreterConfig.allowed_domains")
            object.__setattr__(self, "allowed_domains", domains)
        check_positive(self.memory_gb, "CodeInterpreterConfig.memory_gb")
        for_new = {
            "file_ids": self.file_ids or None,
            "memory_gb": self.memory_gb,
            "allowed_domains": self.allowed_domains,
        }
        given = [name for name, value in for_new.items() if value is not None]
        if self.container_id is not None and given:
            raise PromptValidationError(
                f"CodeInterpreterConfig: {', '.join(given)} configure a new container, but container_id names an "
                "existing one; remove one or the other."
            )


@dataclass(frozen=True, slots=True)
class CodeFile:
    """A file or image created by code, by URL or by id (within a container, if the provider names one)."""

    file_id: str = ""
    name: str = ""
    url: str = ""
    container_id: str = ""


@dataclass(frozen=True, slots=True)
class CodeExecution:
    """One piece of code and its outcome; fields the provider does not report are None.

    `language` is `python`, `bash`, or `editor` for viewing or changing a file.
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
    """All code executed in a run with its output, the text of its answers, the files they refer to, and failures.

    `executions` lists each piece of code separately. `exit_code` is the last one reported.
    """

    code: str = ""
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    text: str = ""
    executions: tuple[CodeExecution, ...] = ()
    files: tuple[CodeFile, ...] = ()
    errors: tuple[HostedToolFailure, ...] = ()

    @classmethod
    def of(
        cls,
        executions: Iterable[CodeExecution],
        *,
        text: str = "",
        files: Iterable[CodeFile] = (),
        errors: Iterable[HostedToolFailure] = (),
    ) -> CodeInterpreterResult:
        """The result of these executions, in order."""
        ran = tuple(executions)
        codes = [execution.exit_code for execution in ran if execution.exit_code is not None]
        return cls(
            code="\n".join(execution.code for execution in ran),
            stdout="".join(execution.stdout or "" for execution in ran),
            stderr="".join(execution.stderr or "" for execution in ran),
            exit_code=codes[-1] if codes else None,
            text=text,
            executions=ran,
            files=tuple(files),
            errors=tuple(errors),
        )


def code_interpreter_tool(
    config: CodeInterpreterConfig = CodeInterpreterConfig(), *, name: str = "code_interpreter"
) -> HostedTool[CodeInterpreterConfig]:
    """A code interpreter with this configuration; its result is `response.hosted_outputs[name]`."""
    return HostedTool(
        kind="code_interpreter", name=name, description="Execute code in a sandboxed environment.", config=config
    )


class CodeInterpreterSection(HostedToolSection):
    """A section that lets the model run code at the provider."""

    default_title, default_template = "Code Interpreter", _TEMPLATE

    def __init__(
        self, config: CodeInterpreterConfig = CodeInterpreterConfig(), *, name: str = "code_interpreter", **options: Any
    ) -> None:
        super().__init__(code_interpreter_tool(config, name=name), **options)
