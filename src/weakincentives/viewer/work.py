"""Calls of durable runs that wait for a person, and decisions about them, in the database of their engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weakincentives._base.imports import require_extra
from weakincentives.runtime import Approve, Deny
from weakincentives.telemetry import Redactor
from weakincentives.viewer.playground import Decided

if TYPE_CHECKING:
    from weakincentives.durable import Question, Reply


class DurableWork:
    """The open questions of a database of durable work; a decision lets the run go on, on any of its workers."""

    def __init__(self, database_url: str) -> None:
        require_extra("dbos", "durable", "Deciding about durable runs")
        from weakincentives.durable import WorkStore

        self._store = WorkStore.open(database_url, create=False)
        self._redactor = Redactor()

    def close(self) -> None:
        self._store.close()

    def waiting(self, run_id: str) -> dict[str, Any]:
        """The calls of a run that wait, in the form in which the page shows them."""
        return {"pending": [self._call(question) for question in self._store.questions(work_id=run_id)]}

    def decide(self, decided: Decided) -> dict[str, Any]:
        """Answer the question about a call."""
        from weakincentives.durable import Approval

        reply: Reply = decided.read()
        if isinstance(reply, Approve | Deny):
            # A handler that asked by itself takes a yes or no, too.
            reply = Approval(isinstance(reply, Approve), decided.text.strip())
        self._store.answer(decided.run_id, decided.call_id, reply)
        return {"run_id": decided.run_id}

    def _call(self, question: Question) -> dict[str, Any]:
        shown = self._redactor.text(question.arguments)
        return {
            "call_id": question.call_id,
            "tool": question.tool,
            "section_key": "",
            "text": question.text,
            "needs": question.needs,
            "arguments": shown,
            "editable": question.needs in ("call", "effects") and shown == question.arguments,
        }
