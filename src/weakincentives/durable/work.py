"""Durable work as callers see it: its status and steps, questions to a person, and its errors.

WinkError
└── DurableError
    ├── DatabaseBusyError         another process runs the work of this SQLite file
    ├── DatabaseUnavailableError  the database cannot be reached or written now
    ├── KeyConflictError          the key was used for another request
    ├── NoSuchWorkError           there is no work with this key
    ├── StaleQuestionError        the question has changed, or was answered
    ├── WorkPendingError          the result is not available yet
    ├── WorkCancelledError        the work was cancelled
    ├── DeadLetterError           the work was abandoned after too many failed attempts
    └── RemoteError               the work failed with an exception class that this process has not loaded
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

from weakincentives._base.display import shortened
from weakincentives.errors import SerdeError, WinkError
from weakincentives.prompt import ToolContext
from weakincentives.runtime import Answer, Approve, Deny, Edit, Message, Question
from weakincentives.runtime.spi import CallSuspended, Decision
from weakincentives.serde import ForeignSchema
from weakincentives.session import Session

WorkStatus = Literal["queued", "running", "waiting", "done", "failed", "cancelled", "dead"]

# The engine's name for each status.
ENGINE_STATUS: dict[WorkStatus, str] = {
    "queued": "ENQUEUED",
    "running": "PENDING",
    "waiting": "DELAYED",
    "done": "SUCCESS",
    "failed": "ERROR",
    "cancelled": "CANCELLED",
    "dead": "MAX_RECOVERY_ATTEMPTS_EXCEEDED",
}
STATUS_OF = {engine_status: status for status, engine_status in ENGINE_STATUS.items()}
FINISHED: frozenset[WorkStatus] = frozenset({"done", "failed", "cancelled", "dead"})


@dataclass(frozen=True, slots=True)
class Work:
    """One request and its progress."""

    id: str  #: the key it was sent with
    loop: str  #: the name of its loop
    status: WorkStatus  #: how far it is
    version: str  #: the version of the program that began it
    queue: str  #: its queue
    tenant: str  #: who it is done for, if limits are by tenant
    worker: str  #: the worker that has it
    attempts: int  #: how often it was begun
    created_ms: int  #: milliseconds since 1970
    updated_ms: int  #: milliseconds since 1970

    @property
    def key(self) -> str:
        return self.id.removeprefix(f"{self.loop}/")


@dataclass(frozen=True, slots=True)
class Step:
    """A recorded step. Unless it failed, it is never run again."""

    number: int  #: its number in the work, from 1
    name: str  #: the step's name
    started_ms: int | None  #: milliseconds since 1970
    completed_ms: int | None  #: milliseconds since 1970; None until then
    error: str | None  #: why it failed

    @property
    def milliseconds(self) -> int:
        return (self.completed_ms or 0) - (self.started_ms or 0)


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """A worker's health. `reason` says why it is not ready; `running` is the number of runs in progress.

    A worker that is not live must be restarted. One that is not ready is starting, draining, or waiting for its
    database; a restart would not help.
    """

    live: bool  #: False if it must be restarted
    ready: bool  #: True if it takes work
    reason: str
    worker: str  #: its id
    running: int


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How much of a queue runs at once.

    `concurrency` limits runs at a time per worker, `tenant_concurrency` runs at a time per tenant across all workers
    (work without a tenant is not limited by it), and `rate` starts per second across all workers. On SQLite the engine
    counts whole seconds, so the rate holds only on average.
    """

    concurrency: int = 8
    tenant_concurrency: int | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        for name in ("concurrency", "tenant_concurrency"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise DurableError(f"QueueLimits.{name} must be at least 1, got {value}.")
        if self.rate is not None and self.rate <= 0:
            raise DurableError(f"QueueLimits.rate must be more than 0 starts per second, got {self.rate}.")


@dataclass(frozen=True, slots=True)
class InFlight:
    """The part of a conversation that is not answered yet.

    `number` is that of the run that is queued or under way, None if there is none; `messages` are those that it and the
    runs after it answer, and `sent` counts what was sent within the last minute.
    """

    number: int | None
    messages: tuple[Message, ...] = ()
    runs: int = 0  #: the number of runs that are queued or under way
    sent: int = 0


@dataclass(frozen=True, slots=True)
class DurableQuestion:
    """A question to a person before a tool call can continue: `client.approve(question.key, question.id, Approve())`.

    `id` names exactly what is asked: an answer with another id is refused. `text` is what the person reads, with
    secrets replaced. `key` is the key of the work and `step` the number of the step that asked. The second question of
    a call has the `call_id` `CALL#2`. Times are milliseconds since 1970. `answer` is None while the question waits;
    after `expires_ms` it is no, with `expired=True`.

    If the tool declares `approval=`, `asked` is the question as every surface draws it. `arguments` is then the JSON
    text to be used, which must fit `schema`. If the handler asked by itself, `asked` is None.
    """

    id: str  #: the key of an answer
    call_id: str  #: the id of the call
    text: str
    expires_ms: int | None = None
    step: int = 0
    key: str = ""
    asked_ms: int = 0  #: when it was asked
    answer: Approval | Decision | None = None
    tool: str = ""  #: the tool's name
    arguments: str = ""
    schema: Mapping[str, Any] | None = field(default=None, repr=False)
    asked: Question | None = None

    @property
    def needs(self) -> Literal["call", "effects", "answer"] | None:
        """What was asked for; None if the handler asked by itself."""
        return None if self.asked is None else self.asked.needs


def handler_question(call_id: str, text: str, expires_ms: int | None = None) -> DurableQuestion:
    """The question of a handler, in its own words."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return DurableQuestion(f"{call_id}:{digest}", call_id, text, expires_ms)


@dataclass(frozen=True, slots=True)
class Approval:
    """A person's answer to a handler: yes or no, a note for the handler, and who decided."""

    approved: bool  #: yes or no
    note: str = ""  #: a text for the handler
    by: str = ""  #: who decided
    expired: bool = False  #: True if nobody decided in time

    def __post_init__(self) -> None:
        if not isinstance(self.approved, bool):
            raise TypeError(f"approved must be True or False, got {self.approved!r}")
        for name in ("note", "by"):
            if not isinstance(value := getattr(self, name), str):
                raise TypeError(f"{name} must be a str, got {value!r}")


Reply: TypeAlias = Approval | Decision
CALL_FACTS = ("tool", "arguments", "schema")
"""The fields of a question that are stored with it if a tool declares `approval=`."""
EXPIRED = Approval(approved=False, note="Nobody answered in time.", expired=True)


def accepted_reply(question: DurableQuestion, reply: Reply) -> Reply:
    """The reply as the question takes it: an `Approval` if a handler asked, else a decision; raises if it cannot."""
    if not isinstance(reply, Approval | Approve | Deny | Edit | Answer):
        raise TypeError(
            f"The decision about {question.call_id!r} must be Approve(), Deny(reason), Edit(arguments) or "
            f"Answer(text), got {shortened(repr(reply), 100)}"
        )
    match reply:
        case Approve(by) if question.needs is None:
            return Approval(approved=True, by=by)
        case Deny(reason, by) if question.needs is None:
            return Approval(approved=False, note=reason, by=by)
        case Edit() | Answer() if question.needs is None:
            raise _rejected(question, "was asked by its handler", "Approve() or Deny(reason)")
        case Approval(approved=False) if question.needs is not None:
            return Deny(reply.note, reply.by)
        case Approval(note=str(note)) if note and question.needs is not None:
            raise _rejected(question, "is approved without a note", "Approve(), or Answer(text) in place of the call")
        case Approval() | Approve() | Edit() if question.needs == "answer":
            raise _rejected(question, f"of '{question.tool}' has no handler", "Answer(text) or Deny(reason)")
        case Approval() if question.needs is not None:
            return Approve(reply.by)
        case Edit():
            _check_edit(question, reply)
    return reply


def _check_edit(question: DurableQuestion, edit: Edit) -> None:
    """Raise unless the arguments fit the schema; the worker that makes the call checks all that a schema cannot say."""
    where = f"The edit of call {question.call_id!r} does not fit '{question.tool}'"
    if not isinstance(edit.arguments, Mapping):
        raise TypeError(f"Edit takes the arguments as a mapping, got {shortened(repr(edit.arguments), 100)}")
    try:
        ForeignSchema(question.schema or {"type": "object"}).decode(json.dumps(dict(edit.arguments)))
    except SerdeError as error:
        listed = "; ".join(f"{each.path.removeprefix('$.')}: {each.message}" for each in error.problems)
        raise DurableError(f"{where}: {listed}") from None
    except (TypeError, ValueError) as error:
        raise DurableError(f"{where}: it is not JSON: {error}") from None


def _rejected(question: DurableQuestion, why: str, how: str) -> DurableError:
    return DurableError(f"Call {question.call_id!r} {why}; decide it with {how}.")


def is_name(given: object) -> bool:
    """True if this can name work in every database: a text that is not blank, of valid Unicode without NUL."""
    if not isinstance(given, str) or not given.strip() or "\0" in given:
        return False
    # Postgres stores no lone surrogates.
    return given.encode(errors="replace").decode() == given


class ApprovalRequired(CallSuspended):
    """Unwinds a tool call that needs an answer."""

    def __init__(self, question: DurableQuestion) -> None:
        super().__init__(question.text)
        self.question = question


def ask_approval(context: ToolContext, question: str, *, within: float | None = None) -> Approval:
    """Return a person's answer to this tool call; until there is one, the run leaves its process.

        answer = ask_approval(context, f"Refund {params.amount}?", within=3 * 86400)
        if not answer.approved:
            return ToolResult(answer.note or "Refused.", success=False)

    The call is rolled back, and starts again from its first line after `approve(key, call_id)`. Ask before doing
    anything that must not happen twice. If nobody answers in `within` seconds, the answer is no, with `expired=True`.

    A call may ask several questions, one after the other. An answer is for the text that was shown, so a question must
    have the same text each time the call reaches it, or it is asked again.
    """
    answers = _answers.get(context.session)
    if answers is None:
        mistake = DurableError("ask_approval() needs a run of DurableMainLoop; other runs cannot wait for a person.")
        mistake.ends_run = True
        raise mistake
    name, number = context.call_id, 1
    while name in answers:
        given = answers[name]
        if given is not None and given[0] == question:
            answers[name] = None
            return given[1]
        number += 1
        name = f"{context.call_id}#{number}"
    expires_ms = None if within is None else int((time.time() + within) * 1000)
    raise ApprovalRequired(handler_question(name, question, expires_ms))


Answers: TypeAlias = Mapping[str, tuple[str, Approval] | None]
"""What was asked and the answer, by question id; None once the call has received it, or if no handler asked."""

_answers: WeakKeyDictionary[Session, dict[str, tuple[str, Approval] | None]] = WeakKeyDictionary()


def give_answers(session: Session, answers: Answers) -> None:
    """Answer what the next tool calls ask, and enable `ask_approval` for the session."""
    _answers[session] = dict(answers)


class DurableError(WinkError):
    """Base class for errors of durable work."""


class DatabaseBusyError(DurableError):
    """Another process runs the work of this SQLite file; only one can at a time."""


class DatabaseUnavailableError(DurableError):
    """The database cannot be reached or written now, because of a lost server or a full disk, for example.

    Try again later. Running work waits for its database on its own.
    """


class KeyConflictError(DurableError):
    """The key was used for another request."""


class NoSuchWorkError(DurableError, LookupError):
    """There is no work with this key."""


class StaleQuestionError(DurableError):
    """The question has changed, or was answered: nothing has acted. Look again at what is asked now."""


class WorkPendingError(DurableError):
    """The work has not finished; `status` is its current status."""

    def __init__(self, message: str, *, status: str) -> None:
        super().__init__(message)
        self.status = status


class WorkCancelledError(DurableError):
    """The work was cancelled before it finished."""


class DeadLetterError(DurableError):
    """The work was abandoned after too many attempts; `wink work retry` continues it."""


class RemoteError(DurableError):
    """The work failed with an exception whose class this process has not loaded; `type_name` names it."""

    def __init__(self, message: str, *, type_name: str) -> None:
        super().__init__(message)
        self.type_name = type_name


class Released(BaseException):
    """Unwinds an execution that no longer owns its work: handed back, waiting for a person, or taken over.

    A BaseException, so that the engine records no outcome and no `except Exception` in a handler swallows it.
    """


class Cancelled(Released):
    """Unwinds an execution whose work was cancelled."""
