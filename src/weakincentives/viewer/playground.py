"""A playground for a prompt: shows what each state of its sections renders and costs, edits drafts, and runs it."""

from __future__ import annotations

import copy
import enum
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from weakincentives.limits import Budget, Prices, TokenUsage
from weakincentives.prompt import (
    AnyTool,
    JsonPromptOverridesStore,
    Prompt,
    PromptOverride,
    PromptOverridesStore,
    PromptTemplate,
    RenderedPrompt,
    SectionPath,
    SectionVisibility,
    inside,
)
from weakincentives.runtime import (
    Answer,
    Approve,
    Conversation,
    Decisions,
    Deny,
    Edit,
    EventStream,
    Explanation,
    MainLoop,
    PendingCall,
    ProviderAdapter,
    Restarted,
    TextDelta,
    ToolStarted,
)
from weakincentives.runtime.spi import adapter_spec, first_difference
from weakincentives.serde import decode, dump, parse
from weakincentives.session import Session
from weakincentives.telemetry import Redactor, prices_for
from weakincentives.viewer.documents import pieces_of

DRAFT = "draft"
MAX_TURNS = 40
MAX_LIVE = 20
FULL, SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY


@dataclass(frozen=True, slots=True)
class AdapterChoice:
    """An adapter to choose from; `problem` says what it lacks, and `models` are the names it offers."""

    name: str
    models: tuple[str, ...] = ()
    requires_model: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request from the page: the prompt in some state, on an adapter; `Playground.read` makes one from JSON."""

    adapter: str = ""
    params: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    states: Mapping[str, Literal["hidden", "summary", "full"]] = field(default_factory=dict)
    drafts: Mapping[str, str] = field(default_factory=dict)
    tag: str = ""
    message: str = ""
    run_id: str = ""
    from_run: str = ""
    from_turn: int = 1


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision from the page about a call that waits; `arguments` is JSON text, for an edit."""

    run_id: str
    call_id: str
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


