"""Answers of a person who knows a call by its id: they are about its newest question."""

from __future__ import annotations

from typing import Any

from weakincentives.durable import DurableClient


def question_id(client: DurableClient[Any, Any], key: str, call_id: str) -> str:
    """The id of the newest question of a call, open or not; the call's own id if it has none."""
    ids = [call_id]
    for question in client.store.questions(work_id=client.work_id(key), waiting=False):
        if question.call_id == call_id:
            ids.append(question.id)
    return ids[-1]


def approve(client: DurableClient[Any, Any], key: str, call_id: str, *decision: Any, **options: Any) -> None:
    client.approve(key, question_id(client, key, call_id), *decision, **options)
