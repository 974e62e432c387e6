"""Every error the library raises on purpose.

WinkError
├── PromptError
│   ├── PromptValidationError         a prompt, section or tool declaration is invalid
│   ├── PromptRenderError             rendering failed: a bad selector, or a section that raised
│   │   └── UnboundParamsError        params that a section needs were not bound
│   ├── OutputParseError              the model's answer does not match the declared output
│   └── VisibilityExpansionRequired   a signal: open these sections and evaluate again (weakincentives.prompt)
├── ToolValidationError               a tool's arguments or request are invalid; sent to the model
├── AbandonedCallError                a tool call wrote something after its run had ended
├── UnshownChangeError                a call that is shown before it counts changed something else
├── PromptEvaluationError             a run failed; `phase` says where
│   ├── ContextOverflowError          the conversation no longer fits the model's context
│   ├── GuardRefusedError             a guard refused the user's words or the answer, or stopped the run
│   ├── DeadlineExceededError
│   └── BudgetExceededError
├── SerdeError                        data does not match a type; `problems` lists every mismatch
├── SessionError                      a slice, reducer or snapshot was misused
│   ├── SessionBusyError              the session already belongs to a run
│   └── OutsideEffectsError           going back would pass over calls that have acted outside
└── ResourceError, FilesystemError ...   in their own packages
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Literal, NamedTuple

EvaluationPhase = Literal["request", "response", "tool", "budget", "render", "parse", "guard"]


class WinkError(Exception):
    """Base class of the library's errors. Pickling keeps every attribute.

    Raised in a tool handler, an error with `ends_run` ends the run; the model reads any other as the tool's failure.
    `usage` is the `TokenUsage` of the run that failed with the error, up to then; None if no run did.
    """

    ends_run = False
    usage: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, self.__dict__.copy())


class PromptError(WinkError):
    """A prompt cannot be declared, rendered or parsed."""


class PromptValidationError(PromptError):
    """A prompt, section or tool declaration is invalid."""


class PromptRenderError(PromptError):
    """A valid prompt cannot be rendered with the bound params."""


class UnboundParamsError(PromptRenderError):
    """Params that a section needs were not bound; `missing` names the fields without a default."""

    def __init__(self, message: str, *, params_type: str, missing: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.params_type = params_type
        self.missing = missing


class OutputParseError(PromptError):
    """A model's answer does not match the declared output type.

    `raw` is the whole answer, `path` the field that failed (`$.steps[2].title`).
    """

    def __init__(self, message: str, *, raw: str = "", path: str = "$") -> None:
        super().__init__(message)
        self.raw = raw
        self.path = path


class ToolValidationError(WinkError):
    """A tool cannot accept its arguments or the request; the model reads the message."""


class AbandonedCallError(WinkError):
    """A tool call that was cancelled, or ran past its deadline, tried to use its session, files or resources."""


class UnshownChangeError(WinkError):
    """A call that is shown to a person would change what the person does not see."""


class PromptEvaluationError(WinkError):
    """A run failed; `phase` says where, and `payload` holds the provider's response if there was one."""

    def __init__(self, message: str, *, prompt_name: str = "", phase: EvaluationPhase, payload: object = None) -> None:
        super().__init__(message)
        self.prompt_name = prompt_name
        self.phase: EvaluationPhase = phase
        self.payload = payload


class ContextOverflowError(PromptEvaluationError):
    """The conversation no longer fits the model's context window."""


class GuardRefusedError(PromptEvaluationError):
    """A guard refused the user's words or the answer, or stopped the run; `guard` and `hook` say which.

    `message` is the guard's own text, which may be shown to the user; it is empty if the guard itself failed. `run_id`
    is the run that a guard has stopped, if it did: it may have been asked about a call of a run inside that one.
    """

    def __init__(
        self, problem: str, *, message: str, guard: str, hook: str, prompt_name: str = "", run_id: str = ""
    ) -> None:
        super().__init__(problem, prompt_name=prompt_name, phase="guard")
        self.message = message
        self.guard = guard
        self.hook = hook
        self.run_id = run_id


class DeadlineExceededError(PromptEvaluationError):
    """The deadline passed before the run was done; raised in a tool handler, it ends the run."""

    ends_run = True

    def __init__(
        self, message: str, *, prompt_name: str = "", phase: EvaluationPhase = "budget", payload: object = None
    ) -> None:
        super().__init__(message, prompt_name=prompt_name, phase=phase, payload=payload)


class BudgetExceededError(PromptEvaluationError):
    """The next step would exceed the budget; `limit` names the exhausted field."""

    ends_run = True

    def __init__(self, message: str, *, prompt_name: str = "", limit: str = "") -> None:
        super().__init__(message, prompt_name=prompt_name, phase="budget")
        self.limit = limit


class FieldProblem(NamedTuple):
    """One mismatch between data and a type: its path, and what is wrong there."""

    path: str
    message: str


class SerdeError(WinkError):
    """Data does not match a type; the message lists every problem with its path."""

    def __init__(self, problems: tuple[FieldProblem, ...]) -> None:
        super().__init__("; ".join(f"{problem.path}: {problem.message}" for problem in problems))
        self.problems = problems


class SessionError(WinkError):
    """A slice, reducer or snapshot was misused; the session is unchanged."""


class SessionBusyError(SessionError):
    """The session already belongs to a run."""


class OutsideEffectsError(SessionError):
    """Going back would pass over calls that have acted outside; nothing has changed.

    `outside` are these calls, as `RewindReport.outside` has them.
    """

    def __init__(self, message: str, *, outside: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.outside = outside


def _restore(cls: type[WinkError], args: tuple[Any, ...], attributes: dict[str, Any]) -> WinkError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(attributes)
    return error


_OWN_FRAMES = ("weakincentives.", "importlib", "dbos.", "concurrent.futures.")


def callers_traceback(error: BaseException) -> TracebackType | None:
    """The error's traceback without the frames of this library, and its engine, that led to the caller's code."""
    found = error.__traceback__
    while found and found.tb_frame.f_globals.get("__name__", "").startswith(_OWN_FRAMES):
        found = found.tb_next
    return found or error.__traceback__