class Playground:
    """Renders and runs one template; `make_adapter` accepts the name of a choice, with a model after a colon."""

    def __init__(
        self,
        prompt: Prompt[Any] | PromptTemplate[Any],
        *,
        adapters: Sequence[AdapterChoice],
        make_adapter: Callable[[str], ProviderAdapter],
        overrides: JsonPromptOverridesStore,
    ) -> None:
        self._given = prompt if isinstance(prompt, Prompt) else Prompt(prompt)
        self._template = self._given.template
        self._bound = {type(value): value for value in self._given.params}
        self._adapters = adapters
        self._make_adapter = make_adapter
        self._overrides = overrides
        self._known: dict[str, ProviderAdapter] = {}
        self._live: dict[str, LiveRun] = {}
        self._lock = threading.Lock()
        self._redactor = Redactor()

    def about(self) -> dict[str, Any]:
        """The choices: params by type, adapters, and the tags of stored overrides."""
        template = self._template
        stored = self._overrides.list(ns=template.ns, key=template.key)
        return {
            "prompt": f"{template.ns}/{template.key}",
            "name": template.name,
            "params": [
                {"type": cls.__name__, "fields": list(form_fields(cls, self._default(cls)))}
                for cls in template.outline.params_types
            ],
            "adapters": [dump(choice) for choice in self._adapters],
            "tags": [override.tag for override in stored],
        }

    def read(self, body: bytes | str) -> Wanted:
        """The request in a JSON object; its adapter is one of the choices, since another name may be any module's."""
        wanted = decode(Wanted, body)
        listed = [choice.name for choice in self._adapters]
        if wanted.adapter and not {wanted.adapter, wanted.adapter.partition(":")[0]} & {*listed}:
            raise ValueError(f"adapter must be one of {', '.join(listed)}, or one with a model; got {wanted.adapter!r}")
        return wanted

    def render(self, wanted: Wanted) -> dict[str, Any]:
        """The prompt with these params, states and drafts: sections, text, tools, and what they cost."""
        adapter = self._adapter(wanted)
        params = self._params(wanted)
        now = self._prompt(wanted, params)
        chosen, hidden = self._states(wanted)
        explained = adapter.explain(now, visibility_overrides=chosen)
        rendered = now.render(visibility_overrides=chosen)
        declared = copy.copy(self._given).bind(*params)
        base, before = adapter.explain(declared), declared.render()
        total = explained.text_tokens + explained.tool_tokens
        prices = prices_for(adapter.model)
        return {
            "sections": list(self._sections(explained, base, hidden, self._override(wanted))),
            "pieces": pieces_of(rendered.text, rendered.spans),
            "tools": _tools(rendered, adapter.define_tool),
            "tokens": {
                "text": explained.text_tokens,
                "tools": explained.tool_tokens,
                "total": total,
                "declared": base.text_tokens + base.tool_tokens,
                "full": base.full_tokens,
            },
            "model": adapter.model,
            "route": explained.route,
            "prices": None if prices is None else _costs(prices, total, base.full_tokens),
            "cache": prefix_kept(before, rendered, adapter.count_tokens, adapter.sent_tool),
        }

    def save(self, wanted: Wanted) -> dict[str, Any]:
        """Store the drafts under a tag, keeping what is stored there for other sections."""
        tag = wanted.tag.strip()
        if not tag:
            raise ValueError("A tag is needed to save under, such as 'latest'.")
        descriptor = self._template.descriptor
        drafts = {self._path(key): body for key, body in wanted.drafts.items()}
        made = {path: descriptor.override_section(path, body) for path, body in drafts.items()}

        def change(stored: PromptOverride) -> PromptOverride:
            for path, section in made.items():
                stored = stored.with_section(path, section)
            return stored

        self._overrides.update(ns=descriptor.ns, key=descriptor.key, tag=tag, change=change)
        return {"tag": tag, "file": str(self._overrides.path_of(ns=descriptor.ns, key=descriptor.key, tag=tag))}

    def run(self, wanted: Wanted, session: Session | None = None) -> dict[str, Any]:
        """Start a run with the chosen options and return its id; it is recorded like any other.

        On a session, its conversation goes on, and the model replies even without a message.
        """
        prompt = self._prompt(wanted, self._params(wanted))
        chosen, _ = self._states(wanted)
        adapter = self._adapter(wanted, afresh=True)
        said = wanted.message.strip()
        budget, goes_on = Budget(max_turns=MAX_TURNS), session is not None
        session = Session() if session is None else session
        chat, loop = Conversation(prompt, adapter=adapter, budget=budget, session=session), MainLoop(budget=budget)

        def start(decisions: Decisions | None) -> EventStream[Any]:
            if said or goes_on:
                words = said if said and decisions is None else None
                return chat.stream(words, visibility_overrides=chosen, decisions=decisions)
            return loop.stream(
                prompt, session=session, adapter=adapter, visibility_overrides=chosen, decisions=decisions
            )

        live = LiveRun(start, session)
        with self._lock:
            self._live[live.run_id] = live
            while len(self._live) > MAX_LIVE:
                del self._live[next(iter(self._live))]
        live.follow()
        return {"run_id": live.run_id}

    def live(self, run_id: str) -> dict[str, Any]:
        """The text so far of the current turn of a run started here, and the calls that wait for a decision."""
        found = self._live.get(run_id)
        if found is None:
            return {"run_id": run_id, "text": "", "done": True, "error": "It was not started here.", "pending": []}
        pending = [] if not found.done else [self._pending(call) for call in found.session[PendingCall].all()]
        text = "".join(found.text)
        return {"run_id": run_id, "text": text, "done": found.done, "error": found.error, "pending": pending}

    def _pending(self, call: PendingCall) -> dict[str, Any]:
        """A call that waits, without secrets; arguments with one cannot be edited on the page."""
        arguments = self._redactor.text(call.arguments)
        return {
            "call_id": call.call_id,
            "tool": call.tool,
            "section_key": call.section_key,
            "arguments": arguments,
            "text": self._redactor.text(call.text),
            "needs": call.needs,
            "editable": call.needs != "answer" and arguments == call.arguments,
        }

    def decide(self, decided: Decided) -> dict[str, Any]:
        """Decide about a call of a run started here; the run goes on once all its calls are decided."""
        found = self._live.get(decided.run_id)
        if found is None:
            raise ValueError(f"No run {decided.run_id!r} was started here.")
        found.decide(decided.call_id, decided.read())
        return {"run_id": decided.run_id}

    def stop(self, wanted: Wanted) -> dict[str, Any]:
        """Stop a run started here."""
        found = self._live.get(wanted.run_id)
        if found is not None:
            found.stream.close()
        return {"stopped": found is not None}

    def _prompt(self, wanted: Wanted, params: Sequence[Any]) -> Prompt[Any]:
        override = self._override(wanted)
        _, hidden = self._states(wanted)
        prompt = copy.copy(self._given).bind(*params)
        prompt.template = self._template.without(hidden)
        known = prompt.template.outline.by_path.keys()
        if override is None:
            return prompt
        for path in {*override.sections, *override.summaries, *override.visibility} - known:
            override = override.without("section", path).without("summary", path).without("visibility", path)
        drafts = SimpleNamespace(resolve=lambda descriptor, tag: override)
        return prompt.with_overrides(cast(PromptOverridesStore, drafts), DRAFT)

    def _override(self, wanted: Wanted) -> PromptOverride | None:
        """The stored override with the chosen tag, or the prompt's own, with the drafts applied on top."""
        descriptor, own = self._template.descriptor, self._given.overrides_store
        override, stored = descriptor.new_override(DRAFT), None
        if wanted.tag:
            stored = self._overrides.get(ns=descriptor.ns, key=descriptor.key, tag=wanted.tag)
        elif own is not None and self._given.overrides_tag:
            stored = own.resolve(descriptor, self._given.overrides_tag)
        if stored is not None:
            override = replace(stored, tag=DRAFT, tools={})
        for key, body in wanted.drafts.items():
            path = self._path(key)
            override = override.with_section(path, descriptor.override_section(path, body))
        return None if override == descriptor.new_override(DRAFT) else override

    def _states(self, wanted: Wanted) -> tuple[dict[SectionPath, SectionVisibility], list[SectionPath]]:
        states = {self._path(key): state for key, state in wanted.states.items()}
        hidden = [path for path, state in states.items() if state == "hidden"]
        within = [path for path in states if any(inside(path, up) for up in hidden)]
        return {path: SectionVisibility(state) for path, state in states.items() if path not in within}, hidden

    def _path(self, key: str) -> SectionPath:
        node = self._template.outline.by_key.get(key)
        if node is None:
            raise ValueError(f"Prompt '{self._template.key}' has no section {key!r}.")
        return node.path

    def _params(self, wanted: Wanted) -> list[Any]:
        given, types = wanted.params, self._template.outline.params_types
        for name in given.keys() - {cls.__name__ for cls in types}:
            raise ValueError(f"Prompt '{self._template.key}' has no params {name!r}.")
        return [
            parse(cls, given[cls.__name__]) if cls.__name__ in given else self._default(cls)
            for cls in types
            if cls.__name__ in given or self._default(cls) is not None
        ]

    def _default(self, cls: type) -> Any:
        """The bound instance of a params type, or else a section's default."""
        sections = (node.section for node in self._template.outline.nodes if node.section.params_type is cls)
        return self._bound.get(cls) or next((s.default_params for s in sections if s.default_params is not None), None)

    def _adapter(self, wanted: Wanted, *, afresh: bool = False) -> ProviderAdapter:
        """The chosen adapter; one that loads its model into this process is created only once."""
        name = wanted.adapter or self._adapters[0].name
        with self._lock:
            known = self._known.get(name)
            spec = adapter_spec(known.name) if known and afresh else None
            if known is None or (afresh and not (spec and spec.in_process)):
                known = self._known[name] = self._make_adapter(name)
        return known

    def _sections(
        self,
        now: Explanation,
        base: Explanation,
        hidden: Sequence[SectionPath],
        override: PromptOverride | None,
    ) -> Iterator[dict[str, Any]]:
        """Every section of the template, including hidden ones."""
        states = {section.state.path: section for section in now.sections}
        declared = {section.state.path: section.state for section in base.sections}
        for node in self._template.outline.nodes:
            described = self._template.descriptor.sections[node.path]
            found = states.get(node.path)
            state = found.state if found else declared.get(node.path)
            body = override.sections.get(node.path) if override else None
            closable = node.summary is not None or bool(found and found.state.collapsible)
            yield {
                "key": node.key,
                "path": node.path,
                "title": node.section.title,
                "state": found.state.visibility.value if found else "absent",
                "declared": declared[node.path].visibility.value if node.path in declared else "absent",
                "choices": ["hidden", *(["summary"] if closable else []), "full"],
                "is_hidden": any(inside(node.path, up) for up in hidden),
                "shown_tokens": found.state.shown_tokens if found else 0,
                "full_tokens": state.full_tokens if state else 0,
                "tools": [tool.name for tool in node.all_tools],
                "tool_tokens": state.tool_tokens if state else 0,
                "offered": bool(found and found.state.visibility is FULL),
                "opening": found.opening if found else "",
                "source": body.body if body else described.source or "",
                "editable": described.accepts_overrides,
                "placeholders": described.placeholders,
            }


