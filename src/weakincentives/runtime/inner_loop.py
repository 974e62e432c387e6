"""The loop between model and tools, with no I/O in it.

`InnerLoop.run()` is a generator: it yields what it needs done (call the model, run these tools) and receives the
outcome. Everything it knows between two effects is in the session, so a run can be taken up from a snapshot.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from weakincentives.errors import OutputParseError, PromptError, PromptEvaluationError
from weakincentives.prompt import (
    CollapseSection,
    HostedTool,
    OpenSectionsResult,
    Prompt,
    SectionVisibility,
    VisibilityExpansionRequired,
    VisibilityOverrides,
    parse_structured_output,
)
from weakincentives.prompt.outline import VISIBILITIES
from weakincentives.prompt.shape import Overrides
from weakincentives.prompt.view import tool_text
from weakincentives.runtime.codec import HostedToolCodec
from weakincentives.runtime.conversation import text_before_pauses, unanswered_calls
from weakincentives.runtime.effects import CallModel, Effect, RunTools
from weakincentives.runtime.events import (
    EvaluationFailed,
    HostedToolInvoked,
    ModelCalled,
    PromptExecuted,
    PromptRendered,
    ToolsInjected,
    ToolsWithdrawn,
)
from weakincentives.runtime.eviction import sections_to_close
from weakincentives.runtime.executor import ToolExecutionOutcome, ToolExecutor
from weakincentives.runtime.hosting import Owned, check_hosted, hosted_outputs
from weakincentives.runtime.inventory import Count, inventory
from weakincentives.runtime.messages import Message, ModelReply, ModelRequest, ToolCall
from weakincentives.runtime.response import PromptResponse
from weakincentives.runtime.run import Run, RunScope, ToolRef
from weakincentives.runtime.toolbox import Toolbox
from weakincentives.session import Session

logger = logging.getLogger("weakincentives.runtime")


@dataclass(frozen=True, slots=True)
class InnerLoopConfig:
    """What the loop needs to know of its adapter."""

    adapter: str = ""
    model: str = ""
    supports_dynamic_tools: bool = False
    tool_route: str = "append"
    output_retries: int = 1
    hosted_tool_codecs: Mapping[str, HostedToolCodec[Any, Any]] = field(default_factory=dict)
    count_tokens: Count = len
    tokenizer: str = ""


def check_prompt(prompt: object) -> None:
    """A template, or the text itself, in a prompt's place is a slip that the message mends."""
    if not isinstance(prompt, Prompt):
        raise TypeError(f"{prompt!r} is no Prompt; write Prompt(template).bind(...)")


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
            raise TypeError(f"session={session!r} is no Session; pass session=Session()")
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
        self._run: Run = Run("", "", "", {})

    def run(self) -> Generator[Effect, Any, PromptResponse[Any]]:
        """Yield effects, receive their outcomes, return the response."""
        started = self.session.clock.monotonic()
        try:
            pending = self._take_up() if self._resume else self._start()
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
        base = self.prompt.begin(self.session, self._visibility_overrides)
        view = self.prompt.view(self.session)
        rendered = self.prompt.template.rendered(view)
        self._check_hosted([(node.key, hosted) for node in view.existing() for hosted in node.hosted_tools])
        states = {node.key: base.states[node.index] for node in view.outline.nodes}
        self._run = Run(
            run_id=self.scope.run_id,
            prompt_ns=self.prompt.ns,
            prompt_key=self.prompt.key,
            visibility={key: VISIBILITIES[state].value if state else "absent" for key, state in states.items()},
        )
        for owner, tool in view.offered():
            self.toolbox.add(ToolRef("" if owner is None else owner.key, tool.name), tool)
        box = self.toolbox
        self._save_tools(initial_tools=len(box.tools), initial_hosted_tools=len(box.hosted_tools))
        self._seen_overrides = self.session[VisibilityOverrides].latest()
        self.session[Message].clear()
        count = self.config.count_tokens
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
                tools=tuple(box.registry),
                hosted_tools=tuple(tool.name for tool in box.hosted_tools),
                spans=rendered.spans,
                sections=inventory(view, rendered.text, count),
                tokenizer=self.config.tokenizer,
                builtin_tool_tokens=sum(count(tool_text(tool)) for owner, tool in view.offered() if owner is None),
                definitions=box.definitions(box.names),
                timestamp=self._now(),
            )
        )
        self._say(Message(role="system", text=rendered.text))
        return ()

    def _take_up(self) -> tuple[ToolCall, ...]:
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
        self.prompt.begin_from(run.visibility)
        self._run = run
        for ref in (*run.tools, *run.hosted_tools):
            tool = self.prompt.find_tool(ref.section_key, ref.name)
            if tool is None:
                raise PromptEvaluationError(
                    f"Cannot resume '{self.prompt.name}': tool '{ref.name}' of section '{ref.section_key}' is gone.",
                    prompt_name=self.prompt.name,
                    phase="render",
                )
            self.toolbox.add(ref, tool)
        box = self.toolbox
        self._check_hosted(zip((ref.section_key for ref in box.hosted_refs), box.hosted_tools, strict=True))
        box.revoked = run.revoked
        self.scope.meter.carry(run.usage, turns=run.turns, tool_calls=run.tool_calls)
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
            tools=tuple(self.toolbox.tools),
            hosted_tools=tuple(self.toolbox.hosted_tools),
            initial_tools=self._run.initial_tools,
            initial_hosted_tools=self._run.initial_hosted_tools,
            revoked=self._run.revoked,
            output=self.prompt.template.structured_output,
            deadline=self.scope.meter.deadline,
        )

    def _record_reply(self, request: ModelRequest, reply: ModelReply, latency: float) -> None:
        self.scope.meter.add_usage(reply.usage)
        self._context_tokens = reply.usage.input_tokens
        self._save(turns=self.scope.meter.turns, usage=self.scope.meter.usage)
        self.session.dispatch(
            ModelCalled(
                run_id=self.scope.run_id,
                prompt_name=self.prompt.name,
                adapter=self.config.adapter,
                model=reply.model or self.config.model,
                turn=self._run.turns,
                usage=reply.usage,
                stop_reason=reply.stop_reason,
                latency=latency,
                retries=reply.retries,
                response_id=reply.response_id,
                messages=len(request.messages),
                tools=self.toolbox.names,
                revoked=tuple(sorted(request.revoked)),
                timestamp=self._now(),
            )
        )
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
        used = {key: self._run.turns for o in outcomes if (key := self.toolbox.sections.get(o.name))}
        self._save(last_used={**self._run.last_used, **used}, tool_calls=self.scope.meter.tool_calls)
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
                raise outcome.expansion.signal()
            if outcome.halt is not None:
                return outcome.halt
        return None

    def _update_tools(self) -> None:
        """Offer what the sections now shown bring, and withdraw what belongs to closed ones."""
        overrides = self.session[VisibilityOverrides].latest()
        if overrides is self._seen_overrides:
            return
        self._seen_overrides = overrides
        difference = self.toolbox.difference(self.prompt.view(self.session).offered())
        if difference.new and not self.config.supports_dynamic_tools:
            raise self._restart_for(difference.new[0][0].section_key)
        self._check_hosted([(ref.section_key, tool) for ref, tool in difference.new if isinstance(tool, HostedTool)])
        for ref, tool in difference.new:
            self.toolbox.add(ref, tool)
        appeared = by_section([*(ref for ref, _ in difference.new), *difference.back])
        gone = by_section(difference.gone)
        revoked = self._run.revoked.difference(ref.name for ref in difference.back)
        self._save_tools(
            revoked=revoked.union(ref.name for ref in difference.gone),
            last_used={**self._run.last_used, **dict.fromkeys(appeared, self._run.turns)},
        )
        self._announce(appeared, gone)

    def _restart_for(self, key: str) -> VisibilityExpansionRequired:
        """A handler opened a section whose tools this adapter cannot add to the conversation."""
        path = self.prompt.outline().by_key[key].path if key else ()
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
            self.session.dispatch(
                ToolsInjected(names, key, self._now(), run_id, route, self.toolbox.definitions(names))
            )
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

    def _answer(self, reply: ModelReply) -> PromptResponse[Any] | None:
        """The response, or None when the model was asked to mend its answer."""
        problem = _STOPPED.get(reply.stop_reason)
        if problem is not None:
            raise PromptEvaluationError(
                f"The model {problem} in '{self.prompt.name}': {reply.text[:200]!r}",
                prompt_name=self.prompt.name,
                phase="response",
                payload=reply.text,
            )
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

    def _save_tools(self, **changes: Any) -> None:
        self._save(tools=tuple(self.toolbox.refs), hosted_tools=tuple(self.toolbox.hosted_refs), **changes)

    def _save(self, **changes: Any) -> None:
        self._run = replace(self._run, **changes)
        self.toolbox.revoked = self._run.revoked
        self.session[Run].seed(self._run)

    def _now(self) -> float:
        """The session's time: a replay of recorded steps writes down the same times."""
        return self.session.clock.now().timestamp()

    def _say(self, message: Message) -> None:
        self.session.dispatch(message)


def phase_of(error: Exception) -> str:
    """Where a run failed, for errors that say so and for those of a prompt."""
    if isinstance(error, PromptError):
        return "parse" if isinstance(error, OutputParseError) else "render"
    return getattr(error, "phase", "")


def by_section(refs: Iterable[ToolRef]) -> dict[str, tuple[str, ...]]:
    grouped: dict[str, tuple[str, ...]] = {}
    for ref in refs:
        grouped[ref.section_key] = (*grouped.get(ref.section_key, ()), ref.name)
    return grouped


_STOPPED = {
    "refusal": "refused to answer",
    "content_filter": "was stopped by a content filter",
    "length": "was cut off at its length limit",
}
