"""A prompt in one run: its tree, the visibility it began with, and what is shown now."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import is_
from types import MappingProxyType
from typing import Any, TypeVar, cast

from weakincentives._base.latest import Latest
from weakincentives._base.threads import until
from weakincentives.errors import DeadlineExceededError, PromptRenderError, UnboundParamsError
from weakincentives.limits import Deadline
from weakincentives.prompt.disclosure.ranking.finder import PaidRanking, collecting
from weakincentives.prompt.outline import Node, Outline, Params
from weakincentives.prompt.section import LateContent, Section
from weakincentives.prompt.tool_names import UsedNames
from weakincentives.prompt.tools import AnyTool
from weakincentives.prompt.view import Decider, View, ViewOptions
from weakincentives.prompt.visibility import (
    ABSENT,
    PACKED,
    Overrides,
    SectionPath,
    SectionVisibility,
    VisibilityOverrides,
    check_visibility,
)
from weakincentives.resources import ResourceRegistry, ScopedResourceContext
from weakincentives.session import Session

T = TypeVar("T")
_BEFORE_THE_RUN = ("rule", "search", "budget")
logger = logging.getLogger("weakincentives.prompt")


class LoadedSections:
    """What sections have loaded: for one conversation, or for one run that belongs to none.

    It may be about a single user, since it was loaded with the resources of one, `bound_resources`. So it is shared
    with nobody, and lives no longer than its owner; a conversation to which other resources are bound begins with
    nothing loaded.
    """

    def __init__(
        self,
        bound_resources: ResourceRegistry | None = None,
        contents: Mapping[SectionPath, LateContent | None] = MappingProxyType({}),
    ) -> None:
        self.bound_resources = bound_resources
        self._contents = dict(contents)
        self._completed: Latest[tuple[Outline, int], Outline] = Latest()
        # Counts changes, so that an outline is completed again after each.
        self._version = 0

    def copy(self) -> LoadedSections:
        """The same content for another owner, who uses the same resources: a fork."""
        return LoadedSections(self.bound_resources, self._contents)

    def contents(self) -> dict[SectionPath, LateContent | None]:
        """The content by section, in the order of loading; None for a section that was as expected."""
        return dict(self._contents)

    def add(self, path: SectionPath, content: LateContent | None) -> bool:
        """Keep what a section has loaded; True if there is anything new. None means that nothing has changed."""
        before = self._contents.pop(path, None)
        is_new = content is not None and content is not before
        self._contents[path] = content if is_new else before
        self._version += is_new
        return is_new

    @property
    def has_guards(self) -> bool:
        """True if a section that was loaded with another has guards."""
        sections: list[Section[Any]] = []
        for content in self.contents().values():
            sections.extend(() if content is None else content.children)
        for section in sections:
            if section.guards:
                return True
            sections.extend(section.children)
        return False

    def complete(self, outline: Outline) -> Outline:
        """The outline with this content."""
        return self._completed.of((outline, self._version), partial(self._complete, outline))

    def _complete(self, outline: Outline) -> Outline:
        for path in sorted(self._contents, key=len):
            content = self._contents[path]
            if content is not None:
                outline = outline.with_late(path, content)
        return outline


class Presentation:
    """A prompt as one run shows it: with the params and overrides it began with, and what was loaded since.

    `session` decides what is open. `content` is what sections have loaded in earlier runs of a conversation, to which
    this one adds; `loaded` are those that need not be loaded again. `listed` returns the sections whose summary the
    model has.
    """

    def __init__(
        self,
        outline: Outline,
        bound: Mapping[type, Any],
        options: ViewOptions,
        session: Session | None = None,
        *,
        content: LoadedSections | None = None,
        listed: Callable[[], Iterable[SectionPath]] = tuple,
    ) -> None:
        self.session = session
        self.listed = listed
        self._content = LoadedSections() if content is None else content
        self.loaded = tuple(self._content.contents())
        self._base: View | None = None
        self.outline = self._content.complete(outline)
        self._bound = dict(bound)
        self._params = Params(self._bound)
        self._options = options
        # Those made for this run that have to be paid for.
        self.rankings: list[PaidRanking] = []
        # The last view, after the base and the session's overrides that it was made of.
        self._latest: tuple[tuple[Any, Any], View] | None = None

    def begin(self, overrides: Overrides | None = None, words: str = "") -> None:
        """Decide what is shown before the session's overrides: what was declared, selected or passed by the caller, and
        what a rule, the user's words or the token budget opens. `words` are the user's, besides user sections.
        """
        outline, options = self.outline, self._options
        self._base = self._declared(overrides or {})
        if outline.ruled or options.disclosure.preopen:
            view = self.view()
            if options.disclosure.preopen or any(node.section.rule_needs_text for node in outline.ruled):
                asked = "".join(view.pieces()[view.layout.user_piece :]).strip()
                words = "\n\n".join(part for part in (asked, words) if part)
            self._open(self._ruled(view, words), "rule")
            self._open(self._preopened(self.view(), words), "search")
        if options.token_budget is not None:
            fitted = self.view().fitted(options.token_budget, options.counter)
            self._open((outline.by_path[path] for path, why in fitted.decided.items() if why == "budget"), "budget")

    def _open(self, nodes: Iterable[Node], decider: Decider) -> None:
        assert self._base is not None
        opened = {node.path: SectionVisibility.FULL for node in nodes}
        self._base = self._base.opened(opened, decider, alone=decider == "budget")

    def resume(
        self,
        chosen: Mapping[str, SectionVisibility],
        selected: Mapping[str, SectionVisibility],
        overrides: Overrides | None = None,
    ) -> None:
        """Continue with the visibilities of `decisions`; other sections decide again."""
        known = {node.path: shown for key, shown in chosen.items() if (node := self.outline.by_key.get(key))}
        self._base = self._declared({**known, **(overrides or {})}, selected)

    def decisions(self) -> tuple[dict[str, SectionVisibility], dict[str, SectionVisibility]]:
        """The visibilities of sections that were opened as the run began, and those that their code decided, by key."""
        base, found = self._begun(), self.outline.by_path
        opened = [found[path] for path, why in base.decided.items() if why in _BEFORE_THE_RUN and path in found]
        chosen, selected = (
            {node.key: base.own_visibility(node) for node in each} for each in (opened, self.outline.dynamic)
        )
        return chosen, selected

    def view(self) -> View:
        """The sections shown and the tools offered now."""
        base = self._begun()
        made_of = (base, None if self.session is None else self.session[VisibilityOverrides].latest())
        if self._latest is None or not all(map(is_, self._latest[0], made_of)) or base.outline.deciding:
            self._latest = (made_of, self._view(base, self.session))
        return self._latest[1]

    def base_view(self) -> View:
        """The view that the run began with, without the session's overrides."""
        return self._view(self._begun(), None)

    def params(self, params_type: type[T]) -> T | None:
        """The params of this type: those bound, else the default of a section that uses them."""
        sources = (node.source for node in self.outline.nodes if node.source is not None)
        source = next((each for each in sources if each.params_type is params_type), None)
        return cast("T | None", self._bound.get(params_type) if source is None else self._params[source])

    def _begun(self) -> View:
        if self._base is None:
            self.begin()
        assert self._base is not None
        return self._base

    def _declared(self, overrides: Overrides, selected: Mapping[str, SectionVisibility] = MappingProxyType({})) -> View:
        """The declared visibility, with the caller's overrides applied; sections in `selected` do not decide again."""
        outline = self.outline
        params = self._params
        if not outline.dynamic and not overrides:
            return View(outline, params, self._options, outline.base)
        unknown = [path for path in overrides if path not in outline.by_path]
        if unknown:
            raise PromptRenderError(
                f"visibility_overrides names {unknown[0]!r}, which is not a section path of this prompt; "
                f"paths are tuples of keys: {', '.join(map(repr, islice(outline.by_path, 10)))}"
                f"{' and others' if len(outline.by_path) > 10 else ''}."
            )
        given = {path: check_visibility(visibility) for path, visibility in overrides.items()}
        own = bytearray(outline.base)
        decided: dict[SectionPath, Decider] = {}
        for node in outline.dynamic:
            if any(own[up.index] == ABSENT for up in outline.ancestors(node)):
                continue
            if node.key in selected:
                own[node.index] = PACKED.index(selected[node.key])
            elif node.may_be_disabled and not _is_enabled(node, params, self.session):
                own[node.index] = ABSENT
            elif node.selects:
                visibility = _decided(node, "declared_visibility", params[node.source], session=self.session)
                own[node.index] = PACKED.index(visibility)
                decided[node.path] = "selector"
        return View(outline, params, self._options, bytes(own), decided).opened(given, "override")

    def _view(self, base: View, session: Session | None) -> View:
        """The base with the session's overrides on top; paths of other prompts in the session are ignored.

        Sections that decide their visibility themselves do so last.
        """
        view = base
        current = None if session is None else session[VisibilityOverrides].latest()
        if current is not None and current.overrides:
            view = base.opened(current.overrides)
        for node in base.outline.deciding:
            if view.seen[node.index] == ABSENT:
                continue
            override = base.own_visibility(node) if base.decided_by(node) == "override" else None
            given = (override, self._params[node.source])
            visibility = _decided(node, "effective_visibility", *given, session=session, path=node.path)
            if visibility is not view.own_visibility(node):
                view = view.opened({node.path: visibility}, "selector", alone=True)
        return view

    def unloaded(self) -> list[SectionPath]:
        """Sections shown in full whose tools and children are not known yet."""
        unloaded = [node for node in self.outline.late if node.path not in self.loaded]
        if not unloaded:
            return []
        view = self.view()
        return [node.path for node in unloaded if view.visibility_of(node) is SectionVisibility.FULL]

    def not_loaded(self, paths: Iterable[SectionPath]) -> list[SectionPath]:
        """Those of these sections that load content and have not yet; one inside another is known once that has."""
        remaining: list[SectionPath] = []
        for path in paths:
            node = self.outline.by_path.get(path)
            if node is not None and node.is_late and path not in self.loaded:
                remaining.append(path)
        return remaining

    def count_as_loaded(self, path: SectionPath) -> None:
        """Leave a section as it is, although it could not be loaded again."""
        self.loaded += (path,)

    def keep_loaded(self, resources: ScopedResourceContext) -> None:
        """Load those sections again that ask for it; until then they stay as they are."""
        by_path = self.outline.by_path
        self.loaded = tuple(
            path for path in self.loaded if path in by_path and not by_path[path].section.refresh(resources)
        )

    def forget_outdated(self, resources: ScopedResourceContext) -> list[SectionPath]:
        """Count sections as not loaded whose content is out of date; until they are, they stay as they are."""
        by_path = self.outline.by_path
        old = [path for path in self.loaded if path in by_path and by_path[path].section.outdated(resources)]
        self.loaded = tuple(path for path in self.loaded if path not in old)
        return old

    def load(self, path: SectionPath, resources: ScopedResourceContext, deadline: Deadline | None = None) -> None:
        """Load what a section and its ancestors add when they are opened, each once per run."""
        for end in range(1, len(path) + 1):
            node = self.outline.by_path.get(path[:end])
            if node is None or not node.is_late or node.path in self.loaded:
                continue
            late = DeadlineExceededError("The deadline passed while a section was being opened.", phase="tool")
            seconds = None if deadline is None else deadline.remaining().total_seconds()
            content = until(seconds, partial(node.section.load, resources), late)
            self.loaded += (node.path,)
            if self._content.add(node.path, content) and content is not None:
                self._show(self.outline.with_late(node.path, content))

    def copy_content(self) -> LoadedSections:
        """What sections have loaded so far, for a fork of the run."""
        return self._content.copy()

    def keep_names(self, used: UsedNames) -> None:
        """Offer tools under the names that the conversation has used for them."""
        self._show(self.outline.with_names(used))

    def _show(self, outline: Outline) -> None:
        if outline is not self.outline:
            self.outline = outline
            if self._base is not None:
                self._base = self._base.moved(outline)

    def find_tool(self, section_key: str, name: str) -> AnyTool | None:
        """A tool of the section with this key, shown or not."""
        node = self.outline.by_key.get(section_key)
        return None if node is None else next((tool for tool in node.all_tools if tool.name == name), None)

    def opened_by_rule(self, words: Callable[[], str]) -> list[SectionPath]:
        """Closed sections that their rules open now; not those that the model or code has closed."""
        if not self.outline.ruled or self.session is None:
            return []
        return [node.path for node in self._ruled(self.view(), words())]

    def opened_by_words(self, words: str) -> list[SectionPath]:
        """Closed sections that a message clearly calls for, if the strategy opens those."""
        return [node.path for node in self._preopened(self.view(), words)]

    def called_for(self, paths: Sequence[SectionPath], words: str, *, ranks: bool) -> list[SectionPath]:
        """Of these open sections, those that would be opened again if they were closed now.

        That is by their rules, and if it `ranks`, for the user's words.
        """
        if not paths:
            return []
        view = self.view().opened(dict.fromkeys(paths, SectionVisibility.SUMMARY))
        nodes = self._ruled(view, words)
        if ranks:
            nodes += self._preopened(view, words)
        return [node.path for node in nodes]

    def reopened(self) -> list[SectionPath]:
        """Sections closed by a compaction that a rule or the user's words opened as this run began."""
        decided = self._begun().decided
        paths: list[SectionPath] = []
        for path in self._overrides().compacted:
            if decided.get(path) in ("rule", "search"):
                paths.append(path)
        return paths

    def _overrides(self) -> VisibilityOverrides:
        if self.session is None:
            return VisibilityOverrides()
        return self.session[VisibilityOverrides].latest() or VisibilityOverrides()

    def _may_open(self, view: View, node: Node) -> bool:
        """True unless the caller, the model or code has closed the section, or one around it."""
        for around in (*view.outline.ancestors(node), node):
            closed = view.own_visibility(around) is SectionVisibility.SUMMARY
            if closed and view.decided_by(around) == "override":
                return False
        return not self._overrides().closed_for_good(node.path)

    def _ruled(self, view: View, words: str) -> list[Node]:
        """The closed sections whose rules open them."""
        closed = (SectionVisibility.SUMMARY, SectionVisibility.HIDDEN)
        return [
            node
            for node in view.outline.ruled
            if view.visibility_of(node) in closed
            and self._may_open(view, node)
            and node.section.opens(self._params[node.source], session=self.session, text=words)
        ]

    def _preopened(self, view: View, words: str) -> list[Node]:
        """The sections the strategy opens for the user's words; none if the ranker fails."""
        if not self._options.disclosure.preopen or not words:
            return []
        try:
            with collecting(self.rankings):
                nodes = self._options.disclosure.preopened(view, words)
        except Exception as error:
            logger.warning("No section was opened for the user's words: %s", error)
            return []
        return [node for node in nodes if self._may_open(view, node)]


