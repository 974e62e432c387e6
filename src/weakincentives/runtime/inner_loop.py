"""The loop between model and tools, without any I/O.

`InnerLoop.run()` is a generator: it yields what it needs done (call the model, run these tools) and receives the
outcome. Everything it knows between two effects is in the session, so a run can be resumed from a snapshot.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from weakincentives.content import Media, Part, parts_of, text_of
from weakincentives.errors import (
    AbandonedCallError,
    ContextOverflowError,
    OutputParseError,
    PromptError,
    PromptEvaluationError,
)
from weakincentives.limits import Spent
from weakincentives.prompt import (
    AnyTool,
    CollapseSection,
    HostedTool,
    OpenSectionsResult,
    Overrides,
    Prompt,
    RenderedPrompt,
    SectionPath,
    SectionVisibility,
    SetVisibilityOverride,
    View,
    VisibilityExpansionRequired,
    VisibilityOverrides,
    parse_structured_output,
    portable_name,
)
from weakincentives.runtime import events
from weakincentives.runtime.executor import ToolExecutionOutcome, ToolExecutor
from weakincentives.runtime.history import related
from weakincentives.runtime.hosted import HostedToolCodec, Owned, check_hosted, hosted_outputs
from weakincentives.runtime.inventory import Count, Define, Told, inventory, prompt_difference, sections_to_close
from weakincentives.runtime.media import estimate_tokens
from weakincentives.runtime.messages import (
    CORRECTION,
    PROMPT_TURN,
    CallModel,
    Effect,
    LoadSections,
    Message,
    ModelReply,
    ModelRequest,
    PromptResponse,
    RunTools,
    Settings,
    ToolCall,
    Transcript,
    failed_results,
    rebased,
    text_before_pauses,
    unanswered_calls,
    unanswered_words,
    user_message,
    user_words,
    with_results,
)
from weakincentives.runtime.misses import possible_misses
from weakincentives.runtime.run import Offer, Run, RunScope, Toolbox, ToolRef, by_section, tool_ref
from weakincentives.session import LogEntry, Session

logger = logging.getLogger("weakincentives.runtime")

Beginning = Literal["new", "resume", "turn"]
_NOT_SEEN = object()
_STOPPED = {
    "refusal": "refused to answer",
    "content_filter": "was stopped by a content filter",
    "length": "was cut off at its length limit",
    "overflow": "was cut off at the end of its context window",
}


@dataclass(frozen=True, slots=True)
class InnerLoopConfig:
    """What the loop needs to know about its adapter.

    `define_tool` returns a tool as the adapter sends it; `check_content` raises for parts that its model does not
    accept, and `check_amount` if a conversation has too many. `binds_reasoning` says whether a message has reasoning
    that its provider accepts only with the prompt it was written under. If tools of closed sections are sent for the
    provider to search, `found_tools` reads from a reply which ones it found.
    """

    adapter: str = ""
    model: str = ""
    supports_dynamic_tools: bool = False
    tool_route: str = "append"
    output_retries: int = 1
    hosted_tool_codecs: Mapping[str, HostedToolCodec[Any, Any]] = field(default_factory=dict)
    count_tokens: Count = len
    tokenizer: str = ""
    define_tool: Define = field(default=lambda tool: tool.definition)
    check_content: Callable[[Sequence[Part]], None] = field(default=lambda parts: None)
    check_amount: Callable[[Sequence[Part]], None] = field(default=lambda parts: None)
    count_media: Callable[[Media], int] = estimate_tokens
    supports_operator_text: bool = False
    binds_reasoning: Callable[[Message], bool] = field(default=lambda message: False)
    settings: Settings = field(default_factory=Settings)
    found_tools: Callable[[Sequence[str]], tuple[str, ...]] | None = None
    max_tool_description: int | None = None
    sends_tools: bool = True

    def sent_tool(self, tool: AnyTool) -> str:
        """A tool as it reaches the model: its definition, and its full description if that is sent as text."""
        return self.define_tool(tool) + self.long_description(tool) if self.sends_tools else ""

    def long_description(self, tool: AnyTool) -> str:
        """The full description as text, if the provider accepts only its beginning."""
        limit = self.max_tool_description
        if limit is None or len(tool.description) <= limit:
            return ""
        return f"The tool {portable_name(tool.name)}, in full: {tool.description}"


def check_prompt(prompt: object) -> None:
    """Reject a template or string passed as the prompt."""
    if not isinstance(prompt, Prompt):
        raise TypeError(f"prompt must be a Prompt, got {prompt!r}; write Prompt(template).bind(...)")


class InnerLoop:
    """One evaluation of one prompt on one session.

    It begins a `new` conversation (or, as a restart, the same one with a new system text), continues the run in the
    session (`resume`), or takes the next `turn` of a conversation, with what the user says.
    """

    def __init__(
        self,
        prompt: Prompt[Any],
        session: Session,
        scope: RunScope,
        config: InnerLoopConfig,
        *,
        visibility_overrides: Overrides | None = None,
        beginning: Beginning = "new",
        message: Message | None = None,
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
            prompt,
            session,
            scope,
            self.toolbox,
            supports_dynamic_tools=config.supports_dynamic_tools,
            supports_operator_text=config.supports_operator_text,
        )
        # What a streaming driver has shown of the current reply.
        self.partial_text: list[str] = []
        # Ends a stream that the run's own thread is reading; set by channels that can do so.
        self.interrupt: Callable[[], None] = lambda: None
        # Sections opened without the model asking, for a streaming driver to show.
        self.opened: list[str] = []
        # Why the last answer was rejected, for a streaming driver to show before the next one.
        self.rejected = ""
        self._beginning = beginning
        self.in_conversation = beginning == "turn"
        self._message = message
        self._visibility_overrides = visibility_overrides
        self._seen_overrides: VisibilityOverrides | object | None = _NOT_SEEN
        self._told_version = 0
        self._told_overrides: VisibilityOverrides | None = None
        # Keys of sections whose opening was announced when they were opened.
        self._announced: set[str] = set()
        # The tools that are gone since the run stopped, while its open calls have no results yet.
        self._untold: Sequence[str] | None = None
        self._operator_texts: list[str] = []
        self._loaded = 0
        self._unloadable: dict[SectionPath, Exception] = {}
        self._context_tokens = 0
        self._transcript = Transcript(session)
        self._conversation = session[Message]
        self._runs = session[Run]
        self._run = Run("", "", "")
        scope.codecs[config.adapter] = config.hosted_tool_codecs

    @property
    def owner(self) -> str:
        """The name under which the run claims its session."""
        return f"{self.prompt.name} ({self.scope.run_id})"

    def run(self) -> Generator[Effect, Any, PromptResponse[Any]]:
        """Yield effects, receive their outcomes, return the response."""
        started = self.session.clock.monotonic()
        self.scope.abandon = self.abandon
        try:
            pending = yield from self._begin()
            response = yield from self._turns(pending)
        except (VisibilityExpansionRequired, AbandonedCallError):
            raise
        except Exception as error:
            self._keep_rest(stopped=False)
            self._emit(
                events.EvaluationFailed,
                prompt_name=self.prompt.name,
                error=type(error).__name__,
                message=str(error),
                phase=phase_of(error),
                prompt_ns=self.prompt.ns,
                prompt_key=self.prompt.key,
                adapter=self.config.adapter,
                model=self.config.model,
                recovered=self.scope.recovers is not None and self.scope.recovers(error),
            )
            raise
        except BaseException:
            self._stop()
            raise
        finally:
            self.scope.abandon = self.scope.recovers = None
        if response.halt is None:
            for miss in possible_misses(self.prompt, self.session, self._run, response.text):
                self._emit(events.PossibleMiss, **miss._asdict())
        self._emit(
            events.PromptExecuted,
            prompt_name=self.prompt.name,
            adapter=self.config.adapter,
            model=self.config.model,
            text=response.text,
            output=response.output,
            usage=response.usage,
            turns=response.turns,
            halted=response.halt is not None,
            duration=self.session.clock.monotonic() - started,
        )
        return response

    def abandon(self) -> None:
        """Stop the run from another thread while its own is busy, and free session and prompt before this returns."""
        self.scope.abandon = None
        self.scope.fence.close()
        self.executor.abandon()
        self._stop()
        self.session.release(self.owner)
        self.prompt.release()
        self.interrupt()

    def _stop(self) -> None:
        """Leave a conversation that can be continued: the text so far stays, and every open call gets an answer."""
        self._keep_rest(stopped=True)
        self._emit(events.EvaluationStopped, prompt_name=self.prompt.name)

    def _keep_rest(self, *, stopped: bool) -> None:
        """Keep what a run did that ends early: the text it has shown, and the results of the calls it has made."""
        partial, self.partial_text = "".join(self.partial_text), []
        if partial:
            self._save(unfinished=True)
            self._transcript.say(Message(role="assistant", text=partial, provider=self.config.adapter))
        if made := list(self.executor.ended.values()):
            self._record_outcomes(made)
        if stopped:
            calls = unanswered_calls(self._conversation.view())
            self._transcript.say(*failed_results(calls, "Not run: the run was stopped."))
            self._say_operator_texts()
        self._transcript.put_in_order()

    def _turns(self, pending: tuple[ToolCall, ...]) -> Generator[Effect, Any, PromptResponse[Any]]:
        last = self._conversation.latest()
        if not pending and last is not None and last.role == "assistant" and not last.paused:
            # Asking again on resume is not one of the retries.
            self._save(output_retries=-1)
            answer = self._answer(ModelReply(text=last.text, tool_calls=last.tool_calls))
            if answer is not None:
                return answer
        while True:
            while pending:
                outcomes = yield RunTools(self._next_group(pending))
                pending = pending[len(outcomes) :]
                if (ended := self._record_outcomes(outcomes)) is not None:
                    return self._stop_to_open(ended, pending)
                if pending and self.config.supports_dynamic_tools:
                    yield from self._load_sections()
                    self._register_tools()
            if self._untold is not None:
                removed, self._untold = self._untold, None
                self._tell_changes(removed)
            self._say_operator_texts()
            self._open_by_rule()
            yield from self._load_sections()
            self._evict()
            self._tell_opened()
            self._update_tools()
            self._transcript.put_in_order()
            self.scope.meter.check_model_call(self.prompt.name)
            request = self._request()
            asked = self.session.clock.monotonic()
            reply = self.toolbox.with_names((yield CallModel(request)))
            self._record_reply(request, reply, self.session.clock.monotonic() - asked)
            pending = reply.tool_calls
            # If the user has spoken in the meantime, the model answers that too.
            if pending or reply.stop_reason == "pause" or self._transcript.put_in_order():
                continue
            answer = self._answer(reply)
            if answer is not None:
                return answer

    def _stop_to_open(self, ended: ToolExecutionOutcome, pending: tuple[ToolCall, ...]) -> PromptResponse[Any]:
        """End the turn at a call that opens sections: return to the caller, or raise for a new evaluation."""
        text = "Not run: the turn ended to open sections. Call the tool again if it is still needed."
        self._transcript.say(*failed_results(pending, text))
        self._save(opening=True)
        if (asked := ended.expansion) is not None:
            raise VisibilityExpansionRequired(
                f"Opening {', '.join(asked.requested_sections)} needs a new evaluation.",
                requested_overrides=asked.requested_overrides,
                reason=asked.reason,
                section_keys=asked.requested_sections,
            )
        return self._response("", None, ended.halt)

    def _begin(self) -> Generator[Effect, Any, tuple[ToolCall, ...]]:
        """Put the session into the state of the first request; return the calls that are still to be made."""
        run = self._runs.latest()
        self.scope.conversation_id = self.session.session_id if run is None else run.conversation_id
        if run is not None and run.unfinished and self._message is None:
            # The model writes that reply anew.
            self._conversation.update(lambda said: said[:-1] if said and said[-1].role == "assistant" else said)
        if self._message is not None:
            self._check_content(self._message.parts, earlier=self._beginning == "turn")
        if run is None or run.run_id != self.scope.run_id:
            self.prompt.refresh()
        restarts = self.scope.attempt > 1 or (run is not None and run.opening and run.run_id == self.prompt.run_id)
        same_prompt = run is not None and (run.prompt_ns, run.prompt_key) == (self.prompt.ns, self.prompt.key)
        if self._beginning == "resume":
            if run is None or not same_prompt:
                found = "no run" if run is None else f"a run of '{run.prompt_ns}/{run.prompt_key}'"
                raise self._render_error(
                    f"Cannot resume '{self.prompt.ns}/{self.prompt.key}': the session holds {found}; "
                    "restore a snapshot that was taken during a run of this prompt."
                )
            self.scope.run_id = self.prompt.run_id = run.run_id
            return (yield from self._continue(run))
        self.prompt.run_id = self.scope.run_id
        if self._beginning == "turn" and run is not None and same_prompt and not restarts:
            return (yield from self._take_turn(run))
        yield from self._start(restarts=restarts)
        return ()

    def _load_sections(self) -> Generator[Effect, Any, None]:
        """Load open sections whose tools are not known yet; what they add may include more such sections."""
        while paths := self._unloaded():
            errors = yield LoadSections(paths)
            for path, error in errors.items():
                where = f"Section '{'.'.join(path)}' of '{self.prompt.name}'"
                raise self._render_error(f"{where} cannot be opened: {error}") from error
        self._tell_loaded()

    def _open_by_rule(self) -> None:
        """Open the sections whose rules now apply."""
        opened = self.prompt.opened_by_rule(self.session, lambda: user_words(self._conversation.view()))
        self._open(opened, "rule")

    def _open(self, paths: Sequence[SectionPath], decider: str) -> None:
        """Open sections without the model asking; it reads their text before its next reply."""
        if not paths:
            return
        for path in paths:
            for opened, visibility in self.prompt.view(self.session).opening(path).overrides.items():
                self.session.dispatch(SetVisibilityOverride(opened, visibility))
                self._announced.add(".".join(opened))
        self._announce_opened(tuple(map(".".join, paths)), decider)

    def _announce_opened(self, keys: tuple[str, ...], decider: str) -> None:
        self.opened += keys
        self._emit(events.SectionsOpened, section_keys=keys, decided_by=decider)

    def _defer_tools(self, view: View) -> None:
        """Offer the tools of closed sections for the provider to search."""
        if self.config.found_tools is None:
            return
        for node in view.existing():
            for tool in () if view.is_open(node.path) else node.tools:
                if self.toolbox.get(tool.name) is None:
                    self.toolbox.add(Offer(ToolRef(node.key, tool.name, deferred=True), tool))

    def _open_found(self, reply: ModelReply) -> None:
        """Open the sections whose tools the provider found or the model called."""
        if self.config.found_tools is None:
            return
        found = self.toolbox.find((*self.config.found_tools(reply.items), *(call.name for call in reply.tool_calls)))
        view = self.prompt.view(self.session)
        paths = [path for key in found if (path := view.find(key)) is not None and not view.is_open(path)]
        self._open(paths, "provider")
        for key, names in found.items():
            self._emit(events.ToolsInjected, tool_names=names, section_key=key, route="tool_search")

    def _tell_opened(self) -> None:
        """Tell the model what was opened or closed without it; if that needs a new evaluation, it shows the text."""
        if self.session[VisibilityOverrides].latest() is self._told_overrides:
            return
        if not self.config.supports_dynamic_tools:
            self._register_tools()
        self._tell_changes(texts=False)

    def _unloaded(self) -> tuple[SectionPath, ...]:
        return tuple(path for path in self.prompt.unloaded(self.session) if path not in self._unloadable)

    def _tell_loaded(self) -> None:
        """Record what was loaded since the last call, by the loop or by a tool that opened a section."""
        fresh = self.prompt.loaded[self._loaded :]
        if not fresh:
            return
        self._loaded = len(self.prompt.loaded)
        view = self.prompt.view(self.session)
        states = self._inventory(view, "".join(view.pieces()))
        for path in fresh:
            within = tuple(state for state in states if state.path[: len(path)] == path)
            changed = view.outline.brought(path).changed
            self._emit(events.SectionLoaded, section_key=".".join(path), sections=within, changed_tools=changed)

    def _start(self, *, restarts: bool) -> Generator[Effect, Any, None]:
        """Render and offer the first tools; a restart keeps the conversation, anything else begins a new one."""
        messages = self._conversation.all()
        goes_on = restarts or self._beginning == "turn"
        kept = rebased(with_results(messages, self._missing_results())) if goes_on else unanswered_words(messages)
        said = next((m for m in (*kept, self._message) if m is not None and m.role == "user"), None)
        words = "" if said is None else said.text
        rendered = self.prompt.begin(self.session, self._visibility_overrides, words)
        if self.prompt.unloaded(self.session):
            yield from self._load_sections()
            rendered = self.prompt.begin(self.session, self._visibility_overrides, words)
        view = self.prompt.view(self.session)
        self._check_hosted(self._all_hosted(view))
        self._check_content(rendered.user_parts, earlier=False)
        # A restart keeps the results of tools, and with them what the model has read.
        before = self._runs.latest() if restarts else None
        chosen, selected = self.prompt.decisions()
        self._run = Run(
            run_id=self.scope.run_id,
            prompt_ns=self.prompt.ns,
            prompt_key=self.prompt.key,
            chosen=chosen,
            selected=selected,
            conversation_id=self.scope.conversation_id,
            closed={} if before is None else before.closed,
            told={} if before is None else {key: before.told[key] for key in before.read},
        )
        self.toolbox.add(*self.toolbox.changes(self._offers(view, initial=True)).new)
        self._defer_tools(view)
        self._told_version = self.toolbox.version
        self._save(tools=self.toolbox.refs)
        self._seen_overrides = self._told_overrides = self.session[VisibilityOverrides].latest()
        # What was said since is put after what the loop says.
        self._conversation.update(lambda said: said[len(messages) :])
        self._emit_rendered(rendered, view)
        if goes_on and any(self.config.binds_reasoning(message) for message in messages if not message.rebased):
            self._emit(events.ReasoningDropped, reason="it is bound to the text of the prompt, which was rendered anew")
        if not restarts:
            self._emit_opened(view)
        offered = self.toolbox.offered
        known = [tool for tool in offered["tools"] if tool.name not in offered["deferred"]]
        system = (rendered.system_text, self._long_descriptions(known))
        if any(system):
            self._transcript.say(Message(role="system", text="\n\n".join(filter(None, system))))
        if rendered.user_text:
            self._transcript.say(user_message(rendered.user_parts, name=PROMPT_TURN))
        self._transcript.say(*kept)
        self._say_message()

    def _say_message(self) -> None:
        """Add the user's new message, once: a restart finds it in the conversation."""
        message, self._message = self._message, None
        if message is not None and self.scope.attempt == 1:
            self._transcript.say(message)

    def _inventory(self, view: View, text: str) -> tuple[events.SectionState, ...]:
        config, base = self.config, self.prompt.base_view()
        return inventory(view, text, config.count_tokens, config.sent_tool, count_media=config.count_media, base=base)

    def _emit_rendered(self, rendered: RenderedPrompt[Any], view: View) -> None:
        count, define = self.config.count_tokens, self.config.sent_tool
        self._emit(
            events.PromptRendered,
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
            sections=self._inventory(view, rendered.text),
            tokenizer=self.config.tokenizer,
            builtin_tool_tokens=sum(count(define(tool)) for owner, tool in view.offered() if owner is None),
            definitions=self._definitions(),
            overrides=self._overrides(),
            overrides_tag=self.prompt.overrides_tag,
        )

    def _emit_opened(self, view: View) -> None:
        """Record what is open from the start because of a rule or the user's words."""
        for decider in ("rule", "search"):
            keys = tuple(node.key for node, _ in view.layout.marks if view.decided_by(node) == decider)
            if keys:
                self._announce_opened(keys, decider)

    def _take_turn(self, run: Run) -> Generator[Effect, Any, tuple[ToolCall, ...]]:
        """Continue the conversation of an earlier run, under a new run id."""
        unused = dict.fromkeys(run.last_used, 0)
        run = replace(run, run_id=self.scope.run_id, spent=Spent(), output_retries=0, opening=False, last_used=unused)
        yield from self._continue(run)
        said = "" if self._message is None else self._message.text
        self._say_message()
        last = self._conversation.latest()
        if last is None or last.role == "assistant":
            raise self._render_error(
                f"'{self.prompt.name}' has nothing to answer: its user sections have been answered; pass content."
            )
        self._open(self.prompt.opened_by_words(self.session, said) if said else (), "search")
        return ()

    def _emit_continued(self, before: events.PromptRendered) -> None:
        """Record that the conversation goes on with the same text; only the newest such event keeps what they share."""
        sections = self._sections_after(before)
        self.session.dispatch(
            replace(
                before,
                run_id=self.scope.run_id,
                adapter=self.config.adapter,
                model=self.config.model,
                attempt=1,
                tools=tuple(tool.name for tool in self.toolbox.offered["tools"]),
                hosted_tools=tuple(tool.name for tool in self.toolbox.hosted_tools),
                sections=sections,
                definitions=self._definitions(),
                overrides=self._overrides(),
                overrides_tag=self.prompt.overrides_tag,
                timestamp=self.session.timestamp(),
                continues=before.run_id,
                read=self._run.read,
            )
        )
        own = () if sections is before.sections else before.sections
        brief = replace(before, text="", spans=(), sections=own, definitions=())

        def shortened(renders: Iterable[events.PromptRendered]) -> list[events.PromptRendered]:
            kept = list(renders)
            at = len(kept) - 1
            while at >= 0 and kept[at] is not before:
                at -= 1
            if at >= 0:  # A reducer of the user's may keep fewer.
                kept[at] = brief
            return kept

        self.session[events.PromptRendered].update(shortened)

    def _sections_after(self, before: events.PromptRendered) -> tuple[events.SectionState, ...]:
        """The sections of the render, with those that were added, enabled or disabled since."""
        view, base = self.prompt.view(self.session), self.prompt.base_view()
        now = {node.path: base.own_visibility(node) for node in view.existing()}
        absent = SectionVisibility.ABSENT
        if now == {each.path: each.base for each in before.sections if each.base is not absent}:
            return before.sections
        known = {each.path: each for each in before.sections}
        gone = (replace(each, base=absent) for each in before.sections if each.path not in now)
        states = self._inventory(view, "".join(view.pieces()))
        return (*(state.after(known.get(state.path)) for state in states), *gone)

    def _continue(self, run: Run) -> Generator[Effect, Any, tuple[ToolCall, ...]]:
        """Take over the state of a run; return its open calls."""
        self.prompt.resume(self.session, run.chosen, {} if self._beginning == "turn" else run.selected)
        self._run = replace(run, selected=self.prompt.decisions()[1])
        # Messages from here on belong to this run, for observers too.
        self._save()
        # A section that can no longer be loaded has lost its tools; the model is told so below.
        while paths := self._unloaded():
            self._unloadable.update((yield LoadSections(paths)))
        removed: list[str] = []
        for ref in run.tools:
            tool = self.prompt.find_tool(ref.section_key, ref.name)
            if tool is not None:
                self.toolbox.add(Offer(ref, tool))
            elif not ref.revoked:
                removed.append(ref.name)
        self._told_version = self.toolbox.version
        self._check_hosted((self.toolbox.section_of(tool.name), tool) for tool in self.toolbox.hosted_tools)
        self.scope.meter.restore(run.spent)
        self._transcript.adopt()
        pending = unanswered_calls(self._conversation.view())
        if pending and self.config.supports_dynamic_tools:
            self._register_tools()
        if self._beginning == "turn" and (before := self._last_render()) is not None:
            self._emit_continued(before)
        self._tell_loaded()
        if self._beginning == "turn":
            self._transcript.say(*self._missing_results())
        elif pending:
            # The results of the open calls come first.
            self._untold = removed
            return pending
        self._tell_changes(removed)
        return pending

    def _last_render(self) -> events.PromptRendered | None:
        prompt = (self.prompt.ns, self.prompt.key)
        renders = reversed(self.session[events.PromptRendered].view())
        return next((each for each in renders if (each.prompt_ns, each.prompt_key) == prompt), None)

    def _tell_changes(self, removed_tools: Sequence[str] = (), *, texts: bool = True) -> None:
        """Tell the model how the prompt differs from what it knows; without `texts`, what was opened and closed."""
        self._told_overrides = self.session[VisibilityOverrides].latest()
        render = self._last_render()
        if render is None:
            return
        view = self.prompt.view(self.session)
        found = prompt_difference(Told(render, self._run.told), view, removed_tools, texts=texts)
        if found.changed or found.user_changed or found.removed_sections or removed_tools:
            self._emit(
                events.PromptChanged,
                changed_sections=(*found.changed, *found.user_changed),
                removed_sections=tuple(found.removed_sections),
                removed_tools=tuple(removed_tools),
            )
        if opened := tuple(key for key in found.applying if not any(related(key, up) for up in self._announced)):
            self._announce_opened(opened, "code")
        if note := found.note():
            self._transcript.say(Message("system", note))
        for key, content in found.applying.items():
            text = f"This section of the instructions applies now:\n\n{content}"
            # Neither outlives a restart, which shows the section where it belongs.
            literal = view.is_literal(view.outline.by_key[key].path)
            self._transcript.say(Message("system", text) if literal else Message("user", text, name=PROMPT_TURN))
        if found.user_changed:
            self._transcript.say(Message("user", "\n\n".join(found.user_changed.values()), name=PROMPT_TURN))
        if found.told or removed_tools:
            left = tuple(ref for ref in self._run.tools if ref.name not in removed_tools)
            self._save(told={**self._run.told, **found.told}, tools=left)

    def _render_error(self, message: str) -> PromptEvaluationError:
        return PromptEvaluationError(message, prompt_name=self.prompt.name, phase="render")

    def _next_group(self, pending: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
        """The next call, or the next few when all of them are read-only."""
        size = 1
        while size < len(pending) and self.executor.all_read_only(pending[: size + 1]):
            size += 1
        return pending[:size]

    def _request(self) -> ModelRequest:
        output = self.prompt.template.structured_output
        return ModelRequest(
            prompt_name=self.prompt.name,
            messages=self._transcript.sent(),
            output=None if output is None or output.container == "text" else output,
            deadline=self.scope.meter.deadline,
            settings=self.config.settings,
            **self.toolbox.offered,
        )

    def _record_reply(self, request: ModelRequest, reply: ModelReply, latency: float) -> None:
        self.partial_text = []
        self.scope.meter.add_usage(reply.usage)
        self._context_tokens = reply.usage.input_tokens
        self._save(spent=self.scope.meter.spent, unfinished=False)
        self._emit(
            events.ModelCalled,
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
            overrides=self._overrides(),
        )
        if reply.reasoning_dropped:
            self._emit(events.ReasoningDropped, reason="the provider no longer accepts it")
        # An incomplete reply stays out of the conversation: none of its calls may run, now or on resume.
        self._check_stop(reply)
        self._transcript.say(
            Message(
                role="assistant",
                text=reply.text,
                tool_calls=reply.tool_calls,
                items=reply.items,
                provider=self.config.adapter,
                paused=reply.stop_reason == "pause",
                reasoning=reply.reasoning,
            )
        )
        self._open_found(reply)

    def _record_outcomes(self, outcomes: list[ToolExecutionOutcome]) -> ToolExecutionOutcome | None:
        """Add the results to the conversation; return the outcome that ends the turn, if one does."""
        self.executor.ended.clear()
        meter = self.scope.meter
        used = {key: meter.turns for outcome in outcomes if (key := self.toolbox.section_of(outcome.name))}
        changes: dict[str, Any] = {"last_used": {**self._run.last_used, **used}} if used else {}
        read = [key for outcome in outcomes if not outcome.ends_turn for key in outcome.opened]
        closed = [key for outcome in outcomes for key in outcome.closed]
        if (read or closed) and (render := self._last_render()) is not None:
            told = Told(render, self._run.told)
            learned = told.after_disclosure(self.prompt.view(self.session), read, closed)
            changes["told"] = {**self._run.told, **learned}
            now = self.session[VisibilityOverrides].latest()
            moved = _overrides_in(now).items() ^ _overrides_in(self._told_overrides).items()
            if all(".".join(path) in learned for path, _ in moved):
                self._told_overrides = now
        self._save(spent=meter.spent, **changes)
        for outcome in outcomes:
            self._transcript.say(self._result_message(outcome))
            if outcome.operator_text:
                self._operator_texts.append(outcome.operator_text)
        return next((outcome for outcome in outcomes if outcome.ends_turn), None)

    def _result_message(self, outcome: ToolExecutionOutcome) -> Message:
        text, success, parts = outcome.message, outcome.success, outcome.attachments
        if parts:
            try:
                self._check_content(parts, earlier=True)
                parts = parts_of([text, *parts])
                text = text_of(parts)
            except PromptEvaluationError as error:
                text, success, parts = f"{text}\n\nThe attachments cannot be shown: {error}".lstrip(), False, ()
        return Message("tool", text, call_id=outcome.tool_call_id, name=outcome.name, success=success, parts=parts)

    def _check_content(self, parts: Sequence[Part], *, earlier: bool) -> None:
        if not any(isinstance(part, Media) for part in parts):
            return
        self.config.check_content(parts)
        messages = self._conversation.view() if earlier else ()
        self.config.check_amount([*(part for message in messages for part in message.parts), *parts])

    def _say_operator_texts(self) -> None:
        """Send what was read as system messages, after all results of the turn."""
        texts, self._operator_texts = self._operator_texts, []
        if texts:
            self._transcript.say(Message("system", "\n\n".join(texts)))

    def _missing_results(self) -> list[Message]:
        """Results for the calls that were left open: never made if the run failed, else perhaps running elsewhere."""
        failed, called = self.session[events.EvaluationFailed].latest(), self.session[events.ModelCalled].latest()
        calls = unanswered_calls(self._conversation.view())
        text = "Not finished: the conversation went on without it. Whether this call had an effect is not known."
        if failed is not None and called is not None and failed.timestamp > called.timestamp:
            text = "Not run: the turn ended before this call was made."
        return failed_results(calls, text)

    def _register_tools(self) -> None:
        """Make the tools of shown sections callable and those of closed ones not; the model is told later."""
        overrides = self.session[VisibilityOverrides].latest()
        if overrides is self._seen_overrides:
            return
        self._seen_overrides = overrides
        changes = self.toolbox.changes(self._offers(self.prompt.view(self.session), initial=False))
        if changes.new and not self.config.supports_dynamic_tools:
            # A handler has already opened the section in the session.
            key = changes.new[0].ref.section_key
            raise VisibilityExpansionRequired(
                requested_overrides={},
                reason="A tool opened the section, and the adapter cannot add tools to a conversation.",
                section_keys=(key,) if key else (),
            )
        self._check_hosted((ref.section_key, tool) for ref, tool in changes.new if isinstance(tool, HostedTool))
        self.toolbox.apply(changes)

    def _update_tools(self) -> None:
        """Register the tools of the sections now shown, and tell the model what has changed since it was last told."""
        self._register_tools()
        if self.toolbox.version == self._told_version:
            return
        self._told_version = self.toolbox.version
        told = {ref.name for ref in self._run.tools if not ref.revoked}
        appeared = by_section(ref for ref in self.toolbox.refs if not ref.revoked and ref.name not in told)
        gone = by_section(ref for ref in self.toolbox.refs if ref.revoked and ref.name in told)
        used = dict.fromkeys(appeared, self.scope.meter.turns)
        self._save(tools=self.toolbox.refs, last_used={**self._run.last_used, **used})
        self._announce(appeared, gone)

    def _announce(self, appeared: Mapping[str, tuple[str, ...]], gone: Mapping[str, tuple[str, ...]]) -> None:
        route = self.config.tool_route
        for key, names in gone.items():
            self._emit(events.ToolsWithdrawn, tool_names=names, section_key=key, route=route)
            self._transcript.say(Message(role="tools_removed", tools=names, section_key=key))
            logger.info("Withdrew tools of closed section '%s': %s", key, ", ".join(names))
        for key, names in appeared.items():
            offers = [offer for name in names if (offer := self.toolbox.get(name))]
            definitions = tuple(self.config.define_tool(offer.tool) for offer in offers)
            text = self._long_descriptions(offer.tool for offer in offers)
            self._emit(events.ToolsInjected, tool_names=names, section_key=key, route=route, definitions=definitions)
            self._transcript.say(Message(role="tools_added", text=text, tools=names, section_key=key))
            logger.info("Injected tools from section expansion of '%s': %s", key, ", ".join(names))

    def _long_descriptions(self, tools: Iterable[AnyTool]) -> str:
        return "\n\n".join(filter(None, map(self.config.long_description, tools)))

    def _evict(self) -> None:
        """Close the least recently used sections if the context exceeds the budget's limit, each of them once.

        What was sent stays in the context, so the text of a closed section is counted as gone, and one that the model
        opens again stays open. Sections that were opened after the last request have not been told yet.
        """
        budget = self.scope.meter.budget
        limit = None if budget is None else budget.max_context_tokens
        if limit is None or self._context_tokens <= limit:
            return
        excess, self._context_tokens = self._context_tokens - limit - sum(self._run.closed.values()), 0
        told = {ref.section_key for ref in self._run.tools if not ref.revoked} - self._run.closed.keys()
        last_used = {key: self._run.last_used.get(key, 0) for key in told}
        closing = sections_to_close(self.prompt.view(self.session), last_used, excess, self.config.count_tokens)
        for path in closing:
            self.session.dispatch(CollapseSection(path, reason=f"context is over {limit} tokens"))
        self._save(closed={**self._run.closed, **{".".join(path): tokens for path, tokens in closing.items()}})

    def _check_stop(self, reply: ModelReply) -> None:
        problem = _STOPPED.get(reply.stop_reason)
        if problem is not None:
            kind = ContextOverflowError if reply.stop_reason == "overflow" else PromptEvaluationError
            raise kind(
                f"The model {problem} in '{self.prompt.name}': {reply.text[:200]!r}",
                prompt_name=self.prompt.name,
                phase="response",
                payload=reply.text,
            )

    def _answer(self, reply: ModelReply) -> PromptResponse[Any] | None:
        """The response, or None if the model was asked to correct its answer."""
        output = self.prompt.template.structured_output
        text = text_before_pauses(self._conversation.view()) + reply.text
        if output is None:
            return self._response(text, None, None)
        try:
            return self._response(text, parse_structured_output(text, output), None)
        except OutputParseError as error:
            if self._run.output_retries >= self.config.output_retries:
                raise
            self._save(output_retries=self._run.output_retries + 1)
            form = "text" if output.container == "text" else "JSON"
            asked = f"Your answer does not fit the required format: {error}. Answer again with {form} that does."
            self._transcript.say(Message("user", asked, name=CORRECTION))
            self.rejected = str(error)
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
            conversation_id=self.scope.conversation_id,
        )

    def _offers(self, view: View, *, initial: bool) -> list[Offer]:
        """The tools that sections now offer, then those skipped, in the toolbox's form."""
        offers: dict[tuple[str, str], Offer] = {}
        for node, tool in (*view.offered(), *((node, tool) for node, tool, _ in view.skipped())):
            key = "" if node is None else node.key
            if isinstance(tool, HostedTool):
                key, tool = next(iter(self._same_hosted(tool, view)), (key, tool))
            offers.setdefault((key, tool.name), Offer(tool_ref(key, tool.name, initial), tool))
        return list(offers.values())

    def _same_hosted(self, tool: HostedTool[Any], view: View) -> list[Owned]:
        """The hosted tools that the provider cannot tell from this one, in document order."""
        if not getattr(self.config.hosted_tool_codecs.get(tool.kind), "single", False):
            return []
        return [
            (key, other)
            for key, other in self._all_hosted(view)
            if (other.kind, other.config) == (tool.kind, tool.config)
        ]

    def _all_hosted(self, view: View) -> list[Owned]:
        """The hosted tools of all enabled sections, shown or not."""
        return [(node.key, tool) for node in view.existing() for tool in node.hosted_tools]

    def _hosted_outputs(self) -> Mapping[str, Any]:
        tools = {tool.name: tool for tool in self.toolbox.hosted_tools}
        for tool in self.toolbox.hosted_tools:
            for _, other in self._same_hosted(tool, self.prompt.view(self.session)):
                tools.setdefault(other.name, other)
        messages, codecs = self._conversation.view(), self.scope.codecs
        outputs = hosted_outputs(tuple(tools.values()), messages, codecs, self.prompt.name)
        for tool in self.toolbox.hosted_tools:
            if tool.name in outputs:
                self._emit(events.HostedToolInvoked, name=tool.name, kind=tool.kind, output=outputs[tool.name])
        return outputs

    def _check_hosted(self, owned: Iterable[Owned]) -> None:
        check_hosted(owned, self.config.hosted_tool_codecs, self.config.adapter, self.prompt.name)

    def _save(self, **changes: Any) -> None:
        self._run = self._run.updated(changes)
        self._runs.seed(self._run)

    def _overrides(self) -> Overrides:
        """The session's overrides as of the last request, or for the first one."""
        seen = self._seen_overrides
        return _overrides_in(self.session[VisibilityOverrides].latest() if seen is _NOT_SEEN else seen)

    def _definitions(self) -> tuple[str, ...]:
        """Every tool offered so far, as the adapter sends it, hosted tools last."""
        offered = (*self.toolbox.offered["tools"], *self.toolbox.hosted_tools)
        return tuple(self.config.define_tool(tool) for tool in offered)

    def _emit(self, event: Callable[..., LogEntry], /, **fields: Any) -> None:
        """Record an event of this run, at the session's time, so that a replay records the same times."""
        fields["run_id"], fields["conversation_id"] = self.scope.run_id, self.scope.conversation_id
        self.session.dispatch(event(timestamp=self.session.timestamp(), **fields))


def _overrides_in(found: object) -> Overrides:
    return found.overrides if isinstance(found, VisibilityOverrides) else {}


def phase_of(error: Exception) -> str:
    """The phase in which a run failed, if the error records it."""
    if isinstance(error, PromptError):
        return "parse" if isinstance(error, OutputParseError) else "render"
    return getattr(error, "phase", "")
