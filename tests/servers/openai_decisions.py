"""A server that speaks OpenAI's decision endpoint; a function says how likely each statement is."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.servers.loopback import Answer, Loopback, Received

FIELDS = {"model", "input", "questions", "prompt_cache_key", "prompt_cache_options", "safety_identifier"}


class DecisionServer(Loopback):
    """Answers `POST /v1/decisions`, and refuses what the types of the SDK rule out."""

    def __init__(self, likely: Callable[[str, str], float | None]) -> None:
        super().__init__(())
        self._likely = likely

    def answer(self, received: Received) -> Answer:
        self.requests.append(received)
        body = received.json
        if problem := _problem(received.target, body):
            return Answer(400, json.dumps({"error": {"message": problem, "type": "invalid_request_error"}}).encode())
        answers = [self._answered(body["input"], question) for question in body["questions"]]
        usage = {
            "input_tokens": 1_000_000,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 1_000_000,
        }
        return Answer(body=json.dumps({"model": body["model"], "answers": answers, "usage": usage}).encode())

    def _answered(self, text: str, question: dict[str, Any]) -> dict[str, Any]:
        found = self._likely(text, question["instructions"])
        if found is None:
            return {"type": "refusal", "name": None}
        if question["type"] == "predicate":
            return {"type": "predicate", "name": None, "probability": found}
        if question["type"] == "choice":
            options = [each["value"] for each in question["choices"]]
            chances = [{"value": value, "probability": found} for value in options]
            return {"type": "choice", "choice": options[0], "confidence": found, "probabilities": chances}
        labels = [each["label"] for each in question["levels"]]
        chances = [{"label": label, "value": at, "probability": found} for at, label in enumerate(labels)]
        return {"type": "score", "score": 1.5, "confidence": found, "probabilities": chances}


def _problem(target: str, body: dict[str, Any]) -> str:
    if not target.endswith("/decisions"):
        return f"unknown path {target}"
    if extra := sorted(body.keys() - FIELDS):
        return f"Unknown parameter: {', '.join(extra)}"
    if body["model"] != "gpt-6-luna":
        return f"The model '{body['model']}' does not support decisions."
    if not 1 <= len(body["questions"]) <= 400:
        return "questions must have 1 to 400 items"
    if any(each["type"] == "choice" and not 2 <= len(each["choices"]) <= 255 for each in body["questions"]):
        return "choices must have 2 to 255 items"
    return ""