def _is_enabled(node: Node, params: Params, session: Session | None) -> bool:
    """Ask the section; unbound params are only an error if it needs them to answer, or is enabled."""
    try:
        given = params[node.source]
    except UnboundParamsError as unbound:
        if node.section.enabled_needs_params:
            raise
        try:
            return bool(_asked(node, "is_enabled", None, session=session))
        except PromptRenderError:
            raise unbound from None
    return bool(_asked(node, "is_enabled", given, session=session))


def _asked(node: Node, method: str, *given: Any, **named: Any) -> Any:
    try:
        return getattr(node.section, method)(*given, **named)
    except PromptRenderError:
        raise
    except Exception as error:
        raise PromptRenderError(f"Section '{node.key}': {method}() raised {type(error).__name__}: {error}") from error


def _decided(node: Node, method: str, *given: Any, **named: Any) -> SectionVisibility:
    """The visibility that the section's code decides; rejects anything but FULL and SUMMARY."""
    visibility = _asked(node, method, *given, **named)
    if isinstance(visibility, SectionVisibility) and visibility in (SectionVisibility.FULL, SectionVisibility.SUMMARY):
        return visibility
    raise PromptRenderError(
        f"Section '{node.key}': visibility= must return SectionVisibility.FULL or SUMMARY, got {visibility!r}."
    )