class LiveRun:
    """A run started here: what it has said in its current turn, and whether it has ended or waits.

    `start` begins it, and goes on with decisions about its calls.
    """

    def __init__(self, start: Callable[[Decisions | None], EventStream[Any]], session: Session) -> None:
        self.session = session
        self.stream = start(None)
        self.run_id = self.stream.run_id
        self.text: list[str] = []
        self.done = False
        self.error = ""
        self._start = start
        self._lock = threading.Lock()

    def decide(self, call_id: str, decision: Approve | Deny | Edit | Answer) -> None:
        """Go on with a decision about a call that waits."""
        with self._lock:
            waiting = {call.call_id: call.tool for call in self.session[PendingCall].all()} if self.done else {}
            if call_id not in waiting:
                open_calls = ", ".join(f"{each} ({tool})" for each, tool in waiting.items()) or "none"
                raise ValueError(f"No call {call_id!r} waits for a decision; open calls: {open_calls}.")
            self.stream = self._start({call_id: decision})
            self.text, self.done, self.error = [], False, ""
        self.follow()

    def follow(self) -> None:
        """Consume its events, in a thread, until it ends."""
        threading.Thread(target=self._consume, name="wink-play", daemon=True).start()

    def _consume(self) -> None:
        try:
            for event in self.stream:
                if isinstance(event, TextDelta):
                    self.text.append(event.text)
                elif isinstance(event, ToolStarted | Restarted):
                    self.text = []
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
        finally:
            self.done = True


