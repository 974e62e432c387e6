"""A person's yes or no in the middle of a tool call, without a process that waits for it."""

from __future__ import annotations

import time
from weakref import WeakKeyDictionary

from weakincentives.durable.errors import DurableError
from weakincentives.durable.work import Approval, Question
from weakincentives.prompt import ToolContext
from weakincentives.runtime import CallSuspended
from weakincentives.session import Session

_answers: WeakKeyDictionary[Session, dict[str, Approval]] = WeakKeyDictionary()


class ApprovalRequired(CallSuspended):
    """Leaves a tool call that cannot go on without an answer."""

    def __init__(self, question: Question) -> None:
        super().__init__(question.text)
        self.question = question


def ask_approval(context: ToolContext, question: str, *, within: float | None = None) -> Approval:
    """The answer of a person to this tool call; until there is one, the run leaves its process.

        answer = ask_approval(context, f"Refund {params.amount}?", within=3 * 86400)
        if not answer.approved:
            return ToolResult(answer.note or "Refused.", success=False)

    The call is rolled back and starts again from its first line once `loop.approve(key, call_id)` was called, so ask
    before anything that must not happen twice. Nobody answers `within` seconds: the answer is no, with `expired=True`.
    """
    answers = _answers.get(context.session)
    if answers is None:
        raise DurableError("ask_approval() needs a run of DurableMainLoop; this one cannot wait for a person.")
    if context.call_id in answers:
        return answers[context.call_id]
    expires_ms = None if within is None else int((time.time() + within) * 1000)
    raise ApprovalRequired(Question(context.call_id, question, expires_ms))


def answers_of(session: Session) -> dict[str, Approval]:
    """The answers given in this run, by call; asking becomes possible with the first call of this."""
    return _answers.setdefault(session, {})
