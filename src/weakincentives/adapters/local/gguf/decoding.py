"""Decodes text, or JSON constrained by a schema, until the model is done or the run is stopped."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weakincentives.adapters.local.gguf.engine import Engine, EngineError
from weakincentives.adapters.local.watch import Listener, Watch
from weakincentives.errors import ContextOverflowError, PromptEvaluationError
from weakincentives.limits import TokenUsage

ChatMessage = Mapping[str, str]
MAX_NUMBER = 1_000_000_000
# The spacing of the JSON that models were trained on; other spacing confuses small models.
_SPACING = {"whitespace_flexible": False, "key_separator": ": ", "item_separator": ", "}


@dataclass(frozen=True, slots=True)
class WrittenReply:
    """The text of a model, its token usage, and whether it finished."""

    text: str
    usage: TokenUsage
    whole: bool


@dataclass(frozen=True, slots=True)
class Bounds:
    """Maximum lengths of texts and lists whose types set none."""

    text: int
    items: int


LOOSE = Bounds(300, 6)
TIGHT = Bounds(40, 2)


def write(
    engine: Engine,
    messages: Sequence[ChatMessage],
    watch: Watch,
    *,
    schema: Mapping[str, Any] | None = None,
    listener: Listener | None = None,
    max_tokens: int,
    repeat_penalty: float = 1.1,
) -> WrittenReply:
    """Decode one reply to these messages; a penalty above 1 keeps free text from repeating itself."""
    watch.check()
    reply = _Reply(watch, listener)
    request: dict[str, Any] = {
        "messages": list(messages),
        "max_tokens": min(max_tokens, watch.settings.max_output_tokens or max_tokens),
        "temperature": watch.settings.temperature or 0.0,
        "cache_prompt": True,
        "stream_options": {"include_usage": True},
    }
    if schema is not None:
        # Not `response_format`: for most chat templates it selects a weaker engine that does not bound numbers.
        request["grammar"] = f"%llguidance {{}}\nstart: %json {json.dumps(schema)}"
    else:
        request["repeat_penalty"] = repeat_penalty
    try:
        engine.chat(request, reply.receive)
    except EngineError as error:
        name = watch.prompt_name
        if error.kind == "exceed_context_size_error":
            raise too_long(error.facts.get("n_prompt_tokens", 0), engine, name) from error
        raise PromptEvaluationError(
            f"The local model refused the request of '{name}': {error}", prompt_name=name, phase="request"
        ) from error
    return WrittenReply("".join(reply.parts), reply.usage, reply.finish != "length")


class _Reply:
    """Collects the chunks of one reply."""

    def __init__(self, watch: Watch, listener: Listener | None) -> None:
        self._watch = watch
        self._listener = listener
        self.parts: list[str] = []
        self.finish = ""
        self.usage = TokenUsage()

    def receive(self, chunk: Mapping[str, Any]) -> bool:
        progress = chunk.get("prompt_progress")
        if progress is None:
            self._watch.check()
        else:
            self._watch.reading(progress["processed"], progress["total"])
        for choice in chunk.get("choices", ()):
            text = choice["delta"].get("content") or ""
            self.finish = choice.get("finish_reason") or self.finish
            if text:
                self.parts.append(text)
                if self._listener is not None:
                    self._listener(text)
        usage = chunk.get("usage")
        if usage is not None:
            self.usage = TokenUsage(
                input_tokens=usage["prompt_tokens"],
                output_tokens=usage["completion_tokens"],
                cached_tokens=usage.get("prompt_tokens_details", {}).get("cached_tokens", 0),
            )
        return False


def write_json(
    engine: Engine,
    messages: Sequence[ChatMessage],
    watch: Watch,
    schema: Mapping[str, Any],
    *,
    max_tokens: int,
) -> WrittenReply:
    """Decode JSON that fits a schema; if it does not end, decode again within tight bounds."""
    first = write(engine, messages, watch, schema=closed(schema), max_tokens=max_tokens)
    if first.whole:
        return first
    second = write(engine, messages, watch, schema=closed(schema, TIGHT), max_tokens=max_tokens)
    return replace(second, usage=first.usage + second.usage)


def too_long(tokens: int, engine: Engine, prompt_name: str) -> ContextOverflowError:
    name, size = engine.settings.path.name, engine.settings.context
    return ContextOverflowError(
        f"'{prompt_name}' with its last question has {tokens:,} tokens, and {name} is loaded with room for {size:,}. "
        "Summarize more sections, or take a model with a longer context: LocalAdapter('model.gguf', context=...).",
        prompt_name=prompt_name,
        phase="request",
    )


def closed(schema: Mapping[str, Any], bounds: Bounds = LOOSE) -> dict[str, Any]:
    """The schema with every text, list and number bounded, so that decoding ends, and with fixed whitespace."""
    return {**_bounded(schema, bounds), "x-guidance": _SPACING}


def _bounded(node: Any, bounds: Bounds) -> Any:
    if isinstance(node, list):
        return [_bounded(item, bounds) for item in node]
    if not isinstance(node, Mapping):
        return node
    result = {
        key: {name: _bounded(value, bounds) for name, value in member.items()}
        if key in ("properties", "$defs")
        else member
        if key in ("enum", "const", "required")
        else _bounded(member, bounds)
        for key, member in node.items()
        if key not in ("title", "description", "default", "examples")
    }
    kind = node.get("type")
    if kind == "string" and not {"enum", "const", "pattern", "format"} & node.keys():
        result.setdefault("maxLength", bounds.text)
    elif kind == "array" and "prefixItems" not in node:
        result.setdefault("maxItems", max(bounds.items, node.get("minItems", 0)))
    elif kind in ("integer", "number"):
        if not {"minimum", "exclusiveMinimum"} & node.keys():
            result["minimum"] = -MAX_NUMBER
        if not {"maximum", "exclusiveMaximum"} & node.keys():
            result["maximum"] = MAX_NUMBER
        if kind == "number":
            result.setdefault("multipleOf", 0.01)
    return result