def form_fields(cls: type, default: Any) -> Iterator[dict[str, Any]]:
    """The fields of a dataclass as form inputs: a kind of input, choices, and an initial value."""
    hints = get_type_hints(cls)
    values = cast(Mapping[str, Any], dump(default)) if default is not None else {}
    for each in fields(cast(Any, cls)):
        if not each.init:
            continue
        hint = hints[each.name]
        optional = NoneType in get_args(hint)
        kind, choices = _input_for(hint)
        value = values.get(each.name)
        if value is None and each.default is not MISSING:
            value = dump(each.default)
        elif value is None and each.default_factory is not MISSING:
            value = dump(each.default_factory())
        yield {"name": each.name, "kind": kind, "choices": choices, "optional": optional, "value": value}


def _input_for(hint: Any) -> tuple[str, list[Any]]:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType) and NoneType in args:
        rest = [arg for arg in args if arg is not NoneType]
        return _input_for(rest[0]) if len(rest) == 1 else ("json", [])
    if origin is Literal:
        return "choice", list(args)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return "choice", [dump(member) for member in hint]
    kinds = {str: "text", bool: "yes or no", int: "whole number", float: "number"}
    return kinds.get(hint, "json"), []


def prefix_kept(
    before: RenderedPrompt[Any],
    now: RenderedPrompt[Any],
    count: Callable[[str], int],
    define: Callable[[AnyTool], str],
) -> dict[str, Any]:
    """How much of a cached request is still a prefix, and where it breaks; tools come first, then the text.

    `define` returns a tool as it is sent, or an empty text if it is not.
    """
    cached = 0
    old, new = (
        [
            (tool.name, sent)
            for tool in cast(tuple[AnyTool, ...], (*one.tools, *one.hosted_tools))
            if (sent := define(tool))
        ]
        for one in (before, now)
    )
    for index, (name, definition) in enumerate(new):
        if index >= len(old) or old[index][1] != definition:
            return {"tokens": cached, "breaks_at": f"tool {name}", "section": ""}
        cached += count(definition)
    if len(old) > len(new):
        return {"tokens": cached, "breaks_at": f"tool {old[len(new)][0]}, which is gone", "section": ""}
    same = first_difference(before.text, now.text)
    cached += count(now.text[:same])
    if same == len(before.text) == len(now.text):
        return {"tokens": cached, "breaks_at": "", "section": ""}
    span = next((span for span in now.spans if span.end > same), None) or (now.spans[-1] if now.spans else None)
    section = ".".join(span.path) if span else ""
    return {"tokens": cached, "breaks_at": f"section {section}", "section": section}


def _costs(prices: Prices, total: int, full: int) -> dict[str, float]:
    """The price in dollars of one request's input: uncached, read from the cache, and with everything open."""
    return {
        "fresh": prices.cost(TokenUsage(input_tokens=total)),
        "cached": prices.cost(TokenUsage(input_tokens=total, cached_tokens=total)),
        "full": prices.cost(TokenUsage(input_tokens=full)),
    }


def _tools(rendered: RenderedPrompt[Any], define: Callable[[AnyTool], str]) -> list[dict[str, Any]]:
    return [
        {
            "name": tool.name,
            "section": node.key if node else "",
            "builtin": node is None,
            "hosted": tool in rendered.hosted_tools,
            "definition": define(tool),
        }
        for node, tool in rendered.view.offered()
    ]
