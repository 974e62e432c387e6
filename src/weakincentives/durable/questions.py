"""Questions to people: asked once, answered once, and nobody waits in between."""

from __future__ import annotations

import time
from typing import Any, cast

import sqlalchemy as sa

from weakincentives.durable.errors import DurableError, NoSuchWorkError
from weakincentives.durable.ownership import Ownership
from weakincentives.durable.serializer import TaggedSerializer
from weakincentives.durable.tables import questions, status
from weakincentives.durable.work import Approval, Question

_FOREVER_MS = 2**62


class Questions:
    """The questions of one database."""

    def __init__(self, engine: sa.Engine, serializer: TaggedSerializer, ownership: Ownership) -> None:
        self._engine = engine
        self._serializer = serializer
        self._ownership = ownership

    def ask(self, work_id: str, owner: str, question: Question) -> Approval | None:
        """The answer; None when there is none yet, and the work was taken off its worker to sleep.

        One transaction, so that an answer cannot slip between looking for it and going to sleep. An expired question
        is answered here, with a no.
        """
        now = int(time.time() * 1000)
        with self._engine.begin() as connection:
            if not self._ownership.hold(connection, work_id, owner):
                return None
            this = _this(work_id, question)
            row = connection.execute(sa.select(questions).where(*this)).one_or_none()
            if row is None:
                connection.execute(
                    sa.insert(questions).values(
                        workflow_uuid=work_id,
                        step=question.step,
                        call_id=question.call_id,
                        text=question.text,
                        asked_ms=now,
                        expires_ms=question.expires_ms,
                    )
                )
            elif row.answer is not None:
                return cast(Approval, self._serializer.deserialize(row.answer))
            elif row.expires_ms is not None and row.expires_ms <= now:
                expired = Approval(approved=False, note="Nobody answered in time.", expired=True)
                text = self._serializer.serialize(expired)
                connection.execute(sa.update(questions).where(*this).values(answer=text))
                return expired
            self._ownership.release(connection, work_id, until_ms=question.expires_ms or _FOREVER_MS)
        return None

    def answer(self, work_id: str, call_id: str, approval: Approval) -> None:
        """Record a person's answer, once, and wake the work that waits for it."""
        unanswered = (
            questions.c.workflow_uuid == work_id,
            questions.c.call_id == call_id,
            questions.c.answer.is_(None),
        )
        with self._engine.begin() as connection:
            # First the work, then its question: the order in which `ask` locks them.
            connection.execute(sa.select(status.c.status).where(status.c.workflow_uuid == work_id).with_for_update())
            text = self._serializer.serialize(approval)
            if not connection.execute(sa.update(questions).where(*unanswered).values(answer=text)).rowcount:
                self._refuse(connection, work_id, call_id)
            self._ownership.wake(connection, work_id)

    def open(self, work_id: str) -> tuple[Question, ...]:
        """Those that wait for an answer."""
        query = sa.select(questions).where(questions.c.workflow_uuid == work_id, questions.c.answer.is_(None))
        with self._engine.connect() as connection:
            return tuple(Question(row.call_id, row.text, row.expires_ms, row.step) for row in connection.execute(query))

    def forget(self, work_id: str, *, since_step: int) -> None:
        """Drop the questions of steps that will be run again."""
        dropped = (questions.c.workflow_uuid == work_id, questions.c.step >= since_step)
        with self._engine.begin() as connection:
            connection.execute(sa.delete(questions).where(*dropped))

    def _refuse(self, connection: sa.Connection, work_id: str, call_id: str) -> None:
        query = sa.select(questions.c.call_id, questions.c.answer).where(questions.c.workflow_uuid == work_id)
        known = connection.execute(query).all()
        if any(row.call_id == call_id for row in known):
            raise DurableError(f"Call {call_id!r} of {work_id!r} was decided already.")
        waiting = ", ".join(repr(row.call_id) for row in known if row.answer is None) or "none"
        raise NoSuchWorkError(f"{work_id!r} has no call {call_id!r} that waits for approval; waiting: {waiting}.")


def _this(work_id: str, question: Question) -> tuple[Any, ...]:
    return (
        questions.c.workflow_uuid == work_id,
        questions.c.step == question.step,
        questions.c.call_id == question.call_id,
    )
