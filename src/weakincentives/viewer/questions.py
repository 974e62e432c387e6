"""Questions about calls, for pages: as they were made, with what a decision has to name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from weakincentives.runtime import Answer, Approve, Deny, Edit, PendingCall, Question
from weakincentives.telemetry import asked_question

CHANGED = "It has changed, or was decided: look again."


class StaleDecisionError(ValueError):
    """A decision names a question that nobody is asked any more; nothing has acted."""

    def __init__(self) -> None:
        super().__init__(CHANGED)


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision from the page about a question; `arguments` is JSON text, for an edit."""

    run_id: str
    question: str
    decision: Literal["approve", "deny", "edit", "answer"]
    text: str = ""
    arguments: str = ""

    def read(self) -> Approve | Deny | Edit | Answer:
        match self.decision:
            case "approve":
                return Approve()
            case "deny":
                return Deny(self.text.strip())
            case "edit":
                arguments = json.loads(self.arguments)
                if not isinstance(arguments, dict):
                    raise ValueError(f"The arguments must be a JSON object, got {self.arguments}.")
                return Edit(arguments)
        if not self.text.strip():
            raise ValueError("An answer needs a text.")
        return Answer(self.text)


def question_document(call: PendingCall) -> dict[str, Any]:
    """A call that waits or waited for a person, with the question about it."""
    return document_of(asked_question(call)) | {"call_id": call.call_id, "tool": call.tool}


def document_of(question: Question) -> dict[str, Any]:
    """The question as the page draws it."""
    return question.data | {
        "call_id": question.call_id,
        "section_key": question.section_key,
        "needs": question.needs,
        "arguments": json.dumps(question.arguments, ensure_ascii=False),
    }


def plain_question(question_id: str, call_id: str, text: str) -> dict[str, Any]:
    """A question that a handler asked by itself, in its own words."""
    lines = [{"kind": "same", "text": line} for line in text.split("\n")]
    return {
        "id": question_id,
        "call_id": call_id,
        "tool": "",
        "section_key": "",
        "words": "",
        "text": text,
        "parts": [{"kind": "note", "title": "", "lines": lines}],
        "arguments": "{}",
        "complete": True,
        "missing": [],
        "answers": ["approve", "deny"],
        "editable": False,
        "needs": None,
    }
