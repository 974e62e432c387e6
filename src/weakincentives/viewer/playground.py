"""A playground for a prompt: shows what each state of its sections renders and costs, edits drafts, and runs it."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Literal, cast

from weakincentives.limits import Budget
from weakincentives.prompt import (
    AnyTool,
    JsonPromptOverridesStore,
    LoadedSections,
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
from weakincentives.runtime.spi import adapter_spec
from weakincentives.serde import decode, dump, parse
from weakincentives.session import Session
from weakincentives.viewer.bill import Bill, prefix_kept
from weakincentives.viewer.documents import pieces_of
from weakincentives.viewer.form import form_of, missing, with_examples
from weakincentives.viewer.questions import Decided, StaleDecisionError, question_document

DRAFT = "draft"
MAX_TURNS = 40
MAX_LIVE = 20
FULL = SectionVisibility.FULL
SHOWS = {"full": "full", "summary": "summary", "hidden": "inside"}
CLOSED = ("summary", "inside", "out")
CHANGES = {"full": "Opening", "summary": "Closing", "out": "Leaving out"}


@dataclass(frozen=True, slots=True)
class AdapterChoice:
    """An adapter to choose from; `problem` says what it lacks, and `models` are the names it offers."""

    name: str  #: the adapter's name
    models: tuple[str, ...] = ()
    requires_model: bool = False  #: True if a model must be named
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request from the page: the prompt in some state, on an adapter; `Playground.read` makes one from JSON."""

    adapter: str = ""  #: adapter and model, such as openai:gpt-5.6
    params: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  #: values by field, by params type
    states: Mapping[str, Literal["out", "summary", "full"]] = field(default_factory=dict)  #: changed ones, by key
    drafts: Mapping[str, str] = field(default_factory=dict)  #: changed texts, by section key
    tag: str = ""  #: the override to start from, or to store drafts under
    message: str = ""  #: the user's message
    run_id: str = ""  #: a run that was started here
    section: str = ""  #: the key of one section
    from_run: str = ""  #: the recorded run to begin from
    from_turn: int = 1  #: the turn of that run


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
        self._bound = {self._template.params_type_of(value): value for value in self._given.params}
        self._adapters = adapters
        self._make_adapter = make_adapter
        self._overrides = overrides
        self._known: dict[str, ProviderAdapter] = {}
        self._live: dict[str, LiveRun] = {}
        self._lock = threading.Lock()

    def about(self) -> dict[str, Any]:
        """The choices: params by type, adapters, and the tags of stored overrides."""
        template = self._template
        stored = self._overrides.list(ns=template.ns, key=template.key)
        return {
            "prompt": f"{template.ns}/{template.key}",
            "name": template.name,
            "params": [
                {"type": cls.__name__, "fields": form_of(cls, self._default(cls))}
                for cls in template.outline.params_types
            ],
            "sections": list(template.outline.by_key),
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
        params = self._params(wanted, examples=True)
        now = self._prompt(wanted, params)
        declared = self._given.with_template(self._template).bind(*params)
        chosen, out = self._states(wanted)
        explained = adapter.explain(now, visibility_overrides=chosen)
        base = adapter.explain(declared)
        rendered = now.render(visibility_overrides=chosen)
        sections = list(self._sections(explained, base, out, wanted))
        total, full = explained.text_tokens + explained.tool_tokens, base.full_tokens
        late = [one for one in sections if one["unloaded"]]
        bill = Bill(adapter, wanted.adapter, least=any(one["state"] == "full" for one in late))
        before = base.text_tokens + base.tool_tokens
        kept = prefix_kept(declared.render(), rendered, adapter)
        return {
            "sections": sections,
            "pieces": pieces_of(rendered.text, rendered.spans),
            "tools": _tools(rendered, adapter.define_tool),
            "tokens": {
                "text": explained.text_tokens,
                "tools": explained.tool_tokens,
                "total": total,
                "declared": before,
                "full": max(total, full) if late else full,
                "least": bill.least,
                "full_least": bool(late),
            },
            "model": adapter.model,
            "price": bill.price(total),
            "open_price": bill.open_price(total, full) if any(one["state"] in CLOSED for one in sections) else "",
            "cache": bill.cache(list(self._changes(wanted, sections)), kept, before),
            "opening": bill.opening if any(one["opens_tools"] for one in sections) else "",
            "missing": [
                name for cls in self._params_types for name in missing(form_of(cls), self._given_of(wanted, cls))
            ],
        }

    def load(self, wanted: Wanted) -> dict[str, Any]:
        """Load what a section adds when it is opened, as by starting an MCP server, and keep it for what is shown."""
        path = self._path(wanted.section)
        loaded = LoadedSections()
        prompt = copy.copy(self._given)
        with prompt.resources:
            prompt.bound().present(None, loaded).load(path, prompt.resources.context)
        contents = loaded.contents()
        with self._lock:
            for section, content in contents.items():
                if content is not None:
                    self._template = self._template.with_late(section, content)
        return {"loaded": [".".join(section) for section in contents]}

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
        pending = [question_document(call) for call in found.session[PendingCall].all()] if found.done else []
        text = "".join(found.text)
        return {"run_id": run_id, "text": text, "done": found.done, "error": found.error, "pending": pending}

    def decide(self, decided: Decided) -> dict[str, Any]:
        """Decide about a call of a run started here; the run goes on once all its calls are decided."""
        found = self._live.get(decided.run_id)
        if found is None:
            raise ValueError(f"No run {decided.run_id!r} was started here.")
        found.decide(decided.question, decided.read())
        return {"run_id": decided.run_id}

    def stop(self, wanted: Wanted) -> dict[str, Any]:
        """Stop a run started here."""
        found = self._live.get(wanted.run_id)
        if found is not None:
            found.stream.close()
        return {"stopped": found is not None}

    def _prompt(self, wanted: Wanted, params: Sequence[Any]) -> Prompt[Any]:
        override = self._override(wanted)
        _, out = self._states(wanted)
        prompt = self._given.with_template(self._template.without(out)).bind(*params)
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
        """The chosen visibilities, with the parents that they open, and the sections that are left out."""
        states = {self._path(key): state for key, state in wanted.states.items()}
        out = [path for path, state in states.items() if state == "out"]
        chosen: dict[SectionPath, SectionVisibility] = {}
        for path, state in states.items():
            if not any(inside(path, up) for up in out):
                chosen |= {path[:end]: FULL for end in range(1, len(path)) if path[:end] not in states}
                chosen[path] = SectionVisibility(state)
        return chosen, out

    def _changes(self, wanted: Wanted, sections: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        """The changed texts, in the order of the prompt."""
        for one in sections:
            chosen = wanted.states.get(one["key"])
            if chosen is not None and one["state"] != one["declared"] and one["state"] != "off":
                yield f"{CHANGES[chosen]} “{one['title']}”"
            elif one["key"] in wanted.drafts:
                yield f"The draft of “{one['title']}”"
        if wanted.tag:
            yield f"The override “{wanted.tag}”"

    def _path(self, key: str) -> SectionPath:
        node = self._template.outline.by_key.get(key)
        if node is None:
            raise ValueError(f"Prompt '{self._template.key}' has no section {key!r}.")
        return node.path

    @property
    def _params_types(self) -> tuple[type, ...]:
        return self._template.outline.params_types

    def _given_of(self, wanted: Wanted, cls: type) -> Mapping[str, Any]:
        """The form's values for a params type; the bound instance or a default of a section if it has nothing."""
        given, default = wanted.params.get(cls.__name__), self._default(cls)
        if given is None and default is not None:
            return cast(Mapping[str, Any], dump(default))
        return given or {}

    def _params(self, wanted: Wanted, *, examples: bool = False) -> list[Any]:
        """The params of the form; with `examples`, required fields that are empty are filled in."""
        for name in wanted.params.keys() - {cls.__name__ for cls in self._params_types}:
            raise ValueError(f"Prompt '{self._template.key}' has no params {name!r}.")
        found = []
        for cls in self._params_types:
            if cls.__name__ not in wanted.params and (default := self._default(cls)) is not None:
                found.append(default)
                continue
            given = self._given_of(wanted, cls)
            found.append(parse(cls, with_examples(form_of(cls), given) if examples else given))
        return found

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
        self, now: Explanation, base: Explanation, out: Sequence[SectionPath], wanted: Wanted
    ) -> Iterator[dict[str, Any]]:
        """Every section of the template: what it shows and why, and what it may be made to show."""
        states = {section.state.path: section for section in now.sections}
        declared = {section.state.path: section.state for section in base.sections}
        outline, descriptor = self._template.outline, self._template.descriptor
        override, stored = self._override(wanted), self._override(replace(wanted, drafts={}))
        chosen = [self._path(key) for key, state in wanted.states.items() if state != "out"]
        for node in outline.nodes:
            found, described = states.get(node.path), descriptor.sections.get(node.path)
            state = found.state if found else declared.get(node.path)
            source = (described.source or "") if described else ""
            body, kept = (one and one.sections.get(node.path) for one in (override, stored))
            closable = node.summary is not None or bool(found and found.state.collapsible)
            late = any(up.is_late for up in outline.ancestors(node))
            left_out = any(inside(node.path, up) for up in out)
            shows = "out" if left_out else SHOWS[found.state.visibility.value] if found else "off"
            was = SHOWS[declared[node.path].visibility.value] if node.path in declared else "off"
            opener = next((path for path in chosen if path != node.path and inside(path, node.path)), None)
            closed = (up for up in outline.ancestors(node) if up.path in states)
            closed = (up for up in closed if states[up.path].state.visibility is SectionVisibility.SUMMARY)
            around = next((up.section.title for up in closed), "")
            yield {
                "key": node.key,
                "path": node.path,
                "title": node.section.title,
                "state": shows,
                "declared": was,
                "choices": [*([] if late else ["out"]), *(["summary"] if closable else []), "full"],
                "opened_by": outline.by_path[opener].section.title if opener and shows == "full" != was else "",
                "inside": around if shows == "inside" else "",
                "unloaded": bool(state and state.unloaded),
                "has_server": hasattr(node.section, "server"),
                "shown_tokens": found.state.shown_tokens if found else 0,
                "full_tokens": state.full_tokens if state else 0,
                "tools": [tool.name for tool in node.all_tools],
                "tool_tokens": state.tool_tokens if state else 0,
                "offered": bool(found and found.state.visibility is FULL),
                "opens_tools": shows in ("summary", "inside") and bool(node.all_tools or (state and state.unloaded)),
                "opening": found.opening if found else "",
                "source": body.body if body else source,
                "original": kept.body if kept else source,
                "editable": bool(described and described.accepts_overrides and not late),
                "placeholders": described.placeholders if described else (),
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

    def decide(self, question: str, decision: Approve | Deny | Edit | Answer) -> None:
        """Go on with a decision about the question with this id; another tab may have decided it."""
        with self._lock:
            waiting = [call.question.id for call in self.session[PendingCall].all()] if self.done else []
            if question not in waiting:
                raise StaleDecisionError
            self.stream = self._start({question: decision})
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
