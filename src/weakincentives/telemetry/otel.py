"""Session events as OpenTelemetry spans and metrics; needs the extra `[otel]`.

A run is an `invoke_agent` span, with a `chat` span for each model call and an `execute_tool` span for each tool call.
They are created from events after the fact, so they nest inside your own spans, but your tools' spans do not nest
inside them; only the span of a run that a tool call made is below that of the call. Names follow the generative AI
conventions as of semantic-conventions 0.66b2, with our own under `wink.`. They are spelled out here because that
package marks its constants as deprecated: the conventions are moving to a separate repository.
"""

from __future__ import annotations

import json
import os
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from weakincentives._base.imports import import_extra
from weakincentives.limits import TokenUsage
from weakincentives.redaction import NoRedaction, Redactor, compile_patterns
from weakincentives.runtime import (
    Message,
    ModelCalled,
    PromptRendered,
    RunEnded,
    SectionsExposed,
    SectionsRanked,
    ToolInvoked,
    ToolsInjected,
)
from weakincentives.runtime.spi import RunState, adapter_spec, sent_messages
from weakincentives.session import Session, observing
from weakincentives.telemetry.spans import RedactedSpan, RedactedTracer, redacted_attributes

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import SpanContext, TracerProvider

SCOPE = "weakincentives"
_FINISH_REASONS = {"end": "stop"}
_CAPTURING_VALUES = frozenset({"true", "1", "span_only", "span_and_event"})
_ROLES = frozenset({"user", "assistant", "tool"})
_MAX_LEFT = 10_000
_TOKEN_BUCKETS = tuple(4**power for power in range(14))
_SECOND_BUCKETS = tuple(0.01 * 2**power for power in range(14))


@dataclass(slots=True)
class _Run:
    """A run, with the requested model and the spans that have not ended.

    `since` is when the last call ended, so that the next may have begun; `usage` is what was spent in this process.
    `halted` is the name of its prompt, if it ended for its caller to open sections.
    """

    run_id: str
    span: RedactedSpan
    provider: str
    model: str
    started: float
    since: float
    replied: bool = False
    moved: bool = False
    usage: TokenUsage = field(default_factory=TokenUsage)
    definitions: dict[str, str] = field(default_factory=dict)
    readings: dict[str, str] = field(default_factory=dict)
    chat: RedactedSpan | None = None
    ends: float | None = None
    halted: str = ""
    names: dict[str, str] = field(default_factory=dict)
    # Calls under way that have made runs, by call id.
    calls: dict[str, RedactedSpan] = field(default_factory=dict)
    # Messages as they were reported, by identity; each is sent again with every later call.
    reported: dict[int, tuple[Message, dict[str, Any]]] = field(default_factory=dict)
    forgotten: Callable[[], Any] = lambda: None


