"""The state of a run that its session keeps: all that going on in another process needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any

from weakincentives._base.frozen import quick_init
from weakincentives.limits import Spent
from weakincentives.prompt import AnyTool, Overrides, SectionPath, SectionVisibility, Tool, portable_name
from weakincentives.prompt.tool_names import ToolId, UsedNames
from weakincentives.session import Session


@quick_init
@dataclass(frozen=True, slots=True)
class ToolRef:
    """A reference to an offered tool: its section's key ('' for built-in tools) and its name.

    A `deferred` tool belongs to a closed section and is sent for the provider to search; `found` says that it was
    found. If the section no longer offered it as the turn began, its name is `free` for another section to take.
    `own_name` is the section's own name for it, if the section was loaded late or the tool is offered under another:
    its name then stays its own for the whole conversation.
    """

    section_key: str
    name: str
    initial: bool = True
    revoked: bool = False
    deferred: bool = False
    found: bool = False
    free: bool = False
    own_name: str = ""

    @classmethod
    def of(cls, section_key: str, tool: AnyTool, **state: bool) -> ToolRef:
        is_named = isinstance(tool, Tool) and tool.earlier_names
        own_name = tool.own_name if isinstance(tool, Tool) and is_named else ""
        return cls(section_key, tool.name, own_name=own_name, **state)

    @property
    def key(self) -> tuple[str, str]:
        """The key of its section, and its name."""
        return self.section_key, self.name

    @property
    def unfound(self) -> bool:
        """True if the model does not have the tool yet: its section is closed, and the provider has not found it."""
        return self.deferred and not self.found

    @property
    def is_callable(self) -> bool:
        """True if the model may call the tool."""
        return not (self.revoked or self.unfound)


def by_section(refs: Iterable[ToolRef]) -> dict[str, tuple[str, ...]]:
    """The names of tools by the key of their section."""
    grouped: dict[str, tuple[str, ...]] = {}
    for ref in refs:
        grouped[ref.section_key] = (*grouped.get(ref.section_key, ()), ref.name)
    return grouped


@quick_init
@dataclass(frozen=True, slots=True)
class RunState:
    """A run so far. `chosen`, `selected` and `overrides` are the visibilities it began with, if they were not
    declared, by section key: those opened by a rule, the user's words or the token budget, those that the code of
    sections decided, and those that its caller asked for.

    `tools` are those that the model knows; `former_tools` are those that it no longer has, and whose names the
    conversation keeps for them. `shown` is what each section showed when the model was last informed. `loaded` are the
    sections that have loaded content, in order. `unsent` are the texts that calls of the turn have read and that follow
    its results as the operator's. `opening` says that the turn has ended for a new attempt, and what that is to open;
    if it is empty, the caller decides. `unfinished` says that the last message is what was shown of a reply that broke
    off. `shortened` says that the request under way was shortened after it was too long, and `estimated` is its size in
    tokens, if it was counted, with the number of messages in it. `answers` is the number of assistant messages before
    the run, counted if there may be hosted tools. `params` is a digest of its params, `attempt` counts its restarts,
    and `model` is the number of the model in use among those of the run.
    """

    run_id: str
    prompt_ns: str
    prompt_key: str
    chosen: Mapping[str, SectionVisibility] = field(default_factory=dict)
    selected: Mapping[str, SectionVisibility] = field(default_factory=dict)
    overrides: Mapping[str, SectionVisibility] = field(default_factory=dict)
    tools: tuple[ToolRef, ...] = ()
    shown: Overrides = field(default_factory=dict)
    output_retries: int = 0
    opening: Overrides | None = None
    unfinished: bool = False
    conversation_id: str = ""
    answers: int = 0
    spent: Spent = field(default_factory=Spent)
    params: str = ""
    attempt: int = 1
    former_tools: tuple[ToolRef, ...] = ()
    unsent: tuple[str, ...] = ()
    model: int = 0
    loaded: tuple[SectionPath, ...] = ()
    shortened: bool = False
    estimated: tuple[int, int] | None = None

    def is_of(self, ns: str, key: str) -> bool:
        """True for a run of the prompt with this namespace and key."""
        return (self.prompt_ns, self.prompt_key) == (ns, key)

    @property
    def used_names(self) -> UsedNames:
        """The names that the conversation keeps."""
        by_tool: dict[ToolId, str] = {}
        others: dict[str, str] = {}
        for ref in (*self.former_tools, *self.tools):
            if ref.own_name:
                by_tool[ref.section_key, ref.own_name] = ref.name
            else:
                others[portable_name(ref.name)] = ref.section_key
        return UsedNames(by_tool, others)

    def own_name(self, name: str) -> str:
        """The name that the section of a tool has given it, whatever it is offered as."""
        for ref in self.tools:
            if ref.name == name:
                return ref.own_name or name
        return name

    def with_tools(self, refs: tuple[ToolRef, ...]) -> RunState:
        """The same with these tools; the names of those that are gone stay taken."""
        now = {ref.key for ref in refs}
        former: dict[tuple[str, str], ToolRef] = {}
        for ref in (*self.former_tools, *self.tools):
            if ref.key not in now:
                former[ref.key] = replace(ref, revoked=True, initial=False)
        return self.updated({"tools": refs, "former_tools": tuple(former.values())})

    def as_new(self, run_id: str, answers: int = 0) -> RunState:
        """The same state at the beginning of another run, after this many assistant messages."""
        return self.updated({**_FRESH, "run_id": run_id, "answers": answers})

    def updated(self, changes: Mapping[str, Any]) -> RunState:
        """Like `dataclasses.replace`, at half the cost: a run is saved twice per turn."""
        return RunState(**{**dict(zip(_FIELDS, _values(self), strict=True)), **changes})


@dataclass(frozen=True, slots=True)
class ConversationId:
    """The id of a conversation that has no run, because it has gone back to before its first one."""

    conversation_id: str


def conversation_of(session: Session) -> str:
    """The id shared by all runs of the conversation in a session: by default, that of the session."""
    state = session[RunState].latest()
    if state is not None:
        return state.conversation_id
    kept = session[ConversationId].latest() if ConversationId in session else None
    return session.session_id if kept is None else kept.conversation_id


_FRESH: Mapping[str, Any] = {
    "selected": {},
    "overrides": {},
    "spent": Spent(),
    "output_retries": 0,
    "opening": None,
    "attempt": 1,
    "model": 0,
    "shortened": False,
    "estimated": None,
}
"""The part of the state that each run of a conversation begins with."""
_FIELDS = tuple(each.name for each in fields(RunState))
_values = attrgetter(*_FIELDS)
