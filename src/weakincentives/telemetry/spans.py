"""Spans and measurements whose texts are redacted: what a run says reaches OpenTelemetry through here alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from weakincentives.redaction import Redactor

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext, Tracer


@dataclass(slots=True)
class RedactedTracer:
    """Starts spans. The redactor is exchanged where tracing begins, since the environment may have changed."""

    trace: ModuleType
    tracer: Tracer
    redactor: Redactor

    def start(
        self,
        name: str,
        attributes: Mapping[str, Any],
        *,
        started: float,
        inside: RedactedSpan | None = None,
        is_client: bool = False,
        continues: SpanContext | None = None,
    ) -> RedactedSpan:
        """Start a span inside another, or inside the program's own; it may continue one that has ended."""
        kinds = self.trace.SpanKind
        span = self.tracer.start_span(
            self.redactor.text(name),
            context=None if inside is None else self.trace.set_span_in_context(inside.span),
            kind=kinds.CLIENT if is_client else kinds.INTERNAL,
            start_time=nanoseconds(started),
            links=[] if continues is None else [self.trace.Link(continues)],
            attributes=redacted_attributes(self.redactor, attributes),
        )
        return RedactedSpan(self, span)


@dataclass(slots=True)
class RedactedSpan:
    """A span that has started."""

    tracer: RedactedTracer
    span: Span

    def rename(self, name: str) -> None:
        self.span.update_name(self.tracer.redactor.text(name))

    def set(self, attributes: Mapping[str, Any]) -> None:
        self.span.set_attributes(redacted_attributes(self.tracer.redactor, attributes))

    def set_json(self, name: str, value: Any) -> None:
        """Set an attribute to JSON data that has been redacted already: doing so in its text could break it."""
        self.span.set_attribute(name, json.dumps(value))

    def add_event(self, name: str, attributes: Mapping[str, Any], at: float) -> None:
        self.span.add_event(name, redacted_attributes(self.tracer.redactor, attributes), nanoseconds(at))

    def fail(self, description: str | None) -> None:
        """Mark the span as failed."""
        text = None if description is None else self.tracer.redactor.text(description)
        self.span.set_status(self.tracer.trace.StatusCode.ERROR, text)

    def end(self, at: float | None = None) -> None:
        """End the span, unless it has ended."""
        if self.span.is_recording():
            self.span.end(None if at is None else nanoseconds(at))


def redacted_attributes(redactor: Redactor, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes with each secret in their texts replaced."""
    clean: dict[str, Any] = {}
    for name, value in attributes.items():
        if isinstance(value, str):
            clean[name] = redactor.text(value)
        elif isinstance(value, Sequence):
            clean[name] = [redactor.data(item) for item in value]
        else:
            clean[name] = value
    return clean


def nanoseconds(seconds: float) -> int:
    return int(seconds * 1_000_000_000)