class Instrumentation:
    """The result of `instrument`; can be entered more than once."""

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        capture_content: bool | None = None,
        redact: Iterable[str | re.Pattern[str]] | None = (),
    ) -> None:
        asked = os.environ.get("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "").lower() in _CAPTURING_VALUES
        self._capture = asked if capture_content is None else capture_content
        self._patterns = None if redact is None else compile_patterns(redact)
        trace = import_extra("opentelemetry.trace", "otel", "instrument()")
        metrics = import_extra("opentelemetry.metrics", "otel", "instrument()")
        self._spans = RedactedTracer(
            trace, trace.get_tracer(SCOPE, tracer_provider=tracer_provider), self._new_redactor()
        )
        meter = metrics.get_meter(SCOPE, meter_provider=meter_provider)
        self._duration, self._tool_duration = (
            meter.create_histogram(name, unit="s", explicit_bucket_boundaries_advisory=_SECOND_BUCKETS)
            for name in ("gen_ai.client.operation.duration", "gen_ai.execute_tool.duration")
        )
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage", unit="{token}", explicit_bucket_boundaries_advisory=_TOKEN_BUCKETS
        )
        self._injected = meter.create_counter("wink.tools.injected", unit="{tool}")
        self._dynamic = meter.create_counter("wink.disclosure.dynamic", unit="{expansion}")
        self._restarts = meter.create_counter("wink.disclosure.restarts", unit="{expansion}")
        self._runs: weakref.WeakKeyDictionary[Session, _Run] = weakref.WeakKeyDictionary()
        # The spans of runs that left this process and may continue in it, by run id.
        self._left: dict[str, SpanContext] = {}
        self._lock = threading.Lock()
        self._observing: list[AbstractContextManager[None]] = []

    def __enter__(self) -> Instrumentation:
        if not self._observing:
            self._spans.redactor = self._new_redactor()
        watching = observing(self._observe)
        watching.__enter__()
        self._observing.append(watching)
        return self

    def __exit__(self, *failure: Any) -> None:
        self._observing.pop().__exit__(*failure)
        if not self._observing:
            with self._lock:
                left = [self._runs.pop(session) for session in list(self._runs)]
            for run in left:
                _end(run, run.ends)

    def _new_redactor(self) -> Redactor:
        return NoRedaction() if self._patterns is None else Redactor(self._patterns)

    def _measured(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """The attributes of a measurement."""
        return redacted_attributes(self._spans.redactor, attributes)

    def _observe(self, session: Session, event: object) -> None:
        handle = _HANDLERS.get(type(event))
        if handle is None:
            return
        if isinstance(event, RunEnded) and event.status == "restarted":
            # Also of an adapter that evaluates by itself, and records nothing else.
            self._restarts.add(1)
        run = self._runs.get(session)
        if isinstance(event, PromptRendered | ModelCalled | ToolInvoked) and (
            run is None or run.run_id != event.run_id
        ):
            run = self._begin(session, event)
        if run is not None:
            handle(self, session, run, event)

    def _begin(self, session: Session, event: PromptRendered | ModelCalled | ToolInvoked) -> _Run | None:
        """Start the span of a run; one that continues here is first noticed when it calls the model or a tool."""
        source = _render_of(session, event.run_id) if isinstance(event, ToolInvoked) else event
        if source is None:
            return None
        provider = _provider(source.adapter)
        bound = session[RunState].latest()
        started = event.timestamp - getattr(event, "latency", getattr(event, "duration", 0.0))
        span = self._spans.start(
            f"invoke_agent {source.prompt_name}",
            {
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.provider.name": provider,
                "gen_ai.request.model": source.model,
                "gen_ai.agent.name": source.prompt_name,
                "gen_ai.prompt.name": f"{bound.prompt_ns}/{bound.prompt_key}" if bound else source.prompt_name,
                "gen_ai.conversation.id": session.session_id,
                "wink.run.id": event.run_id,
            },
            started=started,
            inside=self._call_around(session, event, started),
            continues=self._left.pop(event.run_id, None),
        )
        run = _Run(event.run_id, span, provider, source.model, started, started)
        with self._lock:
            before = self._runs.pop(session, None)
            self._runs[session] = run
        if before is not None:
            _end(before, before.ends)
            if before.halted == source.prompt_name:
                # The caller has opened the sections, and evaluates again.
                self._restarts.add(1)
        # When a session is garbage-collected, its unfinished run ends too.
        finalizer = weakref.finalize(session, _end, run, None)
        finalizer.atexit = False
        run.forgotten = finalizer.detach
        return run

    def _call_around(
        self, session: Session, event: PromptRendered | ModelCalled | ToolInvoked, started: float
    ) -> RedactedSpan | None:
        """The span of the tool call that made a run, which begins with its first run."""
        outer = session.parent
        if outer is None:
            return None
        around = self._runs.get(outer)
        if around is None or around.run_id != event.parent_run_id:
            # It continues here, too, and has not done anything else yet.
            rendered = _render_of(outer, event.parent_run_id)
            around = None if rendered is None else self._begin(outer, replace(rendered, timestamp=event.timestamp))
        if around is None:
            return None
        call_id = event.run_id.removeprefix(f"{event.parent_run_id}/")
        if call_id not in around.calls:
            around.calls[call_id] = self._start_tool(around, around.names.get(call_id, ""), started)
        return around.calls[call_id]

    def _start_tool(self, run: _Run, name: str, started: float) -> RedactedSpan:
        title = f"execute_tool {name}".rstrip()
        return self._spans.start(title, _tool(name), started=started, inside=run.span)

    def _render(self, session: Session, run: _Run, event: PromptRendered) -> None:
        run.definitions = dict(zip((*event.tools, *event.hosted_tools), event.definitions, strict=False))

    def _start_chat(self, session: Session, run: _Run, started: float, attributes: dict[str, Any]) -> RedactedSpan:
        attributes = {**attributes, "gen_ai.conversation.id": session.session_id}
        return self._spans.start(f"chat {run.model}", attributes, started=started, inside=run.span, is_client=True)

    def _call(self, session: Session, run: _Run, event: ModelCalled) -> None:
        common = {**_chat(run, event), "gen_ai.response.model": event.model}
        usage = event.usage
        run.since, run.replied, run.usage = event.timestamp, True, run.usage + usage
        span = self._start_chat(
            session,
            run,
            event.timestamp - event.latency,
            {
                **common,
                "gen_ai.response.finish_reasons": [_FINISH_REASONS.get(event.stop_reason, event.stop_reason)],
                "gen_ai.usage.input_tokens": usage.input_tokens,
                "gen_ai.usage.output_tokens": usage.output_tokens,
                "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
                **({"gen_ai.response.id": event.response_id} if event.response_id else {}),
            },
        )
        measured = self._measured(common)
        self._duration.record(event.latency, measured)
        self._tokens.record(usage.input_tokens, {**measured, "gen_ai.token.type": "input"})
        self._tokens.record(usage.output_tokens, {**measured, "gen_ai.token.type": "output"})
        if self._capture:
            self._report_request(session, run, event, span)
            run.chat, run.ends = span, event.timestamp
        else:
            span.end(event.timestamp)

    def _report_request(self, session: Session, run: _Run, event: ModelCalled, span: RedactedSpan) -> None:
        """Report what was sent with a call."""
        messages = sent_messages(session, event.messages, event.adapter)
        instructions: list[dict[str, Any]] = []
        for message in messages:
            if message.role == "system":
                instructions.extend(self._reported(run, message)["parts"])
        offered = [run.definitions[name] for name in event.tools if name in run.definitions]
        span.set_json("gen_ai.system_instructions", instructions)
        span.set_json("gen_ai.input.messages", self._conversation(run, messages))
        span.set_json("gen_ai.tool.definitions", self._spans.redactor.data([json.loads(text) for text in offered]))

    def _conversation(self, run: _Run, messages: Iterable[Message]) -> list[dict[str, Any]]:
        """Messages in the conventions' format, without notices and system messages, which are reported elsewhere."""
        return [self._reported(run, message) for message in messages if message.role in _ROLES]

    def _reported(self, run: _Run, message: Message) -> dict[str, Any]:
        """A message in the conventions' format, redacted."""
        known = run.reported.get(id(message))
        if known is None or known[0] is not message:
            known = run.reported[id(message)] = (message, self._spans.redactor.data(_message(message)))
        return known[1]

    def _rank(self, session: Session, run: _Run, event: SectionsRanked) -> None:
        """A span for a model that ranked sections; which vendor's it is, the ranker does not say."""
        run.usage += event.usage
        common = {"gen_ai.operation.name": "rank", "gen_ai.request.model": event.model}
        span = self._spans.start(
            f"rank {event.model}",
            {**common, "gen_ai.usage.input_tokens": event.usage.input_tokens, "wink.cost": event.cost},
            started=event.timestamp - event.latency,
            inside=run.span,
            is_client=True,
        )
        span.end(event.timestamp)
        self._tokens.record(event.usage.input_tokens, self._measured({**common, "gen_ai.token.type": "input"}))

    def _reply(self, session: Session, run: _Run, event: Message) -> None:
        """End the span of a captured call with its reply."""
        if event.tool_calls:
            run.names = {call.id: call.name for call in event.tool_calls}
        if run.chat is not None and event.role == "assistant":
            run.chat.set_json("gen_ai.output.messages", self._conversation(run, [event]))
            run.chat.end(run.ends)
            run.chat = run.ends = None

    def _invoke(self, session: Session, run: _Run, event: ToolInvoked) -> None:
        attributes: dict[str, Any] = {**_tool(event.name)}
        failed = {} if event.success else {"error.type": "tool_error"}
        self._tool_duration.record(event.duration, self._measured({**attributes, **failed}))
        attributes |= {"gen_ai.tool.call.id": event.call_id, "wink.tool.rolled_back": event.rolled_back, **failed}
        if event.section_key:
            attributes["wink.section.key"] = event.section_key
        if event.disclosure is not None:
            attributes["wink.sections"] = event.disclosure.keys
        run.since, run.replied = event.timestamp, False
        if self._capture:
            attributes["gen_ai.tool.call.arguments"] = event.arguments
            attributes["gen_ai.tool.call.result"] = event.text
        started = run.calls.pop(event.call_id, None)
        span = started or self._start_tool(run, event.name, event.timestamp - event.duration)
        span.rename(f"execute_tool {event.name}")
        span.set(attributes)
        if not event.success:
            span.fail(event.result.message if self._capture else None)
        span.end(event.timestamp)

    def _expose(self, session: Session, run: _Run, event: SectionsExposed) -> None:
        """Remember which call returned the text of which section, until tools appear with it."""
        run.readings |= {".".join(path): each.call_id for path, each in event.changes.items() if each.call_id}

    def _inject(self, session: Session, run: _Run, event: ToolsInjected) -> None:
        run.definitions.update(zip(event.tool_names, event.definitions, strict=False))
        attributes = {"wink.section.key": event.section_key, "wink.route": event.route}
        measured = self._measured(attributes)
        self._injected.add(len(event.tool_names), measured)
        # One reading can add the tools of several sections, with one event each.
        if call_id := run.readings.get(event.section_key, ""):
            run.readings = {key: call for key, call in run.readings.items() if call != call_id}
            self._dynamic.add(1, measured)
        run.span.add_event("wink.tools.injected", {**attributes, "wink.sections": event.tool_names}, event.timestamp)

    def _finish(self, session: Session, run: _Run, event: RunEnded) -> None:
        """End the span of a run, unless it goes on: after a halt, it may until the next run or the end of the block."""
        run.ends = event.timestamp
        match event.status:
            case "completed":
                self._close(session, run, {})
            case "stopped":
                self._close(session, run, {"error.type": "cancelled"})
            case "restarted":
                self._restart(run, event)
            case "halted":
                run.halted = event.prompt_name
            case "suspended" | "waiting":
                self._suspend(session, run, event)
            case "failed" | "recovered":
                self._fail(session, run, event)

    def _restart(self, run: _Run, event: RunEnded) -> None:
        run.ends = None
        attributes: dict[str, Any] = {"wink.sections": event.section_keys}
        if self._capture:
            attributes["wink.reason"] = event.reason
        run.span.add_event("wink.disclosure.restarts", attributes, event.timestamp)

    def _fail(self, session: Session, run: _Run, event: RunEnded) -> None:
        failed = {"error.type": event.error}
        attributes = _chat(run, event) | failed
        description = event.reason if self._capture else event.error
        if event.phase == "request" or (event.phase == "response" and not run.replied):
            chat = self._start_chat(session, run, run.since, attributes)
            chat.fail(description)
            chat.end(event.timestamp)
            self._duration.record(event.timestamp - run.since, self._measured(attributes))
        run.since = event.timestamp
        if event.status == "recovered":
            # The next adapter has a model of its own.
            run.moved, run.ends = True, None
            return
        run.span.fail(description)
        self._close(session, run, failed)

    def _suspend(self, session: Session, run: _Run, event: RunEnded) -> None:
        with self._lock:
            self._runs.pop(session, None)
            self._left[run.run_id] = run.span.span.get_span_context()
            if len(self._left) > _MAX_LEFT:
                del self._left[next(iter(self._left))]
        run.span.add_event(f"wink.run.{event.status}", {"wink.reason": event.reason}, event.timestamp)
        _end(run, event.timestamp)

    def _close(self, session: Session, run: _Run, extra: dict[str, str]) -> None:
        with self._lock:
            self._runs.pop(session, None)
        common = {"gen_ai.provider.name": run.provider, "gen_ai.request.model": run.model}
        run.span.set(extra)
        seconds = (run.ends or run.started) - run.started
        attributes = {"gen_ai.operation.name": "invoke_agent", **common, **extra}
        self._duration.record(seconds, self._measured(attributes))
        _end(run, run.ends)


def instrument(
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    capture_content: bool | None = None,
    redact: Iterable[str | re.Pattern[str]] | None = (),
) -> Instrumentation:
    """Report every run of this process while the block is active.

        with instrument():
            MainLoop().execute(prompt, session=Session(), adapter=adapter)

    The global providers are used unless you pass others. Prompts, answers, arguments and results are reported only
    with `capture_content=True`, or if OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT enables it. API keys, tokens
    and passwords are redacted as in recordings; `redact` adds your own patterns, and `redact=None` turns it off.
    """
    return Instrumentation(
        tracer_provider=tracer_provider, meter_provider=meter_provider, capture_content=capture_content, redact=redact
    )


_HANDLERS: dict[type, Any] = {
    PromptRendered: Instrumentation._render,
    ModelCalled: Instrumentation._call,
    SectionsRanked: Instrumentation._rank,
    Message: Instrumentation._reply,
    ToolInvoked: Instrumentation._invoke,
    SectionsExposed: Instrumentation._expose,
    ToolsInjected: Instrumentation._inject,
    RunEnded: Instrumentation._finish,
}


def _end(run: _Run, at: float | None) -> None:
    """End the spans of a run that have not ended yet."""
    run.forgotten()
    usage = run.usage
    run.span.set({"gen_ai.usage.input_tokens": usage.input_tokens, "gen_ai.usage.output_tokens": usage.output_tokens})
    for span in (run.chat, *run.calls.values(), run.span):
        if span is not None:
            span.end(at)
    run.chat = None


def _chat(run: _Run, event: ModelCalled | RunEnded) -> dict[str, Any]:
    """The attributes of a model call. The first call of an adapter that took over says which model it is."""
    if run.moved or not run.model:
        run.moved = False
        run.provider, run.model = _provider(event.adapter), event.model
    common = {"gen_ai.provider.name": run.provider, "gen_ai.request.model": run.model}
    return {"gen_ai.operation.name": "chat", **common}


def _tool(name: str) -> dict[str, str]:
    """The attributes of a tool call."""
    return {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name, "gen_ai.tool.type": "function"}


def _render_of(session: Session, run_id: str) -> PromptRendered | None:
    """The last render of a run; those of runs inside it may be newer."""
    return next((each for each in reversed(session[PromptRendered].view()) if each.run_id == run_id), None)


def _provider(adapter: str) -> str:
    spec = adapter_spec(adapter)
    return (spec.vendor if spec else "") or adapter


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "content": text}


def _message(message: Message) -> dict[str, Any]:
    """A message in the conventions' format."""
    if message.role == "tool":
        result = {"type": "tool_call_response", "id": message.call_id, "response": message.text}
        return {"role": message.role, "parts": [result]}
    parts: list[dict[str, Any]] = []
    if message.text or message.role == "system":
        parts.append(_text(message.text))
    for call in message.tool_calls:
        parts.append({"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments})
    return {"role": message.role, "parts": parts}
