"""Writes recorded runs as ATIF trajectories, for other people's viewers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from weakincentives.limits import TokenUsage
from weakincentives.runtime import Message, ModelCalled, PromptRendered, ToolInvoked, ToolsInjected
from weakincentives.runtime.spi import prices_for
from weakincentives.telemetry import RecordedEvent, RunStore

SCHEMA = "ATIF-v1.7"


def trajectory(store: RunStore, run_id: str) -> dict[str, Any]:
    """A recorded run as an ATIF v1.7 trajectory: messages, calls with their results, tokens and cost."""
    run = store.run(run_id)
    writer = _Writer()
    for recorded in store.all_events(run.run_id):
        writer.add(recorded)
    usage, steps = run.total_usage, writer.numbered()
    final: dict[str, Any] = {
        "total_prompt_tokens": usage.input_tokens,
        "total_completion_tokens": usage.output_tokens,
        "total_cached_tokens": usage.cached_tokens,
        "total_steps": len(steps),
    }
    if run.total_cost is not None:
        final["total_cost_usd"] = run.total_cost
    agent = {
        "name": run.prompt or "weakincentives",
        "version": writer.version,
        "model_name": run.model,
        "tool_definitions": list(writer.definitions.values()),
        "extra": {"adapter": run.adapter, "status": run.status, "library": "weakincentives"},
    }
    return {
        "schema_version": SCHEMA,
        "session_id": run.conversation_id or run.session_id or run.run_id,
        "trajectory_id": run.run_id,
        "agent": {name: value for name, value in agent.items() if value not in ("", [])},
        "steps": steps,
        "final_metrics": final,
    }


class _Writer:
    """Collects the steps of a trajectory from the events of a run."""

    def __init__(self) -> None:
        self.definitions: dict[str, Any] = {}
        self.version = "1"
        self._steps: list[dict[str, Any]] = []
        self._model = ""
        self._called: ModelCalled | None = None
        self._agents: dict[str, dict[str, Any]] = {}
        self._last_agent: dict[str, Any] | None = None

    def add(self, recorded: RecordedEvent) -> None:
        match event := recorded.event:
            case PromptRendered():
                self._model = event.model
                self.version = event.overrides_tag or self.version
                self._define(event.definitions)
            case ToolsInjected():
                self._define(event.definitions)
            case ModelCalled():
                self._called, self._model = event, event.model
            case Message() if event.role in ("system", "user") and event.text and not event.rebased:
                self._step(recorded, "system" if event.role == "system" else "user", event.text)
            case Message() if event.role == "assistant" and not event.rebased:
                self._agent_step(recorded, event)
            case ToolInvoked():
                self._observe(event)

    def numbered(self) -> list[dict[str, Any]]:
        return [{"step_id": number, **step} for number, step in enumerate(self._steps, start=1)]

    def _step(self, recorded: RecordedEvent, source: str, message: str) -> dict[str, Any]:
        moment = datetime.fromtimestamp(recorded.time, UTC).isoformat().replace("+00:00", "Z")
        step = {"timestamp": moment, "source": source, "message": message}
        self._steps.append(step)
        return step

    def _agent_step(self, recorded: RecordedEvent, message: Message) -> None:
        step = self._step(recorded, "agent", message.text)
        step["model_name"] = self._model
        if message.reasoning:
            step["reasoning_content"] = message.reasoning
        if self._called is not None:
            step["llm_call_count"] = 1
            step["metrics"] = _metrics(self._called.usage, self._called.model)
            self._called = None
        if message.tool_calls:
            for call in message.tool_calls:
                self._add_call(step, call.id, call.name, call.arguments)
        self._last_agent = step

    def _add_call(self, step: dict[str, Any], call_id: str, name: str, arguments: str) -> None:
        call = {"tool_call_id": call_id, "function_name": name, "arguments": _arguments(arguments)}
        step.setdefault("tool_calls", []).append(call)
        self._agents[call_id] = step

    def _observe(self, event: ToolInvoked) -> None:
        step = self._agents.get(event.call_id)
        if step is None and self._last_agent is not None:
            # The model's own program made this call, such as Claude Code: no message has it.
            step = self._last_agent
            self._add_call(step, event.call_id, event.name, event.arguments)
        if step is None:
            return
        results = step.setdefault("observation", {"results": []})["results"]
        result: dict[str, Any] = {"source_call_id": event.call_id, "content": event.text}
        extra = {"section": event.section_key, "success": event.success, "rolled_back": event.rolled_back}
        if event.disclosure is not None:
            extra["opened" if event.disclosure.action == "open" else "closed"] = list(event.disclosure.keys)
        results.append({**result, "extra": {name: value for name, value in extra.items() if value not in ("", False)}})

    def _define(self, definitions: Iterable[str]) -> None:
        for text in definitions:
            if isinstance(found := _json(text), Mapping):
                inner = found.get("function")
                named = inner if isinstance(inner, Mapping) else found
                name = str(named.get("name", len(self.definitions)))
                self.definitions[name] = {"type": "function", "function": _function(named, name)}


def _function(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    schema = given.get("parameters") or given.get("input_schema") or {"type": "object", "properties": {}}
    return {"name": name, "description": str(given.get("description", "")), "parameters": schema}


def _metrics(usage: TokenUsage, model: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "cached_tokens": usage.cached_tokens,
    }
    prices = prices_for(model)
    return found if prices is None else {**found, "cost_usd": prices.cost(usage)}


def _arguments(text: str) -> dict[str, Any]:
    found = _json(text) if text.strip() else {}
    return found if isinstance(found, dict) else {"arguments": text}


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
