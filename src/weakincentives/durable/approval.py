"""Ask a person in the middle of a tool call, without a process waiting for the answer."""

from __future__ import annotations

import time
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from weakincentives.durable.errors import DurableError
from weakincentives.prompt import ToolContext
from weakincentives.runtime import CallSuspended
from weakincentives.session import Session


@dataclass(frozen=True, slots=True)
class Question:
    """A question that a person must answer before a tool call can go on: `client.approve(question.key, ...)`.

    `key` is the key of the work and `step` the number of the step that asked. Times are milliseconds since 1970.
    """

    call_id: str
    text: str
    expires_ms: int | None = None
    step: int = 0
    key: str = ""
    asked_ms: int = 0


@dataclass(frozen=True, slots=True)
class Approval:
    """A person's answer: yes or no, a note for the model, and who decided."""

    approved: bool
    note: str = ""
    by: str = ""
    expired: bool = False


class ApprovalRequired(CallSuspended):
    """Unwinds a tool call that needs an answer."""

    def __init__(self, question: Question) -> None:
        super().__init__(question.text)
        self.question = question


def ask_approval(context: ToolContext, question: str, *, within: float | None = None) -> Approval:
    """Return a person's answer to this tool call; until there is one, the run leaves its process.

        answer = ask_approval(context, f"Refund {params.amount}?", within=3 * 86400)
        if not answer.approved:
            return ToolResult(answer.note or "Refused.", success=False)

    The call is rolled back, and starts again from its first line after `approve(key, call_id)`. Ask before doing
    anything that must not happen twice. If nobody answers `within` seconds, the answer is no, with `expired=True`.
    """
    answers = _answers.get(context.session)
    if answers is None:
        raise DurableError("ask_approval() needs a run of DurableMainLoop; other runs cannot wait for a person.")
    if context.call_id in answers:
        return answers[context.call_id]
    expires_ms = None if within is None else int((time.time() + within) * 1000)
    raise ApprovalRequired(Question(context.call_id, question, expires_ms))


_answers: WeakKeyDictionary[Session, dict[str, Approval]] = WeakKeyDictionary()


def answers_of(session: Session) -> dict[str, Approval]:
    """The answers given in this run, by call id. The first call enables `ask_approval` for the session."""
    return _answers.setdefault(session, {})
