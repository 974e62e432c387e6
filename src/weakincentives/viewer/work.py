"""Calls of durable runs that wait for a person, and decisions about them, in the database of their engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weakincentives._base.imports import require_extra
from weakincentives.runtime import Approve, Deny
from weakincentives.viewer.questions import Decided, StaleDecisionError, document_of, plain_question

if TYPE_CHECKING:
    from weakincentives.durable import DurableQuestion, Reply


class DurableWork:
    """The open questions of a database of durable work; a decision lets the run go on, on any of its workers."""

    def __init__(self, database_url: str) -> None:
        require_extra("dbos", "durable", "Deciding about durable runs")
        from weakincentives.durable import WorkStore

        self._store = WorkStore.open(database_url, create=False)

    def close(self) -> None:
        self._store.close()

    def waiting(self, run_id: str) -> dict[str, Any]:
        """The calls of a run that wait, in the form in which the page shows them."""
        return {"pending": [_document(question) for question in self._store.questions(work_id=run_id)]}

    def decide(self, decided: Decided) -> dict[str, Any]:
        """Answer the question."""
        from weakincentives.durable import Approval, StaleQuestionError

        reply: Reply = decided.read()
        if isinstance(reply, Approve | Deny):
            # A handler that asked by itself takes a yes or no, too.
            reply = Approval(isinstance(reply, Approve), decided.text.strip())
        try:
            self._store.answer(decided.run_id, decided.question, reply)
        except StaleQuestionError as error:
            raise StaleDecisionError from error
        return {"run_id": decided.run_id}


def _document(question: DurableQuestion) -> dict[str, Any]:
    if question.asked is None:
        return plain_question(question.id, question.call_id, question.text)
    return document_of(question.asked) | {"call_id": question.call_id}
