"""The loop between model and tools, with no I/O in it.

`InnerLoop.run()` is a generator: it yields what it needs done (call the model, run these tools) and receives the
outcome. Everything it knows between two effects is in the session, so a run can be resumed from a snapshot.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from weakincentives.errors import OutputParseError, PromptError, PromptEvaluationError
from weakincentives.prompt import (
    AnyTool,
    CollapseSection,
    DisclosureRequest,
    HostedTool,
    OpenSectionsResult,
    Overrides,
    Prompt,
    SectionVisibility,
    View,
    VisibilityExpansionRequired,
    VisibilityOverrides,
    parse_structured_output,
)
from weakincentives.runtime.events import (
    EvaluationFailed,
    HostedToolInvoked,
    ModelCalled,
    PromptExecuted,
    PromptRendered,
    ToolsInjected,
    ToolsWithdrawn,
)
from weakincentives.runtime.executor import ToolExecutionOutcome, ToolExecutor
from weakincentives.runtime.hosted import HostedToolCodec, Owned, check_hosted, hosted_outputs
from weakincentives.runtime.inventory import Count, Define, inventory, sections_to_close
from weakincentives.runtime.messages import (
    CallModel,
    Effect,
    Message,
    ModelReply,
    ModelRequest,
    PromptResponse,
    RunTools,
    ToolCall,
    text_before_pauses,
    unanswered_calls,
)
from weakincentives.runtime.run import Offer, Run, RunScope, Toolbox, ToolRef
from weakincentives.session import Session

logger = logging.getLogger("weakincentives.runtime")


@dataclass(frozen=True, slots=True)
class InnerLoopConfig:
    """What the loop needs to know about its adapter; `define_tool` gives a tool as the adapter sends it."""

    adapter: str = ""
    model: str = ""
    supports_dynamic_tools: bool = False
    tool_route: str = "append"
    output_retries: int = 1
    hosted_tool_codecs: Mapping[str, HostedToolCodec[Any, Any]] = field(default_factory=dict)
    count_tokens: Count = len
    tokenizer: str = ""
    define_tool: Define = field(default=lambda tool: tool.definition)


def check_prompt(prompt: object) -> None:
    """Reject a template or string passed as the prompt."""
    if not isinstance(prompt, Prompt):
        raise TypeError(f"prompt must be a Prompt, got {prompt!r}; write Prompt(template).bind(...)")


class InnerLoop:
    """One evaluation of one prompt on one session."""

    def __init__(
        self,
        prompt: Prompt[Any],
        session: Session,
        scope: RunScope,
        config: InnerLoopConfig,
        *,
        visibility_overrides: Overrides | None = None,
        resume: bool = False,
    ) -> None:
        check_prompt(prompt)
        if not isinstance(session, Session):
            raise TypeError(f"session must be a Session, got {session!r}; pass session=Session()")
        self.prompt = prompt
        self.session = session
        self.scope = scope
        self.config = config
        self.toolbox = Toolbox()
        self.executor = ToolExecutor(
            prompt, session, scope, self.toolbox, supports_dynamic_tools=config.supports_dynamic_tools
        )
        self._resume = resume
        self._visibility_overrides = visibility_overrides
        self._seen_overrides: Any = None
        self._context_tokens = 0
        self._run = Run("", "", "", {})

    def run(self) -> Generator[Effect, Any, PromptResponse[Any]]:
        """Yield effects, receive their outcomes, return the response."""
        started = self.session.clock.monotonic()
        try:
            pending = self._resume_run() if self._resume else self._start()
            response = yield from self._turns(pending)
        except VisibilityExpansionRequired:
            raise
        except Exception as error:
            self.session.dispatch(
                EvaluationFailed(
                    run_id=self.scope.run_id,
                    prompt_name=self.prompt.name,
                    error=type(error).__name__,
                    message=str(error),
                    phase=phase_of(error),
                    timestamp=self._now(),
                )
            )
            raise
        self.session.dispatch(
            PromptExecuted(
                run_id=self.scope.run_id,
                prompt_name=self.prompt.name,
                adapter=self.config.adapter,
                model=self.config.model,
                text=response.text,
                output=response.output,
                usage=response.usage,
                turns=response.turns,
                halted=response.halt is not None,
                duration=self.session.clock.monotonic() - started,
                timestamp=self._now(),
            )
        )
        return response

    def _turns(self, pending: tuple[ToolCall, ...]) -> Generator[Effect, Any, PromptResponse[Any]]:
        last = self.session[Message].latest()
        if not pending and last is not None and last.role == "assistant" and not last.paused:
            answer = self._answer(ModelReply(text=last.text, tool_calls=last.tool_calls))
            if answer is not None:
                return answer
        while True:
            while pending:
                group = self._next_group(pending)
                outcomes = yield RunTools(group)
                halt = self._record_outcomes(outcomes)
                if halt is not None:
                    return self._response("", None, halt)
                pending = pending[len(group) :]
            self._update_tools()
            self._evict()
            self.scope.meter.check_model_call(self.prompt.name)
            request = self._request()
            asked = self.session.clock.monotonic()
            reply = yield CallModel(request)
            self._record_reply(request, reply, self.session.clock.monotonic() - asked)
            pending = reply.tool_calls
            if pending or reply.stop_reason == "pause":
                continue
            answer = self._answer(reply)
            if answer is not None:
                return answer

    def _start(self) -> tuple[ToolCall, ...]:
        """Render, offer the first tools, and begin a new conversation."""
        rendered = self.prompt.begin(self.session, self._visibility_overrides)
        view = self.prompt.view(self.session)
        self._check_hosted([(node.key, hosted) for node in view.existing() for hosted in node.hosted_tools])
        self._run = Run(
            run_id=self.scope.run_id,
            prompt_ns=self.prompt.ns,
            prompt_key=self.prompt.key,
            visibility=self.prompt.base_visibility(),
        )
        for offer in _offers(view, initial=True):
            self.toolbox.add(offer)
        self._save(tools=self.toolbox.refs)
        self._seen_overrides = self.session[VisibilityOverrides].latest()
        self.session[Message].clear()
        count, define = self.config.count_tokens, self.config.define_tool
        offered: tuple[AnyTool, ...] = (*rendered.tools, *rendered.hosted_tools)
        self.session.dispatch(
            PromptRendered(
                run_id=self.scope.run_id,
                prompt_ns=self.prompt.ns,
                prompt_key=self.prompt.key,
                prompt_name=self.prompt.name,
                adapter=self.config.adapter,
                model=self.config.model,
                attempt=self.scope.attempt,
                text=rendered.text,
                tools=tuple(tool.name for tool in rendered.tools),
                hosted_tools=tuple(tool.name for tool in rendered.hosted_tools),
                spans=rendered.spans,
                sections=inventory(view, rendered.text, count, define),
                tokenizer=self.config.tokenizer,
                builtin_tool_tokens=sum(count(define(tool)) for owner, tool in view.offered() if owner is None),
                definitions=tuple(define(tool) for tool in offered),
                timestamp=self._now(),
            )
        )
        self._say(Message(role="system", text=rendered.text))
        return ()

    def _resume_run(self) -> tuple[ToolCall, ...]:
        """Continue from what the session holds."""
        run = self.session[Run].latest()
        if run is None or (run.prompt_ns, run.prompt_key) != (self.prompt.ns, self.prompt.key):
            found = "no run" if run is None else f"a run of '{run.prompt_ns}/{run.prompt_key}'"
            raise PromptEvaluationError(
                f"Cannot resume '{self.prompt.ns}/{self.prompt.key}': the session holds {found}; "
                "restore a snapshot that was taken during a run of this prompt.",
                prompt_name=self.prompt.name,
                phase="render",
            )
        self.scope.run_id = run.run_id
        self.prompt.resume(run.visibility)
        self._run = run
        for ref in run.tools:
            tool = self.prompt.find_tool(ref.section_key, ref.name)
            if tool is None:
                raise PromptEvaluationError(
                    f"Cannot resume '{self.prompt.name}': tool '{ref.name}' of section '{ref.section_key}' is gone.",
                    prompt_name=self.prompt.name,
                    phase="render",
                )
            self.toolbox.add(Offer(ref, tool))
        self._check_hosted((self.toolbox.section_of(tool.name), tool) for tool in self.toolbox.hosted_tools)
        self.scope.meter.restore(run.spent)
        return unanswered_calls(self.session[Message].view())

    def _next_group(self, pending: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
        """The next call, or the next few when all of them are read-only."""
        size = 1
        while size < len(pending) and self.executor.all_read_only(pending[: size + 1]):
            size += 1
        return pending[:size]

    def _request(self) -> ModelRequest:
        return ModelRequest(
            prompt_name=self.prompt.name,
            messages=self.session[Message].view(),
            output=self.prompt.template.structured_output,
            deadline=self.scope.meter.deadline,
            **self.toolbox.offered,
        )

    def _record_reply(self, request: ModelRequest, reply: ModelReply, latency: float) -> None:
        self.scope.meter.add_usage(reply.usage)
        self._context_tokens = reply.usage.input_tokens
        self._save(spent=self.scope.meter.spent)
        self.session.dispatch(
            ModelCalled(
                run_id=self.scope.run_id,
                prompt_name=self.prompt.name,
                adapter=self.config.adapter,
                model=reply.model or self.config.model,
                turn=self.scope.meter.turns,
                usage=reply.usage,
                stop_reason=reply.stop_reason,
                latency=latency,
                retries=reply.retries,
                response_id=reply.response_id,
                messages=len(request.messages),
                tools=self.toolbox.callable_names,
                timestamp=self._now(),
            )
        )
        # A reply that is not whole stays out of the conversation: none of its calls may run, now or on resume.
        self._check_stop(reply)
        self._say(
            Message(
                role="assistant",
                text=reply.text,
                tool_calls=reply.tool_calls,
                items=reply.items,
                provider=self.config.adapter,
                paused=reply.stop_reason == "pause",
            )
        )

    def _record_outcomes(self, outcomes: list[ToolExecutionOutcome]) -> OpenSectionsResult | None:
        meter = self.scope.meter
        used = {key: meter.turns for outcome in outcomes if (key := self.toolbox.section_of(outcome.name))}
        self._save(last_used={**self._run.last_used, **used}, spent=meter.spent)
        for outcome in outcomes:
            self._say(
                Message(
                    role="tool",
                    text=outcome.message,
                    call_id=outcome.tool_call_id,
                    name=outcome.name,
                    success=outcome.success,
                )
            )
        for outcome in outcomes:
            if outcome.expansion is not None:
                raise _expansion(outcome.expansion)
            if outcome.halt is not None:
                return outcome.halt
        return None

    def _update_tools(self) -> None:
        """Offer the tools of the sections now shown, and withdraw those of closed ones."""
        overrides = self.session[VisibilityOverrides].latest()
        if overrides is self._seen_overrides:
            return
        self._seen_overrides = overrides
        changes = self.toolbox.changes(_offers(self.prompt.view(self.session), initial=False))
        if changes.new and not self.config.supports_dynamic_tools:
            raise self._restart_for(changes.new[0].ref.section_key)
        self._check_hosted((ref.section_key, tool) for ref, tool in changes.new if isinstance(tool, HostedTool))
        for offer in changes.new:
            self.toolbox.add(offer)
        self.toolbox.set_revoked(changes.back, False)
        self.toolbox.set_revoked(changes.gone, True)
        appeared = _by_section([*(offer.ref for offer in changes.new), *changes.back])
        used = dict.fromkeys(appeared, self.scope.meter.turns)
        self._save(tools=self.toolbox.refs, last_used={**self._run.last_used, **used})
        self._announce(appeared, _by_section(changes.gone))

    def _restart_for(self, key: str) -> VisibilityExpansionRequired:
        """The signal for a section that a handler opened and whose tools this adapter cannot add."""
        path = self.prompt.view(self.session).find(key)
        return VisibilityExpansionRequired(
            requested_overrides={path: SectionVisibility.FULL} if path else {},
            reason="A tool opened the section, and the adapter cannot add tools to a conversation.",
            section_keys=(key,) if key else (),
        )

    def _announce(self, appeared: Mapping[str, tuple[str, ...]], gone: Mapping[str, tuple[str, ...]]) -> None:
        route, run_id = self.config.tool_route, self.scope.run_id
        for key, names in gone.items():
            self.session.dispatch(ToolsWithdrawn(names, key, self._now(), run_id, route))
            self._say(Message(role="tools_removed", tools=names, section_key=key))
            logger.info("Withdrew tools of closed section '%s': %s", key, ", ".join(names))
        for key, names in appeared.items():
            offers = [offer for name in names if (offer := self.toolbox.get(name))]
            definitions = tuple(self.config.define_tool(offer.tool) for offer in offers)
            self.session.dispatch(ToolsInjected(names, key, self._now(), run_id, route, definitions))
            self._say(Message(role="tools_added", tools=names, section_key=key))
            logger.info("Injected tools from section expansion of '%s': %s", key, ", ".join(names))

    def _evict(self) -> None:
        """Close the sections used longest ago while the context is over the budget's limit."""
        budget = self.scope.meter.budget
        limit = None if budget is None else budget.max_context_tokens
        if limit is None or self._context_tokens <= limit:
            return
        excess, self._context_tokens = self._context_tokens - limit, 0
        for path in sections_to_close(
            self.prompt.view(self.session), self._run.last_used, excess, self.config.count_tokens
        ):
            self.session.dispatch(CollapseSection(path, reason=f"context is over {limit} tokens"))
        self._update_tools()

    def _check_stop(self, reply: ModelReply) -> None:
        problem = _STOPPED.get(reply.stop_reason)
        if problem is not None:
            raise PromptEvaluationError(
                f"The model {problem} in '{self.prompt.name}': {reply.text[:200]!r}",
                prompt_name=self.prompt.name,
                phase="response",
                payload=reply.text,
            )

    def _answer(self, reply: ModelReply) -> PromptResponse[Any] | None:
        """The response, or None if the model was asked to correct its answer."""
        output = self.prompt.template.structured_output
        text = text_before_pauses(self.session[Message].view()) + reply.text
        if output is None:
            return self._response(text, None, None)
        try:
            return self._response(text, parse_structured_output(text, output), None)
        except OutputParseError as error:
            if self._run.output_retries >= self.config.output_retries:
                raise
            self._save(output_retries=self._run.output_retries + 1)
            self._say(
                Message(
                    role="user",
                    text=f"Your answer does not fit the required format: {error}. Answer again with JSON that does.",
                )
            )
            return None

    def _response(self, text: str, output: Any, halt: OpenSectionsResult | None) -> PromptResponse[Any]:
        return PromptResponse(
            prompt_name=self.prompt.name,
            text=text,
            output=output,
            halt=halt,
            hosted_outputs=self._hosted_outputs(),
            usage=self.scope.meter.usage,
            turns=self.scope.meter.turns,
            run_id=self.scope.run_id,
        )

    def _hosted_outputs(self) -> Mapping[str, Any]:
        messages, codecs = self.session[Message].view(), self.config.hosted_tool_codecs
        outputs = hosted_outputs(self.toolbox.hosted_tools, messages, codecs, self.config.adapter, self.prompt.name)
        for tool in self.toolbox.hosted_tools:
            if tool.name in outputs:
                output = outputs[tool.name]
                self.session.dispatch(HostedToolInvoked(tool.name, tool.kind, output, self.scope.run_id, self._now()))
        return outputs

    def _check_hosted(self, owned: Iterable[Owned]) -> None:
        check_hosted(owned, self.config.hosted_tool_codecs, self.config.adapter, self.prompt.name)

    def _save(self, **changes: Any) -> None:
        self._run = replace(self._run, **changes)
        self.session[Run].seed(self._run)

    def _now(self) -> float:
        """The session's time, so that a replay of recorded steps records the same times."""
        return self.session.clock.now().timestamp()

    def _say(self, message: Message) -> None:
        self.session.dispatch(message)


def phase_of(error: Exception) -> str:
    """The phase in which a run failed, if the error tells."""
    if isinstance(error, PromptError):
        return "parse" if isinstance(error, OutputParseError) else "render"
    return getattr(error, "phase", "")


def _offers(view: View, *, initial: bool) -> list[Offer]:
    """What the sections of this moment offer, in the form the toolbox keeps."""
    return [
        Offer(ToolRef("" if owner is None else owner.key, tool.name, initial), tool) for owner, tool in view.offered()
    ]


def _expansion(request: DisclosureRequest) -> VisibilityExpansionRequired:
    return VisibilityExpansionRequired(
        f"Opening {', '.join(request.requested_sections)} needs a new evaluation.",
        requested_overrides=request.requested_overrides,
        reason=request.reason,
        section_keys=request.requested_sections,
    )


def _by_section(refs: Iterable[ToolRef]) -> dict[str, tuple[str, ...]]:
    grouped: dict[str, tuple[str, ...]] = {}
    for ref in refs:
        grouped[ref.section_key] = (*grouped.get(ref.section_key, ()), ref.name)
    return grouped


_STOPPED = {
    "refusal": "refused to answer",
    "content_filter": "was stopped by a content filter",
    "length": "was cut off at its length limit",
}
